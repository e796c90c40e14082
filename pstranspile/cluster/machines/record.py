"""A record of the turns of the processes of a real run, and a scheduler that repeats them in a simulation.

A machine depends only on the messages it takes and their order, and on the order of turns among the machines of its
process. Both are recorded, so the simulation ends with the same bits.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast
from zlib import crc32

import numpy as np

from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.message import Message
from pstranspile.cluster.machines.network import Link, Machine, Scheduler, sentence
from pstranspile.cluster.machines.trainer import Trainer
from pstranspile.ir.argument_checks import MOST_STEPS
from pstranspile.ir.diagnostics import DiagnosticError, Note, error
from pstranspile.ir.json_text import json_fault
from pstranspile.ir.model import Location
from pstranspile.ir.reading import beginning, kind_of, read_regular, reason_for
from pstranspile.runtime.files.outputs import write_output

FORM = "pstranspile-record-1"
MOST = 1 << 32
"""Bytes that a record may have."""


class TakenMessage(NamedTuple):
    """A message that a machine took: its number on the link from `source`, and a check sum of its payload."""

    source: str
    sequence: int
    check_sum: int


class Turn(NamedTuple):
    """A turn of a machine, with the messages that it took; None: the feed of its trainer has ended, and the trainer
    leaves.
    """

    machine: str
    taken_messages: tuple[TakenMessage, ...] | None


class Record(NamedTuple):
    """A run: the seed of its random numbers (None: the programs'), its steps, and the turns of each process."""

    seed: int | None
    steps: int
    turns: Mapping[str, Sequence[Turn]]


def check_sum(value: Any) -> int:
    """A check sum of the bits of a message's payload."""
    if isinstance(value, np.ndarray):
        array: Any = np.ascontiguousarray(value)
        return crc32(array.tobytes(), crc32(f"{array.dtype.str}{array.shape}".encode()))
    if isinstance(value, tuple | list):
        items = cast("Iterable[Any]", value)
        total = crc32(type(items).__name__.encode())
        for item in items:
            total = crc32(check_sum(item).to_bytes(4, "little"), total)
        return total
    return crc32(repr(value).encode())


def taken_of(message: Message) -> TakenMessage:
    """The entry of a record for a message."""
    return TakenMessage(message.source, message.sequence, check_sum(message.payload))


# reading and writing the file


def line_of(turn: Turn) -> str:
    """A turn as a line of a record."""
    return json.dumps([turn.machine, turn.taken_messages], separators=(",", ":")) + "\n"


def write_record(path: str, seed: int | None, steps: int, files: Mapping[str, str]) -> None:
    """Writes a record made of the files of the processes, as far as they exist. Raises DiagnosticError.

    The last line of a process that was killed may be incomplete; it is left out.
    """
    parts = [json.dumps({"form": FORM, "seed": seed, "steps": steps}) + "\n"]
    for process, file in files.items():
        written = Path(file).read_text("utf-8") if Path(file).exists() else ""
        parts += [json.dumps({"process": process}) + "\n", written[: written.rfind("\n") + 1]]
    write_output(path, "".join(parts).encode())


def read_record(path: str) -> Record:
    """Reads a record. Raises DiagnosticError (`cluster-record`) if the file is none, at the first wrong line."""
    number = 0
    try:
        lines = read_regular(Path(path), MOST).decode().splitlines()
        turns: dict[str, list[Turn]] = {}
        seed, steps = None, 0
        for number, line in enumerate(lines, 1):
            value: Any = json.loads(line)
            if number == 1:
                seed, steps = _run(value)
            elif isinstance(value, dict):
                process = _name(cast("dict[str, Any]", value).get("process"), "process")
                if process in turns:
                    raise ValueError(f"the turns of {process[:80]} begin a second time")
                turns[process] = []
            elif not turns:
                raise ValueError("a turn stands before the first process")
            else:
                turns[next(reversed(turns))].append(_turn(value))
        if not lines:
            raise ValueError("it is empty")
        return Record(seed, steps, turns)
    except OSError as problem:
        raise _record_error(f"can't be read: {reason_for(problem, path)}", path) from None
    except (ValueError, RecursionError) as problem:
        kind = kind_of(beginning(path), path) if number < 2 else None  # the kind of another file
        reason = kind or json_fault(problem).reason
        place = Location(path, number) if number and kind is None else path
        raise _record_error(f"is no record of a run: {reason}", place) from None


def _run(value: Any) -> tuple[int | None, int]:
    """The seed and the number of steps of the run, which the first line of a record states. Raises ValueError."""
    if not isinstance(value, dict) or cast("dict[str, Any]", value).get("form") != FORM:
        raise ValueError(f"its first line does not say that its form is {FORM}")
    seed, steps = (cast("dict[str, Any]", value).get(key) for key in ("seed", "steps"))
    if seed is not None and type(seed) is not int:
        raise ValueError("its seed is no whole number")
    if type(steps) is not int or not 1 <= steps <= MOST_STEPS:
        raise ValueError("its number of steps is none that a run has")
    return seed, steps


def _turn(value: Any) -> Turn:
    """A turn, which a line of a record holds. Raises ValueError."""
    if not isinstance(value, list) or len(cast("list[Any]", value)) != 2:
        raise ValueError("a machine and the messages that it took are expected")
    machine, taken = cast("list[Any]", value)
    if taken is not None and not isinstance(taken, list):
        raise ValueError("the messages that a machine took are no list")
    messages = None if taken is None else tuple(map(_parse_message, cast("list[Any]", taken)))
    return Turn(_name(machine, "machine"), messages)


def _parse_message(value: Any) -> TakenMessage:
    if isinstance(value, list) and [type(item) for item in cast("list[Any]", value)] == [str, int, int]:
        return TakenMessage(*cast("tuple[str, int, int]", tuple(cast("list[Any]", value))))
    raise ValueError("a message is the name of its source, its number and its check sum")


def _name(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"the name of a {what} is no text")
    return value


def _record_error(message: str, place: Location | str = "", notes: Sequence[Note] = ()) -> DiagnosticError:
    location = Location(place) if isinstance(place, str) and place else place or None
    return DiagnosticError([error("cluster-record", message, location, notes=notes)])


# repeating the run


def replay(cluster: Cluster, steps: int) -> None:
    """Runs a cluster that has a `RecordedScheduler` to the end of the record. Raises DiagnosticError."""
    for trainer in cluster.trainers:
        trainer.limit_to(steps)
    cluster.start()


class RecordedScheduler(Scheduler):
    """Gives every machine its turns as they were recorded."""

    def __init__(self, record: Record):
        super().__init__()
        self._remaining_turns = {process: deque(turns) for process, turns in record.turns.items()}
        self._machines: dict[str, Machine] = {}
        self._posted_messages: dict[tuple[str, str], deque[Message]] = {}

    def wake(self, machine: Machine) -> None:
        """Permits the machine to have turns from now on."""
        self._machines[machine.name] = machine

    def deliver(self, link: Link, message: Message) -> None:
        """Keeps the message until a recorded turn takes it."""
        self._machines[link.to_name] = link.target
        self._posted_messages.setdefault((link.from_name, link.to_name), deque()).append(message)

    def run(self) -> None:
        """Runs to the end of the record. Raises DiagnosticError where the machines do not continue as recorded."""
        going = True
        while going:
            going = False
            for turns in self._remaining_turns.values():
                while turns and self._possible(turns[0]):
                    self._take(turns.popleft())
                    going = True
        following = [turns[0] for turns in self._remaining_turns.values() if turns]
        if following:
            messages = {
                turn: [f"message {m.sequence} of {m.source}" for m in turn.taken_messages or ()] for turn in following
            }
            notes = [Note(f"{t.machine} should go on with {', '.join(m) or 'nothing'}") for t, m in messages.items()]
            raise _record_error("the machines do not go on as they did in the recorded run", notes=notes)
        trainers = [machine for machine in self._machines.values() if isinstance(machine, Trainer)]
        halted = [trainer for trainer in trainers if not trainer.has_left and trainer.step < trainer.limit]
        if halted:
            done = [Note(f"{one.name} has done {max(one.step, 0)} of {one.limit} steps") for one in halted]
            done += [Note(sentence(waiting)) for machine in self._machines.values() if (waiting := machine.waiting())]
            raise _record_error("the recorded run ended before all was done", notes=done)

    def _possible(self, turn: Turn) -> bool:
        """Whether all messages of a turn have been posted."""
        if turn.machine not in self._machines:
            return False
        wanted: dict[str, int] = {}
        for taken in turn.taken_messages or ():
            wanted[taken.source] = wanted.get(taken.source, 0) + 1
        return all(
            len(self._posted_messages.get((source, turn.machine), ())) >= count for source, count in wanted.items()
        )

    def _take(self, turn: Turn) -> None:
        machine = self._machines[turn.machine]
        self.now += 1
        if turn.taken_messages is None:
            if not isinstance(machine, Trainer):
                raise _record_error(f"{machine.name} is no trainer, and can't be told that there is no more to do")
            machine.end_feed()
            return
        for taken in turn.taken_messages:
            message = self._posted_messages[taken.source, turn.machine].popleft()
            if taken_of(message) != taken:
                raise _record_error(f"a message is not that of the recorded run: {message}")
            machine.inbox.append(message)
        machine.turn()
