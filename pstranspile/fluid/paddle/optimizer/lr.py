"""`paddle.optimizer.lr`: learning rates that change with calls of `step`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from pstranspile.fluid.paddle.later import not_there
from pstranspile.fluid.running.rates import LRScheduler as LRScheduler
from pstranspile.frontends.autodiff import Exponential, InverseTime, NaturalExp, Noam, Schedule


class NoamDecay(LRScheduler):
    """A rate that rises for `warmup_steps`, then falls with the inverse square root of the epoch; it is divided by the
    square root of `d_model`.
    """

    def __init__(
        self,
        d_model: float,
        warmup_steps: int,
        learning_rate: float = 1.0,
        last_epoch: int = -1,
        verbose: bool = False,
    ):
        self.d_model, self.warmup_steps = d_model, warmup_steps
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        """The rate for `last_epoch`."""
        falling = self.last_epoch**-0.5 if self.last_epoch else 1.0
        rising = self.last_epoch * self.warmup_steps**-1.5
        return self.base_lr * self.d_model**-0.5 * min(falling, rising)

    def on_servers(self, steps: int) -> Schedule:
        """The schedule that servers follow instead of calls of `step`; every update is an epoch."""
        return Noam(1, self.warmup_steps, self.base_lr * self.d_model**-0.5)


class PiecewiseDecay(LRScheduler):
    """A rate that is constant between every two boundaries."""

    def __init__(self, boundaries: Sequence[int], values: Sequence[float], last_epoch: int = -1, verbose: bool = False):
        self.boundaries, self.values = boundaries, values
        super().__init__(last_epoch=last_epoch, verbose=verbose)

    def get_lr(self) -> float:
        """The rate for `last_epoch`."""
        passed = (index for index, boundary in enumerate(self.boundaries) if self.last_epoch < boundary)
        return self.values[next(passed, len(self.values) - 1)]


class _GammaDecay(LRScheduler):
    """The base class of rates that fall with the epoch, by a rule with `gamma`."""

    def __init__(self, learning_rate: float, gamma: float, last_epoch: int = -1, verbose: bool = False):
        self.gamma = gamma
        super().__init__(learning_rate, last_epoch, verbose)

    schedule: Callable[..., Schedule]

    def on_servers(self, steps: int) -> Schedule:
        """The schedule that servers follow instead of calls of `step`: an epoch ends every `steps` updates."""
        return type(self).schedule(self.base_lr, steps, self.gamma, True)


class NaturalExpDecay(_GammaDecay):
    """learning_rate * exp(-gamma * epoch)."""

    schedule = NaturalExp

    def get_lr(self) -> float:
        """The rate for `last_epoch`."""
        return self.base_lr * math.exp(-self.gamma * self.last_epoch)


class InverseTimeDecay(_GammaDecay):
    """learning_rate / (1 + gamma * epoch)."""

    schedule = InverseTime

    def get_lr(self) -> float:
        """The rate for `last_epoch`."""
        return self.base_lr / (1 + self.gamma * self.last_epoch)


class ExponentialDecay(_GammaDecay):
    """learning_rate * gamma ** epoch."""

    schedule = Exponential

    def get_lr(self) -> float:
        """The rate for `last_epoch`."""
        return self.base_lr * self.gamma**self.last_epoch


class PolynomialDecay(LRScheduler):
    """A rate that goes from learning_rate to end_lr within decay_steps, along a polynomial; with `cycle` it starts
    again after that.
    """

    def __init__(
        self,
        learning_rate: float,
        decay_steps: int,
        end_lr: float = 0.0001,
        power: float = 1.0,
        cycle: bool = False,
        last_epoch: int = -1,
        verbose: bool = False,
    ):
        self.decay_steps, self.end_lr, self.power, self.cycle = decay_steps, end_lr, power, cycle
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        """The rate for `last_epoch`."""
        epoch, steps = min(self.last_epoch, self.decay_steps), self.decay_steps
        if self.cycle:
            epoch, steps = self.last_epoch, steps * max(math.ceil(self.last_epoch / steps), 1)
        return (self.base_lr - self.end_lr) * (1 - epoch / steps) ** self.power + self.end_lr


class LinearWarmup(LRScheduler):
    """A rate that goes from start_lr to end_lr in `warmup_steps` epochs, then is `learning_rate`, a number or another
    schedule.
    """

    def __init__(
        self,
        learning_rate: Any,
        warmup_steps: int,
        start_lr: float,
        end_lr: float,
        last_epoch: int = -1,
        verbose: bool = False,
    ):
        if not isinstance(learning_rate, int | float | LRScheduler):
            raise TypeError(f"learning_rate is a number or a schedule, not a {type(learning_rate).__name__}")
        if end_lr <= start_lr:
            raise AssertionError(f"end_lr {end_lr} must be above start_lr {start_lr}")
        self.learning_rate, self.warmup_steps = learning_rate, warmup_steps
        self.start_lr, self.end_lr = start_lr, end_lr
        super().__init__(start_lr, last_epoch, verbose)

    def get_lr(self) -> float:
        """The rate for `last_epoch`."""
        if self.last_epoch < self.warmup_steps:
            return (self.end_lr - self.start_lr) * self.last_epoch / self.warmup_steps + self.start_lr
        if not isinstance(self.learning_rate, LRScheduler):
            return self.learning_rate
        rate = self.learning_rate()
        self.learning_rate.step()
        return rate

    def state_dict(self) -> dict[str, Any]:
        """The state by name; the state of the inner schedule is in `LinearWarmup_LR`."""
        inner = self.learning_rate
        more = {"LinearWarmup_LR": inner.state_dict()} if isinstance(inner, LRScheduler) else {}
        return {**super().state_dict(), **more}

    def set_state_dict(self, state_dict: Any) -> None:
        """Sets the state. Raises RuntimeError if `state_dict` lacks a part."""
        rest = {key: value for key, value in state_dict.items() if key != "LinearWarmup_LR"}
        super().set_state_dict(rest)
        if isinstance(self.learning_rate, LRScheduler):
            self.learning_rate.set_state_dict(state_dict["LinearWarmup_LR"])

    set_dict = set_state_dict


def _below_one(gamma: float) -> float:
    if gamma >= 1.0:
        raise ValueError(f"gamma must be below 1.0, it is {gamma}")
    return gamma


class MultiStepDecay(LRScheduler):
    """The rate, multiplied by `gamma` at each milestone."""

    def __init__(
        self,
        learning_rate: float,
        milestones: Sequence[int],
        gamma: float = 0.1,
        last_epoch: int = -1,
        verbose: bool = False,
    ):
        if not isinstance(milestones, tuple | list):
            raise TypeError(f"milestones are a tuple or a list, not a {type(milestones).__name__}")
        if sorted(set(milestones)) != list(milestones):
            raise ValueError(f"each milestone must be above the one before it, which {milestones} are not")
        self.milestones, self.gamma = milestones, _below_one(gamma)
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        """The rate for `last_epoch`."""
        return self.base_lr * self.gamma ** sum(self.last_epoch >= milestone for milestone in self.milestones)


class StepDecay(LRScheduler):
    """The rate, multiplied by `gamma` every `step_size` epochs."""

    def __init__(
        self, learning_rate: float, step_size: int, gamma: float = 0.1, last_epoch: int = -1, verbose: bool = False
    ):
        if not isinstance(step_size, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"step_size is a whole number, not a {type(step_size).__name__}")
        self.step_size, self.gamma = step_size, _below_one(gamma)
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        """The rate for `last_epoch`."""
        return self.base_lr * self.gamma ** (self.last_epoch // self.step_size)


class LambdaDecay(LRScheduler):
    """The rate, multiplied by the result of a function of the epoch."""

    def __init__(
        self, learning_rate: float, lr_lambda: Callable[[int], float], last_epoch: int = -1, verbose: bool = False
    ):
        if not callable(lr_lambda):
            raise TypeError(f"lr_lambda is a function, not a {type(lr_lambda).__name__}")
        self.lr_lambda = lr_lambda
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        """The rate for `last_epoch`."""
        return self.base_lr * self.lr_lambda(self.last_epoch)


class CosineAnnealingDecay(LRScheduler):
    """A rate that goes along half a cosine from learning_rate to eta_min over T_max epochs, and back."""

    def __init__(
        self, learning_rate: float, T_max: int, eta_min: float = 0, last_epoch: int = -1, verbose: bool = False
    ):
        if not isinstance(T_max, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"T_max is a whole number, not a {type(T_max).__name__}")
        if not isinstance(eta_min, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"eta_min is a number, not a {type(eta_min).__name__}")
        self.T_max, self.eta_min = T_max, float(eta_min)
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        """The rate for `last_epoch`, computed from the rate of the previous epoch."""
        epoch, turn = self.last_epoch, math.pi / self.T_max
        if epoch == 0:
            return self.base_lr
        if (epoch - 1 - self.T_max) % (2 * self.T_max) == 0:
            return self.last_lr + (self.base_lr - self.eta_min) * (1 - math.cos(turn)) / 2
        factor = (1 + math.cos(turn * epoch)) / (1 + math.cos(turn * (epoch - 1)))
        return factor * (self.last_lr - self.eta_min) + self.eta_min

    def _get_closed_form_lr(self) -> float:
        """The rate for an epoch that `step` was called with, computed directly."""
        spread = 1 + math.cos(math.pi * self.last_epoch / self.T_max)
        return self.eta_min + (self.base_lr - self.eta_min) * spread / 2


class ReduceOnPlateau(LRScheduler):
    """The rate, multiplied by `factor` whenever a metric has not improved for more than `patience` epochs."""

    keys = ("cooldown_counter", "best", "num_bad_epochs", "last_epoch", "last_lr")

    def __init__(
        self,
        learning_rate: float,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float = 0,
        epsilon: float = 1e-8,
        verbose: bool = False,
    ):
        self.mode, self.threshold_mode = mode.lower(), threshold_mode.lower()
        if self.mode not in ("min", "max"):
            raise ValueError(f"mode is min or max, not {mode}")
        if self.threshold_mode not in ("rel", "abs"):
            raise ValueError(f"threshold_mode is rel or abs, not {threshold_mode}")
        self.factor, self.patience, self.threshold = _below_one(factor), patience, threshold
        self.cooldown, self.min_lr, self.epsilon = cooldown, min_lr, epsilon
        self.cooldown_counter = self.num_bad_epochs = 0
        self.best: Any = None
        self._has_begun = False
        super().__init__(learning_rate, -1, verbose)

    def get_lr(self) -> float:
        """The present rate."""
        return self.last_lr

    def step(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, metrics: Any = None, epoch: int | None = None
    ) -> None:
        """Moves to the next epoch; `metrics` is the metric's value: a number, or an array with one element."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if not self._has_begun:  # the first epoch has no metric yet
            self._has_begun = True
            return
        if hasattr(metrics, "shape") and tuple(metrics.shape) not in ((), (1,)):
            raise AssertionError(f"metrics has the dims {list(metrics.shape)}: take its mean")
        if not isinstance(metrics, int | float | np.number | np.ndarray):
            raise TypeError(f"metrics is a number or an array with one, not a {type(metrics).__name__}")
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            return
        if self.best is None or self._is_better(metrics):
            self.best, self.num_bad_epochs = metrics, 0
        else:
            self.num_bad_epochs += 1
        if self.num_bad_epochs > self.patience:
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
            lower = max(self.last_lr * self.factor, self.min_lr)
            if self.last_lr - lower > self.epsilon:
                self.last_lr = lower
                self._show()

    def _is_better(self, figure: Any) -> bool:
        margin = self.threshold * (self.best if self.threshold_mode == "rel" else 1.0)
        return bool(figure < self.best - margin if self.mode == "min" else figure > self.best + margin)


class LinearLR(LRScheduler):
    """The rate, multiplied by a factor that goes linearly from `start_factor` to `end_factor` in `total_steps` epochs,
    and then stays.

    Raises ValueError unless `start_factor` is above 0 and at most 1, `end_factor` is between 0 and 1, and `total_steps`
    is positive.
    """

    def __init__(
        self,
        learning_rate: float,
        total_steps: int,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        last_epoch: int = -1,
        verbose: bool = False,
    ):
        if not 0 < start_factor <= 1 or not 0 <= end_factor <= 1:
            raise ValueError(f"the factors are above 0 and from 0 on, up to 1, not {start_factor} and {end_factor}")
        if total_steps <= 0:
            raise ValueError(f"total_steps is a number from 1 on, not {total_steps}")
        self.total_steps, self.start_factor, self.end_factor = total_steps, start_factor, end_factor
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        """The rate for `last_epoch`."""
        passed = min(self.last_epoch, self.total_steps) / self.total_steps
        return self.base_lr * (self.start_factor + (self.end_factor - self.start_factor) * passed)


class OneCycleLR(LRScheduler):
    """A rate that rises from max_learning_rate / divide_factor to the maximum, then falls to end_learning_rate, in
    `total_steps` epochs.

    The share `phase_pct` of the epochs rises. With `three_phase` the same number falls to the initial rate, and the
    rest to the end. Each phase follows half a cosine ("cos") or a line ("linear"). Raises ValueError for other values,
    and for an epoch beyond the last.
    """

    def __init__(
        self,
        max_learning_rate: float,
        total_steps: int,
        divide_factor: float = 25.0,
        end_learning_rate: float = 0.0001,
        phase_pct: float = 0.3,
        anneal_strategy: str = "cos",
        three_phase: bool = False,
        last_epoch: int = -1,
        verbose: bool = False,
    ):
        if not isinstance(total_steps, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"total_steps is a whole number, not a {type(total_steps).__name__}")
        if total_steps <= 0 or max_learning_rate < 0 or end_learning_rate < 0:
            raise ValueError("total_steps is a number from 1 on, max_learning_rate and end_learning_rate from 0 on")
        if not 0 <= phase_pct <= 1 or (three_phase and phase_pct >= 0.5):
            most = "below 0.5, as there are three phases" if three_phase else "up to 1"
            raise ValueError(f"phase_pct is from 0 on, {most}, not {phase_pct}")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy is cos or linear, not {anneal_strategy!r}")
        self.total_steps, self._by_cosine = total_steps, anneal_strategy == "cos"
        first, up, last = max_learning_rate / float(divide_factor), phase_pct * total_steps - 1, total_steps - 1
        points = [(0, first), (up, max_learning_rate), (last, float(end_learning_rate))]
        if three_phase:
            points.insert(2, (2 * up, first))
        self._phases = [(*begin, *end) for begin, end in pairwise(points)]
        super().__init__(first, last_epoch, verbose)

    def get_lr(self) -> float:
        """The rate for `last_epoch`."""
        if self.last_epoch > self.total_steps:
            raise ValueError(f"epoch {self.last_epoch} is beyond the {self.total_steps} of total_steps")
        within = (phase for phase in self._phases if self.last_epoch <= phase[2])
        begin, first, end, last = next(within, self._phases[-1])
        passed = (self.last_epoch - begin) / (end - begin)
        if self._by_cosine:
            return last + (first - last) * (math.cos(math.pi * passed) + 1) / 2
        return first + (last - first) * passed


class CyclicLR(LRScheduler):
    """A rate that cycles between base_learning_rate and max_learning_rate: it rises in `step_size_up` epochs and falls
    in `step_size_down`.

    The height of a cycle is constant ("triangular"), halved with each cycle ("triangular2"), or multiplied by
    `exp_gamma` to the power of the epoch ("exp_range"); or it is multiplied by the result of `scale_fn` for the number
    of the cycle, or for the epoch if `scale_mode` is "iterations". Raises ValueError for other values.
    """

    def __init__(
        self,
        base_learning_rate: float,
        max_learning_rate: float,
        step_size_up: int,
        step_size_down: int | None = None,
        mode: str = "triangular",
        exp_gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        last_epoch: int = -1,
        verbose: bool = False,
    ):
        down = step_size_up if step_size_down is None else step_size_down
        for name, size in (("step_size_up", step_size_up), ("step_size_down", down)):
            if not isinstance(size, int):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"{name} is a whole number, not a {type(size).__name__}")
            if size <= 0:
                raise ValueError(f"{name} is a number from 1 on, not {size}")
        if max_learning_rate < 0:
            raise ValueError(f"max_learning_rate is a number from 0 on, not {max_learning_rate}")
        heights: dict[str, Callable[[float], float]] = {
            "triangular": lambda _: 1.0,
            "triangular2": lambda cycle: 0.5 ** (cycle - 1),
            "exp_range": lambda epoch: exp_gamma**epoch,
        }
        if scale_fn is None and mode not in heights:
            raise ValueError(f"mode is {', '.join(heights)}, or there is a scale_fn, not {mode!r}")
        if scale_mode not in ("cycle", "iterations"):
            raise ValueError(f"scale_mode is cycle or iterations, not {scale_mode!r}")
        self._height = heights[mode] if scale_fn is None else scale_fn
        self._by_epoch = mode == "exp_range" if scale_fn is None else scale_mode == "iterations"
        self._size, self._up = step_size_up + down, step_size_up / (step_size_up + down)
        self._rate_range = float(max_learning_rate) - base_learning_rate
        super().__init__(base_learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        """The rate for `last_epoch`."""
        cycle = float(1 + self.last_epoch // self._size)
        passed = 1 + self.last_epoch / self._size - cycle
        part = passed / self._up if passed <= self._up else (1 - passed) / (1 - self._up)
        return self.base_lr + self._rate_range * part * self._height(self.last_epoch if self._by_epoch else cycle)


def __getattr__(name: str) -> Any:
    raise not_there(f"paddle.optimizer.lr.{name}", globals())
