"""Optimizers with one learning rate, and running sums of parameters."""

from __future__ import annotations

from pstranspile.ir.model import Op
from pstranspile.ops.schema import FLOAT, LONG, declare, long
from pstranspile.ops.shapes import Types, one, shape_rule

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
    return {f"out_{slot[3:]}": type_ for slot, type_ in types.items() if slot.startswith("in_")}
