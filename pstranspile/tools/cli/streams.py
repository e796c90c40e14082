"""The standard streams of a command that nobody may read any more.

A command whose output nobody reads, or whose output can't be written, ends, unless files are still to be written: for
these it goes on. Nobody who does not read diagnostics is told any, and that ends no command.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

from pstranspile.tools.cli.written_files import PENDING, join_with_and, say

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _Stream(io.FileIO):
    """A standard stream as the system has it."""

    def __init__(self, number: int):
        super().__init__(number, "wb", closefd=False)
        self.problem: OSError | None = None
        """Why it was given up."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Writes some bytes; once the stream is given up, they go nowhere."""
        try:
            return super().write(data)
        except BlockingIOError:
            raise
        except OSError as problem:
            if self.problem is not None or not self._may_go_on():
                raise
            self.problem = problem
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            self._report_problem()
            return len(memoryview(data).cast("B"))

    def _may_go_on(self) -> bool:
        return True

    def _report_problem(self) -> None:
        """Reports that the stream is given up; by default not at all, because nobody would read it."""


class _Output(_Stream):
    """stdout."""

    def __init__(self, command: str):
        super().__init__(1)
        self._command = command

    def _may_go_on(self) -> bool:
        return bool(PENDING.files)

    def _report_problem(self) -> None:
        gone = isinstance(self.problem, BrokenPipeError)
        why = "nobody reads the output any more" if gone else f"the output can't be written: {self.problem.strerror}"  # pyright: ignore
        say(f"{self._command}: {why}; it goes on, to write {join_with_and(PENDING.files)}")


def _is_of_system(stream: TextIO, number: int) -> bool:
    try:
        return type(stream) is io.TextIOWrapper and stream.fileno() == number
    except (OSError, ValueError):
        return False


def _text(stream: TextIO, raw: _Stream) -> io.TextIOWrapper:
    """The stream, over another one of the system."""
    below: Any = getattr(stream, "buffer", None)
    unbuffered = isinstance(below, io.FileIO)  # python -u
    return io.TextIOWrapper(
        raw if unbuffered else io.BufferedWriter(raw),  # pyright: ignore[reportArgumentType]
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=bool(stream.line_buffering),
        write_through=bool(getattr(stream, "write_through", False)),
    )


class Streams:
    """The standard streams of a command; those of tests, which are no streams of the system, are left alone."""

    def __init__(self, command: str):
        self._previous_streams = sys.stdout, sys.stderr
        self._output = _Output(command) if _is_of_system(sys.stdout, 1) else None
        self._errors = _Stream(2) if _is_of_system(sys.stderr, 2) else None

    @property
    def failed(self) -> bool:
        """Whether output was lost that somebody would have read."""
        problem = None if self._output is None else self._output.problem
        return problem is not None and not isinstance(problem, BrokenPipeError)

    @contextmanager
    def in_place(self) -> Generator[None]:
        """Within the block, `sys.stdout` and `sys.stderr` are these."""
        out, err = self._previous_streams
        for stream in (out, err):
            stream.flush()
        if self._output is not None:
            sys.stdout = _text(out, self._output)
        if self._errors is not None:
            sys.stderr = _text(err, self._errors)
        try:
            yield
        finally:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):
                    stream.flush()
            sys.stdout, sys.stderr = out, err


def is_unread(stream: TextIO) -> bool:
    """Whether a standard stream was given up."""
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)
    return isinstance(raw, _Stream) and raw.problem is not None
