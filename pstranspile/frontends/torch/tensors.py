"""ATen operators on the shape of tensors and the order of their elements as ops of a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pstranspile.frontends.layers.draft import Refused
from pstranspile.frontends.onnx.read_tensors import (
    FAR,
    expand,
    nonnegative_indices,
    of_one_shape,
    picked_along,
    reshape,
    sizes_of,
    swap_dims,
    transpose,
    with_x_shape,
)
from pstranspile.frontends.onnx.reading import is_code
from pstranspile.frontends.torch.elements import axes_of, compare, evenly, reduce_axes, share_gradient
from pstranspile.frontends.torch.tracing import FLOATS, Tracing, argument, aten, dtype_of
from pstranspile.ir.types import DType

# Shapes.


def reshape_or_alias(x: str, out: str, dims: Sequence[int], tracing: Tracing) -> None:
    """`out` is `x` reshaped to these dims: numbers, or codes of numbers that are known at run time only."""
    if list(dims) == sizes_of(x, tracing):
        tracing.alias(out, x)
    else:
        reshape(x, out, dims, tracing)


@aten("view", "reshape", "_unsafe_view", "flatten", "unflatten", "view_as", "reshape_as")
def _view(node: Any, tracing: Tracing, out: str) -> None:
    reshape_or_alias(tracing.value(node.args[0]), out, tracing.shape_of(node.meta["val"], out), tracing)


@aten("squeeze", "unsqueeze")
def _squeeze(node: Any, tracing: Tracing, out: str) -> None:
    x = tracing.value(node.args[0])
    rank, made = len(tracing.dims(x)), len(node.meta["val"].shape)
    if node.target.__name__.startswith("unsqueeze"):
        axis = node.args[1] % (rank + 1)
        if not rank:
            tracing.alias(out, x)
            tracing.scalars.discard(out)
            reshape(x, out, [1], tracing)
        else:
            with_x_shape("unsqueeze2", x, out, tracing, axes=[axis])
        return
    sizes = sizes_of(x, tracing)
    axes = [axis for axis in axes_of(argument(node, 1, "dim"), rank) if sizes[axis] == 1]
    if not axes:
        tracing.alias(out, x)
    elif made == 0:
        reshape_or_alias(x, out, [], tracing)
    else:
        with_x_shape("squeeze2", x, out, tracing, axes=axes)


@aten("permute", "transpose", "t", "numpy_T", "swapaxes")
def _permute(node: Any, tracing: Tracing, out: str) -> None:
    kind, x = node.target.__name__.split(".")[0], tracing.value(node.args[0])
    rank = len(tracing.dims(x))
    order = [*range(rank)]
    if kind == "permute":
        order = [axis % rank for axis in node.args[1]]
    elif kind in ("t", "numpy_T"):
        order.reverse()
    else:
        first, second = (axis % rank for axis in node.args[1:])
        order[first], order[second] = second, first
    if order == sorted(order):
        tracing.alias(out, x)
    else:
        transpose(x, out, order, tracing)


@aten("expand", "expand_as", "broadcast_to")
def _expand(node: Any, tracing: Tracing, out: str) -> None:
    expand(tracing.value(node.args[0]), out, tracing.shape_of(node.meta["val"], out), tracing)


@aten("broadcast_tensors")
def _broadcast(node: Any, tracing: Tracing, out: str) -> None:
    made: list[str | None] = []
    for arg, value in zip(node.args[0], node.meta["val"], strict=True):
        name = tracing.temp(out)
        tracing.note(name, value)
        expand(tracing.value(arg), name, tracing.shape_of(value, name), tracing)
        made.append(name)
    tracing.parts[node.name] = made


@aten("repeat", "tile")
def _repeat(node: Any, tracing: Tracing, out: str) -> None:
    x, times = tracing.value(node.args[0]), tracing.numbers_of(node.args[1])
    missing = len(times) - max(len(tracing.dims(x)), 1)  # a value without dims is stored with one dim of 1
    if missing > 0:
        with_x_shape("unsqueeze2", x, wide := tracing.temp(x), tracing, axes=[*range(missing)])
        x = wide
    append_repeat(x, out, times, tracing)


def append_repeat(x: str, out: str, times: Sequence[int], tracing: Tracing) -> None:
    """`out` is `x` repeated `times[axis]` times along each axis."""
    listed = [-1 if is_code(count) else count for count in times]
    inputs: dict[str, Any] = {"X": x}
    if -1 in listed:
        inputs["expand_times_tensor"] = [tracing.size_variable(count) for count in times]
    tracing.op("expand", inputs, {"Out": out}, expand_times=listed)


@aten("repeat_interleave.self_int")
def _interleave(node: Any, tracing: Tracing, out: str) -> None:
    x, times, axis = tracing.value(node.args[0]), tracing.number_of(node.args[1]), int(argument(node, 2, "dim"))
    sizes = sizes_of(x, tracing)
    axis %= len(sizes)
    with_x_shape("unsqueeze2", x, wide := tracing.temp(x), tracing, axes=[axis + 1])
    counts = [1] * (len(sizes) + 1)
    counts[axis + 1] = times
    append_repeat(wide, many := tracing.temp(x), counts, tracing)
    reshape(many, out, tracing.shape_of(node.meta["val"], out), tracing)


# Concatenation and slices.


@aten("cat", "concat")
def _cat(node: Any, tracing: Tracing, out: str) -> None:
    kind = dtype_of(node.meta["val"].dtype)
    names = [tracing.as_type(tracing.value(arg), kind) for arg in node.args[0] if not _is_nothing(arg)]
    axis = argument(node, 1, "dim", 0) % len(node.meta["val"].shape)
    tracing.op("concat", {"X": names}, {"Out": out}, axis=axis)


def _is_nothing(node: Any) -> bool:
    """Whether a value is the list without elements that torch leaves out of a concatenation."""
    shape = node.meta["val"].shape
    return len(shape) == 1 and isinstance(shape[0], int) and shape[0] == 0


@aten("stack")
def _stack(node: Any, tracing: Tracing, out: str) -> None:
    names = [tracing.value(arg) for arg in node.args[0]]
    if not tracing.dims(names[0]):
        tracing.op("concat", {"X": names}, {"Out": out}, axis=0)
        return
    axis = argument(node, 1, "dim", 0) % len(node.meta["val"].shape)
    tracing.op("stack", {"X": names}, {"Y": out}, axis=axis)


@aten("split", "split_with_sizes", "chunk", "tensor_split")
def _split(node: Any, tracing: Tracing, out: str) -> None:
    x, values = tracing.value(node.args[0]), node.meta["val"]
    axis = argument(node, 2, "dim", 0) % len(tracing.dims(x))
    sizes = [value.shape[axis] for value in values]
    if any(not isinstance(size, int) for size in sizes):
        _split_rows(node, x, axis, out, tracing)
        return
    if is_code(tracing.size(x, axis)):
        raise Refused("it cuts the rows of the batch into parts of the size that the example has")
    names = [tracing.temp(out) for _ in sizes]
    for name, value in zip(names, values, strict=True):
        tracing.note(name, value)
    if len(names) == 1:
        tracing.alias(names[0], x)
    else:
        attrs = {"num": len(sizes)} if len({*sizes}) == 1 else {"sections": sizes, "num": 0}
        tracing.op("split", {"X": x}, {"Out": names}, axis=axis, **attrs)
    tracing.parts[node.name] = [*names]


def _split_rows(node: Any, x: str, axis: int, out: str, tracing: Tracing) -> None:
    """Parts of a size that the batch decides. They are as many as in the graph, which torch has a guard for."""
    values, kind, given = node.meta["val"], node.target.__name__, node.args[1]
    if not kind.startswith(("split.", "split_with_sizes.")):
        raise Refused("it cuts the rows of the batch into a number of parts that the size of the batch decides")
    listed = kind.startswith("split_with_sizes.")
    sizes = tracing.numbers_of(given if listed else [given] * len(values))
    names: list[str | None] = []
    start = 0
    for at, (value, size) in enumerate(zip(values, sizes, strict=True)):
        end = tracing.size(x, axis) if at + 1 == len(values) else tracing.integer("Add", start, size)
        name = tracing.temp(out)
        numbers = {"StartsTensorList": start, "EndsTensorList": end}
        tracing.op(
            "slice",
            {"Input": x, **{slot: [tracing.size_variable(number)] for slot, number in numbers.items()}},
            {"Out": name},
            axes=[axis],
            starts=[-1],
            ends=[-1],
        )
        tracing.note(name, value)
        names.append(name)
        start = end
    tracing.parts[node.name] = names


@aten("unbind")
def _unbind(node: Any, tracing: Tracing, out: str) -> None:
    x, values = tracing.value(node.args[0]), node.meta["val"]
    rank = len(tracing.dims(x))
    axis = argument(node, 1, "dim", 0) % rank
    names = [tracing.temp(out) for _ in values]
    for name, value in zip(names, values, strict=True):
        tracing.note(name, value)
    if rank == 1:
        for at, name in enumerate(names):
            tracing.op("slice", {"Input": x}, {"Out": name}, axes=[0], starts=[at], ends=[at + 1])
    else:
        tracing.op("unstack", {"X": x}, {"Y": names}, axis=axis, num=len(names))
    tracing.parts[node.name] = [*names]


@aten("slice", "narrow")
def _slice(node: Any, tracing: Tracing, out: str) -> None:
    x = tracing.value(node.args[0])
    axis = argument(node, 1, "dim", 0) % len(tracing.dims(x))
    if node.target.__name__.startswith("narrow"):
        start, length = tracing.numbers_of(node.args[2:4])
        end, step = tracing.integer("Add", start, length), 1
    else:
        start, end, step = (argument(node, at, name) for at, name in ((2, "start"), (3, "end"), (4, "step")))
        start = 0 if start is None else tracing.number_of(start)
        end = FAR if end is None else tracing.number_of(end)
        step = 1 if step is None else tracing.number_of(step)
    size = tracing.size(x, axis)
    whole = start == 0 and (end >= FAR or end == size) if not is_code(end) else start == 0 and end == size
    if whole and step == 1:
        tracing.alias(out, x)
        return
    append_slice(x, out, axis, start, end, step, tracing)


def append_slice(x: str, out: str, axis: int, start: int, end: int, step: int, tracing: Tracing) -> None:
    """`out` has every `step`-th element of `x` from `start` to `end` along an axis."""
    inputs: dict[str, Any] = {"Input": x}
    attrs: dict[str, object] = {"axes": [axis]}
    computed = is_code(start) or is_code(end)
    for name, slot, number in (("starts", "StartsTensorList", start), ("ends", "EndsTensorList", end)):
        attrs[name] = [-1 if is_code(number) else max(min(number, FAR), -FAR)]
        if computed:
            inputs[slot] = [tracing.size_variable(number if is_code(number) else max(min(number, FAR), -FAR))]
    if computed:
        attrs["infer_flags"] = [-1]
    if step == 1:
        tracing.op("slice", inputs, {"Out": out}, **attrs)
    else:
        tracing.op("strided_slice", inputs, {"Out": out}, strides=[step], **attrs)


@aten("select")
def _select(node: Any, tracing: Tracing, out: str) -> None:
    x, axis, at = tracing.value(node.args[0]), node.args[1], tracing.number_of(node.args[2])
    rank = len(tracing.dims(x))
    axis %= rank
    if is_code(at):
        raise Refused("it picks a place that a run knows")
    attrs = {"axes": [axis], "starts": [at], "ends": [FAR if at == -1 else at + 1]}
    if rank == 1:
        tracing.op("slice", {"Input": x}, {"Out": out}, **attrs)
    else:
        tracing.op("slice", {"Input": x}, {"Out": out}, decrease_axis=[axis], **attrs)


def _counted_from(size: int, number: int, tracing: Tracing) -> int:
    """The place in a dim that is `number` elements, below 0, after its end; not before its beginning."""
    return tracing.integer("Add", size, number) if is_code(size) else max(size + number, 0)


@aten("slice_scatter", "select_scatter")
def _replace_slice(node: Any, tracing: Tracing, out: str) -> None:
    """A tensor with a slice replaced: the part before the slice, the new part, and the part after it, concatenated."""
    x, part = (tracing.value(arg) for arg in node.args[:2])
    if node.target.__name__.startswith("select"):
        axis, at = node.args[2] % len(tracing.dims(x)), node.args[3]
        if len(tracing.dims(x)) > 1:  # a part without dims is an element as it is
            with_x_shape("unsqueeze2", part, wide := tracing.temp(part), tracing, axes=[axis])
            part = wide
        start, step = at, 1
        size = tracing.size(x, axis)
        start = at if at >= 0 else tracing.integer("Add", size, at)
        end = tracing.integer("Add", start, 1)
    else:
        axis = argument(node, 2, "dim", 0) % len(tracing.dims(x))
        start = tracing.number_of(argument(node, 3, "start", 0) or 0)
        end = argument(node, 4, "end")
        end = FAR if end is None else tracing.number_of(end)
        step = argument(node, 5, "step", 1)
    size = tracing.size(x, axis)
    if step != 1:
        raise Refused("it replaces every other element, or fewer")
    start, end = (
        number if is_code(number) or number >= 0 else _counted_from(size, number, tracing) for number in (start, end)
    )
    parts: list[str] = []
    if start != 0:
        append_slice(x, before := tracing.temp(out), axis, 0, start, 1, tracing)
        parts.append(before)
    parts.append(part)
    if is_code(end) or (end < FAR and end != size):
        append_slice(x, after := tracing.temp(out), axis, end, FAR, 1, tracing)
        parts.append(after)
    if len(parts) == 1:
        tracing.alias(out, part)
    else:
        tracing.op("concat", {"X": parts}, {"Out": out}, axis=axis)


@aten("flip")
def _flip(node: Any, tracing: Tracing, out: str) -> None:
    x = tracing.value(node.args[0])
    tracing.op("reverse", {"X": x}, {"Out": out}, axis=axes_of(node.args[1], len(tracing.dims(x))))


@aten("roll")
def _roll(node: Any, tracing: Tracing, out: str) -> None:
    x, shifts, axes = tracing.value(node.args[0]), node.args[1], argument(node, 2, "dims", [])
    if not axes:
        raise Refused("it rolls the elements of all dims; give it dims")
    dims = axes_of(axes, len(tracing.dims(x)))
    tracing.op(
        "roll",
        {"X": x},
        {"Out": out},
        shifts=[int(s) for s in ([shifts] if isinstance(shifts, int) else shifts)],
        dims=dims,
    )


@aten("pad", "constant_pad_nd")
def _pad(node: Any, tracing: Tracing, out: str) -> None:
    x, pads = tracing.value(node.args[0]), list(node.args[1])
    mode, number = "constant", argument(node, 2, "value", 0)
    if node.target.__name__.startswith("pad"):
        mode, number = argument(node, 2, "mode", "constant"), argument(node, 3, "value", 0)
    if any(hasattr(count, "name") for count in pads):
        raise Refused("it pads by numbers that a run makes")
    rank = len(tracing.dims(x))
    sides = [(0, 0)] * rank
    for at in range(len(pads) // 2):
        sides[rank - 1 - at] = (pads[2 * at], pads[2 * at + 1])
    for axis, (before, after) in enumerate(sides):
        if min(before, after) < 0:  # negative padding cuts elements off
            size = tracing.size(x, axis)
            end = tracing.integer("Add", size, min(after, 0))
            append_slice(x, part := tracing.temp(x), axis, max(-before, 0), end, 1, tracing)
            x, sides[axis] = part, (max(before, 0), max(after, 0))
    if mode == "constant":
        flat = [count for pair in sides for count in pair]
        tracing.op("pad", {"X": x}, {"Out": out}, paddings=flat, pad_value=float(number or 0))
    else:
        _pad_image(x, out, mode, sides, tracing)


def _pad_image(x: str, out: str, mode: str, sides: Sequence[tuple[int, int]], tracing: Tracing) -> None:
    """`out` is `x` padded along its last one or two dims with its own elements, as `mode` says."""
    modes = {"reflect": "reflect", "replicate": "edge"}
    attrs = {"mode": modes[mode], "paddings": [count for pair in [(0, 0), *sides][-2:] for count in pair]}
    if len(sides) == 3:
        with_x_shape("unsqueeze2", x, wide := tracing.temp(x), tracing, axes=[2])
        padded = tracing.op_result("pad2d", out, attrs, X=wide)
        with_x_shape("squeeze2", padded, out, tracing, axes=[2])
    else:
        tracing.op("pad2d", {"X": x}, {"Out": out}, **attrs)


@aten("diagonal")
def _diagonal(node: Any, tracing: Tracing, out: str) -> None:
    """The main diagonal of a matrix; others are defined by that of their elements in a row."""
    x = tracing.value(node.args[0])
    length = tracing.shape_of(node.meta["val"], x)[0]
    line = index_range(length, x, tracing)
    append_slice(x, square := tracing.temp(x), 0, 0, length, 1, tracing)
    with_x_shape("unsqueeze2", line, column := tracing.temp(x), tracing, axes=[1])
    tracing.draft.stop_gradient.add(column)
    picked = tracing.op_result("index_sample", out, X=square, Index=column)
    with_x_shape("squeeze2", picked, out, tracing, axes=[1])


@aten("eye")
def _eye(node: Any, tracing: Tracing, out: str) -> None:
    rows, columns = tracing.shape_of(node.meta["val"], out)
    first, second = (index_range(count, out, tracing) for count in (rows, columns))
    with_x_shape("unsqueeze2", first, wide := tracing.temp(out), tracing, axes=[1])
    compare("equal", wide, second, same := tracing.temp(out), tracing)
    tracing.cast(same, out, dtype_of(node.meta["val"].dtype))
    tracing.draft.stop_gradient.update((wide, out))


def index_range(count: int, of: str, tracing: Tracing) -> str:
    """The numbers 0 to `count - 1` (i64), where `count` is a number or a code."""
    bounds = [tracing.as_type(tracing.size_variable(number), DType.INT64) for number in (0, count, 1)]
    line = tracing.op_result("range", of, Start=bounds[0], End=bounds[1], Step=bounds[2])
    tracing.draft.stop_gradient.add(line)
    return line


@aten("triu", "tril")
def _triangle(node: Any, tracing: Tracing, out: str) -> None:
    lower = node.target.__name__.startswith("tril")
    x = tracing.value(node.args[0])
    kind = tracing.dtype(x)
    wide = tracing.as_type(x, DType.INT32) if kind is DType.BOOL else x
    made = out if wide == x else tracing.temp(out)
    tracing.op("tril_triu", {"X": wide}, {"Out": made}, diagonal=argument(node, 1, "diagonal", 0), lower=lower)
    if made != out:
        tracing.cast(made, out, kind)


@aten("index_select")
def _index_select(node: Any, tracing: Tracing, out: str) -> None:
    x, axis, index = tracing.value(node.args[0]), node.args[1], tracing.value(node.args[2])
    gather_slices(x, index, out, axis % len(tracing.dims(x)), tracing)


def gather_slices(x: str, index: str, out: str, axis: int, tracing: Tracing) -> None:
    """`out` has the slices of `x` along an axis whose numbers are in `index`, a tensor of any shape."""
    sizes, chosen = sizes_of(x, tracing), sizes_of(index, tracing)
    flat = index
    if len(chosen) != 1 or tracing.is_scalar(index):
        reshape(index, flat := tracing.temp(index), [-1], tracing)
    rows = x
    if axis:
        transpose(x, rows := tracing.temp(x), [axis, *(at for at in range(len(sizes)) if at != axis)], tracing)
    plain = len(chosen) == 1 and not axis
    picked = out if plain else tracing.temp(out)
    tracing.op("gather", {"X": rows, "Index": flat}, {"Out": picked}, overwrite=False)
    if plain:
        return
    rest = [size for at, size in enumerate(sizes) if at != axis]
    turned = bool(axis and chosen)
    wide = picked
    if len(chosen) != 1:
        wide = tracing.temp(out) if turned else out
        reshape(picked, wide, [*chosen, *rest], tracing)
    if turned:
        count = len(chosen)
        order = [*range(count, count + axis), *range(count), *range(count + axis, count + len(rest))]
        transpose(wide, out, order, tracing)


@aten("index")
def _index(node: Any, tracing: Tracing, out: str) -> None:
    x = tracing.value(node.args[0])
    given = _indices(node.args[1], x, tracing)
    if len(given) == 1:
        ((axis, index),) = given
        gather_slices(x, index, out, axis, tracing)
        return
    axes, rank = [axis for axis, _ in given], len(tracing.dims(x))
    others = [axis for axis in range(rank) if axis not in axes]
    if axes != [*range(len(axes))]:
        transpose(x, turned := tracing.temp(x), [*axes, *others], tracing)
        x = turned
    rows, width = _combine_indices([index for _, index in given], tracing)
    together = axes == [*range(axes[0], axes[0] + len(axes))]
    if not axes[0] or not together:
        tracing.op("gather_nd", {"X": x, "Index": rows}, {"Out": out})
        return
    picked = tracing.op_result("gather_nd", out, X=x, Index=rows)
    before, after = axes[0], len(others) - axes[0]
    order = [*range(width, width + before), *range(width), *range(width + before, width + before + after)]
    transpose(picked, out, order, tracing)


def _indices(listed: Sequence[Any], x: str, tracing: Tracing) -> list[tuple[int, str]]:
    """The axes that are indexed, each with an index (i64) of non-negative numbers.

    A mask of n dims is replaced by n indices: the positions of its true elements.
    """
    result: list[tuple[int, str]] = []
    axis = 0
    for index in listed:
        if index is None:
            axis += 1
            continue
        name = tracing.value(index)
        if tracing.dtype(name) is not DType.BOOL:
            whole = tracing.as_type(name, DType.INT64)
            result.append((axis, nonnegative_indices(whole, [tracing.size(x, axis)], tracing)))
            axis += 1
            continue
        rank = len(tracing.dims(name))
        places = tracing.op_result("where_index", x, Condition=name)
        tracing.draft.stop_gradient.add(places)
        for at in range(rank):
            append_slice(places, column := tracing.temp(x), 1, at, at + 1, 1, tracing)
            with_x_shape("squeeze2", column, flat := tracing.temp(x), tracing, axes=[1])
            tracing.draft.stop_gradient.update((column, flat))
            result.append((axis + at, flat))
        axis += rank
    return result


def _combine_indices(indices: Sequence[str], tracing: Tracing) -> tuple[str, int]:
    """Indices broadcast and joined as positions [..., number of indices], and the number of dims before the last."""
    names = of_one_shape(list(indices), tracing)
    rank = len(tracing.dims(names[0]))
    columns: list[str] = []
    for name in names:
        if not rank:
            columns.append(name)
            continue
        with_x_shape("unsqueeze2", name, column := tracing.temp(name), tracing, axes=[rank])
        tracing.draft.stop_gradient.add(column)
        columns.append(column)
    if len(columns) == 1:
        return columns[0], rank
    rows = tracing.op_result("concat", names[0], {"axis": rank}, X=columns)
    tracing.draft.stop_gradient.add(rows)
    return rows, rank


@aten("gather")
def _gather(node: Any, tracing: Tracing, out: str) -> None:
    x, axis, index = tracing.value(node.args[0]), node.args[1], tracing.value(node.args[2])
    gather_along(x, index, out, axis % max(len(tracing.dims(x)), 1), tracing)


def gather_along(x: str, index: str, out: str, axis: int, tracing: Tracing) -> None:
    """`out` is `torch.gather(x, axis, index)`."""
    sizes, wanted = sizes_of(x, tracing), sizes_of(index, tracing)
    for at, (one, other) in enumerate(zip(sizes, wanted, strict=True)):
        if at != axis and one != other:
            append_slice(x, part := tracing.temp(x), at, 0, other, 1, tracing)
            x = part
    picked_along(x, index, axis, out, tracing)


@aten("max", "min", "max.dim", "min.dim")
def _extreme(node: Any, tracing: Tracing, out: str) -> None:
    kind = node.target.__name__.split(".")[0]
    x = tracing.value(node.args[0])
    if len(node.args) < 2:
        evenly(f"reduce_{kind}", x, out, axes_of(None, len(tracing.dims(x))), False, tracing)
        return
    axis, keep = node.args[1] % max(len(tracing.dims(x)), 1), bool(argument(node, 2, "keepdim", False))
    tracing.parts[node.name] = [*extrema_along(kind, x, out, axis, keep, tracing)]


def extrema_along(kind: str, x: str, of: str, axis: int, keep: bool, tracing: Tracing) -> tuple[str, str]:
    """The maxima (`max`) or minima (`min`) along an axis, and their indices.

    The gradient goes to the first of equal elements, as in torch.
    """
    at = tracing.op_result(f"arg_{kind}", of, {"axis": axis, "keepdims": True}, X=x)
    tracing.draft.stop_gradient.add(at)
    gather_along(x, at, values := tracing.temp(of), axis, tracing)
    values = tracing.resolve_alias(values)
    if keep:
        return values, at
    reduce_axes("reduce_sum", values, narrow := tracing.temp(of), [axis], False, tracing)
    reduce_axes("reduce_sum", at, places := tracing.temp(of), [axis], False, tracing)
    tracing.draft.stop_gradient.add(places)
    return narrow, places


@aten("median", "kthvalue")
def _in_the_middle(node: Any, tracing: Tracing, out: str) -> None:
    kind, _, overload = node.target.__name__.partition(".")
    x = tracing.value(node.args[0])
    rank, of_all = len(tracing.dims(x)), kind == "median" and overload == "default"
    is_constant = x in tracing.draft.stop_gradient
    size = 1
    if of_all:
        for at in range(rank):
            size = tracing.integer("Mul", size, tracing.size(x, at))
        reshape(x, flat := tracing.temp(x), [-1], tracing)
        x, axis, keep = flat, 0, True
    else:
        at = 2 if kind == "kthvalue" else 1
        axis, keep = argument(node, at, "dim", -1) % max(rank, 1), bool(argument(node, at + 1, "keepdim", False))
        size = tracing.size(x, axis)
    # of two middle elements, the median is the lower
    count = (
        tracing.number_of(node.args[1])
        if kind == "kthvalue"
        else tracing.integer("Div", tracing.integer("Add", size, 1), 2)
    )
    made: list[str] = []
    for value in _top_elements(x, out, axis, count, largest=False, tracing=tracing):
        append_slice(value, one := tracing.temp(out), axis, tracing.integer("Add", count, -1), count, 1, tracing)
        if not keep:
            reduce_axes("reduce_sum", one, narrow := tracing.temp(out), [axis], False, tracing)
            one = narrow
        made.append(one)
    tracing.draft.stop_gradient.add(made[1])
    if of_all and is_constant:
        reduce_axes("reduce_sum", made[0], out, [0], False, tracing)
    elif of_all:  # torch shares the gradient among equal elements
        tracing.draft.stop_gradient.add(made[0])
        share_gradient(x, made[0], wide := tracing.temp(out), [0], tracing)
        reduce_axes("reduce_sum", wide, out, [0], False, tracing)
    else:
        tracing.parts[node.name] = [*made]


@aten("one_hot")
def _one_hot(node: Any, tracing: Tracing, out: str) -> None:
    depth = argument(node, 1, "num_classes", -1)
    if depth < 0:
        raise Refused("it has as many classes as the largest number of the batch; give it num_classes")
    made = tracing.op_result("one_hot_v2", out, {"depth": depth}, X=tracing.value(node.args[0]))
    tracing.cast(made, out, DType.INT64)
    tracing.draft.stop_gradient.update((made, out))


def _top_elements(x: str, of: str, axis: int, count: int, *, largest: bool, tracing: Tracing) -> list[str]:
    """The `count` largest or smallest elements along an axis, sorted, and their indices."""
    rank = len(tracing.dims(x))
    given = swap_dims(x, axis, rank - 1, tracing)
    given = given if largest else tracing.scaled(given, -1.0)
    values, places = tracing.temp(of), tracing.temp(of)
    number = {"K": tracing.size_variable(count)} if is_code(count) else {}
    tracing.op("top_k", {"X": given, **number}, {"Out": values, "Indices": places}, k=-1 if number else count)
    tracing.draft.stop_gradient.add(places)
    made = values if largest else tracing.scaled(values, -1.0)
    return [swap_dims(made, axis, rank - 1, tracing), swap_dims(places, axis, rank - 1, tracing)]


@aten("topk", "sort", "argsort")
def _in_order(node: Any, tracing: Tracing, out: str) -> None:
    kind, x = node.target.__name__.split(".")[0], tracing.value(node.args[0])
    rank = len(tracing.dims(x))
    if kind == "topk":
        count, axis = tracing.number_of(node.args[1]), argument(node, 2, "dim", -1)
        largest = bool(argument(node, 3, "largest", True))
    else:
        plain = "stable" not in node.target.__name__
        axis = argument(node, 1, "dim", -1) if plain else node.kwargs.get("dim", -1)
        largest = bool(argument(node, 2, "descending", False)) if plain else bool(node.kwargs.get("descending", False))
        count = tracing.size(x, axis % rank)
    results = _top_elements(x, out, axis % rank, count, largest=largest, tracing=tracing)
    if kind == "argsort":
        tracing.alias(out, results[1])
    else:
        tracing.parts[node.name] = [*results]


@aten("nonzero")
def _nonzero(node: Any, tracing: Tracing, out: str) -> None:
    x = tracing.as_type(tracing.value(node.args[0]), DType.BOOL)
    tracing.op("where_index", {"Condition": x}, {"Out": out})
    tracing.draft.stop_gradient.add(out)


@aten("masked_select")
def _masked_select(node: Any, tracing: Tracing, out: str) -> None:
    x, mask = of_one_shape([tracing.value(arg) for arg in node.args[:2]], tracing)
    places = tracing.op_result("where_index", out, Condition=mask)
    tracing.draft.stop_gradient.add(places)
    tracing.op("gather_nd", {"X": x, "Index": places}, {"Out": out})


@aten("unfold")
def _unfold(node: Any, tracing: Tracing, out: str) -> None:
    """Sliding windows along an axis; the elements of a window are the last dim."""
    x, width, step = tracing.value(node.args[0]), int(node.args[2]), int(node.args[3])
    rank = len(tracing.dims(x))
    axis = node.args[1] % rank
    size = tracing.size(x, axis)
    if is_code(size):
        raise Refused("it takes windows of as many elements as the batch has")
    tracing.known_values[places := tracing.temp(out)] = np.array(
        [[*range(start, start + width)] for start in range(0, size - width + 1, step)], "int64"
    )
    gather_slices(x, places, windows := tracing.temp(out), axis, tracing)
    order = [at for at in range(rank + 1) if at != axis + 1]
    if axis + 1 == rank:
        tracing.alias(out, windows)
    else:
        transpose(windows, out, [*order, axis + 1], tracing)


@aten("index_add")
def _index_add(node: Any, tracing: Tracing, out: str) -> None:
    x, axis, index, source = node.args[:4]
    name, rows, added = (tracing.value(arg) for arg in (x, index, source))
    factor = float(node.kwargs.get("alpha", 1))
    added = tracing.scaled(added, factor) if factor != 1 else added
    axis %= len(tracing.dims(name))
    name, added = swap_dims(name, 0, axis, tracing), swap_dims(added, 0, axis, tracing)
    with_x_shape("unsqueeze2", rows, places := tracing.temp(rows), tracing, axes=[1])
    tracing.draft.stop_gradient.add(places)
    made = tracing.op_result("scatter_nd_add", out, X=name, Index=places, Updates=added)
    tracing.alias(out, swap_dims(made, 0, axis, tracing))


@aten("index_put")
def _index_put(node: Any, tracing: Tracing, out: str) -> None:
    x, value = tracing.value(node.args[0]), tracing.value(node.args[2])
    value = tracing.as_type(value, tracing.dtype(x))
    adds = bool(argument(node, 3, "accumulate", False))
    written = [(axis, tracing.value(index)) for axis, index in enumerate(node.args[1]) if index is not None]
    axis, mask = written[0]
    if len(written) == 1 and tracing.dtype(mask) is DType.BOOL and _is_one(value, tracing) and not adds:
        _put_where(x, mask, axis, value, out, tracing)
        return
    given = _indices(node.args[1], x, tracing)
    axes, rank = [axis for axis, _ in given], len(tracing.dims(x))
    rows, width = _combine_indices([index for _, index in given], tracing)
    if axes != [*range(len(axes))]:
        _put_behind(x, given, value, out, tracing, adds=adds)
        return
    if len(axes) == 1 and tracing.dims(rows)[-1:] != (1,):
        with_x_shape("unsqueeze2", rows, wide := tracing.temp(rows), tracing, axes=[width])
        rows = wide
    wanted = [*sizes_of(rows, tracing)[:-1], *(tracing.size(x, axis) for axis in range(len(axes), rank))]
    if sizes_of(value, tracing) != wanted:
        expand(value, every := tracing.temp(value), wanted, tracing)
        value = tracing.resolve_alias(every)
    scatter_updates(x, rows, value, out, tracing, adds=adds)


def _put_behind(
    x: str, given: Sequence[tuple[int, str]], value: str, out: str, tracing: Tracing, *, adds: bool
) -> None:
    """Writes elements at indices of axes that are not the first ones: transposes them to the front, and back."""
    axes, rank = [axis for axis, _ in given], len(tracing.dims(x))
    others = [axis for axis in range(rank) if axis not in axes]
    rows, width = _combine_indices([index for _, index in given], tracing)
    chosen = sizes_of(rows, tracing)[:width]
    before = axes[0] if axes == [*range(axes[0], axes[0] + len(axes))] else 0
    kept = [tracing.size(x, axis) for axis in others]
    wanted = [*kept[:before], *chosen, *kept[before:]]
    if sizes_of(value, tracing) != wanted:
        expand(value, every := tracing.temp(value), wanted, tracing)
        value = tracing.resolve_alias(every)
    if before:
        count = len(wanted)
        order = [*range(before, before + width), *range(before), *range(before + width, count)]
        transpose(value, turned := tracing.temp(value), order, tracing)
        value = turned
    order = [*axes, *others]
    transpose(x, front := tracing.temp(x), order, tracing)
    scatter_updates(front, rows, value, made := tracing.temp(out), tracing, adds=adds)
    transpose(made, out, [order.index(axis) for axis in range(rank)], tracing)


def _is_one(value: str, tracing: Tracing) -> bool:
    return tracing.dims(value) in ((), (1,))


def _put_where(x: str, mask: str, axis: int, value: str, out: str, tracing: Tracing) -> None:
    """`out` is `x` with one value where a mask is true; the mask has the dims of `x` from `axis` on."""
    missing = len(tracing.dims(x)) - axis - len(tracing.dims(mask))
    if missing:
        rank = len(tracing.dims(mask))
        with_x_shape("unsqueeze2", mask, wide := tracing.temp(mask), tracing, axes=[*range(rank, rank + missing)])
        tracing.draft.stop_gradient.add(wide)
        mask = wide
    condition, given, other = of_one_shape([mask, value, x], tracing)
    tracing.op("where", {"Condition": condition, "X": given, "Y": other}, {"Out": out})


def scatter_updates(x: str, places: str, updates: str, out: str, tracing: Tracing, *, adds: bool) -> None:
    """`out` is `x` with updates added at positions [..., dims], or assigned: the mean of several at one position."""
    if adds:
        tracing.op("scatter_nd_add", {"X": x, "Index": places, "Updates": updates}, {"Out": out})
        return
    kind = tracing.dtype(x)
    zeros = tracing.op_result("fill_zeros_like", out, X=x)
    total = tracing.op_result("scatter_nd_add", out, X=zeros, Index=places, Updates=updates)
    ones = tracing.op_result("fill_any_like", out, {"value": 1.0}, X=updates)
    hits = tracing.op_result("scatter_nd_add", out, X=zeros, Index=places, Updates=ones)
    above = tracing.op_result("greater_than", out, X=hits, Y=zeros)
    least = tracing.op_result("elementwise_max", out, X=hits, Y=tracing.constant_of(1, kind, out))
    tracing.draft.stop_gradient.update((zeros, ones, hits, above, least))
    divided = "elementwise_div" if kind in FLOATS else "elementwise_floordiv"
    mean = tracing.op_result(divided, out, X=total, Y=least)
    tracing.op("where", {"Condition": above, "X": mean, "Y": x}, {"Out": out})


@aten("scatter_add", "scatter", "scatter_reduce")
def _scatter(node: Any, tracing: Tracing, out: str) -> None:
    kind = node.target.__name__
    x, axis, index, source = tracing.value(node.args[0]), node.args[1], tracing.value(node.args[2]), node.args[3]
    how = argument(node, 4, "reduce") if "reduce" in kind else None
    if how not in (None, "sum", "add") or not node.kwargs.get("include_self", True):
        raise Refused("it combines what it writes otherwise than by a sum")
    axis %= max(len(tracing.dims(x)), 1)
    wanted = sizes_of(index, tracing)
    if hasattr(source, "name"):
        updates = tracing.value(source)
        for at, (one, other) in enumerate(zip(sizes_of(updates, tracing), wanted, strict=True)):
            if one != other:
                append_slice(updates, part := tracing.temp(updates), at, 0, other, 1, tracing)
                updates = part
    else:
        expand(tracing.constant_of(source, tracing.dtype(x), out), made := tracing.temp(out), wanted, tracing)
        updates = tracing.resolve_alias(made)
    scatter_updates(
        x,
        _places(index, axis, wanted, tracing),
        updates,
        out,
        tracing,
        adds=kind.startswith("scatter_add") or bool(how),
    )


def _places(index: str, axis: int, sizes: Sequence[int], tracing: Tracing) -> str:
    """The full positions [..., rank] of an index along one axis; in other axes an element's own position."""
    columns: list[str] = []
    for at, size in enumerate(sizes):
        if at == axis:
            column = index
        else:
            line = index_range(size, index, tracing)
            shape = [1] * len(sizes)
            shape[at] = -1
            reshape(line, wide := tracing.temp(index), shape, tracing)
            tracing.draft.stop_gradient.add(wide)
            expand(wide, column := tracing.temp(index), sizes, tracing)
            column = tracing.resolve_alias(column)
        with_x_shape("unsqueeze2", column, last := tracing.temp(index), tracing, axes=[len(sizes)])
        tracing.draft.stop_gradient.add(last)
        columns.append(last)
    rows = tracing.temp(index)
    tracing.op("concat", {"X": columns}, {"Out": rows}, axis=len(sizes))
    tracing.draft.stop_gradient.add(rows)
    return rows
