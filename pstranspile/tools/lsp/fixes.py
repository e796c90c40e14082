"""What an editor offers to mend a finding: the text that its message proposes, in place of what it marks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from pstranspile.ir.diagnostics import Diagnostic, marked
from pstranspile.tools.lsp.values import Span

_PROPOSED = re.compile(r"; did you mean `((?:[^`\"]|\"(?:[^\"\\]|\\.)*\")+)`\?$")
_PROPOSED_KEY = re.compile(r"; did you mean ([^\s`?;]+)\?$")

_NOT_IN_PLACE = frozenset({"gradient-without-variable"})
"""Codes of findings that mark something else than the name their proposal replaces."""


class Fix(NamedTuple):
    """An edit that mends a finding: `text` takes the place of the span."""

    title: str
    span: Span
    text: str
    finding: Diagnostic


def fixes(findings: Iterable[Diagnostic], lines: list[str], first: int, last: int) -> list[Fix]:
    """The fixes of the findings on lines `first` to `last`, which count from 0, in the order of the findings."""
    result: list[Fix] = []
    for finding in findings:
        place = finding.location
        if place is None or not 0 < place.line <= len(lines) or finding.code in _NOT_IN_PLACE:
            continue
        proposed = _PROPOSED.search(finding.message) or _PROPOSED_KEY.search(finding.message)
        if proposed is None or not finding.focus:
            continue
        line, start, width = marked(place, finding.focus, lines)
        if not first <= line <= last:
            continue
        text = proposed.group(1)
        span = _replaced(lines[line], Span(line, start, start + width), text)
        if span is not None:
            result.append(Fix(f"Replace with `{text}`", span, text, finding))
    return result


def _replaced(line: str, span: Span, text: str) -> Span | None:
    """What a proposed text takes the place of: what is marked, or an attribute that is written with a colon.

    None where the line does not hold what the finding is about: the text has changed since.
    """
    name, equals, value = text.partition("=")
    if not equals:
        return span if line[span.start : span.stop] else None
    pattern = rf'"?{re.escape(name)}"?[ \t]*:[ \t]*{re.escape(value)}'
    found = [match for match in re.finditer(pattern, line) if match.start() <= span.start <= match.end()]
    return Span(span.line, found[-1].start(), found[-1].end()) if found else None
