"""A trainer of the job says something wrong: it is told what, and takes no part any more; nobody else notices."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.net.frames import ANSWER, ASK, BYE, HELLO, MESSAGES, WELCOME, json_body, messages_body
from pstranspile.net.job import JobFolder
from pstranspile.run.cluster import message as kinds
from pstranspile.values import LoDTensor, SelectedRows
from tests.net.wrong import GREETING, Beside, Said

PROGRAM = Path(__file__).parents[2] / "examples" / "regression.ir"
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


def connected(beside: Beside, **fields: Any) -> Said:
    for _ in range(200):
        try:
            return Said(beside.addresses["pserver_0"], "trainer_1", beside.machines, **fields)
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


def barrier_twice(said: Said) -> None:
    said.say(said.message(kinds.SEND, "w@GRAD.trainer_1", ONES), *(said.message(kinds.SEND_BARRIER) for _ in range(2)))
    said.say(said.message(kinds.FETCH_BARRIER))


def raw(kind: int, content: bytes, number: int = 0) -> Callable[[Said], None]:
    return lambda said: said.frame(kind, content, number=number)


def garbled(change: Callable[[bytearray], None]) -> Callable[[Said], None]:
    """A message whose bytes are changed."""

    def say(said: Said) -> None:
        numbers = {name: number for number, name in enumerate(said.machines)}
        content = bytearray(messages_body([said.message(kinds.GET, "w", slot=0)], numbers))
        change(content)
        said.frame(MESSAGES, bytes(content), number=said.number + 1)

    return say


def put(place: int, form: str, value: int) -> Callable[[bytearray], None]:
    return lambda content: struct.pack_into(form, content, place, value)


ROWS = SelectedRows(np.array([1, 2]), ONES[:2], 1000)
W, GET, SEND = "w@GRAD.trainer_1", kinds.GET, kinds.SEND
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
    "a tuple": (message(SEND, W, (ONES,)), "it brings a tuple"),
    "a text that a terminal obeys": (message(SEND, "\x1b[2J\nerror", ONES), "\\u001b[2J\\nerror"),
    # requests
    "asks for no variable": (message(GET, "v", slot=0), "takes"),
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
    "a frame too far": (lambda said: said.say(said.message(GET, "w"), number=9), "frame 9 has come where"),
    "greets twice": (raw(HELLO, json_body({**GREETING, "role": "trainer_1"})), "there was a greeting already"),
    "welcomes": (raw(WELCOME, json_body(GREETING)), "there was a greeting already"),
    "answers": (raw(ANSWER, json_body({"number": 1})), "nothing was asked"),
    "asks in no words": (raw(ASK, b"\xff"), "is no JSON"),
    "asks with a list": (raw(ASK, b"[]"), "is no mapping"),
    "comes at no step": (raw(ASK, json_body({"rejoin": "soon"})), "rejoin is no number"),
    "comes at a step below 0": (raw(ASK, json_body({"rejoin": -5})), "rejoin is no number"),
    "comes beyond all steps": (raw(ASK, json_body({"rejoin": 1 << 70})), "rejoin is no number"),
    "says goodbye in no words": (raw(BYE, b"{"), "is no JSON"),
    "many messages, none there": (garbled(put(0, "<I", 1 << 31)), "messages are announced"),
    "no such kind": (garbled(put(4, "<B", 200)), "of no known kind"),
    "no such machine": (garbled(put(8, "<I", 77)), "of machines that the job does not have"),
    "a name without end": (garbled(put(40, "<I", 1 << 31)), "bytes are announced"),
    "a value of no kind": (garbled(lambda content: content.__setitem__(-1, 99)), "no value begins"),
    "bytes behind": (garbled(lambda content: content.extend(b"more")), "are left behind"),
    "too few bytes": (garbled(lambda content: content.__delitem__(slice(-1, None))), "bytes are announced"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_it_is_told_and_nobody_else_notices(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    wrong, expected = WRONG[name]
    if name == "asks for no variable":  # which waits until variables are served again
        wrong = barriers_and(wrong)
        expected = "has no variable v"
    found, reason = play("sync", wrong)
    assert expected in reason
    told = capfd.readouterr().err
    assert "trainer_1 at 127.0.0.1" in told
    assert "is refused, and takes no part any more" in told
    if name != "asks for no variable":
        assert found == undisturbed("sync")


def barriers_and(wrong: Callable[[Said], None]) -> Callable[[Said], None]:
    def say(said: Said) -> None:
        said.say(said.message(SEND, W, ONES), said.message(kinds.SEND_BARRIER))
        wrong(said)

    return say
