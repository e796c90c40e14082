"""ATen operators about dims and places of elements as ops of a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pstranspile.frontends.onnx.graph import Refused
from pstranspile.frontends.onnx.read_tensors import FAR, counted, expand, reshape, sizes_of, swapped, transpose, with_x_shape
from pstranspile.frontends.onnx.reading import is_code
from pstranspile.frontends.torch.elements import axes_of, reduced
from pstranspile.frontends.torch.tracing import FLOATS, Tracing, argument, aten, dtype_of
from pstranspile.ir.types import DType

# Other dims.


def reshaped(x: str, out: str, dims: Sequence[int], tracing: Tracing) -> None:
    """`out` is `x` with these dims: numbers or codes."""
    if list(dims) == sizes_of(x, tracing):
        tracing.alias(out, x)
    else:
        reshape(x, out, dims, tracing)


@aten("view", "reshape", "_unsafe_view", "flatten", "unflatten", "view_as", "reshape_as")
def _view(node: Any, tracing: Tracing, out: str) -> None:
    reshaped(tracing.value(node.args[0]), out, tracing.shape_of(node.meta["val"], out), tracing)


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
        reshaped(x, out, [], tracing)
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
    missing = len(times) - len(tracing.dims(x))
    if missing > 0:
        with_x_shape("unsqueeze2", x, wide := tracing.temp(x), tracing, axes=[*range(missing)])
        x = wide
    repeated(x, out, times, tracing)


def repeated(x: str, out: str, times: Sequence[int], tracing: Tracing) -> None:
    """`out` is `x` so many times along each dim."""
    listed = [-1 if is_code(count) else count for count in times]
    inputs: dict[str, Any] = {"X": x}
    if -1 in listed:
        inputs["expand_times_tensor"] = [tracing.measured(count) for count in times]
    tracing.op("expand", inputs, {"Out": out}, expand_times=listed)


@aten("repeat_interleave.self_int")
def _interleave(node: Any, tracing: Tracing, out: str) -> None:
    x, times, axis = tracing.value(node.args[0]), tracing.number_of(node.args[1]), argument(node, 2, "dim")
    if axis is None:
        raise Refused("it repeats the elements of all dims; give it a dim")
    sizes = sizes_of(x, tracing)
    axis %= len(sizes)
    with_x_shape("unsqueeze2", x, wide := tracing.temp(x), tracing, axes=[axis + 1])
    counts = [1] * (len(sizes) + 1)
    counts[axis + 1] = times
    repeated(wide, many := tracing.temp(x), counts, tracing)
    reshape(many, out, tracing.shape_of(node.meta["val"], out), tracing)


# Put together, and cut.


@aten("cat", "concat")
def _cat(node: Any, tracing: Tracing, out: str) -> None:
    kind = dtype_of(node.meta["val"].dtype)
    names = [tracing.as_type(tracing.value(arg), kind) for arg in node.args[0] if tuple(arg.meta["val"].shape) != (0,)]
    axis = argument(node, 1, "dim", 0) % len(node.meta["val"].shape)
    tracing.op("concat", {"X": names}, {"Out": out}, axis=axis)


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
        raise Refused("it cuts the rows of the batch into a number of parts that the size of the batch decides")
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
    cut(x, out, axis, start, end, step, tracing)


def cut(x: str, out: str, axis: int, start: int, end: int, step: int, tracing: Tracing) -> None:
    """`out` has every `step`-th element of `x` from `start` to `end` along an axis."""
    inputs: dict[str, Any] = {"Input": x}
    attrs: dict[str, object] = {"axes": [axis]}
    computed = is_code(start) or is_code(end)
    for name, slot, number in (("starts", "StartsTensorList", start), ("ends", "EndsTensorList", end)):
        attrs[name] = [-1 if is_code(number) else max(min(number, FAR), -FAR)]
        if computed:
            inputs[slot] = [tracing.measured(number if is_code(number) else max(min(number, FAR), -FAR))]
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


@aten("slice_scatter", "select_scatter")
def _scattered(node: Any, tracing: Tracing, out: str) -> None:
    """A value with a part of it replaced: what comes before, the part, and what comes after."""
    x, part = (tracing.value(arg) for arg in node.args[:2])
    if node.target.__name__.startswith("select"):
        axis, at = node.args[2] % len(tracing.dims(x)), node.args[3]
        with_x_shape("unsqueeze2", part, wide := tracing.temp(part), tracing, axes=[axis])
        part, start, step = wide, at, 1
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
    if step != 1 or (not is_code(start) and start < 0) or (not is_code(end) and end < 0):
        raise Refused("it replaces a part that is counted from the end, or every other element")
    parts: list[str] = []
    if start != 0:
        cut(x, before := tracing.temp(out), axis, 0, start, 1, tracing)
        parts.append(before)
    parts.append(part)
    if is_code(end) or (end < FAR and end != size):
        cut(x, after := tracing.temp(out), axis, end, FAR, 1, tracing)
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
    tracing.op("roll", {"X": x}, {"Out": out}, shifts=[int(s) for s in ([shifts] if isinstance(shifts, int) else shifts)], dims=dims)


@aten("pad", "constant_pad_nd")
def _pad(node: Any, tracing: Tracing, out: str) -> None:
    x, pads = tracing.value(node.args[0]), list(node.args[1])
    mode, number = "constant", argument(node, 2, "value", 0)
    if node.target.__name__.startswith("pad"):
        mode, number = argument(node, 2, "mode", "constant"), argument(node, 3, "value", 0)
    rank = len(tracing.dims(x))
    if mode != "constant" or min(pads) < 0 or any(hasattr(n, "name") for n in pads):
        raise Refused(f"it pads by {mode}, or by less than nothing")
    sides = [0] * (2 * rank)
    for at in range(len(pads) // 2):
        axis = rank - 1 - at
        sides[2 * axis], sides[2 * axis + 1] = pads[2 * at], pads[2 * at + 1]
    tracing.op("pad", {"X": x}, {"Out": out}, paddings=sides, pad_value=float(number or 0))


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


@aten("diff")
def _diff(node: Any, tracing: Tracing, out: str) -> None:
    x, times = tracing.value(node.args[0]), argument(node, 1, "n", 1)
    axis = argument(node, 2, "dim", -1) % len(tracing.dims(x))
    if times != 1:
        raise Refused("it takes differences of differences")
    cut(x, later := tracing.temp(out), axis, 1, FAR, 1, tracing)
    cut(x, earlier := tracing.temp(out), axis, 0, -1, 1, tracing)
    tracing.op("elementwise_sub", {"X": later, "Y": earlier}, {"Out": out})


# Elements by index.


@aten("index_select")
def _index_select(node: Any, tracing: Tracing, out: str) -> None:
    x, axis, index = tracing.value(node.args[0]), node.args[1], tracing.value(node.args[2])
    taken(x, index, out, axis % len(tracing.dims(x)), tracing)


def taken(x: str, index: str, out: str, axis: int, tracing: Tracing) -> None:
    """`out` has the elements of `x` along an axis that an index of any dims names."""
    sizes, chosen = sizes_of(x, tracing), sizes_of(index, tracing)
    flat = index
    if len(chosen) != 1 or tracing.is_scalar(index):
        reshape(index, flat := tracing.temp(index), [-1], tracing)
    rows = x
    if axis:
        transpose(x, rows := tracing.temp(x), [axis, *(at for at in range(len(sizes)) if at != axis)], tracing)
    plain = len(chosen) == 1 and not axis
    picked = out if plain else tracing.temp(out)
    tracing.op("gather", {"X": rows, "Index": flat}, {"Out": picked})
    if plain:
        return
    rest = [size for at, size in enumerate(sizes) if at != axis]
    turned = bool(axis and chosen) or bool(axis and not chosen and False)
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
    x, indices = tracing.value(node.args[0]), list(node.args[1])
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if any(dtype_of(index.meta["val"].dtype) is DType.BOOL for _, index in given):
        _masked(node, x, given, tracing, out)
        return
    if len(given) == 1:
        axis, index = given[0]
        taken(x, counted(tracing.value(index), tracing.size(x, axis), tracing), out, axis, tracing)
        return
    axes = [axis for axis, _ in given]
    if axes != [*range(len(axes))]:
        raise Refused("it takes elements by indices of dims that are not the first ones")
    from pstranspile.frontends.onnx.read_tensors import of_one_shape

    names = of_one_shape([tracing.as_type(tracing.value(index), DType.INT64) for _, index in given], tracing)
    columns: list[str] = []
    for name, (axis, _) in zip(names, given, strict=True):
        name = counted(name, tracing.size(x, axis), tracing)
        rank = len(tracing.dims(name))
        with_x_shape("unsqueeze2", name, column := tracing.temp(name), tracing, axes=[rank])
        columns.append(column)
    rows = tracing.temp(out)
    tracing.op("concat", {"X": columns}, {"Out": rows}, axis=len(tracing.dims(columns[0])) - 1)
    tracing.op("gather_nd", {"X": x, "Index": rows}, {"Out": out})


def _masked(node: Any, x: str, given: list[tuple[int, Any]], tracing: Tracing, out: str) -> None:
    """The rows of `x` where a mask of its first dims holds; how many there are a run knows."""
    if len(given) != 1 or given[0][0] != 0:
        raise Refused("it takes elements where a mask of other than the first dims holds")
    mask = tracing.value(given[0][1])
    places = tracing.temp(out)
    tracing.op("where_index", {"Condition": mask}, {"Out": places})
    tracing.draft.stop_gradient.add(places)
    tracing.op("gather_nd", {"X": x, "Index": places}, {"Out": out})


@aten("gather")
def _gather(node: Any, tracing: Tracing, out: str) -> None:
    x, axis, index = tracing.value(node.args[0]), node.args[1], tracing.value(node.args[2])
    gathered(x, index, out, axis % max(len(tracing.dims(x)), 1), tracing)


def gathered(x: str, index: str, out: str, axis: int, tracing: Tracing) -> None:
    """`out` has, for each place of an index, the element of `x` whose place along the axis it is (`torch.gather`)."""
    rank = len(tracing.dims(x))
    sizes, wanted = sizes_of(x, tracing), sizes_of(index, tracing)
    for at, (one, other) in enumerate(zip(sizes, wanted, strict=True)):
        if at != axis and one != other:
            cut(x, part := tracing.temp(x), at, 0, other, 1, tracing)
            x = part
    flat: list[str] = []
    for value in (x, index):
        last = swapped(value, axis, rank - 1, tracing)
        if rank == 2:
            flat.append(last)
            continue
        reshape(last, made := tracing.temp(value), [-1, sizes_of(last, tracing)[-1]], tracing)
        flat.append(made)
    picked = tracing.temp(out) if rank != 2 or axis != rank - 1 else out
    tracing.op("index_sample", {"X": flat[0], "Index": flat[1]}, {"Out": picked})
    if picked == out:
        return
    dims = [*wanted]
    dims[axis], dims[-1] = dims[-1], dims[axis]
    if axis == rank - 1:
        reshape(picked, out, dims, tracing)
        return
    reshape(picked, wide := tracing.temp(out), dims, tracing)
    tracing.alias(out, swapped(wide, axis, rank - 1, tracing))


@aten("one_hot")
def _one_hot(node: Any, tracing: Tracing, out: str) -> None:
    depth = argument(node, 1, "num_classes", -1)
    if depth < 0:
        raise Refused("it has as many classes as the largest number of the batch; give it num_classes")
    made = tracing.made("one_hot_v2", out, {"depth": depth}, X=tracing.value(node.args[0]))
    tracing.cast(made, out, DType.INT64)
    tracing.draft.stop_gradient.update((made, out))


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
    axis %= rank
    given = swapped(x, axis, rank - 1, tracing)
    given = given if largest else tracing.scaled(given, -1.0)
    values, places = tracing.temp(out), tracing.temp(out)
    number = {"K": tracing.measured(count)} if is_code(count) else {}
    tracing.op("top_k", {"X": given, **number}, {"Out": values, "Indices": places}, k=-1 if number else count)
    tracing.draft.stop_gradient.add(places)
    made = values if largest else tracing.scaled(values, -1.0)
    results = [swapped(made, axis, rank - 1, tracing), swapped(places, axis, rank - 1, tracing)]
    if kind == "argsort":
        tracing.alias(out, results[1])
    else:
        tracing.parts[node.name] = [*results]


@aten("scatter_add", "index_add", "scatter", "index_put")
def _scatter(node: Any, tracing: Tracing, out: str) -> None:
    kind = node.target.__name__
    if kind.startswith("index_add"):
        x, axis, index, source = (node.args[0], node.args[1], node.args[2], node.args[3])
        if axis % len(tracing.dims(tracing.value(x))) or node.kwargs.get("alpha", 1) != 1:
            raise Refused("it adds along a dim that is not the first")
        rows = tracing.value(index)
        with_x_shape("unsqueeze2", rows, places := tracing.temp(rows), tracing, axes=[1])
        tracing.op("scatter_nd_add", {"X": tracing.value(x), "Index": places, "Updates": tracing.value(source)}, {"Out": out})
        return
    if kind.startswith("index_put"):
        raise Refused("it writes elements by index; make a new tensor with torch.where or scatter_add")
    x, axis, index, source = tracing.value(node.args[0]), node.args[1], tracing.value(node.args[2]), node.args[3]
    rank = len(tracing.dims(x))
    axis %= max(rank, 1)
    wanted = sizes_of(index, tracing)
    if hasattr(source, "name"):
        updates = tracing.value(source)
        for at, (one, other) in enumerate(zip(sizes_of(updates, tracing), wanted, strict=True)):
            if one != other:
                cut(updates, part := tracing.temp(updates), at, 0, other, 1, tracing)
                updates = part
    else:
        from pstranspile.frontends.onnx.read_tensors import fill
        import numpy as np

        name = tracing.temp(out)
        fill(name, wanted, np.array([source], {DType.FP32: "float32", DType.FP64: "float64", DType.INT64: "int64"}[tracing.dtype(x)]), tracing)
        updates = name
    places = _places(index, axis, wanted, tracing)
    if not kind.startswith("scatter_add"):
        zeros = tracing.made("fill_zeros_like", out, X=x)
        ones = tracing.made("fill_any_like", out, {"value": 1.0}, X=updates)
        hits = tracing.made("scatter_nd_add", out, X=zeros, Index=places, Updates=ones)
        above = tracing.made("greater_than", out, X=hits, Y=zeros)
        x = tracing.made("where", out, Condition=above, X=zeros, Y=x)
        tracing.draft.stop_gradient.update((zeros, ones, hits, above))
    tracing.op("scatter_nd_add", {"X": x, "Index": places, "Updates": updates}, {"Out": out})


def _places(index: str, axis: int, sizes: Sequence[int], tracing: Tracing) -> str:
    """For each element of an index along an axis its place in all dims: [..., rank]."""
    columns: list[str] = []
    for at, size in enumerate(sizes):
        if at == axis:
            column = index
        else:
            bounds = [tracing.as_type(tracing.measured(n), DType.INT64) for n in (0, size, 1)]
            line = tracing.made("range", index, Start=bounds[0], End=bounds[1], Step=bounds[2])
            tracing.draft.stop_gradient.add(line)
            shape = [1] * len(sizes)
            shape[at] = -1
            reshape(line, wide := tracing.temp(index), shape, tracing)
            tracing.draft.stop_gradient.add(wide)
            expand(wide, column := tracing.temp(index), sizes, tracing)
            column = tracing.resolved(column)
        with_x_shape("unsqueeze2", column, last := tracing.temp(index), tracing, axes=[len(sizes)])
        tracing.draft.stop_gradient.add(last)
        columns.append(last)
    rows = tracing.temp(index)
    tracing.op("concat", {"X": columns}, {"Out": rows}, axis=len(sizes))
    tracing.draft.stop_gradient.add(rows)
    return rows


_ = (FLOATS, reduced)
