"""Processes of a job on this host, each with its part of the environment and a log."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from pstranspile.fluid.running.meeting import MEETING


class Started(NamedTuple):
    """A process, what it is called, and its log."""

    name: str
    process: subprocess.Popen[bytes]
    log: IO[bytes] | None


def start(name: str, script: Sequence[str], environment: Mapping[str, str], log_dir: str | None) -> Started:
    """Starts a script as `python SCRIPT`; its output goes to a log, or to that of this process."""
    log: IO[bytes] | None = None
    if log_dir:
        Path(log_dir).mkdir(parents=True, exist_ok=True)
        log = open(Path(log_dir, name), "wb")  # noqa: SIM115
    process = subprocess.Popen(
        [sys.executable, "-u", *script],
        env={**os.environ, **environment},
        stdout=log,
        stderr=subprocess.STDOUT if log else None,
    )
    return Started(name, process, log)


def wait(workers: Sequence[Started], servers: Sequence[Started] = ()) -> int:
    """Waits for the workers, and then for the servers, which end with them; gives the first status that is not 0.

    When a worker fails, all others are ended.
    """
    status = 0
    try:
        for started in workers:
            code = started.process.wait()
            if code and not status:
                status = code
                print(f"{started.name} has ended with status {code}", file=sys.stderr)
                break
        for started in servers:
            if not status:
                status = started.process.wait()
    finally:
        for started in (*workers, *servers):
            if started.process.poll() is None:
                started.process.terminate()
        for started in (*workers, *servers):
            started.process.wait()
            if started.log is not None:
                started.log.close()
    return status


def meeting() -> dict[str, str]:
    """Where trainers of this host meet beside training, as a variable of the environment."""
    with socket.create_server(("127.0.0.1", 0)) as tried:
        return {MEETING: f"127.0.0.1:{tried.getsockname()[1]}"}
