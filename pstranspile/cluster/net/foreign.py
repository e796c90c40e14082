"""Machines of another system in a job: what a process needs of them, whatever protocol they speak.

A process is given a `ForeignSystem` if such machines may take part. They bring neither token nor job, so what they send
is checked against the programs of the job.

Fluid's trainers send nothing again that was answered. So what a server took from them must be there when a process is
started in its place: the state, and after it these calls, in order. The journal has them on disk before they are
answered, with a file for the calls after each state.
"""

from __future__ import annotations

import os
import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pstranspile.cluster.machines.server import Server
from pstranspile.cluster.net.calls import LARGE_CALL, CallService
from pstranspile.cluster.net.peer import Peer
from pstranspile.cluster.net.site import Site, SiteListener
from pstranspile.cluster.net.values import Bytes
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import Location
from pstranspile.ir.reading import open_regular

GONE = "Gone"
"""Stands in place of a method where a trainer was given up."""

METHODS = (
    "SendVariable", "GetVariable", "GetVariableNoBarrier", "PrefetchVariable", "CheckpointNotify", "DistributeNotify",
    GONE,
)  # fmt: skip

_HEAD = struct.Struct("<4sIQII")
"""A mark, the check sums of head and call in one number, the size of the call, its method and its trainer."""

_MARK = b"call"


class Entry(NamedTuple):
    """A call: its method, the number of its trainer, and the bytes of its message."""

    method: str
    trainer: int
    data: bytes


class Journal:
    """The files `<server>.calls.<number>` in a folder. Raises DiagnosticError where one is missing or damaged."""

    def __init__(self, folder: str, server: str):
        self.folder = Path(folder)
        self.server = server
        self.number = -1
        """Number of the journal file that calls are written to; -1 before the first."""
        self.held = 0
        """Bytes of calls since the last file was begun."""
        self.problem = ""
        """Why calls can't be written; the state must be kept anew then."""
        self._handle = -1

    def _file(self, number: int) -> Path:
        return self.folder / f"{self.server}.calls.{number}"

    def _files(self) -> Iterator[tuple[int, Path]]:
        """All files there are, also those that were given up (`.lost`), by number."""
        for path in self.folder.glob(f"{self.server}.calls.*"):
            number = path.name.removeprefix(f"{self.server}.calls.").removesuffix(".lost")
            if number.isdecimal():
                yield int(number), path

    def begin_file(self) -> int:
        """Calls go to a new file from now on; gives its number, which belongs to the state as it is now."""
        self.close()
        self.number = max((number for number, _ in self._files()), default=self.number) + 1
        self.held, self.problem = 0, ""
        try:
            self._handle = os.open(self._file(self.number), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        except OSError as problem:
            self._give_up(problem, self.number - 1)
        return self.number

    def _give_up(self, problem: OSError, number: int) -> None:
        """Calls are taken that can't be written down: all since the last state is worth nothing, which is marked."""
        self.problem = str(problem.strerror)
        self.close()
        file = self._file(number)
        if file.exists():
            file.rename(f"{file}.lost")  # which needs no room on a disk that is full

    def add(self, method: str, trainer: int, data: Bytes, check_sum: int) -> None:
        """Writes a call down, before it is answered. Where that can't be done, the state must be kept anew."""
        self.held += len(data) + _HEAD.size
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
        """A state is on disk that contains all calls in files before this one."""
        for number, path in list(self._files()):
            if number < before and (path.is_symlink() or not path.is_dir()):
                path.unlink(missing_ok=True)

    def read(self, since: int) -> Iterator[Entry]:
        """The calls in files from this number on, in order. One that was written in part was not answered: it is none.

        Raises DiagnosticError.
        """
        files = dict(sorted(item for item in self._files() if item[0] >= since))
        for number in range(since, max(files, default=since) + 1):
            path = files.get(number)
            if path is None or path.name.endswith(".lost"):
                raise _refused(self._file(number), "is missing, with calls of Fluid's trainers that were answered")
            yield from _entries(path)

    def end(self) -> None:
        """The job is over: the calls are needed no more."""
        self.close()
        self.forget(self.number + 1)

    def close(self) -> None:
        """Closes the file; no more calls are written to it."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _entries(path: Path) -> Iterator[Entry]:
    try:
        opened = open_regular(path)
    except OSError as problem:
        raise _refused(path, f"can't be read: {problem.strerror}") from None
    with opened as file:
        size = os.fstat(file.fileno()).st_size
        while size - file.tell() >= _HEAD.size + 4:
            head = file.read(_HEAD.size)
            mark, check_sum, length, method, trainer = _HEAD.unpack(head)
            if mark != _MARK or struct.unpack("<I", file.read(4))[0] != zlib.crc32(head) or method >= len(METHODS):
                raise _refused(path, "is damaged: the check sum of a call is another")
            if length > LARGE_CALL:
                raise _refused(path, f"is damaged: a call has {length} bytes")
            if size - file.tell() < length:
                return
            data = file.read(length)
            if zlib.crc32(data) != check_sum:
                raise _refused(path, "is damaged: the check sum of a call is another")
            yield Entry(METHODS[method], trainer, data)


def _refused(path: Path, reason: str) -> DiagnosticError:
    return DiagnosticError([error("cluster-kept", reason, Location(str(path)))])


def grpc_library() -> Any:
    """The module `grpc`. Raises DiagnosticError if grpcio is not installed."""
    try:
        return import_module("grpc")
    except ImportError as problem:
        what = "is not installed" if isinstance(problem, ModuleNotFoundError) else f"can't be imported ({problem})"
        message = f"servers of Fluid are called by gRPC, which {what}: pip install 'pstranspile[cluster]'"
        raise DiagnosticError([error("start-library", message)]) from None


class ForeignTrainers(SiteListener, ABC):
    """The trainers of another system, as a server of this process sees them.

    Between the turns of machines, those are given up that are missing for too long.
    """

    @property
    @abstractmethod
    def journal(self) -> Journal | None:
        """The calls that came after the kept state of the server; None where no state is kept."""

    @abstractmethod
    def service(self) -> CallService:
        """The methods that the trainers call."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """The state that must be kept with the server's state and the journal of later calls."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any], entries: Iterable[Entry]) -> None:
        """Goes on from a kept state with the calls that have come after it; nobody is answered."""

    @abstractmethod
    def end_part(self, peer: Peer, reason: str) -> None:
        """Ends the part of a trainer that has sent what does not fit the job."""

    @abstractmethod
    def close(self) -> None:
        """Refuses the calls that wait: the server has ended."""


class ForeignServer(Protocol):
    """A server of another system, as a trainer of this process sees it."""

    @property
    def peer(self) -> Peer:
        """The machine of the job whose part the server plays."""
        ...

    @property
    def idle(self) -> bool:
        """Whether everything that was posted has been answered."""
        ...

    def close(self) -> None:
        """Makes no more calls; one that is under way is given up."""
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
        """A server of the system, for the trainer of this process. Raises Refused if the job can't have one."""
        ...
