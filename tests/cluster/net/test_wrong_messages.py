"""A trainer of the job says something wrong: it is told what, and takes no part any more; nobody else notices."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.machines import message as kinds
from pstranspile.cluster.machines.message import Message
from pstranspile.cluster.machines.rings import NEVER, Piece, RingContribution, Total
from pstranspile.cluster.net import checks, peer, wire
from pstranspile.cluster.net import site as greeting
from pstranspile.cluster.net.job import JobFolder
from pstranspile.cluster.net.loop import FRAME, Event
from pstranspile.cluster.net.process import rejoin
from pstranspile.cluster.net.site import MOST_TURNED_AWAY, SLOW, Site
from pstranspile.cluster.net.status import AT_ONCE
from pstranspile.cluster.net.terms import PeerRefused
from pstranspile.fluid.net.message import BATCH_BARRIER_NAME
from pstranspile.fluid.net.system import FluidSystem
from pstranspile.runtime.values import LoDTensor, SelectedRows
from tests.cluster.net.test_fluid_service import Trainer as Caller
from tests.cluster.net.test_fluid_service import starts
from tests.cluster.net.wrong import GREETING, TERMS, Beside, Said

PROGRAM = Path(__file__).parents[3] / "examples" / "regression.ir"
STEPS = 3
ONES, BIAS = np.ones((1000, 20), "float32"), np.ones(20, "float32")


@cache
def job(mode: str = "sync") -> JobFolder:
    return JobFolder(dict(ps.compile(ps.load(PROGRAM), ps.Job(pservers=1, trainers=2, mode=mode)).roles()), "job", 2)


def fed() -> dict[str, Any]:
    x = np.random.RandomState(0).rand(STEPS, 8, 1000).astype("float32")
    return {"x": x, "y": x[:, :, :20].copy()}


def play(mode: str, wrong: Callable[[Said], None] | None, *, begins: bool = True) -> tuple[dict[str, Any], str]:
    """What the other trainer fetches where this one is let in, begins its first step and says something; and why it is
    refused. None: it leaves there.
    """
    beside = Beside(job(mode), fed(), STEPS, "trainer_1")
    said = connected(beside)
    if begins and mode == "sync":
        start(said)
        said.say(said.message(kinds.SEND, "b@GRAD.trainer_1", BIAS))
    if wrong is None:
        said.say(said.message(kinds.COMPLETE))
        reason = ""
    else:
        wrong(said)
        told = said.told()
        assert told["again"] is False
        reason = told["reason"]
    said.end()
    return beside.end(), reason


def connected(beside: Beside, address: str = "", role: str = "trainer_1", **fields: Any) -> Said:
    for _ in range(200):
        try:
            return Said.greeting(address or beside.addresses["pserver_0"], role, beside.machines, **fields)
        except OSError:  # it does not listen yet
            time.sleep(0.02)
    raise AssertionError("the server does not listen")


def start(said: Said) -> None:
    """Fetches the parameters, as a start-up program does."""
    said.say(*(said.message(kinds.GET, name, step=-1, slot=slot) for slot, name in enumerate("bw")))
    assert len(said.answers(2)) == 2
    said.say(said.message(kinds.FETCH_BARRIER, step=-1))


@cache
def undisturbed(mode: str) -> dict[str, Any]:
    return play(mode, None)[0]


def message(kind: str, variable: str = "", payload: Any = None, **fields: Any) -> Callable[[Said], None]:
    return lambda said: said.say(said.message(kind, variable, payload, **fields))


def step_without_gradients(said: Said) -> None:
    said.say(said.message(kinds.SEND_BARRIER), said.message(kinds.FETCH_BARRIER))


def raw(kind: int, content: bytes, number: int = 0) -> Callable[[Said], None]:
    return lambda said: said.frame(kind, content, number=number)


def garbled(change: Callable[[bytearray], None]) -> Callable[[Said], None]:
    """A message whose bytes are changed."""

    def say(said: Said) -> None:
        numbers = {name: number for number, name in enumerate(said.machines)}
        content = bytearray(wire.messages_body([said.message(kinds.GET, "w", slot=0)], numbers))
        change(content)
        said.frame(wire.MESSAGES, bytes(content), number=said.number + 1)

    return say


def put(place: int, form: str, value: int) -> Callable[[bytearray], None]:
    return lambda content: struct.pack_into(form, content, place, value)


ROWS = SelectedRows(np.array([1, 2]), ONES[:2], 1000)
W, GET, SEND = "w@GRAD.trainer_1", kinds.GET, kinds.SEND
PART = RingContribution("average", 0, True, "", ONES)

WRONG: dict[str, tuple[Callable[[Said], None], str]] = {
    # values
    "no such variable": (message(SEND, "v@GRAD.trainer_1", ONES), "takes no variable v@GRAD.trainer_1"),
    "a parameter": (message(SEND, "w", ONES), "takes no variable w"),
    "that of another trainer": (message(SEND, "w@GRAD.trainer_0", ONES), "is sent by trainer_0"),
    "float64": (message(SEND, W, ONES.astype("float64")), "it brings float64[1000, 20]"),
    "whole numbers": (message(SEND, W, ONES.astype("int64")), "it brings int64[1000, 20]"),
    "truths": (message(SEND, W, ONES > 0), "it brings bool[1000, 20]"),
    "other dims": (message(SEND, W, ONES[:10]), "it brings float32[10, 20]"),
    "as many numbers": (message(SEND, W, ONES.reshape(20, 1000)), "it brings float32[20, 1000]"),
    "no dims": (message(SEND, W, ONES[0, 0]), "it brings float32[]"),
    "no numbers": (message(SEND, W, np.empty((0, 20), "float32")), "it brings float32[0, 20]"),
    "rows": (message(SEND, W, ROWS), "it brings rows of float32[2, 20] in 1000"),
    "ragged": (message(SEND, W, LoDTensor(ONES, [[0, 1000]])), "it brings ragged float32[1000, 20]"),
    "a text": (message(SEND, W, "gradient"), "it brings a text"),
    "nothing": (message(SEND, W), "it brings nothing"),
    "a part": (message(SEND, W, PART), "it brings a part of a collective operation"),
    "a text that a terminal obeys": (message(SEND, "\x1b[2J\nerror", ONES), "\\u001b[2J\\nerror"),
    # requests
    "asks now for no variable": (message(kinds.GET_NOW, "v", slot=0), "has no variable v"),
    "asks for changed rows": (message(kinds.GET_ROWS, "w", slot=0), "takes no messages of this kind"),
    "asks with a value": (message(kinds.GET_NOW, "w", ONES, slot=0), "nothing is expected"),
    "no table": (message(kinds.LOOKUP, "v", np.array([1]), slot=0), "has no table v"),
    "ids beyond the table": (message(kinds.LOOKUP, "w", np.array([1000]), slot=0), "it brings the id 1000"),
    "ids below 0": (message(kinds.LOOKUP, "w", np.array([-1]), slot=0), "it brings the id -1"),
    "a text as ids": (message(kinds.LOOKUP, "w", "ids", slot=0), "it brings a text in place of ids"),
    "ids of int32": (message(kinds.LOOKUP, "w", np.array([1], "int32"), slot=0), "it brings int32[1]"),
    "ids of floats": (message(kinds.LOOKUP, "w", np.array([1.0]), slot=0), "it brings float64[1]"),
    "ids in two dims": (message(kinds.LOOKUP, "w", np.array([[1]]), slot=0), "it brings int64[1, 1]"),
    "no block for ids": (message(kinds.PREFETCH, "ids", np.array([[1]]), slot=0), "has no block that looks up ids"),
    "a counter that is none": (message(kinds.NOTIFY, "lr", np.array([1])), "has no step counter lr"),
    "saves": (message(kinds.CHECKPOINT, "w", "/etc/table", slot=0), "has no block that saves"),
    "shrinks": (message(kinds.SHRINK, "w", 1, slot=0), "has no large table w"),
    # barriers and leaving
    "a barrier without gradients": (step_without_gradients, "has not sent w@GRAD.trainer_1"),
    "another program": (message(kinds.SEND_BARRIER, "", "other"), "as the program that the trainer runs"),
    "a program to fetch for": (message(kinds.FETCH_BARRIER, "", "other"), "as the program that the trainer runs"),
    "leaves with a value": (message(kinds.COMPLETE, "", True), "may not leave so"),
    "goes on after it has left": (
        lambda said: said.say(said.message(kinds.COMPLETE), said.message(GET, "w", slot=0)), "has left",
    ),
    # kinds that servers don't take
    **{
        f"sends {kind}": (message(kind, "w", ONES), "takes no messages of this kind")
        for kind in (kinds.REPLY, kinds.COLLECTIVE, kinds.PIECE, kinds.TOTAL, kinds.STATEMENT)
    },
    # whose message it is, and which
    "of another trainer": (message(GET, "w", trainer=0, slot=0), "may not send messages of trainer 0"),
    "from another machine": (message(GET, "w", source="trainer_0"), "may not send messages from trainer_0"),
    "from a server": (message(GET, "w", source="pserver_0"), "may not send messages from pserver_0"),
    "to another machine": (message(GET, "w", target="trainer_0"), "to trainer_0"),
    "a number too far": (message(GET, "w", sequence=99), "message 99 has come where"),
    "a number again": (message(GET, "w", sequence=1), "message 1 has come where"),
    "a step before": (message(GET, "w", step=-1), "was further than step -1"),
    "a step beyond all": (message(GET, "w", step=1 << 62), "was further than step"),
    "a step below all": (message(GET, "w", step=-(1 << 62)), "was further than step"),
    # frames
    "talks without end": (
        lambda said: [said.frame(wire.BYE, wire.json_body({"x": "y" * 500_000})) for _ in range(4)] and None,
        "asks and answers with more than",
    ),
    "a frame too far": (lambda said: said.say(said.message(GET, "w"), number=9), "frame 9 has come where"),
    "greets twice": (
        raw(wire.HELLO, wire.json_body({**GREETING, "role": "trainer_1"})),
        "there was a greeting already",
    ),
    "welcomes": (raw(wire.WELCOME, wire.json_body(GREETING)), "there was a greeting already"),
    "answers": (raw(wire.ANSWER, wire.json_body({"number": 1})), "nothing was asked"),
    "asks in no words": (raw(wire.ASK, b"\xff"), "is no JSON"),
    "asks with a list": (raw(wire.ASK, b"[]"), "is no mapping"),
    "comes at no step": (raw(wire.ASK, wire.json_body({"rejoin": "soon"})), "rejoin is no number"),
    "comes at a step below 0": (raw(wire.ASK, wire.json_body({"rejoin": -5})), "rejoin is no number"),
    "comes beyond all steps": (raw(wire.ASK, wire.json_body({"rejoin": 1 << 70})), "rejoin is no number"),
    "asks under a long name": (raw(wire.ASK, wire.json_body({"number": "x" * 100_000})), "number is no number"),
    "says goodbye in no words": (raw(wire.BYE, b"{"), "is no JSON"),
    "many messages, none there": (garbled(put(0, "<I", 1 << 31)), "messages are announced"),
    "no such kind": (garbled(put(4, "<B", 200)), "of no known kind"),
    "no such machine": (garbled(put(8, "<I", 77)), "of machines that the job does not have"),
    "a name without end": (garbled(put(40, "<I", 1 << 31)), "bytes are announced"),
    "a tuple": (garbled(lambda content: content.__setitem__(slice(-1, None), b"\x09" + bytes(9))), "no value begins"),
    "a value of no kind": (garbled(lambda content: content.__setitem__(-1, 99)), "no value begins"),
    "bytes behind": (garbled(lambda content: content.extend(b"more")), "are left behind"),
    "too few bytes": (garbled(lambda content: content.__delitem__(slice(-1, None))), "bytes are announced"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_it_is_told_and_nobody_else_notices(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    wrong, expected = WRONG[name]
    found, reason = play("sync", wrong)
    assert expected in reason
    told = capfd.readouterr().err
    assert "trainer_1 at 127.0.0.1" in told
    assert "is refused, and takes no part any more" in told
    assert found == undisturbed("sync")


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (message(GET, "v", slot=0), "has no variable v"),
        (message(kinds.SEND_BARRIER), "has not sent b@GRAD.trainer_1, w@GRAD.trainer_1"),
        (message(SEND, W, ONES[:2], step=1), "it brings float32[2, 20]"),
    ],
)
def test_what_waits_for_an_update_is_looked_at_after_it(wrong: Callable[[Said], None], expected: str) -> None:
    """The step before it counts, which its trainer has sent in whole."""
    found, reason = play("sync", barriers_and(wrong))
    assert expected in reason
    (losses,) = found.values()
    assert len(losses) == STEPS
    assert losses[0] == undisturbed("sync")["trainer_0"][0]
    assert losses[1:] != undisturbed("sync")["trainer_0"][1:]


def barriers_and(wrong: Callable[[Said], None]) -> Callable[[Said], None]:
    def say(said: Said) -> None:
        said.say(said.message(SEND, W, ONES), said.message(kinds.SEND_BARRIER))
        wrong(said)

    return say


def test_answers_that_are_not_confirmed_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request has some bytes, an answer many, which a server keeps until they are confirmed."""
    monkeypatch.setattr(greeting, "MOST_HELD", 1 << 20)
    undisturbed_bytes = ONES.nbytes * 100

    def ask(said: Said) -> None:
        for _ in range(10):
            said.say(*(said.message(GET, "w", slot=slot) for slot in range(10)))

    _, reason = play("async", ask)
    assert reason.endswith("to it are not confirmed")
    assert int(reason.split()[2]) < undisturbed_bytes


def test_messages_that_wait_for_other_trainers_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that never waits for the others has all its steps kept until they are as far."""
    monkeypatch.setattr(greeting, "MOST_HELD", 1 << 20)
    gate, x = threading.Event(), fed()

    def feed(trainer: int, step: int) -> dict[str, Any] | None:
        if step == 1:
            gate.wait(30)
        return {name: value[step, trainer::2] for name, value in x.items()} if step < STEPS else None

    beside = Beside(job(), feed, STEPS, "trainer_1")
    said = connected(beside)
    start(said)
    with suppress(OSError):
        for step in range(200):
            gradients = [said.message(SEND, name, value, step=step) for name, value in ((W, ONES), ("b" + W[1:], BIAS))]
            barriers = [said.message(kind, step=step) for kind in (kinds.SEND_BARRIER, kinds.FETCH_BARRIER)]
            said.say(*gradients, *barriers)
    assert said.told()["reason"].endswith(" bytes wait until other trainers are as far as trainer_1")
    said.end()
    gate.set()
    (losses,) = beside.end().values()
    assert len(losses) == STEPS


def test_calls_of_fluid_that_wait_for_other_trainers_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gradient is answered at once, however long it waits then."""
    monkeypatch.setattr(greeting, "MOST_HELD", 1 << 20)
    gate, x = threading.Event(), fed()

    def feed(trainer: int, step: int) -> dict[str, Any] | None:
        gate.wait(30)
        return {name: value[step, trainer::2] for name, value in x.items()} if step < STEPS else None

    beside = Beside(job(), feed, STEPS, "trainer_1", foreign_system=FluidSystem())
    caller = Caller(beside.addresses["pserver_0"], 1)
    starts(caller)
    caller.send("b" + W[1:], BIAS)
    caller.send(W, ONES)
    caller.barrier("SendVariable", BATCH_BARRIER_NAME)

    def send_often() -> None:
        for _ in range(200):
            caller.send(W, ONES)

    with pytest.raises(grpc.RpcError, match="bytes wait until other trainers are as far as trainer_1"):
        send_often()
    gate.set()
    for _ in range(100):
        with suppress(grpc.RpcError):
            caller.complete()
            break
        time.sleep(0.05)
    (losses,) = beside.end().values()
    assert len(losses) == STEPS


def test_a_frame_is_no_larger_than_the_job_has_it() -> None:
    """Its header tells, before memory is taken for it."""

    def announce(said: Said) -> None:
        header = bytearray(b"".join(wire.frame(wire.Header(wire.MESSAGES, said.number + 1, 0, 0), b"")))
        struct.pack_into("<Q", header, 32, 1 << 30)
        struct.pack_into("<I", header, 44, zlib.crc32(header[:44]))
        said.sock.sendall(header + bytes(1 << 16))

    most = checks.most_sent(job().cluster(seed=1))
    assert most < 2 * checks.JOINED + (1 << 20)
    losses, reason = play("sync", announce)
    assert reason == f"a frame of {1 << 30} bytes has come, where no trainer sends more than {most}"
    assert len(losses["trainer_0"]) == STEPS


def test_messages_that_are_large_together_travel_in_several_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greeting, "JOINED", 1000)
    monkeypatch.setattr(greeting, "MOST_MESSAGES", 2)
    one = Message(SEND, "trainer_0", "pserver_0", 0, 0, 1, "b", np.zeros(100, "float32"), -1)
    large = one._replace(payload=ONES)
    joined = list(greeting._group_messages([one, large, one, one]))
    assert [[message.payload.size for message in frame] for frame in joined] == [[100], [20_000], [100], [100]]
    few = list(greeting._group_messages([one._replace(payload=None)] * 5))
    assert [len(frame) for frame in few] == [2, 2, 1]
    assert play("sync", None)[0] == undisturbed("sync")


def test_rows_are_looked_up_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """An id has 8 bytes, its row any number."""
    monkeypatch.setattr(checks, "MOST_HELD", 1 << 20)
    few, many = (np.zeros(count, "int64") for count in (21_000, 22_000))

    def ask(said: Said) -> None:
        said.say(said.message(kinds.LOOKUP, "w", few, slot=0))
        assert len(said.answers(1)[0].payload) == len(few)
        said.say(said.message(kinds.LOOKUP, "w", many, slot=1))

    assert play("async", ask)[1].endswith("it asks for 22000 rows of 80 bytes at once")


def test_processes_take_a_role_one_after_the_other_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greeting, "MOST_BEGUN", 3)
    beside = Beside(job("async"), fed(), STEPS, "trainer_1")

    def in_its_place(number: int) -> Said:
        """The connection of the next process, once the server has seen that the one before is over."""
        while True:
            said = connected(beside, incarnation=str(number))
            if b"is here already" not in said.answer[1]:
                return said
            said.end()
            time.sleep(0.02)

    for number in range(4):
        said = in_its_place(number)
        assert said.answer[0] == wire.WELCOME
        said.end()
    said = in_its_place(4)
    told = json.loads(said.answer[1][wire.HEADER_SIZE :])
    assert told == {"again": True, "reason": "3 processes have become trainer_1 within 60 seconds"}
    said.end()
    said = in_its_place(3)
    said.say(said.message(kinds.COMPLETE))
    assert beside.end()


# a server that answers wrongly


class Server:
    """A server that a test plays, to which one trainer comes."""

    def __init__(self, address: str, machines: list[str]):
        host, _, port = address.rpartition(":")
        self.listening = socket.create_server((host, int(port)), reuse_port=True)
        self.machines = machines

    def greeted(self, **welcome: Any) -> Said:
        """The connection of the trainer, which is let in and asks for `b` and `w`."""
        while True:
            sock, _ = self.listening.accept()
            said = Said.taken(sock, "pserver_0", self.machines)
            kind, data = said.next()
            if data:  # else it has looked whether somebody is there
                assert kind == wire.HELLO
                break
        fields = {"job": "job", "incarnation": "server", "role": "pserver_0", "received": 0, "life": 0, "gone": []}
        said.frame(wire.WELCOME, wire.json_body({**fields, **welcome}))
        kind, data = said.next()
        assert kind == wire.MESSAGES
        asked = wire.read_messages(data, self.machines)
        assert {message.variable for message in asked} == {"b", "w"}
        said.slots = {message.variable: message.slot for message in asked}
        return said

    def refused(self, welcome: dict[str, Any]) -> None:
        """Welcomes whoever comes with something wrong, until nobody does."""
        fields = {"job": "job", "incarnation": "server", "role": "pserver_0", "received": 0, "life": 0, "gone": []}
        with suppress(OSError):
            while True:
                sock, _ = self.listening.accept()
                said = Said.taken(sock, "pserver_0", self.machines)
                if said.next()[1]:
                    said.frame(wire.WELCOME, wire.json_body({**fields, **welcome}))


def reply(said: Said, name: str, value: Any, **fields: Any) -> Message:
    fields = {"target": "trainer_0", "trainer": 0, "step": -1, "slot": said.slots[name], **fields}
    return said.message(kinds.REPLY, name, value, **fields)


ANSWERS: dict[str, tuple[Callable[[Said], list[Message]], str]] = {
    "no such slot": (lambda said: [reply(said, "w", ONES, slot=7)], "answers what it was not asked"),
    "a slot below 0": (lambda said: [reply(said, "w", ONES, slot=-1)], "answers what it was not asked"),
    "twice": (lambda said: [reply(said, "w", ONES), reply(said, "w", ONES)], "answers what it was not asked"),
    "nothing": (lambda said: [reply(said, "w", None)], "answers what it was not asked"),
    "no answer": (
        lambda said: [reply(said, "w", ONES)._replace(kind=kinds.SEND)], "may send trainer_0 nothing but answers",
    ),
    "from another machine": (lambda said: [reply(said, "w", ONES, source="trainer_0")], "may not send messages from"),
    "a number too far": (lambda said: [reply(said, "w", ONES, sequence=9)], "message 9 has come where 1 is due"),
    "float64": (lambda said: [reply(said, "b", BIAS), reply(said, "w", ONES.astype("float64"))], "holds float64"),
    "other dims": (lambda said: [reply(said, "b", BIAS), reply(said, "w", ONES[:10])], "holds float32[10, 20]"),
    "a text": (lambda said: [reply(said, "b", BIAS), reply(said, "w", "w")], "the server holds something else"),
    "rows": (lambda said: [reply(said, "b", BIAS), reply(said, "w", ROWS)], "the server holds something else"),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_a_trainer_ends_with_what_was_wrong_with_an_answer(name: str) -> None:
    answers, expected = ANSWERS[name]
    one = JobFolder(dict(ps.compile(ps.load(PROGRAM), ps.Job(pservers=1, trainers=1)).roles()), "job", 2)
    beside = Beside(one, fed(), STEPS, "pserver_0")
    said = Server(beside.addresses["pserver_0"], beside.machines).greeted()
    said.say(*answers(said))
    beside.threads["trainer_0"].join(30)
    said.end()
    problem = beside.problems["trainer_0"]
    assert isinstance(problem, (PeerRefused, ps.DiagnosticError))
    assert expected in str(problem)
    if isinstance(problem, PeerRefused):
        assert str(problem).startswith("pserver_0 at 127.0.0.1:")


@pytest.mark.parametrize(
    ("welcome", "expected"), [({"life": "x"}, "life is no number"), ({"received": -1}, "received is no number")]
)
def test_a_trainer_is_not_let_in_by_what_is_no_welcome(welcome: dict[str, Any], expected: str) -> None:
    one = JobFolder(dict(ps.compile(ps.load(PROGRAM), ps.Job(pservers=1, trainers=1)).roles()), "job", 2)
    beside = Beside(one, fed(), STEPS, "pserver_0", patience=0.5)
    server = Server(beside.addresses["pserver_0"], beside.machines)
    threading.Thread(target=server.refused, args=(welcome,), daemon=True).start()
    beside.threads["trainer_0"].join(30)
    problem = beside.problems["trainer_0"]
    assert isinstance(problem, PeerRefused)
    assert expected in str(problem)


@pytest.mark.parametrize(
    "answer", [{}, {"updates": "x"}, {"updates": -2}, {"updates": 1 << 50}, {"updates": None, "joined": True}]
)
def test_a_trainer_that_comes_again_ends_where_no_step_is_answered(answer: dict[str, Any]) -> None:
    site: Any = SimpleNamespace(peers={"pserver_0": SimpleNamespace(incarnation="1", connection=None)})
    site.cluster = SimpleNamespace(servers=[SimpleNamespace(mode=0)])
    site.ask = lambda role, question, patience: answer
    with pytest.raises(PeerRefused, match="pserver_0 answers what it was not asked: updates is no number of a step"):
        rejoin(site, ["pserver_0"], 1.0)


# trainers without servers

ENDPOINTS = ",".join(f"127.0.0.1:{port}" for port in (6170, 6171, 6172))


def ring(said: Said, payload: Any, **fields: Any) -> Message:
    names = [name for name in said.machines if "/" in name]
    target, source = (next(name for name in names if name.startswith(role)) for role in ("trainer_0", "trainer_2"))
    return said.message(kinds.PIECE, "w@GRAD", payload, target=target, source=source, **fields)


def piece(**fields: Any) -> Piece:
    part = RingContribution("c_allreduce_sum", -1, True, "f32[1000, 20]", ONES)
    known = Piece(0, (0, 0), "w@GRAD", NEVER, part)
    return known._replace(**fields)


def total(key: tuple[int, int], floor: tuple[int, int]) -> Total:
    return Total(1, key, "b@GRAD", floor, (0, 1, 2), BIAS)


PIECES: dict[str, Callable[[Said], Message]] = {
    "a text": lambda said: ring(said, "piece"),
    "no such segment": lambda said: ring(said, piece(segment=9)),
    "no such variable": lambda said: ring(said, piece(variable="v")),
    "float64": lambda said: ring(said, piece(part=piece().part._replace(value=ONES.astype("float64")))),
    "other dims": lambda said: ring(said, piece(part=piece().part._replace(value=ONES[:3]))),
    "another kind": lambda said: ring(said, piece(part=piece().part._replace(kind="c_allreduce_max"))),
    "no such kind": lambda said: ring(said, piece(part=piece().part._replace(kind="c_nothing"))),
    "another form": lambda said: ring(said, piece(part=piece().part._replace(form="f64[1]"))),
    "a value of another kind": lambda said: ring(said, piece(part=piece().part._replace(value=ROWS))),
    "nothing": lambda said: ring(said, piece(part=piece().part._replace(value=None))),
    "a sum of a later step": lambda said: ring(said, total((1 << 39, 0), NEVER))._replace(kind=kinds.TOTAL),
    "a sum before which nothing is kept": lambda said: ring(said, total((0, 0), (5, 0)))._replace(kind=kinds.TOTAL),
}


@pytest.mark.parametrize("name", PIECES)
def test_other_trainers_go_on_without_one_that_sends_a_wrong_part(name: str) -> None:
    three = ps.compile(ps.load(PROGRAM), ps.Job(trainers=ENDPOINTS, mode="grad-allreduce"))
    beside = Beside(JobFolder(dict(three.roles()), "job", 2), fed(), STEPS, "trainer_2")
    said = [connected(beside, beside.addresses[role], "trainer_2") for role in ("trainer_0", "trainer_1")]
    said[0].say(PIECES[name](said[0]))
    assert said[0].told()["again"] is False
    for one in said:
        one.end()
    found = beside.end()
    assert len(found["trainer_0"]) == len(found["trainer_1"]) == STEPS


@pytest.mark.parametrize("lie", ["an answer", "a greeting", "another process", "a refusal"])
def test_nobody_is_given_up_on_the_word_of_one(lie: str, capfd: pytest.CaptureFixture[str]) -> None:
    """A trainer that is heard by the others stays, and does not believe that it is to go."""
    three = ps.compile(ps.load(PROGRAM), ps.Job(trainers=ENDPOINTS, mode="grad-allreduce"))
    beside = Beside(JobFolder(dict(three.roles()), "job", 2), fed(), STEPS, "trainer_2")
    said = [connected(beside, beside.addresses[role], "trainer_2") for role in ("trainer_0", "trainer_1")]
    if lie == "a greeting":
        for role in ("trainer_0", "trainer_1"):
            other = "trainer_1" if role == "trainer_0" else "trainer_0"
            said.append(connected(beside, beside.addresses[role], "trainer_2", gone=[other, role]))
            assert said[-1].answer[0] == wire.WELCOME
    for one in said[-2:]:
        if lie == "an answer":
            one.frame(wire.ANSWER, wire.json_body({"gone": ["trainer_0", "trainer_1"]}))
        elif lie == "a refusal":
            one.frame(wire.REFUSED, wire.json_body({"reason": "go", "again": False}))
    if lie == "another process":
        for role in ("trainer_0", "trainer_1"):
            refused = connected(beside, beside.addresses[role], "trainer_2", knows="nobody")
            assert json.loads(refused.answer[1][wire.HEADER_SIZE :])["again"] is True
            refused.end()
    time.sleep(0.5)
    for one in said:
        one.end()
    found = beside.end()
    assert len(found["trainer_0"]) == len(found["trainer_1"]) == STEPS
    assert "goes on without trainer_0" not in (told := capfd.readouterr().err)
    assert "goes on without trainer_1" not in told


# who is not let in, and who can't be


class _Line:
    """A connection that keeps what is answered."""

    address, is_admitted, guarded = "192.0.2.1:5", False, False

    def __init__(self) -> None:
        self.answered: list[int] = []

    def send(self, header: wire.Header, body: bytes, own: object = None) -> None:
        self.answered.append(header.kind)

    def close(self) -> None:
        self.answered.append(-1)


def test_another_token_leaves_a_line_and_is_answered_later(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    site = Site(job().cluster(seed=1), "pserver_0", TERMS, clock=lambda: now)
    guess = wire.json_body({**GREETING, "token": "guess", "role": "trainer_1"})
    lines = [_Line() for _ in range(1000)]
    for line in lines:
        site.events.put(Event(FRAME, line, b"".join(wire.frame(wire.Header(wire.HELLO, 0, 0, 0), guess))))
    site.run(site.events.empty)
    assert sum(line.answered == [wire.REFUSED, -1] for line in lines) == len(lines) - MOST_TURNED_AWAY
    assert [line.answered for line in lines[:MOST_TURNED_AWAY]] == [[]] * MOST_TURNED_AWAY
    now += SLOW
    site.turn_away(now)
    assert all(line.answered == [wire.REFUSED, -1] for line in lines)
    told = capsys.readouterr().err.splitlines()
    assert len(told) == AT_ONCE
    assert told[0] == "pstranspile start: pserver_0: 192.0.2.1:5 is not let in: the token is another"
    site.events.close(0.0)


def test_a_trainer_that_takes_part_again_is_no_claim_that_it_is_gone() -> None:
    """Only trainers without servers have to agree on who is gone; a server's own word is no claim to doubt later."""
    now = 0.0
    site = Site(job().cluster(seed=1), "pserver_0", TERMS, clock=lambda: now)
    peer = site.peers["trainer_1"]
    site.give_up(peer, "it was not heard")
    peer.begin_anew("another process")
    for _ in range(4):
        now += TERMS.lease
        peer.heard_at = now
        site.judge_claims(now)
    assert not peer.left


# whoever has the token and says that it is a machine that calls nobody


@pytest.mark.parametrize(("role", "at"), [("pserver_1", "pserver_0"), ("pserver_0", "pserver_1")])
def test_no_server_comes_to_a_server(role: str, at: str) -> None:
    """It could say the messages of all trainers, and that something is wrong, at which a server would end."""
    two = ps.compile(ps.load(PROGRAM), ps.Job(pservers=2, trainers=1))
    beside = Beside(JobFolder(dict(two.roles()), "job", 2), fed(), STEPS, "trainer_0")
    said = connected(beside, beside.addresses[at], role)
    assert json.loads(said.answer[1][wire.HEADER_SIZE :]) == {
        "again": False,
        "reason": f"{role} does not connect to {at}, but the other way round, if at all",
    }
    said.end()
    for server in ("pserver_0", "pserver_1"):
        trainer = connected(beside, beside.addresses[server], "trainer_0")
        trainer.say(trainer.message(kinds.COMPLETE, target=server))
        trainer.end()
    beside.end()


def test_a_trainer_that_comes_to_another_server_is_told_and_not_given_up() -> None:
    """Its address is wrong, not the trainer: with the right one it takes part."""
    two = ps.compile(ps.load(PROGRAM), ps.Job(pservers=2, trainers=1))
    beside = Beside(JobFolder(dict(two.roles()), "job", 2), fed(), STEPS, "trainer_0")
    said = connected(beside, beside.addresses["pserver_1"], "trainer_0", to="pserver_0")
    assert json.loads(said.answer[1][wire.HEADER_SIZE :]) == {
        "again": False,
        "reason": "pserver_0 was expected at this address, where pserver_1 listens",
    }
    said.end()
    for server in ("pserver_0", "pserver_1"):
        trainer = connected(beside, beside.addresses[server], "trainer_0", to=server)
        trainer.say(trainer.message(kinds.COMPLETE, target=server))
        trainer.end()
    beside.end()


def test_no_trainer_comes_to_one_after_it() -> None:
    three = ps.compile(ps.load(PROGRAM), ps.Job(trainers=ENDPOINTS, mode="grad-allreduce"))
    beside = Beside(JobFolder(dict(three.roles()), "job", 2), fed(), STEPS, "trainer_2")
    refused = connected(beside, beside.addresses["trainer_1"], "trainer_0")
    assert b"trainer_0 does not connect to trainer_1" in refused.answer[1]
    refused.end()
    said = [connected(beside, beside.addresses[role], "trainer_2") for role in ("trainer_0", "trainer_1")]
    for one in said:
        one.end()
    assert len(beside.end()["trainer_0"]) == STEPS


def test_what_is_sent_again_is_added_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer that confirms nothing has all answers sent again at every greeting, which costs it a few bytes."""
    summed = 0

    def counted(data: bytes) -> int:
        nonlocal summed
        summed += len(data) > ONES.nbytes
        return check_sum(data)

    check_sum = wire.check_sum
    monkeypatch.setattr(peer, "check_sum", counted)
    beside = Beside(job("async"), fed(), STEPS, "trainer_1")
    said = connected(beside)
    said.say(said.message(kinds.GET_NOW, "w", slot=0))
    assert len(said.answers(1)) == 1
    for _ in range(20):
        again = connected(beside)
        assert again.answers(1)[0].payload.shape == ONES.shape
        said.end()
        said, said.number, said.sequences = again, said.number, said.sequences
    trainers = 1 + STEPS  # what the other trainer asks for and sends in its steps
    assert summed <= 4 * trainers
    said.say(said.message(kinds.COMPLETE))
    said.end()
    beside.end()
