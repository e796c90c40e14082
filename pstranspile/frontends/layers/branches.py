"""Conditional blocks: ops that run only when a condition holds."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from pstranspile.frontends.layers.basic import layer
from pstranspile.frontends.layers.block_draft import BlockDraft, gradient_block
from pstranspile.frontends.layers.draft import Draft, Value, names_of
from pstranspile.ir.attributes import BlockRef
from pstranspile.ir.model import Var
from pstranspile.ir.roles import OpRole
from pstranspile.ir.types import DType, VarKind
from pstranspile.ops.gradient import bare_op, gradient_name


def logical_not(x: Value) -> Value:
    """Element by element not x."""
    return layer("logical_not", {"X": x}, DType.BOOL)


def logical_and(x: Value, y: Value) -> Value:
    """Element by element x and y."""
    return layer("logical_and", {"X": x, "Y": y}, DType.BOOL)


def logical_or(x: Value, y: Value) -> Value:
    """Element by element x or y."""
    return layer("logical_or", {"X": x, "Y": y}, DType.BOOL)


def logical_xor(x: Value, y: Value) -> Value:
    """Element by element x or y, but not both."""
    return layer("logical_xor", {"X": x, "Y": y}, DType.BOOL)


@contextmanager
def when(*conditions: Value, scalar: bool = True) -> Generator[None]:
    """Ops created in the context go into a sub-block that runs only if the condition (bool[1]) is true.

    Without `scalar` it runs if every condition has elements. If a loss is minimised in it, its gradients and updates
    are in a block of their own, which a `conditional_block_grad` runs.
    """
    draft = conditions[0].draft
    draft.names.mint("conditional_block")
    index = draft.new_block()
    with draft.inside(index) as inner:
        yield
    read, written = _through(draft, inner)
    scope = draft.fresh("_generated_var")
    draft.declare(scope.var._replace(kind=VarKind.STEP_SCOPES))
    attrs = {"sub_block": BlockRef(index), "is_scalar_condition": scalar}
    draft.op("conditional_block", {"Cond": conditions, "Input": read}, {"Out": written, "Scope": scope}, attrs)
    trained = gradient_block(draft.blocks, index)
    if trained is None:
        return
    known = {name: var for name in _through(draft, draft.blocks[trained])[0] if (var := draft.find(name))}
    gradients = {gradient_name(name): var for name, var in known.items()}
    inputs = {"Cond": names_of(conditions), "Input": tuple(known), "Out": tuple(written), "Scope": (scope.name,)}
    given = {"Out@GRAD": tuple(map(gradient_name, written))}
    attrs = {"sub_block": BlockRef(trained), "is_scalar_condition": scalar}
    made = bare_op("conditional_block_grad", {**inputs, **given}, {"Input@GRAD": tuple(gradients)}, attrs)
    draft.block.ops.append(made._replace(role=OpRole.BACKWARD, origin=draft.origin))
    for name, var in gradients.items():
        if draft.find(name, trained) is None:
            draft.declare(Var(name, tensor=var.tensor), trained)


def _through(draft: Draft, inner: BlockDraft) -> tuple[list[str], list[str]]:
    """The variables that a sub-block reads from outside and those that it writes there, in order of appearance."""
    read: dict[str, None] = {}
    written: dict[str, None] = {}
    for op in inner.all_ops():
        read.update((name, None) for name in op.input_names if name not in written)
        written.update((name, None) for name in op.output_names)
    return list(read), [name for name in written if draft.find(name) is not None]


class Switch:
    """Cases of which the first that holds runs:

    switch = Switch()
    with switch.case(step < 100.0): ...
    with switch.default(): ...
    """

    def __init__(self) -> None:
        self._not_yet: Value | None = None

    @contextmanager
    def case(self, condition: Value) -> Generator[None]:
        """Ops created in the context run if `condition` holds and no earlier one did."""
        otherwise = logical_not(condition)
        if self._not_yet is None:
            self._not_yet, chosen = otherwise, condition
        else:
            before = self._not_yet
            self._not_yet = logical_and(before, otherwise)
            chosen = logical_and(before, condition)
        with when(chosen):
            yield

    @contextmanager
    def default(self) -> Generator[None]:
        """Ops created in the context run if no case did. Raises ValueError without a case before it."""
        if self._not_yet is None:
            raise ValueError("a default comes after at least one case")
        with when(self._not_yet):
            yield
