"""`pstranspile launch`: run a job for real: all its machines as processes on this host."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pstranspile.frontends.loading import of_python
from pstranspile.ir.diagnostics import name_list, quantity, visible
from pstranspile.ir.model import MAIN
from pstranspile.ir.startup_signals import freeze_modules
from pstranspile.tools.cli.cluster_pictures import (
    add_pictures,
    chart_kind,
    check_pictures,
    require_chart_steps,
    show_pictures,
    wants_pictures,
)
from pstranspile.tools.cli.common import (
    add_checkpoints,
    add_input,
    add_job,
    begun_on_machines,
    check_checkpoints,
    deciding,
    file_of_start,
    files_read,
    load_compiled,
    make_parser,
    refuse_with_folder,
    require_named,
    table_memory_of,
    whole,
    write_text,
)
from pstranspile.tools.cli.feed import check_feed, dealt_text, forwarded_options, read_feed, require_fed_inputs
from pstranspile.tools.cli.launch_ray import add_ray, check_local, launch_on_ray
from pstranspile.tools.cli.launch_view import Silence, View
from pstranspile.tools.cli.live_board import add_live, check_live
from pstranspile.tools.cli.progress import RunCheckpoints, is_terminal, status, telling_what_is_kept
from pstranspile.tools.cli.report import quoting, report
from pstranspile.tools.cli.start import add_patience, add_run, add_saves, fetches_of
from pstranspile.tools.cli.written_files import MOST_NAMED, saved_arrays_text, say, telling

if TYPE_CHECKING:
    from pstranspile.cluster.machines.feeding import ReportedShares
    from pstranspile.cluster.net.checkpoints import Checkpoints
    from pstranspile.cluster.net.job import JobFolder
    from pstranspile.cluster.net.metrics import Mark
    from pstranspile.cluster.net.supervisor import Member
    from pstranspile.compiler.compile import Compiled
    from pstranspile.runtime.run.step_feeds import RowSource
    from pstranspile.tools.cli.live_views import LiveView

DESCRIPTION = """\
Runs a compiled job for real: every machine is a process on this host, on ports that are free. INPUT is a folder that
`compile -o` wrote, or a program with the options of a job, which is then compiled first.

What steps fetch is shown as `run` shows it. The output of every process is in a log. If one ends before its part is
done, it is started again as often as --restarts says (without servers: all begin again from the last checkpoint); after
that the others are ended too, and what they waited for is reported. An interrupt ends all of them."""


_NAMING = (
    "feed", "init", "save", "record", "metrics", "logs", "state", "trace", "chart", "checkpoint", "resume",
    "table_folder", "tls", "saves", "pace",
)  # fmt: skip
"""Options whose value is never empty."""


def run(arguments: Sequence[str]) -> int:
    """Runs all machines until the job is done."""
    parser = _parser()
    options = parser.parse_args(arguments)
    require_named(parser, options, *_NAMING)
    table_memory = table_memory_of(parser, options)
    check_feed(parser, options)
    check_live(parser, options)
    if options.on == "local":
        options.restarts = options.restarts or 0
    if options.on != "local":
        with telling_what_is_kept(options) as keeping:
            return launch_on_ray(parser, options, keeping)
    check_local(parser, options)
    if os.path.isdir(options.input):
        refuse_with_folder(parser, options)
    check_pictures(parser, options)
    if options.record and options.restarts:
        parser.error("--record can't be combined with --restarts: a process that is started again begins anew")
    from pstranspile.cluster.net.job import load_job_folder
    from pstranspile.cluster.net.parts import are_needed
    from pstranspile.runtime.files.outputs import require_writable, require_writable_folder, work_folder
    from pstranspile.runtime.large.table import rows_on_disk

    freeze_modules()
    read = files_read(options)
    kinds = {
        "save": "npz",
        "record": "record",
        "pace": "pace",
        "trace": "trace",
        "chart": chart_kind(options.chart),
    }
    for name, kind in kinds.items():
        if path := getattr(options, name):
            require_writable(path, read, kind)
    for folder in filter(None, (options.state, options.logs, options.saves)):
        require_writable_folder(folder)
    work_place = work_folder(Path(tempfile.gettempdir()), "pstranspile-launch-", mode=0o700)
    with (
        telling_what_is_kept(options) as keeping,
        rows_on_disk(options.table_folder, table_memory),
        work_place as work,
        ExitStack() as at_end,
    ):
        own = work / "compiled" / "job"
        compiled = None if os.path.isdir(options.input) else _compile_to_folder(options, own)
        if compiled is not None and options.push_every:
            parser.error("--push-every is for a folder; of a program, --set geo_sgd_need_push_nums=N says it")
        folder = options.input if compiled is None else str(own)
        checkpoints = _checkpoints(parser, options, compiled, work, at_end)
        job = load_job_folder(folder, options.push_every, report)
        if checkpoints is not None and checkpoints.source is not None:
            checkpoints.source.require_seed(options.seed)
            options.seed = checkpoints.seed
        options.fetch = fetches_of(options.fetch, job, None if compiled is None else compiled.source)
        cluster = job.cluster(fetch=options.fetch, seed=options.seed)
        cluster.require_sound()
        if options.state:
            from pstranspile.cluster.net.launch import require_no_state

            require_no_state(options.state, [server.name for server in cluster.servers])
        if options.init:
            from pstranspile.cluster.checkpoint.inference import resolve_checkpoint

            options.init = resolve_checkpoint(options.init)
        first = job.roles[cluster.trainers[0].name]
        source = None if compiled is None else compiled.source
        begun_on_machines(options.init, first, source, start=job.values(), resumed=bool(options.resume))
        from pstranspile.cluster.machines.feeding import ReportedShares, require_fed
        from pstranspile.runtime.run.step_feeds import RowSource

        feeds = read_feed(options, {MAIN: first.main if source is None else source.main}, source)
        if source is not None and source.example and not options.names and of_python(options.feed or ""):
            options.names = ",".join(source.example)
        if checkpoints is not None and isinstance(feeds, RowSource):
            feeds = checkpoints.deal(feeds, len(cluster.trainers))
            options.dealt = dealt_text(checkpoints.dealing)
        cluster.feed(feeds)
        require_fed(feeds, [trainer.role for trainer in cluster.trainers], cluster.steps, options.steps or 0)
        if of_python(options.feed or ""):
            options.steps = options.steps or cluster.steps  # so that the processes need not count as well
        steps = options.steps or cluster.steps or 1
        if checkpoints is not None and checkpoints.source is not None:
            checkpoints.source.require_steps(steps, known=bool(options.steps or cluster.steps))
            report(
                checkpoints.source.resume_findings(steps, checkpoints.job.plan.mode, rows=isinstance(feeds, RowSource))
            )
        if not isinstance(feeds, RowSource):
            require_fed_inputs(options, compiled, [job.roles[trainer.name] for trainer in cluster.trainers], feeds)
        if options.checkpoint and are_needed(cluster):  # so that the end is a meeting, before trainers leave
            options.checkpoint_every = options.checkpoint_every or steps
        require_chart_steps(options, checkpoints.first_step if checkpoints else 0, steps)
        shares = ReportedShares(cluster.meeting)
        try:
            with quoting(None if source is None else source.source):
                return _launch(
                    options, folder, job, compiled, work, steps, checkpoints, cluster.source, keeping, shares
                )
        finally:
            report(shares.warnings())
            report(cluster.source.warnings() if cluster.source is not None else ())


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "launch",
        DESCRIPTION,
        [
            "net.ir --pservers 2 --trainers 2 --feed data.npz --steps 100 --fetch loss",
            "out --feed data.npz --state kept --restarts 3 --save results.npz",
        ],
    )
    add_input(parser, "DIR|INPUT", "what `compile -o` wrote, or a training program to compile")
    add_job(parser)
    add_run(parser)
    add_ray(parser)
    parser.add_argument("--save", metavar="FILE.npz", help="write what was fetched and all parameters, as `run --save`")
    parser.add_argument(
        "--record", metavar="FILE", help="write every message and the order of all that happens, for `run --replay`"
    )
    parser.add_argument(
        "--pace",
        metavar="FILE",
        help="write how long a step took and what each machine needed for it, over the steady part of the run, for "
        "`report --measured`",
    )
    parser.add_argument("--metrics", metavar="HOST:PORT", help="where Prometheus may ask how the job goes")
    parser.add_argument("--logs", metavar="DIR", help="keep the output of the processes there")
    add_checkpoints(parser)
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help="write what all processes do, for Chrome's about:tracing or Perfetto, in one file",
    )
    parser.add_argument("--profile", action="store_true", help="print where each process's time goes, on stderr")
    add_live(parser)
    add_pictures(parser)
    group = parser.add_argument_group("staying alive")
    group.add_argument(
        "--restarts",
        type=whole,
        metavar="N",
        help="how often each process is started again (default: never); in jobs without servers: how often all begin "
        "again from the last checkpoint when one has ended; on Ray: how often the job goes back to its last cut when a "
        "machine is gone (default: 10)",
    )
    group.add_argument(
        "--state", metavar="DIR", help="where servers keep their state (default: with --restarts, a folder for the run)"
    )
    add_saves(group)
    add_patience(group)
    return parser


def _checkpoints(
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    compiled: Compiled | None,
    work: Path,
    at_end: ExitStack,
) -> Checkpoints | None:
    """What takes care of checkpoints, if the options ask for any; lets go of them `at_end`. Raises DiagnosticError."""
    check_checkpoints(parser, options)
    if not (options.checkpoint or options.resume):
        return None
    if compiled is None:
        parser.error("--checkpoint and --resume need the program and the job's options in place of a folder")
    from pstranspile.cluster.checkpoint.layout import layout_of
    from pstranspile.cluster.checkpoint.runs import Source, Target
    from pstranspile.cluster.net.checkpoints import Checkpoints

    settings = deciding(options, cluster=True)
    source = at_end.enter_context(closing(Source(options.resume))) if options.resume else None
    if source is not None:
        source.require_settings(settings)
        source.require_program(compiled.fingerprint)
    target: Target | None = None
    if options.checkpoint:
        standing = None if source is None else source.standing
        target = at_end.enter_context(closing(Target(options.checkpoint, layout_of(compiled), standing)))
    return at_end.enter_context(
        closing(Checkpoints(compiled, source, target, options.checkpoint_every, work, settings))
    )


def _compile_to_folder(options: argparse.Namespace, target: Path) -> Compiled:
    """Compiles the program into a folder. Raises DiagnosticError."""
    from pstranspile.compiler.folders import files_of
    from pstranspile.runtime.files.outputs import write_outputs

    result = load_compiled(options)
    with status("launch") as tell:
        write_outputs(target, {**dict(files_of(result, "ir", tell)), **file_of_start(result.source)})
    return result


def _launch(
    options: argparse.Namespace,
    folder: str,
    job: JobFolder,
    compiled: Compiled | None,
    work: Path,
    steps: int,
    checkpoints: Checkpoints | None,
    source: RowSource | None,
    keeping: RunCheckpoints,
    shares: ReportedShares,
) -> int:
    """Runs all machines to their end, and saves and shows what was asked for; notes the trainers' `shares` of batches.
    Raises DiagnosticError.
    """
    from pstranspile.cluster.net.launch import News, failure_of, logs_of, supervise_job, take_rows, token_of_job
    from pstranspile.cluster.net.metrics import Mark, Metrics, note_mark
    from pstranspile.cluster.net.supervisor import Ports

    names = sorted(job.roles, key=lambda name: (not name.startswith("pserver"), len(name), name))
    ports = Ports(len(names))
    addresses = dict(zip(names, ports.addresses, strict=True))
    results, records, traces = ({n: str(work / f"{n}.{what}") for n in names} for what in ("result", "record", "trace"))
    seed = job.cluster(seed=options.seed).seed
    given = {
        "--result": results,
        "--record": records if options.record else {},
        "--trace": traces if wants_pictures(options) else {},
    }
    members = _members(options, folder, addresses, given, work)
    view = _view(options, members, [name for name in names if name.startswith("trainer")], steps)

    def on_report(member: Member, fields: dict[str, Any]) -> None:
        view.update(member, fields)
        shares.take(member.role, fields)
        if options.pace and "step" in fields and "cpu" in fields:
            note_mark(marks.setdefault(member.role, []), Mark(fields["step"], fields["cpu"], fields["clock"]))
        if checkpoints is not None and "saved" in fields:
            checkpoints.part_saved(seed, member.role, fields["saved"])
        take_rows(source, fields)
        if "saved_file" in fields:
            saved.setdefault(member.role, {})[fields["saved_file"]] = None
        news.take(member.role, fields)

    marks: dict[str, list[Mark]] = {}
    saved: dict[str, dict[str, None]] = {}
    """The files that servers have saved because a trainer told them to, by role."""

    def print_line(what: str) -> None:
        view.clear()
        say(f"pstranspile launch: {what}")

    silence = (
        None if options.live or is_terminal(sys.stdout) else Silence(_silence_message(names, options.logs), print_line)
    )

    def look() -> None:
        view.look()
        if silence is not None:
            silence.look(members)

    news = News(print_line)
    with ExitStack() as at_end:
        at_end.callback(ports.close)
        at_end.enter_context(token_of_job())
        if options.metrics:
            metrics = Metrics(options.metrics, lambda: [member.process_reports() for member in members.values()])
            at_end.callback(metrics.close)
        at_end.callback(view.end)
        earlier = at_end.enter_context(logs_of(options.logs)) if options.logs else None
        if earlier is not None:
            print_line(f"the logs of the launch before are in {earlier} now")
        keeping.begin_steps(steps_left=(checkpoints.first_step if checkpoints is not None else 0) < steps)
        done = False
        try:
            supervisor, done = supervise_job(
                options.restarts,
                members,
                checkpoints,
                seed,
                on_report,
                print_line,
                on_look=look,
                on_begin=lambda: view.begin(members, steps),
            )
        finally:
            _tell_what_is_left(options, saved, done, print_line)
    if options.record:
        from pstranspile.cluster.machines.record import write_record

        with telling(options.record, "every message and the order of events, for run --replay"):
            write_record(options.record, seed, steps, records)
    _show(options, job, members, traces)
    if not done:
        raise failure_of(supervisor, job, {} if compiled is None else compiled.roles())
    there = shares.all_ended(sum(name.startswith("trainer") for name in names))
    if checkpoints is not None and checkpoints.target:
        checkpoints.end(seed, results, steps if there is None else min(there, steps))
    if options.save:
        _save(options, job, results)
    if options.pace:
        _write_pace(options.pace, marks, job.fingerprint)
    if there is not None and source is not None:
        from pstranspile.runtime.run.step_feeds import require_steps

        require_steps(there, steps, source)
    if options.logs:
        print_line(f"all {len(members)} machines have ended well; logs in {options.logs}")
    return 0


def _silence_message(names: Collection[str], logs: str | None) -> str:
    """The message about machines that have been started, and have not done a step for a while."""
    servers = sum(name.startswith("pserver") for name in names)
    counts = {"server": servers, "trainer": len(names) - servers}
    kinds = [quantity(count, kind) for kind, count in counts.items() if count]
    return f"{' and '.join(kinds)} have been started, none has done a step yet{f'; logs in {logs}' if logs else ''}"


def _tell_what_is_left(
    options: argparse.Namespace,
    saved: Mapping[str, Mapping[str, None]],
    is_complete: bool,
    tell: Callable[[str], object],
) -> None:
    """Says which files servers have saved; and of a job that did not come to its end (not `is_complete`) what they have
    kept, and where the logs are.
    """
    for role, files in saved.items():
        tell(f"{role} has saved {name_list(map(visible, files), MOST_NAMED)}")
    left = sorted(p.name for p in Path(options.state).glob("*.kept")) if options.state and not is_complete else []
    if left:
        tell(f"{options.state}: left, since the job did not come to its end: {name_list(left, MOST_NAMED)}")
    if options.logs and not is_complete:
        tell(f"logs in {options.logs}")


def _view(
    options: argparse.Namespace, members: Mapping[str, Member], trainers: Sequence[str], steps: int
) -> View | LiveView:
    """What shows the machines at work."""
    if not options.live:
        return View(members, trainers, steps)
    from pstranspile.tools.cli.live_views import LiveView

    for member in members.values():
        member.watch()
    return LiveView(members, steps)


def _write_pace(path: str, marks: Mapping[str, Sequence[Mark]], job: str) -> None:
    """Writes how fast the machines of the job with this fingerprint went, or says that the run was too short for
    that.
    """
    from pstranspile.cluster.net.metrics import pace_text, steady_pace

    pace = steady_pace(marks)
    if pace is None:
        say(f"{path} is not written: the run was too short to tell how long a step takes")
        return
    write_text(path, pace_text(pace._replace(job=job)), [], "pace", "how long a step took")


def _save(options: argparse.Namespace, job: JobFolder, results: Mapping[str, str]) -> None:
    """Writes what was fetched and all parameters, out of what the processes have left. Raises DiagnosticError."""
    from pstranspile.cluster.net.parts import gather
    from pstranspile.runtime.run.files import write_arrays

    made = gather(job.cluster(fetch=options.fetch, seed=options.seed), results).arrays()
    with telling(options.save, saved_arrays_text(made)):
        write_arrays(options.save, made)


def _show(
    options: argparse.Namespace, job: JobFolder, members: Mapping[str, Member], traces: Mapping[str, str]
) -> None:
    """Shows what was asked for of what the processes have done. Raises DiagnosticError."""
    if wants_pictures(options):
        from pstranspile.cluster.machines.recorder import Recorder
        from pstranspile.cluster.net.tracing import read_traced, trace_of

        cluster = job.cluster(seed=options.seed)
        traced = read_traced(traces)
        recorder = Recorder(cluster, traced.events)
        show_pictures(recorder, cluster, options, lambda recorder: trace_of(traced, recorder))
    if options.profile:
        from pstranspile.cluster.net.tracing import table

        reports = {role: member.last_reports for role, member in members.items()}
        profiles = {role: reported["profile"] for role, reported in reports.items() if "profile" in reported}
        print(table(profiles), end="", file=sys.stderr)


def _members(
    options: argparse.Namespace,
    folder: str,
    addresses: Mapping[str, str],
    given: Mapping[str, Mapping[str, Any]],
    work: Path,
) -> dict[str, Member]:
    """The processes of all machines. `given`: options that take a file, with that of each machine (none: left out)."""
    from pstranspile.cluster.net.supervisor import Member, command_of

    shared = _shared_options(options, work)
    logs = Path(options.logs) if options.logs else work / "logs"
    members: dict[str, Member] = {}
    for name in addresses:
        own = [part for option, files in given.items() if files for part in (option, str(files[name]))]
        members[name] = Member(name, command_of(name, folder, addresses, [*own, *shared]), logs / f"{name}.log")
    return members


def _shared_options(options: argparse.Namespace, work: Path) -> list[str]:
    """The options that all processes are given; makes the folder for their state."""
    arguments = forwarded_options(options)
    state = options.state or (str(work / "state") if options.restarts else "")
    if state:
        Path(state).mkdir(parents=True, exist_ok=True)
        arguments += ["--state", state]
    if options.checkpoint_every:
        arguments += ["--parts", str(work), "--parts-every", str(options.checkpoint_every)]
    given_on = ("steps", "init", "seed", "push_every", "threads", "arithmetic", "table_folder", "table_memory")
    for name in (*given_on, "state_every", "saves", "lease", "patience"):
        value = getattr(options, name)
        if value is not None:
            path = name in ("init", "table_folder", "saves")
            arguments += [f"--{name.replace('_', '-')}", os.path.abspath(value) if path else str(value)]
    arguments += ["--profile"] if options.profile else []
    return [*arguments, *(part for name in options.fetch for part in ("--fetch", name))]
