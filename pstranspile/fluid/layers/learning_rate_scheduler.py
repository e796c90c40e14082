"""Fluid's `layers.learning_rate_scheduler`: ops that compute the learning rate of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pstranspile.fluid.layers import nn, tensor
from pstranspile.fluid.layers.adapt import check_kind, live, to_core, wrap
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.frontends import autodiff


def _decay_step_counter(begin: int = 0) -> Any:  # pyright: ignore[reportUnusedFunction]
    """The step that schedules depend on, float32 [1]; scripts with a schedule of their own call this function."""
    return tensor.cast(nn.autoincreased_step_counter("@LR_DECAY_COUNTER@", begin=begin), "float32")


def _emit_schedule(schedule: autodiff.Schedule) -> Any:
    return wrap(schedule.emit(live()))


def exponential_decay(learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False) -> Any:
    """learning_rate * decay_rate ** (step / decay_steps)."""
    return _emit_schedule(autodiff.Exponential(learning_rate, decay_steps, decay_rate, staircase))


def natural_exp_decay(learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False) -> Any:
    """learning_rate * exp(-decay_rate * step / decay_steps)."""
    return _emit_schedule(autodiff.NaturalExp(learning_rate, decay_steps, decay_rate, staircase))


def inverse_time_decay(learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False) -> Any:
    """learning_rate / (1 + decay_rate * step / decay_steps)."""
    return _emit_schedule(autodiff.InverseTime(learning_rate, decay_steps, decay_rate, staircase))


def polynomial_decay(
    learning_rate: float, decay_steps: int, end_learning_rate: float = 0.0001, power: float = 1.0, cycle: bool = False
) -> Any:
    """A rate that goes from learning_rate to end_learning_rate within decay_steps, along a polynomial."""
    return _emit_schedule(autodiff.Polynomial(learning_rate, decay_steps, end_learning_rate, power, cycle))


def piecewise_decay(boundaries: Sequence[int], values: Sequence[float]) -> Any:
    """A rate that is constant between every two boundaries."""
    return _emit_schedule(autodiff.Piecewise(tuple(boundaries), tuple(map(float, values))))


def noam_decay(d_model: float, warmup_steps: int, learning_rate: float = 1.0) -> Any:
    """The rate of the transformer: it rises for `warmup_steps`, then falls with the inverse square root of the step.

    It is divided by the square root of `d_model`. Raises ValueError unless `d_model` is above 0.
    """
    if d_model <= 0:
        raise ValueError(f"d_model of a schedule is {d_model}, it must be above 0")
    return _emit_schedule(autodiff.Noam(1, warmup_steps, learning_rate * d_model**-0.5))


def cosine_decay(learning_rate: float, step_each_epoch: int, epochs: int) -> Any:
    """A rate that falls along half a cosine over the epochs."""
    return _emit_schedule(autodiff.Cosine(learning_rate, step_each_epoch, epochs))


def linear_lr_warmup(learning_rate: Any, warmup_steps: int, start_lr: float, end_lr: float) -> Any:
    """A rate that goes from start_lr to end_lr in `warmup_steps`, then is `learning_rate`, a number or a rate that ops
    compute.
    """
    check_kind("linear_lr_warmup", "learning_rate", learning_rate, ("Variable", "float"))
    return _emit_schedule(autodiff.LinearWarmup(to_core(learning_rate), warmup_steps, start_lr, end_lr))


__getattr__ = names_of_fluid(__name__, globals())
