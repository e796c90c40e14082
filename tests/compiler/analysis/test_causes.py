"""Which programs are those of one machine of a cluster already."""

from __future__ import annotations

import pytest

from pstranspile.compiler.analysis.causes import already_distributed
from pstranspile.ir.model import EMPTY, Block, Op, Program


def findings(*types: str) -> list[str]:
    ops = tuple(Op(kind, EMPTY, EMPTY) for kind in types)
    return [finding.message for finding in already_distributed(Program((Block(EMPTY, ops),)), "main")]


@pytest.mark.parametrize(
    "kind",
    [
        *("send", "recv", "send_barrier", "fetch_barrier", "prefetch", "distributed_lookup_table"),
        *("listen_and_serv", "fl_listen_and_serv"),
    ],
)
def test_a_program_that_asks_servers_or_is_one_is_distributed(kind: str):
    (message,) = findings("relu", kind, "send")
    assert message.startswith(f"{kind}: @main is the program of one machine of a cluster already")


@pytest.mark.parametrize("kind", ["checkpoint_notify", "recv_save", "shrink_table", "relu", "lookup_table"])
def test_other_programs_are_not(kind: str):
    assert findings(kind) == []
    assert findings() == []
