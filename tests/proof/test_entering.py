"""The check holds large tables to the rules after which rows enter: what a table drops is no gradient of its update."""

from __future__ import annotations

from typing import Any

import pytest

import pstranspile as ps
from pstranspile import layers as L
from pstranspile.autodiff import Adagrad, Adam, Adamax, Ftrl, Momentum, RMSProp, minimize
from pstranspile.ir.model import FrozenMap
from pstranspile.proof.check import check
from pstranspile.proof.report import report_text

OPTIMIZERS: dict[str, Any] = {
    "adam": Adam(0.1),
    "lazy adam": Adam(0.1, lazy_mode=True),
    "adamax": Adamax(0.1),
    "adagrad": Adagrad(0.1),
    "momentum": Momentum(0.1, 0.9),
    "ftrl": Ftrl(0.1),
    "rmsprop": RMSProp(0.1),
}
RULES = {
    "after": "enter_after=3",
    "chance": "enter_chance=0.3",
    "all": "enter_after=2 enter_chance=0.7 shrink_every=2 drop_unseen=1 drop_below=0.3",
}


def module(optimizer: Any) -> ps.Module:
    d = L.Draft(seed=1)
    word, click = L.data(d, "word", [-1, 1], "i64"), L.data(d, "click", [-1, 1])
    row = L.embedding(word, (100, 8), is_sparse=True, param_attr="words")
    minimize(L.mean(L.square_error_cost(L.fc(row, 1), click)), optimizer)
    return d.module()


def job(rules: str, mode: str = "sync", **settings: Any) -> ps.Job:
    return ps.Job(pservers=2, trainers=2, mode=mode, large_tables=f"words {RULES[rules]}", **settings)


@pytest.mark.parametrize("mode", ["sync", "fleet-sync", "async", "half-async"])
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("optimizer", ["adam", "lazy adam"])
def test_what_a_table_drops_advances_no_powers(optimizer: str, rules: str, mode: str):
    report = check(module(OPTIMIZERS[optimizer]), job(rules, mode), steps=8)
    assert report.holds, report_text(report)


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_each_slice_takes_rows_of_its_own(mode: str, optimizer: str, rules: str):
    """A slice that takes none leaves its powers alone, where one machine advances them: no machine does wrong."""
    report = check(module(OPTIMIZERS[optimizer]), job(rules, mode, min_block_size=40), steps=8)
    assert not report.wrong, report_text(report)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_powers_that_advance_otherwise_are_found(mode: str):
    source, of = module(OPTIMIZERS["adam"]), job("chance", mode)
    result = ps.compile(source, of)
    slow = {name: role._replace(main=_slow(role.main)) for name, role in result.roles().items()}
    report = check(source, of, result=result.with_roles(slow), steps=8)
    assert any("%words_beta1_pow_acc_0" in line for line in report.wrong), report_text(report)


def _slow(program: ps.Program) -> ps.Program:
    """The program with powers that fall faster than those of the source."""
    other = {"beta1": 0.5}
    blocks = [
        block._replace(
            ops=tuple(
                op._replace(attrs=FrozenMap({**op.attrs, **other})) if op.type == "adam" else op for op in block.ops
            )
        )
        for block in program.blocks
    ]
    return program._replace(blocks=tuple(blocks))
