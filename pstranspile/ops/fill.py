"""Values out of nothing, copies and conversions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pstranspile.ir.model import Op, TensorType
from pstranspile.lazy import lazy_import
from pstranspile.ops.context import Surroundings
from pstranspile.ops.gradient import Wanted, bare_op, gradient, output_gradients
from pstranspile.ops.kernel import Run, kernel
from pstranspile.ops.numeric import first, formula, numpy_dtype, real, text
from pstranspile.ops.rows import as_declared
from pstranspile.ops.schema import FLOATS, INT, INTS, declare, floats, ints, longs
from pstranspile.ops.shapes import (
    ShapeError,
    Types,
    describe,
    dtype_attr,
    int_attr,
    ints_attr,
    one,
    outputs_like,
    shape_rule,
)
from pstranspile.ops.tensor_bytes import to_float16
from pstranspile.ops.values import Array, LoDTensor, SelectedRows

np = lazy_import("numpy")

declare(
    "fill_constant",
    "ValueTensor? ShapeTensor? ShapeTensorList*? -> Out",
    {"shape": longs(), "value": 0.0, "str_value": "", "force_cpu": False, "dtype": 5},
    doc="Out = a tensor of dims `shape`, all elements `value`",
)
declare(
    "fill_constant_batch_size_like",
    "Input -> Out",
    {
        "shape": INTS,
        "input_dim_idx": 0,
        "output_dim_idx": 0,
        "value": 0.0,
        "str_value": "",
        "force_cpu": False,
        "dtype": 5,
    },
    doc="as fill_constant, one dim taken from Input",
)
declare(
    "fill_any_like",
    "X -> Out",
    {"value": 0.0, "dtype": -1},
    row_wise=True,
    doc="Out = a tensor as X, all elements `value`",
)
declare("fill_zeros_like", "X -> Out", row_wise=True, doc="Out = zeros, as X")
declare("assign", "X? -> Out", row_wise=True, doc="Out = X")
declare(
    "assign_value",
    "-> Out",
    {
        "shape": INTS,
        "bool_values": ints(),
        "fp32_values": floats(),
        "int32_values": ints(),
        "int64_values": longs(),
        "dtype": INT,
    },
    doc="Out = the listed values",
)
declare(
    "fill",
    "-> Out",
    {"value": FLOATS, "shape": INTS, "dtype": 5, "force_cpu": False},
    doc="Out = a tensor of dims `shape` with the listed values",
)
declare("cast", "X -> Out", {"out_dtype": INT, "in_dtype": INT}, row_wise=True, doc="Out = X converted to out_dtype")
declare(
    "coalesce_tensor",
    "Input* -> Output* FusedOutput",
    {"copy_data": False, "set_constant": False, "constant": 0.0, "check_name": False, "dtype": INT},
    doc="Output = Input, laid one after another in the memory of FusedOutput",
)


shape_rule("fill_zeros_like", "assign")(outputs_like(Out="X"))


@shape_rule("fill_constant", "assign_value")
def made(op: Op, types: Types) -> Types:
    """Tensors of dims `shape`, unless the dims come as tensors."""
    known = "ShapeTensor" not in types and "ShapeTensorList" not in types
    return {"Out": (TensorType(dtype_attr(op), ints_attr(op, "shape") if known else ()),)}


@shape_rule("fill_constant_batch_size_like")
def made_like(op: Op, types: Types) -> Types:
    """Tensors of dims `shape`, but for one dim that is that of Input (with LoD: the number of sequences)."""
    like = one(types, "Input")
    dims = list(ints_attr(op, "shape"))
    source, target = int_attr(op, "input_dim_idx"), int_attr(op, "output_dim_idx")
    if not 0 <= source < len(like.shape) or not 0 <= target < len(dims):
        raise ShapeError(f"dim {source} of Input, {describe(like)}, cannot be dim {target} of {dims}", "Input")
    dims[target] = -1 if like.lod_level and source == 0 else like.shape[source]
    return {"Out": (TensorType(dtype_attr(op), tuple(dims)),)}


@shape_rule("fill_any_like")
def _fill_any_like(op: Op, types: Types) -> Types:
    x = one(types, "X")
    return {"Out": (x._replace(dtype=dtype_attr(op, "dtype", x.dtype)),)}


@shape_rule("cast")
def _cast(op: Op, types: Types) -> Types:
    x = one(types, "X")
    gives: Types = {"Out": (x._replace(dtype=dtype_attr(op, "out_dtype")),)}
    if x.dtype is not dtype_attr(op, "in_dtype"):
        raise ShapeError(f"X is {describe(x)}, but in_dtype says {dtype_attr(op, 'in_dtype').text}", "X", gives)
    return gives


@shape_rule("coalesce_tensor")
def _coalesce_tensor(_op: Op, types: Types) -> Types:
    return {"Output": types.get("Input", ())}


@gradient("assign")
def _assign_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    return (bare_op("assign", {"X": output_gradients(op, "Out")}, {"Out": wanted.kept(op, "X")}),)


@gradient("cast")
def _cast_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    attrs = {"in_dtype": op.attrs["out_dtype"], "out_dtype": op.attrs["in_dtype"]}
    return (bare_op("cast", {"X": output_gradients(op, "Out")}, {"Out": wanted.kept(op, "X")}, attrs),)


# Kernels


def asked_dims(op: Op, tensor: Array | None, parts: Sequence[Array] | None) -> tuple[int, ...]:
    """The dims to make: from ShapeTensor, from ShapeTensorList, or from the attribute `shape`."""
    if tensor is not None:
        return tuple(int(dim) for dim in tensor.reshape(-1))
    if parts:
        return tuple(int(first(part)) for part in parts)
    return ints_attr(op, "shape")


def _constant(op: Op, kind: str) -> Any:
    """The value to fill with, of element type `kind`: `str_value` if there is one, else `value`."""
    written = text(op, "str_value")
    if not written:
        return _of_kind(kind, real(op, "value"))
    try:
        # An integer is read as such, as a float64 does not hold all of 64 bits
        return _of_kind(kind, float(written) if kind.startswith("float") else int(written))
    except ValueError:
        return _of_kind(kind, float(written))


def _of_kind(kind: str, number: float) -> Any:
    return to_float16(np.array(number))[()] if kind == "float16" else np.dtype(kind).type(number)


def _plain_constant(op: Op) -> str | None:
    """The constant as an expression, where the op's attributes alone say what it is."""
    if any(op.input_names):
        return None
    kind = numpy_dtype(int_attr(op, "dtype", 5))
    constant = np.array(_constant(op, kind), kind).item()
    if constant != constant or constant in (float("inf"), float("-inf")):  # these have no literal
        return None
    dims = tuple(ints_attr(op, "shape"))
    return f"np.array([{constant!r}], {kind!r})" if dims == (1,) else f"np.full({dims!r}, {constant!r}, {kind!r})"


@kernel("fill_constant", inline=_plain_constant)
def _fill_constant(op: Op) -> Run:
    kind = numpy_dtype(int_attr(op, "dtype", 5))
    constant = _constant(op, kind)

    name = op.outputs["Out"][0]

    def run(
        ValueTensor: Array | None, ShapeTensor: Array | None, ShapeTensorList: list[Array], surroundings: Surroundings
    ) -> Array | SelectedRows:
        value = constant if ValueTensor is None else first(ValueTensor)
        filled = np.full(asked_dims(op, ShapeTensor, ShapeTensorList), value, kind)
        return as_declared(filled, surroundings.declared(name))

    return run


def dims_like(op: Op, like: Array | LoDTensor) -> tuple[int, ...]:
    """The dims of a ..._batch_size_like op: `shape`, one of them that of Input (with LoD: its number of sequences)."""
    dims = list(ints_attr(op, "shape"))
    source = int_attr(op, "input_dim_idx")
    ragged = isinstance(like, LoDTensor)
    size = len(like.lod[-1]) - 1 if ragged and source == 0 else (like.data if ragged else like).shape[source]
    dims[int_attr(op, "output_dim_idx")] = size
    return tuple(dims)


@kernel("fill_constant_batch_size_like", lod="own")
def _fill_constant_batch_size_like(op: Op) -> Run:
    kind = numpy_dtype(int_attr(op, "dtype", 5))
    constant = _constant(op, kind)

    def run(Input: Array | LoDTensor) -> Array:
        return np.full(dims_like(op, Input), constant, kind)

    return run


@kernel("fill_any_like")
def _fill_any_like_values(op: Op) -> Run:
    value, number = real(op, "value"), int_attr(op, "dtype", -1)

    def run(X: Array) -> Array:
        return np.full(X.shape, value, X.dtype if number < 0 else numpy_dtype(number))

    return run


formula("fill_zeros_like", "np.zeros({X}.shape, {X}.dtype)")


@kernel("assign")
def _assign(_op: Op) -> Run:
    def run(X: Any) -> Any:
        return copied(X)

    return run


def copied(value: Any) -> Any:
    """A copy of a variable's value that shares no memory with it. Raises ValueError for what can't be copied."""
    if isinstance(value, SelectedRows):
        return SelectedRows(value.rows.copy(), value.value.copy(), value.height)
    if isinstance(value, LoDTensor):
        return LoDTensor(value.data.copy(), value.lod)
    if isinstance(value, list):
        return [copied(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, np.ndarray):
        return value.copy()
    raise ValueError(f"a {type(value).__name__} can't be assigned")


_VALUES = {"bool": "bool_values", "int32": "int32_values", "int64": "int64_values", "float32": "fp32_values"}


@kernel("assign_value")
def _assign_value(op: Op) -> Run:
    kind, dims = numpy_dtype(int_attr(op, "dtype")), ints_attr(op, "shape")
    if kind not in _VALUES:
        raise ValueError(f"dtype is {kind}, which assign_value has no values for")
    value = np.array(op.attrs[_VALUES[kind]], kind).reshape(dims)

    def run() -> Array:
        return value.copy()

    return run


@kernel("fill")
def _fill(op: Op) -> Run:
    value = np.array(op.attrs["value"], numpy_dtype(int_attr(op, "dtype", 5))).reshape(ints_attr(op, "shape"))

    def run() -> Array:
        return value.copy()

    return run


def _plain_cast(op: Op) -> str | None:
    kind = numpy_dtype(int_attr(op, "out_dtype"))
    return None if kind == "float16" else f"{{X}}.astype({kind!r})"


@kernel("cast", inline=_plain_cast)
def _cast_values(op: Op) -> Run:
    kind = numpy_dtype(int_attr(op, "out_dtype"))

    def run(X: Array) -> Array:
        return to_float16(X) if kind == "float16" and X.dtype != kind else X.astype(kind)

    return run
