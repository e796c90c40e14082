"""`pstranspile launch --on ray`: a job on a cluster of Ray's."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pstranspile.cli.blas import VARIABLES
from pstranspile.cli.common import check_checkpoints, load_compiled, uses_fluid_arithmetic
from pstranspile.cli.feed import read_feed
from pstranspile.cli.launch_view import View
from pstranspile.cli.report import report
from pstranspile.net.status import WATCHED

if TYPE_CHECKING:
    from pstranspile.cli.live_views import LiveView
    from pstranspile.compile import Compiled
    from pstranspile.ray.session import Session

_OF_PROCESSES = {
    "record": None, "logs": None, "push_every": None, "state": None, "state_every": 20, "lease": 30.0, "trace": None,
    "chart": None, "traffic": False, "profile": False, "table_folder": None,
}  # fmt: skip
"""Options that only processes on this host have, and what they are where they are not given."""

_RANGE = re.compile(r"([1-9][0-9]{0,5})\.\.([1-9][0-9]{0,5})")


class _Machine:
    """A machine as the view shows it."""

    def __init__(self, role: str):
        self.role = role
        self.reported: dict[str, Any] = {}
        self.starts = 0
        self.ended: int | None = None


def launch_on_ray(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Runs the job. Raises DiagnosticError."""
    from pstranspile.interop.outputs import require_writable
    from pstranspile.ray.missing import require_ray

    address = _address(parser, options.on)
    for name, usual in _OF_PROCESSES.items():
        if getattr(options, name) != usual:
            parser.error(f"--{name.replace('_', '-')} is for processes on this host, not for machines on Ray")
    check_checkpoints(parser, options)
    if os.path.isdir(options.input):
        parser.error("machines on Ray need the program and the job's options in place of a folder")
    trainers = _range(parser, options)
    require_ray()
    if options.save:
        require_writable(options.save)
    as_fluid = uses_fluid_arithmetic(options)
    compiled = load_compiled(options)
    feeds = read_feed(options)
    view = _view(options)
    from pstranspile.data.source import Data
    from pstranspile.ray import launch
    from pstranspile.run.files import initial_values

    try:
        done = launch(
            compiled,
            feeds,
            steps=options.steps,
            fetch=_fetches(options, compiled),
            init=initial_values(options.init, compiled.source.main, compiled.source.startup),
            seed=_seed(options),
            address=address,
            cpus=options.cpus or 1.0,
            trainers=trainers,
            restarts=10 if options.restarts is None else options.restarts,
            checkpoint=options.checkpoint,
            checkpoint_every=options.checkpoint_every,
            resume=options.resume,
            patience=options.patience,
            as_fluid=as_fluid,
            environment=_environment(options),
            prepare=lambda session: _watch(session, view),
        )
    finally:
        view.end()
        report(feeds.warnings() if isinstance(feeds, Data) else ())
    if options.save:
        from pstranspile.run.files import write_arrays

        write_arrays(options.save, done.arrays())
    return 0


def _address(parser: argparse.ArgumentParser, given: str) -> str | None:
    """The address of the cluster for Ray; None for the running one."""
    if given == "ray":
        return None
    if not given.startswith("ray://") or given == "ray://":
        parser.error(f"--on {given}: give local, ray, or ray://HOST:PORT")
    return given


def _range(parser: argparse.ArgumentParser, options: argparse.Namespace) -> tuple[int, int] | None:
    """The fewest and the most trainers of `--trainers 2..8`, which then begin as the fewest; None for one number."""
    match = _RANGE.fullmatch(options.trainers or "")
    if match is None:
        return None
    least, most = int(match[1]), int(match[2])
    if least > most:
        parser.error(f"--trainers {options.trainers}: the first number is the larger one")
    options.trainers = str(least)
    return least, most


def _fetches(options: argparse.Namespace, job: Compiled) -> Sequence[str]:
    from pstranspile.cli.turns import loss_names

    return options.fetch or list(loss_names(job.trainer(0).main))


def _seed(options: argparse.Namespace) -> int | None:
    """The seed of random numbers: what is asked for, else that of the run that goes on."""
    if options.seed is not None or not options.resume:
        return options.seed
    from pstranspile.checkpoint.api import newest
    from pstranspile.checkpoint.store import read_manifest

    return read_manifest(newest(options.resume)).seed


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
    from pstranspile.cli.live_views import LiveView

    return LiveView({}, options.steps or 1)


def _watch(session: Session, view: View | LiveView) -> None:
    """Shows the reports of the machines of a session."""
    machines: dict[str, _Machine] = {}

    def begin(roles: Sequence[str]) -> None:
        for role in [known for known in machines if known not in roles]:
            del machines[role]
        for role in sorted(roles):
            machines.setdefault(role, _Machine(role)).starts += 1
        view.begin(machines, session.steps)
        view.look()

    def update(role: str, fields: Mapping[str, Any]) -> None:
        machines[role].reported.update(fields)
        view.update(machines[role], fields)
        view.look()

    session.on_begin, session.on_told = begin, update
