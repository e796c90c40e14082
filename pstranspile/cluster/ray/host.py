"""The actor that hosts one machine of a job: it plays the machine, reports on it, and gives what the machine leaves."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pstranspile.cluster.data.source import Data
from pstranspile.cluster.machines.snapshots import read_snapshot
from pstranspile.cluster.machines.trainer import Trainer
from pstranspile.cluster.net.job import load_job_folder
from pstranspile.cluster.net.parts import part_file, read_part, write_part
from pstranspile.cluster.net.play import is_server, play
from pstranspile.cluster.net.process import Place
from pstranspile.cluster.net.status import StatusPipe
from pstranspile.cluster.net.supervisor import Ports
from pstranspile.cluster.net.terms import Refused, Terms
from pstranspile.cluster.net.tls import read_credentials
from pstranspile.cluster.ray.moves import Kept, together
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError
from pstranspile.runtime.arithmetic import arithmetic
from pstranspile.runtime.large.folder import rows_on_disk


class Part(NamedTuple):
    """What a host is to play, beside the programs, the data and the initial values.

    `begin` is the machine's part of a checkpoint, empty for none, without what the host `keeps` of what was left there.
    """

    role: str
    addresses: Mapping[str, str]
    fetch: Sequence[str]
    seed: int | None
    steps: int
    token: str
    patience: float
    lease: float
    parts_every: int
    arithmetic: str
    begin: bytes
    keeps: Mapping[str, Kept] = {}
    tls: str = ""
    table_folder: str | None = None


class Left(NamedTuple):
    """What a machine leaves: its file, or the findings that ended it and its node, or why another did not let it take
    part.
    """

    file: bytes = b""
    problems: tuple[Diagnostic, ...] = ()
    node: str = ""
    refused: str = ""


class Reports(StatusPipe):
    """Keeps the reports of a machine until somebody asks for them.

    Steps are no reason to answer who asks: an answer for each would cost more than the steps.
    """

    def __init__(self) -> None:
        super().__init__()
        self._reports: list[dict[str, Any]] = []
        self._urgent = False
        self._some = threading.Condition()

    def __call__(self, **fields: Any) -> None:
        """Keeps one message, from any thread."""
        with self._some:
            self._reports.append(fields)
            if "step" not in fields:
                self._urgent = True
                self._some.notify()

    def take(self, timeout: float) -> list[dict[str, Any]]:
        """The reports since the last call; waits for one that is no step."""
        with self._some:
            self._some.wait_for(lambda: self._urgent, timeout)
            reports, self._reports, self._urgent = self._reports, [], False
        return reports


class Host:
    """Hosts a machine. Its methods are called through Ray, several at a time."""

    def __init__(self) -> None:
        self._work = tempfile.TemporaryDirectory(prefix="pstranspile-host-")
        self._report = Reports()
        self._ports: Ports | None = None
        self._lock = threading.Lock()
        self._done = 0
        self._until: int | None = None
        self._results: list[Any] = []
        self._parts = Path(self._work.name)
        self._left: Path | None = None
        """What the machine has left that ended here last."""

    def address(self) -> str:
        """The address at which the next machine of this host will listen: the node's IP address and a free port."""
        self._forget_port()
        self._ports = Ports(1, self._node())
        return self._ports.addresses[0]

    def _node(self) -> str:
        import ray.util

        return ray.util.get_node_ip_address()

    def _forget_port(self) -> None:
        if self._ports is not None:
            self._ports.close()

    def play(self, part: Part, programs: Mapping[str, bytes], feeds: Any, init: Mapping[str, Any]) -> Left:
        """Plays a machine to its end, and gives what it leaves."""
        try:
            return Left(self._play(part, programs, feeds, init))
        except DiagnosticError as problem:
            return Left(problems=tuple(problem.diagnostics), node=f"the node {self._node()}")
        except Refused as problem:
            return Left(refused=f"{part.role}: {problem}")

    def _play(self, part: Part, programs: Mapping[str, bytes], feeds: Any, init: Mapping[str, Any]) -> bytes:
        """Plays a machine to its end, and gives the file that it leaves. Raises DiagnosticError, Refused."""
        folder = Path(tempfile.mkdtemp(dir=self._work.name))
        for name, data in programs.items():
            (folder / name).write_bytes(data)
        job = load_job_folder(folder)
        begin = ""
        if part.begin:
            begin = str(folder / "begin")
            Path(begin).write_bytes(part.begin)
            self._complete(part, Path(begin))
        self._left = None
        with self._lock:
            self._done, self._until, self._results = 0, None, []
        credentials = read_credentials(part.tls) if part.tls else None
        with arithmetic(part.arithmetic), rows_on_disk(part.table_folder):
            cluster = job.cluster(fetch=part.fetch, seed=part.seed, init=init)
            if not is_server(cluster, part.role):
                cluster.feed(feeds)
            if isinstance(cluster.source, Data):
                cluster.source.on_bad = lambda row: self._report(left_out=row)
            place = Place(
                part.addresses,
                patience=part.patience,
                credentials=credentials,
                begin=begin,
                parts=str(folder),
                parts_every=part.parts_every,
            )
            self._parts = folder
            terms = Terms(job.hash, part.token, part.lease)
            result = str(folder / "result")
            where = f"{part.role} is at {part.addresses[part.role]}, process {os.getpid()}"
            print(where, file=sys.stderr, flush=True)  # Ray prints it in the process that launches
            play(cluster, part.role, terms, place, part.steps, self._report, result, self._stepped)
        self._forget_port()
        self._left = Path(result)
        return self._left.read_bytes()

    def _complete(self, part: Part, file: Path) -> None:
        """Adds to the part in a file what the machine has left here. Raises DiagnosticError, Refused."""
        if not part.keeps:
            return
        if self._left is None:
            raise Refused("its host has no longer what the machine left")
        left = read_snapshot(self._left, part.role).values
        try:
            write_part(file, part.role, together(read_part(file, part.role), part.keeps, left))
        except LookupError as problem:
            raise Refused(f"the machine has left no {problem}") from None

    def _stepped(self, trainer: Trainer) -> None:
        """A trainer has done a step."""
        with self._lock:
            self._done = trainer.step
            self._results.append(trainer.results[-1])
            if self._until is not None:
                trainer.limit = min(trainer.limit, self._until)

    def done(self) -> int:
        """How many steps the trainer has done."""
        with self._lock:
            return self._done

    def hold(self, step: int) -> bool:
        """Has the trainer end after so many steps. Gives whether it will: it has not done as many."""
        with self._lock:
            if self._done >= step:
                return False
            self._until = step
            return True

    def reports(self, timeout: float) -> list[dict[str, Any]]:
        """What the machine has reported since the last call."""
        return self._report.take(timeout)

    def part(self, role: str, step: int) -> bytes:
        """The machine's part of a checkpoint, which it has reported as saved."""
        file = part_file(self._parts, role, step)
        data = file.read_bytes()
        file.unlink()
        return data

    def results(self) -> list[Any]:
        """What a trainer has fetched since this was asked last."""
        with self._lock:
            results, self._results = self._results, []
        return results
