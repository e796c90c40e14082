"""`--live`: a board on the terminal, drawn with rich."""

from __future__ import annotations

import argparse
import sys
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pstranspile.ir.diagnostics import visible
from pstranspile.tools.cli.live_board import Board, Row, sparkline
from pstranspile.tools.cli.progress import is_terminal

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

OFTEN = 0.1
"""Seconds between two pictures."""

WIDTH = 24
"""Characters of a curve where there is room."""

NARROW = 6
"""Characters of a curve where there is little room."""

OTHERS = 62
"""Characters that the rest of a line needs."""


MOST = 4000
"""Characters of a cell that may be drawn."""


def add_live(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]
    """`--live`."""
    parser.add_argument(
        "--live",
        action="store_true",
        help="show the machines at work on the terminal: steps, numbers as curves, messages per second, who waits for "
        "whom (needs rich: pip install 'pstranspile[live]')",
    )


def check_live(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the command if `--live` is asked for where it can't be had."""
    if not options.live:
        return
    if find_spec("rich") is None:
        parser.error("--live needs rich: pip install 'pstranspile[live]'")
    if not is_terminal(sys.stdout):
        parser.error("--live draws on a terminal, which the output is not")


class Screen:
    """Draws a board on a terminal, a few times a second at most; what is printed meanwhile goes above it."""

    def __init__(self, board: Board):
        from rich.console import Console
        from rich.live import Live

        self.board = board
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
        self._live.start()
        self._drawn = 0.0

    def due(self) -> bool:
        """Whether the last picture is old enough for another one."""
        return time.monotonic() - self._drawn >= OFTEN

    def look(self, *, at_once: bool = False) -> None:
        """Draws the board as it is now, unless that was done just before."""
        if at_once or self.due():
            self._live.update(picture(self.board, self._console), refresh=True)
            self._drawn = time.monotonic()

    def end(self) -> None:
        """The last picture stays."""
        self.look(at_once=True)
        self._live.stop()


def picture(board: Board, console: Console) -> RenderableType:
    """The board as rich draws it, no higher than the terminal."""
    from rich.console import Group
    from rich.text import Text

    rows, left_out = board.rows(max(console.height - 5, 1))
    lines: list[RenderableType] = [Text(board.head(), style="bold", no_wrap=True), _table(rows, console)]
    below = f"and {left_out} more machines  " if left_out else ""
    awaited = board.awaited()
    lines.append(
        Text(below + (f"waited for: {visible(awaited, MOST)}" if awaited else ""), no_wrap=True, overflow="ellipsis")
    )
    return Group(*lines)


def _table(rows: list[Row], console: Console) -> Table:
    from rich.table import Table
    from rich.text import Text

    width = min(max(console.width - OTHERS, NARROW), WIDTH)
    table = Table(box=None, padding=(0, 2, 0, 0), expand=False, header_style="dim")
    for heading, column in (("machine", "name"), ("", "state"), ("step", "step")):
        least = max((len(getattr(row, column)) for row in rows), default=0)
        table.add_column(heading, no_wrap=True, min_width=max(least, len(heading)))
    table.add_column("messages/s", no_wrap=True, justify="right", min_width=len("messages/s"))
    fetched = [
        "  ".join(f"{name} {sparkline(curve, width)} {last:.5g}" for name, curve, last in row.curves) for row in rows
    ]
    least = min(max(map(len, fetched), default=0), console.width // 2)  # what is waited for is cut off first
    table.add_column("fetched", no_wrap=True, overflow="ellipsis", min_width=least)
    table.add_column("waits for", no_wrap=True, overflow="ellipsis", ratio=1)
    for row, curves in zip(rows, fetched, strict=True):
        cells = (row.name, row.state, row.step, f"{row.messages:.0f}", curves, row.waits)
        styles = ("", "red" if row.state == "failed" else "", "", "", "cyan", "yellow")
        table.add_row(*(Text(visible(cell, MOST), style) for cell, style in zip(cells, styles, strict=True)))
    return table
