"""Machines of another system in a job: what a process needs of them, whatever their protocol.

A process is given a `ForeignSystem` if such machines may take part. They send neither token nor job, so their messages
are checked against the programs of the job.

Fluid's trainers never repeat a call that was answered. So a process that replaces a server needs all calls that the
server took: its saved state, and the later calls in order. The journal writes these to disk before they are answered,
in a new file after each saved state.
"""

from __future__ import annotations

import os
import signal
import struct
import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pstranspile.cluster.machines.server import Server
from pstranspile.cluster.net.http2 import LARGE_CALL, CallService
from pstranspile.cluster.net.peer import Peer
from pstranspile.cluster.net.site import Site, SiteListener
from pstranspile.cluster.net.wire import Bytes
from pstranspile.ir.diagnostics import DiagnosticError, error, installing
from pstranspile.ir.model import Location
from pstranspile.ir.reading import open_regular, reason_for

GONE = "Gone"
"""Stands in the journal in place of a method, where a trainer was given up."""

METHODS = (
    "SendVariable", "GetVariable", "GetVariableNoBarrier", "PrefetchVariable", "CheckpointNotify", "DistributeNotify",
    GONE,
)  # fmt: skip

_HEAD = struct.Struct("<4sIQII")
"""A mark, the check sums of head and call in one number, the size of the call, its method and its trainer."""

_MARK = b"call"
_LOST = b"lost".ljust(_HEAD.size + 4, b"\0")
"""What stands in place of the first head of a file that lacks calls, where the file can't be renamed."""


class Entry(NamedTuple):
    """A call: its method, the number of its trainer, and the bytes of its message."""

    method: str
    trainer: int
    data: bytes


class Journal:
    """The files `<server>.calls.<number>` in a folder. Raises DiagnosticError if one is missing or damaged."""

    def __init__(self, folder: str, server: str):
        self.folder = Path(folder)
        self.server = server
        self.number = -1
        """The number of the journal file to which calls are written; -1 before the first."""
        self.call_bytes = 0
        """The bytes of the calls since the last file was begun."""
        self.problem = ""
        """The reason why calls can't be written, or "". The state must then be saved again."""
        self._handle = -1

    def _file(self, number: int) -> Path:
        return self.folder / f"{self.server}.calls.{number}"

    def _files(self) -> Iterator[tuple[int, Path]]:
        """Yields number and path of every existing file, including those that were given up (`.lost`)."""
        for path in self.folder.glob(f"{self.server}.calls.*"):
            number = path.name.removeprefix(f"{self.server}.calls.").removesuffix(".lost")
            if number.isdecimal():
                yield int(number), path

    def begin_file(self) -> int:
        """Begins a new file for further calls; returns its number, which belongs to the present state."""
        self.close()
        self.number = max((number for number, _ in self._files()), default=self.number) + 1
        self.call_bytes, self.problem = 0, ""
        try:
            self._handle = os.open(self._file(self.number), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        except OSError as problem:
            self._give_up(problem, self.number - 1)
        return self.number

    def _give_up(self, problem: OSError, number: int) -> None:
        """Marks a file as incomplete: a call is taken that can't be written, so the calls since the last state are of
        no use.
        """
        self.problem = str(problem.strerror)
        self.close()
        file = self._file(number)
        try:
            if file.exists():
                file.rename(f"{file}.lost")  # renaming needs no space on a full disk
        except OSError:  # nothing in the folder can be renamed, but the file may still be written to
            with suppress(OSError):
                handle = os.open(file, os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0))
                with os.fdopen(handle, "wb", buffering=0) as whole:
                    whole.write(_LOST)

    def add(self, method: str, trainer: int, data: Bytes, check_sum: int) -> None:
        """Writes a call, before it is answered. If that fails, the state must be saved again."""
        self.call_bytes += len(data) + _HEAD.size
        if self.problem:
            return
        head = _HEAD.pack(_MARK, check_sum, len(data), METHODS.index(method), trainer)
        try:
            left = [memoryview(head + struct.pack("<I", zlib.crc32(head))), memoryview(data)]
            while left:
                written = os.writev(self._handle, left)
                while left and written >= len(left[0]):
                    written -= len(left.pop(0))
                if left:
                    left[0] = left[0][written:]
        except OSError as problem:
            self._give_up(problem, self.number)

    def forget(self, before: int) -> None:
        """Removes the files before this one, as a state on disk contains their calls. Files that can't be removed stay,
        as nobody reads them any more.
        """
        for number, path in list(self._files()):
            with suppress(OSError):
                if number < before and (path.is_symlink() or not path.is_dir()):
                    path.unlink(missing_ok=True)

    def read(self, since: int) -> Iterator[Entry]:
        """Yields the calls in files from this number on, in order. A call that was written in part was never answered,
        and is left out.

        Raises DiagnosticError.
        """
        files = dict(sorted(item for item in self._files() if item[0] >= since))
        for number in range(since, max(files, default=since) + 1):
            path = files.get(number)
            if path is None or path.name.endswith(".lost"):
                raise _journal_error(
                    self._file(number), "is missing, with calls of Fluid's trainers that were answered"
                )
            yield from _entries(path)

    def end(self) -> None:
        """Removes all files at the end of the job."""
        self.close()
        self.forget(self.number + 1)

    def close(self) -> None:
        """Closes the current file; no more calls are written to it."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _entries(path: Path) -> Iterator[Entry]:
    try:
        opened = open_regular(path)
    except OSError as problem:
        raise _journal_error(path, f"can't be read: {reason_for(problem, path)}") from None
    with opened as file:
        size = os.fstat(file.fileno()).st_size
        while size - file.tell() >= _HEAD.size + 4:
            head = file.read(_HEAD.size)
            mark, check_sum, length, method, trainer = _HEAD.unpack(head)
            if mark == _LOST[: len(mark)]:
                raise _journal_error(path, "lacks calls of Fluid's trainers that were answered")
            if mark != _MARK or struct.unpack("<I", file.read(4))[0] != zlib.crc32(head) or method >= len(METHODS):
                raise _journal_error(path, "is damaged: the check sum of a call is another")
            if length > LARGE_CALL:
                raise _journal_error(path, f"is damaged: a call has {length} bytes")
            if size - file.tell() < length:
                return
            data = file.read(length)
            if zlib.crc32(data) != check_sum:
                raise _journal_error(path, "is damaged: the check sum of a call is another")
            yield Entry(METHODS[method], trainer, data)


def _journal_error(path: Path, reason: str) -> DiagnosticError:
    return DiagnosticError([error("cluster-kept", reason, Location(str(path)))])


@contextmanager
def _delayed_signals() -> Generator[None]:
    """Delays signals that end the process: an exception in the import of a compiled module would leave half of it."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals raise nothing here
        return
    came: list[int] = []
    ends = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in ends}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for number in came:
            signal.raise_signal(number)


def grpc_library() -> Any:
    """The module `grpc`, imported whole before a signal has its effect. Raises DiagnosticError if grpcio is not
    installed.
    """
    try:
        with _delayed_signals():
            return import_module("grpc")
    except ImportError as problem:
        what = "is not installed" if isinstance(problem, ModuleNotFoundError) else f"can't be imported ({problem})"
        message = f"servers of Fluid are called by gRPC, which {what}: {installing('cluster')}"
        raise DiagnosticError([error("start-library", message)]) from None


class ForeignTrainers(SiteListener, ABC):
    """The trainers of another system, as a server of this process sees them.

    Between the turns of machines, trainers that have been missing for too long are given up.
    """

    @property
    @abstractmethod
    def journal(self) -> Journal | None:
        """The calls since the saved state of the server; None where no state is saved."""

    @abstractmethod
    def service(self) -> CallService:
        """The service with the methods that the trainers call."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """The state that must be saved with the server's state and the journal of later calls."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any], entries: Iterable[Entry]) -> None:
        """Continues from a saved state with the calls that came after it; no answers are sent."""

    @abstractmethod
    def end_part(self, peer: Peer, reason: str) -> None:
        """Ends the participation of a trainer whose messages do not fit the job."""

    @abstractmethod
    def close(self) -> None:
        """Refuses the waiting calls, as the server has ended."""


class ForeignServer(Protocol):
    """A server of another system, as a trainer of this process sees it."""

    @property
    def peer(self) -> Peer:
        """The machine of the job whose role the server plays."""
        ...

    @property
    def idle(self) -> bool:
        """Whether everything that was posted has been answered."""
        ...

    def close(self) -> None:
        """Ends all calls, and makes no more."""
        ...


class ForeignSystem(Protocol):
    """A system whose machines may take part in a job."""

    @property
    def name(self) -> str:
        """The name of the system in messages."""
        ...

    def trainers(self, site: Site, server: Server, journal: Journal | None) -> ForeignTrainers:
        """The system's trainers, for a server of this process."""
        ...

    def server(self, site: Site, peer: Peer, address: str) -> ForeignServer:
        """A server of the system, for the trainer of this process. Raises Refused if the job can't have such a
        server.
        """
        ...
