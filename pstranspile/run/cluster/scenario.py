"""What goes wrong in a run, written down: one line for each thing, steps numbered from 1 (docs/reference/faults.md).

seed 7                                  # of the random choices
delay 0.2 1..40                         # a fifth of all messages takes 1 to 40 ticks longer
drop 0.1                                # is sent again until it arrives
duplicate 0.1
keep 2 in kept                          # servers write their state to files of this folder after every 2 updates
late trainer_1 200                      # starts 200 ticks after the others
slow trainer_2 30                       # takes 30 ticks longer for each step
leave trainer_2 step 5
crash trainer_1 step 3 after 2          # in step 3, when it has sent 2 messages
rejoin trainer_1 step 6
crash pserver_0 step 4 restart 50
partition trainer_0 | pserver_0, pserver_1 from 100 to 300
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from pstranspile.ir.diagnostics import MAX_FINDINGS, Diagnostic, DiagnosticError, error, first_findings
from pstranspile.ir.expect import expect
from pstranspile.ir.model import Location
from pstranspile.ir.reading import read_named
from pstranspile.run.cluster import codes
from pstranspile.run.feeds import near

NOTICE = 50
"""Ticks after which the others learn that a machine has crashed, if a scenario says nothing else."""

_DIGITS = re.compile("[0-9]{1,15}").fullmatch
_MAX_BYTES = 16 << 20

MOST_CHANCE = 0.9
"""The largest chance of a fault of a message: some must come through."""


class Late(NamedTuple):
    """The trainer starts so many ticks after the others."""

    machine: str
    ticks: int


class Slow(NamedTuple):
    """The trainer takes so many ticks longer for each step."""

    machine: str
    ticks: int


class Leave(NamedTuple):
    """The trainer leaves in good order before the step: its data end."""

    machine: str
    step: int


class Crash(NamedTuple):
    """The machine ends without a word, in a step, when it has sent (a server: taken) `after` messages of that step.
    A server's step is the update that it makes next.

    `notice`: ticks after which the others learn of it, as of a broken connection; None: never. `restart`: ticks after
    which a server is started again; None: never.
    """

    machine: str
    step: int
    after: int = 0
    notice: int | None = NOTICE
    restart: int | None = None


class Rejoin(NamedTuple):
    """The trainer, if it has crashed or left, is started again, and takes part from the step, or as soon as it can."""

    machine: str
    step: int


class Partition(NamedTuple):
    """No message passes between the two sides from a tick to another; `until` None: for ever."""

    one: tuple[str, ...]
    other: tuple[str, ...]
    since: int
    until: int | None = None


Event: TypeAlias = "Late | Slow | Leave | Crash | Rejoin | Partition"


class Scenario(NamedTuple):
    """What goes wrong in a run. `delay`, `drop` and `duplicate` are the chances of each message. Steps count from 1.

    `ticks` are the shortest and the longest delay. `keep` says after how many updates a server's state is kept, to
    which it returns when it is started again; `folder` where, as a file of each server ("": in memory).
    """

    seed: int = 0
    delay: float = 0.0
    ticks: tuple[int, int] = (1, 20)
    drop: float = 0.0
    duplicate: float = 0.0
    keep: int = 1
    folder: str = ""
    events: tuple[Event, ...] = ()

    @property
    def restarts(self) -> bool:
        """Whether a server is started again."""
        return any(isinstance(event, Crash) and event.restart is not None for event in self.events)

    def __str__(self) -> str:
        """The text, which `parse_scenario` reads."""
        lines = [f"seed {self.seed}"]
        if self.delay or self.ticks != Scenario().ticks:
            lines.append(f"delay {self.delay:g} {self.ticks[0]}..{self.ticks[1]}")
        lines += [
            f"{name} {chance:g}" for name, chance in (("drop", self.drop), ("duplicate", self.duplicate)) if chance
        ]
        if self.keep != 1 or self.folder:
            lines.append(f"keep {self.keep}" + (f" in {self.folder}" if self.folder else ""))
        return "\n".join([*lines, *map(_told, self.events)]) + "\n"


def _told(event: Event) -> str:
    if isinstance(event, Late):
        return f"late {event.machine} {event.ticks}"
    if isinstance(event, Slow):
        return f"slow {event.machine} {event.ticks}"
    if isinstance(event, Leave):
        return f"leave {event.machine} step {event.step}"
    if isinstance(event, Rejoin):
        return f"rejoin {event.machine} step {event.step}"
    if isinstance(event, Partition):
        until = "" if event.until is None else f" to {event.until}"
        return f"partition {', '.join(event.one)} | {', '.join(event.other)} from {event.since}{until}"
    told = f"crash {event.machine} step {event.step}"
    if event.after:
        told += f" after {event.after}"
    if event.restart is not None:
        told += f" restart {event.restart}"
    elif event.notice is None:
        told += " unnoticed"
    elif event.notice != NOTICE:
        told += f" notice {event.notice}"
    return told


# Reading


class _Wrong(Exception):
    pass


def parse_scenario(text: str, path: str = "<scenario>") -> Scenario:
    """Reads a scenario. Raises DiagnosticError (`cluster-scenario`) that names every line that can't be read."""
    expect(text, str, "parse_scenario", "text")
    scenario = Scenario()
    events: list[Event] = []
    found: list[Diagnostic] = []
    for number, line in enumerate(text.split("\n"), start=1):
        words = line.partition("#")[0].replace("|", " | ").replace(",", " ").split()
        if not words:
            continue
        reader = _READERS.get(words[0])
        if len(found) == MAX_FINDINGS:
            break
        try:
            if reader is None:
                raise _Wrong(
                    f"there is no {words[0][:40]}{near(words[0][:40], _READERS)}; known: {', '.join(_READERS)}"
                )
            scenario = reader(scenario, words[1:])
            events += scenario.events
            scenario = scenario._replace(events=())
        except _Wrong as problem:
            found.append(error(codes.SCENARIO, str(problem), Location(path, number)))
    if found:
        raise DiagnosticError(first_findings(found))
    return scenario._replace(events=tuple(events))


def read_scenario(path: str) -> Scenario:
    """Reads a scenario from a file. Raises DiagnosticError."""
    try:
        return parse_scenario(read_named(path, _MAX_BYTES).decode("utf-8"), path)
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "it is no UTF-8 text"
        raise DiagnosticError([error(codes.SCENARIO, f"can't be read: {reason}", Location(path))]) from None


def _number(text: str, least: int = 0) -> int:
    if not _DIGITS(text) or int(text) < least:
        raise _Wrong(f"{text[:40]} is no whole number of at least {least} (and at most 15 digits)")
    return int(text)


def _step(text: str) -> int:
    if not _DIGITS(text) or int(text) < 1:
        raise _Wrong(f"{text[:40]} is no step: steps are numbered from 1")
    return int(text)


def _chance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= MOST_CHANCE:
        raise _Wrong(f"{text[:40]} is no chance between 0 and {MOST_CHANCE}")
    return value


def _want(words: Sequence[str], count: int, form: str) -> None:
    if len(words) != count:
        raise _Wrong(f"expected: {form}")


def _options(words: Sequence[str], known: Sequence[str], form: str) -> dict[str, int]:
    """`step 3 after 2`, as a mapping."""
    if len(words) % 2:
        raise _Wrong(f"expected: {form}")
    found: dict[str, int] = {}
    for name, value in zip(words[::2], words[1::2], strict=True):
        if name not in known or name in found:
            raise _Wrong(f"unexpected {name[:40]}; expected: {form}")
        found[name] = _step(value) if name == "step" else _number(value)
    return found


def _read_seed(scenario: Scenario, words: Sequence[str]) -> Scenario:
    _want(words, 1, "seed NUMBER")
    return scenario._replace(seed=_number(words[0]))


def _read_keep(scenario: Scenario, words: Sequence[str]) -> Scenario:
    form = "keep UPDATES [in FOLDER]"
    if len(words) > 1:
        _want(words, 3, form)
        if words[1] != "in":
            raise _Wrong(f"unexpected {words[1][:40]}; expected: {form}")
        scenario = scenario._replace(folder=words[2])
    _want(words[:1], 1, form)
    return scenario._replace(keep=_number(words[0], 1))


def _read_delay(scenario: Scenario, words: Sequence[str]) -> Scenario:
    form = "delay CHANCE SHORTEST..LONGEST"
    _want(words, 2, form)
    shortest, dots, longest = words[1].partition("..")
    ticks = _number(shortest, 1), _number(longest if dots else shortest, 1)
    if ticks[0] > ticks[1]:
        raise _Wrong(f"the shortest delay is above the longest; expected: {form}")
    return scenario._replace(delay=_chance(words[0]), ticks=ticks)


def _read_drop(scenario: Scenario, words: Sequence[str]) -> Scenario:
    _want(words, 1, "drop CHANCE")
    return scenario._replace(drop=_chance(words[0]))


def _read_duplicate(scenario: Scenario, words: Sequence[str]) -> Scenario:
    _want(words, 1, "duplicate CHANCE")
    return scenario._replace(duplicate=_chance(words[0]))


def _with(scenario: Scenario, event: Event) -> Scenario:
    return scenario._replace(events=(event,))


def _read_late(scenario: Scenario, words: Sequence[str]) -> Scenario:
    _want(words, 2, "late TRAINER TICKS")
    return _with(scenario, Late(words[0], _number(words[1], 1)))


def _read_slow(scenario: Scenario, words: Sequence[str]) -> Scenario:
    _want(words, 2, "slow TRAINER TICKS")
    return _with(scenario, Slow(words[0], _number(words[1], 1)))


def _at_step(words: Sequence[str], form: str) -> tuple[str, int]:
    if len(words) != 3 or words[1] != "step":
        raise _Wrong(f"expected: {form}")
    return words[0], _step(words[2])


def _read_leave(scenario: Scenario, words: Sequence[str]) -> Scenario:
    return _with(scenario, Leave(*_at_step(words, "leave TRAINER step STEP")))


def _read_rejoin(scenario: Scenario, words: Sequence[str]) -> Scenario:
    return _with(scenario, Rejoin(*_at_step(words, "rejoin TRAINER step STEP")))


def _read_crash(scenario: Scenario, words: Sequence[str]) -> Scenario:
    form = "crash MACHINE step STEP [after MESSAGES] [notice TICKS | unnoticed | restart TICKS]"
    unnoticed = "unnoticed" in words
    rest = [word for word in words[1:] if word != "unnoticed"]
    given = _options(rest, ("step", "after", "notice", "restart"), form) if words else {}
    if "step" not in given or unnoticed + ("notice" in given) + ("restart" in given) > 1:
        raise _Wrong(f"expected: {form}")
    notice = None if unnoticed else given.get("notice", NOTICE)
    return _with(scenario, Crash(words[0], given["step"], given.get("after", 0), notice, given.get("restart")))


def _read_partition(scenario: Scenario, words: Sequence[str]) -> Scenario:
    form = "partition MACHINE, ... | MACHINE, ... from TICK [to TICK]"
    if "|" not in words or "from" not in words or words.index("|") > words.index("from"):
        raise _Wrong(f"expected: {form}")
    bar, since = words.index("|"), words.index("from")
    one, other = tuple(words[:bar]), tuple(words[bar + 1 : since])
    given = _options(words[since:], ("from", "to"), form)
    if not one or not other or set(one) & set(other):
        raise _Wrong(f"both sides need machines, and none may be on both; expected: {form}")
    until = given.get("to")
    if until is not None and until <= given["from"]:
        raise _Wrong(f"it ends before it begins; expected: {form}")
    return _with(scenario, Partition(one, other, given["from"], until))


_READERS: dict[str, Callable[[Scenario, Sequence[str]], Scenario]] = {
    "seed": _read_seed,
    "delay": _read_delay,
    "drop": _read_drop,
    "duplicate": _read_duplicate,
    "keep": _read_keep,
    "late": _read_late,
    "slow": _read_slow,
    "leave": _read_leave,
    "crash": _read_crash,
    "rejoin": _read_rejoin,
    "partition": _read_partition,
}


# Drawing


def random_scenario(
    seed: int, trainers: Sequence[str], servers: Sequence[str], steps: int, *, fatal: bool = False
) -> Scenario:
    """A scenario that a seed gives: faults of messages, and a few of machines.

    With `fatal`, one of its events can't be got over: a crash that nobody notices, a server that is not started again,
    or a partition that does not end.
    """
    draw = random.Random(f"scenario {seed}")
    events = list(_random_events(draw, trainers, servers, steps))
    if fatal:
        events.append(_fatal_event(draw, trainers, servers, steps))
    return Scenario(
        seed=seed,
        delay=draw.choice((0.0, 0.1, 0.4)),
        ticks=(1, draw.choice((4, 20, 80))),
        drop=draw.choice((0.0, 0.05, 0.3)),
        duplicate=draw.choice((0.0, 0.05, 0.3)),
        keep=draw.choice((1, 1, 2, 3)),
        events=tuple(events),
    )


def _random_events(draw: random.Random, trainers: Sequence[str], servers: Sequence[str], steps: int) -> Iterator[Event]:
    departing = draw.sample(trainers, draw.randint(0, len(trainers))) if draw.random() < 0.6 else []
    for name in trainers:
        if draw.random() < 0.15:
            yield Late(name, draw.randint(1, 200))
        if draw.random() < 0.15:
            yield Slow(name, draw.randint(1, 40))
        if name not in departing:
            continue
        step = draw.randint(1, steps)
        if draw.random() < 0.3:
            yield Leave(name, step)
        else:
            yield Crash(name, step, draw.randrange(8), draw.choice((1, NOTICE, 300)))
        if draw.random() < 0.6:
            yield Rejoin(name, draw.randint(step + 1, steps + 1))
    for name in servers:
        if draw.random() < 0.25:
            yield Crash(name, draw.randint(1, steps), draw.randrange(12), restart=draw.choice((1, 30, 200)))
    machines = [*trainers, *servers]
    if draw.random() < 0.2 and len(machines) > 1:
        one = draw.sample(machines, draw.randrange(1, len(machines)))
        since = draw.randrange(200)
        other = tuple(name for name in machines if name not in one)
        yield Partition(tuple(sorted(one)), other, since, since + draw.randint(1, 400))


def _fatal_event(draw: random.Random, trainers: Sequence[str], servers: Sequence[str], steps: int) -> Event:
    kind = draw.choice(("trainer", "server", "partition")) if servers else "trainer"
    step = draw.randint(1, steps - 1)
    if kind == "trainer":
        return Crash(draw.choice(trainers), step, draw.randrange(6), notice=None)
    if kind == "server":
        return Crash(draw.choice(servers), step, draw.randrange(6), notice=None)
    return Partition((draw.choice(trainers),), (draw.choice(servers),), draw.randrange(20))
