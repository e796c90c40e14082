"""Writing down what the machines of a process do, so that a simulation can do the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

from pstranspile.cluster.machines.network import Machine
from pstranspile.cluster.machines.record import Turn, line_of, taken_of
from pstranspile.cluster.machines.trainer import Trainer
from pstranspile.cluster.net.site import Site


class Recording:
    """Writes every turn of the process's machines to a file, as it is taken; to be made before the first turn."""

    def __init__(self, site: Site, path: str):
        self._file: TextIO = open(path, "w", 1, encoding="utf-8")  # noqa: SIM115 (closed by `close`)
        # line by line, so that a process that is killed has written all its turns
        for name in site.own:
            machine = site.cluster.machines[name]
            machine.turn = self._recorded(machine, machine.turn)

    def _recorded(self, machine: Machine, turn: Callable[[], object]) -> Callable[[], None]:
        def recorded() -> None:
            taken = tuple(map(taken_of, machine.inbox))
            idle = isinstance(machine, Trainer) and machine.between_steps and not taken
            turn()
            if not (idle and isinstance(machine, Trainer) and machine.held):  # a turn that had to wait did nothing
                self._file.write(line_of(Turn(machine.name, taken)))

        return recorded

    def end(self, machine: Machine) -> None:
        """Records that the trainer's data have ended."""
        self._file.write(line_of(Turn(machine.name, None)))

    def close(self) -> None:
        """Nothing more is written."""
        self._file.close()
