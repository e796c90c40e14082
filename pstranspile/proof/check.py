"""The check: compile, run both sides, compare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pstranspile.compile import Compiled, compile
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import STARTUP, Module
from pstranspile.job import Job
from pstranspile.proof import codes
from pstranspile.proof.causes import find_causes, server_causes
from pstranspile.proof.compare import Side, Snapshot, all_verdicts, differ, noise_of, plain
from pstranspile.proof.data import make_feeds
from pstranspile.proof.ledger import Ledger
from pstranspile.proof.report import DIFFERENT, Cause, Report
from pstranspile.proof.sides import Held, loss_of, reordered, start_cluster, train_alone, train_together
from pstranspile.run.cluster.feeding import divided
from pstranspile.run.files import LENGTHS, Feeds

TOGETHER = ("sync", "fleet-sync", "nccl2", "grad-allreduce", "single-process-multi-thread")
"""The modes that promise what a single machine gives on the whole batch."""

ALONE = ("async", "half-async")
"""The modes that promise it of a single trainer without a communicator."""

ORDERS = 3
"""Orders of the rows that are tried on the single machine to see what rounding does."""

ROWS_EACH = 4
"""Rows of a batch that is made, per trainer."""


def check(
    module: Module,
    job: Job,
    *,
    feeds: Mapping[str, Any] | None = None,
    steps: int = 5,
    schedules: int = 0,
    init: Mapping[str, Any] | None = None,
    seed: int = 0,
    batch: int | None = None,
    result: Compiled | None = None,
) -> Report:
    """Trains on one machine and on the cluster, from the same start on the same data, and compares after every step.

    `feeds` are arrays by input with a leading step axis (as in a feed file); without them data are made from what the
    program declares, `batch` rows a step (default: 4 per trainer). `schedules` more runs of the cluster, each with
    another order of events, must end bitwise alike where the mode is synchronous. `seed` takes the place of the
    programs' own if it is not 0. `result` is a compile of the module for the job, if there is one already. Raises
    DiagnosticError.
    """
    made = result or compile(module, job)
    init = init or {}
    seed = seed or module[STARTUP].random_seed or module.main.random_seed or 1
    if feeds is None:
        feeds = make_feeds(module.main, steps, batch or ROWS_EACH * job.trainers, seed)
    given = Feeds(module.main, feeds, "")
    given.require(steps)
    _check_shares(module, job, feeds)
    loss = loss_of(module.main)
    alone = train_alone(module, feeds, steps, init, seed, loss)
    cluster = start_cluster(made, feeds, init, seed, loss)
    ledger = Ledger(made.plan) if job.mode in ALONE else None
    if ledger is not None:
        cluster.network.observers.append(ledger)
    held = Held(made, alone.start)
    together = train_together(cluster, held, steps, loss)
    cluster.finish()
    found = all_verdicts(module.main, loss, together, alone)
    if job.trainers > 1 and any(item.equality == DIFFERENT for item in found):
        others = [
            train_alone(module, reordered(module.main, feeds, way), steps, init, seed, loss) for way in range(ORDERS)
        ]
        found = all_verdicts(module.main, loss, together, alone, noise_of(module.main, loss, alone, others))
    report = Report(
        mode=job.mode,
        trainers=job.trainers,
        servers=len(job.pservers),
        steps=steps,
        verdicts=tuple(found),
        applied=ledger.result() if ledger else None,
        promised=_promises(job),
    )
    if schedules and job.mode not in ALONE:
        differing = _other_schedules(made, feeds, init, seed, held, steps, schedules, together.snapshots[-1])
        report = report._replace(schedules=schedules, schedule_differs=differing)
    if report.different and (job.trainers > 1 or len(job.pservers) > 1 or job.mode in ALONE):
        report = report._replace(causes=tuple(_causes(module, job, made, alone, given, seed)))
    return report


def _promises(job: Job) -> bool:
    return job.mode in TOGETHER or (job.mode in ALONE and job.trainers == 1 and not job.runtime_split_send_recv)


def _check_shares(module: Module, job: Job, feeds: Mapping[str, Any]) -> None:
    """Raises DiagnosticError when a batch can't be divided evenly, so that a mean of means is no mean."""
    for name, array in feeds.items():
        size = feeds[name + LENGTHS].shape[1] if name + LENGTHS in feeds else array.shape[1] if array.ndim > 1 else 0
        if not name.endswith(LENGTHS) and divided(module.main, name) and size % job.trainers:
            message = f"{name} has {size} rows a step, which can't be divided evenly over {job.trainers} trainers"
            raise DiagnosticError([error(codes.SHARES, message)])


def _other_schedules(
    made: Compiled,
    feeds: Mapping[str, Any],
    init: Mapping[str, Any],
    seed: int,
    held: Held,
    steps: int,
    schedules: int,
    wanted: Snapshot,
) -> tuple[tuple[int, str], ...]:
    """The schedules that end with other values, and the first variable that differs."""
    found: list[tuple[int, str]] = []
    for schedule in range(1, schedules + 1):
        cluster = start_cluster(made, feeds, init, seed, None, schedule)
        cluster.run_to(steps)
        values = held(cluster)
        cluster.finish()
        differing = next(
            (n for n in wanted if not differ(plain(values[n]), plain(wanted[n]), by_element=True)[0]), None
        )
        if differing is not None:
            found.append((schedule, differing))
    return tuple(found)


def _causes(module: Module, job: Job, made: Compiled, alone: Side, given: Feeds, seed: int) -> list[Cause]:
    """The ops that make the first step differ: on the trainers, then on the servers."""
    found = find_causes(module.main, alone.start, given.step(0), job.trainers, seed) if job.trainers > 1 else []
    return [*found, *server_causes(module.main, made.plan)]
