"""What differs, as values, and as text for a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class Line(NamedTuple):
    """A line of program text: `-` only in the first, `+` only in the second, a space for context."""

    sign: str
    text: str


class Difference(NamedTuple):
    """One place where two inputs differ, with the lines around it.

    `role` is the machine in an output folder ("" elsewhere), `program` the name of the program ("" for a role
    that only one side has), `block` the index of the block (-1: the program as a whole). `what` names the part:
    `role`, `program`, `distribution`, `block`, `variables` or `ops`. `first` and `second` are the positions in the
    two blocks of the first op shown (-1 for other parts).
    """

    role: str
    program: str
    block: int
    what: str
    lines: tuple[Line, ...]
    first: int = -1
    second: int = -1

    @property
    def place(self) -> str:
        """The location of the difference in words: `trainer_0 @main`."""
        return " ".join(part for part in (self.role, f"@{self.program}" if self.program else "") if part)

    @property
    def heading(self) -> str:
        """What stands between the `@@` of its hunk: `block ^0, ops 12 and 13`."""
        if self.block < 0:
            return self.what
        if self.what != "ops":
            return f"block ^{self.block}, {self.what}"
        same = self.first == self.second
        where = f"op {self.first}" if same else f"ops {self.first} and {self.second}"
        return f"block ^{self.block}, {where}"

    def as_dict(self) -> dict[str, Any]:
        """The difference as JSON holds it: its fields by name, every line as sign and text."""
        return {**self._asdict(), "lines": [line._asdict() for line in self.lines]}


def summary(differences: Sequence[Difference]) -> str:
    """How many there are, and of what: `3 differences (2 in ops, 1 in variables): 4 lines less, 5 more`."""
    if not differences:
        return "no differences"
    parts = Counter(difference.what for difference in differences)
    signs = Counter(line.sign for difference in differences for line in difference.lines)
    count = f"{len(differences)} {'difference' if len(differences) == 1 else 'differences'}"
    what = ", ".join(f"{number} in {part}" for part, number in parts.items())
    return f"{count} ({what}): {signs['-']} {'line' if signs['-'] == 1 else 'lines'} less, {signs['+']} more"


_COLOURS = {"-": "\x1b[31m", "+": "\x1b[32m", "@": "\x1b[36m", "=": "\x1b[1m"}
_RESET = "\x1b[0m"


def render(differences: Iterable[Difference], colour: bool = False, names: tuple[str, str] = ("a", "b")) -> str:
    """The differences in the manner of a unified diff, grouped by program; "" when there are none.

    `names` are what the heads of the groups call the two inputs. The text ends with a line end.
    """
    out: list[str] = []
    place: str | None = None
    for difference in differences:
        if difference.place != place:
            place = difference.place
            shown = f" {place}" if place else ""
            out += [_line("=", f"--- {names[0]}{shown}", colour), _line("=", f"+++ {names[1]}{shown}", colour)]
        out.append(_line("@", f"@@ {difference.heading} @@", colour))
        out += [_line(sign, f"{sign}{text}", colour) for sign, text in difference.lines]
    return "\n".join([*out, ""]) if out else ""


def _line(kind: str, text: str, colour: bool) -> str:
    code = _COLOURS.get(kind) if colour else None
    return f"{code}{text}{_RESET}" if code else text.rstrip()
