"""`pstranspile check`: does the cluster train as the single machine does?"""

from __future__ import annotations

import argparse
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from math import isfinite
from typing import TYPE_CHECKING

from pstranspile.ir.argument_checks import MOST_CHECKED
from pstranspile.ir.model import MAIN
from pstranspile.tools.cli.blas import use_threads
from pstranspile.tools.cli.common import (
    add_input,
    add_job,
    add_shares,
    add_unreached,
    begun_with,
    check_unreached,
    compile_loaded,
    count,
    load_with_job,
    make_parser,
    number,
    require_named,
    whole,
)
from pstranspile.tools.cli.feed import add_feed, check_feed, read_feed, suggesting_feed
from pstranspile.tools.cli.findings import errors_as_json
from pstranspile.tools.cli.live_board import add_live, check_live
from pstranspile.tools.cli.progress import status
from pstranspile.tools.cli.report import quoting, report, verdict_first
from pstranspile.tools.cli.turns import TURNS_HELP, requested_turns
from pstranspile.tools.cli.written_files import PENDING

if TYPE_CHECKING:
    from pstranspile.proof.workload import OnProgress, Watch

DESCRIPTION = """\
Trains a program on one machine and, compiled, on a cluster, in this process: from the same start, on the same data.
After every step each parameter and each state of an optimizer is compared: bitwise equal, equal within rounding, or
different. The verdict comes first, then what differs and why; --all lists every variable. Where something is
different, the ops are named that by their meaning see the batch as a whole.

Modes in which trainers do not wait for each other promise no equality (but with a single trainer); there it is
checked that every gradient is applied once, and told how old the parameters were on which it was computed.

Without --feed, data are made from what the program declares and does with its inputs. A module may have several
programs, which take turns as --program says, on both sides; what an evaluation gives is compared as well.
Exit status: 0 when what the mode promises holds, 1 when it does not."""


def run(arguments: Sequence[str]) -> int:
    """Checks and prints the report."""
    parser = _parser()
    options = parser.parse_args(arguments)
    use_threads()
    check_live(parser, options)
    check_feed(parser, options, made=True)
    check_unreached(parser, options)
    require_named(parser, options, "feed", "init", "faults")
    with (
        PENDING.lacking(lambda: "the check has come to no verdict"),
        errors_as_json(options.json),
        verdict_first(),
    ):
        return _check(options)


def _check(options: argparse.Namespace) -> int:
    """Checks, and prints the report; the exit status is 1 if what is promised does not hold. Raises DiagnosticError or
    CommandFailure.
    """
    loaded = load_with_job(options)
    module, job = loaded.module, loaded.job
    if options.no_dropout:
        from pstranspile.runtime.run.seeds import without_dropout

        module = without_dropout(module)
        loaded = loaded._replace(module=module)
    from pstranspile.proof.check import STEPS, check
    from pstranspile.proof.report import report_text
    from pstranspile.runtime.kernels.programs.control import most_turns
    from pstranspile.runtime.run.step_feeds import RowSource, step_programs, union_of
    from pstranspile.tools.cli.run_cluster import is_scenario_seed, read_faults

    with quoting(module.source):
        programs = step_programs(module)
        declaring = union_of(programs.values()) if options.program else module.main
        requested_turns(options, module)  # its errors come before all others
        result = compile_loaded(options, loaded)
        feeds = read_feed(options, programs if options.program else {MAIN: module.main}, module, STEPS)
        faults = read_faults(options.faults, result, options.steps or STEPS) if options.faults else None
    with (
        quoting(module.source),
        suggesting_feed(options),
        most_turns(options.max_turns),
        _progress_display(options) as (progress, watch),
    ):
        checked = check(
            module,
            job,
            feeds=feeds,
            steps=options.steps,
            schedules=options.schedules,
            init=begun_with(options.init, declaring, module.startup, start=module.start),
            programs=options.program,
            seed=options.seed or 0,
            batch=options.batch,
            result=result,
            faults=faults,
            unreached=options.allow_unreached or is_scenario_seed(options.faults),
            shares=options.shares,
            progress=progress,
            watch=watch,
        )
    if isinstance(feeds, RowSource):
        report(feeds.warnings())
    if options.json:
        from pstranspile.ir.json_text import json_text

        values = {**checked._asdict(), "holds": checked.holds}
        print(json_text({key: _plain(value) for key, value in values.items()}), end="")
    else:
        print(report_text(checked, every=options.all), end="")
    return 0 if checked.holds else 1


@contextmanager
def _progress_display(options: argparse.Namespace) -> Generator[tuple[OnProgress, Watch | None]]:
    """A context manager that displays a check: yields functions to call with its progress, and with each cluster."""
    if not options.live:
        with status("check") as progress:
            yield progress, None
        return
    from pstranspile.proof.check import STEPS
    from pstranspile.tools.cli.live_views import LiveCluster

    live = LiveCluster(options.steps or STEPS)
    try:
        yield live.doing, live.watch
    finally:
        live.end()


def _plain(value: object) -> object:
    """Named tuples as objects, for JSON; null for what JSON has no number for, infinity and NaN."""
    if isinstance(value, float) and not isfinite(value):
        return None
    if hasattr(value, "_asdict"):
        return {key: _plain(item) for key, item in value._asdict().items()}  # pyright: ignore
    return [_plain(item) for item in value] if isinstance(value, tuple) else value  # pyright: ignore


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "check",
        DESCRIPTION,
        [
            "net.ir --pservers 2 --trainers 2",
            "net.ir --pservers 2 --trainers 2 --faults trouble.txt",
            "net.ir --config job.toml --feed data.npz --steps 20 --schedules 50",
            "net.ir --pservers 2 --trainers 2 --feed 'clicks/*.parquet' --batch 64 --columns 'x=f*'",
            "gan.ir --pservers 2 --trainers 2 --steps 12 --program 'main*2,generator,evaluation/6'",
        ],
    )
    add_input(parser)
    add_job(parser)
    group = parser.add_argument_group("the check")
    group.add_argument(
        "--steps",
        type=number(1, MOST_CHECKED),
        metavar="N",
        help="steps to train (default: as many as are fed, at most 5; 3 of made data for large programs)",
    )
    group.add_argument(
        "--schedules",
        type=number(0, MOST_CHECKED),
        default=0,
        metavar="K",
        help="also run the cluster in K random orders of events, and compare how they end; where servers wait for "
        "nobody, compare each step with the source",
    )
    group.add_argument(
        "--faults",
        metavar="FILE|SEED",
        help="also run the cluster with what goes wrong as a file says or a seed draws it (docs/reference/faults.md)",
    )
    add_unreached(group)
    group.add_argument("--program", metavar="TURNS", help=TURNS_HELP)
    add_feed(group, made=True)
    group.add_argument("--init", metavar="FILE.npz|DIR", help="values to start from, as for run")
    group.add_argument("--seed", type=whole, metavar="N", help="takes the place of the programs' random seeds")
    add_shares(group)
    group.add_argument(
        "--max-turns",
        type=count,
        default=100_000,
        metavar="N",
        help="the most turns of a loop, after which it is taken for one that never ends (default: 100,000)",
    )
    group.add_argument("--no-dropout", action="store_true", help="leave out what dropout ops do, on both sides")
    add_live(group)
    group.add_argument("--all", action="store_true", help="list every variable, also those that are as promised")
    group.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser
