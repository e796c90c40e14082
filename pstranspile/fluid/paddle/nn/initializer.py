"""`paddle.nn.initializer`: how parameters start, under the later names."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid import initializer as fluid
from pstranspile.fluid.initializer import MSRA as MSRA
from pstranspile.fluid.initializer import Bilinear as Bilinear
from pstranspile.fluid.initializer import Xavier as Xavier
from pstranspile.fluid.paddle.later import not_there
from pstranspile.frontends.layers.parameters import start_all_with


class Constant(fluid.Constant):
    """Every element `value`."""

    def __init__(self, value: float = 0.0):
        super().__init__(value)


class Normal(fluid.Normal):
    """Normally distributed."""

    def __init__(self, mean: float = 0.0, std: float = 1.0, name: Any = None):
        super().__init__(mean, std)


class TruncatedNormal(fluid.TruncatedNormal):
    """Normally distributed, drawn again beyond two standard deviations."""

    def __init__(self, mean: float = 0.0, std: float = 1.0, name: Any = None):
        super().__init__(mean, std)


class Uniform(fluid.Uniform):
    """Evenly distributed in [low, high)."""

    def __init__(self, low: float = -1.0, high: float = 1.0, name: Any = None):
        super().__init__(low, high)


class XavierUniform(fluid.Xavier):
    """Evenly distributed, spread by fan in and fan out."""

    def __init__(self, fan_in: float | None = None, fan_out: float | None = None, name: Any = None):
        super().__init__(True, fan_in, fan_out)


class XavierNormal(fluid.Xavier):
    """Normally distributed, spread by fan in and fan out."""

    def __init__(self, fan_in: float | None = None, fan_out: float | None = None, name: Any = None):
        super().__init__(False, fan_in, fan_out)


class KaimingUniform(fluid.MSRA):
    """Evenly distributed, spread by fan in."""

    def __init__(self, fan_in: float | None = None):
        super().__init__(True, fan_in)


class KaimingNormal(fluid.MSRA):
    """Normally distributed, spread by fan in."""

    def __init__(self, fan_in: float | None = None):
        super().__init__(False, fan_in)


class Assign(fluid.NumpyArrayInitializer):
    """The elements of an array or a list."""

    def __init__(self, value: Any, name: Any = None):
        super().__init__(value)


def set_global_initializer(weight_init: Any, bias_init: Any = None) -> None:
    """Has parameters that are made from now on start so, unless their attributes say otherwise; None: as layers do.

    Raises TypeError for what is no initializer.
    """
    for given in (weight_init, bias_init):
        if given is not None and not isinstance(given, fluid.Initializer):
            raise TypeError(f"set_global_initializer takes initializers, not a value of type {type(given).__name__}")
    start_all_with(*(None if given is None else given.core() for given in (weight_init, bias_init)))


def __getattr__(name: str) -> Any:
    raise not_there(f"paddle.nn.initializer.{name}", globals())
