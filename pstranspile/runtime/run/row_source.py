"""Data that comes in rows, and is dealt to trainers: what a run needs of it, whatever it is read from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, error
from pstranspile.ir.model import Program
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.run.batch import joined
from pstranspile.runtime.run.seeds import divided

FeedOf: TypeAlias = "Callable[[int], Mapping[str, Any] | None]"
"""What a trainer is fed in a step; None when it has no more data."""

ENDLESS = 1 << 60
"""Steps of rows that nobody has counted."""


class Dealing(NamedTuple):
    """How rows were dealt so far, for a run that goes on: `data` identifies the data and its steps, `dealt` lists how
    many trainers there were from which step on: `((0, 2), (500, 4))`.

    `settings` are what `data` was made of, for messages: options and files as a user knows them, in order. A checkpoint
    of an earlier version has none.
    """

    data: str
    dealt: tuple[tuple[int, int], ...]
    settings: tuple[str, ...] = ()


class LeftOut(NamedTuple):
    """A row that can't be fed: its number in the file, counted from 1, and why.

    `line` and `column` are 0 if it has none.
    """

    file: str
    number: int
    reason: str
    line: int = 0
    column: int = 0


@runtime_checkable
class RowSource(Protocol):
    """Rows of files, or of something else, that programs are fed."""

    def feeds(self, programs: Sequence[Program]) -> tuple[list[FeedOf], int]:
        """What the trainers with these main programs are fed, and the most steps. Raises DiagnosticError."""
        ...

    def dealing(self, trainers: int) -> Dealing:
        """How the rows are dealt where there are so many trainers."""
        ...

    def continued(self, before: Dealing, step: int, trainers: int) -> RowSource:
        """The same rows for so many trainers from a step on; `before` is how they were dealt until then.

        Raises DiagnosticError if `before` is of other data.
        """
        ...

    def warnings(self) -> list[Diagnostic]:
        """Warnings about rows that could not be fed."""
        ...


def refuse_turns(turns: object) -> None:
    """Raises DiagnosticError if programs take turns, which rows can't be fed to."""
    if turns is not None:
        raise DiagnosticError([error("run-file-unusable", "rows are fed to one program; several take turns here")])


class RowFeeds:
    """The feed of a single machine."""

    def __init__(self, program: Program, source: RowSource):
        given, self.steps = source.feeds([program])
        self._feed = given[0]

    def step(self, number: int) -> dict[str, Value]:
        """The feed of a step, counted from 0. Raises DiagnosticError."""
        given = self._feed(number)
        assert given is not None
        return dict(given)

    def require(self, steps: int) -> None:
        """Raises DiagnosticError if there are fewer steps."""
        require_steps(self.steps, steps)


def batches_of_rows(
    source: RowSource, program: Program, trainers: int, steps: int | None, most: int
) -> list[Mapping[str, Any]]:
    """What so many trainers together are fed in each step, their shares one after another.

    `steps`: of how many steps (default: of all that there are, at most `most`). Raises DiagnosticError.
    """
    feeds, there = source.feeds([program] * trainers)
    require_steps(there, steps or 0)
    result: list[Mapping[str, Any]] = []
    for step in range(steps or min(there, most)):
        shares = [share for feed in feeds if (share := feed(step)) is not None]
        result.append(dict(joined(shares, [name for name in shares[0] if divided(program, name)])))
    return result


def require_steps(there: int, wanted: int) -> None:
    """Raises DiagnosticError if there are data for fewer steps than wanted."""
    if there < wanted:
        message = f"the rows are enough for {there} steps, {wanted} are asked for; --epochs has them fed again"
        raise DiagnosticError([error("run-file-unusable", message)])
