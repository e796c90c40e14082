"""Gradients through ops with sub-blocks, mirroring the kernels in `kernels.programs`."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from pstranspile.ir.diagnostics import Diagnostic
from pstranspile.ir.model import Op
from pstranspile.ops.attributes import strings_attr
from pstranspile.ops.gradient import EMPTY_NAME, SUFFIX, differentiated, gradient_name
from pstranspile.ops.gradients.frames import Frame, Values
from pstranspile.ops.gradients.needs import Terms
from pstranspile.ops.gradients.versions import Expected, Forward, Use, end_of, inner_in

_NONE: frozenset[Use] = frozenset()


class Pass(NamedTuple):
    """The backward pass over one forward block: the expected gradient ops, and the gradients so far."""

    forward: Forward
    terms: Terms
    frame: Frame
    values: Values
    by_signature: dict[tuple[object, ...], list[Expected]]
    made: frozenset[str]


class Follower(Protocol):
    """Follows the gradient ops of a block and checks what they read."""

    findings: list[Diagnostic]

    def complete(self, here: Pass, op: Op, index: int, name: str, *, of: str = "") -> None:
        """Checks that a gradient that is read is the sum over the uses of its value."""
        ...

    def whole(self, within: Pass, op: Op, name: str, uses: frozenset[Use]) -> None:
        """Checks that the gradient from a sub-block covers the uses of the variable's initial value there."""
        ...

    def give(self, here: Pass, gradient: str, use: Use, of: str) -> None:
        """Sets a gradient to a term."""
        ...

    def ends(self, here: Pass, index: int) -> frozenset[str]:
        """The variables of a sub-block whose last values lead to the loss."""
        ...

    def within(self, here: Pass, op: Op, index: int, given: dict[str, frozenset[Use]]) -> Pass:
        """Follows the gradient block of an op; `given` are its initial gradients."""
        ...

    def report(self, here: Pass, op: Op, name: str, text: str) -> None:
        """Adds a finding on a gradient op; `text` has `%s` for the variable."""
        ...


def through_loop(audit: Follower, here: Pass, op: Op, index: int) -> None:
    """Follows a `while_grad`: gradients of loop variables replace the given ones, the others are added up."""
    outside = op.inputs.get("Out@GRAD", ())
    inside = strings_attr(op, "original_output_grad") or outside
    ends = audit.ends(here, index)
    given: dict[str, frozenset[Use]] = {}
    for outer, inner in zip(outside, inside, strict=False):
        audit.complete(here, op, index, outer, of=differentiated(inner))
        given[inner] = _end(differentiated(inner), ends)
    within = audit.within(here, op, index, given)
    if audit.findings:
        return
    forward, frame = within.forward, within.frame
    ended = _ended(forward, within.made, inside)
    for outer, inner in zip(outside, inside, strict=False):
        if inner in ended:
            frame.local[inner] = _NONE
            name = differentiated(inner)
            audit.give(here, outer, Use(index, 0, name, 0), name)
            audit.whole(within, op, name, _NONE)
    for name, gradient in zip(op.inputs.get("X", ()), op.outputs.get("X@GRAD", ()), strict=False):
        if gradient == EMPTY_NAME or not forward.is_float(name):
            continue
        audit.whole(within, op, name, frame.local.get(gradient_name(name)) or _NONE)
        carried = gradient in outside and gradient_name(name) in inside
        if not carried and name in forward.last and within.terms.get((name, forward.last[name])):
            audit.report(here, op, name, "adds up gradients of %s that its steps should hand back")
        audit.give(here, gradient, Use(index, 0, name, 0), name)


def through_branch(audit: Follower, here: Pass, op: Op, index: int) -> None:
    """Follows a `conditional_block_grad`: its block runs once, or gradients bypass it."""
    outside, ends = op.inputs.get("Out@GRAD", ()), audit.ends(here, index)
    given: dict[str, frozenset[Use]] = {}
    for name in outside:
        audit.complete(here, op, index, name)
        if here.frame.find(name) is not None:
            given[name] = _end(differentiated(name), ends)
    within = audit.within(here, op, index, given)
    if audit.findings:
        return
    forward, frame = within.forward, within.frame
    ended = _ended(forward, within.made, outside)
    outputs = op.inputs.get("Out", ())
    handed_back: list[tuple[str, str]] = []
    for name, gradient in zip(op.inputs.get("Input", ()), op.outputs.get("Input@GRAD", ()), strict=False):
        if gradient == EMPTY_NAME or not forward.is_float(name):
            continue
        held = frame.local.get(gradient_name(name)) or _NONE
        audit.whole(within, op, name, _NONE if gradient in ended else held)
        if name in forward.last and name not in outputs:
            audit.report(here, op, name, "does not know that its block may give %s another value")
        handed_back.append((gradient, name))
    for gradient in ended:
        name = differentiated(gradient)
        audit.whole(within, op, name, _NONE)
        audit.give(here, gradient, Use(index, 0, name, 0), name)
    for gradient, name in handed_back:
        audit.give(here, gradient, Use(index, 0, name, 0), name)


def through_steps(audit: Follower, here: Pass, op: Op, index: int) -> None:
    """Follows a `recurrent_grad`: gradients of states go to the step before, those of parameters are added up."""
    source = here.forward.ops[index]
    outputs, states = source.outputs.get("outputs", ()), strings_attr(source, "states")
    for name, gradient in zip(outputs, op.inputs.get("outputs@GRAD", ()), strict=False):
        audit.complete(here, op, index, gradient, of=name)
    names = dict.fromkeys((*outputs, *states))
    ends = audit.ends(here, index)
    given = {gradient_name(name): _end(name, ends) for name in names}
    within = audit.within(here, op, index, given)
    if audit.findings:
        return
    for name in within.forward.last:
        if name not in within.forward.block.vars and within.terms.get((name, within.forward.last[name])):
            audit.report(here, op, name, "has no gradient of %s, which its steps write outside of themselves")
    local = within.frame.local
    before = strings_attr(source, "ex_states")
    for slot in ("inputs", "initial_states", "parameters"):
        for place, gradient in enumerate(op.outputs.get(f"{slot}@GRAD", ())):
            outer = op.inputs.get(slot, ())[place]
            if gradient == EMPTY_NAME:
                continue
            name = before[place] if slot == "initial_states" else outer
            if within.forward.is_float(name):
                audit.whole(within, op, name, local.get(gradient_name(name)) or _NONE)
                audit.give(here, gradient, Use(index, 0, slot, place), outer)


def _end(name: str, ends: frozenset[str]) -> frozenset[Use]:
    return frozenset((end_of(name),)) if name in ends else _NONE


def _ended(forward: Forward, made: frozenset[str], gradients: tuple[str, ...]) -> set[str]:
    """The gradients that end in a step (see the kernels)."""
    given = {name for op in forward.ops if not inner_in(op) for name in op.output_names if name not in op.input_names}
    return {name for name in gradients if name not in made and name.removesuffix(SUFFIX) in given}
