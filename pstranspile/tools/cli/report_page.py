"""`pstranspile report`: a compiled job, its plan, programs and a run, as a page for the browser."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pstranspile.ir.argument_checks import MOST_CHECKED
from pstranspile.ir.model import MAIN
from pstranspile.tools.cli.blas import use_threads
from pstranspile.tools.cli.common import (
    add_input,
    add_job,
    add_time,
    add_unreached,
    check_time,
    check_unreached,
    cost_with_profile,
    load_compiled,
    make_parser,
    number,
    parse_sweep,
    require_named,
    require_page,
    whole,
    write_page,
)
from pstranspile.tools.cli.feed import add_feed, check_feed, read_feed, suggesting_feed
from pstranspile.tools.cli.report import quoting
from pstranspile.tools.cli.report import report as tell
from pstranspile.tools.cli.turns import TURNS_HELP
from pstranspile.tools.cli.written_files import say

if TYPE_CHECKING:
    from pstranspile.cluster.net.metrics import Pace
    from pstranspile.compiler.compile import Compiled
    from pstranspile.compiler.cost.jobs import Sweep
    from pstranspile.ir.model import Module
    from pstranspile.runtime.run.step_feeds import GivenFeeds

DESCRIPTION = """\
Writes a page that a browser shows from disk: what each machine holds and what machines exchange, the plan, the programs
of source and machines side by side with an explanation of every op, and the program as a graph. With --run, or an
option of the run, the job is also run on a cluster in this process: losses, every message, traffic and waits; with
--check it is checked against the single machine. Without --feed data are made. With --profile a step is drawn as a time
line. The page is one file and loads nothing."""

_RUN = ("run", "check", "steps", "feed", "batch", "program", "schedule", "seed", "faults", "replay")


def run(arguments: Sequence[str]) -> int:
    """Writes the page."""
    parser = _parser()
    options = parser.parse_args(arguments)
    use_threads()
    if options.schedules and not options.check:
        parser.error("--schedules is about --check; --schedule SEED is the order of events of the run")
    check_unreached(parser, options)
    check_feed(parser, options, made=True)
    check_time(parser, options, "--profile", options.profile)
    require_named(parser, options, "measured")
    for name in ("sweep", "measured"):
        if getattr(options, name) and options.profile is None:
            parser.error(f"--{name} needs --profile, which has the seconds of ops and messages")
    numbers = parse_sweep(parser, options)
    given = [name for name in ("check", "steps", "schedule", "seed", "faults") if getattr(options, name)]
    if options.replay and given:
        parser.error(f"--{given[0]} has no place beside --replay, which does what was recorded")
    given = (options.input, options.startup, options.meta, options.config, options.feed, options.faults, options.replay)
    require_page(options.output, given)
    return _write(parser, options, numbers)


def _write(parser: argparse.ArgumentParser, options: argparse.Namespace, numbers: Mapping[str, Sequence[int]]) -> int:
    """Writes the page; the exit status is 1 if what is checked differs, or faults of a file did not happen.

    Raises DiagnosticError or CommandFailure.
    """
    data = _of_folder(parser, options) if os.path.isdir(options.input) else _of_program(parser, options, numbers)
    from pstranspile.tools.report import REPORT, page

    what = f"a page of the job {data['title']} ({data['mode']}), to be opened in a browser"
    then = () if data["run"] or os.path.isdir(options.input) else ("--run and --check add a run and its verdict",)
    write_page(options.output, page(f"{data['title']}: {data['mode']}", data, REPORT), what, *then)
    checked: Mapping[str, Any] | None = data["check"]
    if checked is not None:
        say(checked["text"].partition("\n")[0])
    status = 0 if checked is None or checked["holds"] else 1
    unreached: Sequence[str] = data["run"]["unreached"] if data["run"] else ()
    for line in unreached:
        say(f"not reached: {line}")
    if not unreached or options.allow_unreached:
        return status
    from pstranspile.tools.cli.run_cluster import is_scenario_seed

    return status if is_scenario_seed(options.faults) else 1


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "report",
        DESCRIPTION,
        [
            "out -o report.html",
            "net.ir --pservers 2 --trainers 2 -o report.html",
            "net.ir --config job.toml --steps 5 --check -o report.html",
            "net.ir --config job.toml --profile host.json --link 1Gb,200us -o report.html",
        ],
    )
    what = "a folder that `compile -o` wrote, or a training program, which is compiled for the job given"
    add_input(parser, "DIR|INPUT", what)
    add_job(parser)
    group = parser.add_argument_group("the run", "Of a training program.")
    group.add_argument("--run", action="store_true", help="run the job on a cluster in this process, for 5 steps")
    group.add_argument("--check", action="store_true", help="also check it against the single machine")
    group.add_argument(
        "--schedules",
        type=number(0, MOST_CHECKED),
        default=0,
        metavar="K",
        help="with --check: also K other orders of events, as for check",
    )
    group.add_argument("--steps", type=number(1, MOST_CHECKED), metavar="N", help="run so many steps")
    add_feed(group, made=True)
    group.add_argument("--program", metavar="TURNS", help=TURNS_HELP)
    group.add_argument("--schedule", type=whole, metavar="SEED", help="a random order of events, drawn by this seed")
    group.add_argument("--seed", type=whole, metavar="N", help="takes the place of the programs' random seeds")
    group.add_argument("--faults", metavar="FILE|SEED", help="what goes wrong, as for run")
    add_unreached(group)
    group.add_argument("--replay", metavar="FILE", help="do a recorded run again, as for run; it takes --feed")
    group = parser.add_argument_group("the time of a step", "Of a training program.")
    group.add_argument(
        "--profile",
        metavar="FILE",
        help="a time line of a step on machines with the profile that `calibrate` has written; "
        "trainers=FILE,servers=FILE for two kinds of machines; --set batch_rows=N says how many rows a trainer's batch "
        "has",
    )
    add_time(group, "--profile")
    group.add_argument(
        "--sweep",
        metavar="KEY=N..M",
        nargs="+",
        default=[],
        help="with --profile: also what other numbers of machines cost, as for plan: pservers=1..8 trainers=2,4,8",
    )
    group.add_argument(
        "--measured",
        metavar="FILE",
        help="with --profile: what `launch --pace FILE` has measured beside what is predicted",
    )
    group = parser.add_argument_group("output")
    group.add_argument(
        "-o", "--output", metavar="FILE.html", required=True, help="where the page is written, - for stdout"
    )
    return parser


def _of_folder(parser: argparse.ArgumentParser, options: argparse.Namespace) -> dict[str, Any]:
    """The data of a folder of compiled programs. Raises DiagnosticError."""
    given = [name for name in (*_RUN, "profile", "sweep", "measured") if getattr(options, name)]
    if given:
        parser.error(f"--{given[0]} goes with a program; {options.input} is a folder of compiled programs")
    from pstranspile.tools.cli.explain import job_of
    from pstranspile.tools.report.data import report_data

    return report_data(job_of(parser, options), _title(options.input))


def _title(path: str) -> str:
    return os.path.basename(os.path.normpath(path)) if path != "-" else "standard input"


def _of_program(
    parser: argparse.ArgumentParser, options: argparse.Namespace, numbers: Mapping[str, Sequence[int]]
) -> dict[str, Any]:
    """The data of a program compiled for a job, with a run and the time of a step if they are asked for. Raises
    DiagnosticError or CommandFailure.
    """
    compiled = load_compiled(options)
    from pstranspile.compiler.explain import of_compiled
    from pstranspile.tools.report.data import CostPrediction, report_data

    module = compiled.source
    running, checked = None, None
    if any(getattr(options, name) for name in _RUN):
        with quoting(module.source):
            running, checked = _run(compiled, module, options)
    cost = cost_with_profile(parser, options, compiled, options.profile) if options.profile is not None else None
    predicted = CostPrediction(cost, *_beside(compiled, options, numbers)) if cost is not None else None
    return report_data(of_compiled(compiled), _title(options.input), module, running, checked, predicted)


def _beside(
    compiled: Compiled, options: argparse.Namespace, numbers: Mapping[str, Sequence[int]]
) -> tuple[Sweep | None, Pace | None]:
    """The sweep over these numbers of machines, and what was measured; None for what is not asked for. Raises
    DiagnosticError.
    """
    from pstranspile.compiler.cost.jobs import sweep

    pace = _measured_pace(compiled, options.measured) if options.measured else None
    if not numbers:
        return None, pace
    assert compiled.job is not None
    pservers, trainers = numbers.get("pservers"), numbers.get("trainers")
    given = {"profile": options.profile, "link": options.link}
    return sweep(compiled.source, compiled.job, pservers=pservers, trainers=trainers, **given), pace


def _measured_pace(compiled: Compiled, path: str) -> Pace:
    """The pace of this job in a file. Raises DiagnosticError, also for that of another one."""
    from pstranspile.cluster.net.job import job_fingerprint
    from pstranspile.cluster.net.metrics import read_pace, require_pace_of

    pace = read_pace(path)
    roles, geo = compiled.roles(), compiled.plan.geo
    require_pace_of(pace, job_fingerprint(roles, None if geo is None else geo.need_push_nums), roles, path)
    return pace


def _run(
    compiled: Compiled, module: Module, options: argparse.Namespace
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """What a run and a check have seen. Raises DiagnosticError."""

    from pstranspile.cluster.machines.record import read_record
    from pstranspile.proof.check import STEPS, check
    from pstranspile.runtime.run.step_feeds import ENDLESS, batches_of_rows, refuse_turns, step_programs
    from pstranspile.tools.cli.run_cluster import is_scenario_seed, read_faults
    from pstranspile.tools.report.running import RunOptions, check_data, run_data

    feeds: GivenFeeds | None
    fed = 0
    programs = step_programs(module) if options.program else {MAIN: module.main}
    feed_source = read_feed(options, programs, module, STEPS)
    if feed_source is None or isinstance(feed_source, Mapping):
        feeds = feed_source
    else:
        refuse_turns(options.program)
        feeds = batches_of_rows(feed_source, module.main, compiled.plan.trainers, options.steps, STEPS)
        there = feed_source.feeds([module.main] * compiled.plan.trainers)[1]
        fed = there if there < ENDLESS else 0
        tell(feed_source.warnings())
    faults = read_faults(options.faults, compiled, options.steps or STEPS) if options.faults else None
    record = read_record(options.replay) if options.replay else None
    of_run = options.steps, feeds, options.batch, options.program, options.schedule, options.seed
    wanted = RunOptions(*of_run, faults, record, fed)
    with suggesting_feed(options):
        running = run_data(compiled, module, wanted)
    if not options.check:
        return running, None
    assert compiled.job is not None
    report = check(
        module,
        compiled.job,
        feeds=feed_source,
        steps=options.steps,
        programs=options.program,
        seed=options.seed or 0,
        result=compiled,
        schedules=options.schedules,
        batch=options.batch,
        faults=faults,
        unreached=options.allow_unreached or is_scenario_seed(options.faults),
    )
    return running, check_data(report)
