"""Results of the language server's features: places in a text, and what to show there. Numbers count from 0."""

from __future__ import annotations

import re
from typing import NamedTuple


class Spot(NamedTuple):
    """A place between two characters of a text: the line, and how many characters of it stand before."""

    line: int
    column: int


class Span(NamedTuple):
    """The characters of a line from `start` up to `stop`."""

    line: int
    start: int
    stop: int


class Explained(NamedTuple):
    """A hover text in Markdown, and the span of the text that it is about."""

    text: str
    span: Span


class Proposal(NamedTuple):
    """A completion. `kind` is a word of the protocol (`Function`, `Variable`, ...).

    `insert` takes the span's place; it is a snippet, with places to fill in, if `snippet` is set.
    """

    label: str
    kind: str
    detail: str
    insert: str
    span: Span
    snippet: bool = False


def without_places(snippet: str) -> str:
    """The plain text of a snippet, for editors without support for snippets."""
    text = re.sub(r"\$\{[0-9]+:([^}]*)\}", r"\1", snippet)
    return re.sub(r"\$[0-9]+", "", text).replace("\\}", "}")


class Fold(NamedTuple):
    """Lines `first` to `last` that an editor may fold away behind the first."""

    first: int
    last: int


class Hint(NamedTuple):
    """A few words that an editor shows behind a line; `tip` has the details."""

    spot: Spot
    label: str
    tip: str


class Refused(Exception):
    """A request that can't be fulfilled, for the reason in the text."""
