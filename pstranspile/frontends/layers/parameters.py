"""Parameters of layers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from pstranspile.frontends.layers.basic import global_var
from pstranspile.frontends.layers.draft import Draft, Value, whole_dims
from pstranspile.ir.model import ParameterInfo, TensorType, Var
from pstranspile.ir.types import DType, element_type

if TYPE_CHECKING:
    from numpy.typing import NDArray


# Initialisers of parameters, each one op in front of the startup program.
#
# A seed of 0 takes the startup program's seed, as in Fluid.


class Initializer(Protocol):
    """An object that makes the op that fills a variable: `emit` puts the op in front of the startup program."""

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
    """Sets every element to `value`."""

    value: float = 0.0
    force_cpu: bool = False

    def emit(self, draft: Draft, var: Var) -> None:
        """One `fill_constant`."""
        attrs = {"value": self.value, "force_cpu": self.force_cpu}
        _start(draft, var, "fill_constant", None, "constant_init", attrs)


@dataclass(frozen=True)
class Uniform:
    """Evenly distributed in [low, high).

    In the first `diag_num` rows, the elements at multiples of `diag_step + 1` are `diag_val`.
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
    """Normally distributed; numbers beyond two standard deviations are drawn again."""

    mean: float = 0.0
    std: float = 1.0
    seed: int = 0

    def emit(self, draft: Draft, var: Var) -> None:
        """One `truncated_gaussian_random`."""
        attrs = {"mean": self.mean, "std": self.std, "seed": self.seed or draft.seed}
        _start(draft, var, "truncated_gaussian_random", None, "truncated_gaussian_random", attrs)


@dataclass(frozen=True)
class Xavier:
    """Distributed by fan in and fan out: uniform in +-sqrt(6 / (in + out)), or normal with std sqrt(2 / (in + out))."""

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
    """Distributed by fan in, for layers with relu: uniform in +-sqrt(6 / in), or normal with std sqrt(2 / in)."""

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

    `key` is part of the name of the f32 variable for half precision. `front` puts the op in front of the other ones. An
    array that need not fit declares the variable with the array's dims in the startup program.
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
    """The dims of the lengths: 1 for every dim except `dim`."""
    return tuple(size if at == dim else 1 for at, size in enumerate(shape))


def start_length(draft: Draft, layer: str, length: Value, direction: Value, dim: int | None) -> None:
    """Initialises the lengths in the startup program with those of the directions. The weight then starts as the
    direction.
    """
    norm = _Norm(draft, layer, direction, startup=True)
    shape = length_dims(direction.shape, dim)
    norm.except_dim(direction.name, direction.shape, dim, length.name)
    norm.op("reshape", length.name, length.name, shape, shape=list(shape))


def normalised_weight(draft: Draft, layer: str, length: Value, direction: Value, dim: int | None) -> Value:
    """The weight: length * direction / the norm of the direction, along `dim` (None: as a whole)."""
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
"""The initialisers of biases (True) and other parameters (False) that replace the defaults of layers."""


def start_all_with(weights: Initializer | None, biases: Initializer | None) -> None:
    """Sets the initialisers of parameters that are created from now on, unless their attributes have one; None: those
    of layers.
    """
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
    Xavier. Raises ValueError when `given` is False, when a dim is negative, or when a shared parameter has other
    dims.
    """
    attr = attr_of(given)
    if attr is None:
        raise ValueError(f"{layer} can't do without this parameter")
    if any(isinstance(dim, int) and dim < 0 for dim in cast("Sequence[object]", shape)):
        raise ValueError(f"a parameter of {layer} would be of dims {[*shape]}: each is a number from 0 on")
    name = attr.name or draft.names.mint(f"{layer}.{'b' if is_bias else 'w'}")
    tensor = whole_dims(TensorType(element_type(dtype), tuple(shape)), name)
    start = attr.initializer or _STARTS.get(is_bias) or default or (Constant() if is_bias else Xavier())
    if isinstance(attr, WeightNorm):
        return _create_normalised_weight(draft, layer, replace(attr, name=name, initializer=start), tensor)
    return _declare_parameter(draft, attr, name, tensor, start)


def _create_normalised_weight(draft: Draft, layer: str, attr: WeightNorm, tensor: TensorType) -> Value:
    """The weight computed from its direction and length. For a shared parameter it is computed again
    from the same two.
    """
    dim = None if attr.dim is None else attr.dim % len(tensor.shape)
    lengths = tensor._replace(shape=length_dims(tensor.shape, dim))
    first = f"{attr.name}_g" not in draft.startup.vars
    length = _declare_parameter(draft, attr, f"{attr.name}_g", lengths, None)
    direction = _declare_parameter(draft, attr, f"{attr.name}_v", tensor, attr.initializer)
    if first:
        start_length(draft, layer, length, direction, dim)
    return normalised_weight(draft, layer, length, direction, dim)


def _declare_parameter(
    draft: Draft, attr: ParamAttr, name: str, tensor: TensorType, start: Initializer | None
) -> Value:
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
