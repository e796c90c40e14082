"""Ops that update parameters by themselves, as the hashed embedding of Fluid's PyramidDNN does."""

from __future__ import annotations

import pytest

from pstranspile.compiler.compile import compile
from pstranspile.compiler.job import Job
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import Module
from pstranspile.ops.textual import parse

TEXT = """ir 1

program @main {
  block ^0 {
    param %table : f32[64, 8]
    param %w : f32[8, 1]
    state %rate : f32[1]
    temp  %words : i64[-1, 1] feed
    temp  %rows : f32[-1, 8]
    temp  %w@GRAD : f32[8, 1]
    search_pyramid_hash(X=%words, W=%table) -> Out=%rows {distribute_update_vars="table"}
    fill_constant -> Out=%w@GRAD {shape=[8, 1], value=1.0} : backward(%w, %w@GRAD)
    sgd(Param=%w, Grad=%w@GRAD, LearningRate=%rate) -> ParamOut=%w : optimize(%w, %w@GRAD)
  }
}

program @startup {
  block ^0 {
    param %table : f32[64, 8]
    param %w : f32[8, 1]
    state %rate : f32[1]
    fill_constant -> Out=%rate {shape=[1], value=0.1}
    fill_constant -> Out=%w {shape=[8, 1], value=0.5}
    fill_constant -> Out=%table {shape=[64, 8], value=0.5}
  }
}
"""


def module(attribute: str = ' {distribute_update_vars="table"}') -> Module:
    return parse(TEXT.replace(' {distribute_update_vars="table"}', attribute), "net.ir")


@pytest.mark.parametrize("mode", ["sync", "async", "half-async", "fleet-sync"])
def test_it_is_refused_in_the_modes_that_send_gradients(mode: str) -> None:
    with pytest.raises(DiagnosticError) as refusal:
        compile(module(), Job(2, 2, mode=mode))
    (found,) = refusal.value.diagnostics
    assert found.code == "updates-itself"
    message = "search_pyramid_hash: it updates %table by itself, and there is no gradient to send to a server"
    assert found.message == message
    assert found.location is not None
    assert (found.location.file, found.location.line) == ("net.ir", 11)


@pytest.mark.parametrize("attribute", ["", ' {distribute_update_vars=""}'])
def test_without_such_parameters_it_is_an_op_like_any_other(attribute: str) -> None:
    compile(module(attribute), Job(2, 2))


def test_in_mode_geo_what_changed_is_exchanged() -> None:
    compiled = compile(module(), Job(2, 2, mode="geo", min_block_size=256))
    assert [(p.name, len(p.slices), p.sparse) for p in compiled.plan.parameters] == [
        ("w", 1, False),
        ("table", 2, False),
    ]
    trainer = compiled.trainer(0)
    assert trainer.main.main_block.vars["table.delta"].shape == (64, 8)
    fetched = [name for op in trainer.startup.main_block.ops if op.type == "recv" for name in op.output_names]
    assert fetched == ["w", "table.block0", "table.block1"]
