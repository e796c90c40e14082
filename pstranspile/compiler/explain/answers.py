"""What `explain` answers, as values."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from pstranspile.compiler.explain.place import Place


class Source(NamedTuple):
    """The source op behind an op: its name (`@main^0#17`), file and line (0: none), and text, where known.

    `script` is the line of the Python script that made it (`train.py:20`), empty where the program does not state it.
    """

    op: str
    file: str
    line: int
    text: str | None
    script: str = ""


class Link(NamedTuple):
    """An op that has to do with another op or with a variable: how, where it is, and its text.

    Of a variable it is one that `reads` or `writes` it.
    """

    relation: str
    place: Place
    text: str


class Noted(NamedTuple):
    """An attribute of an op: its value as the text has it, its meaning, and whether it is the op's default."""

    name: str
    value: str
    meaning: str
    is_default: bool = False


class OpAnswer(NamedTuple):
    """The origin of an op. `rule` is empty for an op of the source itself; `reason` explains its place."""

    place: Place
    text: str
    rule: str
    reason: str
    source: Source | None
    links: tuple[Link, ...]
    attributes: tuple[Noted, ...]


class HeldPart(NamedTuple):
    """A part of a variable on a server: rows `start` to `stop` (elements at rank 1), of `shape`, from element `offset`.

    `why` says why this server has it.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    offset: int
    endpoint: str
    machine: str
    vtype: str
    why: str


class VariableAnswer(NamedTuple):
    """A variable: its declaration, its places, and its users.

    `about` are sentences; `whole` is the source variable that `parts` are parts of, `why_cut` the formula with its
    numbers.
    """

    name: str
    about: tuple[str, ...]
    whole: str
    parts: tuple[HeldPart, ...]
    why_cut: str
    declared: tuple[tuple[str, str], ...]
    uses: tuple[Link, ...]


class Listed(NamedTuple):
    """An op in a list: where, by which rule (empty: the source's own), from which source line, and its text."""

    place: Place
    rule: str
    source: Source | None
    text: str


class Overview(NamedTuple):
    """The ops of a job by machine and rule: (machine, what it is, ((program, rule, count), ...)).

    `listed` holds the ops of one machine that rules made, if one was asked for.
    """

    mode: str
    trainers: int
    pservers: tuple[str, ...]
    machines: tuple[tuple[str, str, tuple[tuple[str, str, int], ...]], ...]
    listed: tuple[Listed, ...] = ()


Answer: TypeAlias = OpAnswer | VariableAnswer | Overview
