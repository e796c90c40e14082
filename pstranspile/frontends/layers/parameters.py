"""Parameters of layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

from pstranspile.frontends.layers.basic import global_var
from pstranspile.frontends.layers.draft import Draft, Value
from pstranspile.frontends.layers.initializers import Constant, Initializer, Xavier
from pstranspile.ir.model import ParameterInfo, TensorType, Var
from pstranspile.ir.types import DType, element_type

# Weight normalisation: a parameter given by a direction and a length, which are trained separately.


class _Norm:
    """Creates the ops of a norm, in the main program or in the startup program."""

    def __init__(self, draft: Draft, layer: str, of: Value, *, startup: bool):
        self.draft, self.layer, self.dtype, self.startup = draft, layer, of.dtype, startup

    def name(self, what: str) -> str:
        """A new name."""
        return self.draft.names.mint(f"{self.layer}.weight_norm_{what}")

    def op(self, op_type: str, x: str, out: str, dims: Sequence[int], **attrs: object) -> str:
        """Appends an op from x to `out`. `out` is declared with these dims if necessary."""
        block = self.draft.startup if self.startup else self.draft.block
        if out not in block.vars and (self.startup or self.draft.find(out) is None):
            block.vars[out] = Var(out, tensor=TensorType(self.dtype, tuple(dims)))
        if self.startup:
            self.draft.startup_op(op_type, {"X": x}, out, front=False, **attrs)
        else:
            self.draft.op(op_type, {"X": x}, {"Out": out}, attrs)
        return out

    def whole(self, x: str, shape: Sequence[int], kept: Sequence[int], along: int | None, out: str = "") -> str:
        """The norm over the dim `along` (None: over all dims), with the dims `kept`."""
        out = out or self.name("norm")
        names = [self.name(what) for what in ("abs", "pow", "sum")]
        self.op("abs", x, names[0], shape)
        self.op("pow", names[0], names[1], shape, factor=2.0)
        over = {"reduce_all": True} if along is None else {"dim": [along], "reduce_all": False}
        self.op("reduce_sum", names[1], names[2], kept, keep_dim=False, **over)
        return self.op("pow", names[2], out, kept, factor=0.5)

    def except_dim(self, x: str, shape: Sequence[int], dim: int | None, out: str = "") -> str:
        """The norms of the slices of x along `dim`, with the rank of x; None: the norm of x, [1]."""
        out, rank = out or self.name("norm"), len(shape)
        if dim is None:
            return self.whole(x, shape, [1], None, out)
        count, ones = shape[dim], [1] * rank
        rest = prod(shape) // count
        if dim in (0, rank - 1):
            flat = [count, -1] if dim == 0 else [-1, count]
            dims = [rest if size < 0 else size for size in flat]
            matrix = self.op("reshape", x, self.name("reshape"), dims, shape=flat)
            norms = self.whole(matrix, dims, [count], 1 if dim == 0 else 0)
            ones[dim] = count
            return self.op("reshape", norms, out, ones, shape=ones)
        order = list(range(rank))
        order[0], order[dim] = dim, 0
        turned = self.op("transpose", x, self.name("transpose"), [shape[at] for at in order], axis=order)
        flat, ones[0] = [count, -1], count
        matrix = self.op("reshape", turned, self.name("reshape"), [count, rest], shape=flat)
        norms = self.whole(matrix, [count, rest], [count], 1)
        norms = self.op("reshape", norms, self.name("reshape"), ones, shape=ones)
        return self.op("transpose", norms, out, [ones[at] for at in order], axis=order)


def length_dims(shape: Sequence[int], dim: int | None) -> tuple[int, ...]:
    """The dims of the lengths: 1, but for `dim`."""
    return tuple(size if at == dim else 1 for at, size in enumerate(shape))


def start_length(draft: Draft, layer: str, length: Value, direction: Value, dim: int | None) -> None:
    """Initialises the lengths in the startup program with those of the directions. The weight then starts as the
    direction.
    """
    norm = _Norm(draft, layer, direction, startup=True)
    shape = length_dims(direction.shape, dim)
    norm.except_dim(direction.name, direction.shape, dim, length.name)
    norm.op("reshape", length.name, length.name, shape, shape=list(shape))


def normalised(draft: Draft, layer: str, length: Value, direction: Value, dim: int | None) -> Value:
    """length * direction / the norm of the direction, along `dim` (None: as a whole)."""
    norm = _Norm(draft, layer, direction, startup=False).except_dim(direction.name, direction.shape, dim)
    scale = _layer(draft, "elementwise_div", length, Value(draft, norm), axis=-1)
    if dim is not None:
        minted = draft.names.mint("reshape2")
        flat, old = draft.temporary(minted, scale.dtype), draft.temporary(minted, scale.dtype)
        draft.op("reshape2", {"X": scale}, {"Out": flat, "XShape": old}, {"shape": [direction.shape[dim]]})
        scale = flat
    return _layer(draft, "elementwise_mul", direction, scale, axis=-1 if dim is None else dim)


def _layer(draft: Draft, op_type: str, x: Value, y: Value, axis: int) -> Value:
    out = draft.temporary(draft.names.mint(op_type), x.dtype)
    draft.op(op_type, {"X": x, "Y": y}, {"Out": out}, {"axis": axis})
    return out


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
