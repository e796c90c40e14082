"""What strangers say to a server at work: it serves its job on, to the bit, and they can't keep others out.

CI sends a few hundred mutated frames and calls; PSTRANSPILE_HOSTILE says how many, PSTRANSPILE_HOSTILE_SEED which.
"""

from __future__ import annotations

import json
import random
import socket
import struct
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from pstranspile.cluster.machines.message import COMPLETE, GET, SEND, SEND_BARRIER, Message
from pstranspile.cluster.machines.simulate import simulate
from pstranspile.cluster.net.http2 import PREFACE
from pstranspile.cluster.net.transport import MOST_STRANGERS
from pstranspile.cluster.net.wire import (
    ALIVE,
    ANSWER,
    ASK,
    BYE,
    HEADER_SIZE,
    HELLO,
    MESSAGES,
    WELCOME,
    Header,
    check_sum,
    frame,
    json_body,
    messages_body,
)
from pstranspile.fluid.net.message import SERVICE, VariableMessage, write_value, write_variable
from pstranspile.runtime.values import SelectedRows
from tests.cluster.net.campaign import runs
from tests.cluster.net.played import compiled, play
from tests.cluster.net.strangers import connect, say

PROGRAM = str(Path(__file__).parents[3] / "examples" / "regression.ir")
STEPS, COUNT, SEED = 20, runs("PSTRANSPILE_HOSTILE", 400), runs("PSTRANSPILE_HOSTILE_SEED", 1)
MACHINES = {"pserver_0": 0, "trainer_0": 1, "trainer_1": 2}


def whole(kind: int, number: int, body: bytes) -> bytes:
    return b"".join(frame(Header(kind, number, 0, 0), body))


def frames() -> list[bytes]:
    """What machines of the job say to each other, and a greeting with another token."""
    hello = {"job": "job", "token": "guess", "incarnation": "1", "role": "trainer_1", "received": 0, "knows": ""}
    wrong = [
        {**hello, "token": None}, {**hello, "token": "\udc80"}, {**hello, "role": ["trainer_1"]},
        {**hello, "token": "token", "job": {}}, {**hello, "token": "token", "role": "pserver_0"},
        {**hello, "token": "token", "role": ["trainer_1"]}, {**hello, "token": "token", "received": -1},
        {**hello, "token": "token", "incarnation": ""}, {"welcome": 1},
    ]  # fmt: skip
    gradient = np.ones((1000, 20), "float32")
    said = [
        Message(SEND, "trainer_1", "pserver_0", 1, 3, 9, "w@GRAD.trainer_1", gradient, -1),
        Message(SEND, "trainer_1", "pserver_0", 1, 3, 9, "w@GRAD", SelectedRows(np.array([1]), gradient[:1], 1000), -1),
        Message(SEND_BARRIER, "trainer_1", "pserver_0", 1, 3, 10, "", None, -1),
        Message(GET, "trainer_1", "pserver_0", 1, 3, 11, "w", None, 0),
        Message(COMPLETE, "trainer_1", "pserver_0", 1, 3, 12, "", None, -1),
    ]
    greetings = [whole(HELLO, 0, json_body(fields)) for fields in (hello, *wrong)]
    question = {"rejoin": 7, "number": 1}
    others = [whole(kind, 0, json_body(question)) for kind in (ASK, ANSWER, BYE, WELCOME)]
    carried = [whole(MESSAGES, n + 1, messages_body([one], MACHINES)) for n, one in enumerate(said)]
    return [*greetings, *others, *carried, whole(ALIVE, 0, b"")]


def calls() -> list[tuple[str, bytes]]:
    """What trainers of Fluid say to a server."""
    gradient = np.ones((1000, 20), "float32")
    sends = VariableMessage("w@GRAD.trainer_1", trainer_id=1)
    return [
        ("SendVariable", write_value(sends, gradient)),
        ("SendVariable", write_value(sends, SelectedRows(np.array([1]), gradient[:1], 1000))),
        ("SendVariable", write_variable(VariableMessage("BATCH_BARRIER@RECV"))),
        ("SendVariable", write_variable(VariableMessage("COMPLETE@RECV", trainer_id=1))),
        ("GetVariable", write_variable(VariableMessage("w", out_varname="w", trainer_id=1))),
        ("GetVariable", write_variable(VariableMessage("FETCH_BARRIER@RECV"))),
        ("GetVariableNoBarrier", write_variable(VariableMessage("w@WITHOUT_BARRIER@RECV", trainer_id=1))),
        ("PrefetchVariable", write_value(VariableMessage("ids", table_name="w"), np.array([[1], [5]]))),
        ("CheckpointNotify", write_variable(VariableMessage("SAVE@CHECKPOINTNOTIFY", out_varname="/"))),
        ("DistributeNotify", write_value(VariableMessage("lr", trainer_id=1), np.array([1]))),
    ]


def mutated(data: bytes, draw: random.Random) -> bytes:
    """The bytes with a few of them changed, cut out or put in."""
    found = bytearray(data)
    for _ in range(draw.choice([0, 1, 1, 2, 8])):
        at = draw.randrange(min(len(found), draw.choice([64, 256, len(found)])) or 1) if found else 0
        kind = draw.randrange(4)
        if kind == 0 and found:
            found[at] ^= 1 << draw.randrange(8)
        elif kind == 1 and found:
            found[at] = draw.choice([0, 1, 127, 128, 255])
        elif kind == 2:
            del found[at : at + draw.randrange(1, 9)]
        else:
            found[at:at] = draw.randbytes(draw.randrange(1, 9))
    return bytes(found)


def repaired(data: bytes) -> bytes:
    """The frame with the sizes and check sums that its bytes should have."""
    if len(data) < HEADER_SIZE:
        return data
    body = data[HEADER_SIZE:]
    fields = data[:32] + struct.pack("<QI", len(body), check_sum(body))
    return fields + struct.pack("<I", zlib.crc32(fields)) + body


def may_be_let_in(data: bytes) -> bool:
    """Whether a greeting is that of a machine of the job after all."""
    try:
        fields = json.loads(data[HEADER_SIZE:])
        return fields["token"] == "token" and fields["job"] == "job" and fields["role"] == "trainer_1"
    except (ValueError, TypeError, KeyError):
        return False


def http2(draw: random.Random) -> bytes:
    """The bytes of a connection on which a trainer of Fluid makes a call."""
    method, message = draw.choice(calls())
    path = f"/{SERVICE}/{method}".encode()
    block = b"\x83\x86\x44" + bytes([len(path)]) + path
    data = struct.pack(">BI", 0, len(message)) + message
    pieces = [(4, 0, 0, b""), (1, 4, 1, block), (6, 0, 0, bytes(8)), (0, 1, 1, data), (8, 0, 0, b"\0\0\1\0")]
    return PREFACE + b"".join(
        struct.pack(">I", len(body))[1:] + struct.pack(">BBI", kind, flags, stream) + body
        for kind, flags, stream, body in pieces
    )


class Attack:
    """Says `COUNT` things to a server, in a thread of its own; the job goes on as it does."""

    def __init__(self, address: str):
        self.done = 0
        self.address = address
        self.answers: dict[str, int] = {}
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        draw = random.Random(SEED)
        channel = grpc.insecure_channel(self.address, [("grpc.use_local_subchannel_pool", 1)])
        known, asked = frames(), calls()
        while self.done < COUNT:
            if draw.random() < 0.5:
                data = mutated(draw.choice(known), draw)
                data = repaired(data) if draw.random() < 0.8 else data
                if may_be_let_in(data):
                    continue
                self._count("frames answered" if say(self.address, data) else "frames cut off")
            elif draw.random() < 0.3:
                self._count("streams answered" if say(self.address, mutated(http2(draw), draw)) else "streams cut off")
            else:
                method, data = draw.choice(asked)
                call, data = channel.unary_unary(f"/{SERVICE}/{method}"), mutated(data, draw)
                self._try(lambda call=call, data=data: call(data, timeout=30))
            self.done += 1

    def _count(self, answer: str) -> None:
        self.answers[answer] = self.answers.get(answer, 0) + 1

    def _try(self, call: Any) -> None:
        try:
            call()
            answer = "answered"
        except grpc.RpcError as problem:
            status: Any = problem
            answer = status.code().name
        self._count(answer)


def test_mutated_frames_and_calls_change_nothing(tmp_path: Path) -> None:
    job = compiled(tmp_path, PROGRAM, "--pservers", "1", "--trainers", "2")
    x = np.random.RandomState(0).rand(STEPS, 8, 1000).astype("float32")
    y = x[:, :, :20].copy()
    addresses: list[str] = []
    attacks: list[Attack] = []

    def through(_trainer: str, address: str) -> str:
        addresses.append(address)
        return address

    def feed(trainer: int, step: int) -> dict[str, Any] | None:
        if step >= STEPS:
            return None
        if trainer == 0 and step and not attacks:  # both trainers are here then
            attacks.append(Attack(addresses[0]))
        while trainer == 0 and step and attacks[0].done < COUNT * (step + 1) // STEPS:
            time.sleep(0.001)
        return {"x": x[step, trainer::2], "y": y[step, trainer::2]}

    found = play(job, feed, STEPS, through=through, fluid=True, fetch=["loss"])
    expected = simulate(job.roles, feed, STEPS, ["loss"], seed=1)
    assert attacks[0].done == COUNT
    print(f"{COUNT} frames and calls: {attacks[0].answers}")
    bytes_sent = {f"{kind} {how}" for kind in ("frames", "streams") for how in ("answered", "cut off")}
    refused = {"INVALID_ARGUMENT", "ALREADY_EXISTS"}
    more = {"NOT_FOUND", "FAILED_PRECONDITION", "UNIMPLEMENTED", "UNAVAILABLE"}  # the last one when it has to go
    assert bytes_sent | refused <= set(attacks[0].answers) <= bytes_sent | refused | more, attacks[0].answers
    for name, value in expected.arrays().items():
        np.testing.assert_array_equal(found.arrays()[name], value, err_msg=name)


def test_strangers_that_say_nothing_keep_nobody_out(tmp_path: Path) -> None:
    job = compiled(tmp_path, PROGRAM, "--pservers", "1", "--trainers", "1")
    x = np.random.RandomState(0).rand(2, 8, 1000).astype("float32")
    opened: list[socket.socket] = []

    def through(_trainer: str, address: str) -> str:
        opened.extend(patiently(address) for _ in range(4 * MOST_STRANGERS))
        return address

    found = play(job, {"x": x, "y": x[:, :, :20].copy()}, 2, through=through, fetch=["loss"])
    for sock in opened:
        sock.close()
    assert len(found.fetched[0]["loss"]) == 2


def patiently(address: str) -> socket.socket:
    """A connection to a port that somebody will listen on soon."""
    while True:
        try:
            return connect(address)
        except ConnectionRefusedError:
            time.sleep(0.01)


@pytest.mark.parametrize("size", [1 << 21, 100])
def test_a_stranger_says_no_more_than_a_greeting(size: int, tmp_path: Path) -> None:
    """One that is too long, or a second frame, ends the connection before anybody reads it."""
    job = compiled(tmp_path, PROGRAM, "--pservers", "1", "--trainers", "1")
    x = np.random.RandomState(0).rand(1, 8, 1000).astype("float32")
    ended: list[bytes] = []

    def through(_trainer: str, address: str) -> str:
        patiently(address).close()
        hello = whole(HELLO, 0, json_body({"token": "x" * size}))
        ended.append(say(address, hello + hello, more=True))
        return address

    play(job, {"x": x, "y": x[:, :, :20].copy()}, 1, through=through)
    assert ended == [b""]
