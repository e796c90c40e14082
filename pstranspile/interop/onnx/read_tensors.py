"""Nodes about shapes and elements as Fluid's ops: other dims, parts, tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from pstranspile.interop.onnx.graph import Refused
from pstranspile.interop.onnx.reading import Reading, attribute, axes_of, onnx_reader, positive

_FAR = (1 << 31) - 1
"""Past the end of any dim."""


@onnx_reader("Identity", "Dropout")
def _identity(node: Any, reading: Reading) -> None:
    if any(node.output[1:]):
        raise Refused("its mask is asked for")
    reading.alias(node.output[0], node.input[0])


def _with_x_shape(op_type: str, node: Any, reading: Reading, **attrs: object) -> None:
    out = node.output[0]
    reading.op(op_type, {"X": node.input[0]}, {"Out": out, "XShape": reading.temp(out)}, **attrs)


@onnx_reader("Reshape")
def _reshape(node: Any, reading: Reading) -> None:
    dims = reading.dims(node.input[0])
    asked = [int(number) for number in reading.constant(node.input[1], "its shape")]
    if attribute(node, "allowzero", 0) and 0 in asked:
        raise Refused("its shape has a dim of size 0")
    unknown = [at for at, number in enumerate(asked) if reading.unknown_dim(number)]
    for at in unknown:  # a dim of the input at its own place is 0 to Fluid, one other is the rest
        name, axis = reading.unknown_dim(asked[at]) or ("", 0)
        same = axis == at and at < len(dims) and name == reading.name(node.input[0])
        asked[at] = 0 if same or (at == 0 and axis == 0 and -1 in asked and dims[:1] == (-1,)) else -1
    if asked.count(-1) > 1:
        raise Refused("several dims of its shape are known at run time only")
    _with_x_shape("reshape2", node, reading, shape=asked)


@onnx_reader("Flatten")
def _flatten(node: Any, reading: Reading) -> None:
    axis = attribute(node, "axis", 1) % (len(reading.dims(node.input[0])) + 1)
    _with_x_shape("flatten2", node, reading, axis=axis)


@onnx_reader("Transpose")
def _transpose(node: Any, reading: Reading) -> None:
    rank = len(reading.dims(node.input[0]))
    _with_x_shape("transpose2", node, reading, axis=list(attribute(node, "perm", range(rank)[::-1])))


@onnx_reader("Squeeze")
def _squeeze(node: Any, reading: Reading) -> None:
    _with_x_shape("squeeze2", node, reading, axes=axes_of(node, reading) or [])


@onnx_reader("Unsqueeze")
def _unsqueeze(node: Any, reading: Reading) -> None:
    axes = axes_of(node, reading) or []
    axes = sorted(positive(axes, len(reading.dims(node.input[0])) + len(axes)))
    _with_x_shape("unsqueeze2", node, reading, axes=axes)


@onnx_reader("Concat")
def _concat(node: Any, reading: Reading) -> None:
    rank = len(reading.dims(node.input[0]))
    reading.op("concat", {"X": list(node.input)}, {"Out": node.output[0]}, axis=attribute(node, "axis") % rank)


@onnx_reader("Split")
def _split(node: Any, reading: Reading) -> None:
    dims = reading.dims(node.input[0])
    axis = attribute(node, "axis", 0) % len(dims)
    count = len(node.output)
    if len(node.input) > 1 and node.input[1]:
        attrs: dict[str, object] = {"sections": reading.ints(node.input[1], "its sizes"), "num": 0}
    elif dims[axis] < 0 or dims[axis] % count:
        raise Refused(f"its parts are not alike: {count} of {dims[axis]} elements")
    else:
        attrs = {"num": count}
    reading.op("split", {"X": node.input[0]}, {"Out": list(node.output)}, axis=axis, **attrs)


@onnx_reader("Slice")
def _slice(node: Any, reading: Reading) -> None:
    names = [*node.input[1:], "", ""]
    starts, ends = (reading.ints(name, "where it cuts") for name in names[:2])
    axes = reading.ints(names[2], "its axes") if names[2] else [*range(len(starts))]
    steps = reading.ints(names[3], "its steps") if names[3] else [1] * len(starts)
    if min(steps, default=1) < 1:
        raise Refused("it has a step below 0")
    attrs: dict[str, object] = {
        "axes": positive(axes, len(reading.dims(node.input[0]))),
        "starts": [max(min(start, _FAR), -_FAR) for start in starts],
        "ends": [max(min(end, _FAR), -_FAR) for end in ends],
    }
    if set(steps) <= {1}:
        reading.op("slice", {"Input": node.input[0]}, {"Out": node.output[0]}, **attrs)
    else:
        reading.op("strided_slice", {"Input": node.input[0]}, {"Out": node.output[0]}, strides=steps, **attrs)


@onnx_reader("Gather")
def _gather(node: Any, reading: Reading) -> None:
    (data, index), out = node.input, node.output[0]
    dims = reading.dims(data)
    axis = attribute(node, "axis", 0) % len(dims)
    known = reading.known.get(index)
    if known is not None and known.ndim == 0 and int(known) >= 0:
        at = int(known)
        attrs = {"axes": [axis], "starts": [at], "ends": [at + 1], "decrease_axis": [axis]}
        reading.op("slice", {"Input": data}, {"Out": out}, **attrs)
    elif axis == 0 and reading.is_weight(data) and len(dims) == 2:
        reading.op("lookup_table_v2", {"W": data, "Ids": index}, {"Out": out})
    elif axis == 0 and len(reading.dims(index)) == 1:
        reading.op("gather", {"X": data, "Index": index}, {"Out": out})
    else:
        raise Refused(f"it takes elements along the dim {axis} of {len(dims)}; Fluid's gather takes rows")


@onnx_reader("ConstantOfShape")
def _constant_of_shape(node: Any, reading: Reading) -> None:
    """A constant with a dim that is known at run time only; all others are computed before."""
    dims = [int(number) for number in reading.constant(node.input[0], "its shape")]
    unknown = [at for at, number in enumerate(dims) if reading.unknown_dim(number)]
    value = attribute(node, "value")
    array = np.zeros(1, "float32") if value is None else _array(value)
    if len(unknown) != 1 or array.dtype.name not in ("float32", "float64", "int32", "int64"):
        raise Refused("several of its dims are known at run time only")
    like, axis = reading.unknown_dim(dims[unknown[0]]) or ("", 0)
    dims[unknown[0]] = -1
    kinds = {"float32": 5, "float64": 6, "int32": 2, "int64": 3}
    attrs = {"shape": dims, "input_dim_idx": axis, "output_dim_idx": unknown[0], "dtype": kinds[array.dtype.name]}
    reading.op(
        "fill_constant_batch_size_like", {"Input": like}, {"Out": node.output[0]}, value=float(array[0]), **attrs
    )


def _array(tensor: Any) -> Any:
    from pstranspile.interop.onnx.library import library

    return library("onnx.numpy_helper").to_array(tensor)


@onnx_reader("ArgMax", "ArgMin")
def _arg_max(node: Any, reading: Reading) -> None:
    if attribute(node, "select_last_index", 0):
        raise Refused("it takes the last of equal elements")
    op_type = "arg_max" if node.op_type == "ArgMax" else "arg_min"
    keep = bool(attribute(node, "keepdims", 1))
    attrs = {"axis": attribute(node, "axis", 0), "keepdims": keep}
    reading.op(op_type, {"X": node.input[0]}, {"Out": node.output[0]}, **attrs)


@onnx_reader("Pad")
def _pad(node: Any, reading: Reading) -> None:
    if attribute(node, "mode", "constant") != "constant" or (len(node.input) > 3 and node.input[3]):
        raise Refused("it pads in another way than with a constant at all dims")
    pads, rank = reading.ints(node.input[1], "its padding"), len(reading.dims(node.input[0]))
    value = float(reading.constant(node.input[2], "its value").reshape(())) if node.input[2:] and node.input[2] else 0.0
    sizes = [size for pair in zip(pads[:rank], pads[rank:], strict=True) for size in pair]
    reading.op("pad", {"X": node.input[0]}, {"Out": node.output[0]}, paddings=sizes, pad_value=value)
