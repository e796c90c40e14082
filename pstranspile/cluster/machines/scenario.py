"""Faults of a run, their text, and scenarios drawn from seeds (docs/reference/faults.md)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from pstranspile.ir.argument_checks import check_arguments, expect, expect_fields, expect_word
from pstranspile.ir.diagnostics import MAX_FINDINGS, Diagnostic, DiagnosticError, error, first_findings, raise_errors
from pstranspile.ir.model import Location
from pstranspile.ir.patterns import Pattern
from pstranspile.ir.reading import kind_of, read_regular, reason_for
from pstranspile.runtime.run.feeds import near

# A scenario is a text with one fault per line. Steps are numbered from 1 (docs/reference/faults.md):
#
#   seed 7                                  # of the random choices
#   delay 0.2 1..40                         # a fifth of all messages takes 1 to 40 ticks longer
#   drop 0.1                                # a tenth is lost, and sent again until it arrives
#   duplicate 0.1                           # a tenth arrives twice
#   keep 2 in kept                          # servers save their state to files of this folder after every 2 updates
#   late trainer_1 200                      # starts 200 ticks after the others
#   slow trainer_2 30                       # takes 30 ticks longer for each step
#   leave trainer_2 step 5                  # leaves in good order before step 5
#   crash trainer_1 step 3 after 2          # in step 3, when it has sent 2 messages
#   rejoin trainer_1 step 6                 # is started again, and takes part from step 6 on
#   crash pserver_0 step 4 restart 50       # before its update 4; starts again after 50 ticks
#   partition trainer_0 | pserver_0, pserver_1 from 100 to 300

NOTICE = 50
"""The default number of ticks after which the others notice that a machine has crashed."""


class LateStart(NamedTuple):
    """A fault: the trainer starts `ticks` ticks after the others."""

    machine: str
    ticks: int


class Slowdown(NamedTuple):
    """A fault: the trainer takes `ticks` ticks longer for each step."""

    machine: str
    ticks: int


class Departure(NamedTuple):
    """A fault: the trainer leaves in good order before the step, as if its data had ended."""

    machine: str
    step: int


class Crash(NamedTuple):
    """A fault: the machine ends without a message, in a step, after it has sent (a server: taken) `after` messages of
    that step. A server's step is the update that it makes next.

    `notice`: ticks after which the others learn of it, as of a broken connection; None: never. `restart`: ticks after
    which a server is restarted; None: never.
    """

    machine: str
    step: int
    after: int = 0
    notice: int | None = NOTICE
    restart: int | None = None


class Rejoin(NamedTuple):
    """A trainer that has crashed or left is restarted, and takes part from the step on, or as soon as it can."""

    machine: str
    step: int


class Partition(NamedTuple):
    """A fault: no message passes between the two sides from one tick to another; `until` None: for ever."""

    one_side: tuple[str, ...]
    other_side: tuple[str, ...]
    since: int
    until: int | None = None


Event: TypeAlias = "LateStart | Slowdown | Departure | Crash | Rejoin | Partition"


class Scenario(NamedTuple):
    """The faults of a run. `delay`, `drop` and `duplicate` are the chances of each message. Steps count from 1.

    `ticks` are the shortest and the longest delay. A server saves its state after every `keep` updates, and returns to
    it at a restart; `folder` is the folder of the saved states, a file for each server ("": in memory).
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
        """Whether a crash of the scenario is followed by a restart of the server."""
        return any(isinstance(event, Crash) and event.restart is not None for event in self.events)

    def chance_line(self, name: str) -> str:
        """The line of `delay`, `drop` or `duplicate`."""
        expect_word(name, "chance_line", "name", ("delay", "drop", "duplicate"))
        ticks = f" {self.ticks[0]}..{self.ticks[1]}" if name == "delay" else ""
        return f"{name} {getattr(self, name):g}{ticks}"

    def __str__(self) -> str:
        """The text of the scenario, which `parse_scenario` reads."""
        lines = [f"seed {self.seed}"]
        if self.delay or self.ticks != Scenario().ticks:
            lines.append(self.chance_line("delay"))
        lines += [self.chance_line(name) for name in ("drop", "duplicate") if getattr(self, name)]
        if self.keep != 1 or self.folder:
            lines.append(f"keep {self.keep}" + (f" in {self.folder}" if self.folder else ""))
        return "\n".join([*lines, *map(line_of, self.events)]) + "\n"


def require_sayable(scenario: Scenario) -> None:
    """Raises TypeError for fields of other types, and DiagnosticError (`cluster-scenario`) for values that no text of a
    scenario can say, such as a chance above the largest one.
    """
    expect_fields(scenario, "Scenario")
    if not isinstance(scenario.ticks, list | tuple) or len(scenario.ticks) != 2:  # pyright: ignore
        raise TypeError(f"Scenario takes two whole numbers as ticks, not {scenario.ticks!r}")
    for event in scenario.events:
        expect_fields(event, type(event).__name__)
    parse_scenario(str(scenario))


def line_of(event: Event) -> str:
    """The line of a scenario for an event."""
    if isinstance(event, LateStart):
        return f"late {event.machine} {event.ticks}"
    if isinstance(event, Slowdown):
        return f"slow {event.machine} {event.ticks}"
    if isinstance(event, Departure):
        return f"leave {event.machine} step {event.step}"
    if isinstance(event, Rejoin):
        return f"rejoin {event.machine} step {event.step}"
    if isinstance(event, Partition):
        until = "" if event.until is None else f" to {event.until}"
        return f"partition {', '.join(event.one_side)} | {', '.join(event.other_side)} from {event.since}{until}"
    text = f"crash {event.machine} step {event.step}"
    if event.after:
        text += f" after {event.after}"
    if event.restart is not None:
        text += f" restart {event.restart}"
    elif event.notice is None:
        text += " unnoticed"
    elif event.notice != NOTICE:
        text += f" notice {event.notice}"
    return text


# Reading scenarios from their text (docs/reference/faults.md).

MOST_CHANCE = 0.9
"""The largest chance of a fault of messages, as some messages must arrive."""

_DIGITS = Pattern("[0-9]{1,15}").fullmatch
_MAX_BYTES = 16 << 20

Words: TypeAlias = "Sequence[str]"
Meaning: TypeAlias = "LateStart | Slowdown | Departure | Crash | Rejoin | Partition | Mapping[str, object]"
"""The meaning of a line: an event, or fields of the scenario."""


class _UnreadableLineError(Exception):
    """A line can't be read, for the reason in the message."""


class _LineFormError(Exception):
    """A line does not have the form of its kind; the message has the reason, or is empty."""


class _Kind(NamedTuple):
    """A kind of line: its form for messages, how many words follow the first (None: it depends), and what they mean."""

    form: str
    words: int | None
    parse: Callable[[Words], Meaning]


@check_arguments
def parse_scenario(text: str, path: str = "<scenario>") -> Scenario:
    """Reads a scenario. Raises DiagnosticError (`cluster-scenario`) that names every line that can't be read."""
    expect(text, str, "parse_scenario", "text")
    fields: dict[str, object] = {}
    events: list[Event] = []
    problems: list[Diagnostic] = []
    for number, line in enumerate(text.split("\n"), start=1):
        words = line.partition("#")[0].replace("|", " | ").replace(",", " ").split()
        if not words:
            continue
        if len(problems) == MAX_FINDINGS:
            break
        try:
            meaning = _read_line(words)
        except _UnreadableLineError as problem:
            problems.append(error("cluster-scenario", str(problem), Location(path, number)))
            continue
        if isinstance(meaning, Mapping):
            fields.update(meaning)
        else:
            events.append(meaning)
    raise_errors(first_findings(problems))
    return Scenario()._replace(**fields, events=tuple(events))


def read_scenario(path: str) -> Scenario:
    """Reads a scenario from a file. Raises DiagnosticError."""
    try:
        data = read_regular(path, _MAX_BYTES)
        try:
            return parse_scenario(data.decode("utf-8"), path)
        except (DiagnosticError, UnicodeDecodeError):
            if (kind := kind_of(data, path)) is not None:
                message = f"{kind}; a scenario has a line for each fault (docs/reference/faults.md)"
                raise DiagnosticError([error("cluster-scenario", message, Location(path))]) from None
            raise
    except (OSError, UnicodeDecodeError) as problem:
        reason = reason_for(problem, path) if isinstance(problem, OSError) else "it is no UTF-8 text"
        raise DiagnosticError([error("cluster-scenario", f"can't be read: {reason}", Location(path))]) from None


def _read_line(words: Words) -> Meaning:
    name = words[0]
    kind = _KINDS.get(name)
    if kind is None:
        raise _UnreadableLineError(f"there is no {name[:40]}{near(name[:40], _KINDS)}; known: {', '.join(_KINDS)}")
    try:
        if kind.words not in (None, len(words) - 1):
            raise _LineFormError
        return kind.parse(words[1:])
    except _LineFormError as problem:
        reason = f"{problem}; " if str(problem) else ""
        raise _UnreadableLineError(f"{reason}expected: {kind.form}") from None


def _number(text: str, least: int = 0) -> int:
    if not _DIGITS(text) or int(text) < least:
        raise _UnreadableLineError(f"{text[:40]} is no whole number of at least {least} (and at most 15 digits)")
    return int(text)


def _step(text: str) -> int:
    if not _DIGITS(text) or int(text) < 1:
        raise _UnreadableLineError(f"{text[:40]} is no step: steps are numbered from 1")
    return int(text)


def _chance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= MOST_CHANCE:
        raise _UnreadableLineError(f"{text[:40]} is no chance between 0 and {MOST_CHANCE}")
    return value


def _field(name: str, read: Callable[[str], object]) -> Callable[[Words], Meaning]:
    """The meaning of lines with one word, which is a field of the scenario."""
    return lambda words: {name: read(words[0])}


def _after_ticks(event: type[LateStart | Slowdown]) -> Callable[[Words], Meaning]:
    """The meaning of lines `MACHINE TICKS`."""
    return lambda words: event(words[0], _number(words[1], 1))


def _at_step(event: type[Departure | Rejoin]) -> Callable[[Words], Meaning]:
    """The meaning of lines `MACHINE step STEP`."""

    def read(words: Words) -> Meaning:
        if words[1] != "step":
            raise _LineFormError
        return event(words[0], _step(words[2]))

    return read


def _options(words: Words, known: Words) -> dict[str, int]:
    """The options in words such as `step 3 after 2`, as a mapping."""
    if len(words) % 2:
        raise _LineFormError
    given: dict[str, int] = {}
    for name, value in zip(words[::2], words[1::2], strict=True):
        if name not in known or name in given:
            raise _LineFormError(f"unexpected {name[:40]}")
        given[name] = _step(value) if name == "step" else _number(value)
    return given


def _keep(words: Words) -> Mapping[str, object]:
    if len(words) not in (1, 3):
        raise _LineFormError
    if len(words) == 3 and words[1] != "in":
        raise _LineFormError(f"unexpected {words[1][:40]}")
    return {"keep": _number(words[0], 1), **({"folder": words[2]} if len(words) == 3 else {})}


def _delay(words: Words) -> Mapping[str, object]:
    shortest, dots, longest = words[1].partition("..")
    ticks = _number(shortest, 1), _number(longest if dots else shortest, 1)
    if ticks[0] > ticks[1]:
        raise _LineFormError("the shortest delay is above the longest")
    return {"delay": _chance(words[0]), "ticks": ticks}


def _crash(words: Words) -> Event:
    unnoticed = "unnoticed" in words
    rest = [word for word in words[1:] if word != "unnoticed"]
    given = _options(rest, ("step", "after", "notice", "restart")) if words else {}
    if "step" not in given or unnoticed + ("notice" in given) + ("restart" in given) > 1:
        raise _LineFormError
    notice = None if unnoticed else given.get("notice", NOTICE)
    return Crash(words[0], given["step"], given.get("after", 0), notice, given.get("restart"))


def _partition(words: Words) -> Event:
    if "|" not in words or "from" not in words or words.index("|") > words.index("from"):
        raise _LineFormError
    bar, since = words.index("|"), words.index("from")
    one, other = tuple(words[:bar]), tuple(words[bar + 1 : since])
    given = _options(words[since:], ("from", "to"))
    if not one or not other or set(one) & set(other):
        raise _LineFormError("both sides need machines, and none may be on both")
    until = given.get("to")
    if until is not None and until <= given["from"]:
        raise _LineFormError("it ends before it begins")
    return Partition(one, other, given["from"], until)


_KINDS = {
    "seed": _Kind("seed NUMBER", 1, _field("seed", _number)),
    "delay": _Kind("delay CHANCE SHORTEST..LONGEST", 2, _delay),
    "drop": _Kind("drop CHANCE", 1, _field("drop", _chance)),
    "duplicate": _Kind("duplicate CHANCE", 1, _field("duplicate", _chance)),
    "keep": _Kind("keep UPDATES [in FOLDER]", None, _keep),
    "late": _Kind("late TRAINER TICKS", 2, _after_ticks(LateStart)),
    "slow": _Kind("slow TRAINER TICKS", 2, _after_ticks(Slowdown)),
    "leave": _Kind("leave TRAINER step STEP", 3, _at_step(Departure)),
    "rejoin": _Kind("rejoin TRAINER step STEP", 3, _at_step(Rejoin)),
    "crash": _Kind("crash MACHINE step STEP [after MESSAGES] [notice TICKS | unnoticed | restart TICKS]", None, _crash),
    "partition": _Kind("partition MACHINE, ... | MACHINE, ... from TICK [to TICK]", None, _partition),
}
"""The kinds of lines, by their first word."""


# Scenarios drawn from seeds.


def random_scenario(
    seed: int, trainers: Sequence[str], servers: Sequence[str], steps: int, *, fatal: bool = False
) -> Scenario:
    """A scenario drawn from a seed: faults of messages, and a few of machines.

    With `fatal`, the cluster can't recover from one of its events: a crash that nobody notices, a server that is not
    restarted, or a partition that does not end.
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
            yield LateStart(name, draw.randint(1, 200))
        if draw.random() < 0.15:
            yield Slowdown(name, draw.randint(1, 40))
        if name not in departing:
            continue
        step = draw.randint(1, steps)
        if draw.random() < 0.3:
            yield Departure(name, step)
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
