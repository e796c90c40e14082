"""Nodes that cut values and put them together as Fluid's ops: slices, parts, padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pstranspile.frontends.onnx.graph import Refused
from pstranspile.frontends.onnx.reading import Reading, attribute, onnx_reader, positive
from pstranspile.frontends.onnx.reshaping import FAR, expand, reshape, sizes_of, transpose
from pstranspile.frontends.onnx.sizes import is_code


@onnx_reader("Concat")
def _concat(node: Any, reading: Reading) -> None:
    axis = attribute(node, "axis") % len(reading.dims(node.input[0]))
    reading.op("concat", {"X": list(node.input)}, {"Out": node.output[0]}, axis=axis)


@onnx_reader("Split")
def _split(node: Any, reading: Reading) -> None:
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
def _slice(node: Any, reading: Reading) -> None:
    source, out = node.input[0], node.output[0]
    names = [*node.input[1:], "", ""]
    starts, ends = (reading.numbers(name, "where it cuts") for name in names[:2])
    axes = reading.ints(names[2], "its axes") if names[2] else [*range(len(starts))]
    steps = reading.ints(names[3], "its steps") if names[3] else [1] * len(starts)
    axes = positive(axes, len(reading.dims(source)))
    if 0 in steps:
        raise Refused("it has a step of 0")
    if min(steps, default=1) < 0:
        source = _turned(source, axes, starts, ends, steps, reading)
    sizes = sizes_of(source, reading)
    ends = [FAR if is_code(end) and end == sizes[axis] else end for axis, end in zip(axes, ends, strict=True)]
    cut = [
        (axis, start, end, step)
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True)
        if (start, step) != (0, 1) or _ends_inside(end, sizes[axis])
    ]
    if cut:
        _cut(source, out, cut, reading)
    else:
        reading.alias(out, source)


def _ends_inside(end: int, size: int) -> bool:
    return end < FAR and (is_code(end) or is_code(size) or end < size)


def _turned(
    source: str, axes: list[int], starts: list[int], ends: list[int], steps: list[int], reading: Reading
) -> str:
    """The source from its end to its beginning along axes with steps backwards, whose bounds are counted so then."""
    backwards = [at for at, step in enumerate(steps) if step < 0]
    for at in backwards:
        size = reading.size(source, axes[at])
        if any(map(is_code, (starts[at], ends[at]))) or (is_code(size) and not (starts[at] == -1 or starts[at] >= FAR)):
            raise Refused("it goes backwards between bounds that are known at run time only")
        if is_code(size):
            if ends[at] > -FAR:
                raise Refused("it goes backwards up to a bound, over a dim that is known at run time only")
            starts[at], ends[at] = 0, FAR
        else:
            chosen = range(size)[slice(starts[at], ends[at] if ends[at] >= -size else None, steps[at])]
            starts[at] = size - 1 - chosen.start
            ends[at] = size - 1 - chosen.stop
        steps[at] = -steps[at]
    return reading.made("reverse", source, {"axis": [axes[at] for at in backwards]}, X=source)


def _cut(source: str, out: str, cut: Sequence[tuple[int, int, int, int]], reading: Reading) -> None:
    axes, starts, ends, steps = (list(column) for column in zip(*cut, strict=True))
    inputs: dict[str, Any] = {"Input": source}
    attrs: dict[str, object] = {"axes": axes}
    computed = any(map(is_code, (*starts, *ends)))
    for name, slot, numbers in (("starts", "StartsTensorList", starts), ("ends", "EndsTensorList", ends)):
        attrs[name] = [-1 if is_code(number) else max(min(number, FAR), -FAR) for number in numbers]
        if computed:
            bounds = [number if is_code(number) else max(number, -FAR) for number in numbers]
            inputs[slot] = [reading.measured(number) for number in bounds]
    if computed:
        attrs["infer_flags"] = [-1] * len(axes)
    if {*steps} == {1}:
        reading.op("slice", inputs, {"Out": out}, **attrs)
    else:
        reading.op("strided_slice", inputs, {"Out": out}, strides=steps, **attrs)


def part(source: str, axis: int, start: int, end: int, reading: Reading) -> str:
    """The elements of a value from `start` to `end` along an axis."""
    return reading.made("slice", source, {"axes": [axis], "starts": [start], "ends": [end]}, Input=source)


# Padding


@onnx_reader("Pad")
def _pad(node: Any, reading: Reading) -> None:
    source, out, mode = node.input[0], node.output[0], attribute(node, "mode", "constant")
    rank = len(reading.dims(source))
    pads, names = reading.ints(node.input[1], "its padding"), [*node.input[2:], "", ""]
    axes = positive(reading.ints(names[1], "its axes"), rank) if names[1] else [*range(rank)]
    sides = [(0, 0)] * rank
    for axis, before, after in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        sides[axis] = (before, after)
    source, sides = _cropped(source, sides, reading)
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
            source = _continued(source, axis, before, after, mode, reading)
        reading.alias(out, source)


def _cropped(source: str, sides: list[tuple[int, int]], reading: Reading) -> tuple[str, list[tuple[int, int]]]:
    """A value without what negative padding takes away, and the rest of the padding."""
    for axis, (before, after) in enumerate(sides):
        if min(before, after) < 0:
            source = part(source, axis, max(-before, 0), min(after, 0) or FAR, reading)
    return source, [(max(before, 0), max(after, 0)) for before, after in sides]


def _continued(source: str, axis: int, before: int, after: int, mode: str, reading: Reading) -> str:
    """A value with its elements along an axis continued at both ends, put together of parts of it."""
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
    return reading.made("concat", source, {"axis": axis}, X=parts)


def _end(source: str, axis: int, size: int, mode: str, reading: Reading) -> str:
    if mode == "wrap":
        return source
    if mode == "reflect":
        return reading.made("reverse", source, {"axis": [axis]}, X=source)
    made, sizes = reading.temp(source), sizes_of(source, reading)
    expand(source, made, [*sizes[:axis], size, *sizes[axis + 1 :]], reading)
    return made


@onnx_reader("DepthToSpace", "SpaceToDepth")
def _depth_to_space(node: Any, reading: Reading) -> None:
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


def _by(dim: int, size: int, reading: Reading, *, multiply: bool) -> int:
    if is_code(dim):
        return reading.sizes.combined("Mul" if multiply else "Div", dim, size)
    return dim * size if multiply else dim // size
