"""A trainer of a job that says what a test wants, beside machines of this package that do their work."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping
from typing import Any

from pstranspile.cluster.machines.message import REPLY, Message
from pstranspile.cluster.machines.simulate import results_of
from pstranspile.cluster.net.job import JobFolder
from pstranspile.cluster.net.process import ProcessPlace, play_server, play_trainer
from pstranspile.cluster.net.status import StatusPipe
from pstranspile.cluster.net.supervisor import Ports
from pstranspile.cluster.net.terms import Terms
from pstranspile.cluster.net.wire import (
    ALIVE,
    HEADER_SIZE,
    HELLO,
    MESSAGES,
    REFUSED,
    WELCOME,
    Header,
    frame,
    json_body,
    messages_body,
    read_header,
    read_messages,
    read_size,
)
from tests.cluster.net.strangers import connect

TERMS = Terms("job", "token", 10.0)
GREETING = {"job": "job", "token": "token", "incarnation": "another", "received": 0, "knows": "", "gone": []}


class Said:
    """The connection of a trainer to a server or to another trainer, which it has greeted."""

    def __init__(self, sock: socket.socket, role: str, machines: list[str]):
        self.role, self.machines = role, machines
        self.index = int(role.rpartition("_")[2])
        self.sock = sock
        self.number = 0
        self.sequences: dict[tuple[str, str], int] = {}
        self.slots: dict[str, int] = {}

    @classmethod
    def greeting(cls, address: str, role: str, machines: list[str], **fields: Any) -> Said:
        """Connects, and is let in or refused."""
        said = cls(connect(address), role, machines)
        said.frame(HELLO, json_body({**GREETING, "role": role, **fields}))
        said.answer = said.next()
        return said

    answer: tuple[int, bytes] = (0, b"")
    """What the greeting was answered with."""

    @classmethod
    def taken(cls, sock: socket.socket, role: str, machines: list[str]) -> Said:
        """The other side of a connection that somebody has begun."""
        sock.settimeout(30)
        return cls(sock, role, machines)

    def frame(self, kind: int, body: bytes, number: int = 0, durable: int = 0) -> None:
        self.sock.sendall(b"".join(frame(Header(kind, number, 0, durable), body)))

    def message(self, kind: str, variable: str = "", payload: Any = None, **fields: Any) -> Message:
        target = fields.get("target", "pserver_0")
        source = fields.get("source", self.role)
        sequence = self.sequences[source, target] = self.sequences.get((source, target), 0) + 1
        known = Message(kind, source, target, self.index, 0, sequence, variable, payload, -1)
        return known._replace(**fields)

    def say(self, *messages: Message, **fields: Any) -> None:
        self.number += 1
        numbers = {name: number for number, name in enumerate(self.machines)}
        self.frame(MESSAGES, messages_body(messages, numbers), **{"number": self.number, **fields})

    def next(self) -> tuple[int, bytes]:
        """The next frame that is no sign of life; REFUSED with nothing where the connection has ended."""
        while True:
            head = self._take(HEADER_SIZE)
            if len(head) < HEADER_SIZE:
                return REFUSED, head
            data = head + self._take(read_size(head) - HEADER_SIZE)
            kind = read_header(data).kind
            if kind != ALIVE:
                return kind, data

    def _take(self, size: int) -> bytes:
        data = b""
        while len(data) < size and (part := self.sock.recv(size - len(data))):
            data += part
        return data

    def answers(self, count: int) -> list[Message]:
        """So many answers."""
        found: list[Message] = []
        while len(found) < count:
            kind, data = self.next()
            assert kind == MESSAGES, (kind, data[HEADER_SIZE:])
            found += [message for message in read_messages(data, self.machines) if message.kind == REPLY]
        return found

    def told(self) -> Mapping[str, Any]:
        """Why it is refused; fails where it is not."""
        while True:
            kind, data = self.next()
            if kind == REFUSED:
                assert data, "the connection has ended without a reason"
                return json.loads(data[HEADER_SIZE:])
            assert kind in (MESSAGES, WELCOME), kind

    def end(self) -> None:
        self.sock.close()


class Beside:
    """Machines of a job at work, each a thread, but for one trainer."""

    def __init__(self, job: JobFolder, feeds: Any, steps: int, without: str, **options: Any):
        self.job = job
        self.ports = Ports(len(job.roles))
        self.addresses = dict(zip(job.roles, self.ports.addresses, strict=True))
        self.problems: dict[str, BaseException] = {}
        self.clusters = {role: job.cluster(seed=1, fetch=["loss"]) for role in job.roles if role != without}
        self.machines = sorted(next(iter(self.clusters.values())).machines)
        place = ProcessPlace(self.addresses, **{"patience": 20.0, **options})

        def play(role: str) -> None:
            cluster = self.clusters[role]
            try:
                if role.startswith("pserver"):
                    play_server(cluster, role, TERMS, place, StatusPipe(), lambda _: None)
                else:
                    play_trainer(cluster, role, TERMS, place, steps, StatusPipe(), lambda _: None)
            except BaseException as problem:
                self.problems[role] = problem

        for cluster in self.clusters.values():
            cluster.feed(feeds)
        self.threads = {role: threading.Thread(target=play, args=(role,), daemon=True) for role in self.clusters}
        for thread in self.threads.values():
            thread.start()

    def end(self) -> dict[str, list[Any]]:
        """What the trainers have fetched, when all machines have ended as they should."""
        for role, thread in self.threads.items():
            thread.join(30)
            assert not thread.is_alive(), f"{role} has not ended"
        self.ports.close()
        assert not self.problems, self.problems
        first = next(iter(self.clusters.values()))
        names = [one.name for one in first.trainers if one.name in self.clusters]
        own: dict[str, Any] = {name: self.clusters[name].machines[name] for name in names}
        return {name: [value.item() for value in results_of(trainer)["loss"]] for name, trainer in own.items()}
