"""Writing down what the machines of a process do, so that a simulation can do the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

from pstranspile.net.site import Site
from pstranspile.run.cluster.network import Machine
from pstranspile.run.cluster.record import Turn, line_of, taken_of


class Recording:
    """Writes every turn of the process's machines to a file, as it is taken; to be made before the first turn."""

    def __init__(self, site: Site, path: str):
        self._file: TextIO = open(path, "w", encoding="utf-8")  # noqa: SIM115 (closed by `close`)
        for name in site.own:
            machine = site.cluster.machines[name]
            machine.turn = self._recorded(machine, machine.turn)

    def _recorded(self, machine: Machine, turn: Callable[[], object]) -> Callable[[], None]:
        def recorded() -> None:
            self._file.write(line_of(Turn(machine.name, tuple(map(taken_of, machine.inbox)))))
            turn()

        return recorded

    def end(self, machine: Machine) -> None:
        """The trainer is told that there is no more to do."""
        self._file.write(line_of(Turn(machine.name, None)))

    def close(self) -> None:
        """Nothing more is written."""
        self._file.close()
