"""The books of a synchronous job on Ray: what its trainers sent and its servers applied on the way to its end.

What was done after the cut that the job goes back to does not count.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pstranspile.cluster.ray.hosts import Host, HostTask, MachineEnd
from pstranspile.proof.faults import Entry, UpdateLedger
from tests.cluster.net.books import keep_books


class BookedHost(Host):
    """A host whose machine writes its books to a file in `folder`."""

    folder = ""

    def __init__(self) -> None:
        super().__init__()
        self._file = Path()
        keep_books(self._write)

    def _write(self, *fields: object) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(fields) + "\n")

    def play(self, part: HostTask, programs: Mapping[str, bytes], feeds: Any, init: Mapping[str, Any]) -> MachineEnd:
        """As every host does."""
        self._file = Path(self.folder, part.role)
        return super().play(part, programs, feeds, init)


class Books:
    """The books in a folder."""

    def __init__(self, folder: Path):
        folder.mkdir()
        self._folder = folder
        self.begun: list[int] = []
        """The steps that the job has begun with."""

    def host(self) -> type[Host]:
        """What hosts a machine, in a process that Ray starts."""
        return type("Booked", (BookedHost,), {"folder": str(self._folder)})

    def begin(self, step: int) -> None:
        """All machines begin with a step: what they did in it and later was in vain."""
        self.begun.append(step)
        for file in self._folder.iterdir():
            kept = [line for line in file.read_text().splitlines(keepends=True) if json.loads(line)[2] < step]
            file.write_text("".join(kept))

    def problems(self) -> list[str]:
        """What was lost, doubled or changed. Raises AssertionError if nothing was written down."""
        books = UpdateLedger()
        for file in self._folder.iterdir():
            for what, server, step, *fields in map(json.loads, file.read_text().splitlines()):
                if what == "applied":
                    assert (server, step) not in books.applied
                    books.applied[server, step] = [tuple(value) for value in fields[0]]
                elif what == "reported":
                    books.send_barriers.add((server, step, *fields))
                else:
                    trainer, variable, value = fields
                    entry = Entry(server, step, trainer, variable)
                    assert entry not in books.sent
                    books.sent[entry] = value
        assert books.applied
        assert books.send_barriers
        return books.problems()
