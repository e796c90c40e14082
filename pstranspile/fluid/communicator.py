"""Fluid's `communicator`, which takes the settings of a job, and ends the trainer.

The communication itself is part of a trainer of this package; this module decides which settings apply to it, and which
have no effect.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from pstranspile.cluster.machines.communicator import Settings
from pstranspile.compiler.job import Job
from pstranspile.fluid.missing import names_of_fluid, unsupported_error
from pstranspile.fluid.running.flags import LAUNCHER, TRAINERS_ENDED
from pstranspile.ir.diagnostics import did_you_mean, lasting

# Messages of a launcher to the process of a script: that the launcher has ended, and that all trainers have.

PATIENCE = 10.0
"""Seconds within which a server must begin to serve after all trainers have ended, and a process must end after
SIGTERM.
"""

_trainers_ended, _has_served, _launched = threading.Event(), threading.Event(), threading.Event()


def trainers_ended() -> bool:
    """Whether the launcher has reported that the processes of all trainers have ended."""
    return _trainers_ended.is_set()


def is_launched() -> bool:
    """Whether a launcher has started this process."""
    return _launched.is_set()


def note_serving() -> None:
    """Records that this process serves, so it ends by itself when its trainers have left."""
    _has_served.set()


def idle_server() -> str:
    """The warning about a script that ends in a server's process without having served; "" for others."""
    if not _launched.is_set() or _has_served.is_set() or os.environ.get("TRAINING_ROLE") != "PSERVER":
        return ""
    return (
        "warning: this process was started as a server, and its script has ended without serving: it has run as on a "
        "single machine. Scripts for a cluster ask for their role (fleet.init, or TRAINING_ROLE in the environment)"
    )


def listen() -> None:
    """Starts to listen to the launcher, if there is one. If the launcher ends, this process ends as by SIGTERM."""
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
    """Sends a signal to this process; if it leads a process group, to the whole group."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), number)
    else:
        os.kill(os.getpid(), number)


def _end_if_idle() -> None:
    """Ends a server that has not begun to serve some time after all trainers have ended."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if _has_served.wait(0.1):
            return
    print(f"all trainers have ended, and this server has not begun to serve for {lasting(PATIENCE)}", file=sys.stderr)
    os.kill(os.getpid(), signal.SIGTERM)


_PREFIX = "communicator_"
_FOLLOWED = (f"{_PREFIX}max_merge_var_num", f"{_PREFIX}send_queue_size", f"{_PREFIX}is_sgd_optimizer")
_UNUSED = {
    f"{_PREFIX}thread_pool_size": "a communicator works in one thread",
    f"{_PREFIX}send_wait_times": "what is in the queues is sent without waiting for more",
    "rpc_deadline": "PSTRANSPILE_PATIENCE says how long a trainer waits",
    "rpc_retry_times": "PSTRANSPILE_PATIENCE says how long a trainer waits",
}
_WARNED: set[str] = set()


class DistributedMode:
    """The modes of Fluid's servers, numbered as in Fluid."""

    SYNC = 0
    ASYNC = 1
    HALF_ASYNC = 2
    GEO = 3


def warn_unused(name: str, value: object, reason: str) -> None:
    """Warns on stderr, once for every name, that a setting has no effect."""
    if name not in _WARNED:
        _WARNED.add(name)
        print(f"{name} = {value} changes nothing: {reason}", file=sys.stderr)


def warn_not_followed(name: str, value: object, reason: str) -> None:
    """Warns on stderr, once for every name, that a setting is not followed, so that results differ from Fluid's."""
    if name not in _WARNED:
        _WARNED.add(name)
        print(f"{name} = {value} is not followed: {reason}", file=sys.stderr)


def default_flags() -> dict[str, str]:
    """The settings by Fluid's names, from the environment (`FLAGS_...`, `CPU_NUM`), else Fluid's defaults.

    Other flags of communicators in the environment are reported on stderr.
    """
    flags = {name: os.environ.get(f"FLAGS_{name}", default) for name, default in _defaults().items()}
    for name in sorted(os.environ):
        if name.startswith(f"FLAGS_{_PREFIX}") and name.removeprefix("FLAGS_") not in flags:
            warn_unused(name, os.environ[name], "communicators have no such setting here")
    return flags


def _defaults() -> dict[str, str]:
    threads = os.environ.get("CPU_NUM", "1")
    return {
        "communicator_max_merge_var_num": threads,
        "communicator_send_queue_size": threads,
        "communicator_independent_recv_thread": "1",
        "communicator_min_send_grad_num_before_recv": threads,
        "communicator_thread_pool_size": "5",
        "communicator_send_wait_times": "5",
        "communicator_is_sgd_optimizer": "1",
        "rpc_deadline": "180000",
        "rpc_retry_times": "3",
    }


def mode_of(job: Job | None) -> int:
    """The DistributedMode of a compiled job."""
    if job is None or job.sync_mode or job.completely_not_async:
        return DistributedMode.SYNC
    if job.geo_sgd_mode:
        return DistributedMode.GEO
    return DistributedMode.HALF_ASYNC if job.half_async else DistributedMode.ASYNC


def check_names(flags: Mapping[Any, Any]) -> None:
    """Raises ValueError for a name that is not a setting of communicators."""
    known = _defaults()
    for name in flags:
        if name not in known:
            raise ValueError(f"TrainerRuntimeConfig has no {name!r}{did_you_mean(str(name), known)}")


def communicator_settings(flags: Mapping[str, Any], job: Job | None) -> Settings:
    """The settings of the communicator of a trainer of the job.

    Asynchronous communicators follow `max_merge_var_num`, `send_queue_size` and `is_sgd_optimizer`. Settings that do
    not affect results are reported on stderr if they differ from Fluid's defaults. Raises ValueError for unknown names
    and for values that are not numbers, NotHere for parameters that are fetched less often.
    """
    check_names(flags)
    settings = Settings(push_every=job.geo_sgd_need_push_nums if job is not None else 100)
    defaults = _defaults()
    numbers = {name: _number(name, value) for name, value in flags.items()}
    changed = {name: value for name, value in numbers.items() if value != int(defaults[name])}
    for name in _UNUSED:
        if name in changed:
            warn_unused(name, changed[name], _UNUSED[name])
    if mode_of(job) != DistributedMode.ASYNC:
        for name in defaults:
            if name in changed and name not in _UNUSED:
                warn_unused(name, changed[name], "only asynchronous trainers have queues")
        return settings
    fewest = f"{_PREFIX}min_send_grad_num_before_recv"
    if numbers.get(f"{_PREFIX}independent_recv_thread", 1) and changed.get(fewest, 1) != 1:
        raise unsupported_error(
            f"{fewest} = {changed[fewest]}", "parameters are fetched whenever gradients were sent; leave it"
        )
    most, size, adds = (numbers.get(name, int(defaults[name])) for name in _FOLLOWED)
    return settings._replace(max_merge_var_num=most, send_queue_size=size, merge_add=bool(adds))


def _number(name: str, value: object) -> int:
    text = str(int(value) if isinstance(value, bool) else value)
    least = 1 if name in _FOLLOWED[:2] else 0
    if not text.isdecimal() or int(text) < least:
        raise ValueError(f"{name} is a whole number, at least {least}, not {value!r}")
    return int(text)


_MODES = {number: name for name, number in vars(DistributedMode).items() if name.isupper()}
_OF_JOB = ("geo_trainer_nums", "geo_need_push_nums", "geo_send_varnames", "pserver_endpoints", "trainer_id")
"""Entries of `envs` that repeat settings of the transpiled job."""


class Communicator:
    """Represents the exchange of gradients by a trainer whose program leaves it to a communicator, from the start-up
    program until the end.

    `envs` are settings by Fluid's names, which override the environment. `mode` and `kwargs` must agree with the
    transpiled job; without a mode its mode is used. For a program that is not a trainer's there is nothing to exchange.
    Raises ValueError where they disagree, and for unknown settings; NotHere.
    """

    def __init__(
        self,
        program: Any,
        mode: int | None = None,
        kwargs: Mapping[str, Any] | None = None,
        envs: Mapping[str, Any] | None = None,
    ):
        if mode is not None and mode not in _MODES:
            raise ValueError(f"the mode of a Communicator is one of DistributedMode, not {mode!r}")
        self._machine = getattr(program, "machine", None)
        self._running = False
        if self._machine is None:
            return
        job = self._machine.compiled.job
        if mode is not None and mode != mode_of(job):
            raise ValueError(f"the mode is {_MODES[mode]}, and the program is transpiled for {_MODES[mode_of(job)]}")
        pushes = (kwargs or {}).get("push_nums")
        if pushes is not None and job is not None and int(pushes) != job.geo_sgd_need_push_nums:
            raise ValueError(f"push_nums is {pushes}, and the program is transpiled for {job.geo_sgd_need_push_nums}")
        given = {name: value for name, value in (envs or {}).items() if name not in _OF_JOB}
        self._machine.configure({**default_flags(), **given})

    def start(self) -> None:
        """Marks the communicator as running."""
        self._running = True

    def stop(self) -> None:
        """Waits until everything that was sent has arrived, and ends the trainer."""
        self._running = False
        if self._machine is not None:
            self._machine.leave()

    def is_running(self) -> bool:
        """Whether the communicator was started, and not stopped."""
        return self._running


__getattr__ = names_of_fluid(__name__, globals())
