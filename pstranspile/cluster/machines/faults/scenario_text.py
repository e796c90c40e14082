"""Reading scenarios from their text (docs/reference/faults.md)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from pstranspile.cluster.machines.faults.scenario import (
    NOTICE,
    Crash,
    Event,
    Late,
    Leave,
    Partition,
    Rejoin,
    Scenario,
    Slow,
)
from pstranspile.ir.diagnostics import MAX_FINDINGS, Diagnostic, DiagnosticError, error, first_findings, raise_errors
from pstranspile.ir.expect import expect
from pstranspile.ir.model import Location
from pstranspile.ir.reading import read_regular
from pstranspile.runtime.run.feeds import near

MOST_CHANCE = 0.9
"""The largest chance of a fault of a message: some must come through."""

_DIGITS = re.compile("[0-9]{1,15}").fullmatch
_MAX_BYTES = 16 << 20

Words: TypeAlias = "Sequence[str]"
Meaning: TypeAlias = "Late | Slow | Leave | Crash | Rejoin | Partition | Mapping[str, object]"
"""An event, or fields of the scenario."""


class _WrongError(Exception):
    """A line can't be read, and why."""


class _MisplacedError(Exception):
    """A line has another form than its kind; why, or nothing."""


class _Kind(NamedTuple):
    """A kind of line: its form for messages, how many words follow the first (None: it depends), and what they mean."""

    form: str
    words: int | None
    read: Callable[[Words], Meaning]


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
        except _WrongError as problem:
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
        return parse_scenario(read_regular(path, _MAX_BYTES).decode("utf-8"), path)
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "it is no UTF-8 text"
        raise DiagnosticError([error("cluster-scenario", f"can't be read: {reason}", Location(path))]) from None


def _read_line(words: Words) -> Meaning:
    name = words[0]
    kind = _KINDS.get(name)
    if kind is None:
        raise _WrongError(f"there is no {name[:40]}{near(name[:40], _KINDS)}; known: {', '.join(_KINDS)}")
    try:
        if kind.words not in (None, len(words) - 1):
            raise _MisplacedError
        return kind.read(words[1:])
    except _MisplacedError as problem:
        reason = f"{problem}; " if str(problem) else ""
        raise _WrongError(f"{reason}expected: {kind.form}") from None


def _number(text: str, least: int = 0) -> int:
    if not _DIGITS(text) or int(text) < least:
        raise _WrongError(f"{text[:40]} is no whole number of at least {least} (and at most 15 digits)")
    return int(text)


def _step(text: str) -> int:
    if not _DIGITS(text) or int(text) < 1:
        raise _WrongError(f"{text[:40]} is no step: steps are numbered from 1")
    return int(text)


def _chance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= MOST_CHANCE:
        raise _WrongError(f"{text[:40]} is no chance between 0 and {MOST_CHANCE}")
    return value


def _field(name: str, read: Callable[[str], object]) -> Callable[[Words], Meaning]:
    """Lines of one word, which is a field of the scenario."""
    return lambda words: {name: read(words[0])}


def _after_ticks(event: type[Late | Slow]) -> Callable[[Words], Meaning]:
    """Lines `MACHINE TICKS`."""
    return lambda words: event(words[0], _number(words[1], 1))


def _at_step(event: type[Leave | Rejoin]) -> Callable[[Words], Meaning]:
    """Lines `MACHINE step STEP`."""

    def read(words: Words) -> Meaning:
        if words[1] != "step":
            raise _MisplacedError
        return event(words[0], _step(words[2]))

    return read


def _options(words: Words, known: Words) -> dict[str, int]:
    """`step 3 after 2`, as a mapping."""
    if len(words) % 2:
        raise _MisplacedError
    given: dict[str, int] = {}
    for name, value in zip(words[::2], words[1::2], strict=True):
        if name not in known or name in given:
            raise _MisplacedError(f"unexpected {name[:40]}")
        given[name] = _step(value) if name == "step" else _number(value)
    return given


def _keep(words: Words) -> Mapping[str, object]:
    if len(words) not in (1, 3):
        raise _MisplacedError
    if len(words) == 3 and words[1] != "in":
        raise _MisplacedError(f"unexpected {words[1][:40]}")
    return {"keep": _number(words[0], 1), **({"folder": words[2]} if len(words) == 3 else {})}


def _delay(words: Words) -> Mapping[str, object]:
    shortest, dots, longest = words[1].partition("..")
    ticks = _number(shortest, 1), _number(longest if dots else shortest, 1)
    if ticks[0] > ticks[1]:
        raise _MisplacedError("the shortest delay is above the longest")
    return {"delay": _chance(words[0]), "ticks": ticks}


def _crash(words: Words) -> Event:
    unnoticed = "unnoticed" in words
    rest = [word for word in words[1:] if word != "unnoticed"]
    given = _options(rest, ("step", "after", "notice", "restart")) if words else {}
    if "step" not in given or unnoticed + ("notice" in given) + ("restart" in given) > 1:
        raise _MisplacedError
    notice = None if unnoticed else given.get("notice", NOTICE)
    return Crash(words[0], given["step"], given.get("after", 0), notice, given.get("restart"))


def _partition(words: Words) -> Event:
    if "|" not in words or "from" not in words or words.index("|") > words.index("from"):
        raise _MisplacedError
    bar, since = words.index("|"), words.index("from")
    one, other = tuple(words[:bar]), tuple(words[bar + 1 : since])
    given = _options(words[since:], ("from", "to"))
    if not one or not other or set(one) & set(other):
        raise _MisplacedError("both sides need machines, and none may be on both")
    until = given.get("to")
    if until is not None and until <= given["from"]:
        raise _MisplacedError("it ends before it begins")
    return Partition(one, other, given["from"], until)


_KINDS = {
    "seed": _Kind("seed NUMBER", 1, _field("seed", _number)),
    "delay": _Kind("delay CHANCE SHORTEST..LONGEST", 2, _delay),
    "drop": _Kind("drop CHANCE", 1, _field("drop", _chance)),
    "duplicate": _Kind("duplicate CHANCE", 1, _field("duplicate", _chance)),
    "keep": _Kind("keep UPDATES [in FOLDER]", None, _keep),
    "late": _Kind("late TRAINER TICKS", 2, _after_ticks(Late)),
    "slow": _Kind("slow TRAINER TICKS", 2, _after_ticks(Slow)),
    "leave": _Kind("leave TRAINER step STEP", 3, _at_step(Leave)),
    "rejoin": _Kind("rejoin TRAINER step STEP", 3, _at_step(Rejoin)),
    "crash": _Kind("crash MACHINE step STEP [after MESSAGES] [notice TICKS | unnoticed | restart TICKS]", None, _crash),
    "partition": _Kind("partition MACHINE, ... | MACHINE, ... from TICK [to TICK]", None, _partition),
}
"""The kinds of lines, by their first word."""
