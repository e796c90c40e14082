"""How parameters start: initialisers, each one op in front of the startup program.

A seed of 0 takes the startup program's seed, as in Fluid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pstranspile.ir.model import Var
from pstranspile.ir.types import DType
from pstranspile.layers.draft import Draft

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Initializer(Protocol):
    """What makes the op that fills a variable: `emit` puts it in front of the startup program."""

    def emit(self, draft: Draft, var: Var) -> None:
        """Makes the op that fills `var`, which is declared in the startup program."""
        ...


def fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """How many inputs and outputs an element of a weight of these dims is connected to (Fluid's rule)."""
    if not shape:
        return 1, 1
    if len(shape) == 1:
        return shape[0], shape[0]
    if len(shape) == 2:
        return shape[0], shape[1]
    field = math.prod(shape[2:])
    return shape[1] * field, shape[0] * field


def _uniform(
    draft: Draft, var: Var, low: float, high: float, seed: int, diagonal: Mapping[str, float] | None = None
) -> None:
    attrs = {"shape": var.shape, "dtype": var.dtype, "min": low, "max": high, "seed": seed or draft.seed}
    draft.startup_op("uniform_random", {}, var.name, **attrs, **(diagonal or {}))


def _normal(draft: Draft, var: Var, mean: float, std: float, seed: int) -> None:
    attrs = {"shape": var.shape, "dtype": var.dtype, "mean": mean, "std": std, "seed": seed or draft.seed}
    draft.startup_op("gaussian_random", None, var.name, **attrs)


@dataclass(frozen=True)
class Constant:
    """Every element `value`."""

    value: float = 0.0
    force_cpu: bool = False

    def emit(self, draft: Draft, var: Var) -> None:
        """One `fill_constant`."""
        attrs = {"shape": var.shape, "dtype": var.dtype, "value": self.value, "force_cpu": self.force_cpu}
        draft.startup_op("fill_constant", None, var.name, **attrs)


@dataclass(frozen=True)
class Uniform:
    """Evenly distributed in [low, high).

    Of the first `diag_num` rows, the elements at multiples of `diag_step + 1` are `diag_val`.
    """

    low: float = -1.0
    high: float = 1.0
    seed: int = 0
    diag_num: int = 0
    diag_step: int = 0
    diag_val: float = 1.0

    def emit(self, draft: Draft, var: Var) -> None:
        """One `uniform_random`."""
        diagonal = {"diag_num": self.diag_num, "diag_step": self.diag_step, "diag_val": self.diag_val}
        _uniform(draft, var, self.low, self.high, self.seed, diagonal)


@dataclass(frozen=True)
class Normal:
    """Normally distributed."""

    mean: float = 0.0
    std: float = 1.0
    seed: int = 0

    def emit(self, draft: Draft, var: Var) -> None:
        """One `gaussian_random`."""
        _normal(draft, var, self.mean, self.std, self.seed)


@dataclass(frozen=True)
class TruncatedNormal:
    """Normally distributed, drawn again beyond two standard deviations."""

    mean: float = 0.0
    std: float = 1.0
    seed: int = 0

    def emit(self, draft: Draft, var: Var) -> None:
        """One `truncated_gaussian_random`."""
        attrs = {"mean": self.mean, "std": self.std, "seed": self.seed or draft.seed}
        draft.startup_op("truncated_gaussian_random", None, var.name, shape=var.shape, dtype=var.dtype, **attrs)


@dataclass(frozen=True)
class Xavier:
    """Spread by fan in and fan out: uniform in +-sqrt(6 / (in + out)), or normal with std sqrt(2 / (in + out))."""

    uniform: bool = True
    fan_in: float | None = None
    fan_out: float | None = None
    seed: int = 0

    def emit(self, draft: Draft, var: Var) -> None:
        """One `uniform_random` or `gaussian_random`."""
        found_in, found_out = fans(var.shape)
        total = float(
            (found_in if self.fan_in is None else self.fan_in) + (found_out if self.fan_out is None else self.fan_out)
        )
        if self.uniform:
            limit = math.sqrt(6.0 / total)
            _uniform(draft, var, -limit, limit, self.seed)
        else:
            _normal(draft, var, 0.0, math.sqrt(2.0 / total), self.seed)


@dataclass(frozen=True)
class MSRA:
    """Spread by fan in, for layers with relu: uniform in +-sqrt(6 / in), or normal with std sqrt(2 / in)."""

    uniform: bool = True
    fan_in: float | None = None
    seed: int = 0

    def emit(self, draft: Draft, var: Var) -> None:
        """One `uniform_random` or `gaussian_random`."""
        fan = float(fans(var.shape)[0] if self.fan_in is None else self.fan_in)
        if self.uniform:
            limit = math.sqrt(6.0 / fan)
            _uniform(draft, var, -limit, limit, self.seed)
        else:
            _normal(draft, var, 0.0, math.sqrt(2.0 / fan), self.seed)


@dataclass(frozen=True, eq=False)
class Array:
    """The elements of a numpy array (f32 or i32), written into the program."""

    values: NDArray[Any]

    def emit(self, draft: Draft, var: Var) -> None:
        """One `assign_value`. Raises ValueError for other element types and for other dims than the variable's."""
        kinds = {DType.FP32: ("fp32_values", float), DType.INT32: ("int32_values", int)}
        if var.dtype not in kinds:
            raise ValueError(f"%{var.name}: an array initialises f32 and i32 variables only")
        if self.values.shape != var.shape:
            raise ValueError(f"%{var.name} has the dims {list(var.shape)}, the array {list(self.values.shape)}")
        slot, convert = kinds[var.dtype]
        flat: list[Any] = self.values.ravel().tolist()
        held = [convert(value) for value in flat]
        draft.startup_op("assign_value", None, var.name, shape=var.shape, dtype=var.dtype, **{slot: held})
