"""`pstranspile run`: run a program step by step, on one machine or on a simulated cluster."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pstranspile.ir.diagnostics import DiagnosticError, cluster_of, error
from pstranspile.tools.cli.blas import use_threads
from pstranspile.tools.cli.cluster_pictures import add_pictures, chart_kind, check_pictures
from pstranspile.tools.cli.common import (
    INIT_HELP,
    LoadedInput,
    add_arithmetic,
    add_checkpoints,
    add_input,
    add_job,
    add_shares,
    add_table_folder,
    add_time,
    add_unreached,
    arithmetic_of,
    check_checkpoints,
    check_time,
    check_unreached,
    count,
    files_read,
    load_for,
    make_parser,
    read_job,
    require_named,
    run_seed,
    table_memory_of,
    whole,
)
from pstranspile.tools.cli.feed import add_feed, check_feed, suggesting_feed, telling_of_made_ids
from pstranspile.tools.cli.live_board import add_live, check_live
from pstranspile.tools.cli.progress import RunCheckpoints, telling_what_is_kept
from pstranspile.tools.cli.report import quoting, report
from pstranspile.tools.cli.turns import TURNS_HELP, requested_fetches, requested_turns
from pstranspile.tools.cli.written_files import saved_arrays_text, telling

if TYPE_CHECKING:
    from pstranspile.compiler.job import Job
    from pstranspile.runtime.run.watchers import Curve

DESCRIPTION = """\
Runs a program: the startup program once, then the main program step by step. With --pservers, --trainers or a job file
the job is compiled, and all machines of the cluster run in this process: always the same order of events, or the one
that --schedule seeds.

The feed file holds an array for every input, with a leading axis for the steps. A ragged input (LoD level 1) is the
concatenated rows of all sequences of all steps, with their lengths in `<feed>@LENS`: [steps, batch]. Where shapes
change from step to step, or sequences are nested, each step has arrays of its own: `3|<feed>` for step 3 (the first is
1), and `3|<feed>|0`, `3|<feed>|1`, ... for the lengths of its sequences, the outermost first. In a cluster the batch is
divided over the trainers, in order; an array named `trainer_<i>/<feed>` is for one trainer.

A module may have several programs (a generator and a discriminator, an evaluation), which take turns as --program says;
a step is one run of one program. An array is then for every program that has such an input, or for one
(`<program>/<feed>`, `trainer_<i>/<program>/<feed>`), and has a row for each run of the program."""


def run(arguments: Sequence[str]) -> int:
    """Runs the program, prints the fetched numbers of every step, and saves what was asked for."""
    parser = _parser()
    options = parser.parse_args(arguments)
    use_threads(options.threads)
    chosen_arithmetic = arithmetic_of(options)
    require_named(parser, options, "feed", "init", "faults", "replay", "save", "plot", "chart", "checkpoint", "resume")
    table_memory = table_memory_of(parser, options)
    require_named(parser, options, "table_folder", *(["trace"] if options.trace else []))  # it may stand alone
    check_feed(parser, options)
    kind = _picture_kind(parser, options.plot)
    check_checkpoints(parser, options)
    check_pictures(parser, options)
    check_live(parser, options)
    check_unreached(parser, options)
    check_time(parser, options, "--time", options.time)
    given = [name for name in _NOT_REPLAYED if getattr(options, name) not in (None, False)]
    if options.replay and given:
        parser.error(f"--replay can't be combined with --{given[0]}: the record says what happens")
    if options.faults and (options.checkpoint or options.resume):
        parser.error(
            "--faults can't be combined with --checkpoint and --resume: its steps count from the start of a run"
        )
    _require_writable(options)
    module, job, warnings = load_for(options, _job_checked)
    if options.no_dropout:
        from pstranspile.runtime.run.seeds import without_dropout

        module = without_dropout(module)
    from pstranspile.runtime.arithmetic import arithmetic
    from pstranspile.runtime.kernels.programs.control import most_turns
    from pstranspile.runtime.large.table import rows_on_disk, tables_on_threads

    on_disk = rows_on_disk(options.table_folder, table_memory)
    chosen = arithmetic(chosen_arithmetic), most_turns(options.max_turns), on_disk
    with (
        telling_what_is_kept(options) as keeping,
        quoting(module.source),
        chosen[0],
        chosen[1],
        chosen[2],
        tables_on_threads(options.threads or 1),
        suggesting_feed(options),
        telling_of_made_ids(options, module),
    ):
        if job is not None:
            return _run_cluster(parser, LoadedInput(module, job, warnings), options, kind, keeping)
        report(warnings, [module.source])
        from pstranspile.tools.cli.run_single import ModuleRun

        with closing(ModuleRun(module, options)) as session:
            _require_numbers(options, [name for names in session.fetches.values() for name in names])
            session.start()
            keeping.begin_steps(steps_left=session.first_step < session.count)
            values = session.steps()
        _save(options, kind, lambda: session.arrays(values), session.curves(values), _name(options))
    if session.profile is not None:
        print(session.profile.table(), file=sys.stderr)
    return 0


_NOT_REPLAYED = ("steps", "seed", "schedule", "faults", "checkpoint", "resume")
"""Options that a record takes the place of."""


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "run",
        DESCRIPTION,
        [
            "net.ir --feed data.npz --fetch loss --save out.npz",
            "main.pb --startup startup.pb --feed data.npz --init start.npz --steps 100",
            "net.ir --pservers 2 --trainers 2 --feed data.npz --save out.npz",
            "net.ir --pservers 3 --trainers 2 --feed data.npz --resume kept --checkpoint kept --checkpoint-every 100",
            "net.ir --feed data.npz --profile --check-nan --plot loss.svg",
            "net.ir --pservers 2 --trainers 2 --feed data.npz --time host.json --link 1Gb,200us",
            "gan.ir --pservers 2 --trainers 2 --feed data.npz --program 'main*5,generator'",
        ],
    )
    add_input(parser)
    add_job(parser)
    _add_run(parser)
    _add_results(parser)
    group = parser.add_argument_group("looking closer")
    group.add_argument("--profile", action="store_true", help="print time, calls and bytes by op type, on stderr")
    group.add_argument(
        "--trace",
        nargs="?",
        const="",
        metavar="FILE",
        help="print every op with what it makes, on stderr; in a cluster, write every message to FILE, for Chrome's "
        "about:tracing or Perfetto",
    )
    group.add_argument(
        "--time",
        metavar="FILE",
        help="in a cluster: also print how long the steps take on machines with the profile that `calibrate` has "
        "written, on stderr; trainers=FILE,servers=FILE for two kinds of machines; --set batch_rows=N says how many "
        "rows a trainer's batch has",
    )
    add_time(group, "--time")
    group.add_argument("--check-nan", action="store_true", help="stop at the first op that makes NaN or infinity")
    add_live(group)
    add_pictures(parser)
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the run")
    group.add_argument("--steps", type=count, metavar="N", help="how many steps (default: as many as are fed, or 1)")
    add_feed(group)
    group.add_argument(
        "--init",
        metavar="FILE.npz|DIR",
        help=INIT_HELP,
    )
    group.add_argument(
        "--program",
        metavar="TURNS",
        help=TURNS_HELP,
    )
    group.add_argument(
        "--fetch",
        metavar="VAR",
        action="append",
        default=[],
        help="a variable to show and save (`PROGRAM/VAR`: of one program); may be repeated (default: the losses, else "
        "what fetch ops name, else what no op takes)",
    )
    group.add_argument(
        "--seed", type=run_seed, metavar="N", help="the seed of random numbers, in place of the program's own"
    )
    group.add_argument(
        "--max-turns",
        type=count,
        default=100_000,
        metavar="N",
        help="the most turns of a loop, after which it is taken for one that never ends (default: 100,000)",
    )
    group.add_argument("--no-dropout", action="store_true", help="leave out what dropout ops do: all elements are kept")
    group.add_argument(
        "--schedule",
        type=whole,
        metavar="SEED",
        help="in a cluster: the order of events that this seed gives (default: machines in turn)",
    )
    group.add_argument(
        "--faults",
        metavar="FILE|SEED",
        help="in a cluster: what goes wrong: a file says it or a seed draws (docs/reference/faults.md); told on stderr",
    )
    add_unreached(group)
    group.add_argument(
        "--replay",
        metavar="FILE",
        help="in a cluster: the run that `launch --record FILE` has recorded, with the same messages in the same order",
    )
    add_shares(group)
    group.add_argument(
        "--threads",
        type=count,
        metavar="N",
        help="threads of matrix products and, on servers, of large tables (default: 1)",
    )
    add_arithmetic(group)
    add_table_folder(group)


def _add_results(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("results")
    group.add_argument(
        "--save",
        metavar="FILE.npz",
        help="write `step/<fetch>`: [steps, ...], or `step/3|<fetch>` for each step as in a feed file (in a cluster "
        "`trainer_<i>/step/<fetch>`; with --program `<program>/step/<fetch>`), and the final value of every parameter, "
        "`param/<name>` (of a large table the rows that exist, with their ids in `param/<name>@ROWS`)",
    )
    group.add_argument("--plot", metavar="FILE.png|svg", help="draw the fetched numbers over the steps")
    add_checkpoints(parser)


def _picture_kind(parser: argparse.ArgumentParser, path: str | None) -> str:
    from pstranspile.runtime.run.watchers import FORMATS

    kind = Path(path).suffix.lower().lstrip(".") if path else FORMATS[0]
    if kind not in FORMATS:
        parser.error(f"--plot {path}: the name must end in {' or '.join('.' + name for name in FORMATS)}")
    return kind


def _job_checked(options: argparse.Namespace) -> Job | None:
    """The job; without one, what is for clusters is refused. Raises DiagnosticError."""
    job = _job_of(options)
    if job is None:
        _require_one_machine(options)
    return job


def _job_of(options: argparse.Namespace) -> Job | None:
    """The job, if the options describe one of several machines. Raises DiagnosticError."""
    if not (options.config or options.pservers or options.trainers or options.mode or options.settings):
        return None
    job = read_job(options)
    if not (job.pservers or job.trainers > 1 or job.trainer_endpoints):
        return None

    for name in ("profile", "check_nan"):
        if getattr(options, name):
            message = f"--{name.replace('_', '-')} looks at one machine; leave out the job, or this option"
            raise DiagnosticError([error("run-cluster", message)])
    if options.trace == "":
        raise DiagnosticError([error("run-cluster", "--trace needs the name of a FILE for the trace of a cluster")])
    return job


def _require_writable(options: argparse.Namespace) -> None:
    """Raises DiagnosticError for a file of results that can't be written, before they are computed."""
    from pstranspile.runtime.files.outputs import require_writable

    read = files_read(options)
    kinds = {"save": "npz", "plot": _ending(options.plot), "trace": "trace", "chart": chart_kind(options.chart)}
    for name, kind in kinds.items():
        if path := getattr(options, name):
            require_writable(path, read, kind)


def _ending(path: str | None) -> str:
    return Path(path or "").suffix.lower().lstrip(".")


def _require_one_machine(options: argparse.Namespace) -> None:
    """Raises DiagnosticError for what only a cluster can show."""

    of_clusters = {
        "--trace FILE": options.trace,
        "--chart": options.chart,
        "--traffic": options.traffic,
        "--faults": options.faults,
        "--time": options.time,
        "--schedule": options.schedule is not None,
        "--replay": options.replay,
        "--plan": options.plan,
        "--shares": options.shares != "equal",
    }
    for name, value in of_clusters.items():
        if value:
            what = (
                "is for"
                if name in ("--faults", "--time", "--schedule", "--replay", "--shares", "--plan")
                else "shows the messages of"
            )
            message = f"{name} {what} a cluster; describe one (--pservers, --trainers, --config)"
            raise DiagnosticError([error("run-cluster", message)])


def _run_cluster(
    parser: argparse.ArgumentParser,
    loaded: LoadedInput[Job],
    options: argparse.Namespace,
    kind: str,
    keeping: RunCheckpoints,
) -> int:
    """Runs the job and saves what was asked for. The exit status is 1 if faults of a file did not happen."""
    from pstranspile.tools.cli.run_cluster import curves_of, is_scenario_seed, report_unreached_faults, run_cluster

    module, job = loaded.module, loaded.job
    turns = requested_turns(options, module)
    fetches = requested_fetches(options, module, turns)
    _require_numbers(options, [name for names in fetches.values() for name in names])
    done = run_cluster(parser, loaded, options, turns, fetches, keeping)
    machines = f"mode {job.mode}, {cluster_of(job.trainers, len(job.pservers))}"
    _save(options, kind, done.arrays, curves_of(done), f"{_name(options)}, {machines}")
    return (
        1
        if report_unreached_faults(done) and not options.allow_unreached and not is_scenario_seed(options.faults)
        else 0
    )


def _save(
    options: argparse.Namespace,
    kind: str,
    arrays: Callable[[], Mapping[str, Any]],
    curves: Mapping[str, Curve],
    title: str,
) -> None:
    if options.save:
        from pstranspile.runtime.run.files import write_arrays

        made = arrays()
        with telling(options.save, saved_arrays_text(made)):
            write_arrays(options.save, made)
    if options.plot:
        from pstranspile.runtime.files.outputs import write_output
        from pstranspile.runtime.run.watchers import plot_bytes

        with telling(options.plot, "the fetched numbers as curves"):
            write_output(options.plot, plot_bytes(curves, kind, title))


def _name(options: argparse.Namespace) -> str:
    """What is run, for the title of a plot."""
    return "stdin" if options.input == "-" else Path(options.input).name


def _require_numbers(options: argparse.Namespace, fetches: Sequence[str]) -> None:
    """Raises DiagnosticError if a plot is asked for that can't be drawn, before anything is run."""
    if options.plot:
        from pstranspile.runtime.run.watchers import require_plot

        require_plot(fetches)
