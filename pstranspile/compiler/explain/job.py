"""A compiled job as `explain` reads it: the programs of every machine, the plan, and the lines of the source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from pstranspile.compiler.explain.answers import OpPosition, ops_of
from pstranspile.ir.diagnostics import similar_names
from pstranspile.ir.layout import statement_text
from pstranspile.ir.model import MAIN, Module, Op, Origin, Program, SourceText
from pstranspile.ir.patterns import Pattern
from pstranspile.ir.text.printer import op_text
from pstranspile.ops.attributes import strings_attr
from pstranspile.ops.textual import LANGUAGE

if TYPE_CHECKING:
    from pstranspile.compiler.compile import Compiled


# The messages between trainers and servers, by endpoint and variable.

Key = tuple[str, str]
"""Endpoint and variable."""

BARRIERS = ("send_barrier", "fetch_barrier")


@dataclass
class Messages:
    """Every message: (endpoint, variable) -> the ops of trainers that send it, fetch it, or look rows of it up.

    `barriers`: endpoint -> the barriers that reach it. `serving`: endpoint -> its listen_and_serv. `about`:
    (machine, parameter) -> the sends that name it first in their role variables.
    """

    sends: dict[Key, list[OpPosition]] = field(default_factory=dict[Key, list[OpPosition]])
    fetches: dict[Key, list[OpPosition]] = field(default_factory=dict[Key, list[OpPosition]])
    lookups: dict[Key, list[OpPosition]] = field(default_factory=dict[Key, list[OpPosition]])
    barriers: dict[str, list[OpPosition]] = field(default_factory=dict[str, list[OpPosition]])
    serving: dict[str, OpPosition] = field(default_factory=dict[str, OpPosition])
    about: dict[Key, list[OpPosition]] = field(default_factory=dict[Key, list[OpPosition]])


def sent_by(op: Op) -> list[Key]:
    """The endpoints and variables of a send; a single value goes to all endpoints that it names."""
    return _endpoint_name_pairs(strings_attr(op, "epmap"), strings_attr(op, "send_varnames") or op.inputs.get("X", ()))


def fetched_by(op: Op) -> list[Key]:
    """The endpoints and variables of a recv."""
    return _endpoint_name_pairs(
        strings_attr(op, "epmap"), strings_attr(op, "recv_varnames") or op.outputs.get("Out", ())
    )


def looked_up_by(op: Op) -> list[Key]:
    """The endpoints of a lookup, with the slices (for `prefetch`, the ids) that it names."""
    if op.type == "prefetch":
        return _endpoint_name_pairs(strings_attr(op, "epmap"), op.inputs["X"])
    return _endpoint_name_pairs(
        strings_attr(op, "endpoints") or strings_attr(op, "epmap"), strings_attr(op, "table_names")
    )


def _endpoint_name_pairs(endpoints: Sequence[str], names: Sequence[str]) -> list[Key]:
    if len(names) == 1:
        return [(endpoint, names[0]) for endpoint in endpoints]
    return [(endpoint, name) for endpoint, name in zip_longest(endpoints, names) if endpoint and name]


def messages_of(machines: Mapping[str, Mapping[str, Program]]) -> Messages:
    """Reads all messages off the programs of a job."""
    messages = Messages()
    for machine, programs in machines.items():
        for place, op in ops_of(machine, programs):
            _read(messages, place, op)
    return messages


def _read(messages: Messages, place: OpPosition, op: Op) -> None:
    if op.type == "send":
        for key in sent_by(op):
            messages.sends.setdefault(key, []).append(place)
        if op.role_vars:
            messages.about.setdefault((place.machine, op.role_vars[0]), []).append(place)
    elif op.type == "recv":
        for key in fetched_by(op):
            messages.fetches.setdefault(key, []).append(place)
    elif op.type == "prefetch" or "table_names" in op.attrs:
        for key in looked_up_by(op):
            messages.lookups.setdefault(key, []).append(place)
    elif op.type in BARRIERS:
        for endpoint in strings_attr(op, "endpoints"):
            messages.barriers.setdefault(endpoint, []).append(place)
    elif op.type == "listen_and_serv" and place.program == MAIN:
        endpoint = op.attrs.get("endpoint")
        if isinstance(endpoint, str):
            messages.serving[endpoint] = place


def blocks_named(op: Op, name: str) -> dict[str, int]:
    """Variable -> block, from an attribute of listen_and_serv with `variable:block` texts."""
    result: dict[str, int] = {}
    for text in strings_attr(op, name):
        variable, _, block = text.rpartition(":")
        if block.isdigit():
            result[variable] = int(block)
    return result


# The readers and writers of each variable of a machine.


class VariableUse(NamedTuple):
    """An op that uses a variable: program, block and number."""

    program: str
    block: int
    number: int


class VariableUses(NamedTuple):
    """Variable -> the ops of a machine that read it, and those that write it, each once and in order."""

    readers: Mapping[str, list[VariableUse]]
    writers: Mapping[str, list[VariableUse]]

    def read(self, name: str) -> list[VariableUse]:
        """The ops that read a variable."""
        return self.readers.get(name, [])

    def written(self, name: str) -> list[VariableUse]:
        """The ops that write a variable."""
        return self.writers.get(name, [])


def uses_of_machine(programs: Mapping[str, Program]) -> VariableUses:
    """The def-use index of all programs of a machine."""
    readers: dict[str, list[VariableUse]] = {}
    writers: dict[str, list[VariableUse]] = {}
    for program_name, program in programs.items():
        for index, block in enumerate(program.blocks):
            for number, op in enumerate(block.ops):
                used = VariableUse(program_name, index, number)
                for name in dict.fromkeys(op.input_names):
                    readers.setdefault(name, []).append(used)
                for name in dict.fromkeys(op.output_names):
                    writers.setdefault(name, []).append(used)
    return VariableUses(readers, writers)


LONGEST_LINE = 240
"""The most characters of a source line that are recorded; the rest of a longer one (a list of initial values) is left
out.
"""


class UnknownNameError(LookupError):
    """There is no such machine, op or variable; the text names similar ones."""


class Settings(NamedTuple):
    """The settings with which the job cuts and places. `random_seed` is the program's; it shuffles parameters that are
    not cut.
    """

    slice_var_up: bool = True
    min_block_size: int = 8192
    split_method: str = "RoundRobin"
    random_seed: int = 0


SourceLine = Callable[[Origin], str | None]
"""Returns the text of the source op that an origin names; None where it is not known."""


@dataclass(frozen=True, eq=False)
class ExplainedJob:
    """A compiled job: its machines by name, trainers first, each with its programs; `plan` has the content of
    `plan.json`.
    """

    machines: Mapping[str, Mapping[str, Program]]
    plan: Mapping[str, Any]
    settings: Settings
    source_line: SourceLine

    def op(self, place: OpPosition) -> Op:
        """The op at a place."""
        return self.machines[place.machine][place.program].blocks[place.block].ops[place.number]

    def places(self, machine: str) -> Iterator[OpPosition]:
        """Every op of a machine, program by program."""
        return (place for place, _ in ops_of(machine, self.machines[machine]))

    @cached_property
    def uses(self) -> dict[str, VariableUses]:
        """The readers and writers of each variable, by machine."""
        return {name: uses_of_machine(programs) for name, programs in self.machines.items()}

    @cached_property
    def messages(self) -> Messages:
        """All messages between the machines."""
        return messages_of(self.machines)

    @cached_property
    def trainers(self) -> list[str]:
        """The machines without listen_and_serv, by name."""
        return [name for name in self.machines if name not in self.servers.values()]

    @cached_property
    def servers(self) -> dict[str, str]:
        """Endpoint -> the machine that serves there."""
        result: dict[str, str] = {}
        for name, programs in self.machines.items():
            for op in programs[MAIN].main_block.ops if MAIN in programs else ():
                endpoint = op.attrs.get("endpoint")
                if op.type == "listen_and_serv" and isinstance(endpoint, str):
                    result[endpoint] = name
        return result

    def machine(self, name: str) -> str:
        """The machine of this name, or of this endpoint. Raises UnknownNameError."""
        if name in self.machines:
            return name
        if name in self.servers:
            return self.servers[name]
        raise UnknownNameError(f"there is no machine {name!r}; {_near(name, list(self.machines), 'the machines are')}")

    def place(self, machine: str, text: str) -> OpPosition:
        """The place of the op that a text names: `17`, `^2#0`, `startup#3`, `@startup^0#3`. Raises UnknownNameError."""
        match = _PLACE.fullmatch(text.strip())
        if match is None:
            raise UnknownNameError(f"{text[:60]!r} is not the number of an op; write 17, ^2#0 or @startup^0#3")
        program, block, number = match["program"] or MAIN, int(match["block"] or 0), int(match["number"])
        programs = self.machines[machine]
        if program not in programs:
            near = _near(program, list(programs), "it has")
            raise UnknownNameError(f"{machine} has no program @{program}; {near}")
        blocks = programs[program].blocks
        if block >= len(blocks):
            raise UnknownNameError(
                f"@{program} of {machine} has no block ^{block}; its blocks are ^0 to ^{len(blocks) - 1}"
            )
        if number >= len(blocks[block].ops):
            count = len(blocks[block].ops)
            which = f"its ops are 0 to {count - 1}" if count else "it is empty"
            raise UnknownNameError(f"@{program}^{block} of {machine} has no op {number}; {which}")
        return OpPosition(machine, program, block, number)


_PLACE = Pattern(r"(?:@?(?P<program>[^#^@]+)(?=[#^]))?(?:\^(?P<block>[0-9]{1,9})(?=#))?#?(?P<number>[0-9]{1,9})")


def _near(name: str, known: list[str], otherwise: str) -> str:
    near = similar_names(name, known)
    if near:
        return f"did you mean {' or '.join(near)}?"
    shown = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
    return f"{otherwise} {shown}"


def near_variables(name: str, known: list[str]) -> str:
    """The message about a variable that no machine has, with similar names."""
    near = similar_names(name, known, 0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"there are {len(known)} variables, none with a name like it"


def line_of(op: Op) -> str:
    """The text of an op, without indentation, cut off if it is very long."""
    return shorten_line(op_text(op, LANGUAGE))


def shorten_line(text: str) -> str:
    """A line without indentation, cut off if it is very long."""
    text = text.strip()
    return text if len(text) <= LONGEST_LINE else f"{text[:LONGEST_LINE]}..."


def source_line_of(module: Module) -> SourceLine:
    """A function that finds the text of source ops: from their file, or printed if the source is no text."""
    lines = _lines(module.source)

    def find(origin: Origin) -> str | None:
        place = origin.location
        if place is not None and place.line > 0 and module.source is not None and place.file == module.source.file:
            text = statement_text(lines, place.line - 1) if place.line <= len(lines) else None
            return shorten_line(text) if text is not None else None
        program = module.programs.get(origin.program)
        if program is None or origin.op < 0 or origin.block >= len(program.blocks):
            return None
        ops = program.blocks[origin.block].ops
        return line_of(ops[origin.op]) if origin.op < len(ops) else None

    return find


def _lines(source: SourceText | None) -> list[str]:
    return source.text.split("\n") if source else []


def settings_of(compiled: Compiled) -> Settings:
    """The settings with which a compile cut and placed."""
    job, seed = compiled.job, compiled.source.main.random_seed
    return Settings(job.slice_var_up, job.min_block_size, job.split_method, seed) if job else Settings()


def of_compiled(compiled: Compiled) -> ExplainedJob:
    """The job of a compile result."""
    from pstranspile.compiler.plan.plan import plan_json

    return ExplainedJob(
        {name: role.module.programs for name, role in compiled.roles().items()},
        plan_json(compiled.plan, compiled.fingerprint, compiled.distributed_vars),
        settings_of(compiled),
        source_line_of(compiled.source),
    )
