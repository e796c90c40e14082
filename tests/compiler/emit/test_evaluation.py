"""Programs without updates: their trainers evaluate, their servers hold nothing, as in Fluid 1.8.5."""

from __future__ import annotations

import pytest

import pstranspile as ps
from pstranspile import proof
from pstranspile.frontends.autodiff import Momentum
from pstranspile.ir.model import Module
from pstranspile.ir.types import OpRole
from tests.compiler.emit.several import two_tasks

EVALUATION = """ir 1
program @main {
  block ^0 {
    param %w : f32[4, 1]
    temp %x : f32[-1, 4] feed
    temp %y : f32[-1, 1]
    temp %loss : f32[1]
    mul(X=%x, Y=%w) -> Out=%y
    mean(X=%y) -> Out=%loss : loss
  }
}
program @startup {
  block ^0 {
    param %w : f32[4, 1]
    uniform_random -> Out=%w {shape=[4, 1], min=-1, max=1, seed=3}
  }
}
"""

EXCHANGES = {
    "sync": ["send_barrier", "fetch_barrier"],
    "async": [],
    "half-async": ["send_barrier"],
    "fleet-sync": ["send_barrier"],
    "geo": ["send"],
}
"""What the trainers' main programs of Fluid have after the ops of the source."""


def job(mode: str) -> ps.Job:
    return ps.Job(pservers=2, trainers=2, mode=mode)


@pytest.mark.parametrize("mode", EXCHANGES)
def test_trainers_keep_the_ops_and_servers_hold_nothing(mode: str) -> None:
    compiled = ps.compile(ps.loads(EVALUATION), job(mode))
    assert [finding.code for finding in compiled.warnings] == ["no-optimizer"]
    trainer = compiled.trainer(1)
    assert [op.type for op in trainer.main.main_block.ops] == ["mul", "mean", *EXCHANGES[mode]]
    begin = ["send"] if mode == "geo" else []
    assert [op.type for op in trainer.startup.main_block.ops] == ["uniform_random", "fetch_barrier", *begin]
    server = compiled.pserver(compiled.plan.pservers[0])
    assert [op.type for op in server.main.main_block.ops] == ["listen_and_serv"]
    assert server.startup.main_block.ops == ()


@pytest.mark.parametrize("mode", EXCHANGES)
def test_a_cluster_evaluates_as_one_machine_does(mode: str) -> None:
    assert proof.check(ps.loads(EVALUATION), job(mode)).holds


@pytest.mark.parametrize("mode", EXCHANGES)
@pytest.mark.parametrize("evaluating", ["main", "second"])
def test_a_program_that_evaluates_beside_one_that_trains(evaluating: str, mode: str) -> None:
    """As a clone for tests does, which still declares all that the ops of training kept."""
    module = two_tasks([Momentum(0.1, 0.9), Momentum(0.1, 0.9)])
    program = module[evaluating]
    block = program.main_block
    kept = tuple(op for op in block.ops if not (op.role or OpRole.FORWARD) & (OpRole.BACKWARD | OpRole.OPTIMIZE))
    module = Module(module.programs | {evaluating: program._replace(blocks=(block._replace(ops=kept),))})
    report = proof.check(module, job(mode), steps=4, programs="main,second")
    assert report.holds
    task = "b" if evaluating == "main" else "a"
    learnt = {learnt.parameter for learnt in report.learnt if learnt.changed}
    assert learnt == {"encoder_w", "encoder_b", f"{task}_w", f"{task}_b"}
