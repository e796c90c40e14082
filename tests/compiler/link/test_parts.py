"""Jobs with several training programs, and programs that only read parameters."""

from __future__ import annotations

import pytest

from pstranspile.ir.attributes import Longs
from tests.compiler.link.damage import attrs, dropped, in_program, inputs, on, strings
from tests.compiler.link.jobs import Case, assert_found

JOB = "several programs"
SECOND, READING = "trainer_1 @second", "trainer_1 @reading"
LOOKUP = "distributed_lookup_table"

CASES = [
    Case(
        JOB,
        "trainer_1",
        in_program("second", on("send", dropped, about="b@GRAD@second.trainer_1")),
        "link-merge",
        "pserver_0",
        "it adds up 2 gradients of the trainers 0, there are 2",
    ),
    Case(
        JOB,
        "trainer_1",
        in_program("second", on("send", dropped, about="v2@GRAD.trainer_1")),
        "link-unsent",
        "pserver_1",
        "%v2@GRAD.trainer_1 is sent by 0 trainers",
    ),
    Case(
        JOB,
        "trainer_1",
        in_program("second", on("send", attrs(epmap=strings("z:9")), about="b@GRAD@second.trainer_1")),
        "link-send",
        SECOND,
        "%b@GRAD@second.trainer_1 goes to 'z:9'",
    ),
    Case(
        JOB,
        "trainer_1",
        in_program("second", on("send_barrier", dropped)),
        "link-barrier",
        SECOND,
        "0 send_barrier ops per step",
    ),
    Case(
        JOB,
        "trainer_1",
        in_program("second", on("recv", dropped, about="b")),
        "link-unfetched",
        "pserver_0",
        "%b is updated here, but fetched by 1 of 2 trainers (not trainer_1 @second)",
    ),
    Case(
        JOB,
        "trainer_1",
        in_program("second", on("recv", attrs(trainer_id=0), about="b")),
        "link-identity",
        "trainer_1",
        "it says trainer_id 0 for %b",
    ),
    Case(
        JOB,
        "trainer_1",
        in_program("reading", on(LOOKUP, attrs(height_sections=Longs([1, 2])))),
        "link-lookup",
        READING,
        "height_sections [1, 2] are not the rows of %table",
    ),
    Case(
        JOB,
        "trainer_1",
        in_program("reading", on("mul", inputs(Y=["table"]))),
        "link-unfetched",
        READING,
        "mul: in trainer_1 @reading: %table has no value",
    ),
    Case(
        "several programs, async",
        "trainer_1",
        in_program("second", on("send", dropped, about="b@GRAD@second")),
        "link-unsent",
        "pserver_0",
        "%b@GRAD@second is sent by 1 trainers (trainer 0)",
    ),
    Case(JOB, "pserver_0", on("sgd", dropped, block=4), "link-blocks", "pserver_0", "block 4 does not update"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_damage_is_found(case: Case) -> None:
    assert_found(case)
