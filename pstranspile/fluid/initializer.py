"""Initialisers of parameters, under Fluid's names."""

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
    """The base class of initialisers. Called with a variable and a block, an initialiser adds the op that fills the
    variable.
    """

    def core(self) -> core.Initializer:
        """The initialiser in the form that layers of this package take."""
        raise NotImplementedError("Initializer is the base of Constant, Uniform, Normal, Xavier and others")

    def __call__(self, var: Any, block: Any) -> None:
        """Adds the op that fills `var` to the program of `block`."""
        self.core().emit(block.program.live(block.program), var.var)


class ConstantInitializer(Initializer):
    """Sets every element to `value`."""

    def __init__(self, value: float = 0.0, force_cpu: bool = False):
        self.value, self.force_cpu = value, force_cpu

    def core(self) -> core.Initializer:
        """The initialiser in the form that layers of this package take."""
        return core.Constant(float(self.value), self.force_cpu)


class UniformInitializer(Initializer):
    """Draws elements uniformly from [low, high); in the first `diag_num` rows the elements on a diagonal are
    `diag_val`.
    """

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
        """The initialiser in the form that layers of this package take."""
        return core.Uniform(self.low, self.high, self.seed, *self.diagonal)


class NormalInitializer(Initializer):
    """Draws elements from a normal distribution."""

    def __init__(self, loc: float = 0.0, scale: float = 1.0, seed: int = 0):
        self.loc, self.scale, self.seed = loc, scale, seed

    def core(self) -> core.Initializer:
        """The initialiser in the form that layers of this package take."""
        return core.Normal(self.loc, self.scale, self.seed)


class TruncatedNormalInitializer(NormalInitializer):
    """Draws elements from a normal distribution, and again if they are more than two standard deviations away."""

    def core(self) -> core.Initializer:
        """The initialiser in the form that layers of this package take."""
        return core.TruncatedNormal(self.loc, self.scale, self.seed)


class XavierInitializer(Initializer):
    """Draws elements with a spread that depends on fan in and fan out."""

    def __init__(self, uniform: bool = True, fan_in: float | None = None, fan_out: float | None = None, seed: int = 0):
        self.uniform, self.fan_in, self.fan_out, self.seed = uniform, fan_in, fan_out, seed

    def core(self) -> core.Initializer:
        """The initialiser in the form that layers of this package take."""
        return core.Xavier(self.uniform, self.fan_in, self.fan_out, self.seed)


class MSRAInitializer(Initializer):
    """Draws elements with a spread that depends on fan in."""

    def __init__(self, uniform: bool = True, fan_in: float | None = None, seed: int = 0):
        self.uniform, self.fan_in, self.seed = uniform, fan_in, seed

    def core(self) -> core.Initializer:
        """The initialiser in the form that layers of this package take."""
        return core.MSRA(self.uniform, self.fan_in, self.seed)


class NumpyArrayInitializer(Initializer):
    """Sets the elements to those of an array."""

    def __init__(self, value: Any):
        self.value = np.asarray(value)

    def core(self) -> core.Initializer:
        """The initialiser in the form that layers of this package take, with the array as float32 or int32, which
        attributes of ops can have.
        """
        kind = "float32" if self.value.dtype.kind == "f" else "int32"
        return core.Array(self.value.astype(kind), must_fit=False)


class BilinearInitializer(Initializer):
    """Sets the weights of a transposed convolution so that it interpolates bilinearly."""

    def core(self) -> core.Initializer:
        """The initialiser itself, because its array depends on the dims of the variable."""
        return self

    def emit(self, draft: Draft, var: Var) -> None:
        """Adds an op `assign_value`. Raises ValueError for a variable that is not a square filter with four dims."""
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
    """False, because ops of initialisers carry no request for the CPU."""
    return False


@contextmanager
def init_on_cpu() -> Generator[None]:
    """A context manager without effect, because initialisers run on the CPU. Scripts for Fluid before 1.6 use it around
    learning rates.
    """
    yield


__getattr__ = names_of_fluid(__name__, globals())
