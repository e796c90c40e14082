"""Nodes about the dims of values as Fluid's ops: other dims, repeated elements, constants of any size."""

from __future__ import annotations

from typing import Any

import numpy as np

from pstranspile.frontends.onnx.graph import Refused
from pstranspile.frontends.onnx.models import array_of
from pstranspile.frontends.onnx.reading import Reading, attribute, axes_of, onnx_reader, positive
from pstranspile.frontends.onnx.reshaping import expand, reshape, sizes_of, transpose, with_x_shape
from pstranspile.frontends.onnx.sizes import is_code
from pstranspile.ir.types import DType


@onnx_reader("Identity", "Dropout")
def _identity(node: Any, reading: Reading) -> None:
    if any(node.output[1:]):
        raise Refused("its mask is asked for")
    reading.alias(node.output[0], node.input[0])


@onnx_reader("Reshape")
def _reshape(node: Any, reading: Reading) -> None:
    source, shape = node.input
    if reading.resolved(shape) not in reading.known:
        _reshape_by_value(node, reading)
        return
    asked = reading.numbers(shape, "its shape")
    if attribute(node, "allowzero", 0) and 0 in asked:
        raise Refused("its shape has a dim of size 0")
    dims = sizes_of(source, reading)
    if any(size == 0 and at >= len(dims) for at, size in enumerate(asked)):
        raise Refused("its shape has a dim of its input that this has not")
    reshape(source, node.output[0], asked, reading)


def _reshape_by_value(node: Any, reading: Reading) -> None:
    source, shape = node.input
    (rank,) = reading.dims(shape)
    if rank < 1:
        raise Refused("how many dims its result has is known at run time only")
    narrow, parts = reading.temp(shape), [reading.temp(shape) for _ in range(rank)]
    reading.cast(shape, narrow, DType.INT32)
    reading.op("split", {"X": narrow}, {"Out": parts}, axis=0, num=rank)
    made = {"Out": node.output[0], "XShape": reading.temp(node.output[0])}
    reading.op("reshape2", {"X": source, "ShapeTensor": parts}, made, shape=[-1] * rank)


@onnx_reader("Flatten")
def _flatten(node: Any, reading: Reading) -> None:
    axis = attribute(node, "axis", 1)
    rank = len(reading.dims(node.input[0]))
    with_x_shape("flatten2", node.input[0], node.output[0], reading, axis=axis + rank if axis < 0 else axis)


@onnx_reader("Transpose")
def _transpose(node: Any, reading: Reading) -> None:
    rank = len(reading.dims(node.input[0]))
    if rank == 0:
        reading.alias(node.output[0], node.input[0])
    else:
        transpose(node.input[0], node.output[0], attribute(node, "perm", range(rank)[::-1]), reading)


@onnx_reader("Squeeze")
def _squeeze(node: Any, reading: Reading) -> None:
    source, out = node.input[0], node.output[0]
    dims = reading.dims(source)
    axes = axes_of(node, reading)
    if axes is None and -1 in dims:
        raise Refused("which dims it leaves out is known at run time only")
    gone = positive(axes, len(dims)) if axes is not None else [at for at, dim in enumerate(dims) if dim == 1]
    if len(gone) == len(dims):
        reading.scalars.add(out)
        gone = gone[:-1]
    if gone:
        with_x_shape("squeeze2", source, out, reading, axes=gone)
    else:
        reading.alias(out, source)


@onnx_reader("Unsqueeze")
def _unsqueeze(node: Any, reading: Reading) -> None:
    source, out, axes = node.input[0], node.output[0], axes_of(node, reading) or []
    axes = sorted(positive(axes, len(reading.dims(source)) + len(axes)))
    if reading.is_scalar(source):
        axes = axes[1:]
    if axes:
        with_x_shape("unsqueeze2", source, out, reading, axes=axes)
    else:
        reading.op("assign", {"X": source}, {"Out": out})


@onnx_reader("Expand")
def _expand(node: Any, reading: Reading) -> None:
    expand(node.input[0], node.output[0], reading.numbers(node.input[1], "its shape"), reading)


@onnx_reader("Tile")
def _tile(node: Any, reading: Reading) -> None:
    times = reading.numbers(node.input[1], "how often it repeats")
    listed = [-1 if is_code(count) else count for count in times]
    inputs: dict[str, Any] = {"X": node.input[0]}
    if any(map(is_code, times)):
        inputs["expand_times_tensor"] = [reading.measured(count) for count in times]
    reading.op("expand", inputs, {"Out": node.output[0]}, expand_times=listed)


# Out of nothing

_FILLED = {kind: kind.value for kind in (DType.FP32, DType.FP64, DType.INT32, DType.INT64, DType.BOOL, DType.FP16)}


@onnx_reader("ConstantOfShape")
def _constant_of_shape(node: Any, reading: Reading) -> None:
    """A constant with a dim that is known at run time only, or of very many elements; others are computed before."""
    dims = reading.numbers(node.input[0], "its shape")
    value = attribute(node, "value")
    fill(node.output[0], dims, np.zeros(1, "float32") if value is None else array_of(value), reading)


def fill(out: str, dims: list[int], value: Any, reading: Reading) -> None:
    """`out` is of these dims, of which some may be codes, and all of its elements are this value."""
    kind = next((held for held in _FILLED if held.text == _text(value)), None)
    if kind is None:
        raise Refused(f"it makes elements of type {value.dtype.name}")
    number = value.reshape(-1)[0]
    written = str(int(number)) if kind in (DType.INT64, DType.INT32, DType.BOOL) else repr(float(number))
    attrs: dict[str, Any] = {"dtype": kind.value, "value": float(number), "str_value": written}
    attrs["shape"] = [-1 if is_code(dim) else dim for dim in dims]
    inputs = {"ShapeTensorList": [reading.measured(dim) for dim in dims]} if any(map(is_code, dims)) else {}
    reading.op("fill_constant", inputs, {"Out": out}, **attrs)
    reading.draft.stop_gradient.add(out)


def _text(value: Any) -> str:
    return {"float": "f", "int": "i"}.get(value.dtype.name.rstrip("0123456789"), "") + "".join(
        filter(str.isdigit, value.dtype.name)
    ) or value.dtype.name


@onnx_reader("Range")
def _range(node: Any, reading: Reading) -> None:
    given: list[str] = []
    for name in node.input:
        known = reading.known.get(reading.resolved(name))
        if known is not None:
            given.append(reading.measured(int(known)) if known.dtype.kind == "i" else name)
        else:
            given.append(name)
    kinds = {reading.tensor(name).dtype for name in given}
    wanted = DType.INT64 if kinds <= {DType.INT32, DType.INT64} else kinds.pop()
    cast = [reading.as_type(name, wanted) for name in given]
    out = node.output[0]
    reading.op("range", dict(zip(("Start", "End", "Step"), cast, strict=True)), {"Out": out})
    reading.draft.stop_gradient.add(out)


@onnx_reader("EyeLike")
def _eye_like(node: Any, reading: Reading) -> None:
    rows, columns = reading.dims(node.input[0])
    if min(rows, columns) < 0 or attribute(node, "k", 0):
        raise Refused("its diagonal is not the main one, or its dims are known at run time only")
    number = attribute(node, "dtype")
    kind = reading.tensor(node.input[0]).dtype if number is None else reading.kind(number, node.output[0])
    reading.op("eye", {}, {"Out": node.output[0]}, num_rows=rows, num_columns=columns, dtype=kind.value)


@onnx_reader("Cast", "CastLike")
def _cast(node: Any, reading: Reading) -> None:
    out = node.output[0]
    like = node.op_type == "CastLike"
    kind = reading.tensor(node.input[1]).dtype if like else reading.kind(attribute(node, "to"), out)
    reading.cast(node.input[0], out, kind)
