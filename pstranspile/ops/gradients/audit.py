"""The check that the gradients of a program belong to the right values.

Fluid names a gradient after its variable. A variable may have several values: a loop overwrites its loop variables, a
branch overwrites earlier values. Their gradients then share one name, so a gradient op may read the gradient of another
value, or read a variable that was overwritten. The audit follows the backward pass term by term. Every gradient that is
read must be the sum over all uses of its value, and of no other. Every value that is read must be the one that the
forward op read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from pstranspile.ir.diagnostics import Diagnostic, Note, at_op
from pstranspile.ir.model import Op, Program, Slots
from pstranspile.ir.roles import OpRole
from pstranspile.ir.types import VarKind
from pstranspile.ops.gradient import EMPTY_NAME, SUFFIX, differentiated, gradient_name
from pstranspile.ops.gradients.frames import Frame, Values
from pstranspile.ops.gradients.inner import Pass, through_branch, through_loop, through_steps
from pstranspile.ops.gradients.loop_terms import KEPT
from pstranspile.ops.gradients.needs import Needs, Terms
from pstranspile.ops.gradients.old_values import OLD, is_backward
from pstranspile.ops.gradients.versions import (
    WITH_BLOCKS,
    Expected,
    Forward,
    Use,
    fits,
    inner_block,
    is_forward,
    keeps_value,
    placed,
    signature,
)

LOSS = OpRole.BACKWARD | OpRole.LOSS

_SKIPPED = OpRole.OPTIMIZE | OpRole.RPC | OpRole.DIST | OpRole.LR_SCHED


def wrong_gradients(program: Program, stopped: Callable[[str], bool] | None = None) -> list[Diagnostic]:
    """Findings on gradient ops whose result is wrong because a variable has several values.

    `stopped` tells which variables have no gradient, by default all without one.
    """
    ops = program.main_block.ops
    seeds = [at for at, op in enumerate(ops) if op.role == LOSS]
    for seed, end in pairwise((*seeds, len(ops))):
        kept = (op for at, op in enumerate(ops) if seed <= at < end or not is_backward(op))
        whole = program if len(seeds) == 1 else program.with_main_block(program.main_block._replace(ops=tuple(kept)))
        findings = _wrong_in_pass(whole, differentiated(next(iter(ops[seed].output_names), "")), stopped)
        if findings:
            return findings
    return []


def _wrong_in_pass(program: Program, loss: str, stopped: Callable[[str], bool] | None) -> list[Diagnostic]:
    """Findings on the only backward pass of a program."""
    program = _without_rest(program)
    if not _overwrites(program):
        return []
    made = _made(program)
    needs = Needs(program, loss, stopped or (lambda name: name not in made))
    audit = Audit(needs)
    audit.follow()
    return audit.findings


def _without_rest(program: Program) -> Program:
    """The program without ops of the forward pass behind the last gradient op: they change no value that it reads."""
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


def _made(program: Program) -> set[str]:
    """The variables that get a gradient; one that a gradient block keeps for itself is none of a variable outside."""
    result: set[str] = set()
    for block in program.blocks:
        own = program.blocks[block.forward_block].vars if block.forward_block >= 0 else None
        for op in block.ops:
            if is_backward(op):
                of = {differentiated(name) for name in op.output_names if SUFFIX in name}
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
    return result | {differentiated(name) for op in ops for name in op.output_names}


class Audit:
    """One pass over the gradient ops of a program."""

    def __init__(self, needs: Needs):
        self.needs = needs
        self.program = needs.program
        self.findings: list[Diagnostic] = []

    def follow(self) -> None:
        """Follows the gradient ops of block 0, then checks the gradients of variables that no op writes."""
        forward = self.needs.forward(0)
        frame = Frame(None, frozenset(self.program.main_block.vars))
        ops = [op for op in self.program.main_block.ops if is_backward(op) and not (op.role or 0) & _SKIPPED]
        here = self._pass(forward, self.needs.terms, frame, Values(forward, None, {}), ops)
        self._ops(here, ops)
        if self.findings:
            return
        renamed = {differentiated(name): held for name, held in frame.local.items() if SUFFIX in name}
        for (name, version), uses in sorted(self.needs.terms.items(), key=lambda item: item[0]):
            given = frame.find(gradient_name(name))
            var = self.program.main_block.vars.get(name)
            if given is None and var is not None and var.parameter is not None:
                given = renamed.get(name)  # a trainer's name of a gradient that it sends
            has_gradient = given is not None or (var is not None and var.parameter is not None)
            if version == 0 and name not in forward.last and has_gradient and given != frozenset(uses) and ops:
                self._wrong(here, ops[-1], name, given, uses)

    def _pass(self, forward: Forward, terms: Terms, frame: Frame, values: Values, ops: Sequence[Op]) -> Pass:
        by_signature: dict[tuple[object, ...], list[Expected]] = {}
        for alternatives in self.needs.expected(forward.number):
            for expected in reversed(alternatives):
                by_signature.setdefault(signature(expected.op), []).append(expected)
        for index, op in enumerate(forward.ops):
            if op.type in WITH_BLOCKS:
                by_signature.setdefault((f"{op.type}_grad", _scopes(op.outputs)), []).append(Expected(index, 0, op))
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
                self._other(here, op)

    def _other(self, here: Pass, op: Op) -> None:
        """Follows ops that compute no gradient of an op: sums of terms, copies, zeros, and a user's changes to
        gradients.
        """
        frame = here.frame
        for name in op.output_names:
            if SUFFIX not in name or name == EMPTY_NAME:
                continue
            terms = [
                (given, frame.find(given))
                for given in op.input_names
                if differentiated(given) == differentiated(name) and SUFFIX in given and op.type != "fill_zeros_like"
            ]
            total: frozenset[Use] = frozenset()
            for _, uses in terms:
                if uses and total & uses:
                    self.report(here, op, name, "adds the same term of %s twice")
                total |= uses or frozenset()
            frame.write(name, total)

    def _plain(self, here: Pass, op: Op, expected: Expected) -> None:
        forward, index = here.forward, expected.number
        source = forward.ops[index]
        if keeps_value(source):
            return
        if source.type == "increment":  # a step counter is counted back
            for name in source.output_names:
                here.values.back(name)
            return
        for slot, names in op.inputs.items():
            for name in names:
                if SUFFIX in name and OLD not in name:
                    self.complete(here, op, index, name)
                elif here.forward.kind(name.partition(OLD)[0]) is VarKind.LOD_TENSOR:
                    self._check_version(here, op, slot, name, index)
        for use, name in placed(expected, op):
            if SUFFIX in name:
                self.give(here, name, use, differentiated(name))

    def _check_version(self, here: Pass, op: Op, slot: str, name: str, index: int) -> None:
        """Checks that a gradient op reads the version that its forward op read or wrote."""
        source, base = here.forward.ops[index], name.partition(OLD)[0]
        made = slot in source.outputs if slot not in source.inputs else False
        versions = here.forward.after if made or base not in source.input_names else here.forward.before
        wanted = versions[index].get(base)
        if wanted is not None and here.values.seen(name) != wanted:
            self.report(here, op, base, "finds another value of %s than its forward op had")

    def complete(self, here: Pass, op: Op, index: int, name: str, *, of: str = "") -> None:
        """Checks that a gradient that is read is the sum over the uses of its value."""
        of = of or differentiated(name)
        if not here.forward.is_float(of):
            return
        version = here.forward.after[index].get(of)
        if version is None:
            return
        wanted = frozenset(here.terms.get((of, version), ()))
        terms = here.frame.find(name)
        if of == self.needs.loss and not wanted and here.forward.number == 0:
            return
        if (terms or frozenset()) != wanted:
            self._wrong(here, op, of, terms, wanted)

    def whole(self, within: Pass, op: Op, name: str, uses: frozenset[Use]) -> None:
        """Checks that the gradient from a sub-block covers the uses of the variable's initial value there."""
        wanted = frozenset(within.terms.get((name, 0), ()))
        if uses != wanted:
            self._wrong(within, op, name, uses, wanted)

    def give(self, here: Pass, gradient: str, use: Use, of: str) -> None:
        """Sets a gradient to a term, or to no term if the use does not lead to the loss, as it is then zero."""
        version = here.forward.before[use.op].get(of, 0)
        here.frame.write(gradient, frozenset({use}.intersection(here.terms.get((of, version), ()))))

    def ends(self, here: Pass, index: int) -> frozenset[str]:
        """The variables of a sub-block whose last values lead to the loss."""
        return self.needs.inner(here.forward.ops[index], self.needs.active(here.forward, here.terms, index))[1]

    def within(self, here: Pass, op: Op, index: int, given: dict[str, frozenset[Use]]) -> Pass:
        """Follows the gradient block of an op for its forward op's sub-block; `given` are its initial gradients."""
        source = here.forward.ops[index]
        forward = self.needs.forward(inner_block(self.program, source))
        terms, _ = self.needs.inner(source, self.needs.active(here.forward, here.terms, index))
        block = self.program.blocks[inner_block(self.program, op)]
        frame = Frame(here.frame.steps(), frozenset(block.vars))
        frame.local.update(given)
        kept = set(source.inputs.get("X", ())) if source.type == "while" else None
        values = Values(forward, here.values, dict(here.forward.before[index]), dict(here.forward.after[index]), kept)
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
    """The variables that hold step scopes. They match ops with sub-blocks and their gradient ops."""
    return slots.get("StepScopes") or slots.get("Scope") or slots.get("step_scopes") or ()


def _adds_up(op: Op) -> bool:
    names = {differentiated(name) for name in op.names}
    return (op.type == "sum" or any(KEPT in n for n in op.output_names)) and len(names) == 1


_THROUGH = {"while": through_loop, "conditional_block": through_branch, "recurrent": through_steps}
