"""A job on Ray's cluster, seen from the launching process: it is started, watched, and restarted from a cut, also with
other numbers of machines.
"""

from __future__ import annotations

import secrets
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError

from pstranspile.cluster.data.loader import LoaderRows, OddBatch
from pstranspile.cluster.data.source import Data, NotFinite
from pstranspile.cluster.machines.simulate import Simulated, results_of
from pstranspile.cluster.net.job import JobFolder, load_job_folder
from pstranspile.cluster.net.parts import gather
from pstranspile.cluster.ray.cuts import Cuts
from pstranspile.cluster.ray.hosts import (
    LEAST_SILENCE,
    CutMissed,
    HeadGone,
    Hosts,
    HostTask,
    MachineAbandoned,
    MachineEnd,
    MachineLost,
    PlacementError,
    first_line,
    got,
    reason_of,
    require_head,
    silent,
    wait_for_result,
)
from pstranspile.compiler.compile import Compiled, compile, prepare
from pstranspile.compiler.job import Job
from pstranspile.compiler.plan.plan import plan_json
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Note, cluster_of, error, render, shell_word, visible
from pstranspile.ir.json_text import json_text
from pstranspile.ops.textual import print_module
from pstranspile.runtime.run.step_feeds import LeftOut, RowSource


def programs_of(job: Compiled) -> dict[str, bytes]:
    """The files of a compiled job by name, as `compile -o` writes them."""
    files = {f"{name}.ir": print_module(role.module).encode("utf-8") for name, role in job.roles().items()}
    plan = plan_json(job.plan, job.fingerprint, job.distributed_vars)
    return {**files, "plan.json": json_text(plan).encode("utf-8")}


def resized_job(job: Compiled, trainers: int, servers: int) -> Job:
    """The job with other numbers of machines. Raises DiagnosticError if the job names each trainer's endpoint, or its
    plan is not the job's own.
    """
    known = job.job
    if known is None or known.trainer_endpoints:
        raise DiagnosticError(
            [error("ray-resources", f"a job of mode {job.plan.mode} can't have other numbers of machines")]
        )
    if (trainers, servers) != (known.trainers, len(known.pservers)) and prepare(job.source, known).plan != job.plan:
        message = "the job has a plan of its own, which says where parameters lie for these numbers of machines alone"
        raise DiagnosticError([error("ray-resources", message)])
    endpoints = list(known.pservers[:servers])
    port = 6174
    while len(endpoints) < servers:
        if (name := f"127.0.0.1:{port}") not in endpoints:
            endpoints.append(name)
        port += 1
    return replace(known, pservers=tuple(endpoints), trainers=trainers)


POLL = 0.25
"""Seconds that a machine without a report lets a request wait."""

LEASE = 3600.0
"""Seconds after which machines give each other up: longer than Ray takes to notice that one is gone."""

AHEAD = 1.0
"""Seconds from the request that a trainer end until it ends."""

HEAD_LOOK = 5.0
"""Seconds between two looks at Ray's head, without which Ray's library ends this process after a minute."""

LOOK = 1.0
"""Seconds between two checks whether more machines have a place."""


class Settings(NamedTuple):
    """The settings of a run.

    `steps` None: as many as are fed. `trainers` are the fewest and the most trainers of a job that grows and shrinks
    (None: as many as the job has), `servers` the numbers of servers for these. `restarts`: how often the job may go
    back to its last cut when a machine is gone. `tls` and `table_folder` name folders on every node ("" and None:
    none); `table_memory` are the MB of memory that rows there take at most in each machine.
    """

    steps: int | None
    fetch: Sequence[str]
    seed: int | None
    restarts: int
    patience: float
    arithmetic: str
    trainers: tuple[int, int] | None = None
    servers: tuple[int, int] | None = None
    tls: str = ""
    table_folder: str | None = None
    table_memory: int | None = None

    def servers_of(self, trainers: int, now: int) -> int:
        """The number of servers for so many trainers; `now` is the present number."""
        if self.servers is None or self.trainers is None:
            return now
        fewest, most = self.servers
        return fewest + (trainers - self.trainers[0]) * (most - fewest) // max(self.trainers[1] - self.trainers[0], 1)

    def fitting(self, machines: int, now: int) -> tuple[int, int]:
        """The most trainers, with their servers, that are together at most `machines`; the fewest if there are no such
        numbers.
        """
        assert self.trainers is not None
        least, most = self.trainers
        pairs = [(trainers, self.servers_of(trainers, now)) for trainers in range(least, most + 1)]
        return next((pair for pair in reversed(pairs) if sum(pair) <= machines), pairs[0])


class SessionListener:
    """Notified of the course of a job; both methods may be overridden."""

    def machines_started(self, roles: Sequence[str]) -> None:
        """Called when the machines with these roles are started, perhaps not for the first time."""

    def machine_reported(self, role: str, fields: Mapping[str, Any]) -> None:
        """Called with the report of a machine: the `step` that it has done, the `values` that it has fetched, or its
        `state`.
        """


class Session:
    """A run of a job."""

    def __init__(
        self, job: Compiled, feeds: Any, init: Mapping[str, Any], settings: Settings, hosts: Hosts, cuts: Cuts
    ):
        self.job, self.feeds, self.init, self.settings = job, feeds, init, settings
        self.hosts, self.cuts = hosts, cuts
        self._listeners: list[SessionListener] = []
        self.seed = settings.seed
        self.steps = 0
        self.failures = 0
        self._token = secrets.token_hex(16)
        self._reported_steps: dict[str, int] = {}
        """The number of steps that each machine has reported."""
        self._first_step = 0
        """The first step that was reported since the job was last started."""

        self._start_time = 0.0
        """The time of the first report since the job was last started, in seconds of the monotonic clock."""
        self._requested_size: tuple[int, int] | None = None
        self._next_look, self._seconds_ahead, self._next_head_look = 0.0, AHEAD, 0.0
        self._unreached = False
        """Whether the machines did not reach each other when the job was last started. If it happens twice, it is no
        accident.
        """
        self._last_step: int | None = None
        """The step after which the trainers end, so that the numbers of machines can change; None if they don't."""

    def listen(self, listener: SessionListener) -> None:
        """Adds a listener for the course of the job."""
        self._listeners.append(listener)

    def resize(self, trainers: int | None = None, servers: int | None = None) -> None:
        """Requests other numbers of trainers and servers, which take part between two steps as soon as all have a
        place.

        Raises DiagnosticError for a job that can't have other numbers.
        """
        plan = self.job.plan
        wanted = trainers or plan.trainers, servers or len(plan.pservers)
        resized_job(self.job, *wanted)
        self._requested_size = wanted

    def run(self) -> Simulated:
        """Runs the job to its end. Raises DiagnosticError."""
        try:
            while True:
                try:
                    files = self._play()
                except MachineLost as problem:
                    self._go_back(problem)
                    continue
                except PlacementError as problem:
                    self._shrink(problem)
                    continue
                if self._last_step is None:
                    return self._finish_session(files)
                self._change(files)
        except HeadGone as problem:
            self.hosts.forget()
            raise self._ended_by(_lost_errors(str(problem))) from None
        except DiagnosticError as problem:
            raise self._ended_by(problem.diagnostics) from None
        except Exception as problem:
            if not self.hosts.cut_off(problem):
                raise
            self.hosts.forget()
            message = f"Ray's client has lost the cluster: {first_line(problem)}"
            raise self._ended_by(_lost_errors(message)) from None
        finally:
            self.hosts.close()

    # from one start to the end or the next start

    def _play(self) -> dict[str, bytes]:
        """Runs the job from its last cut until all machines have ended; returns the files that they leave. Raises
        Lost.
        """
        programs = programs_of(self.job)
        folder = _load_programs(programs)
        self.seed = folder.cluster(seed=self.seed).seed
        begin, feeds = self.cuts.begin(self.job, self.seed, self.feeds)
        if self.cuts.kept_values:
            print("pstranspile launch: servers are sent {} of {} bytes".format(*self.cuts.moved_bytes), file=sys.stderr)
        self._last_step, self._reported_steps = None, {}
        addresses = self.hosts.require(sorted(folder.roles, key=lambda role: (not role.startswith("pserver"), role)))
        cluster = folder.cluster(fetch=self.settings.fetch, seed=self.seed)
        cluster.require_sound()
        cluster.feed(feeds)
        self.steps = self.settings.steps or cluster.steps or 1
        for finding in self.cuts.resume_findings(self.steps, self.job.plan.mode, rows=isinstance(feeds, RowSource)):
            print(render([finding]), file=sys.stderr)
        for listener in self._listeners:
            listener.machines_started(list(folder.roles))
        shared = [ray.put(value) for value in (programs, feeds, self.init)]
        playing: dict[Any, str] = {}
        for role in addresses:
            part = self._part(role, addresses, begin.get(role, b""))
            playing[self.hosts.actors[role].play.remote(part, *shared)] = role
        return self._listen(playing)

    def _part(self, role: str, addresses: Mapping[str, str], begin: bytes) -> HostTask:
        settings = self.settings
        return HostTask(
            role,
            addresses,
            tuple(settings.fetch),
            self.seed,
            self.steps,
            self._token,
            settings.patience,
            LEASE,
            self.cuts.every or 0,
            settings.arithmetic,
            begin,
            self.cuts.kept_values.get(role, {}),
            settings.tls,
            settings.table_folder,
            settings.table_memory,
        )

    def _listen(self, playing: dict[Any, str]) -> dict[str, bytes]:
        """Handles the reports of the machines until all have ended. Raises MachineLost."""
        files: dict[str, bytes] = {}
        reports = {self.hosts.actors[role].reports.remote(POLL): (role, monotonic()) for role in playing.values()}
        try:
            while playing or reports:
                done, _ = ray.wait([*playing, *reports], timeout=1.0)
                for ref in done:
                    if ref in playing:
                        role = playing.pop(ref)
                        files[role] = _file_of(role, got(role, ref))
                        continue
                    role, _ = reports.pop(ref)
                    new = got(role, ref)
                    for fields in new:
                        self._handle_report(role, fields)
                    if new or role not in files:
                        asked = self.hosts.actors[role].reports.remote(0.0 if role in files else POLL)
                        reports[asked] = role, monotonic()
                self._require_answers(reports)
                self._require_head()
                self._make_room(files)
        except RayError as problem:
            message = f"the cluster is gone: {first_line(problem)}"
            raise DiagnosticError(_lost_errors(message, reason_of(problem))) from None
        return files

    def _ended_by(self, problems: Sequence[Diagnostic]) -> DiagnosticError:
        """The error for a job that can't continue; its last finding has a note about the checkpoint that remains."""
        in_own_folder = self.cuts.source == str(self.cuts.target.folder)
        source = self.cuts.source if self.cuts.at_end or not in_own_folder else None
        if not source or not self.steps:
            return DiagnosticError(problems)
        last = problems[-1]
        note = Note(f"--resume {shell_word(str(source))} goes on from the last checkpoint")
        return DiagnosticError([*problems[:-1], last._replace(notes=(*last.notes, note))])

    def _handle_report(self, role: str, fields: Mapping[str, Any]) -> None:
        """Handles the report of a machine."""
        if "step" in fields:
            if not self._reported_steps:
                self._first_step, self._start_time = fields["step"], monotonic()
            self._reported_steps[role] = fields["step"]
        if "saved" in fields:
            self._take_part(role, fields["saved"])
        if "left_out" in fields and isinstance(self.feeds, Data):
            self.feeds.left_out(LeftOut(*fields["left_out"]))
        if "not_finite" in fields and isinstance(self.feeds, Data):
            self.feeds.holds_odd(NotFinite(*fields["not_finite"]))
        if "left_of_batch" in fields and isinstance(self.feeds, LoaderRows):
            self.feeds.record_unfed_value(fields["left_of_batch"])
        if "odd_batch" in fields and isinstance(self.feeds, LoaderRows):
            self.feeds.holds_odd(OddBatch(*fields["odd_batch"]))
        for listener in self._listeners:
            listener.machine_reported(role, fields)

    def _take_part(self, role: str, step: int) -> None:
        """Fetches a machine's part of a cut from its host."""
        actor = self.hosts.actors[role]
        results: list[Any] = self._call_result(role, actor.results.remote()) if role.startswith("trainer") else []
        self.cuts.add_saved_part(self.seed, role, step, self._call_result(role, actor.part.remote(role, step)), results)

    @property
    def _silence(self) -> float:
        """Seconds after which a host that does not answer is taken for lost."""
        return max(self.settings.patience, LEAST_SILENCE)

    def _call_result(self, role: str, ref: Any) -> Any:
        """The result of a call to a machine's host. Raises MachineLost."""
        return wait_for_result(role, self.hosts.actors[role], ref, self._silence)

    def _require_head(self) -> None:
        """Raises HeadGone if Ray's head is gone, of which machines that train take no notice."""
        if monotonic() > self._next_head_look:
            require_head()
            self._next_head_look = monotonic() + HEAD_LOOK

    def _require_answers(self, asked: Mapping[Any, tuple[str, float]]) -> None:
        """Raises MachineLost if a host has not answered since it was asked for reports, which it does at once."""
        for ref, (role, since) in asked.items():
            if monotonic() - since > self._silence and not ray.wait([ref], timeout=0)[0]:
                raise silent(role, self._silence)

    # other numbers of machines

    def _make_room(self, ended: Mapping[str, bytes]) -> None:
        """Requests that the trainers end soon if the numbers of machines are to change. Raises MachineLost if a trainer
        has passed that step.
        """
        trainers = [role for role in self.hosts.actors if role.startswith("trainer")]
        at = [self._reported_steps.get(role, 0) for role in trainers]
        if self._last_step is not None or ended or not all(at):
            return
        if not self._others_are_there(len(trainers)):
            return
        now = [self._call_result(role, self.hosts.actors[role].completed_steps.remote()) for role in trainers]
        rate = (max(now) - self._first_step) / max(monotonic() - self._start_time, 1e-3)
        until = max(now) + max(int(rate * self._seconds_ahead), 3)
        if until >= self.steps:
            return
        asked = {role: self.hosts.actors[role].hold.remote(until) for role in trainers}
        held = [self._call_result(role, ref) for role, ref in asked.items()]
        if not all(held):
            self._seconds_ahead *= 2
            raise CutMissed("a trainer went on past the step in which others were to take part")
        self._last_step = until

    def _others_are_there(self, trainers: int) -> bool:
        """Whether other numbers of machines are wanted and all of these machines have a place."""
        machines = len(self.hosts.actors)
        if self._requested_size is None and self.settings.trainers is not None and monotonic() > self._next_look:
            self._next_look = monotonic() + LOOK
            now, most = machines - trainers, self.settings.trainers[1]
            spare = self.hosts.spare(most + self.settings.servers_of(most, now) - machines)
            fitting = self.settings.fitting(machines + spare, now)
            if sum(fitting) > machines:
                self._requested_size = fitting
        if self._requested_size == (trainers, machines - trainers):
            self._requested_size = None
        if self._requested_size is None:
            return False
        more = max(sum(self._requested_size) - machines, 0)
        return self.hosts.spare(more) == more

    def _change(self, files: Mapping[str, bytes]) -> None:
        """Changes the numbers of machines after all have ended at the same step."""
        assert self._last_step is not None
        self._remember(files)
        self.cuts.end(self.seed, self._paths(files), self._last_step)
        self._recompile()
        plan = self.job.plan
        machines = cluster_of(plan.trainers, len(plan.pservers), " and ")
        verb = "takes" if plan.trainers + len(plan.pservers) == 1 else "take"
        print(f"pstranspile launch: step {self._last_step}: {machines} {verb} part", file=sys.stderr)

    def _recompile(self) -> None:
        """Compiles the job for the wanted numbers of machines."""
        assert self._requested_size is not None
        self.job, self._requested_size = compile(self.job.source, resized_job(self.job, *self._requested_size)), None

    def _go_back(self, problem: MachineLost) -> None:
        """Prepares a start from the last cut, in new processes. Raises DiagnosticError if there were too many restarts
        already.
        """
        self.failures += not isinstance(problem, CutMissed)
        unreached, self._unreached = self._unreached, isinstance(problem, MachineAbandoned) and not self._reported_steps
        if self.failures > self.settings.restarts or (unreached and self._unreached):
            raise DiagnosticError(_lost_errors(str(problem), problem.reason))
        plan = self.job.plan
        if self.settings.trainers is not None:
            fitting = self.settings.fitting(self.hosts.most(), len(plan.pservers))
            if fitting[0] < plan.trainers:
                self._requested_size = fitting
        if self._others_are_there(plan.trainers):
            self._recompile()
        where = "its last cut" if self.cuts.source else "its beginning"
        why = f" (Ray says: {problem.reason})" if problem.reason else ""
        lost = visible(f"{problem}{why}", 4000)
        print(f"pstranspile launch: {lost}; the job goes back to {where}", file=sys.stderr)
        self.hosts.restart()

    def _shrink(self, problem: PlacementError) -> None:
        """Reduces the job to as many trainers as have a place. Raises DiagnosticError if these are too few."""
        plan = self.job.plan
        now = plan.trainers, len(plan.pservers)
        fitting = self.settings.fitting(problem.placed_count, now[1]) if self.settings.trainers is not None else now
        if sum(fitting) > problem.placed_count:
            raise problem
        has = "has" if sum(fitting) == 1 else "have"
        print(f"pstranspile launch: {cluster_of(*fitting, ' and ')} {has} a place", file=sys.stderr)
        self._requested_size = fitting
        self._recompile()

    # the end

    def _paths(self, files: Mapping[str, bytes]) -> dict[str, str]:
        paths = {role: self.cuts.work / f"{role}.result" for role in files}
        for role, path in paths.items():
            path.write_bytes(files[role])
        return {role: str(path) for role, path in paths.items()}

    def _gather_results(self, files: Mapping[str, bytes]) -> Simulated:
        folder = _load_programs(programs_of(self.job))
        return gather(folder.cluster(fetch=self.settings.fetch, seed=self.seed), self._paths(files))

    def _remember(self, files: Mapping[str, bytes]) -> Simulated:
        """The results of the machines, with everything that the trainers have fetched."""
        done = self._gather_results(files)
        for trainer in done.cluster.trainers:
            trainer.take_results(self.cuts.all_results(trainer.name, trainer.results))
        fetched = tuple(results_of(trainer) for trainer in done.cluster.trainers)
        return done._replace(fetched=fetched, ran="Launched on Ray")

    def _finish_session(self, files: Mapping[str, bytes]) -> Simulated:
        done = self._remember(files)
        if self.cuts.at_end:
            self.cuts.end(self.seed, self._paths(files), self.steps)
        return done


def _lost_errors(message: str, reason: str = "") -> list[Diagnostic]:
    """The error for a job whose machines are lost, with the reason that Ray gives."""
    return [error("ray-lost", message, notes=[Note(f"Ray says: {reason}")] if reason else [])]


def _file_of(role: str, left: MachineEnd) -> bytes:
    """The file that a machine has left. Raises DiagnosticError with the findings that ended it, MachineAbandoned."""
    if left.problems:
        *others, last = left.problems
        raise DiagnosticError([*others, last._replace(notes=(*last.notes, Note(f"{role} is on {left.node}")))])
    if left.refusal:
        raise MachineAbandoned(left.refusal)
    return left.file


def _load_programs(programs: Mapping[str, bytes]) -> JobFolder:
    with tempfile.TemporaryDirectory(prefix="pstranspile-") as folder:
        for name, data in programs.items():
            Path(folder, name).write_bytes(data)
        return load_job_folder(folder)
