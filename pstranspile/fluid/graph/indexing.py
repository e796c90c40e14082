"""`variable[...]`: slices and items of variables."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.graph.plain import several
from pstranspile.ir.attributes import Ints
from pstranspile.layers import basic

MOST = 2**31 - 1
"""The end of a slice that goes on to the last element."""


def _bounds(part: Any) -> tuple[Any, Any, Any]:
    return part.start, part.stop, part.step


def item(variable: Any, index: Any) -> Any:
    """The part of a variable that an index, a slice, or a tuple of both names.

    Raises IndexError for more indices than dims, TypeError for other things than numbers, slices and `...`.
    """
    rank = len(variable.shape)
    parts: list[Any] = [*index] if several(index) else [index]
    if Ellipsis in parts:
        at = parts.index(Ellipsis)
        parts[at : at + 1] = [slice(None)] * (rank - len(parts) + 1)
    if len(parts) > rank:
        raise IndexError(f"{len(parts)} indices for {variable.name}, which has {rank} dims")
    axes: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    steps: list[int] = []
    gone: list[int] = []
    for axis, part in enumerate(parts):
        if isinstance(part, int):
            start, end, step = part, MOST if part == -1 else part + 1, 1
            gone.append(axis)
        elif isinstance(part, slice):
            begin, stop, by = _bounds(part)
            if begin is None and stop is None and by is None:
                continue
            step = 1 if by is None else int(by)
            start = (0 if step > 0 else -1) if begin is None else int(begin)
            end = (MOST if step > 0 else -MOST) if stop is None else int(stop)
        else:
            raise TypeError(f"{variable.name} is indexed by whole numbers and slices, not by {part!r}")
        axes.append(axis)
        starts.append(start)
        ends.append(end)
        steps.append(step)
    value = variable.value
    if any(step != 1 for step in steps):
        attrs: dict[str, Any] = {"axes": axes, "starts": starts, "ends": ends, "strides": steps}
        attrs["infer_flags"] = [1] * len(axes)
        if gone:
            attrs["decrease_axis"] = gone
        made = basic.layer("strided_slice", {"Input": value}, value.dtype, attrs, key="slice")
    else:
        attrs = {"axes": axes, "starts": starts, "ends": ends, "decrease_axis": Ints(gone)}
        made = basic.layer("slice", {"Input": value}, value.dtype, attrs)
    return variable.block.program.wrap(made)
