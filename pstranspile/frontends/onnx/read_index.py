"""Nodes that choose elements by index as Fluid's ops: tables, positions, the largest, one-hot rows."""

from __future__ import annotations

from typing import Any

from pstranspile.frontends.onnx.graph import Refused
from pstranspile.frontends.onnx.positions import counted, counted_classes, counted_rows
from pstranspile.frontends.onnx.read_parts import part
from pstranspile.frontends.onnx.reading import Reading, attribute, onnx_reader, positive
from pstranspile.frontends.onnx.reshaping import of_one_shape, reshape, sizes_of, swapped, transpose
from pstranspile.frontends.onnx.sizes import is_code
from pstranspile.ir.types import DType


@onnx_reader("Gather")
def _gather(node: Any, reading: Reading) -> None:
    (data, index), out = node.input, node.output[0]
    dims = reading.dims(data)
    axis = attribute(node, "axis", 0) % len(dims)
    known = reading.known.get(reading.resolved(index))
    size = reading.size(data, axis)
    if known is not None and known.ndim == 0 and not reading.is_computed(index):
        counted(index, size, reading)
        at = int(known)
        attrs = {"axes": [axis], "starts": [at], "ends": [at + 1 if at != -1 else (1 << 31) - 1]}
        if len(dims) == 1:
            reading.scalars.add(out)
        reading.op("slice", {"Input": data}, {"Out": out}, decrease_axis=[axis], **attrs)
    elif axis == 0 and reading.is_weight(data) and len(dims) == 2 and known is None and reading.dims(index):
        rows = counted(index, size, reading)
        reading.op("lookup_table_v2", {"W": data, "Ids": reading.as_type(rows, DType.INT64)}, {"Out": out})
    else:
        _gather_rows(data, counted(index, size, reading), out, axis, reading)


def _gather_rows(data: str, index: str, out: str, axis: int, reading: Reading) -> None:
    """Elements along an axis: that axis first, the rows that a flat index names, and the dims put back."""
    sizes, chosen = sizes_of(data, reading), sizes_of(index, reading)
    flat = index
    if len(chosen) != 1 and not reading.is_scalar(index):
        reshape(index, flat := reading.temp(index), [-1], reading)
    rows = data
    if axis:
        transpose(data, rows := reading.temp(data), [axis, *(at for at in range(len(sizes)) if at != axis)], reading)
    reshaped, turned = len(chosen) != 1, bool(axis and chosen)
    picked = reading.temp(out) if reshaped or turned else out
    reading.op("gather", {"X": rows, "Index": flat}, {"Out": picked})
    rest = [size for at, size in enumerate(sizes) if at != axis]
    wide = picked
    if reshaped:
        wide = reading.temp(out) if turned else out
        reshape(picked, wide, [*chosen, *rest], reading)
    if turned:
        count = len(chosen)
        order = [*range(count, count + axis), *range(count), *range(count + axis, count + len(rest))]
        transpose(wide, out, order, reading)


@onnx_reader("GatherND")
def _gather_nd(node: Any, reading: Reading) -> None:
    if attribute(node, "batch_dims", 0):
        raise Refused("it has batch_dims; Fluid's gather_nd has positions in all dims")
    (data, index), out = node.input, node.output[0]
    if len(reading.dims(index)) < 2:
        raise Refused("its positions are one row; Fluid's gather_nd has rows of them")
    index = counted_rows(index, sizes_of(data, reading)[: reading.dims(index)[-1]], reading)
    reading.op("gather_nd", {"X": data, "Index": index}, {"Out": out})


@onnx_reader("GatherElements")
def _gather_elements(node: Any, reading: Reading) -> None:
    """From each row of a matrix the elements at that row of the index; the axis is made the last one for this."""
    (data, index), out = node.input, node.output[0]
    rank = len(reading.dims(data))
    axis: int = attribute(node, "axis", 0) % rank
    sizes, wanted = sizes_of(data, reading), sizes_of(index, reading)
    for at, (one, other) in enumerate(zip(sizes, wanted, strict=True)):
        if at != axis and one != other and not is_code(one) and not is_code(other):
            data = part(data, at, 0, other, reading)
    flat: list[str] = []
    for value in (data, counted(index, sizes[axis], reading)):
        last = swapped(value, axis, rank - 1, reading)
        reshape(last, made := reading.temp(value), [-1, sizes_of(last, reading)[-1]], reading)
        flat.append(made)
    picked = reading.temp(out) if rank != 2 or axis != rank - 1 else out
    reading.op("index_sample", {"X": flat[0], "Index": flat[1]}, {"Out": picked})
    if picked == out:
        return
    dims = [*wanted]
    dims[axis], dims[-1] = dims[-1], dims[axis]
    if axis == rank - 1:
        reshape(picked, out, dims, reading)
        return
    reshape(picked, wide := reading.temp(out), dims, reading)
    reading.alias(out, swapped(wide, axis, rank - 1, reading))


@onnx_reader("Where")
def _where(node: Any, reading: Reading) -> None:
    condition, x, y = of_one_shape(node.input, reading)
    reading.op("where", {"Condition": condition, "X": x, "Y": y}, {"Out": node.output[0]})


# In order


@onnx_reader("TopK")
def _top_k(node: Any, reading: Reading) -> None:
    (source, count), outs = node.input, [*node.output, ""]
    rank, (k,) = len(reading.dims(source)), reading.numbers(count, "how many it takes")
    axis = attribute(node, "axis", -1) % rank
    given = swapped(source, axis, rank - 1, reading)
    largest = bool(attribute(node, "largest", 1))
    if not largest:
        given = reading.scaled(given, -1.0)
    values, indices = reading.temp(source), reading.temp(source)
    number = {"K": reading.measured(k)} if is_code(k) else {}
    reading.op("top_k", {"X": given, **number}, {"Out": values, "Indices": indices}, k=-1 if number else k)
    if not largest:
        values = reading.scaled(values, -1.0)
    for made, out in zip((values, indices), outs, strict=False):
        if out:
            reading.alias(out, swapped(made, axis, rank - 1, reading))


@onnx_reader("ArgMax", "ArgMin")
def _arg_max(node: Any, reading: Reading) -> None:
    source, out = node.input[0], node.output[0]
    op_type = "arg_max" if node.op_type == "ArgMax" else "arg_min"
    keep = bool(attribute(node, "keepdims", 1))
    dims = reading.dims(source)
    axis = attribute(node, "axis", 0) % max(len(dims), 1)
    if not keep and len(dims) == 1:
        reading.scalars.add(out)
    if not attribute(node, "select_last_index", 0) or not dims:
        reading.op(op_type, {"X": source}, {"Out": out}, axis=axis, keepdims=keep)
        return
    turned = reading.made("reverse", source, {"axis": [axis]}, X=source)
    from_end = reading.made(op_type, out, {"axis": axis, "keepdims": keep}, X=turned)
    size = sizes_of(source, reading)[int(axis)]
    last = reading.as_type(reading.measured(reading.sizes.combined("Sub", size, 1)), DType.INT64)
    wide = reading.made("fill_zeros_like", out, X=from_end)
    wide = reading.made("elementwise_add", out, X=wide, Y=last)
    reading.op("elementwise_sub", {"X": wide, "Y": from_end}, {"Out": out})


@onnx_reader("OneHot")
def _one_hot(node: Any, reading: Reading) -> None:
    (index, depth, values), out = node.input, node.output[0]
    given, (off, on) = reading.constant(depth, "its depth"), reading.constant(values, "its values").reshape(-1)
    if reading.is_computed(depth) or given.size != 1 or given.dtype.kind not in "iuf":
        raise Refused(f"its depth is {depth}, which is no number that is known before it runs")
    count = int(given.reshape(()))
    rank = len(reading.dims(index))
    axis = attribute(node, "axis", -1) % (rank + 1)
    attrs = {"depth": count, "allow_out_of_range": True}
    classes = counted_classes(reading.as_type(index, DType.INT64), count, reading)
    scaled = reading.made("one_hot_v2", out, attrs, X=classes)
    if (float(off), float(on)) != (0.0, 1.0):
        attrs = {"scale": float(on) - float(off), "bias": float(off)}
        scaled = reading.made("scale", out, attrs, X=scaled)
    kind = reading.kind_of_array(reading.constant(values, "its values"))
    made = reading.as_type(scaled, kind)
    if axis == rank:
        reading.alias(out, made)
    else:
        transpose(made, out, [*range(axis), rank, *range(axis, rank)], reading)


@onnx_reader("CumSum")
def _cumsum(node: Any, reading: Reading) -> None:
    rank = len(reading.dims(node.input[0]))
    (axis,) = positive(reading.ints(node.input[1], "its axis"), rank)
    attrs = {name: bool(attribute(node, name, 0)) for name in ("exclusive", "reverse")}
    reading.op("cumsum", {"X": node.input[0]}, {"Out": node.output[0]}, axis=axis, **attrs)


@onnx_reader("Trilu")
def _trilu(node: Any, reading: Reading) -> None:
    names = [*node.input, ""]
    diagonal = reading.ints(names[1], "its diagonal")[0] if names[1] else 0
    lower = not attribute(node, "upper", 1)
    reading.op("tril_triu", {"X": node.input[0]}, {"Out": node.output[0]}, diagonal=diagonal, lower=lower)
