"""`pstranspile run` with a cluster: the job compiled, and all its machines run in this process."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from pstranspile.cluster.checkpoint.api import CheckpointedRun
from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.feeding import PlannedRuns, feeds_of, require_fed
from pstranspile.cluster.machines.record import RecordedScheduler, read_record, replay
from pstranspile.cluster.machines.recorder import Recorder
from pstranspile.cluster.machines.scenario import random_scenario, read_scenario
from pstranspile.cluster.machines.simulate import Simulated, simulate
from pstranspile.cluster.machines.trainer import Trainer, TrainerListener
from pstranspile.cluster.net.status import DisplayedValue, displayed_value
from pstranspile.compiler.compile import Compiled
from pstranspile.ir.diagnostics import quantity
from pstranspile.ir.model import MAIN
from pstranspile.runtime.run.step_feeds import RowSource, Turns, step_programs, union_of
from pstranspile.tools.cli.cluster_pictures import require_chart_steps, show_pictures, wants_pictures
from pstranspile.tools.cli.common import LoadedInput, begun_with, compile_loaded, cost_with_profile, deciding
from pstranspile.tools.cli.feed import read_feed
from pstranspile.tools.cli.live_views import LiveCluster
from pstranspile.tools.cli.progress import Progress, RunCheckpoints
from pstranspile.tools.cli.report import report
from pstranspile.tools.cli.written_files import say

if TYPE_CHECKING:
    from pstranspile.cluster.machines.scenario import Scenario
    from pstranspile.compiler.cost.jobs import PlanCost
    from pstranspile.compiler.job import Job
    from pstranspile.ir.model import Module
    from pstranspile.runtime.run.watchers import Curve


class ClusterProgress(TrainerListener):
    """Shows the numbers of a step once all trainers that are still there have done it."""

    def __init__(self, steps: int, trainers: int, first: int = 0):
        self._progress = Progress(steps, first=first)
        self._trainers = trainers
        self._unfinished_steps: dict[int, dict[str, dict[str, DisplayedValue]]] = {}
        self._last_shown_step = first

    def watch(self, cluster: Cluster) -> None:
        """The cluster that is run; steps are all that is shown of it."""
        for trainer in cluster.trainers:
            trainer.listen(self)

    def step_done(self, trainer: Trainer, step: int) -> None:
        """A trainer has done a step."""
        last = trainer.results[-1]
        program = f"{last.program}/" if trainer.role.turns is not None else ""
        result = last.values.items()
        self._unfinished_steps.setdefault(step, {})[trainer.name] = {
            f"{program}{name}": displayed_value(value) for name, value in result
        }
        while len(self._unfinished_steps.get(self._last_shown_step, ())) == self._trainers:
            self._show()

    def _show(self) -> None:
        by_trainer = self._unfinished_steps.pop(self._last_shown_step)
        self._last_shown_step += 1
        self._progress.step(self._last_shown_step, by_trainer)

    def end(self) -> None:
        """Shows what is left (of steps that not all trainers did), and leaves the line."""
        while self._unfinished_steps:
            self._last_shown_step = min(self._unfinished_steps)
            self._show()
        self._progress.end()


def _progress(options: argparse.Namespace, steps: int, trainers: int, first: int) -> ClusterProgress | LiveCluster:
    """What shows how far the cluster is."""
    if not options.live:
        return ClusterProgress(steps, trainers, first)

    return LiveCluster(steps)


def curves_of(simulation: Simulated) -> dict[str, Curve]:
    """What each trainer has fetched, with the steps, numbered from 1."""
    curves: dict[str, Curve] = {}
    for trainer, fetched in zip(simulation.cluster.trainers, simulation.fetched, strict=True):
        for name, values in fetched.items():
            program = name.partition("/")[0] if trainer.role.turns is not None else ""
            steps = [result.step + 1 for result in trainer.results if program in ("", result.program)]
            given = [(step, value) for step, value in zip(steps, values, strict=True) if value is not None]
            curves[f"{trainer.name} {name}"] = [step for step, _ in given], [value for _, value in given]
    return curves


def is_scenario_seed(given: str | None) -> bool:
    """Whether `--faults` is the seed of a random scenario, whose faults need not all happen."""
    return given is not None and given.isdecimal() and len(given) <= 18


def report_unreached_faults(simulation: Simulated) -> list[str]:
    """Reports on stderr the faults of a run that did not happen; returns them as lines."""
    injector = simulation.cluster.injector
    lines = injector.unreached_lines() if injector is not None else []
    for line in lines:
        say(f"not reached: {line}")
    return lines


def read_faults(given: str, result: Compiled, steps: int) -> Scenario:
    """The scenario of a file, or the one that a seed draws, which is printed on stderr. Raises DiagnosticError."""

    if not is_scenario_seed(given):
        return read_scenario(given)
    trainers = [name for name in result.roles() if name.startswith("trainer")]
    servers = [name for name in result.roles() if name not in trainers]
    scenario = random_scenario(int(given), trainers, servers, steps)
    print(f"the scenario of seed {given}:\n{scenario}", end="", file=sys.stderr)
    return scenario


def _steps(
    module: Module,
    trainers: int,
    turns: Turns | None,
    options: argparse.Namespace,
    feeds: Mapping[str, Any] | RowSource,
) -> int:
    """How many steps are asked for, or else fed to any trainer; 1 if nothing is fed. Raises DiagnosticError."""

    planned = [PlannedRuns(step_programs(module), turns)] * trainers
    there = feeds_of(feeds, planned)[1]
    if options.steps:
        require_fed(feeds, planned, there, options.steps)
    return options.steps or there or 1


def _fetch_names(turns: Turns | None, fetches: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """The names of what the cluster is to fetch: variables of @main, or of the programs that take turns."""
    if turns is None:
        return fetches[MAIN]
    return [f"{owner}/{name}" for owner, names in fetches.items() for name in names]


def run_cluster(
    parser: argparse.ArgumentParser,
    loaded: LoadedInput[Job],
    options: argparse.Namespace,
    turns: Turns | None,
    fetches: Mapping[str, Sequence[str]],
    keeping: RunCheckpoints,
) -> Simulated:
    """Compiles the job and runs it; `fetches` are by program; wrong usage for a slow machine that the job does not
    have. Raises DiagnosticError.
    """

    module, result = loaded.module, compile_loaded(options, loaded)
    cost = cost_with_profile(parser, options, result, options.time) if options.time is not None else None
    programs = step_programs(module) if turns else {MAIN: module.main}
    feeds: Mapping[str, Any] | RowSource = read_feed(options, programs, module) or {}
    steps = _steps(module, result.plan.trainers, turns, options, feeds)
    with ExitStack() as at_end:
        checkpointed_run: CheckpointedRun | None = None
        if options.checkpoint or options.resume:
            every = options.checkpoint_every
            settings = deciding(options, cluster=True)
            checkpointed_run = CheckpointedRun(
                result, options.resume, options.checkpoint, every, options.seed, settings
            )
            at_end.callback(checkpointed_run.close)
        if checkpointed_run is not None and checkpointed_run.source is not None:
            checkpointed_run.source.require_steps(steps, known=bool(options.steps or feeds))
            report(checkpointed_run.source.resume_findings(steps, result.plan.mode, rows=isinstance(feeds, RowSource)))
        done = _run(module, result, options, turns, fetches, feeds, steps, checkpointed_run, keeping)
    if cost is not None:
        _tell_time(cost, max((len(trainer.results) for trainer in done.cluster.trainers), default=0))
    return done


def _tell_time(cost: PlanCost, steps: int) -> None:
    """Prints how long the steps of a run take on machines with a profile, on stderr."""
    from pstranspile.compiler.cost.seconds import format_seconds, seconds_lines

    if cost.seconds is None:
        return
    rows, took = quantity(cost.batch_rows, "row"), format_seconds(steps * cost.seconds.step)
    say(f"{quantity(steps, 'step')} with {rows} a batch of a trainer: {took} on machines with this profile")
    for line in (cost.seconds.verdict, *seconds_lines(cost.seconds)):
        say(line)


def _run(
    module: Module,
    result: Compiled,
    options: argparse.Namespace,
    turns: Turns | None,
    fetches: Mapping[str, Sequence[str]],
    feeds: Mapping[str, Any] | RowSource,
    steps: int,
    checkpointed_run: CheckpointedRun | None,
    keeping: RunCheckpoints,
) -> Simulated:
    record = read_record(options.replay) if options.replay else None
    steps = steps if record is None else record.steps
    faults = read_faults(options.faults, result, steps) if options.faults else None
    require_chart_steps(options, checkpointed_run.first_step if checkpointed_run else 0, steps)
    progress = _progress(options, steps, result.plan.trainers, checkpointed_run.first_step if checkpointed_run else 0)
    declaring = module.main if turns is None else union_of(step_programs(module).values())
    recorders: list[Recorder] = []
    clusters: list[Cluster] = []

    def run(cluster: Cluster, count: int) -> None:
        keeping.begin_steps(steps_left=(checkpointed_run.first_step if checkpointed_run else 0) < count)
        clusters.append(cluster)
        progress.watch(cluster)
        if wants_pictures(options):
            recorders.append(Recorder(cluster))
        (replay if record else checkpointed_run.run if checkpointed_run else Cluster.run_to)(cluster, count)

    try:
        done = simulate(
            result,
            feeds,
            steps,
            _fetch_names(turns, fetches),
            programs=turns,
            init=begun_with(options.init, declaring, module.startup, start=module.start, resumed=bool(options.resume)),
            seed=record.seed if record else checkpointed_run.seed if checkpointed_run else options.seed,
            schedule=RecordedScheduler(record) if record else options.schedule,
            run=run,
            faults=faults,
            shares=options.shares,
        )
    finally:
        progress.end()
        for tick, text in (entry for cluster in clusters if cluster.injector for entry in cluster.injector.log):
            say(f"tick {tick}: {text}")
    report(done.warnings)
    for recorder in recorders:
        show_pictures(recorder, done.cluster, options)
    return done
