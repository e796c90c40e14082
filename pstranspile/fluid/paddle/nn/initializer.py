"""`paddle.nn.initializer`: initialisers of parameters, under their later names."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid import initializer as fluid
from pstranspile.fluid.initializer import MSRA as MSRA
from pstranspile.fluid.initializer import Bilinear as Bilinear
from pstranspile.fluid.initializer import Xavier as Xavier
from pstranspile.fluid.paddle.later import not_there
from pstranspile.frontends.layers.parameters import start_all_with


class Constant(fluid.Constant):
    """Sets every element to `value`."""

    def __init__(self, value: float = 0.0):
        super().__init__(value)


class Normal(fluid.Normal):
    """Draws elements from a normal distribution."""

    def __init__(self, mean: float = 0.0, std: float = 1.0, name: Any = None):
        super().__init__(mean, std)


class TruncatedNormal(fluid.TruncatedNormal):
    """Draws elements from a normal distribution, and again if they are more than two standard deviations away."""

    def __init__(self, mean: float = 0.0, std: float = 1.0, name: Any = None):
        super().__init__(mean, std)


class Uniform(fluid.Uniform):
    """Draws elements uniformly from [low, high)."""

    def __init__(self, low: float = -1.0, high: float = 1.0, name: Any = None):
        super().__init__(low, high)


class XavierUniform(fluid.Xavier):
    """Draws elements uniformly, with a spread that depends on fan in and fan out."""

    def __init__(self, fan_in: float | None = None, fan_out: float | None = None, name: Any = None):
        super().__init__(True, fan_in, fan_out)


class XavierNormal(fluid.Xavier):
    """Draws elements from a normal distribution, with a spread that depends on fan in and fan out."""

    def __init__(self, fan_in: float | None = None, fan_out: float | None = None, name: Any = None):
        super().__init__(False, fan_in, fan_out)


class KaimingUniform(fluid.MSRA):
    """Draws elements uniformly, with a spread that depends on fan in."""

    def __init__(self, fan_in: float | None = None):
        super().__init__(True, fan_in)


class KaimingNormal(fluid.MSRA):
    """Draws elements from a normal distribution, with a spread that depends on fan in."""

    def __init__(self, fan_in: float | None = None):
        super().__init__(False, fan_in)


class Assign(fluid.NumpyArrayInitializer):
    """Sets the elements to those of an array or a list."""

    def __init__(self, value: Any, name: Any = None):
        super().__init__(value)


def set_global_initializer(weight_init: Any, bias_init: Any = None) -> None:
    """Sets the initialisers of parameters made from now on, unless their attributes have one; None restores the layers'
    own defaults.

    Raises TypeError for values that are not initialisers.
    """
    for given in (weight_init, bias_init):
        if given is not None and not isinstance(given, fluid.Initializer):
            raise TypeError(f"set_global_initializer takes initializers, not a value of type {type(given).__name__}")
    start_all_with(*(None if given is None else given.core() for given in (weight_init, bias_init)))


def __getattr__(name: str) -> Any:
    raise not_there(f"paddle.nn.initializer.{name}", globals())
