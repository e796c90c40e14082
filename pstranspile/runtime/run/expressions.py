"""Short ops as expressions over the local variables of generated code (`Kernel.inline`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from pstranspile.ir.frozen import FrozenMap
from pstranspile.ops import with_defaults
from pstranspile.runtime.kernels.kernel import OVER, kernel_of
from pstranspile.runtime.kernels.math.sums import OVER_TERM
from pstranspile.runtime.kernels.rows import AS_ROWS
from pstranspile.runtime.run.bound import EMPTY_NAME, BoundOp, bind


def expression_of(bound: BoundOp, local: Callable[[str], str], *, over: bool) -> str | None:
    """The expression of an op, None if its kernel has none for it. `over`: it may overwrite its X."""
    kernel = kernel_of(bound.op.type)
    names = bound.results[0].names if bound.results else ()
    if kernel is None or len(bound.results) != 1 or len(names) != 1 or EMPTY_NAME in (*names, *bound.op.input_names):
        return None
    if any(argument.may_lack for argument in bound.arguments):
        return None
    texts = (
        text(with_defaults(bound.op)) if callable(text) else text for text in (kernel.over, kernel.inline)[not over :]
    )
    text = next((text for text in texts if text is not None), None)
    if text is None:
        return None
    values: Mapping[str, str | list[str]] = {
        slot.replace("@", "_"): [local(name) for name in given] if _is_list(bound, slot) else local(given[0])
        for slot, given in bound.op.inputs.items()
        if given
    }
    return text.format(**values)


def makes_new(bound: BoundOp, name: str) -> bool:
    """Whether an op always gives a variable an array that nothing else holds."""
    kernel = kernel_of(bound.op.type)
    return kernel is not None and kernel.new and bound.op.output(kernel.outputs[0]) == name


def _reads_dims_only(bound: BoundOp, name: str) -> bool:
    """Whether an op reads nothing of a variable but its dims."""
    kernel = kernel_of(bound.op.type)
    slots = {slot for slot, names in bound.op.inputs.items() if name in names}
    return kernel is not None and bool(slots) and slots <= kernel.dims_only


def is_private(name: str, reader: int, ops: Sequence[BoundOp], users: Iterable[int], makers: Sequence[int]) -> bool:
    """Whether one op makes a variable's value in new memory, a later one reads it, and all others but its dims.

    `makers` are those of the `users` of a variable that write it.
    """
    if len(makers) != 1 or makers[0] >= reader or not makes_new(ops[makers[0]], name):
        return False
    return all(_reads_dims_only(ops[at], name) for at in users if at not in (*makers, reader))


def over_first(bound: BoundOp, is_spare: Callable[[str | None], bool]) -> BoundOp:
    """An op as one that may write its result into the memory of X, if that `is_spare` and the kernel can."""
    kernel = kernel_of(bound.op.type)
    if kernel is None or not kernel.reuses or not is_spare(bound.op.input("X")):
        return bound
    return bind(bound.op._replace(attrs=FrozenMap({**bound.op.attrs, OVER: True})))


def over_a_term(bound: BoundOp, is_spare: Callable[[str], bool]) -> BoundOp:
    """A sum as one that may be made in the memory of a term, if one `is_spare`; any other op as it is."""
    sums = bound.op.type == "sum" and AS_ROWS not in bound.op.attrs
    terms = bound.op.inputs.get("X", ()) if sums else ()
    spare = [place for place, name in enumerate(terms) if terms.count(name) == 1 and is_spare(name)]
    return bind(bound.op._replace(attrs=FrozenMap({**bound.op.attrs, OVER_TERM: spare[0]}))) if spare else bound


def _is_list(bound: BoundOp, slot: str) -> bool:
    return any(argument.slot == slot and argument.duplicable for argument in bound.arguments)
