"""A job on Ray's cluster, as who launched it sees it: begun, listened to, begun again from a cut."""

from __future__ import annotations

import secrets
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError

from pstranspile.compile import Compiled, compile
from pstranspile.data.source import Data
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.net.job import JobFolder, load_job_folder
from pstranspile.net.outcome import gather
from pstranspile.ray.cuts import Cuts
from pstranspile.ray.host import Left, Part
from pstranspile.ray.hosts import HeadGone, Hosts, Lost, first_line, got
from pstranspile.ray.programs import programs_of, resized
from pstranspile.run.cluster.simulate import Simulated, results_of
from pstranspile.run.row_source import LeftOut

NEWS = 0.25
"""Seconds between two questions of how a machine goes."""

LEASE = 3600.0
"""Seconds after which machines give each other up: longer than Ray takes to notice that one is gone."""

AHEAD = 1.0
"""Seconds before it ends that a trainer is told that it will."""


class Settings(NamedTuple):
    """How a job is run.

    `steps` None: as many as are fed. `trainers` are the fewest and the most of a job that grows and shrinks (None: as
    many as the job has). `restarts`: how often it begins again from its last cut when a machine is gone.
    """

    steps: int | None
    fetch: Sequence[str]
    seed: int | None
    restarts: int
    patience: float
    as_fluid: bool
    trainers: tuple[int, int] | None = None


class Session:
    """A job that runs. `on_told` is handed what machines tell, `on_begin` the roles whenever it begins."""

    def __init__(
        self, job: Compiled, feeds: Any, init: Mapping[str, Any], settings: Settings, hosts: Hosts, cuts: Cuts
    ):
        self.job, self.feeds, self.init, self.settings = job, feeds, init, settings
        self.hosts, self.cuts = hosts, cuts
        self.on_told: Callable[[str, Mapping[str, Any]], object] | None = None
        self.on_begin: Callable[[Sequence[str]], object] | None = None
        self.seed = settings.seed
        self.steps = 0
        self.failures = 0
        self._token = secrets.token_hex(16)
        self._at: dict[str, int] = {}
        """How many steps each machine has told of."""
        self._first, self._begun = 0, 0.0
        """The first step that was told of since the job began last, and when."""
        self._wanted: tuple[int, int] | None = None
        self._until: int | None = None
        """The step after which the trainers end, so that others take part."""

    def resize(self, trainers: int | None = None, servers: int | None = None) -> None:
        """Has so many trainers and servers take part, as soon as can be: between two steps."""
        plan = self.job.plan
        self._wanted = (trainers or plan.trainers, servers or len(plan.pservers))

    def run(self) -> Simulated:
        """Runs the job to its end. Raises DiagnosticError."""
        try:
            while True:
                try:
                    files = self._play()
                except Lost as problem:
                    self._go_back(problem)
                    continue
                if self._until is None:
                    return self._ended(files)
                self._change(files)
        except HeadGone as problem:
            self.hosts.forget()
            raise self._gone(str(problem)) from None
        finally:
            self.hosts.close()

    # one begin of the job

    def _play(self) -> dict[str, bytes]:
        """Plays the job from its last cut until all machines have ended; gives what they leave. Raises Lost."""
        programs = programs_of(self.job)
        folder = _loaded(programs)
        self.seed = folder.cluster(seed=self.seed).seed
        begin, feeds = self.cuts.begin(self.job, self.seed, self.feeds)
        if self.cuts.keeps:
            print("pstranspile launch: servers are sent {} of {} bytes".format(*self.cuts.moved), file=sys.stderr)
        self._until, self._at = None, {}
        addresses = self.hosts.require(sorted(folder.roles, key=lambda role: (not role.startswith("pserver"), role)))
        cluster = folder.cluster(fetch=self.settings.fetch, seed=self.seed)
        cluster.require_sound()
        cluster.feed(feeds)
        self.steps = self.settings.steps or cluster.steps or 1
        if self.on_begin is not None:
            self.on_begin(list(folder.roles))
        shared = [ray.put(value) for value in (programs, feeds, self.init)]
        playing: dict[Any, str] = {}
        for role in addresses:
            part = self._part(role, addresses, begin.get(role, b""))
            playing[self.hosts.actors[role].play.remote(part, *shared)] = role
        return self._listen(playing)

    def _part(self, role: str, addresses: Mapping[str, str], begin: bytes) -> Part:
        settings = self.settings
        return Part(
            role,
            addresses,
            tuple(settings.fetch),
            self.seed,
            self.steps,
            self._token,
            settings.patience,
            LEASE,
            self.cuts.every or 0,
            settings.as_fluid,
            begin,
            self.cuts.keeps.get(role, {}),
        )

    def _listen(self, playing: dict[Any, str]) -> dict[str, bytes]:
        """Listens to the machines until all have ended. Raises Lost."""
        files: dict[str, bytes] = {}
        news = {self.hosts.actors[role].news.remote(NEWS): role for role in playing.values()}
        try:
            while playing or news:
                done, _ = ray.wait([*playing, *news], timeout=1.0)
                for ref in done:
                    if ref in playing:
                        role = playing.pop(ref)
                        files[role] = _file_of(got(role, ref))
                        continue
                    role = news.pop(ref)
                    told = got(role, ref)
                    for fields in told:
                        self._heard(role, fields)
                    if told or role not in files:
                        news[self.hosts.actors[role].news.remote(0.0 if role in files else NEWS)] = role
                self._make_room(files)
        except RayError as problem:
            raise self._gone(f"the cluster is gone: {first_line(problem)}") from None
        return files

    def _gone(self, why: str) -> DiagnosticError:
        """The job can't go on; what is kept of it is named."""
        source = self.cuts.source if self.cuts.at_end or self.cuts.source != self.cuts.target else None
        left = f"; --resume {source} goes on from the last checkpoint" if source else ""
        return DiagnosticError([error("ray-lost", why + left)])

    def _heard(self, role: str, fields: Mapping[str, Any]) -> None:
        """A machine has told something."""
        if "step" in fields:
            if not self._at:
                self._first, self._begun = fields["step"], monotonic()
            self._at[role] = fields["step"]
        if "saved" in fields:
            self._take_part(role, fields["saved"])
        if "left_out" in fields and isinstance(self.feeds, Data):
            self.feeds.left_out(LeftOut(*fields["left_out"]))
        if self.on_told is not None:
            self.on_told(role, fields)

    def _take_part(self, role: str, step: int) -> None:
        """Takes over a machine's part of a cut."""
        actor = self.hosts.actors[role]
        results: list[Any] = got(role, actor.results.remote()) if role.startswith("trainer") else []
        self.cuts.saved(self.seed, role, step, got(role, actor.part.remote(role, step)), results)

    # other machines

    def _make_room(self, ended: Mapping[str, bytes]) -> None:
        """Has the trainers end soon if others are to take part. Raises Lost if one of them is past that."""
        trainers = [role for role in self.hosts.actors if role.startswith("trainer")]
        at = [self._at.get(role, 0) for role in trainers]
        if self._until is not None or ended or not all(at):
            return
        if self._wanted is None and self.settings.trainers is not None:
            self._grow(len(trainers))
        plan = self.job.plan
        if self._wanted in (None, (plan.trainers, len(plan.pservers))):
            return
        now = [got(role, self.hosts.actors[role].done.remote()) for role in trainers]
        rate = (max(now) - self._first) / max(monotonic() - self._begun, 1e-3)
        until = max(now) + max(int(rate * AHEAD), 3)
        if until >= self.steps:
            return
        asked = {role: self.hosts.actors[role].hold.remote(until) for role in trainers}
        held = [got(role, ref) for role, ref in asked.items()]
        if not all(held):
            raise Lost("a trainer went on past the step in which others were to take part")
        self._until = until

    def _grow(self, trainers: int) -> None:
        """Asks for as many trainers as there is room for."""
        assert self.settings.trainers is not None
        more = min(self.settings.trainers[1] - trainers, self.hosts.room())
        if more > 0:
            self.resize(trainers + more)

    def _change(self, files: Mapping[str, bytes]) -> None:
        """Goes on with other machines, from where all have ended."""
        assert self._until is not None
        assert self._wanted is not None
        self._remember(files)
        self.cuts.end(self.seed, self._paths(files), self._until)
        self.job, self._wanted = compile(self.job.source, resized(self.job, *self._wanted)), None
        plan = self.job.plan
        servers = f" and {len(plan.pservers)} servers" if plan.pservers else ""
        print(f"pstranspile launch: step {self._until}: {plan.trainers} trainers{servers} take part", file=sys.stderr)

    def _go_back(self, problem: Lost) -> None:
        """Begins again from the last cut, in new processes. Raises DiagnosticError if it was often enough."""
        self.failures += 1
        if self.failures > self.settings.restarts:
            raise self._gone(str(problem))
        plan = self.job.plan
        if self.settings.trainers is not None:
            least, most = self.settings.trainers
            fitting = max(least, min(most, self.hosts.most() - len(plan.pservers)))
            if fitting < plan.trainers:
                self._wanted = (fitting, len(plan.pservers))
        if self._wanted is not None:
            self.job, self._wanted = compile(self.job.source, resized(self.job, *self._wanted)), None
        where = "its last cut" if self.cuts.source else "its beginning"
        print(f"pstranspile launch: {problem}; the job goes back to {where}", file=sys.stderr)
        self.hosts.restart()

    # the end

    def _paths(self, files: Mapping[str, bytes]) -> dict[str, str]:
        paths = {role: self.cuts.work / f"{role}.result" for role in files}
        for role, path in paths.items():
            path.write_bytes(files[role])
        return {role: str(path) for role, path in paths.items()}

    def _gathered(self, files: Mapping[str, bytes]) -> Simulated:
        folder = _loaded(programs_of(self.job))
        return gather(folder.cluster(fetch=self.settings.fetch, seed=self.seed), self._paths(files))

    def _remember(self, files: Mapping[str, bytes]) -> Simulated:
        """What came of the machines, with all that the trainers have fetched."""
        done = self._gathered(files)
        for trainer in done.cluster.trainers:
            trainer.results = self.cuts.fetched(trainer.name, trainer.results)
        return done._replace(fetched=tuple(results_of(trainer) for trainer in done.cluster.trainers))

    def _ended(self, files: Mapping[str, bytes]) -> Simulated:
        done = self._remember(files)
        if self.cuts.at_end:
            self.cuts.end(self.seed, self._paths(files), self.steps)
        return done


def _file_of(left: Left) -> bytes:
    """The file that a machine has left. Raises DiagnosticError for what it was ended by, Lost if it was left alone."""
    if left.problems:
        raise DiagnosticError(left.problems)
    if left.refused:
        raise Lost(left.refused)
    return left.file


def _loaded(programs: Mapping[str, bytes]) -> JobFolder:
    with tempfile.TemporaryDirectory(prefix="pstranspile-") as folder:
        for name, data in programs.items():
            Path(folder, name).write_bytes(data)
        return load_job_folder(folder)
