"""One pass over the ops of a program in the order they run: names, roles, slots, attributes, types."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from itertools import chain, compress
from typing import Any

from pstranspile.compiler.verify import forms
from pstranspile.compiler.verify.flow import Given, TypeTable, VarType
from pstranspile.compiler.verify.frame import VALUES, Frame, SubBlockTypes
from pstranspile.compiler.verify.names import Names
from pstranspile.compiler.verify.places import Findings, declared_here, slot_text
from pstranspile.compiler.verify.references import references
from pstranspile.compiler.verify.roles import check_number, check_role_vars, check_roles, is_sound_pair
from pstranspile.ir.attributes import Strings
from pstranspile.ir.describe import var_text
from pstranspile.ir.diagnostics import Severity
from pstranspile.ir.frozen import EMPTY
from pstranspile.ir.model import Op, TensorType
from pstranspile.ops import schema_of
from pstranspile.ops.shapes import ShapeProblem

EMPTY_NAME = "@EMPTY@"
"""The name that Fluid's gradient makers write where there is no variable."""


class Walk:
    """Walks a program whose blocks are sound; `findings` takes what is wrong. `visited` are the blocks
    that run, `referring` the places of the ops that run others. `kept` are the types of persistable variables that
    another program has made; their declarations say no more."""

    def __init__(self, findings: Findings, kept: Mapping[str, TensorType] = EMPTY):
        self.findings = findings
        self.kept = kept
        self.types = TypeTable()
        self.blocks = findings.blocks
        self.names = Names(self.blocks)
        self.visited: set[int] = set()
        self.unknown_ops: dict[str, list[tuple[int, int]]] = {}
        self.referring: list[tuple[int, int]] = []
        self.is_server = False
        self._ready: dict[int, dict[str, int | None]] = {}
        # keys of ops (see `_scan`) with nothing wrong -> do they run blocks, and the types of their outputs
        self._sound: dict[Any, tuple[bool, tuple[int, ...]]] = {}
        self._attr_numbers: dict[Any, int] = {}
        self._attrs_by_id: dict[int, int] = {}
        self._reported: set[tuple[str, int | None, str]] = set()
        self._frames: list[Frame] = []

    def run(self) -> None:
        """Walks block 0 and every block that its ops run, directly or through other blocks."""
        self.is_server = any(op.type == "listen_and_serv" for op in self.blocks[0].ops)
        self._frames = [self._open(0, frozenset())]
        running = [self._scan(self._frames[0])]
        while running:
            sub_block = next(running[-1], None)
            if sub_block is None:
                running.pop()
                self._frames.pop()
            else:
                self._frames.append(sub_block)
                running.append(self._scan(sub_block))

    def made(self) -> dict[str, TensorType]:
        """The types that ops have given the persistable variables of block 0, as far as they are known."""
        result: dict[str, TensorType] = {}
        for name, number in self._ready.get(0, EMPTY).items():
            var = self.blocks[0].vars.get(name)
            if var is not None and var.persistable and name in self.names.written_globals:
                known = self.types[number].known
                if known is not None:
                    result[name] = known
        return result

    # Blocks

    def _open(self, index: int, injected: frozenset[str]) -> Frame:
        """A frame for a block about to run."""
        self.visited.add(index)
        block = self.blocks[index]
        ready: dict[str, int | None] = {EMPTY_NAME: None}
        if index == 0:
            types = dict(zip(block.vars, map(self.types.declared, block.vars.values()), strict=True))
            held = [var.persistable or var.kind not in VALUES for var in block.vars.values()]
            ready.update(compress(types.items(), held))
            for name in self.kept.keys() & ready.keys():
                ready[name] = self.types.number(VarType(self.kept[name], self.kept[name]))
            type_of = types.get
        else:
            type_of = SubBlockTypes(self.types, self.names, index).__getitem__
            for name, var in block.vars.items():
                if var.persistable or var.kind not in VALUES or name in injected:
                    ready[name] = type_of(name)
        self._ready[index] = ready
        return Frame(index, block, ready if index == 0 else dict(ready), type_of, injected)

    def _enter(self, op: Op, frame: Frame, place: tuple[int, int]) -> Iterator[Frame]:
        """Frames of the blocks that an op runs."""
        injected: frozenset[str] | None = None
        for _, index in references(op):
            if not 0 <= index < len(self.blocks) or index in self.visited:
                continue
            if injected is None:
                texts = chain.from_iterable(value for value in op.attrs.values() if isinstance(value, Strings))
                names = [text.partition(":")[0] if op.type == "listen_and_serv" else text for text in texts]
                injected = frozenset([*op.input_names, *names])
            if op.type == "listen_and_serv":  # what arrives stands in any of its blocks
                unwritten = self.blocks[index].vars.keys() - self.names.written(index)
                sub_block = self._open(index, injected | unwritten)
            else:
                sub_block = self._open(index, injected)
            if op.type == "while":
                sub_block.carried = self.names.written(index)
            yield sub_block

    # Ops

    def _scan(self, frame: Frame) -> Generator[Frame]:
        """Checks the ops of a block in order; yields the blocks they run, to be walked before going on."""
        index, block, ready, type_of = frame.index, frame.block, frame.ready, frame.type_of
        sound, ids, flat = self._sound, self._attrs_by_id, chain.from_iterable
        variables = block.vars
        check_roles(block.ops, index, self.findings)
        for position, op in enumerate(block.ops):
            inputs, outputs, role_vars = op.inputs, op.outputs, op.role_vars
            reads, writes = tuple(flat(inputs.values())), tuple(flat(outputs.values()))
            read_types, written_types = tuple(map(ready.get, reads)), tuple(map(type_of, writes))
            if None in read_types:  # a name that is not declared, or not known to hold a value
                if not all(map(ready.__contains__, reads)):
                    self._check_reads(op, frame, position)
                read_types = tuple(map(ready.get, reads))
            missing: set[str] = set()
            if None in written_types:
                missing = {name for name in writes if name != EMPTY_NAME and type_of(name) is None}
                self._report_undeclared(op, False, missing, (index, position))
            key = (
                op.type,
                ids.get(id(op.attrs)) or self._attr_number(op),
                tuple(inputs),
                tuple(map(len, inputs.values())),
                tuple(outputs),
                tuple(map(len, outputs.values())),
                read_types,
                written_types,
            )
            runs_blocks, given = sound.get(key) or self._check_form(op, key, frame, position)
            ready.update(zip(writes, given, strict=True))
            for name in missing:  # they count as no variables
                ready.pop(name, None)
            if index:
                for name, number in zip(writes, given, strict=True):
                    owner = self.names.owner(name, index)
                    if owner is not None:
                        outer = self._ready.setdefault(owner, {})
                        outer[name] = number if owner == index else self.types.either(outer.get(name), number)
            if role_vars and not is_sound_pair(role_vars, variables):
                self._check_role_vars(op, (index, position))
            if runs_blocks:
                self.referring.append((index, position))
                yield from self._enter(op, frame, (index, position))

    def _attr_number(self, op: Op) -> int:
        """The same number for attributes of an op type that are equal in name, kind and value."""
        attrs = op.attrs
        key: Any = (op.type, tuple(attrs), tuple(map(type, attrs.values())), tuple(attrs.values()))
        try:
            number = self._attr_numbers.setdefault(key, len(self._attr_numbers) + 1)
        except TypeError:  # a value of no kind, such as a list: equal to no other
            number = self._attr_numbers[id(attrs)] = len(self._attr_numbers) + 1
        self._attrs_by_id[id(attrs)] = number
        return number

    def _check_form(self, op: Op, key: Any, frame: Frame, position: int) -> tuple[bool, tuple[int, ...]]:
        """Slots, attributes and types of an op of a form not seen before; remembers the form if it is sound.

        Gives whether the op runs blocks, and the numbers of the types of what it writes.
        """
        place = (frame.index, position)
        before = len(self.findings.all)
        schema = schema_of(op.type)
        runs_blocks = bool(references(op))
        if schema is None:
            self.unknown_ops.setdefault(op.type, []).append(place)
            if not forms.generic_attributes_fit(op.attrs):
                forms.check_attributes(op, None, place, self.findings)
        else:
            if not forms.slots_fit(op, schema):
                forms.check_slots(op, schema, place, self.findings)
            if not forms.attributes_fit(op.attrs, schema):
                forms.check_attributes(op, schema, place, self.findings)
        if len(self.findings.all) > before:
            return runs_blocks, tuple([self.types.unsure(frame.type_of(name)) for name in op.output_names])
        given = self.types.given(op, frame.ready, frame.type_of)
        if given.certain or given.likely or given.differs:
            self._report_types(op, given, place)
        elif schema is not None:
            self._sound[key] = runs_blocks, given.numbers
        return runs_blocks, given.numbers

    def _report_types(self, op: Op, given: Given, place: tuple[int, int]) -> None:
        """What can't be computed is an error; what only declarations say is a warning, as Fluid never looks at them."""
        wrong = given.certain or given.likely
        problems = list(given.differs)
        if wrong is not None:
            problems.insert(0, ShapeProblem(wrong.message, wrong.slot, op.input(wrong.slot) or ""))
        for problem in problems:
            var = self.names.find(problem.variable, place[0]) if problem.variable else None
            focus = var_text(problem.variable) if problem.variable else ""
            focus = focus or (slot_text(problem.slot) if problem.slot else op.type)
            notes = declared_here(var) if var is not None else ()
            error = given.certain is not None and problem is problems[0]
            severity = Severity.ERROR if error else Severity.WARNING
            self.findings.op("type-mismatch", problem.message, place, focus=focus, severity=severity, notes=notes)

    # What is read

    def _check_reads(self, op: Op, frame: Frame, position: int) -> None:
        """Looks at every name an op reads that is not known to hold a value, and remembers the outcome."""
        place = (frame.index, position)
        missing: set[str] = set()
        for slot, names in op.inputs.items():
            for name in names:
                if name in frame.ready:
                    continue
                owner = self.names.owner(name, frame.index)
                if owner is not None and not self._holds_value(name, owner, frame, op):
                    if self._does_without(op, slot, frame):
                        self._report_unwritten(op, name, owner, place, "it is left out")
                        continue
                    fed = (
                        owner == place[0] == 0
                        and name in op.output_names
                        and self.names.first_writer(name, owner) is op
                    )
                    self._report_unwritten(op, name, owner, place, "it has a value only if it is fed" if fed else "")
                elif owner is None and not self._needs_no_declaration(op, slot, frame.index):
                    missing.add(name)
                if owner is not None:
                    held = self._ready.get(owner, EMPTY).get(name)
                    frame.ready[name] = self._type_before(name, owner, frame) if held is None else held
        if missing:
            self._report_undeclared(op, True, missing, place)

    def _type_before(self, name: str, owner: int, frame: Frame) -> int | None:
        """The type of what no op has written yet; an input that ops overwrite is declared as the last one leaves it."""
        overwritten = owner == 0 and name in self.names.written_globals and not self.blocks[0].vars[name].persistable
        return self.types.unsure(frame.type_of(name)) if overwritten else frame.type_of(name)

    def _needs_no_declaration(self, op: Op, slot: str, block: int) -> bool:
        """Whether a variable of a slot counts as zero, or comes from outside, when it is not declared.

        Besides UNDECLARED_SLOTS these are gradients of outputs that nothing uses, where the gradient op runs blocks
        and another output has a gradient: Fluid names them all, and declares those that something computes.
        """
        if (op.type, slot) in forms.UNDECLARED_SLOTS:
            return True
        if not slot.endswith("@GRAD") or not references(op):
            return False
        return any(self.names.owner(name, block) is not None for name in op.inputs[slot])

    def _does_without(self, op: Op, slot: str, frame: Frame) -> bool:
        """Whether Fluid runs the op although a variable of a slot has no value.

        Ops that run blocks only name what their blocks read; others leave it out, if any other has a value.
        """
        if references(op) or (op.type, slot) == ("select_input", "X"):
            return True
        schema = schema_of(op.type)
        if schema is None or slot not in schema.may_lack:
            return False
        owners = {
            name: self.names.owner(name, frame.index) for slot in schema.may_lack for name in op.inputs.get(slot, ())
        }
        return any(
            name in frame.ready or (owner is not None and self._holds_value(name, owner, frame, op))
            for name, owner in owners.items()
        )

    def _holds_value(self, name: str, owner: int, frame: Frame, op: Op) -> bool:
        known = self._ready.get(owner)
        if known is None or name in known:  # None: a block outside those that are running (a forward block)
            return True
        if owner == 0 and (name not in self.names.written_globals or self.blocks[0].vars[name].need_check_feed):
            return True  # what nothing writes is an input of the program, and so is what is declared as one
        if owner != frame.index and any(name in outer.carried for outer in self._frames):
            return True  # written by an earlier turn of the loop
        return any(0 <= i < len(self.blocks) and name in self.names.written(i) for _, i in references(op))

    def _report_unwritten(self, op: Op, name: str, owner: int, place: tuple[int, int], runs: str) -> None:
        """Reports a variable that is read too early: a warning if Fluid runs the op, with `runs` for what it does."""
        severity = Severity.WARNING if runs else Severity.ERROR
        if self._is_reported(f"unwritten {severity.value}", owner, name):
            return
        message, notes = forms.unwritten(op, name, self.names.first_writer(name, owner))
        message += f"; {runs}" if runs else ""
        self.findings.op("read-before-write", message, place, focus=var_text(name), severity=severity, notes=notes)

    def _is_reported(self, what: str, owner: int | None, name: str) -> bool:
        """Whether this has been reported before; from now on it has."""
        count = len(self._reported)
        self._reported.add((what, owner, name))
        return len(self._reported) == count

    def _report_undeclared(self, op: Op, reading: bool, names: set[str], place: tuple[int, int]) -> None:
        """Reports names without a declaration, each where it is first used.

        In a slot that may be empty one counts as no variable, but not in a list.
        """
        needed = forms.needed_variables(op, reading)
        for name in dict.fromkeys(op.input_names if reading else op.output_names):
            severity = Severity.ERROR if name in needed else Severity.WARNING
            if name not in names or self._is_reported(f"undeclared {severity.value}", None, name):
                continue
            elsewhere = next((i for i, other in enumerate(self.blocks) if name in other.vars), None)
            if elsewhere is not None:
                hint = f"; block ^{elsewhere} declares one, but it does not enclose this block"
            else:
                hint = self.findings.suggest(name, self.names.visible(place[0]), "%")
            what = "" if severity is Severity.ERROR else "; it counts as no variable"
            message = f"{var_text(name)} is not declared{what}{hint}"
            self.findings.op("undeclared-variable", message, place, focus=var_text(name), severity=severity)

    def _check_role_vars(self, op: Op, place: tuple[int, int]) -> None:
        """Role variables are pairs of declared names. On a server they name variables of the trainers."""
        if not check_number(op, place, self.findings) or self.is_server:
            return
        if any(("undeclared error", None, name) in self._reported for name in op.role_vars or ()):
            return
        visible = self.names.visible(place[0])
        check_role_vars(op, place, self.findings, lambda name: self.names.find(name, place[0]), visible)
