"""A terminal for tests: what a command shows on it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Generator
from contextlib import contextmanager


class Screen:
    """What a terminal shows of what is written to it: enough of one for carriage returns, cursor up and clearing."""

    def __init__(self, columns: int):
        self.columns = columns
        self.rows: list[str] = [""]
        self.row = self.column = 0
        self.wrapped = False
        self.written = ""

    def write(self, text: str) -> None:
        self.written += text
        for part in re.findall(r"\x1b\[[\d;?]*[A-Za-z]|.", text, re.DOTALL):
            if part == "\r":
                self.column = 0
            elif part == "\n":
                self.row += 1
                if self.row == len(self.rows):
                    self.rows.append("")
            elif part.startswith("\x1b"):
                self._control(part[-1], part[2:-1])
            else:
                self.wrapped |= self.column >= self.columns
                line = self.rows[self.row].ljust(self.column)
                self.rows[self.row] = line[: self.column] + part + line[self.column + 1 :]
                self.column += 1

    def _control(self, what: str, given: str) -> None:
        if what in "mhl":  # colours, and whether the cursor is seen
            return
        if what == "A":
            self.row -= int(given or 1)
            assert self.row >= 0
        else:
            assert what in "JK"
            self.rows[self.row] = "" if given == "2" else self.rows[self.row][: self.column]
            if what == "J":
                del self.rows[self.row + 1 :]

    def text(self) -> str:
        return "\n".join(row.rstrip() for row in self.rows)


def on_terminal(columns: int, *arguments: str, rows: int = 24, errors_only: bool = False, **environment: str) -> Screen:
    """What a command shows on a terminal of so many columns; with `errors_only` its stdout is a pipe."""
    mine, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    known = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-m", "pstranspile", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL if errors_only else theirs,
        stderr=theirs,
        env={**known, "TERM": "xterm", **environment},
    )
    os.close(theirs)
    written = b""
    try:
        while data := os.read(mine, 4096):
            written += data
    except OSError:  # the other side is closed
        pass
    assert process.wait() == 0, written.decode()
    os.close(mine)
    screen = Screen(columns)
    screen.write(written.decode())
    return screen


@contextmanager
def interrupts(way: signal.Handlers) -> Generator[None]:
    """Processes that are started meanwhile take interrupts in this way. (`preexec_fn` would copy this process in full
    first, and gRPC, if it has threads here, sometimes aborts such a copy before it becomes the command.)
    """
    before = signal.signal(signal.SIGINT, way)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
