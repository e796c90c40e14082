"""Completion and hovering in job files."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pstranspile.compiler.job.job import BOOLEANS, DEFAULTS, DISTRIBUTED_TABLES, INTEGERS, KEYS, SPLIT_METHODS
from pstranspile.compiler.job.modes import COLLECTIVE_MODES, mode_names, settings_of
from pstranspile.tools.lsp.values import Explained, Proposal, Span, Spot

_KEY = re.compile(r"""\s*[{,]?\s*["']?([A-Za-z_]\w*)?""").match
_GIVEN = re.compile(r"""(?<!\w)["']?([A-Za-z_]\w*)["']?\s*[=:]\s*(.*)$""").search


def values_of(key: str) -> tuple[str, ...]:
    """The values that a key takes, where they can be listed."""
    if key in BOOLEANS:
        return ("true", "false")
    listed = {
        "mode": mode_names(),
        "split_method": SPLIT_METHODS,
        "distributed_table": DISTRIBUTED_TABLES,
        "collective_mode": tuple(COLLECTIVE_MODES),
    }
    return tuple(f'"{value}"' for value in listed.get(key, ()))


def about_key(key: str) -> str:
    """What a key takes, in a sentence."""
    if key in BOOLEANS:
        kind = "true or false"
    elif key in INTEGERS:
        kind = "a whole number from {} to {}".format(*INTEGERS[key])
    elif values_of(key):
        kind = f"one of {', '.join(values_of(key))}"
    else:
        kind = "a text"
    if key in ("pservers", "trainers", "trainer_endpoints"):
        kind = "a number, a list of endpoints, or a text of endpoints with commas between them"
    default = f"; {DEFAULTS[key]!r} where it is not given" if DEFAULTS.get(key) not in (None, "", ()) else ""
    return f"{key}: {kind}{default}"


def complete_job(lines: list[str], spot: Spot, *, json: bool) -> list[Proposal]:
    """Keys at the start of a line, and behind a key what it takes."""
    before = lines[spot.line][: spot.column] if spot.line < len(lines) else ""
    given = _GIVEN(before)
    if given:
        span = Span(spot.line, given.start(2), spot.column)
        return [Proposal(v, "Value", _mode_doc(v), v, span) for v in values_of(given[1])]
    key = _KEY(before)
    start = key.start(1) if key and key[1] else spot.column
    quoted = before[start - 1 : start] == '"'
    span = Span(spot.line, start, spot.column)
    return list(_keys(span, json and not quoted, ": " if json else " = ", quoted))


def _keys(span: Span, quoting: bool, between: str, quoted: bool) -> Iterator[Proposal]:
    for key in KEYS:
        text = key if quoted else f'"{key}"{between}' if quoting else f"{key}{between}"
        yield Proposal(key, "Property", about_key(key), text, span)


def _mode_doc(value: str) -> str:
    mode = value.strip("'\"")
    return settings_of(mode).doc if mode in mode_names() else ""


def hover_job(lines: list[str], spot: Spot) -> Explained | None:
    """What a key takes, and what a mode does."""
    line = lines[spot.line] if spot.line < len(lines) else ""
    for match in re.finditer(r"[A-Za-z_][\w-]*", line):
        if match.start() <= spot.column <= match.end():
            text = about_key(match[0]) if match[0] in KEYS else _mode_doc(match[0])
            return Explained(text, Span(spot.line, match.start(), match.end())) if text else None
    return None
