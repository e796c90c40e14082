"""What a compile takes of memory, and gives back."""

from __future__ import annotations

import gc
import weakref

from pstranspile.compiler.compile import compile
from pstranspile.compiler.job import Job
from tests.models import mlp


def test_a_result_that_nobody_needs_is_gone_at_once() -> None:
    """Without the collector, which programs are too large to wait for: nothing holds a cycle."""
    compiled = compile(mlp(3), Job(["a:1", "b:1"], 2))
    assert compiled.distributed_vars
    running = gc.isenabled()
    gc.disable()
    try:
        left = weakref.ref(compiled)
        del compiled
        assert left() is None
    finally:
        if running:
            gc.enable()


def test_equal_attributes_of_messages_are_one_mapping() -> None:
    compiled = compile(mlp(6), Job(["a:1", "b:1"], 2))
    first, second = (compiled.trainer(i).main.main_block.ops for i in (0, 1))
    sends = [op for op in (*first, *second) if op.type == "send"]
    recvs = [op for op in first if op.type == "recv"]
    assert (len(sends), len({id(op.attrs) for op in sends})) == (24, 2)  # one mapping for each server
    assert (len(recvs), len({id(op.attrs) for op in recvs})) == (12, 2)
    assert len({id(op.inputs) for op in recvs}) == 1
