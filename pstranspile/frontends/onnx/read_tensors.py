"""Reads nodes about dims and elements as Fluid's ops: other dims, parts, selection by index, constants of any size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pstranspile.frontends.layers.draft import Refused
from pstranspile.frontends.onnx.models import array_of
from pstranspile.frontends.onnx.reading import GraphReading, attribute, axes_of, is_code, onnx_reader, positive
from pstranspile.ir.types import DType

# Values of other dims: reshaped, and repeated up to dims, which may be known at run time only.

FAR = (1 << 31) - (1 << 7)
"""An index beyond the end of any dim, which attributes of f32 hold exactly."""


def with_x_shape(op_type: str, source: str, out: str, reading: GraphReading, **attrs: object) -> None:
    """Appends an op such as reshape2, which also stores the old dims in XShape."""
    reading.op(op_type, {"X": source}, {"Out": out, "XShape": reading.temp(out)}, **attrs)


def sizes_of(value: str, reading: GraphReading) -> list[int]:
    """The dims of a value: numbers, or codes of dims that are known only at run time."""
    return [reading.size(value, axis) for axis in range(len(reading.dims(value)))]


def reshape(source: str, out: str, asked: Sequence[int], reading: GraphReading) -> None:
    """Sets `out` to `source` with these dims: numbers, codes, 0 for the same dim as in the source, -1 for the rest."""
    if not asked:
        reading.scalars.add(out)
    dims = sizes_of(source, reading)
    wanted = [0 if is_code(dim) and dims[at : at + 1] == [dim] else dim for at, dim in enumerate(asked)] or [1]
    codes = [at for at, dim in enumerate(wanted) if is_code(dim)]
    if len(codes) == 1 and -1 not in wanted:
        wanted[codes[0]] = -1
    elif codes:
        shape = [-1 if is_code(dim) else dim for dim in wanted]
        parts = [reading.size_variable(dim) for dim in wanted]
        made = {"Out": out, "XShape": reading.temp(out)}
        reading.op("reshape2", {"X": source, "ShapeTensor": parts}, made, shape=shape)
        return
    with_x_shape("reshape2", source, out, reading, shape=wanted)


def transpose(source: str, out: str, order: Sequence[int], reading: GraphReading) -> None:
    """Sets `out` to `source` with its dims in this order."""
    with_x_shape("transpose2", source, out, reading, axis=list(order))


def swap_dims(source: str, first: int, second: int, reading: GraphReading) -> str:
    """A value that is `source` with two dims swapped; `source` itself if they are the same dim."""
    if first == second:
        return source
    order = [*range(len(reading.dims(source)))]
    order[first], order[second] = second, first
    transpose(source, made := reading.temp(source), order, reading)
    return made


def expand(source: str, out: str, target: Sequence[int], reading: GraphReading) -> None:
    """Sets `out` to `source`, repeated along dims of size 1 to the dims `target`; larger dims of `source` stay."""
    dims = sizes_of(source, reading) or [1]
    target = [*[1] * (len(dims) - len(target)), *target]
    if added := len(target) - len(dims):
        wide = reading.temp(source)
        with_x_shape("unsqueeze2", source, wide, reading, axes=[*range(added)])
        source, dims = wide, [*[1] * added, *dims]
    times = [_times(dim, wanted, reading) for dim, wanted in zip(dims, target, strict=True)]
    if all(count == 1 for count in times):
        reading.alias(out, source)
        return
    listed = [-1 if is_code(count) else count for count in times]
    if -1 in listed:
        parts = [reading.size_variable(count) for count in times]
        reading.op("expand", {"X": source, "expand_times_tensor": parts}, {"Out": out}, expand_times=listed)
    else:
        reading.op("expand", {"X": source}, {"Out": out}, expand_times=listed)


def _times(dim: int, wanted: int, reading: GraphReading) -> int:
    if wanted in (1, dim):
        return 1
    if dim == 1:
        return wanted
    if not is_code(dim) and not is_code(wanted):
        raise Refused(f"a dim of {dim} elements can't be repeated to {wanted}")
    sizes = reading.sizes
    return sizes.binary_result("Div", sizes.binary_result("Max", dim, wanted), dim)


def common(values: Sequence[str], reading: GraphReading, *, but: int = 0) -> list[int]:
    """The dims to which these values can be broadcast together, without the last `but` dims."""
    dims = [held[: len(held) - but] for held in (sizes_of(value, reading) for value in values)]
    rank = max(map(len, dims))
    result: list[int] = []
    for at in range(rank):
        column = [held[at - rank] for held in dims if at >= rank - len(held)]
        wanted = [size for size in dict.fromkeys(column) if size != 1]
        plain = [size for size in wanted if not is_code(size)]
        made = plain[0] if plain else wanted[0] if wanted else 1
        for size in wanted if not plain else []:
            made = reading.sizes.binary_result("Max", made, size)
        result.append(made)
    return result


def of_one_shape(values: Sequence[str], reading: GraphReading) -> list[str]:
    """The values, each broadcast to their common dims."""
    target = common(values, reading)
    result: list[str] = []
    for value in values:
        if sizes_of(value, reading) == target:
            result.append(value)
        else:
            expand(value, made := reading.temp(value), target, reading)
            result.append(made)
    return result


# Indices, which ONNX may count from the end of a dim, converted to Fluid's, which count from its beginning.


def nonnegative_indices(index: str, sizes: Sequence[int], reading: GraphReading, *, inside: bool = True) -> str:
    """Indices along a dim, or rows of indices along several dims, of these sizes (or codes), counted from the
    beginning.

    Known indices are converted now; for indices that are computed at run time ops are appended. Raises Refused for
    known ones outside of the dim, unless this is allowed (not `inside`), as for numbers of classes that name none.
    """
    known = reading.known_values.get(reading.resolve_alias(index))
    if known is None or reading.is_computed(index):
        return _by_ops(index, sizes, reading)
    if known.size == 0:
        return index
    if any(map(is_code, sizes)):
        return index if known.min() >= 0 else _by_ops(index, sizes, reading)
    ends = np.array(sizes)
    if inside and ((known >= ends) | (known < -ends)).any():
        raise Refused(f"its positions reach from {known.min()} to {known.max()} in dims of {list(sizes)} elements")
    if known.min() >= 0:
        return index
    reading.known_values[made := reading.temp(index)] = np.where(known < 0, known + ends, known)
    return made


def _by_ops(index: str, sizes: Sequence[int], reading: GraphReading) -> str:
    if reading.tensor(index).dtype not in (DType.INT32, DType.INT64):
        index = reading.as_type(index, DType.INT64)
    kind = reading.tensor(index).dtype
    zeros = reading.op_result("fill_zeros_like", index, X=index)
    below = reading.op_result("less_than", index, X=index, Y=zeros)
    moved = reading.op_result("elementwise_add", index, X=index, Y=_sizes_variable(index, sizes, kind, reading))
    made = reading.op_result("where", index, Condition=below, X=moved, Y=index)
    reading.draft.stop_gradient.update((zeros, below, moved, made))
    if reading.is_scalar(index):
        reading.scalars.add(made)
    return made


def _sizes_variable(index: str, sizes: Sequence[int], kind: DType, reading: GraphReading) -> str:
    """A variable that holds these sizes, along one dim."""
    if len(sizes) == 1 and not is_code(sizes[0]):
        fill(
            made := reading.temp(index), [1], np.array([sizes[0]], "int32" if kind is DType.INT32 else "int64"), reading
        )
        return made
    reading.known_values[made := reading.temp(index)] = np.array(sizes, "int64")
    return reading.as_type(made, kind)


# Nodes that cut values and join them as Fluid's ops: slices, parts, padding.


@onnx_reader("Concat")
def _concat(node: Any, reading: GraphReading) -> None:
    axis = attribute(node, "axis") % len(reading.dims(node.input[0]))
    reading.op("concat", {"X": list(node.input)}, {"Out": node.output[0]}, axis=axis)


@onnx_reader("Split")
def _split(node: Any, reading: GraphReading) -> None:
    dims = reading.dims(node.input[0])
    axis: int = attribute(node, "axis", 0) % len(dims)
    whole, count = dims[axis], len(node.output)
    if len(node.input) > 1 and node.input[1]:
        sections = reading.ints(node.input[1], "its sizes")
    elif whole < 0:
        raise Refused(f"how many elements each of its {count} parts has is known at run time only")
    else:
        part = -(-whole // count)
        sections = [max(min(part, whole - part * at), 0) for at in range(count)]
    if count == 1:
        reading.alias(node.output[0], node.input[0])
        return
    attrs: dict[str, object] = {"num": count} if len({*sections}) == 1 else {"sections": sections, "num": 0}
    reading.op("split", {"X": node.input[0]}, {"Out": list(node.output)}, axis=axis, **attrs)


# Slices


@onnx_reader("Slice")
def _slice(node: Any, reading: GraphReading) -> None:
    source, out = node.input[0], node.output[0]
    names = [*node.input[1:], "", ""]
    starts, ends = (reading.numbers(name, "where it cuts") for name in names[:2])
    axes = reading.ints(names[2], "its axes") if names[2] else [*range(len(starts))]
    steps = reading.ints(names[3], "its steps") if names[3] else [1] * len(starts)
    axes = positive(axes, len(reading.dims(source)))
    if 0 in steps:
        raise Refused("it has a step of 0")
    if min(steps, default=1) < 0:
        source = _reverse_negative_steps(source, axes, starts, ends, steps, reading)
    sizes = sizes_of(source, reading)
    ends = [FAR if is_code(end) and end == sizes[axis] else end for axis, end in zip(axes, ends, strict=True)]
    cut = [
        (axis, start, end, step)
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True)
        if (start, step) != (0, 1) or _ends_inside(end, sizes[axis])
    ]
    if cut:
        _append_slice(source, out, cut, reading)
    else:
        reading.alias(out, source)


def _ends_inside(end: int, size: int) -> bool:
    return end < FAR and (is_code(end) or is_code(size) or end < size)


def _reverse_negative_steps(
    source: str, axes: list[int], starts: list[int], ends: list[int], steps: list[int], reading: GraphReading
) -> str:
    """The source reversed along the axes with negative steps, whose bounds are changed to count in the
    new direction.
    """
    backwards = [at for at, step in enumerate(steps) if step < 0]
    for at in backwards:
        size = reading.size(source, axes[at])
        if any(map(is_code, (starts[at], ends[at]))) or (is_code(size) and not (starts[at] == -1 or starts[at] >= FAR)):
            raise Refused("it goes backwards between bounds that are known at run time only")
        if is_code(size):
            if ends[at] > -FAR:
                raise Refused("its step is negative and it has an end, over a dim whose size is known at run time only")
            starts[at], ends[at] = 0, FAR
        else:
            chosen = range(size)[slice(starts[at], ends[at] if ends[at] >= -size else None, steps[at])]
            starts[at] = size - 1 - chosen.start
            ends[at] = size - 1 - chosen.stop
        steps[at] = -steps[at]
    return reading.op_result("reverse", source, {"axis": [axes[at] for at in backwards]}, X=source)


def _append_slice(source: str, out: str, cut: Sequence[tuple[int, int, int, int]], reading: GraphReading) -> None:
    axes, starts, ends, steps = (list(column) for column in zip(*cut, strict=True))
    inputs: dict[str, Any] = {"Input": source}
    attrs: dict[str, object] = {"axes": axes}
    computed = any(map(is_code, (*starts, *ends)))
    for name, slot, numbers in (("starts", "StartsTensorList", starts), ("ends", "EndsTensorList", ends)):
        attrs[name] = [-1 if is_code(number) else max(min(number, FAR), -FAR) for number in numbers]
        if computed:
            bounds = [number if is_code(number) else max(number, -FAR) for number in numbers]
            inputs[slot] = [reading.size_variable(number) for number in bounds]
    if computed:
        attrs["infer_flags"] = [-1] * len(axes)
    if {*steps} == {1}:
        reading.op("slice", inputs, {"Out": out}, **attrs)
    else:
        reading.op("strided_slice", inputs, {"Out": out}, strides=steps, **attrs)


def part(source: str, axis: int, start: int, end: int, reading: GraphReading) -> str:
    """The elements of a value from `start` to `end` along an axis."""
    return reading.op_result("slice", source, {"axes": [axis], "starts": [start], "ends": [end]}, Input=source)


# Padding


@onnx_reader("Pad")
def _pad(node: Any, reading: GraphReading) -> None:
    source, out, mode = node.input[0], node.output[0], attribute(node, "mode", "constant")
    rank = len(reading.dims(source))
    pads, names = reading.ints(node.input[1], "its padding"), [*node.input[2:], "", ""]
    axes = positive(reading.ints(names[1], "its axes"), rank) if names[1] else [*range(rank)]
    sides = [(0, 0)] * rank
    for axis, before, after in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        sides[axis] = (before, after)
    source, sides = _crop_negative_padding(source, sides, reading)
    if not any(map(any, sides)):
        reading.alias(out, source)
    elif mode == "constant":
        value = float(reading.constant(names[0], "its value").reshape(())) if names[0] else 0.0
        paddings = [size for pair in sides for size in pair]
        reading.op("pad", {"X": source}, {"Out": out}, paddings=paddings, pad_value=value)
    elif mode in ("reflect", "edge") and rank == 4 and not any(map(any, sides[:2])):
        paddings = [size for pair in sides[2:] for size in pair]
        reading.op("pad2d", {"X": source}, {"Out": out}, paddings=paddings, mode=mode)
    else:
        for axis, (before, after) in enumerate(sides):
            source = _pad_with_own_elements(source, axis, before, after, mode, reading)
        reading.alias(out, source)


def _crop_negative_padding(
    source: str, sides: list[tuple[int, int]], reading: GraphReading
) -> tuple[str, list[tuple[int, int]]]:
    """(a value without the elements that negative padding removes, the remaining padding)."""
    for axis, (before, after) in enumerate(sides):
        if min(before, after) < 0:
            source = part(source, axis, max(-before, 0), min(after, 0) or FAR, reading)
    return source, [(max(before, 0), max(after, 0)) for before, after in sides]


def _pad_with_own_elements(source: str, axis: int, before: int, after: int, mode: str, reading: GraphReading) -> str:
    """A value extended at both ends of an axis with its own elements (mode reflect, edge or wrap), joined from parts of
    it.
    """
    if not before and not after:
        return source
    size = reading.dims(source)[axis]
    if 0 <= size < max(before, after) + (mode == "reflect"):
        raise Refused(f"it pads {max(before, after)} elements to a dim of {size}, which is more than that has")
    parts = [source]
    if before:
        bounds = {"reflect": (1, before + 1), "edge": (0, 1), "wrap": (-before, FAR)}[mode]
        parts.insert(0, _end(part(source, axis, *bounds, reading), axis, before, mode, reading))
    if after:
        bounds = {"reflect": (-after - 1, -1), "edge": (-1, FAR), "wrap": (0, after)}[mode]
        parts.append(_end(part(source, axis, *bounds, reading), axis, after, mode, reading))
    return reading.op_result("concat", source, {"axis": axis}, X=parts)


def _end(source: str, axis: int, size: int, mode: str, reading: GraphReading) -> str:
    if mode == "wrap":
        return source
    if mode == "reflect":
        return reading.op_result("reverse", source, {"axis": [axis]}, X=source)
    made, sizes = reading.temp(source), sizes_of(source, reading)
    expand(source, made, [*sizes[:axis], size, *sizes[axis + 1 :]], reading)
    return made


@onnx_reader("DepthToSpace", "SpaceToDepth")
def _depth_to_space(node: Any, reading: GraphReading) -> None:
    source, out, size = node.input[0], node.output[0], attribute(node, "blocksize")
    deep = node.op_type == "DepthToSpace"
    if deep and attribute(node, "mode", "DCR") == "CRD":
        reading.op("pixel_shuffle", {"X": source}, {"Out": out}, upscale_factor=size)
        return
    batch, *sizes = sizes_of(source, reading)
    channels, high, wide = sizes
    if is_code(channels):
        raise Refused("how many channels its image has is known at run time only")
    changed = [_by(dim, size, reading, multiply=deep) for dim in (high, wide)]
    if deep:
        order, dims = (0, 3, 4, 1, 5, 2), [batch, size, size, channels // size**2, high, wide]
    else:
        order, dims = (0, 3, 5, 1, 2, 4), [batch, channels, changed[0], size, changed[1], size]
    split, turned = reading.temp(source), reading.temp(source)
    reshape(source, split, dims, reading)
    transpose(split, turned, order, reading)
    reshape(turned, out, [batch, channels // size**2 if deep else channels * size**2, *changed], reading)


def _by(dim: int, size: int, reading: GraphReading, *, multiply: bool) -> int:
    if is_code(dim):
        return reading.sizes.binary_result("Mul" if multiply else "Div", dim, size)
    return dim * size if multiply else dim // size


# Nodes that select elements by index as Fluid's ops: tables, positions, the largest, one-hot rows.


@onnx_reader("Gather")
def _gather(node: Any, reading: GraphReading) -> None:
    (data, index), out = node.input, node.output[0]
    dims = reading.dims(data)
    axis = attribute(node, "axis", 0) % len(dims)
    known = reading.known_values.get(reading.resolve_alias(index))
    size = reading.size(data, axis)
    if known is not None and known.ndim == 0 and not reading.is_computed(index):
        nonnegative_indices(index, [size], reading)
        at = int(known)
        attrs = {"axes": [axis], "starts": [at], "ends": [at + 1 if at != -1 else (1 << 31) - 1]}
        if len(dims) == 1:
            reading.scalars.add(out)
        reading.op("slice", {"Input": data}, {"Out": out}, decrease_axis=[axis], **attrs)
    elif axis == 0 and reading.is_weight(data) and len(dims) == 2 and known is None and reading.dims(index):
        rows = nonnegative_indices(index, [size], reading)
        reading.op("lookup_table_v2", {"W": data, "Ids": reading.as_type(rows, DType.INT64)}, {"Out": out})
    else:
        _gather_rows(data, nonnegative_indices(index, [size], reading), out, axis, reading)


def _gather_rows(data: str, index: str, out: str, axis: int, reading: GraphReading) -> None:
    """Gather: moves the axis to the front, selects rows by the flattened index, and restores the order of the dims."""
    sizes, chosen = sizes_of(data, reading), sizes_of(index, reading)
    flat = index
    if len(chosen) != 1 and not reading.is_scalar(index):
        reshape(index, flat := reading.temp(index), [-1], reading)
    rows = data
    if axis:
        transpose(data, rows := reading.temp(data), [axis, *(at for at in range(len(sizes)) if at != axis)], reading)
    reshaped, turned = len(chosen) != 1, bool(axis and chosen)
    picked = reading.temp(out) if reshaped or turned else out
    reading.op("gather", {"X": rows, "Index": flat}, {"Out": picked}, overwrite=False)
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
def _gather_nd(node: Any, reading: GraphReading) -> None:
    if attribute(node, "batch_dims", 0):
        raise Refused("it has batch_dims; Fluid's gather_nd has positions in all dims")
    (data, index), out = node.input, node.output[0]
    if len(reading.dims(index)) < 2:
        raise Refused("its positions are one row; Fluid's gather_nd has rows of them")
    index = nonnegative_indices(index, sizes_of(data, reading)[: reading.dims(index)[-1]], reading)
    reading.op("gather_nd", {"X": data, "Index": index}, {"Out": out})


@onnx_reader("GatherElements")
def _gather_elements(node: Any, reading: GraphReading) -> None:
    """GatherElements: from each row of a matrix, the elements that the same row of the index selects."""
    (data, index), out = node.input, node.output[0]
    rank = len(reading.dims(data))
    axis: int = attribute(node, "axis", 0) % rank
    sizes, wanted = sizes_of(data, reading), sizes_of(index, reading)
    for at, (one, other) in enumerate(zip(sizes, wanted, strict=True)):
        if at != axis and one != other and not is_code(one) and not is_code(other):
            data = part(data, at, 0, other, reading)
    picked_along(data, nonnegative_indices(index, [sizes[axis]], reading), axis, out, reading)


def picked_along(data: str, index: str, axis: int, out: str, reading: GraphReading) -> None:
    """Sets `out` to the elements of `data` at the indices along an axis; along the other axes, both have the same size.
    The axis is moved to the end for this.
    """
    rank, dims = len(reading.dims(data)), [*sizes_of(index, reading)]
    flat: list[str] = []
    for value in (data, index):
        last = swap_dims(value, axis, rank - 1, reading)
        if rank != 2:
            reshape(last, made := reading.temp(value), [-1, sizes_of(last, reading)[-1]], reading)
            last = made
        flat.append(last)
    picked = reading.temp(out) if rank != 2 or axis != rank - 1 else out
    reading.op("index_sample", {"X": flat[0], "Index": flat[1]}, {"Out": picked})
    if picked == out:
        return
    dims[axis], dims[-1] = dims[-1], dims[axis]
    if axis == rank - 1:
        reshape(picked, out, dims, reading)
        return
    reshape(picked, wide := reading.temp(out), dims, reading)
    reading.alias(out, swap_dims(wide, axis, rank - 1, reading))


@onnx_reader("Where")
def _where(node: Any, reading: GraphReading) -> None:
    condition, x, y = of_one_shape(node.input, reading)
    reading.op("where", {"Condition": condition, "X": x, "Y": y}, {"Out": node.output[0]})


# Sorted elements


@onnx_reader("TopK")
def _top_k(node: Any, reading: GraphReading) -> None:
    (source, count), outs = node.input, [*node.output, ""]
    rank, (k,) = len(reading.dims(source)), reading.numbers(count, "how many it takes")
    axis = attribute(node, "axis", -1) % rank
    given = swap_dims(source, axis, rank - 1, reading)
    largest = bool(attribute(node, "largest", 1))
    if not largest:
        given = reading.scaled(given, -1.0)
    values, indices = reading.temp(source), reading.temp(source)
    number = {"K": reading.size_variable(k)} if is_code(k) else {}
    reading.op("top_k", {"X": given, **number}, {"Out": values, "Indices": indices}, k=-1 if number else k)
    if not largest:
        values = reading.scaled(values, -1.0)
    for made, out in zip((values, indices), outs, strict=False):
        if out:
            reading.alias(out, swap_dims(made, axis, rank - 1, reading))


@onnx_reader("ArgMax", "ArgMin")
def _arg_max(node: Any, reading: GraphReading) -> None:
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
    turned = reading.op_result("reverse", source, {"axis": [axis]}, X=source)
    from_end = reading.op_result(op_type, out, {"axis": axis, "keepdims": keep}, X=turned)
    size = sizes_of(source, reading)[int(axis)]
    last = reading.as_type(reading.size_variable(reading.sizes.binary_result("Sub", size, 1)), DType.INT64)
    wide = reading.op_result("fill_zeros_like", out, X=from_end)
    wide = reading.op_result("elementwise_add", out, X=wide, Y=last)
    reading.op("elementwise_sub", {"X": wide, "Y": from_end}, {"Out": out})


@onnx_reader("OneHot")
def _one_hot(node: Any, reading: GraphReading) -> None:
    (index, depth, values), out = node.input, node.output[0]
    given, (off, on) = reading.constant(depth, "its depth"), reading.constant(values, "its values").reshape(-1)
    if reading.is_computed(depth) or given.size != 1 or given.dtype.kind not in "iuf":
        raise Refused(f"its depth is {depth}, which is no number that is known before it runs")
    count = int(given.reshape(()))
    rank = len(reading.dims(index))
    axis = attribute(node, "axis", -1) % (rank + 1)
    attrs = {"depth": count, "allow_out_of_range": True}
    classes = nonnegative_indices(reading.as_type(index, DType.INT64), [count], reading, inside=False)
    scaled = reading.op_result("one_hot_v2", out, attrs, X=classes)
    if (float(off), float(on)) != (0.0, 1.0):
        attrs = {"scale": float(on) - float(off), "bias": float(off)}
        scaled = reading.op_result("scale", out, attrs, X=scaled)
    kind = reading.kind_of_array(reading.constant(values, "its values"))
    made = reading.as_type(scaled, kind)
    if axis == rank:
        reading.alias(out, made)
    else:
        transpose(made, out, [*range(axis), rank, *range(axis, rank)], reading)


@onnx_reader("CumSum")
def _cumsum(node: Any, reading: GraphReading) -> None:
    rank = len(reading.dims(node.input[0]))
    (axis,) = positive(reading.ints(node.input[1], "its axis"), rank)
    attrs = {name: bool(attribute(node, name, 0)) for name in ("exclusive", "reverse")}
    reading.op("cumsum", {"X": node.input[0]}, {"Out": node.output[0]}, axis=axis, **attrs)


@onnx_reader("Trilu")
def _trilu(node: Any, reading: GraphReading) -> None:
    names = [*node.input, ""]
    diagonal = reading.ints(names[1], "its diagonal")[0] if names[1] else 0
    lower = not attribute(node, "upper", 1)
    reading.op("tril_triu", {"X": node.input[0]}, {"Out": node.output[0]}, diagonal=diagonal, lower=lower)


# Nodes that write elements to positions as Fluid's ops.


@onnx_reader("ScatterND")
def _scatter_nd(node: Any, reading: GraphReading) -> None:
    """ScatterND. Fluid adds to elements at positions; to replace elements, they are set to 0 before."""
    (data, index, updates), out = node.input, node.output[0]
    how = attribute(node, "reduction", "none")
    if how not in ("none", "add"):
        raise Refused(f"its reduction is {how}; Fluid's scatter_nd_add adds")
    index = nonnegative_indices(index, sizes_of(data, reading)[: reading.dims(index)[-1]], reading)
    if how == "none":
        zeros = reading.op_result("fill_zeros_like", out, X=data)
        ones = reading.op_result("fill_any_like", out, {"value": 1.0}, X=updates)
        hits = reading.op_result("scatter_nd_add", out, X=zeros, Index=index, Updates=ones)
        above = reading.op_result("greater_than", out, X=hits, Y=zeros)
        data = reading.op_result("where", out, Condition=above, X=zeros, Y=data)
        reading.draft.stop_gradient.update((zeros, ones, hits, above))
    reading.op("scatter_nd_add", {"X": data, "Index": index, "Updates": updates}, {"Out": out})


@onnx_reader("ScatterElements")
def _scatter_elements(node: Any, reading: GraphReading) -> None:
    (data, index, updates), out = node.input, node.output[0]
    how = attribute(node, "reduction", "none")
    if how not in ("none", "add") or len(reading.dims(data)) != 1:
        raise Refused("it puts elements along a dim of several; Fluid's scatter puts rows")
    index = nonnegative_indices(index, [reading.size(data, 0)], reading)
    flat = reading.temp(index)
    reshape(index, flat, [-1], reading)
    inputs = {"X": data, "Ids": flat, "Updates": updates}
    reading.op("scatter", inputs, {"Out": out}, overwrite=how == "none")


@onnx_reader("Identity", "Dropout")
def _identity(node: Any, reading: GraphReading) -> None:
    if any(node.output[1:]):
        raise Refused("its mask is asked for")
    reading.alias(node.output[0], node.input[0])


@onnx_reader("Reshape")
def _reshape(node: Any, reading: GraphReading) -> None:
    source, shape = node.input
    if reading.resolve_alias(shape) not in reading.known_values:
        _reshape_by_value(node, reading)
        return
    asked = reading.numbers(shape, "its shape")
    if attribute(node, "allowzero", 0) and 0 in asked:
        raise Refused("its shape has a dim of size 0")
    dims = sizes_of(source, reading)
    if any(size == 0 and at >= len(dims) for at, size in enumerate(asked)):
        raise Refused("its shape has a dim of its input that this has not")
    reshape(source, node.output[0], asked, reading)


def _reshape_by_value(node: Any, reading: GraphReading) -> None:
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
def _flatten(node: Any, reading: GraphReading) -> None:
    axis = attribute(node, "axis", 1)
    rank = len(reading.dims(node.input[0]))
    with_x_shape("flatten2", node.input[0], node.output[0], reading, axis=axis + rank if axis < 0 else axis)


@onnx_reader("Transpose")
def _transpose(node: Any, reading: GraphReading) -> None:
    rank = len(reading.dims(node.input[0]))
    if rank == 0:
        reading.alias(node.output[0], node.input[0])
    else:
        transpose(node.input[0], node.output[0], attribute(node, "perm", range(rank)[::-1]), reading)


@onnx_reader("Squeeze")
def _squeeze(node: Any, reading: GraphReading) -> None:
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
def _unsqueeze(node: Any, reading: GraphReading) -> None:
    source, out, axes = node.input[0], node.output[0], axes_of(node, reading) or []
    axes = sorted(positive(axes, len(reading.dims(source)) + len(axes)))
    if reading.is_scalar(source):
        axes = axes[1:]
    if axes:
        with_x_shape("unsqueeze2", source, out, reading, axes=axes)
    else:
        reading.op("assign", {"X": source}, {"Out": out})


@onnx_reader("Expand")
def _expand(node: Any, reading: GraphReading) -> None:
    expand(node.input[0], node.output[0], reading.numbers(node.input[1], "its shape"), reading)


@onnx_reader("Tile")
def _tile(node: Any, reading: GraphReading) -> None:
    times = reading.numbers(node.input[1], "how often it repeats")
    listed = [-1 if is_code(count) else count for count in times]
    inputs: dict[str, Any] = {"X": node.input[0]}
    if any(map(is_code, times)):
        inputs["expand_times_tensor"] = [reading.size_variable(count) for count in times]
    reading.op("expand", inputs, {"Out": node.output[0]}, expand_times=listed)


# New values

_FILLED = {kind: kind.value for kind in (DType.FP32, DType.FP64, DType.INT32, DType.INT64, DType.BOOL, DType.FP16)}


@onnx_reader("ConstantOfShape")
def _constant_of_shape(node: Any, reading: GraphReading) -> None:
    """A constant with a dim that is known only at run time, or with very many elements; other constants are computed
    before.
    """
    dims = reading.numbers(node.input[0], "its shape")
    value = attribute(node, "value")
    fill(node.output[0], dims, np.zeros(1, "float32") if value is None else array_of(value), reading)


def fill(out: str, dims: list[int], value: Any, reading: GraphReading) -> None:
    """Sets `out` to a constant with dims `dims`, which may contain codes."""
    kind = next((held for held in _FILLED if held.text == _text(value)), None)
    if kind is None:
        raise Refused(f"it makes elements of type {value.dtype.name}")
    number = value.reshape(-1)[0]
    written = str(int(number)) if kind in (DType.INT64, DType.INT32, DType.BOOL) else repr(float(number))
    attrs: dict[str, Any] = {"dtype": kind.value, "value": float(number), "str_value": written}
    attrs["shape"] = [-1 if is_code(dim) else dim for dim in dims]
    inputs = {"ShapeTensorList": [reading.size_variable(dim) for dim in dims]} if any(map(is_code, dims)) else {}
    reading.op("fill_constant", inputs, {"Out": out}, **attrs)
    reading.draft.stop_gradient.add(out)


def _text(value: Any) -> str:
    return {"float": "f", "int": "i"}.get(value.dtype.name.rstrip("0123456789"), "") + "".join(
        filter(str.isdigit, value.dtype.name)
    ) or value.dtype.name


@onnx_reader("Range")
def _range(node: Any, reading: GraphReading) -> None:
    bounds: list[str] = []
    for name in node.input:
        known = reading.known_values.get(reading.resolve_alias(name))
        if known is not None:
            bounds.append(reading.size_variable(int(known)) if known.dtype.kind == "i" else name)
        else:
            bounds.append(name)
    kinds = {reading.tensor(name).dtype for name in bounds}
    wanted = DType.INT64 if kinds <= {DType.INT32, DType.INT64} else kinds.pop()
    cast = [reading.as_type(name, wanted) for name in bounds]
    out = node.output[0]
    reading.op("range", dict(zip(("Start", "End", "Step"), cast, strict=True)), {"Out": out})
    reading.draft.stop_gradient.add(out)


@onnx_reader("EyeLike")
def _eye_like(node: Any, reading: GraphReading) -> None:
    rows, columns = reading.dims(node.input[0])
    if min(rows, columns) < 0 or attribute(node, "k", 0):
        raise Refused("its diagonal is not the main one, or its dims are known at run time only")
    number = attribute(node, "dtype")
    kind = reading.tensor(node.input[0]).dtype if number is None else reading.kind(number, node.output[0])
    reading.op("eye", {}, {"Out": node.output[0]}, num_rows=rows, num_columns=columns, dtype=kind.value)


@onnx_reader("Cast", "CastLike")
def _cast(node: Any, reading: GraphReading) -> None:
    out = node.output[0]
    like = node.op_type == "CastLike"
    kind = reading.tensor(node.input[1]).dtype if like else reading.kind(attribute(node, "to"), out)
    reading.cast(node.input[0], out, kind)
