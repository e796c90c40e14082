"""What must hold of any module, however it was edited: nothing but diagnostics, no hang, no fault of the compiler."""

from __future__ import annotations

import random
import resource
import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pstranspile as ps
from pstranspile.compiler.compile import Compiled
from pstranspile.ir.diagnostics import DiagnosticError, Severity
from pstranspile.ir.model import STARTUP, Module
from pstranspile.proof.check import check
from pstranspile.proof.values import make_feeds
from pstranspile.runtime.kernels.programs.control import most_turns

SECONDS = 5.0
"""Processor time that one module may take in all, of a module that takes hundredths of a second unedited."""

MEMORY = 8 << 30
"""Bytes of address space that the process may have then: edits make dims of 2**31, whose arrays must be refused with a
diagnostic, not fill the machine."""

SERVERS, MACHINES = ("a:1", "b:1"), ("a:1", "b:1")
JOBS = {
    "sync": ps.Job(SERVERS, 2, min_block_size=4),
    "async": ps.Job(SERVERS, 2, mode="async", min_block_size=4),
    "half-async": ps.Job(SERVERS, 2, mode="half-async", min_block_size=4),
    "fleet-sync": ps.Job(SERVERS, 2, mode="fleet-sync"),
    "dc-asgd": ps.Job(SERVERS, 2, mode="async", enable_dc_asgd=True),
    "rows": ps.Job(SERVERS, 2, distributed_table="rows", min_block_size=4),
    "whole": ps.Job(SERVERS, 2, slice_var_up=False, split_method="HashName"),
    "split": ps.Job(SERVERS, 2, mode="async", runtime_split_send_recv=True, min_block_size=4),
    "geo": ps.Job(SERVERS, 2, mode="geo", geo_sgd_need_push_nums=2),
    "nccl2": ps.Job(trainers=MACHINES, mode="nccl2"),
    "grad-allreduce": ps.Job(trainers=MACHINES, mode="grad-allreduce"),
    "ddp": ps.Job(trainers=MACHINES, mode="ddp"),
    "local-sgd": ps.Job(trainers=MACHINES, mode="local-sgd"),
    "single-process-multi-thread": ps.Job(trainers=MACHINES, mode="single-process-multi-thread"),
}


class TooLong(BaseException):
    """A step took more processor time than it may. No Exception, so that nothing handles it on the way."""


@contextmanager
def limited(seconds: float = SECONDS) -> Generator[None]:
    """Raises TooLong in the block once it has used this much processor time. Loops may do few turns, and arrays that
    take the process above `MEMORY` can't be made.
    """

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGVTALRM, stop)
    space, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY if most == resource.RLIM_INFINITY else min(MEMORY, most), most))
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        with most_turns(200):
            yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (space, most))


def is_sound(module: Module) -> bool:
    return all(finding.severity is not Severity.ERROR for finding in ps.verify(module))


def is_unexplained(refused: DiagnosticError) -> bool:
    """Whether emitted programs don't fit together and no mistake in the module is told as the cause."""
    return any(finding.code.startswith("link-") for finding in refused.diagnostics)


@contextmanager
def diagnosed() -> Generator[None]:
    """Lets pass what may be raised: findings with words, but none of the link check without a cause."""
    try:
        yield
    except DiagnosticError as refused:
        if not str(refused) or is_unexplained(refused):
            raise


def survives(module: Module, rng: random.Random, modes: int = 4) -> str:
    """Puts a module through everything; gives how far it came. Raises what should not be raised.

    It is compiled in so many modes, drawn anew for every module.
    """
    sound = is_sound(module)
    if sound:
        text = ps.dumps(module)
        assert ps.dumps(ps.loads(text)) == text
    compiled: dict[str, Compiled] = {}
    for mode, job in rng.sample([*JOBS.items()], modes if sound else 2):
        with diagnosed():
            compiled[mode] = ps.compile(module, job)
    with diagnosed():
        _runs_alone(module)
    if not sound:
        return "unsound"
    if not compiled:
        return "refused"
    mode = rng.choice([*compiled])
    with diagnosed():
        _runs_together(module, compiled[mode], JOBS[mode], rng)
        return "ran"
    return "stopped"


def _feeds(module: Module) -> dict[str, Any]:
    return make_feeds(module.main, 2, 4) if module.main.blocks else {}


def _runs_alone(module: Module) -> None:
    scope, feeds = ps.Scope(), _feeds(module)
    ps.run(module[STARTUP], scope=scope, seed=1)
    for step in range(2):
        ps.run(module.main, {name: array[step] for name, array in feeds.items() if "@" not in name}, scope=scope)


def _runs_together(module: Module, result: Compiled, job: ps.Job, rng: random.Random) -> None:
    feeds = _feeds(module)
    if rng.random() < 0.85:  # a check takes some five times as long
        ps.simulate(result, feeds, steps=2, seed=1)
    else:
        check(module, job, result=result, feeds=feeds, steps=2)
