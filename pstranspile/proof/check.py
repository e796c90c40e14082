"""The check: compile, run both sides, compare."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from pstranspile.compile import Compiled, compile
from pstranspile.emit.servers import ServerJob
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.expect import MOST_CHECKED, expect_module, expect_number
from pstranspile.ir.model import STARTUP, Module, Program
from pstranspile.job import Job
from pstranspile.job.modes import Promise, settings_of
from pstranspile.plan.plan import Plan
from pstranspile.proof.apart import started_apart
from pstranspile.proof.causes import Suspicion, server_causes
from pstranspile.proof.compare import Comparison, PreciseComparison, Snapshot, differ, plain
from pstranspile.proof.faults import Faultless, check_faults
from pstranspile.proof.given import Given
from pstranspile.proof.halves import halves_of
from pstranspile.proof.ledger import Ledger
from pstranspile.proof.made import made_feeds, naming_inputs, unstarted
from pstranspile.proof.replays import replay_of
from pstranspile.proof.report import DIFFERENT, Applied, Cause, Report, Verdict
from pstranspile.proof.training import ClusterValues, SingleMachine, start_cluster, train_both
from pstranspile.proof.workload import Tell, Workload
from pstranspile.run.cluster.faults.scenario import Scenario
from pstranspile.run.cluster.shares import Weighing
from pstranspile.run.loss_rows import divided
from pstranspile.run.step_feeds import GivenFeeds

STEPS = 5
"""Steps of a check that is not told how many, at most."""

STEPS_OF_LARGE = 3
"""The same where data are made for a program that keeps more than `LARGE`."""

LARGE = 64
"""MB of values that programs keep from step to step, beyond which they are trained in double precision only where
single precision leaves a doubt: many machines hold copies.
"""

MOST_IN_DOUBLES = 256
"""MB of values that programs keep, beyond which they are never trained in double precision."""

ROWS_EACH = 3
"""Rows of a batch that is made, per trainer."""


def check(
    module: Module,
    job: Job,
    *,
    feeds: GivenFeeds | None = None,
    steps: int | None = None,
    schedules: int = 0,
    init: Mapping[str, Any] | None = None,
    seed: int = 0,
    batch: int | None = None,
    result: Compiled | None = None,
    programs: str | None = None,
    faults: Scenario | None = None,
    shares: Weighing = "equal",
    tell: Tell | None = None,
) -> Report:
    """Trains on one machine and on the cluster, from the same start on the same data, and compares after every step.

    `feeds` are arrays by input as in a feed file, or a mapping for each step; without them data are made from what the
    program declares, `batch` rows a step (default: 3 per trainer). `steps` is how many to train (default: as many as
    are fed, at most 5; of made data 3 where programs keep more than 64 MB). `schedules` more runs of the cluster, each
    with another order of events, must end bitwise
    alike where the mode is synchronous. `seed` takes the place of the
    programs' own if it is not 0. `result` is a compile of the module for the job, if there is one already. `programs`
    says which program each step runs, where the module has several (`main*5,generator`); feeds are then for every
    program that has such an input, or for one (`PROGRAM/INPUT`). With `faults` the cluster is run once more, with what
    goes wrong in that scenario, and must keep its promise. `shares` says how much the trainers' shares of a batch count
    if they have different numbers of rows: the same, or "weighted" by these. `tell` is told how far the check is: what
    is being done, how much of it, and of how much. Raises DiagnosticError.
    """
    expect_module(module, "check")
    for given, what in ((steps, "a number of steps"), (batch, "a number of rows"), (schedules, "a number of orders")):
        expect_number(given or 0, "check", what, MOST_CHECKED)
    result = result or compile(module, job)
    seed = seed or module[STARTUP].random_seed or module.main.random_seed or 1
    workload = Workload(module, programs, steps or STEPS, tell)
    made = started_apart(result, workload)
    size = _kept_by(workload.whole)
    if steps is None and feeds is None and size > LARGE:
        workload.steps = STEPS_OF_LARGE
    if steps is None and feeds is not None:
        workload.steps = min(workload.feeds(feeds).steps or STEPS, STEPS)
    init = {**unstarted(module, workload, init or {}), **(init or {})}
    with_made, promise = feeds is None, settings_of(job.mode).promise
    if feeds is None:
        feeds = made_feeds(workload, batch or ROWS_EACH * job.trainers, seed, job.trainers)
    workload.feeds(feeds).require(workload.steps)
    workload.shares = shares
    given = Given(module, made, workload, feeds, init, seed)
    with naming_inputs(workload, made=with_made):
        first = _first_run(given, size, ends=bool(schedules), parameters=faults is not None)
    gc.collect()  # machines refer to each other
    comparison = first.comparison
    verdicts = comparison.verdicts() if _promises(job) else ()
    precise = first.held
    doubtful = any(verdict.equality == DIFFERENT and verdict.kind != "metric" for verdict in verdicts)
    if precise is None or ((doubtful or precise.problems) and size <= MOST_IN_DOUBLES):
        precise = _in_doubles(given, verdicts, precise)
    report = Report(
        mode=job.mode,
        trainers=job.trainers,
        servers=len(job.pservers),
        steps=workload.steps,
        verdicts=tuple(comparison.verdicts() if precise.refused or not _promises(job) else precise.verdicts),
        applied=first.applied,
        promised=_promises(job),
        wrong=(*first.other_types, *precise.problems),
        programs=workload.text,
        whole=_given_whole(given),
        not_run=tuple(name for name in workload.known if name not in workload.programs),
        learnt=comparison.learnt(),
        single_precision=precise.refused,
        no_numbers=tuple(comparison.no_numbers),
        shares=first.uneven,
    )
    if schedules and promise is not Promise.SINGLE_TRAINER:
        differing = _other_schedules(given, first.start, schedules, first.ends)
        report = report._replace(schedules=schedules, schedule_differs=differing)
    different = [verdict.name for verdict in report.different]
    if different and (job.trainers > 1 or len(job.pservers) > 1 or promise is Promise.SINGLE_TRAINER):
        report = report._replace(causes=tuple(_causes(given, first, precise.shown, different)))
    if faults is not None:
        workload.tell("with faults: step", 0, workload.steps)
        sound = Faultless(first.parameters, not report.different, bool(report.shares))
        sound = sound if promise is Promise.ALWAYS else None
        report = report._replace(faulty=check_faults(given, faults, sound))
    return report


class _FirstRun(NamedTuple):
    """What is left of a run in single precision.

    `start` and `began` are of the single machine. `fed` are the trainers' shares in the first step of each program.
    `parameters` and `ends` are what the cluster has at the end, if asked for. `held` is what came of holding its steps
    to the source, if that was done here.
    """

    comparison: Comparison
    start: Snapshot
    began: Mapping[str, Snapshot]
    fed: Mapping[int, Sequence[Mapping[str, Any]]]
    parameters: Snapshot
    ends: Snapshot
    other_types: Sequence[str]
    applied: Applied | None
    uneven: str
    held: _Precise | None


def _first_run(given: Given, size: float, *, ends: bool, parameters: bool) -> _FirstRun:
    """Trains both sides. Programs that keep more than `LARGE` are held to the source here."""
    module, made, workload, feeds, init, seed = given
    single = SingleMachine(module, workload, feeds, init, seed)
    cluster = start_cluster(made, workload, feeds, init, seed)
    plan = made.plan
    singly = settings_of(plan.mode).promise is Promise.SINGLE_TRAINER
    ledger = Ledger(_plans(made)) if singly else None
    if ledger is not None:
        cluster.network.observe(ledger)
    held, comparison = ClusterValues(made, cluster, single.start), Comparison(workload, single.start)
    replay = replay_of(made, cluster, workload, seed) if size > min(LARGE, MOST_IN_DOUBLES) else None
    train_both(single, held, comparison.look, replay)
    all_ends = held.values() if ends and not singly else {}
    parameter_ends = cluster.parameters() if parameters else {}
    cluster.finish()
    if replay is not None:
        replay.end()
    shares = cluster.shares
    uneven = shares.uneven() if shares is not None else None
    of_trainers = [shares.of(trainer.index) for trainer in cluster.trainers] if shares is not None else []
    fed = {
        step: [share for feed in of_trainers if (share := feed(step)) is not None]
        for step in map(workload.first_step, workload.programs)
        if step >= 0
    }
    told = f"the program keeps {size:.0f} MB, more than {LARGE if size <= MOST_IN_DOUBLES else MOST_IN_DOUBLES}"
    return _FirstRun(
        comparison,
        single.start,
        single.began,
        fed,
        parameter_ends,
        all_ends,
        held.other_types(),
        ledger.result() if ledger else None,
        uneven.told(workload.shares) if uneven else "",
        None if replay is None else _Precise((), replay.problems, replay.shown, told),
    )


def _given_whole(given: Given) -> tuple[str, ...]:
    """The inputs, if all declare their batch size, so that every trainer is given the same data."""
    workload, feeds = given.workload, given.workload.feeds(given.feeds)
    fed = {name for step in range(workload.steps) for name in feeds.step(step)}
    shared = given.made.plan.trainers > 1 and not any(divided(workload.whole, name) for name in fed)
    return tuple(sorted(fed)) if shared else ()


class _Precise(NamedTuple):
    """What both sides are in double precision, and what comes of holding the cluster's steps to the source there.

    `refused` says why double precision can't be had; then it is single precision, and there are no verdicts.
    """

    verdicts: Sequence[Verdict]
    problems: Sequence[str]
    shown: Mapping[str, str]
    refused: str = ""


def _in_doubles(given: Given, result: Sequence[Verdict], held: _Precise | None) -> _Precise:
    """Trains both sides in double precision, and holds every step of the cluster to the source; `held` is what came of
    that in single precision, if that was done.
    """
    try:
        return _held_to_steps(given.in_doubles(), result)
    except DiagnosticError as problem:
        refused = problem.diagnostics[0].message
    return (held or _held_to_steps(given, ()))._replace(refused=refused)


def _held_to_steps(given: Given, result: Sequence[Verdict]) -> _Precise:
    module, made, workload, feeds, init, seed = given
    single = SingleMachine(module, workload, feeds, init, seed)
    cluster = start_cluster(made, workload, feeds, init, seed)
    replay, precise = replay_of(made, cluster, workload, seed), PreciseComparison(workload, single.start, result)
    train_both(single, ClusterValues(made, cluster, single.start), precise.look, replay)
    cluster.finish()
    replay.end()
    return _Precise(precise.settled(), replay.problems, replay.shown)


def _kept_by(program: Program) -> float:
    """How many MB the values take that a program keeps from step to step, in single precision."""
    kept = [var for var in program.main_block.vars.values() if var.persistable and var.tensor is not None]
    return sum(4 * prod(max(dim, 0) for dim in var.shape) for var in kept) / 1e6


def _promises(job: Job) -> bool:
    """Whether the cluster gives what a single machine gives. A communicator merges gradients of several steps."""
    promise = settings_of(job.mode).promise
    if promise is Promise.SINGLE_TRAINER:
        return job.trainers == 1 and not job.runtime_split_send_recv
    return promise is Promise.ALWAYS


def _plans(made: Compiled) -> list[Plan]:
    """The plans of all programs that train: each names its own gradients."""
    emitter = made.emitter
    return [part.plan for part in emitter.parts] if isinstance(emitter, ServerJob) else [made.plan]


def _other_schedules(given: Given, start: Snapshot, schedules: int, wanted: Snapshot) -> tuple[tuple[int, str], ...]:
    """The schedules that end with other values, and the first variable that differs."""
    _, made, workload, feeds, init, seed = given
    result: list[tuple[int, str]] = []
    for schedule in range(1, schedules + 1):
        cluster = start_cluster(made, workload, feeds, init, seed, schedule, watch=False)
        cluster.run_to(workload.steps)
        held = ClusterValues(made, cluster, start)
        differing = next(
            (n for n in wanted if not differ(plain(held.value(n)), plain(wanted[n]), by_element=True)[0]), None
        )
        cluster.finish()
        workload.tell("orders of events", schedule, schedules)
        if differing is not None:
            result.append((schedule, differing))
    return tuple(result)


def _causes(given: Given, first: _FirstRun, shown: Mapping[str, str], different: Sequence[str]) -> list[Cause]:
    """The ops that make the first step of a program differ: on the trainers, then on the servers (as was `shown`)."""
    workload = given.workload
    halves, feeds = halves_of(given.made, workload), workload.feeds(given.feeds)
    result: dict[Cause, None] = {}
    for name in workload.programs:
        step = workload.first_step(name)
        if step >= 0 and given.made.plan.trainers > 1:
            held = first.began.get(name, first.start)
            suspicion = Suspicion(halves[name], held, feeds.step(step), first.fed[step], given.seed)
            result.update(dict.fromkeys(suspicion.causes()))
    for program in workload.programs.values():
        result.update(dict.fromkeys(server_causes(program, shown, different)))
    return list(result)
