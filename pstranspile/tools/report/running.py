"""A run of a job on a cluster in this process, for a page: losses, messages in their order, traffic, waits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from pstranspile.cluster.machines.chart import Arrow, labels_of, rows_of
from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.feeding import PlannedRuns, feeds_of, require_fed
from pstranspile.cluster.machines.message import END, REPLY
from pstranspile.cluster.machines.record import Record, RecordedScheduler, replay
from pstranspile.cluster.machines.recorder import ASKING, DELIVER, POST, Event, Recorder, Traffic, traffic_of
from pstranspile.cluster.machines.scenario import Scenario
from pstranspile.cluster.machines.simulate import Simulated, simulate
from pstranspile.compiler.compile import Compiled
from pstranspile.ir.model import Module
from pstranspile.ir.patterns import Pattern
from pstranspile.proof.check import ROWS_PER_TRAINER, STEPS
from pstranspile.proof.report import Report, Verdict, report_text
from pstranspile.proof.training import made_feeds, naming_inputs, zeros_for_metrics
from pstranspile.proof.workload import Workload
from pstranspile.runtime.run.step_feeds import GivenFeeds

MOST_ROWS = 20_000
"""The most rows of the message chart on a page."""


class RunOptions(NamedTuple):
    """The options of a run for a page, as those of `run` and `check`. Without `feeds`, input data are generated."""

    steps: int | None = None
    feeds: GivenFeeds | None = None
    batch: int | None = None
    """Rows of generated data for each step."""
    programs: str | None = None
    schedule: int | None = None
    seed: int | None = None
    faults: Scenario | None = None
    record: Record | None = None
    """The record of an earlier run of processes, which is repeated with its own steps and seed."""
    fed_steps: int = 0
    """The number of steps for which the rows that `feeds` were taken from suffice; 0 if it is that of `feeds`."""


def run_data(compiled: Compiled, module: Module, options: RunOptions) -> dict[str, Any]:
    """Runs a job and returns what its recorder observed. Raises DiagnosticError."""
    record = options.record
    steps = record.steps if record else options.steps or _usual_steps(module, options)
    workload = Workload(module, options.programs, steps)
    seed = record.seed if record else options.seed or module.main.random_seed or 1
    feeds = options.feeds
    if feeds is not None and record is None:
        trainers = [PlannedRuns(workload.known_programs, workload.given_turns)] * compiled.plan.trainers
        require_fed(feeds, trainers, feeds_of(feeds, trainers)[1], steps)
    if feeds is None:
        trainers = compiled.plan.trainers
        feeds = made_feeds(workload, options.batch or ROWS_PER_TRAINER * trainers, seed or 1, trainers).feeds
    recorders: list[Recorder] = []

    def run(cluster: Cluster, count: int) -> None:
        recorders.append(Recorder(cluster))
        (replay if record else Cluster.run_to)(cluster, count)

    fetch = [workload.label(owner, name) for owner, names in workload.fetched_names.items() for name in names]
    with naming_inputs(workload, made=options.feeds is None):
        done = simulate(
            compiled,
            feeds,
            steps,
            fetch,
            init=None if record else zeros_for_metrics(module, workload, {}),
            schedule=RecordedScheduler(record) if record else options.schedule,
            seed=seed,
            run=run,
            programs=workload.given_turns,
            faults=options.faults,
        )
    fed = options.fed_steps or (0 if options.feeds is None else workload.feeds(options.feeds).steps or 0)
    return {
        "steps": steps,
        "fed": fed if fed > steps else 0,
        "made": options.feeds is None,
        "losses": list(_losses(done)),
        **recorder_data(recorders[0], done.cluster),
    }


def _usual_steps(module: Module, options: RunOptions) -> int:
    """The default number of steps: the number of steps that are fed, at most `STEPS`."""
    if options.feeds is None:
        return STEPS
    return min(Workload(module, options.programs, STEPS).feeds(options.feeds).steps or STEPS, STEPS)


def recorder_data(recorder: Recorder, cluster: Cluster) -> dict[str, Any]:
    """The data of a recorder: machines, rows of the message chart, traffic, waits, and errors."""
    rows = rows_of(recorder, -1, END)
    listed: list[list[Any]] = []
    for row, label in list(zip(rows, labels_of(recorder, rows), strict=True))[:MOST_ROWS]:
        if isinstance(row, Arrow):
            listed.append([label, row.occurrence, row.source, row.target, row.post_tick, row.tick, row.bytes])
        else:
            listed.append([label])
    servers = tuple(server.name for server in cluster.servers)
    return {
        "machines": list(recorder.machines),
        "rows": listed,
        "left_out": max(len(rows) - MOST_ROWS, 0),
        "traffic": [list(row) for row in sorted(traffic_of(recorder, servers), key=_of_traffic)],
        "pairs": message_totals(recorder.events),
        "waits": waits_of(recorder.events),
        "faults": [f"tick {tick}: {text}" for tick, text in cluster.injector.log] if cluster.injector else [],
        "unreached": cluster.injector.unreached_lines() if cluster.injector else [],
    }


def message_totals(events: Iterable[Event]) -> list[list[Any]]:
    """Messages between machines in steps: source, target, messages, and the bytes of the values in them."""
    totals: dict[tuple[str, str], list[int]] = {}
    for event in events:
        if event.occurrence == POST and 0 <= event.step != END:
            total = totals.setdefault((event.source, event.target), [0, 0])
            total[:] = total[0] + 1, total[1] + event.bytes
    return [[*pair, *totals[pair]] for pair in sorted(totals, key=lambda pair: [*map(in_order, pair)])]


def waits_of(events: Iterable[Event]) -> list[list[Any]]:
    """The waits of machines: machine, the one that answered, requests, ticks in all, and the longest.

    A request waits from when it is posted to when its answer is taken.
    """
    asked: dict[tuple[str, str, str, int], list[int]] = {}
    totals: dict[tuple[str, str], list[int]] = {}
    for event in events:
        if event.occurrence == POST and event.kind in ASKING:
            asked.setdefault((event.source, event.target, event.variable, event.step), []).append(event.tick)
        elif event.occurrence == DELIVER and event.kind == REPLY:
            posted = asked.get((event.target, event.source, event.variable, event.step))
            if posted:
                ticks = event.tick - posted.pop(0)
                total = totals.setdefault((event.target, event.source), [0, 0, 0])
                total[:] = total[0] + 1, total[1] + ticks, max(total[2], ticks)
    return [[*pair, *totals[pair]] for pair in sorted(totals, key=lambda pair: [*map(in_order, pair)])]


_NUMBERS = Pattern("([0-9]+)")


def in_order(name: str) -> tuple[bool, list[tuple[int, str]]]:
    """The order of names in every table of the page: trainers before servers, and numbers in names by their size."""
    parts = _NUMBERS.split(name)
    return name.startswith("pserver"), [(int(part), "") if part.isdecimal() else (0, part) for part in parts]


def _of_traffic(row: Traffic) -> tuple[object, ...]:
    """The sort key of traffic: by server, then by variable; messages without a variable, such as barriers, are last."""
    return in_order(row.server), not row.variable, in_order(row.variable)


def _losses(done: Simulated) -> Iterable[dict[str, Any]]:
    """The fetched values of each trainer in every step; an array is given as its mean."""
    for trainer, fetched in zip(done.cluster.trainers, done.fetched, strict=True):
        for name, values in fetched.items():
            program = name.partition("/")[0] if trainer.role.turns is not None else ""
            steps = [result.step + 1 for result in trainer.results if program in ("", result.program)]
            points = [(step, _number(value)) for step, value in zip(steps, values, strict=True)]
            known = [(step, number) for step, number in points if number is not None]
            yield {
                "name": f"{trainer.name} {name}",
                "steps": [step for step, _ in known],
                "values": [number for _, number in known],
            }


def _number(value: Any) -> float | None:
    """The mean of an array of numbers; None for anything else, and for a mean that is not finite."""
    array: Any = value if isinstance(value, np.ndarray) else np.zeros(0)
    if array.size == 0 or array.dtype.kind not in "fiu":
        return None
    mean = float(np.mean(array, dtype=np.float64))
    return mean if np.isfinite(mean) else None


def check_data(report: Report) -> dict[str, Any]:
    """The verdicts of a check, each variable's with its first difference, and the report's text."""
    return {
        "holds": report.holds,
        "promised": report.promised,
        "steps": report.steps,
        "text": report_text(report, every=True),
        "verdicts": [_row(verdict) for verdict in report.verdicts],
        "causes": [list(cause) for cause in report.causes],
        "orders": [report.schedules, [[number, name] for number, name in report.schedule_differs]],
        "replayed": report.replayed,
        "faults": report.faulty is not None,
    }


def _row(verdict: Verdict) -> list[Any]:
    """A verdict as a row of a table; its difference has the digits that the report as text shows."""
    worst = _finite(float(f"{verdict.worst:.1e}"))
    deviation = _finite(float(f"{verdict.deviation:.1e}"))
    decided = [verdict.settled_by, deviation, verdict.tolerance]
    return [verdict.name, verdict.kind, verdict.equality, worst, verdict.worst_step, verdict.first, *decided]


def _finite(value: float) -> float | str:
    return value if np.isfinite(value) else str(value)
