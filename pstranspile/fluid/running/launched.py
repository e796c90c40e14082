"""What a process of a script hears from its launcher: that the launcher has ended, and that all trainers have."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

LAUNCHER = "PSTRANSPILE_LAUNCHER"
"""The variable of the environment with the number of the pipe that the launcher holds."""

TRAINERS_ENDED = b"t"
"""What the launcher writes into the pipe of a server when all trainers have ended."""

PATIENCE = 10.0
"""Seconds that a server has to begin to serve once all trainers have ended, and a process to end after SIGTERM."""

_trainers_ended, _has_served, _launched = threading.Event(), threading.Event(), threading.Event()


def trainers_ended() -> bool:
    """Whether the launcher has said that the processes of all trainers have ended."""
    return _trainers_ended.is_set()


def note_serving() -> None:
    """This process serves: it ends by itself when its trainers have left."""
    _has_served.set()


def idle_server() -> str:
    """What is to be said of a script that ends in the process of a server, which has served nobody; "" of others."""
    if not _launched.is_set() or _has_served.is_set() or os.environ.get("TRAINING_ROLE") != "PSERVER":
        return ""
    return (
        "warning: this process was started as a server, and its script has ended without serving: it has run as on a "
        "single machine. Scripts for a cluster ask for their role (fleet.init, or TRAINING_ROLE in the environment)"
    )


def listen() -> None:
    """Listens to the launcher, if there is one. Without it this process ends, as by SIGTERM."""
    number = os.environ.pop(LAUNCHER, "")
    if not number.isdecimal():
        return
    pipe = int(number)
    try:
        os.set_inheritable(pipe, False)
    except OSError:  # inherited from a process that had closed it
        return
    _launched.set()
    threading.Thread(target=_listen, args=(pipe,), daemon=True).start()


def _listen(pipe: int) -> None:
    while said := os.read(pipe, 16):
        if TRAINERS_ENDED in said:
            _trainers_ended.set()
            threading.Thread(target=_end_if_idle, daemon=True).start()
    _send(signal.SIGTERM)
    time.sleep(PATIENCE)
    _send(signal.SIGKILL)


def _send(number: int) -> None:
    """Sends a signal to this process, and to those that it has started where it leads a group of its own."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), number)
    else:
        os.kill(os.getpid(), number)


def _end_if_idle() -> None:
    """Ends a server that has nobody to serve, and does not notice it since it has not begun to."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if _has_served.wait(0.1):
            return
    print(f"all trainers have ended, and this server has not begun to serve for {PATIENCE:g} seconds", file=sys.stderr)
    os.kill(os.getpid(), signal.SIGTERM)
