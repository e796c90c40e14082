"""Jobs whose trainers do not wait for the servers: communicators, step counters, delay compensation."""

from __future__ import annotations

import pytest

from pstranspile.ir.attributes import Longs
from pstranspile.ir.types import DType
from tests.link.damage import (
    attrs,
    both,
    declared,
    dropped,
    inputs,
    moved,
    on,
    reversed_attr,
    reversed_slot,
    strings,
)
from tests.link.jobs import Case, assert_found

COUNTER = "@LR_DECAY_COUNTER@"

CASES = [
    Case(
        "fleet sync",
        "trainer_1",
        on("send", attrs(sections=Longs([11, 9])), about="w@GRAD"),
        "link-send",
        "trainer_1",
        "%w@GRAD.block0.trainer_1 has another type on pserver_1: 11 rows of",
    ),
    Case(
        "fleet sync",
        "trainer_1",
        on("send", attrs(sections=Longs([10, 9])), about="w@GRAD"),
        "link-partition",
        "trainer_1",
        "the sections [10, 9] of %w@GRAD have 19 rows, it has 20",
    ),
    Case(
        "fleet sync",
        "trainer_1",
        on("send", attrs(sections=Longs([20])), about="w@GRAD"),
        "link-partition",
        "trainer_1",
        "1 variables with 1 sections are sent as 2",
    ),
    Case(
        "fleet sync",
        "trainer_1",
        on("send", attrs(send_varnames=strings("v@GRAD.trainer_0")), about="v@GRAD"),
        "link-unsent",
        "pserver_0",
        "%v@GRAD.trainer_1 is sent by 0 trainers",
    ),
    Case(
        "fleet sync",
        "trainer_1",
        both(
            on("send", reversed_attr("send_varnames"), about="w@GRAD"),
            on("send", reversed_attr("epmap"), about="w@GRAD"),
        ),
        "link-partition",
        "trainer_1",
        "%w@GRAD.block1.trainer_1 is piece 0",
    ),
    Case(
        "fleet sync",
        "trainer_1",
        on("send_barrier", dropped),
        "link-barrier",
        "trainer_1",
        "0 send_barrier ops per step",
    ),
    Case(
        "half-async",
        "trainer_1",
        on("send_barrier", attrs(half_async=False)),
        "link-barrier",
        "trainer_1",
        "half_async is False, but a communicator",
    ),
    Case(
        "half-async",
        "pserver_0",
        on("listen_and_serv", attrs(grad_to_block_id=strings("b@GRAD:1", "w@GRAD.block1:3"))),
        "link-blocks",
        "pserver_0",
        "block 2 uses %v@GRAD",
    ),
    Case(
        "half-async",
        "trainer_0",
        on("send", dropped, about="v@GRAD"),
        "link-unsent",
        "pserver_0",
        "%v@GRAD is sent by 1 trainers (trainer 1)",
    ),
    Case(
        "run-time split",
        "trainer_0",
        on("recv", reversed_attr("recv_varnames"), about="w"),
        "link-receive",
        "trainer_0",
        "does not hold %w.block1",
    ),
    Case(
        "run-time split",
        "trainer_0",
        on("recv", attrs(recv_varnames=strings("w.block0"), epmap=strings("b:2")), about="w"),
        "link-partition",
        "trainer_0",
        "the slices of %w have 500 rows, it has 1000",
    ),
    Case(
        "run-time split",
        "trainer_0",
        on("recv", inputs(X=["__control_var@b"]), about="w"),
        "link-order",
        "trainer_0",
        "the fetch of %w does not wait for the send of",
    ),
    Case(
        "run-time split",
        "trainer_0",
        declared("w", dtype=DType.FP64),
        "link-receive",
        "trainer_0",
        "%w.block0 has another type",
    ),
    Case(
        "async",
        "trainer_0",
        moved("recv", about="b", to=0),
        "link-order",
        "trainer_0",
        "recv: in trainer_0: no op before it makes",
    ),
    Case(
        "async",
        "trainer_1",
        on("send", dropped, about=f"{COUNTER}.trainer_1"),
        "link-counter",
        "pserver_0",
        f"sum: in pserver_0: %{COUNTER}.trainer_1 is sent by 0",
    ),
    Case(
        "async",
        "trainer_1",
        on("send", attrs(epmap=strings("a:1")), about=f"{COUNTER}.trainer_1"),
        "link-counter",
        "pserver_1",
        f"%{COUNTER}.trainer_1 is sent by 0",
    ),
    Case(
        "async",
        "trainer_1",
        on("send", attrs(epmap=strings("a:1", "z:9")), about=f"{COUNTER}.trainer_1"),
        "link-counter",
        "trainer_1",
        f"%{COUNTER}.trainer_1 goes to 'z:9'",
    ),
    Case(
        "async",
        "trainer_1",
        on("send", inputs(X=[f"{COUNTER}.trainer_0"]), about=f"{COUNTER}.trainer_1"),
        "link-counter",
        "pserver_0",
        f"%{COUNTER}.trainer_0 is sent by 2",
    ),
    Case(
        "async",
        "pserver_0",
        on("sum", inputs(X=[f"{COUNTER}.trainer_0"]), block=1),
        "link-counter",
        "pserver_0",
        f"%{COUNTER} adds up the counters of trainers [0]",
    ),
    Case(
        "async",
        "trainer_0",
        declared(f"{COUNTER}.trainer_0", dtype=DType.FP32),
        "link-counter",
        "trainer_0",
        f"%{COUNTER}.trainer_0 is LOD_TENSOR f32[1] here",
    ),
    Case(
        "dc-asgd",
        "pserver_0",
        on("assign", dropped, about="b.trainer_1_bak", startup=True),
        "link-backup",
        "pserver_0",
        "%b.trainer_1_bak is not filled with %b",
    ),
    Case(
        "dc-asgd",
        "pserver_0",
        on("assign", inputs(X=["v"]), about="b.trainer_1_bak", startup=True),
        "link-backup",
        "pserver_0",
        "%b.trainer_1_bak is not filled with %b",
    ),
    Case(
        "dc-asgd",
        "pserver_0",
        on("ref_by_trainer_id", inputs(X=["b.trainer_0_bak"]), block=1),
        "link-backup",
        "pserver_0",
        "the copies of %b are %b.trainer_0_bak, must be",
    ),
    Case(
        "dc-asgd",
        "pserver_0",
        on("ref_by_trainer_id", reversed_slot("X"), block=1),
        "link-backup",
        "pserver_0",
        "the copies of %b are %b.trainer_1_bak, %b.trainer_0_bak",
    ),
    Case(
        "dc-asgd",
        "pserver_0",
        declared("b.trainer_0_bak", shape=[7]),
        "link-backup",
        "pserver_0",
        "%b.trainer_0_bak is LOD_TENSOR f32[7]",
    ),
    Case(
        "dc-asgd",
        "pserver_0",
        on("listen_and_serv", attrs(dc_asgd=False)),
        "link-backup",
        "pserver_0",
        "@TRAINER_ID@ is chosen by trainer, but dc_asgd is not set",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_damage_is_found(case: Case) -> None:
    assert_found(case)
