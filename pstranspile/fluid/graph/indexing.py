"""`variable[...]`: slices and items of variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pstranspile.fluid.graph.plain import several
from pstranspile.frontends.layers.draft import Value
from pstranspile.frontends.layers.mixed import mixed
from pstranspile.ir.attributes import Ints
from pstranspile.ir.types import DType

FAR = 10_000_000
"""The end of a slice that goes on to the last element; of longer dims it is `MOST`."""
MOST = 2**31 - 1


class _Part(NamedTuple):
    """A slice of one dim; its bounds are numbers, or values of run time."""

    axis: int
    start: Any
    end: Any
    step: int = 1
    is_item: bool = False


def item(variable: Any, index: Any) -> Any:
    """The part of a variable that an index, a slice, or a tuple of both names; indices may be variables.

    Raises IndexError for more indices than dims, TypeError for other things than numbers, variables, slices and `...`.
    """
    rank = len(variable.shape)
    given: list[Any] = [*index] if several(index) else [index]
    dots = [at for at, part in enumerate(given) if part is Ellipsis]
    if dots:
        given[dots[0] : dots[0] + 1] = [slice(None)] * (rank - len(given) + 1)
    if len(given) > rank:
        raise IndexError(f"{len(given)} indices for {variable.name}, which has {rank} dims")
    parts: list[_Part] = []
    turned: list[int] = []
    for axis, part in enumerate(given):
        if isinstance(part, slice) and _bounds(part) == (None, None, -1):
            turned.append(axis)
        elif not isinstance(part, slice) or _bounds(part) != (None, None, None):
            parts.append(_part(variable, axis, part))
    made = _sliced(variable, parts) if parts else variable.value
    if turned:
        out = made.draft.fresh(f"{variable.name}_slice_reverse", made.dtype)
        made.draft.op("reverse", {"X": made}, {"Out": out}, {"axis": turned})
        made = out
    return variable if made.name == variable.name else variable.block.program.wrap(made)


def _bounds(part: Any) -> tuple[Any, Any, Any]:
    return part.start, part.stop, part.step


def _part(variable: Any, axis: int, part: Any) -> _Part:
    last = FAR if variable.shape[axis] <= FAR else MOST
    if isinstance(part, slice):
        begin, stop, by = _bounds(part)
        step = 1 if by is None else int(by)
        start = (0 if step > 0 else -1) if begin is None else _bound(variable, begin)
        return _Part(axis, start, (last if step > 0 else -MOST) if stop is None else _bound(variable, stop), step)
    start = _bound(variable, part)
    if not isinstance(start, Value):
        return _Part(axis, start, last if start == -1 else start + 1, is_item=True)
    draft, one = start.draft, _constant(variable)(1)
    end = draft.fresh("_generated_var", DType.INT32)
    draft.op("elementwise_add", {"X": start, "Y": one}, {"Out": end}, {"axis": -1})
    return _Part(axis, start, end, is_item=True)


def _bound(variable: Any, given: Any) -> int | Value:
    """A number, or a variable as a value."""
    held = getattr(given, "value", None)
    if isinstance(held, Value):
        return held
    try:
        return given.__index__()
    except (AttributeError, TypeError):
        text = f"{variable.name} is indexed by whole numbers, variables and slices, not by {given!r}"
        raise TypeError(text) from None


def _constant(variable: Any) -> Callable[[int], Value]:
    """Makes constants in the block of the variable, where the loop or branch that reads them comes later."""

    def constant(number: int) -> Value:
        draft = variable.block.program.live()
        with draft.inside(variable.block.idx):
            out = draft.fresh("_generated_var", DType.INT32, stop_gradient=True)
            attrs = {"shape": [1], "dtype": DType.INT32, "value": float(number), "force_cpu": True}
            draft.op("fill_constant", {}, {"Out": out}, attrs)
        return out

    return constant


def _sliced(variable: Any, parts: list[_Part]) -> Value:
    value: Value = variable.value
    constant = _constant(variable)
    starts = mixed([part.start for part in parts], constant)
    ends = mixed([part.end for part in parts], constant)
    unknown = zip(starts.unknown(len(parts)), ends.unknown(len(parts)), strict=True)
    attrs: dict[str, Any] = {
        "axes": [part.axis for part in parts],
        "starts": starts.known,
        "ends": ends.known,
        "decrease_axis": Ints([part.axis for part in parts if part.is_item]),
        "infer_flags": [-1 if any(pair) else 1 for pair in unknown],
    }
    steps = [part.step for part in parts]
    op_type = "slice" if all(step == 1 for step in steps) else "strided_slice"
    if op_type == "strided_slice":
        attrs["strides"] = steps
    lists = {**starts.inputs("", "StartsTensorList"), **ends.inputs("", "EndsTensorList")}
    out = value.draft.fresh(f"{variable.name}_{op_type}", value.dtype)
    value.draft.op(op_type, {"Input": value, **lists}, {"Out": out}, attrs)
    return out
