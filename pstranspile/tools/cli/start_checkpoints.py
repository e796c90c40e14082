"""Checkpoints of servers in `pstranspile start`. They need the job, of which the folder has only the programs."""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import Location
from pstranspile.tools.cli.common import add_checkpoints, check_checkpoints, load_input

if TYPE_CHECKING:
    from pstranspile.cluster.net.job import JobFolder
    from pstranspile.cluster.net.server_checkpoints import CheckpointPlan

_PLAN = "plan.json"
_SETTINGS = ("slice_var_up", "min_block_size", "split_method")
"""Settings of a job that its plan contains."""


def add_server_checkpoints(parser: argparse.ArgumentParser) -> None:
    """The options of a server of Fluid's trainers that leaves checkpoints, or goes on from one."""
    add_checkpoints(parser)
    group = parser.add_argument_group("the job that checkpoints are of")
    group.add_argument("--program", metavar="INPUT", help="the program that the job was compiled from")
    group.add_argument("--startup", metavar="FILE", help="its start-up program, if INPUT is a main.pb")
    group.add_argument(
        "--config", metavar="JOB", help="the job file, if there is more to the job than DIR/plan.json says, or no plan"
    )


def check_server_checkpoints(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the command if options about checkpoints don't fit together."""
    check_checkpoints(parser, options)
    wanted = options.checkpoint or options.resume
    if wanted and not options.fluid:
        parser.error("--checkpoint and --resume are for servers with --fluid; `launch` has them for all machines")
    if wanted and not options.program:
        parser.error("--checkpoint and --resume need --program, the program that the job was compiled from")


def checkpoints_of(options: argparse.Namespace, folder: JobFolder) -> CheckpointPlan | None:
    """What checkpoints a server is to leave, and to begin with; None for none. Raises DiagnosticError."""
    if not (options.checkpoint or options.resume):
        return None
    from pstranspile.cluster.checkpoint.layout import layout_of
    from pstranspile.cluster.checkpoint.runs import Source
    from pstranspile.cluster.checkpoint.servers import of_servers, require_fits
    from pstranspile.cluster.net.server_checkpoints import CheckpointPlan
    from pstranspile.compiler.compile import prepare
    from pstranspile.compiler.job.file import load_job

    module = load_input(options.program, options.startup)
    job = load_job(options.config, _settings_in_plan(Path(options.folder, _PLAN), options.config))
    layout = of_servers(layout_of(prepare(module, job)))
    require_fits(layout, folder.roles, options.folder)
    settings = {"arithmetic": str(options.arithmetic)}
    if options.resume:
        with closing(Source(options.resume)) as source:
            source.require_settings(settings)
            source.require_seed(options.seed)
            options.seed = source.manifest.seed
    return CheckpointPlan(
        layout, options.checkpoint or "", options.checkpoint_every or 0, options.resume or "", settings
    )


def _settings_in_plan(plan: Path, config: str | None) -> dict[str, Any]:
    """The job as the plan of a folder has it. Its settings are left out where there is a job file."""
    if not plan.is_file():
        if config:
            return {}
        message = "there is no plan.json, which `compile -o` writes; --config JOB has to say which job it is"
        raise DiagnosticError([error("checkpoint-model", message, Location(str(plan.parent)))])
    held: dict[str, Any] = json.loads(plan.read_bytes())
    settings: Any = held.get("settings", {}) if config is None else {}
    if not isinstance(settings, dict):
        message = "what it says of the job's settings is damaged; --config JOB has to say which job it is"
        raise DiagnosticError([error("checkpoint-model", message, Location(str(plan)))])
    machines = {key: held[key] for key in ("pservers", "trainers", "mode")}
    return {**machines, **{key: settings[key] for key in _SETTINGS if key in settings}}
