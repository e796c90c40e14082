"""`pstranspile launch --on ray`: a job on a cluster of Ray's."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from typing import TYPE_CHECKING, Any

from pstranspile.cluster.net.status import WATCHED
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import MAIN
from pstranspile.ir.patterns import Pattern
from pstranspile.tools.cli.blas import VARIABLES
from pstranspile.tools.cli.common import (
    arithmetic_of,
    begun_on_machines,
    check_checkpoints,
    cpus,
    files_read,
    load_compiled,
)
from pstranspile.tools.cli.feed import read_feed, require_fed_inputs
from pstranspile.tools.cli.launch_view import View
from pstranspile.tools.cli.progress import RunCheckpoints
from pstranspile.tools.cli.report import quoting, report, use_colour
from pstranspile.tools.cli.written_files import saved_arrays_text, telling

if TYPE_CHECKING:
    from pstranspile.cluster.machines.feeding import ReportedShares
    from pstranspile.cluster.ray.session import Session
    from pstranspile.compiler.compile import Compiled
    from pstranspile.runtime.run.files import ArrayFile
    from pstranspile.runtime.run.step_feeds import RowSource
    from pstranspile.tools.cli.live_views import LiveView

_OF_PROCESSES = {
    "record": None, "logs": None, "push_every": None, "state": None, "saves": None, "state_every": 20, "lease": 30.0,
    "trace": None, "chart": None, "traffic": False, "profile": False, "pace": None,
}  # fmt: skip
"""Options that only processes on this host have, and what they are where they are not given."""

_RANGE = Pattern(r"([1-9][0-9]{0,5})\.\.([1-9][0-9]{0,5})")


class _ShownMachine:
    """A machine as the view shows it."""

    def __init__(self, role: str):
        self.role = role
        self.last_reports: dict[str, Any] = {}
        self.starts = 0
        self.exit_status: int | None = None

    def start(self) -> None:
        """It starts, perhaps not for the first time."""
        self.starts += 1


def add_ray(parser: argparse.ArgumentParser) -> None:
    """`--on`, and the options of machines on Ray."""
    parser.add_argument(
        "--on",
        default="local",
        metavar="local|ray[://ADDRESS]",
        help="where: processes on this host (default), or actors on a cluster of Ray's, at ADDRESS or the one that "
        "RAY_ADDRESS or this host has; there --trainers 2..8 has as many take part as the cluster has room for, and "
        "--pservers 1..4 has servers grow and shrink with them",
    )
    parser.add_argument(
        "--cpus",
        type=cpus,
        metavar="N",
        help="on Ray: the CPUs of each machine (default: 1, or equal shares of what the cluster has, if that is less)",
    )
    parser.add_argument(
        "--tls",
        metavar="DIR",
        help="on Ray: machines talk with certificates, which DIR holds on every node: ca.crt, tls.crt and tls.key",
    )


def check_local(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the command for options of machines on Ray where processes are to run on this host."""
    for name in ("cpus", "tls"):
        if getattr(options, name) is not None:
            parser.error(f"--{name} is for machines on Ray; give --on ray")
    for name in ("pservers", "trainers"):
        if ".." in (getattr(options, name) or ""):
            parser.error(f"--{name} {getattr(options, name)}: jobs that grow and shrink run on Ray; give --on ray")


def launch_on_ray(parser: argparse.ArgumentParser, options: argparse.Namespace, keeping: RunCheckpoints) -> int:
    """Runs the job. Raises DiagnosticError."""
    from pstranspile.cluster.ray.launch import require_ray
    from pstranspile.runtime.files.outputs import require_writable

    address = _address(parser, options.on)
    trainers, servers = _machine_ranges(parser, options)
    if options.save:
        require_writable(options.save, files_read(options), "npz")
    chosen_arithmetic = arithmetic_of(options)
    compiled = load_compiled(options)
    fetches = _fetches(options, compiled)
    feeds = read_feed(options, {MAIN: compiled.source.main}, compiled.source)
    from pstranspile.cluster.data.source import Data
    from pstranspile.runtime.run.step_feeds import RowSource

    _require_steps(options, compiled, feeds)
    if isinstance(feeds, Data):
        feeds.require(compiled.trainer(0).main)
    elif not isinstance(feeds, RowSource):
        require_fed_inputs(options, compiled, [compiled.trainer(0)], feeds)
    source = compiled.source
    init = begun_on_machines(
        options.init, compiled.trainer(0), source, start=source.start, resumed=bool(options.resume)
    )
    require_ray()
    _have_ray_print_plainly()
    from pstranspile.cluster.machines.feeding import ReportedShares, meeting_of

    view, machines, at_end = _view(options), dict[str, _ShownMachine](), ExitStack()
    shares = ReportedShares(meeting_of(compiled.plan.mode))
    from pstranspile.cluster.ray import launch

    try:
        if not options.live:
            at_end.enter_context(redirect_stdout(sys.stderr))  # Ray's lines; the view keeps its stream
        if options.metrics:
            from pstranspile.cluster.net.metrics import Metrics, ProcessReports

            metrics = Metrics(
                options.metrics,
                lambda: [ProcessReports(m.role, True, m.starts, m.last_reports) for m in [*machines.values()]],
            )
            at_end.callback(metrics.close)
        keeping.begin_steps(steps_left=False)  # that is known once the job has its steps
        done = launch(
            compiled,
            feeds,
            steps=options.steps,
            fetch=fetches,
            init=None if options.resume else init,  # the checkpoint has all values
            seed=options.seed,
            address=address,
            cpus=options.cpus,
            trainers=trainers,
            servers=servers,
            restarts=10 if options.restarts is None else options.restarts,
            checkpoint=options.checkpoint,
            checkpoint_every=options.checkpoint_every,
            resume=options.resume,
            patience=options.patience,
            arithmetic=chosen_arithmetic,
            tls=options.tls or "",
            table_folder=options.table_folder,
            table_memory=options.table_memory,
            environment=_environment(options),
            prepare=lambda session: _watch(session, view, machines, shares, keeping),
        )
    except DiagnosticError as problem:
        from pstranspile.cluster.net.findings import of_hosts

        with quoting(source.source):
            raise DiagnosticError(of_hosts(problem.diagnostics, compiled.roles())) from problem
    finally:
        at_end.close()
        view.end()
        report(shares.warnings())
        report(feeds.warnings() if isinstance(feeds, RowSource) else ())
    if options.save:
        from pstranspile.runtime.run.files import write_arrays

        made = done.arrays()
        with telling(options.save, saved_arrays_text(made)):
            write_arrays(options.save, made)
    return 0


def _have_ray_print_plainly() -> None:
    """Has Ray print every line of its processes, as it is, and in colours only on a terminal. It reads these names when
    it is imported, and when it prints.
    """
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    if not use_colour():
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")


def _machine_ranges(
    parser: argparse.ArgumentParser, options: argparse.Namespace
) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """The ranges of trainers and servers. Ends the command for options that don't go together."""
    for name, usual in _OF_PROCESSES.items():
        if getattr(options, name) != usual:
            parser.error(f"--{name.replace('_', '-')} is for processes on this host, not for machines on Ray")
    check_checkpoints(parser, options)
    if os.path.isdir(options.input):
        parser.error("machines on Ray need the program and the job's options in place of a folder")
    trainers, servers = _range(parser, options, "trainers"), _range(parser, options, "pservers")
    if servers and not trainers:
        parser.error("--pservers FEWEST..MOST needs --trainers FEWEST..MOST, since servers grow with trainers")
    if options.plan and trainers:
        parser.error("--plan is for a job whose machines stay as many as the plan says, not for FEWEST..MOST")
    return trainers, servers


def _address(parser: argparse.ArgumentParser, given: str) -> str | None:
    """The address of the cluster for Ray; None for the running one."""
    if given == "ray":
        return None
    if not given.startswith("ray://") or given == "ray://":
        parser.error(f"--on {given}: give local, ray, or ray://HOST:PORT")
    return given


def _range(parser: argparse.ArgumentParser, options: argparse.Namespace, name: str) -> tuple[int, int] | None:
    """The fewest and the most of `--trainers 2..8`, of which the job begins with the fewest; None for one number."""
    text: str = getattr(options, name) or ""
    if ".." not in text:
        return None
    match = _RANGE.fullmatch(text)
    if match is None:
        parser.error(f"--{name} {text}: give the fewest and the most as 2..8, from 1 on")
    least, most = int(match[1]), int(match[2])
    if least > most:
        parser.error(f"--{name} {text}: the first number is the larger one")
    setattr(options, name, match[1])
    return least, most


def _fetches(options: argparse.Namespace, job: Compiled) -> Sequence[str]:
    from pstranspile.tools.cli.turns import require_fetches, usual_fetches

    require_fetches(job.trainer(0).main, options.fetch, job.source.main)
    return options.fetch or list(usual_fetches(job.trainer(0).main))


def _require_steps(options: argparse.Namespace, job: Compiled, feeds: ArrayFile | RowSource | None) -> None:
    """Raises DiagnosticError if less is fed than the steps that are asked for need."""
    from pstranspile.cluster.machines.feeding import PlannedRuns, feeds_of, require_fed

    if options.steps and feeds is not None:
        trainers = [PlannedRuns({MAIN: job.trainer(0).main}, None)] * job.plan.trainers
        require_fed(feeds, trainers, feeds_of(feeds, trainers)[1], options.steps)


def _environment(options: argparse.Namespace) -> dict[str, str]:
    """The environment of the machines' processes: threads of matrix products, and whether they are watched."""
    result: dict[str, str] = {WATCHED: "1"} if options.live else {}
    if options.threads:
        result.update((name, str(options.threads)) for name in VARIABLES)
    kernels = os.environ.get("OPENBLAS_CORETYPE", "")
    return {**result, "OPENBLAS_CORETYPE": kernels} if options.arithmetic == "fluid" and kernels else result


def _view(options: argparse.Namespace) -> View | LiveView:
    """What shows the machines at work."""
    if not options.live:
        return View({}, (), options.steps or 1)
    from pstranspile.tools.cli.live_views import LiveView

    return LiveView({}, options.steps or 1)


def _watch(
    session: Session,
    view: View | LiveView,
    machines: dict[str, _ShownMachine],
    shares: ReportedShares,
    keeping: RunCheckpoints,
) -> None:
    """Shows the reports of the machines of a session, and notes the trainers' shares of batches."""
    from pstranspile.cluster.ray.session import SessionListener

    class MachineDisplay(SessionListener):
        """Shows the machines as they start and report."""

        def machines_started(self, roles: Sequence[str]) -> None:
            """The machines with these roles start, perhaps not for the first time."""
            if not machines:
                keeping.begin_steps(steps_left=session.cuts.first_step < session.steps)
            for role in [known for known in machines if known not in roles]:
                del machines[role]
            for role in sorted(roles):
                machines.setdefault(role, _ShownMachine(role)).start()
            view.begin(machines, session.steps)
            view.look()

        def machine_reported(self, role: str, fields: Mapping[str, Any]) -> None:
            """A machine reports something."""
            machines[role].last_reports.update(fields)
            view.update(machines[role], fields)
            shares.take(role, fields)
            view.look()

    session.listen(MachineDisplay())
