"""Parameters of layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from pstranspile.frontends.layers.basic import global_var
from pstranspile.frontends.layers.draft import Draft, Value
from pstranspile.frontends.layers.initializers import Constant, Initializer, Xavier
from pstranspile.frontends.layers.weight_norm import length_dims, normalised, start_length
from pstranspile.ir.model import ParameterInfo, TensorType, Var
from pstranspile.ir.types import DType, element_type

Element: TypeAlias = DType | str
"""A dtype, or its text: `f32`, `i64`, ..."""


@dataclass(frozen=True)
class ParamAttr:
    """The attributes of a layer's parameter. Layers with the same `name` share it.

    `regularizer` is one of `pstranspile.frontends.autodiff` (or its text), `learning_rate` a factor of the optimizer's
    rate. Without `averaged`, averages of parameters leave it out.
    """

    name: str | None = None
    initializer: Initializer | None = None
    learning_rate: float = 1.0
    regularizer: object = None
    trainable: bool = True
    averaged: bool = True


@dataclass(frozen=True)
class WeightNorm(ParamAttr):
    """A parameter given by its direction and its length along `dim` (None: one for all), `<name>_v` and `<name>_g`."""

    dim: int | None = None


_STARTS: dict[bool, Initializer | None] = {}
"""What initialises biases (True) and other parameters (False) in the place of what layers choose."""


def start_all_with(weights: Initializer | None, biases: Initializer | None) -> None:
    """Has parameters that are made from now on start so, unless their attributes say otherwise; None: as layers do."""
    _STARTS.update({False: weights, True: biases})


Attr: TypeAlias = "ParamAttr | str | bool | None"
"""A parameter's attributes, only its name, None or True for the defaults, or False for no parameter."""


def attr_of(given: Attr) -> ParamAttr | None:
    """The attributes for `given`, None for no parameter."""
    if given is False:
        return None
    if isinstance(given, str):
        return ParamAttr(given)
    return given if isinstance(given, ParamAttr) else ParamAttr()


def create_parameter(
    draft: Draft,
    layer: str,
    given: Attr,
    shape: Sequence[int],
    dtype: Element,
    *,
    is_bias: bool = False,
    default: Initializer | None = None,
) -> Value:
    """The parameter `<layer>.w_<n>` (`b` for a bias), or the one named by `given`.

    It is initialised by its attributes, else as `start_all_with` says, else by `default`, else with zeros (bias) or
    Xavier. Raises ValueError when `given` is False, or when a shared parameter has other dims.
    """
    attr = attr_of(given)
    if attr is None:
        raise ValueError(f"{layer} can't do without this parameter")
    name = attr.name or draft.names.mint(f"{layer}.{'b' if is_bias else 'w'}")
    tensor = TensorType(element_type(dtype), tuple(shape))
    start = attr.initializer or _STARTS.get(is_bias) or default or (Constant() if is_bias else Xavier())
    if isinstance(attr, WeightNorm):
        return _normalised(draft, layer, replace(attr, name=name, initializer=start), tensor)
    return _declared(draft, attr, name, tensor, start)


def _normalised(draft: Draft, layer: str, attr: WeightNorm, tensor: TensorType) -> Value:
    """The weight computed from its direction and length. A shared one is computed again from the same two."""
    dim = None if attr.dim is None else attr.dim % len(tensor.shape)
    lengths = tensor._replace(shape=length_dims(tensor.shape, dim))
    first = f"{attr.name}_g" not in draft.startup.vars
    length = _declared(draft, attr, f"{attr.name}_g", lengths, None)
    direction = _declared(draft, attr, f"{attr.name}_v", tensor, attr.initializer)
    if first:
        start_length(draft, layer, length, direction, dim)
    return normalised(draft, layer, length, direction, dim)


def _declared(draft: Draft, attr: ParamAttr, name: str, tensor: TensorType, start: Initializer | None) -> Value:
    """The parameter in both programs, or an existing one. Raises ValueError if that has other dims."""
    known = draft.blocks[0].vars.get(name)
    if known is not None and known.tensor != tensor:
        raise ValueError(f"parameter %{name} is shared, with the dims {list(known.shape)} and {list(tensor.shape)}")
    kind = None if attr.regularizer is None else str(attr.regularizer)
    info = ParameterInfo(attr.trainable, attr.learning_rate, False, kind)
    var = Var(name, tensor=tensor, persistable=True, parameter=info)
    if attr.regularizer is not None:
        draft.regularizers[name] = attr.regularizer
    if not attr.averaged:
        draft.unaveraged.add(name)
    first = name not in draft.startup.vars
    draft.declare(var, 0)
    draft.startup.vars[name] = var
    if first and start is not None:
        start.emit(draft, var)
    return Value(draft, name)


def create_global_var(draft: Draft, name: str, shape: Iterable[int], value: float, dtype: Element = "f32") -> Value:
    """A persistable variable, not a parameter, that the startup program fills with `value`."""

    draft.names.mint("global_var")
    return global_var(draft, name, tuple(shape), element_type(dtype), value)


def data(
    draft: Draft,
    name: str,
    shape: Sequence[int],
    dtype: Element = "f32",
    *,
    lod_level: int = 0,
    check_feed: bool = False,
) -> Value:
    """A variable that is fed, with these dims (-1: known only at run time). It gets no gradient."""
    draft.stop_gradient.add(name)
    tensor = TensorType(element_type(dtype), tuple(shape), lod_level)
    return draft.declare(Var(name, tensor=tensor, need_check_feed=check_feed), 0)
