"""When data moves: one file per mode of distribution."""

from __future__ import annotations

from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.job import Job
from pstranspile.modes.asynchronous import Async
from pstranspile.modes.base import Mode
from pstranspile.modes.sync import Sync

MODES: dict[str, Mode] = {mode.name: mode for mode in (Sync(), Async())}
"""The modes whose servers hold and update the parameters, by name."""


def mode_of(job: Job) -> Mode:
    """The mode that a job asks for. Raises KeyError for a mode of another family."""
    mode = MODES[job.mode]
    if job.enable_dc_asgd:
        message = f"enable_dc_asgd is not supported by this version in mode {job.mode!r}"
        raise DiagnosticError([error("mode-unsupported", message, focus="enable_dc_asgd")])
    return mode
