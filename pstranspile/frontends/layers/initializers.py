"""Initialisers of parameters, each one op in front of the startup program.

A seed of 0 takes the startup program's seed, as in Fluid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pstranspile.frontends.layers.draft import Draft
from pstranspile.ir.model import TensorType, Var
from pstranspile.ir.types import DType

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Initializer(Protocol):
    """What makes the op that fills a variable: `emit` puts it in front of the startup program."""

    def emit(self, draft: Draft, var: Var) -> None:
        """Makes the op that fills `var`, which is declared in the startup program."""
        ...


def fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """The fan in and fan out of a weight of these dims, by Fluid's rule."""
    if not shape:
        return 1, 1
    if len(shape) == 1:
        return shape[0], shape[0]
    if len(shape) == 2:
        return shape[0], shape[1]
    field = math.prod(shape[2:])
    return shape[1] * field, shape[0] * field


def _start(
    draft: Draft,
    var: Var,
    op_type: str,
    inputs: Mapping[str, str] | None,
    key: str,
    attrs: Mapping[str, object],
    *,
    front: bool = True,
) -> None:
    """Adds the op that fills `var` in front of the startup program or at its end.

    Elements of half precision are filled as f32 in a variable named after `key`, and cast at the end.
    """
    half = var.dtype is DType.FP16
    filled = var
    if half:
        filled = Var(draft.names.mint(f"{key}.{var.name}.tmp"), tensor=TensorType(DType.FP32, var.shape))
        draft.startup.vars[filled.name] = filled
    made = {"shape": var.shape, "dtype": filled.dtype, **attrs}
    draft.startup_op(op_type, inputs, filled.name, front=front, **made)
    if half:
        kinds = {"in_dtype": DType.FP32, "out_dtype": DType.FP16}
        draft.startup_op("cast", {"X": filled.name}, var.name, front=False, **kinds)


def _uniform(
    draft: Draft,
    var: Var,
    low: float,
    high: float,
    seed: int,
    diagonal: Mapping[str, float] | None = None,
    key: str = "uniform_random",
) -> None:
    attrs = {"min": low, "max": high, "seed": seed or draft.seed, **(diagonal or {})}
    _start(draft, var, "uniform_random", {}, key, attrs)


def _normal(draft: Draft, var: Var, mean: float, std: float, seed: int, key: str = "gaussian_random") -> None:
    _start(draft, var, "gaussian_random", None, key, {"mean": mean, "std": std, "seed": seed or draft.seed})


@dataclass(frozen=True)
class Constant:
    """Every element `value`."""

    value: float = 0.0
    force_cpu: bool = False

    def emit(self, draft: Draft, var: Var) -> None:
        """One `fill_constant`."""
        attrs = {"value": self.value, "force_cpu": self.force_cpu}
        _start(draft, var, "fill_constant", None, "constant_init", attrs)


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
        _start(draft, var, "truncated_gaussian_random", None, "truncated_gaussian_random", attrs)


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
            _uniform(draft, var, -limit, limit, self.seed, key="xavier_init")
        else:
            _normal(draft, var, 0.0, math.sqrt(2.0 / total), self.seed, "xavier_init")


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
            _uniform(draft, var, -limit, limit, self.seed, key="masra_init")  # Fluid's spelling
        else:
            _normal(draft, var, 0.0, math.sqrt(2.0 / fan), self.seed, "masra_init")


@dataclass(frozen=True, eq=False)
class Array:
    """The elements of a numpy array (f32 or i32; f32 also for half precision), stored in the program.

    `key` names the f32 variable for half precision. `front` puts the op in front of the other ones. An array that need
    not fit gives the variable its own dims in the startup program.
    """

    values: NDArray[Any]
    key: str = "numpy_array_init"
    front: bool = True
    must_fit: bool = True

    def emit(self, draft: Draft, var: Var) -> None:
        """One `assign_value`. Raises ValueError for other element types, or an array that must fit and does not."""
        kinds = {
            DType.FP32: ("fp32_values", float),
            DType.FP16: ("fp32_values", float),
            DType.INT32: ("int32_values", int),
        }
        if var.dtype not in kinds:
            raise ValueError(f"%{var.name}: an array initialises f32, f16 and i32 variables only")
        slot, convert = kinds[var.dtype]
        if self.values.shape != var.shape:
            if self.must_fit or not self.values.shape:
                raise ValueError(f"%{var.name} has the dims {list(var.shape)}, the array {list(self.values.shape)}")
            var = var._replace(tensor=TensorType(var.dtype, self.values.shape))
            draft.startup.vars[var.name] = var
        flat: list[Any] = self.values.ravel().tolist()
        elements = [convert(value) for value in flat]
        _start(draft, var, "assign_value", None, self.key, {slot: elements}, front=self.front)
