"""Updates of parameters."""

from __future__ import annotations

from typing import Any

from pstranspile.arithmetic import norm, number_of
from pstranspile.ir.model import Op
from pstranspile.lazy import lazy_import
from pstranspile.ops.context import Surroundings
from pstranspile.ops.kernel import Run, kernel
from pstranspile.ops.numeric import first, flag, real
from pstranspile.ops.optimizer_steps import owned, pieces, whole
from pstranspile.ops.random_numbers import fluid_uniform, normal
from pstranspile.ops.rows import AS_ROWS, add_rows, in_use, merge_rows, positions
from pstranspile.ops.schema import FLOAT, LONG, declare, long
from pstranspile.ops.shapes import Types, int_attr, one, shape_rule
from pstranspile.ops.values import Array, SelectedRows

np = lazy_import("numpy")

declare(
    "sgd",
    "Param Grad LearningRate -> ParamOut",
    follows="Param Grad ParamOut",
    doc="ParamOut = Param - LearningRate * Grad",
)
declare(
    "momentum",
    "Param Grad LearningRate Velocity -> ParamOut VelocityOut",
    {"mu": FLOAT, "use_nesterov": False},
    follows="Param Grad Velocity ParamOut VelocityOut",
    doc="VelocityOut = mu * Velocity + Grad; ParamOut = Param - LearningRate * VelocityOut, or Nesterov's form",
)
declare(
    "lars_momentum",
    "Param Grad LearningRate Velocity -> ParamOut VelocityOut",
    {"mu": FLOAT, "lars_coeff": 0.001, "lars_weight_decay": 0.0005},
    follows="Param Grad Velocity ParamOut VelocityOut",
    whole_norm=True,
    doc="as momentum, the rate scaled by the norm of Param over that of Grad",
)
declare(
    "proximal_gd",
    "Param Grad LearningRate -> ParamOut",
    {"l1": 0.0, "l2": 0.0},
    follows="Param Grad ParamOut",
    doc="as sgd, followed by the proximal step for l1 and l2",
)
declare(
    "proximal_adagrad",
    "Param Grad LearningRate Moment -> ParamOut MomentOut",
    {"l1": 0.0, "l2": 0.0},
    follows="Param Grad Moment ParamOut MomentOut",
    doc="as adagrad, followed by the proximal step for l1 and l2",
)
declare(
    "dpsgd",
    "Param Grad LearningRate -> ParamOut",
    {"clip": 10.0, "batch_size": 16.0, "sigma": 1.0, "seed": 0},
    follows="Param Grad ParamOut",
    whole_norm=True,
    doc="as sgd, with Grad clipped by its norm and with noise",
)
declare(
    "dgc_momentum",
    "Param Grad LearningRate current_step nranks Velocity -> ParamOut Grad_out VelocityOut",
    {"rampup_begin_step": -1.0, "mu": FLOAT, "use_nesterov": False},
    follows="Param Grad Velocity Grad_out ParamOut VelocityOut",
    doc="momentum before rampup_begin_step, sgd from then on; for gradients sent in part",
)
declare(
    "average_accumulates",
    "param in_sum_1 in_sum_2 in_sum_3 in_num_accumulates in_old_num_accumulates in_num_updates -> "
    "out_sum_1 out_sum_2 out_sum_3 out_num_accumulates out_old_num_accumulates out_num_updates",
    {"average_window": 0.0, "max_average_window": LONG, "min_average_window": long(10000)},
    row_wise=True,
    doc="sums of `param` over windows of updates, for averaging a model",
)


@shape_rule("average_accumulates")
def _average_accumulates(_op: Op, types: Types) -> Types:
    one(types, "param")
    return {f"out_{slot[3:]}": held for slot, held in types.items() if slot.startswith("in_")}


# Kernels. Arrays are updated in place where the op reads and writes the same variable.


@kernel("sgd", "ParamOut")
def _sgd(op: Op) -> Run:
    own, as_rows = owned(op, "Param"), AS_ROWS in op.attrs

    def sparse(param: Array | SelectedRows, grad: SelectedRows, rate: Any) -> Array | SelectedRows:
        if as_rows:
            grad = merge_rows([grad])
        step = in_use(grad) * -rate
        if isinstance(param, SelectedRows):
            value = own(param.value)[0]
            add_rows(value, positions(param, grad.rows, "Param"), step)
            return param._replace(value=value)
        (table,) = own(param)
        add_rows(table, grad.rows, step)
        return table

    def run(Param: Array, Grad: Array, LearningRate: Array) -> Array:
        rate = first(LearningRate)
        if isinstance(Grad, SelectedRows):
            return sparse(Param, Grad, rate)
        (param,) = own(Param)
        for g, p in pieces(Grad, param):
            p -= rate * g
        return param

    return run


@kernel("momentum", "ParamOut VelocityOut")
def _momentum(op: Op) -> Run:
    mu, nesterov = real(op, "mu"), flag(op, "use_nesterov")
    own = owned(op, "Param Velocity")

    def run(Param: Array, Grad: Array, LearningRate: Array, Velocity: Array) -> tuple[Array, ...]:
        param, velocity = own(Param, Velocity)
        rate = first(LearningRate)
        for g, p, v in pieces(Grad, param, velocity):
            v *= mu
            v += g
            p -= rate * (g + mu * v if nesterov else v)
        return param, velocity

    return run


@kernel("dgc_momentum", "ParamOut Grad_out VelocityOut")
def _dgc_momentum(op: Op) -> Run:
    mu, nesterov = real(op, "mu"), flag(op, "use_nesterov")
    begin = real(op, "rampup_begin_step")
    own = owned(op, "Param Velocity")

    def run(
        Param: Array, Grad: Array, LearningRate: Array, Velocity: Array, current_step: Array, nranks: Array
    ) -> tuple[Array | None, ...]:
        if begin < 0:
            return None, None, None
        param, velocity = own(Param, Velocity)
        rate, mean = first(LearningRate), Grad / first(nranks)
        before = first(current_step) < begin
        for g, p, v in pieces(mean, param, velocity):
            if before:
                v *= mu
                v += g
                p -= rate * (g + mu * v if nesterov else v)
            else:
                p -= rate * g
        return param, mean, velocity

    return run


@kernel("lars_momentum", "ParamOut VelocityOut")
def _lars_momentum(op: Op) -> Run:
    mu, trust, decay = real(op, "mu"), real(op, "lars_coeff"), real(op, "lars_weight_decay")
    own = owned(op, "Param Velocity")

    def run(Param: Array, Grad: Array, LearningRate: Array, Velocity: Array) -> tuple[Array, ...]:
        param, velocity = own(Param, Velocity)
        number = number_of(param)
        rate = number(first(LearningRate))
        for g, p, v in whole(Grad, param, velocity):
            of_param, of_grad = number(norm(p)), number(norm(g))
            if of_param > 0 and of_grad > 0:
                rate = rate * number(trust) * of_param / (of_grad + number(decay) * of_param)
            v *= mu
            v += rate * (g + decay * p)
            p -= v
        return param, velocity

    return run


def _proximal(param: Array, rate: Any, l1: float, l2: float) -> None:
    """The proximal step for l1 and l2, in place."""
    if l1 > 0:
        param[...] = np.sign(param) * np.maximum(np.abs(param) - rate * l1, 0)
    param /= 1 + rate * l2


@kernel("proximal_gd", "ParamOut")
def _proximal_gd(op: Op) -> Run:
    l1, l2 = real(op, "l1"), real(op, "l2")
    own = owned(op, "Param")

    def run(Param: Array, Grad: Array, LearningRate: Array) -> Array:
        (param,) = own(Param)
        rate = first(LearningRate)
        for g, p in pieces(Grad, param):
            p -= rate * g
            _proximal(p, rate, l1, l2)
        return param

    return run


@kernel("proximal_adagrad", "ParamOut MomentOut")
def _proximal_adagrad(op: Op) -> Run:
    l1, l2 = real(op, "l1"), real(op, "l2")
    own = owned(op, "Param Moment")

    def run(Param: Array, Grad: Array, LearningRate: Array, Moment: Array) -> tuple[Array, ...]:
        param, moment = own(Param, Moment)
        rate = first(LearningRate)
        for g, p, m in pieces(Grad, param, moment):
            m += g * g
            p -= rate * g / np.sqrt(m)
            _proximal(p, rate, l1, l2)
        return param, moment

    return run


def _fluid_noise(seed: int, dtype: Any) -> float:
    """The first number of the polar method over Fluid's generator seeded with `seed`."""
    draw = 0
    while True:
        x, y = (2.0 * float(u) - 1.0 for u in fluid_uniform(seed, draw, 2, dtype))
        size = x * x + y * y
        if 0.0 < size < 1.0:
            return x * float(np.sqrt(-2.0 * np.log(size) / size))
        draw += 2


@kernel("dpsgd", "ParamOut")
def _dpsgd(op: Op) -> Run:
    clip, batch, sigma, seed = real(op, "clip"), real(op, "batch_size"), real(op, "sigma"), int_attr(op, "seed")
    own = owned(op, "Param")

    def run(Param: Array, Grad: Array, LearningRate: Array, surroundings: Surroundings) -> Array:
        (param,) = own(Param)
        if seed:
            noise = _fluid_noise(seed, param.dtype)
        else:  # a stream of the gradient's, since that of a parameter is the same in every step
            noise = float(normal(*surroundings.stream(op.inputs["Grad"][0], 0), 1, dtype="float64")[0])
        rate, shift = first(LearningRate), noise * sigma / batch
        for g, p in whole(Grad, param):
            size = float(norm(g))
            p -= rate * (g * (clip / size if size > clip else 1.0) + shift)
        return param

    return run


@kernel(
    "average_accumulates",
    "out_sum_1 out_sum_2 out_sum_3 out_num_accumulates out_old_num_accumulates out_num_updates",
)
def _accumulate(op: Op) -> Run:
    window = real(op, "average_window")
    longest, shortest = int_attr(op, "max_average_window"), int_attr(op, "min_average_window")

    def run(
        param: Array,
        in_sum_1: Array,
        in_sum_2: Array,
        in_sum_3: Array,
        in_num_accumulates: Array,
        in_old_num_accumulates: Array,
        in_num_updates: Array,
    ) -> tuple[Array, ...]:
        updates, held, old = in_num_updates + 1, in_num_accumulates + 1, in_old_num_accumulates
        sums = [in_sum_1 + param, in_sum_2, in_sum_3]
        if first(updates) % _SUMMED_AT_MOST == 0:
            sums = [np.zeros_like(param), in_sum_2 + sums[0], in_sum_3]
        count = first(held)
        if count >= shortest and count >= min(longest, first(updates) * window):
            sums = [np.zeros_like(param), np.zeros_like(param), sums[0] + sums[1]]
            old, held = held, np.zeros_like(held)
        return (*sums, held, old, updates)

    return run


_SUMMED_AT_MOST = 16384
"""After so many updates the first sum goes into the second, so that small terms are not lost in a large sum."""
