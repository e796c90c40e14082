"""How parameters start, under Fluid's names."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np

from pstranspile.fluid.missing import names_of_fluid
from pstranspile.frontends.layers import parameters as core
from pstranspile.frontends.layers.draft import Draft
from pstranspile.ir.model import Var


class Initializer:
    """What fills a variable. Called with a variable and a block, it puts its op in front of the block's program."""

    def core(self) -> core.Initializer:
        """The initialiser as layers of this package take it."""
        raise NotImplementedError("Initializer is the base of Constant, Uniform, Normal, Xavier and others")

    def __call__(self, var: Any, block: Any) -> None:
        """Makes the op that fills `var` in the program of `block`."""
        self.core().emit(block.program.live(block.program), var.var)


class ConstantInitializer(Initializer):
    """Every element `value`."""

    def __init__(self, value: float = 0.0, force_cpu: bool = False):
        self.value, self.force_cpu = value, force_cpu

    def core(self) -> core.Initializer:
        """A constant."""
        return core.Constant(float(self.value), self.force_cpu)


class UniformInitializer(Initializer):
    """Evenly distributed in [low, high); of the first `diag_num` rows the elements on a diagonal are `diag_val`."""

    def __init__(
        self,
        low: float = -1.0,
        high: float = 1.0,
        seed: int = 0,
        diag_num: int = 0,
        diag_step: int = 0,
        diag_val: float = 1.0,
    ):
        self.low, self.high, self.seed = low, high, seed
        self.diagonal = (diag_num, diag_step, diag_val)

    def core(self) -> core.Initializer:
        """Evenly distributed numbers."""
        return core.Uniform(self.low, self.high, self.seed, *self.diagonal)


class NormalInitializer(Initializer):
    """Normally distributed."""

    def __init__(self, loc: float = 0.0, scale: float = 1.0, seed: int = 0):
        self.loc, self.scale, self.seed = loc, scale, seed

    def core(self) -> core.Initializer:
        """Normally distributed numbers."""
        return core.Normal(self.loc, self.scale, self.seed)


class TruncatedNormalInitializer(NormalInitializer):
    """Normally distributed, drawn again beyond two standard deviations."""

    def core(self) -> core.Initializer:
        """Normally distributed numbers without their tails."""
        return core.TruncatedNormal(self.loc, self.scale, self.seed)


class XavierInitializer(Initializer):
    """Spread by fan in and fan out."""

    def __init__(self, uniform: bool = True, fan_in: float | None = None, fan_out: float | None = None, seed: int = 0):
        self.uniform, self.fan_in, self.fan_out, self.seed = uniform, fan_in, fan_out, seed

    def core(self) -> core.Initializer:
        """Numbers spread by fan in and fan out."""
        return core.Xavier(self.uniform, self.fan_in, self.fan_out, self.seed)


class MSRAInitializer(Initializer):
    """Spread by fan in."""

    def __init__(self, uniform: bool = True, fan_in: float | None = None, seed: int = 0):
        self.uniform, self.fan_in, self.seed = uniform, fan_in, seed

    def core(self) -> core.Initializer:
        """Numbers spread by fan in."""
        return core.MSRA(self.uniform, self.fan_in, self.seed)


class NumpyArrayInitializer(Initializer):
    """The elements of an array."""

    def __init__(self, value: Any):
        self.value = np.asarray(value)

    def core(self) -> core.Initializer:
        """The array, as the f32 or i32 elements that programs hold."""
        kind = "float32" if self.value.dtype.kind == "f" else "int32"
        return core.Array(self.value.astype(kind), must_fit=False)


class BilinearInitializer(Initializer):
    """The weights of a transposed convolution that interpolates."""

    def core(self) -> core.Initializer:
        """The initialiser itself: its array follows from the dims of the variable."""
        return self

    def emit(self, draft: Draft, var: Var) -> None:
        """One `assign_value`. Raises ValueError for a variable that is no square filter of four dims."""
        shape = var.shape
        if len(shape) != 4 or shape[2] != shape[3]:
            raise ValueError(f"{var.name} has the dims {list(shape)}; Bilinear fills filters [out, in, n, n]")
        half = np.ceil(shape[3] / 2.0)
        centre = (2 * half - 1 - half % 2) / (2.0 * half)
        along = 1 - np.abs(np.arange(shape[3]) / half - centre)
        values = np.broadcast_to(np.outer(along, along), shape).astype("float32")
        core.Array(values, "bilinear_init", front=False).emit(draft, var)


Constant, Uniform, Normal, Xavier = ConstantInitializer, UniformInitializer, NormalInitializer, XavierInitializer
TruncatedNormal, MSRA, Bilinear = TruncatedNormalInitializer, MSRAInitializer, BilinearInitializer


def force_init_on_cpu() -> bool:
    """Whether initialisers run on the CPU: they do not say so in their ops."""
    return False


@contextmanager
def init_on_cpu() -> Generator[None]:
    """Changes nothing: initialisers run on the CPU. Scripts for Fluid before 1.6 say so around learning rates."""
    yield


__getattr__ = names_of_fluid(__name__, globals())
