"""The blocks of servers, and what they are made for."""

from __future__ import annotations

import pytest

from pstranspile.ir.attributes import BlockRefs, Longs
from tests.compiler.link.damage import attrs, declared, dropped, inputs, on, outputs, strings, undeclared
from tests.compiler.link.jobs import Case, assert_found

CASES = [
    Case(
        "sync",
        "pserver_0",
        on("listen_and_serv", attrs(Fanin=3)),
        "link-barrier",
        "pserver_0",
        "it waits for 3 trainers of 2",
    ),
    Case(
        "sync",
        "pserver_0",
        on("listen_and_serv", attrs(optimize_blocks=BlockRefs([1, 77]))),
        "link-blocks",
        "pserver_0",
        "optimize_blocks [1, 77]",
    ),
    Case(
        "sync",
        "pserver_0",
        on("listen_and_serv", attrs(optimize_blocks=BlockRefs())),
        "link-blocks",
        "pserver_0",
        "optimize_blocks []",
    ),
    Case(
        "sync",
        "pserver_0",
        on("listen_and_serv", attrs(optimize_blocks=BlockRefs([1, 3]))),
        "link-blocks",
        "pserver_0",
        "%v@GRAD.trainer_0 is received, but no block uses it",
    ),
    Case(
        "sync",
        "pserver_0",
        on("listen_and_serv", attrs(grad_to_block_id=strings("b@GRAD:1", "v@GRAD:3", "w@GRAD.block1:2"))),
        "link-blocks",
        "pserver_0",
        "grad_to_block_id names 'v@GRAD:3'",
    ),
    Case(
        "sync",
        "pserver_0",
        on("listen_and_serv", attrs(lr_decay_block_id=3)),
        "link-blocks",
        "pserver_0",
        "lr_decay_block_id 3",
    ),
    Case(
        "sync",
        "pserver_0",
        on("listen_and_serv", attrs(endpoint="b:2")),
        "link-identity",
        "pserver_1",
        "the endpoint b:2 is that of pserver_0 too",
    ),
    Case(
        "sync",
        "pserver_1",
        on("listen_and_serv", attrs(pserver_id=0)),
        "link-identity",
        "pserver_1",
        "pserver_id 0 is that of pserver_0 too",
    ),
    Case(
        "sync",
        "pserver_1",
        on("listen_and_serv", attrs(distributed_mode=2)),
        "link-barrier",
        "pserver_1",
        "distributed_mode is 2, on pserver_0 it is 0",
    ),
    Case(
        "sync",
        "pserver_1",
        on("adam", dropped, block=1),
        "link-owner",
        "trainer_0",
        "%c is fetched from b:2, updated by none",
    ),
    Case(
        "sync",
        "pserver_1",
        on("adam", outputs(ParamOut=["c", "b"]), block=1),
        "link-owner",
        "trainer_0",
        "%b is fetched from a:1, updated by a:1, b:2",
    ),
    Case(
        "sync",
        "pserver_1",
        on("sum", inputs(X=["c@GRAD.trainer_0"]), block=1),
        "link-merge",
        "pserver_1",
        "it adds up 1 gradients",
    ),
    Case(
        "sync",
        "pserver_1",
        on("sum", inputs(X=["c@GRAD.trainer_0", "c@GRAD.trainer_0"]), block=1),
        "link-merge",
        "pserver_1",
        "the trainers 0, 0",
    ),
    Case(
        "sync",
        "pserver_1",
        on("scale", attrs(scale=0.25), block=1),
        "link-merge",
        "pserver_1",
        "%c@GRAD, the sum of 2 gradients, is multiplied by 0.25",
    ),
    Case(
        "sync",
        "pserver_1",
        on("scale", dropped, block=1),
        "link-merge",
        "pserver_1",
        "%c@GRAD, the sum of 2 gradients, is multiplied by 1.0",
    ),
    Case(
        "sync",
        "pserver_1",
        on("fill_constant", dropped, about="c_beta1_pow_acc_0", startup=True),
        "link-unserved",
        "pserver_1",
        "adam: in pserver_1: %c_beta1_pow_acc_0 is neither received",
    ),
    Case(
        "sync",
        "pserver_1",
        undeclared("w@GRAD.block0.trainer_1"),
        "link-send",
        "trainer_1",
        "%w@GRAD.block0.trainer_1 has another type on pserver_1",
    ),
    Case(
        "sync",
        "pserver_1",
        declared("w_moment1_0", shape=[20, 50]),
        "link-state",
        "pserver_1",
        "%w_moment1_0 is [20, 50], but %w.block0 is [10, 50]",
    ),
    Case(
        "sync",
        "pserver_1",
        on("fill_constant", attrs(shape=Longs([20, 50])), about="w_moment1_0", startup=True),
        "link-state",
        "pserver_1",
        "it makes %w_moment1_0 as [20, 50]",
    ),
    Case(
        "sync", "pserver_1", on("listen_and_serv", dropped), "link-send", "trainer_0", "%c@GRAD.trainer_0 goes to 'b:2'"
    ),
    Case(
        "sync",
        "pserver_1",
        on("listen_and_serv", attrs(pserver_id=5)),
        "link-identity",
        "pserver_1",
        "pserver_id is 5 of 2 servers",
    ),
    Case(
        "sync",
        "pserver_1",
        on("adam", inputs(Grad=["c_moment1_0"]), block=1),
        "link-blocks",
        "pserver_1",
        "adam: in pserver_1: block 1 does not update %c, or not with what it receives",
    ),
    Case(
        "sync",
        "pserver_1",
        on("adam", outputs(ParamOut=["c_moment1_0"]), block=1),
        "link-blocks",
        "pserver_1",
        "block 1 does not update %c",
    ),
    Case(
        "sync",
        "pserver_1",
        on("scale", outputs(Out=["c"]), block=1),
        "link-merge",
        "pserver_1",
        "%c@GRAD, the sum of 2 gradients, is multiplied by 1.0",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_damage_is_found(case: Case) -> None:
    assert_found(case)
