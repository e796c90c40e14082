"""The hosts of a job's machines: actors that Ray places, and restarts elsewhere when their node is gone."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from pstranspile.cluster.data.loader import LoaderRows
from pstranspile.cluster.data.source import Data
from pstranspile.cluster.machines.snapshots import read_snapshot
from pstranspile.cluster.machines.trainer import Trainer
from pstranspile.cluster.net.job import load_job_folder
from pstranspile.cluster.net.parts import part_file, read_part, write_part
from pstranspile.cluster.net.process import ProcessPlace, is_server, play
from pstranspile.cluster.net.status import StatusPipe
from pstranspile.cluster.net.supervisor import Ports
from pstranspile.cluster.net.terms import PeerRefused, Terms
from pstranspile.cluster.net.tls import read_credentials
from pstranspile.cluster.ray.cuts import PartialValue, assemble_part
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Note, cluster_of, error, lasting, quantity
from pstranspile.runtime.arithmetic import arithmetic
from pstranspile.runtime.files.outputs import work_folder
from pstranspile.runtime.large.table import rows_on_disk

# The actor that hosts one machine of a job: it runs the machine, reports on it, and returns the machine's results.


class HostTask(NamedTuple):
    """The task of a host, beside the programs, the data and the initial values.

    `begin` is the machine's part of a checkpoint, empty for none, without the values in `kept_values`, which the host
    still has from a machine that ended there.
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
    kept_values: Mapping[str, PartialValue] = {}
    tls: str = ""
    table_folder: str | None = None
    table_memory: int | None = None


class MachineEnd(NamedTuple):
    """The end of a machine: the file that it has written, or the findings that ended it and its node, or the reason why
    another machine refused it.
    """

    file: bytes = b""
    problems: tuple[Diagnostic, ...] = ()
    node: str = ""
    refusal: str = ""


class HostEnded(Exception):
    """The host of a machine is ended, and its files are removed."""


class Reports(StatusPipe):
    """Stores the reports of a machine until they are requested.

    Reports of steps don't end the wait of a request, as an answer for each step would cost more than the steps.
    """

    def __init__(self) -> None:
        super().__init__()
        self._reports: list[dict[str, Any]] = []
        self._urgent = False
        self._condition = threading.Condition()
        self.ended = False
        """Whether the machine is to end at its next report."""

    def end(self) -> None:
        """Has the machine end at its next report."""
        self.ended = True

    def __call__(self, **fields: Any) -> None:
        """Stores one report; any thread may call it. Raises HostEnded once the machine is to end."""
        if self.ended:
            raise HostEnded
        with self._condition:
            self._reports.append(fields)
            if "step" not in fields:
                self._urgent = True
                self._condition.notify()

    def take(self, timeout: float) -> list[dict[str, Any]]:
        """The reports since the last call; waits up to `timeout` seconds for one that is not a step."""
        with self._condition:
            self._condition.wait_for(lambda: self._urgent, timeout)
            reports, self._reports, self._urgent = self._reports, [], False
        return reports


class Host:
    """Hosts a machine. Its methods are called through Ray, several at a time."""

    def __init__(self) -> None:
        self._at_end = ExitStack()
        place = work_folder(Path(tempfile.gettempdir()), "pstranspile-host-", mode=0o700)
        self._work = self._at_end.enter_context(place)
        self._at_play = threading.Lock()
        """Held while a machine runs."""
        self._report = Reports()
        self._ports: Ports | None = None
        self._lock = threading.Lock()
        self._completed_steps = 0
        self._last_step: int | None = None
        self._results: list[Any] = []
        self._parts = self._work
        self._result_file: Path | None = None
        """The file that the last machine on this host has left."""

    def leave(self) -> None:
        """Removes the files of this host, which is then ended. Those of a host that ends without it, the next host on
        the node removes.
        """
        self._report.end()
        self._at_play.acquire(timeout=1.0)  # its machine writes no more; one that only waits does not end
        self._at_end.close()
        while self._work.exists():  # what was being written has made it again
            shutil.rmtree(self._work, ignore_errors=True)
            sleep(0.05)

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

    def play(self, part: HostTask, programs: Mapping[str, bytes], feeds: Any, init: Mapping[str, Any]) -> MachineEnd:
        """Runs a machine to its end, and returns what it leaves."""
        try:
            with self._at_play:
                return MachineEnd(self._play(part, programs, feeds, init))
        except DiagnosticError as problem:
            return MachineEnd(problems=tuple(problem.diagnostics), node=f"the node {self._node()}")
        except PeerRefused as problem:
            return MachineEnd(refusal=f"{part.role}: {problem}")
        except Exception:
            if not self._report.ended:
                raise
            return MachineEnd(refusal=f"{part.role}: its host was ended")

    def _play(self, part: HostTask, programs: Mapping[str, bytes], feeds: Any, init: Mapping[str, Any]) -> bytes:
        """Runs a machine to its end, and returns the content of its file. Raises DiagnosticError, Refused."""
        folder = Path(tempfile.mkdtemp(dir=self._work))
        for name, data in programs.items():
            (folder / name).write_bytes(data)
        job = load_job_folder(folder)
        begin = ""
        if part.begin:
            begin = str(folder / "begin")
            Path(begin).write_bytes(part.begin)
            self._complete(part, Path(begin))
        self._result_file = None
        with self._lock:
            self._completed_steps, self._last_step, self._results = 0, None, []
        credentials = read_credentials(part.tls) if part.tls else None
        limit = None if part.table_memory is None else part.table_memory << 20
        with arithmetic(part.arithmetic), rows_on_disk(part.table_folder, limit):
            cluster = job.cluster(fetch=part.fetch, seed=part.seed, init=init)
            if not is_server(cluster, part.role):
                cluster.feed(feeds)
            if isinstance(cluster.source, LoaderRows):
                cluster.source.tell_of_batches(
                    lambda name: self._report(left_of_batch=name), lambda row: self._report(odd_batch=row)
                )
            if isinstance(cluster.source, Data):
                cluster.source.tell_of_rows(
                    lambda row: self._report(left_out=row), lambda row: self._report(not_finite=row)
                )
            place = ProcessPlace(
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
            print(where, file=sys.stderr, flush=True)  # Ray prints it in the launching process
            play(cluster, part.role, terms, place, part.steps, self._report, result, self._record_step)
        self._forget_port()
        self._result_file = Path(result)
        return self._result_file.read_bytes()

    def _complete(self, part: HostTask, file: Path) -> None:
        """Adds to the part in a file the values that the last machine on this host has left. Raises DiagnosticError,
        Refused.
        """
        if not part.kept_values:
            return
        if self._result_file is None:
            raise PeerRefused("its host has no longer what the machine left")
        left = read_snapshot(self._result_file, part.role).values
        try:
            write_part(file, part.role, assemble_part(read_part(file, part.role), part.kept_values, left))
        except LookupError as problem:
            raise PeerRefused(f"the machine has left no {problem}") from None

    def _record_step(self, trainer: Trainer) -> None:
        """Records a step of the trainer."""
        with self._lock:
            self._completed_steps = trainer.step
            self._results.append(trainer.results[-1])
            if self._last_step is not None:
                trainer.limit_to(min(trainer.limit, self._last_step))

    def completed_steps(self) -> int:
        """The number of steps that the trainer has done."""
        with self._lock:
            return self._completed_steps

    def hold(self, step: int) -> bool:
        """Makes the trainer end after this step. Returns whether it will: it must not have done as many steps
        already.
        """
        with self._lock:
            if self._completed_steps >= step:
                return False
            self._last_step = step
            return True

    def reports(self, timeout: float) -> list[dict[str, Any]]:
        """The machine's reports since the last call."""
        return self._report.take(timeout)

    def part(self, role: str, step: int) -> bytes:
        """The machine's part of a checkpoint, which it has reported as saved."""
        file = part_file(self._parts, role, step)
        data = file.read_bytes()
        file.unlink()
        return data

    def results(self) -> list[Any]:
        """The trainer's results since the last call."""
        with self._lock:
            results, self._results = self._results, []
        return results


HEAD = 5.0
"""Seconds in which Ray's head must take a connection."""

LOOK = 1.0
"""Seconds between two looks at Ray's head while actors have not answered."""

RETRY = 0.1
"""Seconds until an actor that Ray restarts is asked again."""


SILENT = 5.0
"""Seconds after which a message is printed that machines wait for a place."""

UNITS = 10000
"""The finest part of a CPU that Ray distinguishes, as its inverse."""


class MachineLost(Exception):
    """A machine of the job is gone; the message says which, and why. `reason` is what Ray says of it, "" if nothing."""

    def __init__(self, message: str, reason: str = ""):
        super().__init__(message)
        self.reason = reason


class MachineAbandoned(MachineLost):
    """A machine has ended because others did not answer, or refused it."""


class CutMissed(MachineLost):
    """A trainer had passed the step after which all were to end, so that the job goes back although no machine is
    gone.
    """


class HeadGone(Exception):
    """Ray's head is gone, and nothing goes on without it; the message says so."""


class PlacementError(DiagnosticError):
    """Some machines have no place; `placed_count` is the number of those that have one."""

    def __init__(self, diagnostics: Iterable[Diagnostic], placed: int):
        super().__init__(diagnostics)
        self.placed_count = placed


class Hosts:
    """An actor for each machine: servers spread over the nodes by a placement group, trainers where CPUs are free.

    `cpus` is the amount for each machine, `environment` are variables of its process, `patience` is the number of
    seconds after which all must have a place.
    """

    def __init__(self, cpus: float, environment: Mapping[str, str], patience: float):
        self.cpus = cpus
        self.patience = patience
        self.actors: dict[str, Any] = {}
        self._spares: list[_AddressRequest] = []
        """Actors without a machine, which answer once Ray has placed and started them."""
        self._unfit = False
        """Whether a spare actor could not be started, so that no more are requested."""
        self._groups: list[Any] = []
        self._options: dict[str, Any] = {
            "num_cpus": cpus, "max_restarts": -1, "max_task_retries": 0, "max_concurrency": 4,
        }  # fmt: skip
        if environment:
            self._options["runtime_env"] = {"env_vars": dict(environment)}
        self._class: Any = ray.remote(Host)
        self._by_client: bool = ray.util.client.ray.is_connected()
        """Whether this process reaches the cluster by Ray's client."""

    def require(self, roles: Sequence[str]) -> dict[str, str]:
        """Provides a host for each of these machines, and no others; returns the addresses at which the machines will
        listen, by role.

        Raises PlacementError, DiagnosticError, HeadGone.
        """
        for role in [known for known in self.actors if known not in roles]:
            _end([self.actors.pop(role)])
        new = [role for role in roles if role not in self.actors]
        arrived = self._ready_spares()[: len(new)]
        self._spares = [spare for spare in self._spares if spare not in arrived]
        self.actors.update((role, spare.actor) for role, spare in zip(new, arrived, strict=False))
        new = [role for role in new if role not in self.actors]
        servers = [role for role in new if role.startswith("pserver")]
        if servers:
            group = placement_group([{"CPU": self.cpus}] * len(servers), strategy="SPREAD")
            self._groups.append(group)
            for place, role in enumerate(servers):
                strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=place)
                self.actors[role] = self._class.options(scheduling_strategy=strategy, **self._options).remote()
        for role in new:
            if role not in servers:
                self.actors[role] = self._anywhere()
        return self._addresses(roles)

    def _anywhere(self) -> Any:
        return self._class.options(scheduling_strategy="SPREAD", **self._options).remote()

    def _addresses(self, roles: Sequence[str]) -> dict[str, str]:
        asked = [_AddressRequest(self.actors[role], role) for role in roles]
        begun, told = monotonic(), False
        while waiting := _waiting(asked, LOOK):
            waited = monotonic() - begun
            if waited > self.patience:
                raise self._not_placed(asked)
            if waited > SILENT and not told:
                told = True
                print(f"pstranspile launch: {self._wait_told(len(waiting), len(asked))}", file=sys.stderr, flush=True)
            require_head()
        return {one.role: one.address for one in asked}

    def _wait_told(self, waiting: int, asked: int) -> str:
        """A sentence about the machines that have no place yet."""
        free = ray.available_resources().get("CPU", 0.0)
        ask = f"with {self.cpus:g} CPUs each; {free:g} of the cluster's {sum(_nodes().values()):g} are free"
        return (
            f"{waiting} of {quantity(asked, 'machine')} wait for a place, {ask}; --patience is {lasting(self.patience)}"
        )

    def spare(self, count: int) -> int:
        """Requests spare actors from Ray up to `count`; returns how many of them are ready."""
        arrived = self._ready_spares()
        keep = [*arrived, *(spare for spare in self._spares if spare not in arrived)]
        self._drop(keep[count:])
        while len(self._spares) < count and not self._unfit:
            self._spares.append(_AddressRequest(self._anywhere(), "a spare machine"))
        return min(len(arrived), count)

    def _ready_spares(self) -> list[_AddressRequest]:
        """The spare actors that are ready."""
        try:
            waiting = _waiting(self._spares)
        except DiagnosticError as problem:
            self._unfit = True
            self._drop(self._spares)
            print(f"pstranspile launch: no more machines take part: {problem}", file=sys.stderr)
            return []
        return [spare for spare in self._spares if spare not in waiting]

    def _drop(self, spares: Sequence[_AddressRequest]) -> None:
        _end([spare.actor for spare in spares if spare.address], [spare.actor for spare in spares if not spare.address])
        self._spares = [spare for spare in self._spares if spare not in spares]

    def restart(self) -> None:
        """Makes Ray restart all actors, each as a new process. Raises HeadGone."""
        require_head()
        _end([*self.actors.values()], restart=True)

    def forget(self) -> None:
        """Drops all actors, which are gone with the head, without ending them."""
        self.actors.clear()
        self._spares.clear()
        self._groups.clear()

    def cut_off(self, problem: Exception | None = None) -> bool:
        """Whether Ray's client has lost the cluster, which may be why `problem` was raised. Ray's functions would start
        a cluster on this host then.
        """
        refused = isinstance(problem, ConnectionError) and not isinstance(problem.__cause__, RayError)
        return self._by_client and (refused or not ray.util.client.ray.is_connected())

    def close(self) -> None:
        """Ends all actors."""
        if self.cut_off():
            self.forget()
        _end([*self.actors.values()])
        self._drop(self._spares)
        for group in self._groups:
            remove_placement_group(group)

    def most(self) -> int:
        """The number of machines for which the whole cluster has CPUs."""
        return sum(int(cpus / self.cpus) for cpus in _nodes().values())

    def _not_placed(self, asked: Sequence[_AddressRequest]) -> PlacementError:
        """The error for machines that are not all placed, with the requested and the available CPUs. Actors that are
        ready become spare.
        """
        counts = [sum(one.role.startswith(kind) for one in asked) for kind in ("pserver", "trainer")]
        nodes = _nodes()
        free = ray.available_resources().get("CPU", 0.0)
        message = (
            f"after {lasting(self.patience)} the machines are not all placed: "
            f"{cluster_of(counts[1], counts[0], ' and ')}, with {self.cpus:g} CPUs each, ask for "
            f"{self.cpus * sum(counts):g} CPUs; the cluster has "
            f"{sum(nodes.values()):g}, of which {free:g} are free"
        )
        notes = [Note(f"{name} has {cpus:g} CPUs") for name, cpus in nodes.items()]
        if sum(nodes.values()) >= self.cpus * len(asked):
            notes.append(Note("others have taken CPUs, or processes start slowly there; --patience waits longer"))
        if os.environ.get("RAY_ADDRESS") != "local":
            own = "with RAY_ADDRESS=local, --on ray starts a cluster of its own on this host, with CPUs for all"
            notes.append(Note(own))
        placed = [one for one in asked if one.address]
        result = PlacementError([error("ray-resources", message, notes=notes)], len(placed))
        self._drop([one for one in asked if not one.address])
        self._spares += placed
        self.actors.clear()
        return result


LEAVE = 2.0
"""Seconds that hosts have to remove their files before they are ended."""


def _end(started: Sequence[Any], others: Sequence[Any] = (), *, restart: bool = False) -> None:
    """Ends actors, those that may have `started` after they have removed their files; with `restart`, Ray starts each
    again as a new process.
    """
    try:
        with suppress(RayError):  # of hosts that are gone nobody removes files; the next host there does
            left = [actor.leave.remote() for actor in started]
            ray.wait(left, num_returns=len(left), timeout=LEAVE) if left else None
    finally:
        for actor in (*started, *others):
            ray.kill(actor, no_restart=not restart)


class _AddressRequest:
    """An actor that was asked for the address at which the machine of a role will listen; `address` is empty until it
    answers.
    """

    def __init__(self, actor: Any, role: str):
        self.actor, self.role, self.address = actor, role, ""
        self.answer = actor.address.remote()

    def take(self) -> None:
        """Takes the answer; asks again if the actor was lost, since Ray restarts it. Raises DiagnosticError."""
        try:
            self.address = got(self.role, self.answer)
        except MachineLost:
            self.answer = self.actor.address.remote()


def _waiting(asked: Sequence[_AddressRequest], seconds: float = 0.0) -> list[_AddressRequest]:
    """The actors that have not answered after at most `seconds` seconds. Raises DiagnosticError."""
    answers = [one.answer for one in asked if not one.address]
    if not answers:
        return []
    ready = set(ray.wait(answers, num_returns=len(answers), timeout=seconds)[0])
    for one in asked:
        if one.answer in ready:
            one.take()
    missing = [one for one in asked if not one.address]
    if missing and seconds:
        sleep(RETRY)
    return missing


def got(role: str, ref: Any) -> Any:
    """The result of a call to a machine's host. Raises exceptions of the call, such as those of the user's own rows.

    Raises MachineLost if the host is gone, DiagnosticError if it can't be started at all.
    """
    try:
        return ray.get(ref)
    except RayActorError as problem:
        if problem.actor_init_failed:  # pstranspile is not installed there, or in another version
            message = f"the host of {role} does not start on its node: {_lines(problem)[-1]}"
            raise DiagnosticError([error("ray-lost", message)]) from None
        what = "can't be reached" if "unavailable" in str(problem) else "is gone"
        raise MachineLost(f"{role} {what}", reason_of(problem)) from None
    except RayError as problem:
        cause: Any = getattr(problem, "cause", None)
        if isinstance(cause, Exception):
            raise cause from problem
        raise


LEAST_SILENCE = 10.0
"""The fewest seconds after which a host that does not answer is taken for lost."""


def silent(role: str, seconds: float) -> MachineLost:
    """What is raised for a machine whose host stands still: it is stopped, or its node is out of memory or waits for a
    disk. Ray itself notices only processes that have ended.
    """
    return MachineLost(f"{role} has not answered for {lasting(seconds)}")


def wait_for_result(role: str, actor: Any, ref: Any, patience: float) -> Any:
    """The result of a call that may take long, as `got` gives it.

    Raises MachineLost, too, if the host answers no call for `patience` seconds.
    """
    while not ray.wait([ref], timeout=patience)[0]:
        if not ray.wait([ref, actor.completed_steps.remote()], timeout=patience)[0]:
            raise silent(role, patience)
    return got(role, ref)


def require_head() -> None:
    """Raises HeadGone if Ray's head can't be reached: its library would wait for a minute, and end the process."""
    if ray.util.client.ray.is_connected():  # Ray's client uses a proxy, and reports itself when that is gone
        return
    address: str = ray.get_runtime_context().gcs_address
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), HEAD).close()
    except OSError as problem:
        raise HeadGone(f"Ray's head at {address} is gone ({problem.strerror or problem})") from None


def _nodes() -> dict[str, float]:
    """The CPUs of every node that is alive, by name."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    return {
        f"node {number} at {node['NodeManagerAddress']}": node["Resources"].get("CPU", 0.0)
        for number, node in enumerate(alive, 1)
    }


def share_for(machines: int) -> float:
    """The CPUs for each of so many machines: 1, or if the cluster does not have as many, the largest equal share of its
    nodes' CPUs, which is printed.
    """
    nodes = _nodes()
    cpus = [held for held in nodes.values() if held > 0]
    shares = sorted({int(held / count * UNITS) / UNITS for held in set(cpus) for count in range(1, machines + 1)})
    fitting = [share for share in shares if 0 < share < 1 and _room(cpus, share) >= machines]
    if not fitting or _room(cpus, 1.0) >= machines:
        return 1.0
    share = fitting[-1]
    text = f"{machines} machines ask for {share:g} CPUs each: the cluster has {sum(cpus):g}"
    print(f"pstranspile launch: {text}", file=sys.stderr, flush=True)
    return share


def _room(nodes: Sequence[float], share: float) -> int:
    """The number of machines with `share` CPUs each for which the nodes have room."""
    return sum(int((held + 0.5 / UNITS) / share) for held in nodes)


def first_line(problem: BaseException) -> str:
    """The message of an error of Ray, in one line."""
    return _lines(problem)[0]


_MOST_OF_A_REASON = 600
"""The most characters of Ray's reason that are repeated."""


def reason_of(problem: BaseException) -> str:
    """Why Ray has lost an actor, as it says it, in one line, without the numbers by which Ray knows the actor; "" where
    it says nothing beside that it is lost.
    """
    lines = [line for line in str(problem).splitlines()[1:] if line.strip() and not line.startswith("\t")]
    reason = " ".join(" ".join(lines).split())
    return reason if len(reason) <= _MOST_OF_A_REASON else f"{reason[: _MOST_OF_A_REASON - 3]}..."


def _lines(problem: BaseException) -> list[str]:
    return [line.strip() for line in str(problem).splitlines() if line.strip()] or [type(problem).__name__]
