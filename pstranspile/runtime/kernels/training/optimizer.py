"""Kernels. Optimizers with one learning rate, and running sums of parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr, real
from pstranspile.runtime.arithmetic import loops, norm, number_of
from pstranspile.runtime.kernels.context import Surroundings
from pstranspile.runtime.kernels.kernel import Run, in_place, kernel, plain_kernel
from pstranspile.runtime.kernels.numeric import first
from pstranspile.runtime.kernels.optimizer_steps import owned, pieces, replaced, whole
from pstranspile.runtime.kernels.random.streams import fluid_uniform, normal
from pstranspile.runtime.kernels.rows import AS_ROWS, add_rows, in_use, merge_rows, positions
from pstranspile.runtime.values import Array, SelectedRows

# Arrays are updated in place if the op reads and writes the same variable.


@kernel("sgd", "ParamOut")
def _sgd(op: Op) -> Run:
    own, replace, as_rows = owned(op, "Param"), replaced(op), AS_ROWS in op.attrs
    kept = in_place(op, "Param", "ParamOut")

    def sparse(param: Array | SelectedRows, grad: SelectedRows, rate: Any) -> Array | SelectedRows:
        if as_rows:
            grad = merge_rows([grad])
        step = in_use(grad) * -rate
        if isinstance(param, SelectedRows):
            value = own(param.value)[0]
            add_rows(value, positions(param, grad.rows, "Param"), step)
            return param._replace(value=value)
        table = param if kept and param.flags.writeable else param.copy()
        add_rows(table, grad.rows, step)
        return table

    def run(Param: Array, Grad: Array, LearningRate: Array) -> Array:
        rate = first(LearningRate)
        if isinstance(Grad, SelectedRows):
            return sparse(Param, Grad, rate)
        param, new = replace(Param, Grad)
        if not loops.sgd(param, Grad, new, rate):
            for g, p, n in pieces(Grad, param, new):
                np.subtract(p, rate * g, out=n)
        return new

    return run


@kernel("momentum", "ParamOut VelocityOut")
def _momentum(op: Op) -> Run:
    mu, nesterov = real(op, "mu"), flag(op, "use_nesterov")
    own, replace = owned(op, "Velocity"), replaced(op)

    def run(Param: Array, Grad: Array | SelectedRows, LearningRate: Array, Velocity: Array) -> tuple[Array, ...]:
        param, new = replace(Param, Grad)
        (velocity,) = own(Velocity)
        rate = first(LearningRate)
        if isinstance(Grad, SelectedRows) or not loops.momentum(param, Grad, velocity, new, mu, rate, nesterov):
            for g, p, v, n in pieces(Grad, param, velocity, new):
                v *= mu
                v += g
                np.subtract(p, rate * (g + mu * v if nesterov else v), out=n)
        return new, velocity

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
        else:  # the stream of the gradient, because a parameter's stream is the same in every step
            noise = float(normal(*surroundings.stream(op.inputs["Grad"][0], 0), 1, dtype="float64")[0])
        rate, shift = first(LearningRate), noise * sigma / batch
        for g, p in whole(Grad, param):
            size = float(norm(g))
            p -= rate * (g * (clip / size if size > clip else 1.0) + shift)
        return param

    return run


@plain_kernel(
    "average_accumulates",
    "out_sum_1 out_sum_2 out_sum_3 out_num_accumulates out_old_num_accumulates out_num_updates",
)
def _accumulate(
    param: Array,
    in_sum_1: Array,
    in_sum_2: Array,
    in_sum_3: Array,
    in_num_accumulates: Array,
    in_old_num_accumulates: Array,
    in_num_updates: Array,
    *,
    average_window: float,
    max_average_window: int,
    min_average_window: int,
) -> tuple[Array, ...]:
    updates, accumulates, old = in_num_updates + 1, in_num_accumulates + 1, in_old_num_accumulates
    sums = [in_sum_1 + param, in_sum_2, in_sum_3]
    if first(updates) % _SUMMED_AT_MOST == 0:
        sums = [np.zeros_like(param), in_sum_2 + sums[0], in_sum_3]
    count = first(accumulates)
    if count >= min_average_window and count >= min(max_average_window, first(updates) * average_window):
        sums = [np.zeros_like(param), np.zeros_like(param), sums[0] + sums[1]]
        old, accumulates = accumulates, np.zeros_like(accumulates)
    return (*sums, accumulates, old, updates)


_SUMMED_AT_MOST = 16384
"""After this many updates the first sum is added to the second, so that small terms are not lost in a large sum."""
