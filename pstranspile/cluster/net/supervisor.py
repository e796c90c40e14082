"""Runs all machines of a job as processes on this host: starts, watches, restarts and ends them."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from pstranspile.cluster.net.metrics import ProcessReports
from pstranspile.cluster.net.status import DONE, PARENT, STATUS, WATCHED
from pstranspile.ir.patterns import Pattern

# Folders of logs: logs of an earlier run are moved away, and two runs never write into one folder at once.

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None


class LogFolderInUse(OSError):
    """Another run writes its logs into the folder."""


@contextmanager
def log_folder(folder: Path, names: Pattern[str]) -> Generator[Path | None]:
    """Makes a folder for logs, and locks it until the end of the block.

    Files in it whose names match are logs of an earlier run: they are moved into a new subfolder, `earlier_1` or the
    next number. Yields that subfolder, or None if there are no such logs. Raises LogFolderInUse, OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = _lock(folder)
    try:
        yield _set_apart(folder, names)
    finally:
        if handle is not None:
            os.close(handle)


def _lock(folder: Path) -> int | None:
    """Locks a folder; returns the handle, or None where there are no locks."""
    if fcntl is None:
        return None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        os.close(handle)
        if problem.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise LogFolderInUse(errno.EBUSY, "another run writes its logs there", str(folder)) from None
        return None  # a file system without locks
    return handle


def _set_apart(folder: Path, names: Pattern[str]) -> Path | None:
    old = sorted(path for path in folder.iterdir() if names.fullmatch(path.name) and path.is_file())
    if not old:
        return None
    number = 1
    while (kept := folder / f"earlier_{number}").exists():
        number += 1
    kept.mkdir()
    for path in old:
        path.rename(kept / path.name)
    return kept


_FIRST_ERROR_LINE = Pattern(r"(\S.*: )?error\[|pstranspile( \w+)?: ")
"""Matches the first line of an error in a log; the lines after it belong to it."""

GRACE = 5.0
"""Seconds that a process has to end after SIGTERM."""

LEFT_GRACE = 1.0
"""Seconds that processes have to end after SIGTERM whose machine has ended already."""

SETTLE = 0.3
"""Seconds in which the other processes notice that one has ended, and report their waits."""

LOOK_EVERY = 0.02
"""Seconds between two looks at the reports of machines that report more often: to be woken by each report would take a
share of a processor that the machines need.
"""

LOOKS_AT_ONCE = 200
"""The looks after which the supervisor begins to wait between them."""


class Member:
    """The process of a machine: its last reports, and how it ended."""

    def __init__(self, role: str, command: Sequence[str], log: Path):
        self.role = role
        self.command = list(command)
        self.log = log
        self._begin: list[str] = []
        """Options for the state that the process begins with."""
        self.process: subprocess.Popen[bytes] | None = None
        self.pipe: IO[bytes] | None = None
        self.last_reports: dict[str, Any] = {}
        self._watched = False
        """Whether the process reports a few times a second its waits and the number of messages sent."""
        self.starts = 0
        self.exit_status: int | None = None
        """The exit status, below 0 for a signal; None while the process runs."""
        self.places: Iterator[int] = itertools.count(1)
        """Numbers the processes in the order in which they end; shared by all members of a supervisor."""
        self.noticed = 0
        """The number of this process in the order of ends, from which the first one to end is known."""
        self._partial_line = b""
        self._watching: list[tuple[int, threading.Thread]] = []
        """The number of each started process, and what waits for its end and then ends what it has left running."""

    def begin_with(self, part: Path | None) -> None:
        """Makes the process begin with its part of a checkpoint; None: from the start-up program."""
        self._begin = [] if part is None else ["--begin", str(part)]

    def watch(self) -> None:
        """Makes the process report a few times a second."""
        self._watched = True

    def count_with(self, places: Iterator[int]) -> None:
        """Sets the shared numbering of the processes in the order in which they end."""
        self.places = places

    def end(self, status: int) -> None:
        """Records the exit status of a process that is not restarted."""
        self.exit_status = status

    def start(self, why: str = "") -> None:
        """Starts the process; its output goes to the log, after a line that says why it is restarted, if it is."""
        reading, writing = os.pipe()
        environment = {
            **os.environ,
            **_own_modules(),
            STATUS: str(writing),
            PARENT: "1",
            WATCHED: str(int(self._watched)),
        }
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            log.write(f"{why}\n".encode() if why else b"")
            self.process = subprocess.Popen(
                [*self.command, *self._begin], stdin=subprocess.PIPE, stdout=log, stderr=log, pass_fds=[writing],
                env=environment, start_new_session=True,
            )  # fmt: skip
        os.close(writing)
        watching = threading.Thread(target=self._notice_end, args=(self.process,), daemon=True)
        watching.start()
        self._watching.append((self.process.pid, watching))
        os.set_blocking(reading, False)
        self.pipe = os.fdopen(reading, "rb", buffering=0)
        self.starts += 1
        self.exit_status, self._partial_line = None, b""
        for before in ("state", "findings"):
            self.last_reports.pop(before, None)

    def _notice_end(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        self.noticed = next(self.places)
        _end_session(process.pid)

    def end_leftovers(self, at_once: bool) -> None:
        """Waits until nothing is left of what the ended processes have started; `at_once`: kills it."""
        for leader, watching in self._watching:
            if at_once and watching.is_alive():
                _signal_session(leader, signal.SIGKILL)
            watching.join()
        self._watching.clear()

    def read(self) -> list[dict[str, Any]]:
        """The reports of the process since the last call. The pipe is closed once nobody can write to it."""
        return self._reports(self._read_pipe())

    def _read_pipe(self) -> bytes | None:
        """What has come through the pipe; None: nothing yet, no bytes: nobody can write to it any more."""
        assert self.pipe is not None
        return self.pipe.read(1 << 16)

    def _reports(self, data: bytes | None) -> list[dict[str, Any]]:
        if data is None:
            return []
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        entries = [json.loads(line) for line in lines if line]
        for fields in entries:
            self.last_reports.update(fields)
        if not data:
            self._close()
        return entries

    def read_rest(self) -> list[dict[str, Any]]:
        """The last reports of a process that has ended. Others that hold its end of the pipe are not waited for."""
        entries: list[dict[str, Any]] = []
        while self.pipe is not None and (data := self._read_pipe()) is not None:
            entries += self._reports(data)
        self._close()
        return entries

    def _close(self) -> None:
        if self.pipe is not None:
            self.pipe.close()
            self.pipe = None

    def process_reports(self) -> ProcessReports:
        """The state of the process for the metrics of the job: whether it runs, its starts, and its last reports."""
        return ProcessReports(
            self.role, self.process is not None and self.exit_status is None, self.starts, dict(self.last_reports)
        )

    def log_tail(self, most: int = 8) -> str:
        """The last error in the process's log, in `most` lines; without one, the last three lines."""
        try:
            text = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        errors = [number for number, line in enumerate(text) if _FIRST_ERROR_LINE.match(line)]
        if not errors:
            return "\n".join(text[-3:])
        first = next((number for number in errors if len(text) - number <= most), errors[-1])
        return "\n".join(text[first:][:most])


def _own_modules() -> dict[str, str]:
    """Environment variables that let a process import from the working folder only if this process does.

    Files in that folder may have the names of libraries.
    """
    try:
        here = os.getcwd()
    except OSError:  # it was removed
        return {"PYTHONSAFEPATH": "1"}
    return {} if here in sys.path or "" in sys.path else {"PYTHONSAFEPATH": "1"}


class Supervisor:
    """Runs the machines of a job until all have ended; `restarts` is how often each may be started again.

    `on_report` is called with every report of a process, `on_restart` with a sentence about one that is started again.
    The servers are started first, but nothing depends on it.
    """

    def __init__(
        self,
        members: Mapping[str, Member],
        *,
        restarts: int = 0,
        on_report: Callable[[Member, dict[str, Any]], object] | None = None,
        on_look: Callable[[], object] | None = None,
        on_restart: Callable[[str], object] | None = None,
    ):
        self.members = dict(members)
        places = itertools.count(1)
        for member in self.members.values():
            member.count_with(places)
        self.restarts = restarts
        self.on_report = on_report
        self.on_look = on_look
        self.on_restart = on_restart
        self.failed: list[tuple[Member, int]] = []
        """The processes that ended before their part was done and were not restarted, each with its status, in the
        order of their ends.
        """
        self.left_out: list[Member] = []
        """The trainers that were given up and did not rejoin before the servers were done."""
        self._selector = selectors.DefaultSelector()
        self._looks = float(LOOKS_AT_ONCE)
        """The looks that may still follow each other at once."""
        self._looked = time.monotonic()
        """The time of the last look."""

    def run(self) -> bool:
        """Runs the machines; returns whether all did their work. In any case no process is left afterwards."""
        try:
            for member in self.members.values():
                self._start(member)
            while any(member.exit_status is None for member in self.members.values()) and not self.failed:
                self._wait_for_reports()
                self._read(0.1)
                self.left_out = self._too_late()
                if self.left_out:
                    break
                for member in sorted(self.members.values(), key=lambda member: member.noticed):
                    self._look_after(member)
                if self.on_look is not None:
                    self.on_look()
            settled = time.monotonic() + (SETTLE if self.failed else 0.0)
            while time.monotonic() < settled:
                self._read(0.05)
        finally:
            self.end_all()
        return not (self.failed or self.left_out)

    def _too_late(self) -> list[Member]:
        """The trainers that are too late because the servers are done without them.

        Without servers, a trainer ends when all running trainers have done their steps.
        """
        servers = [member for member in self.members.values() if member.role.startswith("pserver")]
        ended = [member.exit_status == 0 for member in servers or self.members.values()]
        if not (all(ended) if servers else any(ended)):
            return []
        return [member for member in self.members.values() if member.last_reports.get("state") != DONE]

    def _start(self, member: Member, why: str = "") -> None:
        member.start(why)
        self._selector.register(member.pipe, selectors.EVENT_READ, member)  # pyright: ignore[reportArgumentType]

    def _wait_for_reports(self) -> None:
        """Waits until the next look may follow."""
        if self._looks < 1:
            time.sleep(LOOK_EVERY)
        now = time.monotonic()
        self._looks = min(self._looks + (now - self._looked) / LOOK_EVERY, LOOKS_AT_ONCE) - 1
        self._looked = now

    def _read(self, timeout: float) -> None:
        for key, _ in self._selector.select(timeout):
            member: Member = key.data
            pipe = member.pipe
            for fields in member.read():
                if self.on_report is not None:
                    self.on_report(member, fields)
            if member.pipe is None and pipe is not None:
                self._selector.unregister(pipe)

    def _look_after(self, member: Member) -> None:
        if member.exit_status is not None or member.process is None:
            return
        status = member.process.poll()
        if status is None:
            return
        self._read_rest(member)
        done = member.last_reports.get("state") == DONE
        if done:  # however it ended
            status = 0
        if not done and member.starts <= self.restarts:
            again = f"{member.role} has ended {how_it_ended(status)}, and is started again"
            why = f"{again} ({member.starts} of {self.restarts})"
            if self.on_restart is not None:
                self.on_restart(why)
            self._start(member, why)
            return
        member.end(status)
        if not done:
            self.failed.append((member, status))

    def _read_rest(self, member: Member) -> None:
        """Reads what an ended process has reported, and no further."""
        if member.pipe is None:
            return
        self._selector.unregister(member.pipe)
        for fields in member.read_rest():
            if self.on_report is not None:
                self.on_report(member, fields)

    def end_all(self) -> None:
        """Ends every process that still runs, and what these have started: by SIGTERM first, then, or at an interrupt,
        by SIGKILL.
        """
        running = [m.process for m in self.members.values() if m.process is not None and m.process.poll() is None]
        for process in running:
            with contextlib.suppress(OSError):
                process.send_signal(signal.SIGTERM)
        end = time.monotonic() + GRACE
        at_once = True
        try:
            for process in running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(end - time.monotonic(), 0.01))
            at_once = False
        finally:
            for process in running:
                if process.poll() is None:
                    process.kill()
                process.wait()
            for member in self.members.values():
                member.end_leftovers(at_once)
        for member in self.members.values():
            self._read_rest(member)
            if member.process is not None:
                if member.process.stdin is not None:
                    with contextlib.suppress(OSError):
                        member.process.stdin.close()
                member.end(member.process.returncode)


def _end_session(leader: int) -> None:
    """Ends what an ended process has left running in its session, such as workers of a function that makes batches: by
    SIGTERM, and after `LEFT_GRACE` seconds by SIGKILL.
    """
    if not _signal_session(leader, signal.SIGTERM):
        return
    end = time.monotonic() + LEFT_GRACE
    while _signal_session(leader, 0):  # looked at without a pause long enough for another process to get this number
        if time.monotonic() > end:
            _signal_session(leader, signal.SIGKILL)
            return
        time.sleep(0.02)


def _signal_session(leader: int, number: int) -> bool:
    """Sends a signal to what is left of a process's session; returns whether there is something."""
    try:
        os.killpg(leader, number)
    except OSError:
        return False
    return True


def how_it_ended(status: int) -> str:
    """How a process ended, in words: `with status 1`, or `by SIGKILL`."""
    if status >= 0:
        return f"with status {status}"
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:  # a signal without a name
        return f"by signal {-status}"


class Ports:
    """Free ports of this host, reserved for the processes that will listen on them."""

    def __init__(self, count: int, host: str = "127.0.0.1"):
        self._sockets = [socket.socket() for _ in range(count)]
        for sock in self._sockets:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind((host, 0))
        self.addresses = [f"{host}:{sock.getsockname()[1]}" for sock in self._sockets]

    def close(self) -> None:
        """Releases the ports."""
        for sock in self._sockets:
            sock.close()


def command_of(role: str, folder: str, addresses: Mapping[str, str], options: Sequence[str]) -> list[str]:
    """The command line of a machine's process."""
    given = [part for name, address in addresses.items() for part in ("--address", f"{name}={address}")]
    return [sys.executable, "-m", "pstranspile", "start", folder, "--role", role, *given, *options]
