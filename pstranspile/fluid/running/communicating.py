"""The settings of Fluid's communicators: which of them the trainers of scripts follow, and which change nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from pstranspile.cluster.machines.communicator import Settings
from pstranspile.compiler.job import Job
from pstranspile.fluid.missing import refused

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
    """The modes of Fluid's servers, by its numbers."""

    SYNC = 0
    ASYNC = 1
    HALF_ASYNC = 2
    GEO = 3


def warn_unused(name: str, value: object, reason: str) -> None:
    """Says on stderr, once for every name, that a setting changes nothing."""
    if name not in _WARNED:
        _WARNED.add(name)
        print(f"{name} = {value} changes nothing: {reason}", file=sys.stderr)


def warn_not_followed(name: str, value: object, reason: str) -> None:
    """Says on stderr, once for every name, that a setting is not followed, so that numbers are others than Fluid's."""
    if name not in _WARNED:
        _WARNED.add(name)
        print(f"{name} = {value} is not followed: {reason}", file=sys.stderr)


def default_flags() -> dict[str, str]:
    """The settings by Fluid's names, as the environment gives them (`FLAGS_...`, `CPU_NUM`), else Fluid's defaults.

    Other flags of communicators in the environment are named on stderr.
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
    """Raises ValueError for a name that no setting of communicators has."""
    known = _defaults()
    for name in flags:
        if name not in known:
            near = get_close_matches(str(name), known, 1)
            raise ValueError(f"TrainerRuntimeConfig has no {name!r}{f'; did you mean {near[0]}?' if near else ''}")


def communicator_settings(flags: Mapping[str, Any], job: Job | None) -> Settings:
    """How the communicator of a trainer of the job works.

    Asynchronous ones follow `max_merge_var_num`, `send_queue_size` and `is_sgd_optimizer`. Settings that no result
    depends on are named on stderr if they differ from Fluid's defaults. Raises ValueError for unknown names and for
    what is no number, NotHere for parameters that are fetched less often.
    """
    check_names(flags)
    made = Settings(push_every=job.geo_sgd_need_push_nums if job is not None else 100)
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
        return made
    fewest = f"{_PREFIX}min_send_grad_num_before_recv"
    if numbers.get(f"{_PREFIX}independent_recv_thread", 1) and changed.get(fewest, 1) != 1:
        raise refused(f"{fewest} = {changed[fewest]}", "parameters are fetched whenever gradients were sent; leave it")
    most, size, adds = (numbers.get(name, int(defaults[name])) for name in _FOLLOWED)
    return made._replace(max_merge_var_num=most, send_queue_size=size, merge_add=bool(adds))


def _number(name: str, value: object) -> int:
    text = str(int(value) if isinstance(value, bool) else value)
    least = 1 if name in _FOLLOWED[:2] else 0
    if not text.isdecimal() or int(text) < least:
        raise ValueError(f"{name} is a whole number, at least {least}, not {value!r}")
    return int(text)
