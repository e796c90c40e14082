"""Processes of tests that are forked from one which has imported the package already.

A machine of a job that a test launches takes as long to import numpy and the package as it then takes to train. So
`fork_machines` has such a machine forked from a process that has imported them, one for each worker of the tests. Its
command, environment, working folder, session and descriptors are those that a new interpreter would have. Machines
that a command of its own process launches are new interpreters, and so are those of tests about processes.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import multiprocessing
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

CONTEXT = multiprocessing.get_context("forkserver")


def prepared() -> multiprocessing.context.ForkServerContext:
    """The context whose processes begin with the package imported; the first process decides what that is, for all."""
    CONTEXT.set_forkserver_preload(
        [
            "pstranspile.runtime.kernels",
            "pstranspile.frontends.layers",
            "pstranspile.fluid.paddle",
            "tests.cluster.net.forked",
        ]
    )
    return CONTEXT


EXECUTED = (
    "tests/cluster/net/test_launch.py",
    "tests/cluster/net/test_news.py",
    "tests/cluster/net/test_processes.py",
    "tests/cluster/checkpoint/test_kills.py",
    "tests/tools/cli/test_interrupted.py",
    "tests/tools/cli/test_starting.py",
    "tests/tools/cli/test_surroundings.py",
)
"""Tests about processes, what ends them and what they are told, whose machines are new interpreters."""

PRELOADED = (
    "pstranspile.tools.cli",
    "pstranspile.tools.cli.start",
    "pstranspile.tools.cli.turns",
    "pstranspile.cluster.data.loader",
    "pstranspile.cluster.net.job",
    "pstranspile.cluster.net.metrics",
    "pstranspile.cluster.net.other_systems",
    "pstranspile.cluster.net.parts",
    "pstranspile.cluster.net.process",
    "pstranspile.cluster.net.tls",
    "pstranspile.cluster.net.tracing",
    "pstranspile.runtime.kernels",
    "pstranspile.runtime.large.table",
    "pstranspile.runtime.run.files",
)
"""What a machine imports."""

INTERPRETER = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC", "GLIBC", "OMP_", "OPENBLAS_", "MKL_", "NPY_")
"""How the names begin of variables that an interpreter and numpy read once, as they start."""

OWN_START = ("fluid", "--threads", "--fluid")
"""Arguments of a machine that decide how numpy is imported, or what is."""

SAFE_PATH = "PYTHONSAFEPATH"

ROOT = Path(__file__).resolve().parent.parent


class ForkedMachine:
    """The process of a machine, with those attributes of a `subprocess.Popen` that a supervisor uses."""

    def __init__(self, server: ForkServer, request: Mapping[str, Any], descriptors: Sequence[int]):
        given, written = os.pipe()
        self._told, tells = os.pipe()
        self._reading = threading.Lock()
        self.stdin: IO[bytes] | None = os.fdopen(written, "wb")
        self.returncode: int | None = None
        try:
            server.ask(request, [given, *descriptors, tells])
        finally:
            os.close(given)
            os.close(tells)
        self.pid = self._number()

    def __del__(self) -> None:
        os.close(self._told)

    def _number(self) -> int:
        """The next number that the server tells. Raises OSError if it has ended."""
        line = b""
        while not line.endswith(b"\n"):
            if not (read := os.read(self._told, 1)):
                raise OSError("the process that machines are forked from has ended")
            line += read
        return int(line)

    def poll(self) -> int | None:
        """The exit status, below 0 for a signal; None while the process runs."""
        return self._status(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, once the process has ended. Raises TimeoutExpired after `timeout` seconds."""
        status = self._status(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return status

    def _status(self, seconds: float | None) -> int | None:
        told = select.poll()
        told.register(self._told, select.POLLIN)
        if self.returncode is None and told.poll(None if seconds is None else 1000 * seconds):
            with self._reading:
                if self.returncode is None:
                    self.returncode = os.waitstatus_to_exitcode(self._number())
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal to the process, unless it is known to have ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends the process at once."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """A process that has imported what machines import, and forks one for each request."""

    def __init__(self) -> None:
        self._asks, asked = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.environment = dict(os.environ)
        command = [sys.executable, "-m", "tests.forking", str(asked.fileno())]
        self.process = subprocess.Popen(
            command, pass_fds=[asked.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=ROOT,
            env=self.environment, start_new_session=True,
        )  # fmt: skip
        asked.close()
        atexit.register(self._end)

    def _end(self) -> None:
        self._asks.close()
        self.process.wait()

    def alike(self, environment: Mapping[str, str]) -> bool:
        """Whether an interpreter with this environment would start as this process has."""
        one, other = (
            {name: value for name, value in each.items() if name.startswith(INTERPRETER) and name != SAFE_PATH}
            for each in (environment, self.environment)
        )
        return one == other

    def ask(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        """Has a machine forked with these descriptors. Raises OSError if there is too much to say."""
        socket.send_fds(self._asks, [json.dumps(request).encode()], list(descriptors))


class MachineStarts:
    """What starts the processes of a supervisor: the fork server, or a new interpreter where it must be one."""

    def __init__(self) -> None:
        self._server: ForkServer | None = None
        self._executable = sys.executable

    def begin(self, command: Sequence[str], **options: Any) -> Any:
        """The process of a machine, as `subprocess.Popen` of these arguments starts it."""
        environment: Mapping[str, str] = options.get("env") or {}
        if not self._may_fork(command):
            return subprocess.Popen(command, **options)
        if self._server is None:
            self._server = ForkServer()
        if not self._server.alike(environment):
            return subprocess.Popen(command, **options)
        request = {
            "arguments": list(command[3:]),
            "folder": os.getcwd(),
            "environment": dict(environment),
            "passed": list(options["pass_fds"]),
        }
        descriptors = [options["stdout"].fileno(), options["stderr"].fileno(), *options["pass_fds"]]
        return ForkedMachine(self._server, request, descriptors)

    def _may_fork(self, command: Sequence[str]) -> bool:
        test = os.environ.get("PYTEST_CURRENT_TEST", "")
        if not hasattr(os, "pidfd_open") or not test or test.startswith(EXECUTED):
            return False
        started = list(command[:4]) == [self._executable, "-m", "pstranspile", "start"]
        return started and os.path.isdir(os.curdir) and not set(OWN_START).intersection(command)


def fork_machines() -> None:
    """Has the machines that this process launches forked from a process that has imported the package."""
    from pstranspile.cluster.net import supervisor

    supervisor.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": MachineStarts().begin})


def serve(number: int) -> list[str] | None:
    """Forks a machine for each request that comes through a socket, and tells how each has ended.

    Returns the arguments of its command in the process of a machine, and None in this one once nobody asks any more.
    """
    asked = socket.socket(fileno=number)
    running: dict[int, tuple[int, int]] = {}
    while True:
        ready = select.select([number, *running], [], [])[0]
        for one in running.keys() & set(ready):
            process, tells = running.pop(one)
            status = os.waitpid(process, 0)[1]
            _write(tells, status)
            os.close(tells)
            os.close(one)
        if number not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(asked, 1 << 22, 64)
        if not message:
            return None
        request = json.loads(message)
        process = os.fork()
        if process == 0:
            asked.detach()
            return _become(request, descriptors)
        running[os.pidfd_open(process)] = (process, descriptors[-1])
        for one in descriptors[:-1]:
            os.close(one)


def _write(descriptor: int, number: int) -> None:
    with suppress(BrokenPipeError):  # nobody waits for this process any more
        os.write(descriptor, b"%d\n" % number)


def _become(request: Mapping[str, Any], descriptors: Sequence[int]) -> list[str]:
    """Gives this process the session, descriptors, environment, folder and module path of a new interpreter."""
    import fcntl  # which Windows has not, where nothing is forked

    os.setsid()
    numbers = [0, 1, 2, *request["passed"]]
    above = max(*numbers, *descriptors) + 1
    copies = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, above) for one in descriptors]
    os.closerange(3, above)
    for copy, number in zip(copies, numbers, strict=False):
        os.dup2(copy, number)
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.chdir(request["folder"])
    sys.path[0:1] = [] if os.environ.get(SAFE_PATH) else [os.getcwd()]
    importlib.import_module("pstranspile.ir.startup_signals")._process = os.getpid()  # what it was imported in
    _write(copies[-1], os.getpid())
    os.closerange(above, max(copies) + 1)
    return request["arguments"]


if __name__ == "__main__":
    for _name in PRELOADED:
        importlib.import_module(_name)
    gc.collect()
    gc.freeze()
    _arguments = serve(int(sys.argv[1]))
    if _arguments is not None:
        sys.argv = ["pstranspile", *_arguments]
        runpy.run_module("pstranspile", run_name="__main__", alter_sys=True)
