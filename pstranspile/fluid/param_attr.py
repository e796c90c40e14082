"""Attributes of parameters under Fluid's names."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.graph.values import several
from pstranspile.fluid.missing import names_of_fluid, unsupported_error
from pstranspile.frontends.layers import parameters as core
from pstranspile.frontends.layers.draft import Draft


class ParamAttr:
    """The properties of a parameter: its name, its initialiser, and settings of its training."""

    def __init__(
        self,
        name: str | None = None,
        initializer: Any = None,
        learning_rate: float = 1.0,
        regularizer: Any = None,
        trainable: bool = True,
        do_model_average: bool = True,
        need_clip: bool = True,
    ):
        if not need_clip:
            raise unsupported_error(
                "ParamAttr(need_clip=False)", "clip the gradients of a loss over the other parameters alone"
            )
        self.name = name
        self.initializer = initializer
        self.learning_rate = learning_rate
        self.regularizer = regularizer
        self.trainable = trainable
        self.do_model_average = do_model_average

    @staticmethod
    def _to_attr(arg: Any) -> Any:
        """The ParamAttr behind a layer's argument, as `attr_of` returns it; False for no parameter."""
        return attr_of(arg)

    def core(self, draft: Draft) -> core.ParamAttr:
        """The attributes in the form that layers of this package take."""
        start = None if self.initializer is None else self.initializer.core()
        decay = None if self.regularizer is None else self.regularizer.core()
        averaged = self.do_model_average is not False
        return core.ParamAttr(self.name, start, float(self.learning_rate), decay, self.trainable, averaged)


class WeightNormParamAttr(ParamAttr):
    """A parameter that is trained as a direction and a length along `dim` (None: one length for all)."""

    def __init__(
        self,
        dim: int | None = None,
        name: str | None = None,
        initializer: Any = None,
        learning_rate: float = 1.0,
        regularizer: Any = None,
        trainable: bool = True,
        do_model_average: bool = False,
        need_clip: bool = True,
    ):
        super().__init__(name, initializer, learning_rate, regularizer, trainable, do_model_average, need_clip)
        self.dim = dim

    def core(self, draft: Draft) -> core.WeightNorm:
        """The attributes in the form that layers of this package take."""
        plain = super().core(draft)
        rest = plain.name, plain.initializer, plain.learning_rate, plain.regularizer, plain.trainable, plain.averaged
        return core.WeightNorm(*rest, dim=self.dim)


def attr_of(given: Any) -> Any:
    """The ParamAttr behind a layer's `param_attr`, which may be None, True, a name, an initializer, a ParamAttr, ...

    False stays False, for no parameter; a list is converted item by item. Raises TypeError for anything else.
    """
    if several(given):
        return [attr_of(item) for item in given]  # pyright: ignore[reportUnknownVariableType]
    if given is None or given is True:
        return ParamAttr()
    if given is False or isinstance(given, ParamAttr):
        return given
    if isinstance(given, str):
        return ParamAttr(name=given)
    from pstranspile.fluid.initializer import Initializer
    from pstranspile.fluid.regularizer import WeightDecayRegularizer

    if isinstance(given, Initializer):
        return ParamAttr(initializer=given)
    if isinstance(given, WeightDecayRegularizer):
        return ParamAttr(regularizer=given)
    raise TypeError(f"a parameter is described by a ParamAttr, not by a value of type {type(given).__name__}")


def core_attr(given: Any, draft: Draft) -> Any:
    """The value that a layer of this package takes, for a `param_attr` or `bias_attr` of Fluid."""
    attr = attr_of(given)
    if isinstance(attr, list):
        return [core_attr(item, draft) for item in attr]  # pyright: ignore[reportUnknownVariableType]
    return False if attr is False else attr.core(draft)


__getattr__ = names_of_fluid(__name__, globals())
