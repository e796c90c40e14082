"""Kernels. Constants, copies and conversions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import int_attr, ints_attr, real, text
from pstranspile.runtime.kernels.context import Surroundings
from pstranspile.runtime.kernels.kernel import Run, kernel, plain_kernel
from pstranspile.runtime.kernels.numeric import first, formula, listed, numpy_dtype
from pstranspile.runtime.kernels.rows import as_declared
from pstranspile.runtime.values import Array, LoDTensor, SelectedRows
from pstranspile.runtime.values.writing import to_float16


def asked_dims(op: Op, tensor: Array | None, parts: Sequence[Array] | None) -> tuple[int, ...]:
    """The requested dims: from ShapeTensor, from ShapeTensorList, or from the attribute `shape`."""
    return listed(tensor, parts, ints_attr(op, "shape"))


def _constant(op: Op, kind: str) -> Any:
    """The value to fill with, of element type `kind`: `str_value` if there is one, else `value`."""
    written = text(op, "str_value")
    if not written:
        return _of_kind(kind, real(op, "value"))
    try:
        # Integers are parsed as integers, because a float64 does not hold 64 bits
        return _of_kind(kind, float(written) if kind.startswith("float") else int(written))
    except ValueError:
        return _of_kind(kind, float(written))


def _of_kind(kind: str, number: float) -> Any:
    return to_float16(np.array(number))[()] if kind == "float16" else np.dtype(kind).type(number)


def _plain_constant(op: Op) -> str | None:
    """The constant as an expression, if it depends on the op's attributes only."""
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


@plain_kernel("fill_any_like")
def _fill_any_like_values(X: Array, *, value: float, dtype: int = -1) -> Array:
    return np.full(X.shape, value, X.dtype if dtype < 0 else numpy_dtype(dtype))


formula("fill_zeros_like", "np.zeros({X}.shape, {X}.dtype)")


@plain_kernel("assign")
def _assign(X: Any) -> Any:
    return copied(X)


def copied(value: Any) -> Any:
    """A copy of a value that shares no memory with it. Raises ValueError for a value that can't be copied."""
    if isinstance(value, SelectedRows):
        return SelectedRows(value.rows.copy(), value.value.copy(), value.height)
    if isinstance(value, LoDTensor):
        return LoDTensor(value.data.copy(), value.lod)
    if isinstance(value, list):
        return [None if item is None else copied(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
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


formula("fill_zeros_like2", lambda op: f"np.zeros({{X}}.shape, {numpy_dtype(int_attr(op, 'dtype', 5))!r})")
