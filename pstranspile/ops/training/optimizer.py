"""Optimizers with one learning rate, and running sums of parameters."""

from __future__ import annotations

from pstranspile.ir.model import Op
from pstranspile.ops.schema import FLOAT, LONG, bounded, declare, later, long
from pstranspile.ops.shapes import Types, one, shape_rule
from pstranspile.ops.work import WorkRule, elements, work_rule

declare(
    "sgd",
    "Param Grad LearningRate -> ParamOut",
    follows="Param Grad ParamOut",
    updates_given_rows=True,
    doc="ParamOut = Param - LearningRate * Grad",
)
declare(
    "momentum",
    "Param Grad LearningRate Velocity GradShare^ -> ParamOut VelocityOut GradShareOut^",
    {"mu": FLOAT, "use_nesterov": False, "dampening": later("float")},
    follows="Param Grad Velocity ParamOut VelocityOut",
    updates_given_rows=True,
    doc="VelocityOut = mu * Velocity + Grad; ParamOut = Param - LearningRate * VelocityOut, or Nesterov's form; with "
    "dampening, as in PyTorch, the velocity gets GradShare * Grad, and GradShareOut = 1 - dampening",
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
    draws=True,
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
    {
        "average_window": 0.0,
        "max_average_window": LONG,
        "min_average_window": bounded(long(10000), below="max_average_window"),
    },
    row_wise=True,
    doc="sums of `param` over windows of updates, for averaging a model",
)


@shape_rule("average_accumulates")
def _average_accumulates(_op: Op, types: Types) -> Types:
    one(types, "param")
    return {f"out_{slot[3:]}": type_ for slot, type_ in types.items() if slot.startswith("in_")}


# Optimizers with a learning rate for each element, from averages of its gradients.

declare(
    "adam",
    "Param Grad LearningRate Moment1 Moment2 Beta1Pow Beta2Pow Beta1Tensor? Beta2Tensor? Moment2Max^ -> "
    "ParamOut Moment1Out Moment2Out Beta1PowOut Beta2PowOut Moment2MaxOut^",
    {
        "beta1": 0.9,
        "beta2": 0.999,
        "epsilon": 1e-08,
        "lazy_mode": False,
        "min_row_size_to_use_multithread": long(1000),
        "scaled_epsilon": later("bool"),
        "decoupled_decay": later("float"),
        "powers_after": later("bool"),
        "amsgrad": later("bool"),
    },
    follows="Param Grad Moment1 Moment2 Moment2Max ParamOut Moment1Out Moment2Out Moment2MaxOut",
    updates_given_rows=True,
    merges_repeats=True,
    doc="ParamOut = Param - rate * Moment1Out / (sqrt(Moment2Out) + epsilon), moments corrected for their start at 0; "
    "with scaled_epsilon, epsilon is added to the corrected root: it is multiplied by sqrt(1 - Beta2Pow); with "
    "decoupled_decay (arXiv 1711.05101), Param is multiplied by 1 - LearningRate * decoupled_decay first; with "
    "powers_after, sparse rows are updated with the powers as they come, as dense gradients are; with amsgrad, "
    "Moment2MaxOut = max(Moment2Max, Moment2Out) is the second moment of the step",
)
declare(
    "adamax",
    "Param Grad LearningRate Moment InfNorm Beta1Pow -> ParamOut MomentOut InfNormOut",
    {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-08, "epsilon_of_gradient": later("bool")},
    follows="Param Grad Moment InfNorm ParamOut MomentOut InfNormOut",
    doc="as adam, with the infinity norm for the second moment; with epsilon_of_gradient, as in PyTorch, epsilon is "
    "added to the size of Grad, and not to the norm before",
)
declare(
    "lamb",
    "Param Grad LearningRate Moment1 Moment2 Beta1Pow Beta2Pow -> "
    "ParamOut Moment1Out Moment2Out Beta1PowOut- Beta2PowOut-",
    {"weight_decay": FLOAT, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-06, "corrected": later("bool")},
    follows="Param Grad Moment1 Moment2 ParamOut Moment1Out Moment2Out",
    whole_norm=True,
    never_cut=True,
    doc="as adam without the correction, with weight decay, scaled by the norm of Param over that of the step; with "
    "corrected, moments are corrected, powers advance, and a step without weight decay is not scaled",
)
declare(
    "adagrad",
    "Param Grad LearningRate Moment Updates^ -> ParamOut MomentOut UpdatesOut^",
    {"epsilon": 1e-06, "rate_decay": later("float")},
    follows="Param Grad Moment ParamOut MomentOut",
    updates_given_rows=True,
    merges_repeats=True,
    doc="MomentOut = Moment + Grad * Grad; ParamOut = Param - LearningRate * Grad / (sqrt(MomentOut) + epsilon); with "
    "rate_decay, as in PyTorch, the rate is divided by 1 + Updates * rate_decay, and UpdatesOut = Updates + 1",
)
declare(
    "decayed_adagrad",
    "Param Grad LearningRate Moment -> ParamOut MomentOut",
    {"decay": 0.95, "epsilon": 1e-06},
    follows="Param Grad Moment ParamOut MomentOut",
    doc="as adagrad, MomentOut = decay * Moment + (1 - decay) * Grad * Grad",
)
declare(
    "adadelta",
    "Param Grad LearningRate- AvgSquaredGrad AvgSquaredUpdate -> ParamOut AvgSquaredGradOut AvgSquaredUpdateOut",
    {"rho": 0.95, "epsilon": 1e-06, "scaled": later("bool")},
    follows="Param Grad AvgSquaredGrad AvgSquaredUpdate ParamOut AvgSquaredGradOut AvgSquaredUpdateOut",
    doc="steps sized by the running averages of squared steps over squared gradients; with scaled, times LearningRate",
)
declare(
    "rmsprop",
    "Param Grad LearningRate MeanSquare MeanGrad? Moment -> ParamOut MomentOut MeanSquareOut MeanGradOut",
    {"epsilon": 1e-10, "decay": 0.9, "momentum": 0.0, "centered": False, "epsilon_of_root": later("bool")},
    follows="Param Grad Moment MeanSquare MeanGrad ParamOut MomentOut MeanSquareOut MeanGradOut",
    updates_given_rows=True,
    doc="steps divided by the root of a running average of squared gradients, less the mean if centered; with "
    "epsilon_of_root, as in PyTorch, epsilon is added to the root, and Moment has steps before they are multiplied by "
    "LearningRate",
)
declare(
    "ftrl",
    "Param Grad LearningRate SquaredAccumulator LinearAccumulator -> ParamOut SquaredAccumOut LinearAccumOut",
    {"l1": 0.0, "l2": 0.0, "lr_power": -0.5},
    follows="Param Grad SquaredAccumulator LinearAccumulator ParamOut SquaredAccumOut LinearAccumOut",
    updates_given_rows=True,
    doc="follow the regularised leader, with l1 and l2",
)


# The work of updates: operations on each element of the gradient, whose rows are those that the batch has if it is
# sparse.


def _work_per_element(count: float) -> WorkRule:
    """The work rule of optimizer updates with `count` operations on each element of the gradient."""
    return lambda _op, types: count * elements(types, "Grad")


for _count, _types in (
    (2, ("sgd",)),
    (5, ("momentum", "dgc_momentum", "proximal_gd", "dpsgd")),
    (8, ("adagrad", "decayed_adagrad", "proximal_adagrad", "lars_momentum")),
    (12, ("adam", "adamax", "adadelta", "rmsprop")),
    (16, ("ftrl", "lamb")),
):
    work_rule(*_types)(_work_per_element(_count))
