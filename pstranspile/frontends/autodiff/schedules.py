"""Learning-rate schedules: ops of role `lr_sched` that compute the rate from a step counter."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise

from pstranspile.frontends.layers import basic
from pstranspile.frontends.layers.draft import Draft, Value
from pstranspile.frontends.layers.loops import Switch
from pstranspile.ir.types import DType, OpRole

COUNTER = "@LR_DECAY_COUNTER@"
"""The step counter that all schedules share: 0 in the first run (1 for Noam)."""


class Schedule(ABC):
    """A learning-rate schedule; subclasses create the ops that compute the rate in `_rate`."""

    def emit(self, draft: Draft) -> Value:
        """Appends the schedule's ops to block 0 and returns the learning rate (f32[1])."""
        with draft.roles(OpRole.LR_SCHED):
            return self._rate(draft)

    @abstractmethod
    def _rate(self, draft: Draft) -> Value: ...


def _step(draft: Draft, begin: int = 0) -> Value:
    return basic.cast(basic.step_counter(draft, COUNTER, begin), DType.FP32)


def _positive(**settings: int) -> None:
    for name, value in settings.items():
        if value < 1:
            raise ValueError(f"{name} of a schedule is {value}, it must be at least 1")


@dataclass(frozen=True)
class _Decay(Schedule):
    """A rate that decays with the number of periods of `decay_steps`; `staircase` counts whole periods only."""

    learning_rate: float
    decay_steps: int
    decay_rate: float
    staircase: bool = False

    def __post_init__(self) -> None:
        _positive(decay_steps=self.decay_steps)

    def _periods(self, draft: Draft) -> Value:
        passed = _step(draft) / self.decay_steps
        return basic.floor(passed) if self.staircase else passed


@dataclass(frozen=True)
class Exponential(_Decay):
    """learning_rate * decay_rate ** (step / decay_steps)."""

    def _rate(self, draft: Draft) -> Value:
        return self.learning_rate * self.decay_rate ** self._periods(draft)


@dataclass(frozen=True)
class NaturalExp(_Decay):
    """learning_rate * exp(-decay_rate * step / decay_steps)."""

    def _rate(self, draft: Draft) -> Value:
        return self.learning_rate * basic.exp(-1 * self.decay_rate * self._periods(draft))


@dataclass(frozen=True)
class InverseTime(_Decay):
    """learning_rate / (1 + decay_rate * step / decay_steps)."""

    def _rate(self, draft: Draft) -> Value:
        return self.learning_rate / (1 + self.decay_rate * self._periods(draft))


@dataclass(frozen=True)
class Polynomial(Schedule):
    """From learning_rate down to end_learning_rate in decay_steps, as (1 - step / decay_steps) ** power.

    After decay_steps the rate stays; with `cycle` the period is stretched to the next multiple instead.
    """

    learning_rate: float
    decay_steps: int
    end_learning_rate: float = 0.0001
    power: float = 1.0
    cycle: bool = False

    def __post_init__(self) -> None:
        _positive(decay_steps=self.decay_steps)

    def _rate(self, draft: Draft) -> Value:
        step = _step(draft)
        if self.cycle:
            passed = step / self._cycled_decay_steps(draft, step)
        else:
            last = basic.fill_constant(draft, (1,), DType.FP32, self.decay_steps)
            passed = basic.elementwise_min(step, last) / self.decay_steps
        span = self.learning_rate - self.end_learning_rate
        return span * (1 - passed) ** self.power + self.end_learning_rate

    def _cycled_decay_steps(self, draft: Draft, step: Value) -> Value:
        periods = basic.ceil(step / self.decay_steps)
        zero = basic.fill_constant(draft, (1,), DType.FP32, 0.0)
        one = basic.fill_constant(draft, (1,), DType.FP32, 1.0)
        with Switch().case(step.equal(zero)):
            basic.assign(one, periods)
        return self.decay_steps * periods


@dataclass(frozen=True)
class Piecewise(Schedule):
    """The rate values[i] while step < boundaries[i] (for the first such i), then the last value. `values` has one more
    element than `boundaries`.
    """

    boundaries: tuple[int, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.values) != len(self.boundaries) + 1:
            raise ValueError(
                f"a piecewise schedule has one value more than boundaries, got {len(self.values)} values and "
                f"{len(self.boundaries)} boundaries"
            )
        if any(earlier >= later for earlier, later in pairwise(self.boundaries)):
            raise ValueError(f"the boundaries of a piecewise schedule must rise, got {list(self.boundaries)}")

    def _rate(self, draft: Draft) -> Value:
        step = _step(draft)
        rate = basic.global_var(draft, "learning_rate", (1,), DType.FP32, 0.0)
        switch = Switch()
        for boundary, value in zip(self.boundaries, self.values, strict=False):
            until = basic.fill_constant(draft, (1,), DType.FP32, boundary, force_cpu=True)
            constant = basic.fill_constant(draft, (1,), DType.FP32, value)
            with switch.case(step < until):
                basic.assign(constant, rate)
        last = basic.fill_constant(draft, (1,), DType.FP32, self.values[-1])
        with switch.default():
            basic.assign(last, rate)
        return rate


@dataclass(frozen=True)
class Noam(Schedule):
    """learning_rate * d_model ** -0.5 * min(step ** -0.5, step * warmup_steps ** -1.5), steps counted from 1."""

    d_model: int
    warmup_steps: int
    learning_rate: float = 1.0

    def __post_init__(self) -> None:
        _positive(d_model=self.d_model, warmup_steps=self.warmup_steps)

    def _rate(self, draft: Draft) -> Value:
        step = _step(draft, 1)
        falling = step**-0.5
        rising = self.warmup_steps**-1.5 * step
        return self.learning_rate * self.d_model**-0.5 * basic.elementwise_min(falling, rising)


@dataclass(frozen=True)
class Cosine(Schedule):
    """learning_rate / 2 * (cos(epoch * pi / epochs) + 1), epoch = step / step_each_epoch rounded down."""

    learning_rate: float
    step_each_epoch: int
    epochs: int

    def __post_init__(self) -> None:
        _positive(step_each_epoch=self.step_each_epoch, epochs=self.epochs)

    def _rate(self, draft: Draft) -> Value:
        epoch = basic.floor(_step(draft) / self.step_each_epoch)
        return self.learning_rate * 0.5 * (basic.cos(epoch * math.pi / self.epochs) + 1)


@dataclass(frozen=True)
class LinearWarmup(Schedule):
    """From start_lr to end_lr in warmup_steps, then `learning_rate`: a number, a variable or another schedule."""

    learning_rate: float | Value | Schedule
    warmup_steps: int
    start_lr: float
    end_lr: float

    def __post_init__(self) -> None:
        _positive(warmup_steps=self.warmup_steps)

    def _rate(self, draft: Draft) -> Value:
        inner = self.learning_rate.emit(draft) if isinstance(self.learning_rate, Schedule) else self.learning_rate
        rate = basic.global_var(draft, "learning_rate_warmup", (1,), DType.FP32, 0.0)
        step = _step(draft)
        switch = Switch()
        with switch.case(step < self.warmup_steps):
            grown = self.start_lr + (float(self.end_lr) - float(self.start_lr)) * (step / float(self.warmup_steps))
            basic.assign(grown, rate)
        with switch.default():
            final = inner if isinstance(inner, Value) else basic.fill_constant(draft, (1,), DType.FP32, inner)
            basic.assign(final, rate)
        return rate
