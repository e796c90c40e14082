"""The place in a Python script where an op was created: `@train.py:20` at the end of its line."""

from __future__ import annotations

import re

from pstranspile.ir.model import Location
from pstranspile.ir.text.attributes import report_escape
from pstranspile.ir.text.context import Context
from pstranspile.ir.text.literals import INT_MAX, name, read_name
from pstranspile.ir.text.tree import Node, Tree

_WRITTEN = re.compile(r'(@(?:[A-Za-z0-9_.@/]+|"(?:[^"\\\n]|\\[^\n])*"):[0-9]+)[ \t\r]*').fullmatch


def script_text(location: Location | None) -> str:
    """The suffix of an op at this location, with the blank before it; empty if no script is known."""
    script = location.script if location is not None else None
    return f" @{name(script.file)}:{script.line}" if script is not None else ""


def read_script(text: str) -> Location:
    """The place in `@train.py:20`. Raises ValueError for a bad escape, OverflowError for a line number out of range."""
    file, _, line = text.rpartition(":")
    if len(line.lstrip("0")) > 10 or not 0 < int(line) <= INT_MAX:
        raise OverflowError(line)
    return Location(read_name(file), int(line))


def script_of(op: Node, context: Context) -> Location | None:
    """The place at the end of an op; reports an invalid line number."""
    given = op.children[-1]
    if isinstance(given, Tree) or given.type != "SCRIPT":
        return None
    try:
        return read_script(given)
    except OverflowError:
        context.report("number-range", f"a line has a number from 1 to {INT_MAX}", given)
    except ValueError as bad:
        report_escape(given, str(bad), context)
    return None


class Scripts(dict[str, Location | None]):
    """A cache of the ends of lines that begin with `@`: their place in a script, None if they name none."""

    def __missing__(self, end: str) -> Location | None:
        written = _WRITTEN(end)
        made = self[end] = read_script(written[1]) if written else None
        return made

    def cut(self, line: str) -> tuple[str, Location | None]:
        """The line without the place at its end, and the place. Raises ValueError or OverflowError as `read_script`."""
        at = line.rfind(" @")
        script = self[line[at + 1 :]] if at >= 0 else None
        return (line[:at], script) if script is not None else (line, None)
