"""Fluid's `communicator`. What it does is part of a trainer here; it tells whether a trainer uses one."""

from __future__ import annotations

from typing import Any


class Communicator:
    """Carries gradients of a trainer whose program leaves that to it, from the start-up program on until the end."""

    def __init__(self, program: Any, mode: Any, kwargs: Any = None, envs: Any = None):
        self._program = program
        self._running = False

    def start(self) -> None:
        """Says that gradients are carried from now on."""
        self._running = True

    def stop(self) -> None:
        """Waits until all that was sent has come; the trainer leaves."""
        self._running = False
        machine = getattr(self._program, "machine", None)
        if machine is not None:
            machine.leave()

    def is_running(self) -> bool:
        """Whether it was started, and not stopped."""
        return self._running
