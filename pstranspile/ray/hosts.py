"""The hosts of a job's machines: actors that Ray places, and starts elsewhere when their node is gone."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from time import monotonic
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from pstranspile.ir.diagnostics import DiagnosticError, Note, error
from pstranspile.ray.host import Host

HEAD, LOOK = 5.0, 1.0
"""Seconds in which Ray's head must take a connection, and between two looks at it while machines are waited for."""


class Lost(Exception):
    """A machine of the job is gone; the message says which, and why."""


class HeadGone(Exception):
    """Ray's head is gone, and nothing goes on without it; the message says so."""


class Hosts:
    """An actor for each machine: servers spread over the nodes by a placement group, trainers where CPUs are.

    `cpus` is what each machine is given, `environment` are variables of its process, `patience` says how many seconds
    it may take until all are there.
    """

    def __init__(self, cpus: float, environment: Mapping[str, str], patience: float):
        self.cpus = cpus
        self.patience = patience
        self.actors: dict[str, Any] = {}
        self._groups: list[Any] = []
        self._options: dict[str, Any] = {
            "num_cpus": cpus, "max_restarts": -1, "max_task_retries": 0, "max_concurrency": 4,
        }  # fmt: skip
        if environment:
            self._options["runtime_env"] = {"env_vars": dict(environment)}
        self._class: Any = ray.remote(Host)

    def require(self, roles: Sequence[str]) -> dict[str, str]:
        """Has a host for each of these machines, and none besides; gives where the machines will listen.

        Raises DiagnosticError if they can't all be placed, HeadGone.
        """
        for role in [known for known in self.actors if known not in roles]:
            ray.kill(self.actors.pop(role))
        new = [role for role in roles if role not in self.actors]
        servers = [role for role in new if role.startswith("pserver")]
        if servers:
            group = placement_group([{"CPU": self.cpus}] * len(servers), strategy="SPREAD")
            self._groups.append(group)
            for place, role in enumerate(servers):
                strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=place)
                self.actors[role] = self._class.options(scheduling_strategy=strategy, **self._options).remote()
        for role in new:
            if role not in servers:
                self.actors[role] = self._class.options(scheduling_strategy="SPREAD", **self._options).remote()
        return self._addresses(roles)

    def _addresses(self, roles: Sequence[str]) -> dict[str, str]:
        asked = {role: self.actors[role].address.options(max_task_retries=-1).remote() for role in roles}
        missing, end = list(asked.values()), monotonic() + self.patience
        while missing:
            if monotonic() > end:
                raise self._not_placed(roles)
            _, missing = ray.wait(missing, num_returns=len(missing), timeout=LOOK)
            if missing:
                require_head()
        return {role: got(role, ref) for role, ref in asked.items()}

    def restart(self) -> None:
        """Has Ray start all of them again, each as a new process. Raises HeadGone."""
        require_head()
        for actor in self.actors.values():
            ray.kill(actor, no_restart=False)

    def forget(self) -> None:
        """They are gone with the head: nobody is left to be told to end."""
        self.actors.clear()
        self._groups.clear()

    def close(self) -> None:
        """Ends all of them."""
        for actor in self.actors.values():
            ray.kill(actor)
        for group in self._groups:
            remove_placement_group(group)

    def room(self) -> int:
        """How many more machines the cluster has CPUs for, now."""
        return int(ray.available_resources().get("CPU", 0.0) / self.cpus)

    def most(self) -> int:
        """How many machines the whole cluster has CPUs for."""
        return sum(int(cpus / self.cpus) for cpus in _nodes().values())

    def _not_placed(self, roles: Iterable[str]) -> DiagnosticError:
        """Why the machines are not all there: what is asked for, and what is there."""
        counts = [sum(role.startswith(kind) for role in roles) for kind in ("pserver", "trainer")]
        nodes = _nodes()
        free = ray.available_resources().get("CPU", 0.0)
        message = (
            f"after {self.patience:g} seconds the machines are not all placed: {counts[0]} servers and {counts[1]} "
            f"trainers, with {self.cpus:g} CPUs each, ask for {self.cpus * sum(counts):g} CPUs; the cluster has "
            f"{sum(nodes.values()):g}, of which {free:g} are free"
        )
        notes = [Note(f"{name} has {cpus:g} CPUs") for name, cpus in nodes.items()]
        return DiagnosticError([error("ray-resources", message, notes=notes)])


def got(role: str, ref: Any) -> Any:
    """What a call of a machine's host gives. Raises Lost if it is gone, DiagnosticError if it can't be made at all."""
    try:
        return ray.get(ref)
    except RayActorError as problem:
        if problem.actor_init_failed:  # where pstranspile is not installed, or another version of it
            message = f"the host of {role} does not start on its node: {_lines(problem)[-1]}"
            raise DiagnosticError([error("ray-lost", message)]) from None
        what = "can't be reached" if "unavailable" in str(problem) else "is gone"
        raise Lost(f"{role} {what}") from None


def require_head() -> None:
    """Raises HeadGone if Ray's head can't be reached: its library would wait for a minute, and end the process."""
    if ray.util.client.ray.is_connected():  # it talks to a proxy, and says itself when that is gone
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


def first_line(problem: BaseException) -> str:
    """What an error of Ray says, in one line."""
    return _lines(problem)[0]


def _lines(problem: BaseException) -> list[str]:
    return [line.strip() for line in str(problem).splitlines() if line.strip()] or [type(problem).__name__]
