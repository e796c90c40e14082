"""`pstranspile run` with a cluster: the job compiled, and all its machines run in this process."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pstranspile.cluster.checkpoint.api import CheckpointedRun
from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.feeding import Planned, feeds_of, require_fed
from pstranspile.cluster.machines.record import RecordedScheduler, read_record, replay
from pstranspile.cluster.machines.recorder import Recorder
from pstranspile.cluster.machines.scenario import random_scenario, read_scenario
from pstranspile.cluster.machines.simulate import Simulated, simulate
from pstranspile.cluster.net.status import Shown, shown
from pstranspile.compiler.compile import Compiled, compile
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import MAIN
from pstranspile.runtime.run.step_feeds import RowSource
from pstranspile.runtime.run.turns import Turns, step_programs, union_of
from pstranspile.tools.cli.common import begun_with, deciding
from pstranspile.tools.cli.feed import read_feed
from pstranspile.tools.cli.live_views import LiveCluster
from pstranspile.tools.cli.progress import Progress
from pstranspile.tools.cli.report import report
from pstranspile.tools.cli.written import telling

if TYPE_CHECKING:
    from pstranspile.cluster.machines.cluster import Cluster
    from pstranspile.cluster.machines.recorder import Recorder
    from pstranspile.cluster.machines.scenario import Scenario
    from pstranspile.cluster.machines.trainer import Trainer
    from pstranspile.compiler.job import Job
    from pstranspile.ir.model import Module
    from pstranspile.runtime.run.watchers import Curve


# Pictures of a cluster that `run` and `launch` make: a trace, a message-sequence chart, the traffic.

CHARTS = (".svg", ".txt")

SHOWN = "start-1"
"""The steps that a chart shows if nothing else is asked for."""


def add_pictures(parser: argparse.ArgumentParser) -> None:
    """`--chart`, `--chart-steps` and `--traffic`."""
    group = parser.add_argument_group("seeing a cluster at work")
    group.add_argument("--chart", metavar="FILE.svg|txt", help="draw who tells whom what, in the order of events")
    group.add_argument(
        "--chart-steps",
        metavar="A[-B]",
        help="the steps that the chart shows, counted from 1; `start` is the start-up, `end` is when trainers leave "
        f"(default: {SHOWN})",
    )
    group.add_argument(
        "--traffic", action="store_true", help="print messages, bytes and staleness by server and variable, on stderr"
    )


def check_pictures(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the command if a file name or a range of steps is not one."""
    if options.chart and Path(options.chart).suffix.lower() not in CHARTS:
        parser.error(f"--chart {options.chart}: the name must end in {' or '.join(CHARTS)}")
    if options.chart_steps and not options.chart:
        parser.error("--chart-steps needs --chart, which says where to")
    options.chart_steps = SHOWN if options.chart_steps is None else options.chart_steps
    if _cluster_pictures_steps(options.chart_steps) is None:
        parser.error(f"--chart-steps {options.chart_steps}: a step, or two with - between them, such as 2 or start-3")


def require_chart_steps(options: argparse.Namespace, first: int, steps: int) -> None:
    """Raises DiagnosticError for a chart of steps that a run does not do: it does those after `first`, to `steps`."""
    from pstranspile.cluster.machines.network import END

    shown = _cluster_pictures_steps(options.chart_steps)
    if options.chart and shown is not None and (steps <= shown[0] != END or -1 < shown[1] < first):
        message = f"--chart-steps {options.chart_steps}: the run does steps {first + 1} to {steps}"
        raise DiagnosticError([error("run-cluster", message)])


def wants_pictures(options: argparse.Namespace) -> bool:
    """Whether messages must be recorded while the cluster runs."""
    return bool(options.trace or options.chart or options.traffic)


def _cluster_pictures_steps(text: str) -> tuple[int, int] | None:
    """The first and the last step, counted from 0, -1 for the start-up, END for the end."""
    from pstranspile.cluster.machines.network import END

    match = re.fullmatch(r"(start|end|[1-9][0-9]{0,8})(?:-(end|[1-9][0-9]{0,8}))?", text)
    if match is None:
        return None
    named = {"start": -1, "end": END}
    first, last = (named[word] if word in named else int(word) - 1 for word in (match[1], match[2] or match[1]))
    return (first, last) if first <= last else None


def show_pictures(
    recorder: Recorder,
    cluster: Cluster,
    options: argparse.Namespace,
    make_trace: Callable[[Recorder], str] | None = None,
) -> None:
    """Writes what was asked for. `make_trace` makes the text of a trace, unless it is of a virtual clock.

    Raises DiagnosticError when a file can't be written.
    """
    from pstranspile.cluster.machines.chart import chart_svg, chart_text
    from pstranspile.cluster.machines.recorder import trace_json, traffic_of, traffic_table
    from pstranspile.runtime.files.outputs import write_output

    if options.trace:
        with telling(options.trace, "every message, for Perfetto"):
            write_output(options.trace, (make_trace or trace_json)(recorder).encode())
    if options.chart:
        steps = _cluster_pictures_steps(options.chart_steps)
        assert steps is not None
        draw = chart_svg if chart_kind(options.chart) == "svg" else chart_text
        with telling(options.chart, "a chart of the messages"):
            write_output(options.chart, draw(recorder, *steps).encode())
    if options.traffic:
        servers = tuple(server.name for server in cluster.servers)
        print(traffic_table(traffic_of(recorder, servers)), end="", file=sys.stderr)


def chart_kind(path: str | None) -> str:
    """The kind of file that `--chart` writes, as `require_writable` knows it."""
    return "svg" if (path or "").lower().endswith(".svg") else "chart"


class ClusterProgress:
    """Shows the numbers of a step once all trainers that are still there have done it."""

    def __init__(self, steps: int, trainers: int, first: int = 0):
        self._progress = Progress(steps, first=first)
        self._trainers = trainers
        self._waiting: dict[int, dict[str, dict[str, Shown]]] = {}
        self._shown = first

    def watch(self, cluster: Cluster) -> None:
        """The cluster that is run; steps are all that is shown of it."""

    def __call__(self, trainer: Trainer, step: int) -> None:
        """Told that a trainer has done a step."""
        last = trainer.results[-1]
        program = f"{last.program}/" if trainer.role.turns is not None else ""
        result = last.values.items()
        self._waiting.setdefault(step, {})[trainer.name] = {f"{program}{name}": shown(value) for name, value in result}
        while len(self._waiting.get(self._shown, ())) == self._trainers:
            self._show()

    def _show(self) -> None:
        by_trainer = self._waiting.pop(self._shown)
        self._shown += 1
        self._progress.step(self._shown, by_trainer)

    def end(self) -> None:
        """Shows what is left (of steps that not all trainers did), and leaves the line."""
        while self._waiting:
            self._shown = min(self._waiting)
            self._show()
        self._progress.end()


def _progress(options: argparse.Namespace, steps: int, trainers: int, first: int) -> ClusterProgress | LiveCluster:
    """What shows how far the cluster is."""
    if not options.live:
        return ClusterProgress(steps, trainers, first)

    return LiveCluster(steps)


def curves_of(done: Simulated) -> dict[str, Curve]:
    """What each trainer has fetched, with the steps, numbered from 1."""
    curves: dict[str, Curve] = {}
    for trainer, fetched in zip(done.cluster.trainers, done.fetched, strict=True):
        for name, values in fetched.items():
            program = name.partition("/")[0] if trainer.role.turns is not None else ""
            steps = [result.step + 1 for result in trainer.results if program in ("", result.program)]
            given = [(step, value) for step, value in zip(steps, values, strict=True) if value is not None]
            curves[f"{trainer.name} {name}"] = [step for step, _ in given], [value for _, value in given]
    return curves


def drawn(given: str | None) -> bool:
    """Whether `--faults` is the seed of a scenario: not all that is drawn has to happen."""
    return given is not None and given.isdecimal() and len(given) <= 18


def unreached(done: Simulated) -> list[str]:
    """The faults of a run that did not happen, which are told on stderr."""
    injector = done.cluster.injector
    lines = injector.unreached() if injector is not None else []
    for line in lines:
        print(f"not reached: {line}", file=sys.stderr)
    return lines


def read_faults(given: str, result: Compiled, steps: int) -> Scenario:
    """The scenario of a file, or the one that a seed draws, which is printed on stderr. Raises DiagnosticError."""

    if not drawn(given):
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

    planned = [Planned(step_programs(module), turns)] * trainers
    there = feeds_of(feeds, planned)[1]
    if options.steps:
        require_fed(feeds, planned, there, options.steps)
    return options.steps or there or 1


def _fetched(turns: Turns | None, fetches: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """What the cluster is to fetch: variables of @main, or of the programs that take turns."""
    if turns is None:
        return fetches[MAIN]
    return [f"{owner}/{name}" for owner, names in fetches.items() for name in names]


def run_cluster(
    module: Module,
    job: Job,
    options: argparse.Namespace,
    turns: Turns | None,
    fetches: Mapping[str, Sequence[str]],
) -> Simulated:
    """Compiles the job and runs it; `fetches` are by program. Raises DiagnosticError."""

    result = compile(module, job)
    report(result.warnings)
    feeds: Mapping[str, Any] | RowSource = read_feed(options) or {}
    steps = _steps(module, result.plan.trainers, turns, options, feeds)
    with ExitStack() as at_end:
        kept: CheckpointedRun | None = None
        if options.checkpoint or options.resume:
            every = options.checkpoint_every
            settings = deciding(options, cluster=True)
            kept = CheckpointedRun(result, options.resume, options.checkpoint, every, options.seed, settings)
            at_end.callback(kept.close)
        if kept is not None and kept.source is not None:
            kept.source.require_steps(steps, known=bool(options.steps or feeds))
            report(kept.source.told(steps, result.plan.mode))
        return _run(module, result, options, turns, fetches, feeds, steps, kept)


def _run(
    module: Module,
    result: Compiled,
    options: argparse.Namespace,
    turns: Turns | None,
    fetches: Mapping[str, Sequence[str]],
    feeds: Mapping[str, Any] | RowSource,
    steps: int,
    kept: CheckpointedRun | None,
) -> Simulated:
    record = read_record(options.replay) if options.replay else None
    steps = steps if record is None else record.steps
    faults = read_faults(options.faults, result, steps) if options.faults else None
    require_chart_steps(options, kept.first if kept else 0, steps)
    progress = _progress(options, steps, result.plan.trainers, kept.first if kept else 0)
    declaring = module.main if turns is None else union_of(step_programs(module).values())
    recorders: list[Recorder] = []
    clusters: list[Cluster] = []

    def run(cluster: Cluster, count: int) -> None:
        clusters.append(cluster)
        progress.watch(cluster)
        if wants_pictures(options):
            recorders.append(Recorder(cluster))
        (replay if record else kept.run if kept else Cluster.run_to)(cluster, count)

    try:
        done = simulate(
            result,
            feeds,
            steps,
            _fetched(turns, fetches),
            programs=turns,
            init=begun_with(options.init, declaring, module.startup),
            seed=record.seed if record else kept.seed if kept else options.seed,
            schedule=RecordedScheduler(record) if record else options.schedule,
            on_step=progress,
            run=run,
            faults=faults,
            shares=options.shares,
        )
    finally:
        progress.end()
        for tick, text in (entry for cluster in clusters if cluster.injector for entry in cluster.injector.log):
            print(f"tick {tick}: {text}", file=sys.stderr)
    report(done.warnings)
    for recorder in recorders:
        show_pictures(recorder, done.cluster, options)
    return done
