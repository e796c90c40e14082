"""Gradients through conditional blocks: the program that `fluid.layers.cond` gives, taken apart and put together."""

import tarfile

import pytest

import pstranspile as ps
from pstranspile.frontends.autodiff import SGD, draft_of_module, minimize
from pstranspile.frontends.layers import Value
from pstranspile.frontends.program_desc import program_from_bytes
from pstranspile.ir.model import MAIN, FrozenMap, Module, ParameterInfo
from pstranspile.ir.types import OpRole
from tests.frontends.layers.test_more_recorded import ARCHIVE
from tests.training import LOSS_GRADIENT, op_difference, ordered


@pytest.fixture
def recorded() -> ps.Program:
    with tarfile.open(ARCHIVE.with_name("cond.tar.xz")) as archive:
        held = archive.extractfile("cond/main.pb")
        assert held is not None
        return program_from_bytes(held.read(), "main.pb", MAIN)


def test_both_branches_have_gradients(recorded: ps.Program):
    main = recorded
    ops = main.main_block.ops
    start = next(index for index, op in enumerate(ops) if op.role == LOSS_GRADIENT)
    inner = min(index for index, block in enumerate(main.blocks) if block.forward_block >= 0)
    read = {name for op in ops[:start] for name in (*op.input_names, *op.output_names)}
    parameters = {name for op in ops if op.type == "sgd" for name in op.inputs["Param"]}
    held = {
        name: var._replace(parameter=ParameterInfo() if name in parameters else None)
        for name, var in main.main_block.vars.items()
        if name in read
    }
    first = main.main_block._replace(vars=FrozenMap(held), ops=ops[:start])
    forward = main._replace(blocks=(first, *main.blocks[1:inner]))
    loss = next(op for op in ops[:start] if op.role == OpRole.LOSS).output("Out")
    draft = draft_of_module(Module(FrozenMap({MAIN: forward})))
    minimize(Value(draft, loss or ""), SGD(0.1))
    built = draft.main()
    for one, other in zip(built.blocks, main.blocks, strict=True):
        assert (one.parent, one.forward_block, len(one.ops)) == (other.parent, other.forward_block, len(other.ops))
        assert [
            d for a, b in zip(one.ops, other.ops, strict=True) if (d := op_difference(ordered(a), ordered(b)))
        ] == []
