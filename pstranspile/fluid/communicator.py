"""Fluid's `communicator`. What it does is part of a trainer here; it takes the settings, and ends the trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pstranspile.fluid.missing import names_of_fluid
from pstranspile.fluid.running.communicating import DistributedMode, default_flags, mode_of

_MODES = {number: name for name, number in vars(DistributedMode).items() if name.isupper()}
_OF_JOB = ("geo_trainer_nums", "geo_need_push_nums", "geo_send_varnames", "pserver_endpoints", "trainer_id")
"""Entries of `envs` that say again what the program was transpiled for."""


class Communicator:
    """Carries gradients of a trainer whose program leaves that to it, from the start-up program on until the end.

    `envs` are settings by Fluid's names, over those of the environment. `mode` and what `kwargs` gives must be what
    the program was transpiled for; without a mode it is that. Of a program that is no trainer's there is nothing to
    carry. Raises ValueError where they are not, and for unknown settings; NotHere.
    """

    def __init__(
        self,
        program: Any,
        mode: int | None = None,
        kwargs: Mapping[str, Any] | None = None,
        envs: Mapping[str, Any] | None = None,
    ):
        if mode is not None and mode not in _MODES:
            raise ValueError(f"the mode of a Communicator is one of DistributedMode, not {mode!r}")
        self._machine = getattr(program, "machine", None)
        self._running = False
        if self._machine is None:
            return
        job = self._machine.compiled.job
        if mode is not None and mode != mode_of(job):
            raise ValueError(f"the mode is {_MODES[mode]}, and the program is transpiled for {_MODES[mode_of(job)]}")
        pushes = (kwargs or {}).get("push_nums")
        if pushes is not None and job is not None and int(pushes) != job.geo_sgd_need_push_nums:
            raise ValueError(f"push_nums is {pushes}, and the program is transpiled for {job.geo_sgd_need_push_nums}")
        given = {name: value for name, value in (envs or {}).items() if name not in _OF_JOB}
        self._machine.configure({**default_flags(), **given})

    def start(self) -> None:
        """Says that gradients are carried from now on."""
        self._running = True

    def stop(self) -> None:
        """Waits until all that was sent has come; the trainer leaves."""
        self._running = False
        if self._machine is not None:
            self._machine.leave()

    def is_running(self) -> bool:
        """Whether it was started, and not stopped."""
        return self._running


__getattr__ = names_of_fluid(__name__, globals())
