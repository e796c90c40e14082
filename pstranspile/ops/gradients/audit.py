"""The check that the gradients of a program belong to the right values.

Fluid names a gradient after its variable. A variable may have several values: a loop overwrites its loop variables, a
branch overwrites earlier values. Their gradients then share one name, so a gradient op may read the gradient of another
value, or read a variable that was overwritten. The audit follows the backward pass term by term. Every gradient that is
read must be the sum over all uses of its value, and over no uses of another value. Every value that is read must be the
one that the forward op read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from typing import NamedTuple, Protocol

from pstranspile.ir.diagnostics import Diagnostic, Note, at_op
from pstranspile.ir.model import Op, Program, Slots
from pstranspile.ir.types import OpRole, VarKind
from pstranspile.ops.attributes import strings_attr
from pstranspile.ops.gradient import EMPTY_NAME, SUFFIX, gradient_name, variable_of_gradient
from pstranspile.ops.gradients.needs import KEPT, RequiredTerms, Terms
from pstranspile.ops.gradients.versions import (
    OLD,
    WITH_BLOCKS,
    ExpectedGradientOp,
    Forward,
    Use,
    end_of,
    fits,
    inner_block,
    inner_in,
    is_backward,
    is_forward,
    keeps_value,
    match_gradients,
    signature,
)

# The gradients and values that gradient blocks see when they run, in frames like those of `run.frame`.

Uses = frozenset[Use]


class GradientFrame:
    """The gradients of one execution of a block, as sets of terms."""

    def __init__(self, parent: GradientFrame | None, declared_names: AbstractSet[str]):
        self.parent = parent
        self.declared_names = declared_names
        self.local: dict[str, Uses] = {}
        self.forward: GradientFrame | None = parent

    def steps(self) -> GradientFrame:
        """The frame that encloses the frames of the steps of this block's ops. Gradient blocks use the frame of the
        forward pass.
        """
        return self.forward if self.forward is not None else self

    def find(self, name: str) -> Uses | None:
        """The terms of a gradient in this frame or an enclosing one, None if it does not exist yet."""
        frame: GradientFrame | None = self
        while frame is not None:
            if name in frame.local:
                return frame.local[name]
            frame = frame.parent
        return None

    def write(self, name: str, terms: Uses) -> None:
        """Sets a gradient in the frame that has or declares it, by default in this one."""
        frame: GradientFrame | None = self
        while frame is not None:
            if name in frame.local or name in frame.declared_names:
                frame.local[name] = terms
                return
            frame = frame.parent
        self.local[name] = terms


class Values:
    """The version of each variable that gradient ops read.

    `enclosing_values` are the values of the enclosing block. `read_versions` and `written_versions` are the versions
    that the op with the sub-block reads and writes in the enclosing block. `stacked_names` are the variables whose
    values each step of a loop keeps (None: no loop).
    """

    def __init__(
        self,
        forward: Forward,
        around: Values | None,
        before: Mapping[str, int],
        after: Mapping[str, int] | None = None,
        stacked_names: AbstractSet[str] | None = None,
    ):
        self.forward = forward
        self.enclosing_values = around
        self._read_versions = before
        self._written_versions = after or {}
        self._stacked_names = stacked_names
        self._updated = forward.updated_in_place() if stacked_names is not None else set[str]()
        self._back: dict[str, int] = {}

    def back(self, name: str) -> None:
        """Undoes the last update of a variable, as its gradient op does."""
        self._back[name] = self._back.get(name, 0) + 1

    def version_of(self, name: str) -> int | None:
        """The version that a name refers to; None if the value is no version of this block."""
        base, copy, writes = name.partition(OLD)
        if copy:
            if base in self.forward.last_versions or base in self.forward.block.vars or self.enclosing_values is None:
                return self.forward.version(base, int(writes))
            return 0 if self.enclosing_values.version_of(name) == self._read_versions.get(base, 0) else None
        last = self.forward.last_versions.get(name, 0) - self._back.get(name, 0)
        if self.enclosing_values is None or name in self.forward.block.vars:
            return last
        if name not in self.forward.last_versions:
            around = self.enclosing_values.version_of(name)
            return 0 if around is not None and around == self._read_versions.get(name, around) else None
        if self._stacked_names is not None and name in self._stacked_names and name not in self._updated:
            return 0
        return last if self.enclosing_values.version_of(name) == self._written_versions.get(name) else None


# Gradients through ops with sub-blocks, mirroring the kernels in `kernels.programs`.

_NONE: frozenset[Use] = frozenset()


class Pass(NamedTuple):
    """The backward pass over one forward block: the expected gradient ops, and the gradients so far."""

    forward: Forward
    terms: Terms
    frame: GradientFrame
    values: Values
    by_signature: dict[tuple[object, ...], list[ExpectedGradientOp]]
    written_gradients: frozenset[str]


class Follower(Protocol):
    """Follows the gradient ops of a block and checks what they read."""

    findings: list[Diagnostic]

    def complete(self, here: Pass, op: Op, index: int, name: str, *, of: str = "") -> None:
        """Checks that a gradient that is read is the sum over the uses of its value."""
        ...

    def whole(self, within: Pass, op: Op, name: str, uses: frozenset[Use]) -> None:
        """Checks that the gradient that a sub-block returns covers the uses of the variable's initial value in the
        block.
        """
        ...

    def give(self, here: Pass, gradient: str, use: Use, of: str) -> None:
        """Sets a gradient to a term."""
        ...

    def variables_reaching_loss(self, here: Pass, index: int) -> frozenset[str]:
        """The variables of a sub-block whose last values lead to the loss."""
        ...

    def follow_block(self, here: Pass, op: Op, index: int, given: dict[str, frozenset[Use]]) -> Pass:
        """Follows the gradient block of an op; `given` are its initial gradients."""
        ...

    def report(self, here: Pass, op: Op, name: str, text: str) -> None:
        """Adds a finding on a gradient op; `text` has `%s` for the variable."""
        ...


def through_loop(audit: Follower, here: Pass, op: Op, index: int) -> None:
    """Follows a `while_grad`: gradients of loop variables replace the given ones, the others are added up."""
    outside = op.inputs.get("Out@GRAD", ())
    inside = strings_attr(op, "original_output_grad") or outside
    ends = audit.variables_reaching_loss(here, index)
    given: dict[str, frozenset[Use]] = {}
    for outer, inner in zip(outside, inside, strict=False):
        audit.complete(here, op, index, outer, of=variable_of_gradient(inner))
        given[inner] = _end(variable_of_gradient(inner), ends)
    within = audit.follow_block(here, op, index, given)
    if audit.findings:
        return
    forward, frame = within.forward, within.frame
    ended = _overwritten_gradients(forward, within.written_gradients, inside)
    for outer, inner in zip(outside, inside, strict=False):
        if inner in ended:
            frame.local[inner] = _NONE
            name = variable_of_gradient(inner)
            audit.give(here, outer, Use(index, 0, name, 0), name)
            audit.whole(within, op, name, _NONE)
    for name, gradient in zip(op.inputs.get("X", ()), op.outputs.get("X@GRAD", ()), strict=False):
        if gradient == EMPTY_NAME or not forward.is_float(name):
            continue
        audit.whole(within, op, name, frame.local.get(gradient_name(name)) or _NONE)
        carried = gradient in outside and gradient_name(name) in inside
        if not carried and name in forward.last_versions and within.terms.get((name, forward.last_versions[name])):
            audit.report(here, op, name, "adds up gradients of %s that its steps should hand back")
        audit.give(here, gradient, Use(index, 0, name, 0), name)


def through_branch(audit: Follower, here: Pass, op: Op, index: int) -> None:
    """Follows a `conditional_block_grad`: its block runs once, or the gradients pass around it unchanged."""
    outside, ends = op.inputs.get("Out@GRAD", ()), audit.variables_reaching_loss(here, index)
    given: dict[str, frozenset[Use]] = {}
    for name in outside:
        audit.complete(here, op, index, name)
        if here.frame.find(name) is not None:
            given[name] = _end(variable_of_gradient(name), ends)
    within = audit.follow_block(here, op, index, given)
    if audit.findings:
        return
    forward, frame = within.forward, within.frame
    ended = _overwritten_gradients(forward, within.written_gradients, outside)
    outputs = op.inputs.get("Out", ())
    handed_back: list[tuple[str, str]] = []
    for name, gradient in zip(op.inputs.get("Input", ()), op.outputs.get("Input@GRAD", ()), strict=False):
        if gradient == EMPTY_NAME or not forward.is_float(name):
            continue
        held = frame.local.get(gradient_name(name)) or _NONE
        audit.whole(within, op, name, _NONE if gradient in ended else held)
        if name in forward.last_versions and name not in outputs:
            audit.report(here, op, name, "does not know that its block may give %s another value")
        handed_back.append((gradient, name))
    for gradient in ended:
        name = variable_of_gradient(gradient)
        audit.whole(within, op, name, _NONE)
        audit.give(here, gradient, Use(index, 0, name, 0), name)
    for gradient, name in handed_back:
        audit.give(here, gradient, Use(index, 0, name, 0), name)


def through_steps(audit: Follower, here: Pass, op: Op, index: int) -> None:
    """Follows a `recurrent_grad`: gradients of states go to the previous step, those of parameters are added up."""
    source = here.forward.ops[index]
    outputs, states = source.outputs.get("outputs", ()), strings_attr(source, "states")
    for name, gradient in zip(outputs, op.inputs.get("outputs@GRAD", ()), strict=False):
        audit.complete(here, op, index, gradient, of=name)
    names = dict.fromkeys((*outputs, *states))
    ends = audit.variables_reaching_loss(here, index)
    given = {gradient_name(name): _end(name, ends) for name in names}
    within = audit.follow_block(here, op, index, given)
    if audit.findings:
        return
    for name in within.forward.last_versions:
        if name not in within.forward.block.vars and within.terms.get((name, within.forward.last_versions[name])):
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


def _overwritten_gradients(forward: Forward, written_gradients: frozenset[str], gradients: tuple[str, ...]) -> set[str]:
    """The gradients that a step does not pass on, because it writes their variables without reading them
    (`_overwritten_gradients` in `pstranspile.runtime.kernels.programs.control`).
    """
    given = {name for op in forward.ops if not inner_in(op) for name in op.output_names if name not in op.input_names}
    return {name for name in gradients if name not in written_gradients and name.removesuffix(SUFFIX) in given}


LOSS = OpRole.BACKWARD | OpRole.LOSS

_SKIPPED = OpRole.OPTIMIZE | OpRole.RPC | OpRole.DIST | OpRole.LR_SCHED


def wrong_gradients(program: Program, stopped: Callable[[str], bool] | None = None) -> list[Diagnostic]:
    """Findings on gradient ops whose result is wrong because a variable has several values.

    `stopped` is true of variables that have no gradient; by default, of those for which the program has none.
    """
    ops = program.main_block.ops
    seeds = [at for at, op in enumerate(ops) if op.role == LOSS]
    for seed, end in pairwise((*seeds, len(ops))):
        kept = (op for at, op in enumerate(ops) if seed <= at < end or not is_backward(op))
        whole = program if len(seeds) == 1 else program.with_main_block(program.main_block._replace(ops=tuple(kept)))
        findings = _wrong_in_pass(whole, variable_of_gradient(next(iter(ops[seed].output_names), "")), stopped)
        if findings:
            return findings
    return []


def _wrong_in_pass(program: Program, loss: str, stopped: Callable[[str], bool] | None) -> list[Diagnostic]:
    """Findings on a program that has a single backward pass."""
    program = _without_rest(program)
    if not _overwrites(program):
        return []
    made = _variables_with_gradient(program)
    needs = RequiredTerms(program, loss, stopped or (lambda name: name not in made))
    audit = Audit(needs)
    audit.follow()
    return audit.findings


def _without_rest(program: Program) -> Program:
    """The program without the ops of the forward pass after the last gradient op: they change no value
    that it reads.
    """
    main = program.main_block
    last = max((at for at, op in enumerate(main.ops) if (op.role or 0) & OpRole.BACKWARD), default=len(main.ops))
    rest = [op for op in main.ops[last + 1 :] if is_forward(op)]
    if not rest:
        return program
    dropped = {id(op) for op in rest}
    blocks = list(program.blocks)
    blocks[0] = main._replace(ops=tuple(op for op in main.ops if id(op) not in dropped))
    for op in rest:  # grows
        inner = inner_block(program, op)
        if inner:
            rest += blocks[inner].ops
            blocks[inner] = blocks[inner]._replace(ops=())
    return program._replace(blocks=tuple(blocks))


def _variables_with_gradient(program: Program) -> set[str]:
    """The variables that get a gradient. A gradient block counts only for the variables of its forward block."""
    result: set[str] = set()
    for block in program.blocks:
        own = program.blocks[block.forward_block].vars if block.forward_block >= 0 else None
        for op in block.ops:
            if is_backward(op):
                of = {variable_of_gradient(name) for name in op.output_names if SUFFIX in name}
                result |= of if own is None else of.intersection(own)
    return result


def _overwrites(program: Program) -> bool:
    """Whether a variable that gradients depend on may have several values."""
    read: set[str] | None = None
    for number, block in enumerate(program.blocks):
        if number and block.forward_block >= 0:
            continue
        seen: set[str] = set()
        for op in block.ops:
            if not is_forward(op):
                continue
            for name in op.output_names:
                if name in seen or (number and name not in block.vars):
                    if read is None:
                        read = _of_gradients(program)
                    if name in read and not _is_state(program, name, number):
                        return True
            seen.update(op.input_names)
            seen.update(op.output_names)
    return False


def _is_state(program: Program, name: str, block: int) -> bool:
    var = program.find_var(name, block)
    return var is None or var.kind is not VarKind.LOD_TENSOR or var.parameter is not None


def _of_gradients(program: Program) -> set[str]:
    """The variables that gradient ops read or compute gradients of."""
    ops = [
        op for block in program.blocks for op in block.ops if is_backward(op) and not (op.role or 0) & OpRole.OPTIMIZE
    ]
    result = {name for op in ops for name in op.input_names}
    return result | {variable_of_gradient(name) for op in ops for name in op.output_names}


class Audit:
    """One pass over the gradient ops of a program."""

    def __init__(self, needs: RequiredTerms):
        self.required_terms = needs
        self.program = needs.program
        self.findings: list[Diagnostic] = []

    def follow(self) -> None:
        """Follows the gradient ops of block 0, then checks the gradients of variables that no op writes."""
        forward = self.required_terms.forward(0)
        frame = GradientFrame(None, frozenset(self.program.main_block.vars))
        ops = [op for op in self.program.main_block.ops if is_backward(op) and not (op.role or 0) & _SKIPPED]
        here = self._pass(forward, self.required_terms.terms, frame, Values(forward, None, {}), ops)
        self._ops(here, ops)
        if self.findings:
            return
        renamed = {variable_of_gradient(name): held for name, held in frame.local.items() if SUFFIX in name}
        for (name, version), uses in sorted(self.required_terms.terms.items(), key=lambda item: item[0]):
            given = frame.find(gradient_name(name))
            var = self.program.main_block.vars.get(name)
            if given is None and var is not None and var.parameter is not None:
                given = renamed.get(name)  # the name under which a trainer sends a gradient
            has_gradient = given is not None or (var is not None and var.parameter is not None)
            if version == 0 and name not in forward.last_versions and has_gradient and given != frozenset(uses) and ops:
                self._wrong(here, ops[-1], name, given, uses)

    def _pass(self, forward: Forward, terms: Terms, frame: GradientFrame, values: Values, ops: Sequence[Op]) -> Pass:
        by_signature: dict[tuple[object, ...], list[ExpectedGradientOp]] = {}
        for alternatives in self.required_terms.expected_ops(forward.number):
            for expected in reversed(alternatives):
                by_signature.setdefault(signature(expected.op), []).append(expected)
        for index, op in enumerate(forward.ops):
            if op.type in WITH_BLOCKS:
                by_signature.setdefault((f"{op.type}_grad", _scopes(op.outputs)), []).append(
                    ExpectedGradientOp(index, 0, op)
                )
        made = frozenset(name for op in ops for name in op.output_names)
        return Pass(forward, terms, frame, values, by_signature, made)

    def _ops(self, here: Pass, ops: Sequence[Op]) -> None:
        frame = here.frame
        for op in ops:
            if self.findings:
                return
            if op.role == LOSS:
                for name in op.output_names:
                    frame.write(name, frozenset())
                continue
            key = signature(op)
            if op.type.endswith("_grad") and op.type.removesuffix("_grad") in WITH_BLOCKS:
                key = op.type, _scopes(op.inputs)
            matching = [] if _adds_up(op) else here.by_signature.get(key, [])
            expected = next((candidate for candidate in reversed(matching) if fits(candidate, op)), None)
            if expected is not None:
                matching.remove(expected)
                forward = here.forward.ops[expected.number]
                if forward.type in WITH_BLOCKS:
                    _THROUGH[forward.type](self, here, op, expected.number)
                else:
                    self._plain(here, op, expected)
            else:
                self._follow_other(here, op)

    def _follow_other(self, here: Pass, op: Op) -> None:
        """Follows an op that does not compute gradients of an op: a sum of terms, a copy, zeros, or a user's change to
        gradients.
        """
        frame = here.frame
        for name in op.output_names:
            if SUFFIX not in name or name == EMPTY_NAME:
                continue
            terms = [
                (given, frame.find(given))
                for given in op.input_names
                if variable_of_gradient(given) == variable_of_gradient(name)
                and SUFFIX in given
                and op.type != "fill_zeros_like"
            ]
            total: frozenset[Use] = frozenset()
            for _, uses in terms:
                if uses and total & uses:
                    self.report(here, op, name, "adds the same term of %s twice")
                total |= uses or frozenset()
            frame.write(name, total)

    def _plain(self, here: Pass, op: Op, expected: ExpectedGradientOp) -> None:
        forward, index = here.forward, expected.number
        source = forward.ops[index]
        if keeps_value(source):
            return
        if source.type == "increment":  # the backward pass decreases a step counter again
            for name in source.output_names:
                here.values.back(name)
            return
        for slot, names in op.inputs.items():
            for name in names:
                if SUFFIX in name and OLD not in name:
                    self.complete(here, op, index, name)
                elif here.forward.kind(name.partition(OLD)[0]) is VarKind.LOD_TENSOR:
                    self._check_version(here, op, slot, name, index)
        for use, name in match_gradients(expected, op):
            if SUFFIX in name:
                self.give(here, name, use, variable_of_gradient(name))

    def _check_version(self, here: Pass, op: Op, slot: str, name: str, index: int) -> None:
        """Checks that a gradient op reads the version that its forward op read or wrote."""
        source, base = here.forward.ops[index], name.partition(OLD)[0]
        made = slot in source.outputs if slot not in source.inputs else False
        versions = (
            here.forward.written_versions if made or base not in source.input_names else here.forward.read_versions
        )
        wanted = versions[index].get(base)
        if wanted is not None and here.values.version_of(name) != wanted:
            self.report(here, op, base, "finds another value of %s than its forward op had")

    def complete(self, here: Pass, op: Op, index: int, name: str, *, of: str = "") -> None:
        """Checks that a gradient that is read is the sum over the uses of its value."""
        of = of or variable_of_gradient(name)
        if not here.forward.is_float(of):
            return
        version = here.forward.written_versions[index].get(of)
        if version is None:
            return
        wanted = frozenset(here.terms.get((of, version), ()))
        terms = here.frame.find(name)
        if of == self.required_terms.loss and not wanted and here.forward.number == 0:
            return
        if (terms or frozenset()) != wanted:
            self._wrong(here, op, of, terms, wanted)

    def whole(self, within: Pass, op: Op, name: str, uses: frozenset[Use]) -> None:
        """Checks that the gradient that a sub-block returns covers the uses of the variable's initial value in the
        block.
        """
        wanted = frozenset(within.terms.get((name, 0), ()))
        if uses != wanted:
            self._wrong(within, op, name, uses, wanted)

    def give(self, here: Pass, gradient: str, use: Use, of: str) -> None:
        """Sets a gradient to a term. If the use does not lead to the loss, the gradient is zero and gets no term."""
        version = here.forward.read_versions[use.op].get(of, 0)
        here.frame.write(gradient, frozenset({use}.intersection(here.terms.get((of, version), ()))))

    def variables_reaching_loss(self, here: Pass, index: int) -> frozenset[str]:
        """The variables of a sub-block whose last values lead to the loss."""
        return self.required_terms.inner(
            here.forward.ops[index], self.required_terms.active(here.forward, here.terms, index)
        )[1]

    def follow_block(self, here: Pass, op: Op, index: int, given: dict[str, frozenset[Use]]) -> Pass:
        """Follows the gradient block of an op for its forward op's sub-block; `given` are its initial gradients."""
        source = here.forward.ops[index]
        forward = self.required_terms.forward(inner_block(self.program, source))
        terms, _ = self.required_terms.inner(source, self.required_terms.active(here.forward, here.terms, index))
        block = self.program.blocks[inner_block(self.program, op)]
        frame = GradientFrame(here.frame.steps(), frozenset(block.vars))
        frame.local.update(given)
        kept = set(source.inputs.get("X", ())) if source.type == "while" else None
        values = Values(
            forward,
            here.values,
            dict(here.forward.read_versions[index]),
            dict(here.forward.written_versions[index]),
            kept,
        )
        ops = [inner_op for inner_op in block.ops if is_backward(inner_op)]
        inside = self._pass(forward, terms, frame, values, ops)
        self._ops(inside, ops)
        return inside

    def _wrong(self, here: Pass, op: Op, name: str, held: frozenset[Use] | None, wanted: Iterable[Use]) -> None:
        lacking = sorted(set(wanted) - (held or frozenset()))
        text = (
            "lacks a term of the gradient of %s" if lacking else "takes the gradient of another value of %s for its own"
        )
        uses = lacking or sorted((held or frozenset()) - set(wanted))
        self.report(here, op, name, text, uses)

    def report(self, here: Pass, op: Op, name: str, text: str, uses: Iterable[Use] = ()) -> None:
        """Adds a finding on a gradient op; `text` has `%s` for the variable. `uses` belong to the forward block."""
        notes = [
            Note(f"used by {source.type} here", source.location)
            for source in (here.forward.ops[use.op] for use in list(uses)[:2] if 0 <= use.op < len(here.forward.ops))
        ]
        message = f"{text.replace('%s', '%' + name)}; give the values of %{name} names of their own"
        self.findings.append(at_op("gradient-of-another-value", message, op, focus=f"%{name}", notes=notes))


def _scopes(slots: Slots) -> tuple[str, ...]:
    """The variables that hold step scopes, by which an op with a sub-block and its gradient op are matched."""
    return slots.get("StepScopes") or slots.get("Scope") or slots.get("step_scopes") or ()


def _adds_up(op: Op) -> bool:
    names = {variable_of_gradient(name) for name in op.names}
    return (op.type == "sum" or any(KEPT in n for n in op.output_names)) and len(names) == 1


_THROUGH = {"while": through_loop, "conditional_block": through_branch, "recurrent": through_steps}
