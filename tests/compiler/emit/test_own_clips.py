"""Clips by the norm of all gradients in modes that apply every gradient on its own."""

from __future__ import annotations

import pytest

import pstranspile as ps
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, ClipByGlobalNorm, ClipByNorm, lookahead, minimize
from pstranspile.frontends.autodiff.clips import Clip
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import Module
from pstranspile.proof import check

MODES = ("async", "half-async")


def model(clip: Clip) -> Module:
    draft = L.Draft(seed=3)
    hidden = L.fc(L.data(draft, "x", [-1, 20]), 30, act="tanh")
    loss = L.mean(L.square_error_cost(L.fc(hidden, 1), L.data(draft, "y", [-1, 1])))
    minimize(loss, SGD(0.1, clip=clip))
    return draft.module()


def job(mode: str, trainers: int) -> ps.Job:
    return ps.Job(pservers=2, trainers=trainers, mode=mode, min_block_size=40, runtime_split_send_recv=False)


@pytest.mark.parametrize("mode", MODES)
def test_each_trainer_clips_its_own_gradients(mode: str):
    module = model(ClipByGlobalNorm(0.1))
    compiled = ps.compile(module, job(mode, 2))
    main = compiled.trainer(0).main.main_block
    assert any(op.type == "sqrt" for op in main.ops)
    for endpoint in compiled.plan.pservers:
        blocks = compiled.pserver(endpoint).main.blocks[1:]
        assert {op.type for block in blocks for op in block.ops} == {"sgd"}
    assert any(parameter.is_cut for parameter in compiled.plan.parameters)  # nothing has to stay together


@pytest.mark.parametrize("mode", MODES)
def test_one_trainer_trains_as_one_machine(mode: str):
    report = check(model(ClipByGlobalNorm(0.1)), job(mode, 1))
    assert report.promised
    assert report.holds


def test_clips_of_single_gradients_stay_with_the_update():
    compiled = ps.compile(model(ClipByNorm(0.1)), job("async", 2))
    assert not any(op.type == "clip_by_norm" for op in compiled.trainer(0).main.main_block.ops)


def test_what_joins_updates_otherwise_is_refused():
    draft = L.Draft(seed=3)
    loss = L.mean(L.square_error_cost(L.fc(L.data(draft, "x", [-1, 20]), 1), L.data(draft, "y", [-1, 1])))
    minimize(loss, SGD(0.1))
    lookahead(draft, 0.5, 5)
    with pytest.raises(DiagnosticError, match="must be updated together, but in mode async"):
        ps.compile(draft.module(), job("async", 2))
