"""Runs a script as several processes on this host, for the launchers `launch` and `launch_ps`: starts them, shows their
output by name, watches them, and ends them together.

A launcher imports nothing of what scripts call, so that it starts at once.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
import traceback
import warnings
from argparse import ArgumentParser, ArgumentTypeError
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Thread, current_thread, main_thread
from typing import IO, Any, NamedTuple, NoReturn

from pstranspile.cluster.net.supervisor import LogFolderInUse, how_it_ended, log_folder
from pstranspile.cluster.net.transport import is_taken
from pstranspile.fluid.running.flags import LAUNCHER, MEETING, TRAINERS_ENDED
from pstranspile.ir.diagnostics import did_you_mean, quantity
from pstranspile.ir.patterns import Pattern

GRACE = 10.0
"""Seconds that processes have to end after SIGTERM."""

SETTLE = 0.3
"""Seconds after a first failure within which processes that fail too are reported as well."""

MOST_IN_LINE = 1 << 16
"""The most bytes of a line that are shown at once; a longer line is shown in pieces."""

LAST_LINES = 15
"""The number of last lines of a failed process that are shown again at the end."""

MOST_OF_LINE = 1000
"""The most characters that are shown of one of these last lines of a failed process."""

_PIECE = 1 << 16
_LOGS = Pattern(r"(worker|server)log\.[0-9]+")


class ProcessToStart(NamedTuple):
    """A process to start: its name for people (`trainer 0`), the name of its log, whether it is a server, and the
    variables of its environment.
    """

    name: str
    log: str
    is_server: bool
    environment: Mapping[str, str]


class _Output:
    """An output of a process. Its lines are shown, as a whole and with the name of the process, and
    written to the log.
    """

    def __init__(self, pipe: IO[bytes], display: Any, name: str, log: IO[bytes] | None):
        self.pipe: IO[bytes] | None = pipe
        self.last_lines: deque[bytes] = deque(maxlen=LAST_LINES)
        self.unread = False
        """Whether the reader of the launcher's own output has gone."""
        self._display = display
        self._prefix = f"[{name}] ".encode()
        self._log = log
        self._unfinished_line = bytearray()
        os.set_blocking(pipe.fileno(), False)

    def read(self) -> bool:
        """Reads the available bytes; returns False if there are none. At its end the pipe is closed."""
        if self.pipe is None:
            return False
        try:
            data = os.read(self.pipe.fileno(), _PIECE)
        except BlockingIOError:
            return False
        if not data:
            self.end()
            return False
        self._take(data)
        return True

    def _take(self, data: bytes) -> None:
        head, newline, tail = data.rpartition(b"\n")
        if newline:
            self._unfinished_line += head
            self._write(bytes(self._unfinished_line))
            self._unfinished_line.clear()
        self._unfinished_line += tail
        if len(self._unfinished_line) > MOST_IN_LINE:
            self._write(bytes(self._unfinished_line), end=b"")
            self._unfinished_line.clear()

    def _write(self, lines: bytes, end: bytes = b"\n") -> None:
        self._write_log(lines + end)
        self.last_lines.extend(lines.split(b"\n")[-LAST_LINES:])
        ended = lines.replace(b"\r\n", b"\n").replace(b"\r", b"\n")  # progress bars end their lines with \r
        try:
            _show(self._display, self._prefix + ended.replace(b"\n", b"\n" + self._prefix) + b"\n")
        except OSError:  # the reader has gone, or the disk is full
            self._display, self.unread = None, True

    def _write_log(self, data: bytes) -> None:
        if self._log is None:
            return
        try:
            self._log.write(data)
            self._log.flush()
        except OSError as problem:
            self._log = None
            _say(f"{self._prefix.decode()}its log can't be written any more: {problem.strerror}")

    def end(self) -> None:
        """Shows the rest of an unfinished line, and stops reading."""
        if self._unfinished_line:
            self._write(bytes(self._unfinished_line))
            self._unfinished_line.clear()
        if self.pipe is not None:
            self.pipe.close()
            self.pipe = None


def _show(stream: Any, data: bytes) -> None:
    """Writes bytes to a text stream, and flushes it. Raises OSError, for example BrokenPipeError if the reader has
    gone.
    """
    if stream is None:
        return
    buffer = getattr(stream, "buffer", None)
    if buffer is None:
        stream.write(data.decode(errors="replace"))
    else:
        stream.flush()
        buffer.write(data)
    stream.flush()


class _Process:
    """A started process, and its exit status."""

    def __init__(self, description: ProcessToStart, command: Sequence[str], log: IO[bytes] | None):
        self.description = description
        self.status: int | None = None
        """The exit status of the process, below 0 for a signal; None while it runs."""
        self.is_informed = False
        """Whether the process, a server, was informed that all trainers have ended."""
        self._log = log
        hears, self._tells = os.pipe()
        try:
            self.process = subprocess.Popen(
                command, env={**os.environ, **description.environment, LAUNCHER: str(hears)}, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, pass_fds=[hears], start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(hears)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.out = _Output(self.process.stdout, sys.stdout, description.name, log)
        self.errors = _Output(self.process.stderr, sys.stderr, description.name, log)

    def write_to_pipe(self, what: bytes) -> None:
        """Writes bytes to the pipe on which the process listens."""
        with contextlib.suppress(OSError):
            os.write(self._tells, what)

    def send(self, number: int) -> None:
        """Sends a signal to the process and to those that it has started."""
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, number)

    def has_ended(self) -> None:
        """Waits for the process, and reads the rest of its output."""
        self.status = self.process.wait()
        for output in (self.out, self.errors):
            while output.read():
                pass
            output.end()
        os.close(self._tells)
        if self._log is not None:
            with contextlib.suppress(OSError):  # the failure to write was reported before
                self._log.close()

    def how(self) -> str:
        """How the process ended, as text."""
        assert self.status is not None
        return how_it_ended(self.status)

    def last_lines(self) -> list[str]:
        """The last lines that the process has written: those of its stderr, or if there are none, those
        of its stdout.
        """
        last = self.errors.last_lines if any(map(bytes.strip, self.errors.last_lines)) else self.out.last_lines
        lines = [line.decode(errors="replace").rstrip("\r")[:MOST_OF_LINE] for line in last]
        while lines and not lines[0].strip():
            del lines[0]
        return lines


def exit_status(status: int) -> int:
    """The exit status of a launcher for that of its process: for a signal, the one that shells report."""
    return status if status >= 0 else 128 - status


class _Launch:
    """The processes of a script, from their start to their end."""

    def __init__(self, processes: Sequence[_Process]):
        self._processes = processes
        self._selector = selectors.DefaultSelector()
        self._woken, self._waking = socket.socketpair()
        self._ended_processes: deque[_Process] = deque()
        """The processes whose ends were noticed, in this order."""
        self._signals: list[int] = []
        """The signals that this process has received."""
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        for process in processes:
            for output in (process.out, process.errors):
                assert output.pipe is not None
                self._selector.register(output.pipe, selectors.EVENT_READ, output)
            Thread(target=self._await, args=(process,), daemon=True).start()

    def _await(self, process: _Process) -> None:
        process.process.wait()
        self._ended_processes.append(process)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._waking.send(b"\0")

    def _handle_signal(self, number: int, _frame: object) -> None:
        self._signals.append(number)
        self._wake()

    def run(self) -> int:
        """Waits until all processes have ended, or one has failed, after which it ends the others; returns the exit
        status.
        """
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # not under nohup
            numbers.append(signal.SIGHUP)
        here = current_thread() is main_thread()
        before = {number: signal.signal(number, self._handle_signal) for number in numbers} if here else {}
        try:
            return self._run()
        finally:
            self._kill()
            for number, handler in before.items():
                signal.signal(number, handler)
            self._selector.close()
            self._woken.close()
            self._waking.close()

    def _run(self) -> int:
        failed: list[_Process] = []
        while self._running() and not failed and not self._signals:
            for process in self._look(None):
                failed += [process] if self._has_failed(process) else []
                self._note_end(process)
        if not failed and not self._signals:
            return 0
        if failed:
            first = failed[0]
            _say(f"{first.description.name} has ended {first.how()}", *_last_output_lines(first))
            self._settle(failed)
        else:
            how = _name(self._signals[0])
            why = "what is written can't be shown any more" if how == "SIGPIPE" else f"told to end by {how}"
            _say(f"{why}; all processes are ended, at once if told to end again")
        self._end_the_rest(failed)
        return exit_status(failed[0].status or 0) if failed else 128 + self._signals[0]

    def _running(self) -> list[_Process]:
        return [process for process in self._processes if process.status is None]

    def _look(self, timeout: float | None) -> list[_Process]:
        """Waits for output and shows it; returns the processes that have ended in the meantime."""
        ready = self._selector.select(timeout)
        for key, _ in sorted(ready, key=lambda entry: entry[0].fd):  # a process's output before its errors
            output: _Output | None = key.data
            if output is None:
                with contextlib.suppress(OSError):
                    self._woken.recv(4096)
            else:
                output.read()
                if output.unread and signal.SIGPIPE not in self._signals:
                    self._signals.append(signal.SIGPIPE)
                if output.pipe is None:
                    self._selector.unregister(key.fileobj)
        result: list[_Process] = []
        while self._ended_processes:
            process = self._ended_processes.popleft()
            for output in (process.out, process.errors):
                if output.pipe is not None:
                    self._selector.unregister(output.pipe)
            process.has_ended()
            result.append(process)
        return result

    def _has_failed(self, process: _Process) -> bool:
        """Whether a process has failed. A server that was informed that all trainers have ended may end by SIGTERM."""
        by_sigterm = process.status in (-signal.SIGTERM, 128 + signal.SIGTERM)
        return bool(process.status) and not (process.is_informed and by_sigterm)

    def _note_end(self, process: _Process) -> None:
        """Handles the end of a process: after the last trainer, informs the servers."""
        if not process.description.is_server and all(one.description.is_server for one in self._running()):
            for server in self._running():
                server.is_informed = True
                server.write_to_pipe(TRAINERS_ENDED)

    def _settle(self, failed: list[_Process]) -> None:
        """Waits for other processes that fail at the same time, mostly because of the first failure,
        and reports them.
        """
        end = time.monotonic() + SETTLE
        while self._running() and (left := end - time.monotonic()) > 0:
            for process in self._look(left):
                if process.status:
                    failed.append(process)
                    _say(f"after it {process.description.name} has ended {process.how()}")

    def _end_the_rest(self, failed: Sequence[_Process]) -> None:
        """Ends all processes that still run: first by SIGTERM, then, after a time or when this process gets another
        signal, by SIGKILL.
        """
        rest, told = self._running(), 0 if failed else 1
        if rest and failed:
            _say(f"ended because of it: {', '.join(process.description.name for process in rest)}")
        for process in self._processes:  # ended ones too, for processes that they have started
            process.send(signal.SIGTERM)
            process.send(signal.SIGCONT)  # one that was stopped ends too
        end = time.monotonic() + GRACE
        while self._running() and (left := end - time.monotonic()) > 0 and len(self._signals) <= told:
            self._look(left)
        if self._running():
            _say(f"killed: {', '.join(process.description.name for process in self._running())}")
        self._kill()

    def _kill(self) -> None:
        """Kills the processes that still run, and waits for them."""
        for process in self._running():
            process.send(signal.SIGKILL)
        while self._running():
            self._look(None)


def _name(number: int) -> str:
    return signal.Signals(number).name


def _say(*lines: str) -> None:
    """Prints messages of the launcher itself on stderr."""
    with contextlib.suppress(OSError):
        print("launch:", *lines[:1], file=sys.stderr)
        for line in lines[1:]:
            print(f"  {line}", file=sys.stderr)
        sys.stderr.flush()


def _last_output_lines(process: _Process) -> list[str]:
    lines = process.last_lines() or ["(it has written nothing)"]
    if process.status == -signal.SIGKILL:
        lines.append("(where nobody has sent SIGKILL, the system does when memory runs short)")
    return lines


def run_script(
    script: Sequence[str], wanted: Sequence[ProcessToStart], log_dir: str | None, listening: Sequence[str] = ()
) -> int:
    """Runs a script as several processes until all have ended; returns the exit status of the first one that fails, or
    0.

    Their output is shown line by line with their names, and written to logs in `log_dir` ("", None: nowhere).
    `listening` are the addresses of the servers among them.
    """
    wrong = problem_of(script[0]) or problem_of_addresses(listening)
    if wrong:
        _say(f"error: {wrong}")
        return 2
    with contextlib.ExitStack() as at_end:
        if log_dir:
            try:
                earlier = at_end.enter_context(log_folder(Path(log_dir), _LOGS))
            except LogFolderInUse:
                _say(f"error: another launch writes its logs into {log_dir}; give this one another --log_dir")
                return 2
            except OSError as problem:
                _say(f"error: logs can't be written into {log_dir}: {problem.strerror or problem}")
                return 2
            if earlier is not None:
                _say(f"the logs of the launch before are in {earlier} now")
        _say(f"{_process_counts_text(wanted)}, logs in {log_dir}" if log_dir else _process_counts_text(wanted))
        try:
            started = _start_processes(script, wanted, log_dir)
        except OSError as problem:
            _say(f"error: not all processes can be started: {problem.strerror or problem}")
            return 1
        status = _Launch(started).run()
    where = f"; logs in {log_dir}" if log_dir else ""
    _say(f"all have ended well{where}" if not status else f"ended with status {status}{where}")
    if status == 128 + signal.SIGPIPE:
        _silence_stdout()
    return status


def _silence_stdout() -> None:
    """Points stdout at the null device, so that the interpreter's last flush does not fail a second time."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _start_processes(script: Sequence[str], wanted: Sequence[ProcessToStart], log_dir: str | None) -> list[_Process]:
    """Starts the processes. Raises OSError, after ending those that were started."""
    path = script[0] if not script[0].startswith("-") else f"./{script[0]}"
    command = [sys.executable, "-u", "-m", "pstranspile.fluid", path, *script[1:]]
    started: list[_Process] = []
    try:
        for one in wanted:
            log = open(Path(log_dir, one.log), "wb") if log_dir else None  # noqa: SIM115
            started.append(_Process(one, command, log))
    except BaseException:
        for process in started:
            process.send(signal.SIGKILL)
            process.has_ended()
        raise
    return started


def problem_of(script: str) -> str:
    """The reason why a script can't be run at all: it does not exist, or is not valid Python; "" if it can be."""
    try:
        source = Path(script).read_bytes()
    except OSError as problem:
        return f"{script}: {problem.strerror or problem}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, script, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as problem:
        return "".join(traceback.format_exception_only(problem)).strip().replace("\n", "\n  ")
    return ""


class LauncherParser(ArgumentParser):
    """A parser of a launcher's options, which suggests a similar option for an unknown one."""

    def error(self, message: str) -> NoReturn:
        """Ends the launcher with status 2 and a message; only `--help` lists the options."""
        given = re.match("unrecognized arguments: (--?[^ =]+)", message)
        if given:
            message = f"there is no option {given[1]}{did_you_mean(given[1], self._option_string_actions)}"
        self.exit(2, f"{self.prog}: error: {message}\n`--help` explains the options\n")


def number_of_processes(text: str) -> int:
    """The number of processes in the value of an option. Raises ArgumentTypeError."""
    if not text.isdecimal() or not text.isascii():
        raise ArgumentTypeError(f"{text!r} is no number of processes")
    return int(text)


def problem_of_addresses(endpoints: Sequence[str]) -> str:
    """The reason why servers of a script can't listen at these addresses; "" if they can."""
    for number, endpoint in enumerate(endpoints):
        host, _, port = endpoint.rpartition(":")
        if not host or not port.isdecimal() or not port.isascii() or not 0 < int(port) < 1 << 16:
            return f"server {number} can't listen at {endpoint}: give it as HOST:PORT"
        if endpoint in endpoints[:number]:
            return f"server {endpoints.index(endpoint)} and server {number} are both at {endpoint}"
        try:
            taken = is_taken(endpoint)
        except OSError as problem:
            return f"server {number} can't listen at {endpoint}: {problem.strerror or problem}"
        if taken:
            return f"server {number} can't listen at {endpoint}: somebody does already"
    return ""


def _process_counts_text(wanted: Sequence[ProcessToStart]) -> str:
    """The numbers of processes as text: `2 servers and 1 trainer`."""
    servers = sum(one.is_server for one in wanted)
    counts = {"server": servers, "trainer": len(wanted) - servers}
    return " and ".join(quantity(count, what) for what, count in counts.items() if count)


def meeting() -> dict[str, str]:
    """A free address on this host at which trainers meet beside training, as a variable of the environment."""
    with socket.create_server(("127.0.0.1", 0)) as tried:
        return {MEETING: f"127.0.0.1:{tried.getsockname()[1]}"}
