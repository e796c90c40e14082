"""Mode geo: trainers push changes."""

from __future__ import annotations

import pytest

from pstranspile.ir.attributes import Longs
from tests.compiler.link.damage import attrs, declared, dropped, inputs, moved, on, strings
from tests.compiler.link.jobs import Case, assert_found

GEO = "word2vec_sparse_sgd/geo_2x2"

CASES = [
    Case(
        GEO,
        "pserver_0",
        on("sum", dropped, block=1),
        "link-owner",
        "trainer_0",
        "%fc_0.b_0 is fetched from 127.0.0.1:6174, updated by none",
    ),
    Case(
        GEO,
        "pserver_0",
        on("sum", inputs(X=["fc_0.b_0", "fc_1.b_0.delta"]), block=1),
        "link-geo",
        "pserver_0",
        "%fc_0.b_0.delta is received, but not added to a slice",
    ),
    Case(
        GEO,
        "pserver_0",
        declared("fc_0.b_0.delta", shape=[63]),
        "link-geo",
        "trainer_0",
        "%fc_0.b_0.delta is LOD_TENSOR f32[64] here",
    ),
    Case(
        GEO,
        "pserver_0",
        on("listen_and_serv", attrs(grad_to_block_id=strings("fc_1.b_0.delta:2"))),
        "link-blocks",
        "pserver_0",
        "grad_to_block_id does not name %fc_0.b_0.delta",
    ),
    Case(
        GEO,
        "pserver_0",
        on("listen_and_serv", attrs(Fanin=1)),
        "link-barrier",
        "pserver_0",
        "it waits for 1 trainers of 2",
    ),
    Case(GEO, "trainer_1", on("send", dropped, startup=True), "link-geo", "trainer_1", "%param_init is sent 0 times"),
    Case(
        GEO,
        "trainer_1",
        moved("send", to=0, startup=True),
        "link-order",
        "trainer_1",
        "%param_init is sent before all parameters",
    ),
    Case(
        GEO,
        "trainer_1",
        on("recv", dropped, about="fc_0.b_0", startup=True),
        "link-unfetched",
        "pserver_0",
        "%fc_0.b_0 is fetched by 1 of 2 trainers",
    ),
    Case(GEO, "trainer_1", on("send", dropped), "link-geo", "trainer_1", "0 send ops per step"),
    Case(
        GEO,
        "trainer_1",
        on("send", inputs(X=["firstw"])),
        "link-geo",
        "trainer_1",
        "1 variables with ids are sent for 4 tables",
    ),
    Case(
        GEO,
        "trainer_1",
        on("send", inputs(X=["firstw", "secondw", "thirdw", "nextw"])),
        "link-geo",
        "trainer_1",
        "%nextw is told as ids of %shared_w",
    ),
    Case(
        GEO,
        "pserver_1",
        on("sum", dropped, about="shared_w.block0", block=3),
        "link-geo",
        "trainer_0",
        "the servers hold 0 rows of %shared_w",
    ),
    Case(
        GEO,
        "pserver_0",
        on("listen_and_serv", attrs(sparse_grad_to_param=strings())),
        "link-blocks",
        "pserver_0",
        "sparse_grad_to_param does not name %shared_w.block1.delta",
    ),
    Case(
        GEO,
        "pserver_0",
        on("uniform_random", attrs(shape=Longs([3, 32])), about="shared_w.block1", startup=True),
        "link-state",
        "pserver_0",
        "it makes %shared_w.block1 as [3, 32], which is [300, 32]",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_damage_is_found(case: Case) -> None:
    assert_found(case)
