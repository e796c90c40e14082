"""Lookups on servers that other ops stand between: their requests go out together, and results stay as they were."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile import layers as L
from pstranspile.autodiff import SGD, minimize
from pstranspile.cluster.machines import script
from pstranspile.cluster.machines.message import LOOKUP, SEND
from pstranspile.cluster.machines.network import Link
from pstranspile.cluster.machines.script import EXCHANGE, find_exchanges
from pstranspile.proof.values import make_feeds
from pstranspile.runtime.values import SelectedRows

EXAMPLES = Path(__file__).parents[3] / "examples"


def net(*, chained: bool = False, overwritten: bool = False) -> ps.Module:
    """Two tables, whose ids need an op each. `chained`: the second ids follow from the first rows. `overwritten`: they
    take the place of a value that an op between reads.
    """
    model = L.Draft(seed=1)
    first, second = (L.data(model, name, [-1, 2], "int64") for name in ("first", "second"))
    one = L.reduce_sum(L.embedding(L.reshape(first, [-1, 1]), [50, 4], is_sparse=True), dim=[1], keep_dim=True)
    if chained:
        second = L.cast(L.reshape(L.clip(one, 0.0, 9.0), [-1, 2]), "int64")
    if overwritten:
        shared = L.assign(first)
        one = L.elementwise_add(one, L.reduce_mean(L.cast(shared, "float32")))
        second = L.assign(second, shared)
    two = L.reduce_sum(L.embedding(L.reshape(second, [-1, 1]), [50, 4], is_sparse=True), dim=[1], keep_dim=True)
    minimize(L.mean(L.elementwise_mul(one, two)), SGD(0.1))
    return model.module()


def trainer_of(module: ps.Module) -> ps.Program:
    return ps.compile(module, ps.Job(pservers=2, trainers=2, min_block_size=1)).trainer(0).main


def lookups(module: ps.Module) -> list[int]:
    """How many lookups each exchange of lookups has."""
    _, exchanges = find_exchanges(trainer_of(module))
    return [len(each.ops) for each in exchanges if each.kind == "distributed_lookup_table"]


def test_lookups_join_over_ops_that_use_their_rows():
    program, _ = find_exchanges(trainer_of(net()))
    types = [op.type for op in program.main_block.ops]
    assert lookups(net()) == [2]
    at = types.index(EXCHANGE)
    assert sorted(types[:at]) == ["reshape2", "reshape2"]
    assert types[at + 1 : at + 3] == ["reduce_sum", "reduce_sum"]


def test_an_id_that_comes_again_is_asked_for_once(monkeypatch: pytest.MonkeyPatch):
    asked: list[list[int]] = []
    post = Link.post

    def posted(self: Link, kind: str, step: int, variable: str = "", payload: Any = None, slot: int = -1) -> None:
        if kind == LOOKUP:
            asked.append(payload.tolist())
        post(self, kind, step, variable, payload, slot)

    monkeypatch.setattr(Link, "post", posted)
    compiled = ps.compile(net(), ps.Job(pservers=2, trainers=1, min_block_size=1))
    ids = {"first": np.array([[[7, 7], [40, 7], [3, 40]]]), "second": np.array([[[0, 0], [0, 0], [0, 0]]])}
    ps.simulate(compiled, ids)
    assert sorted(asked) == [[], [0], [3, 7], [15]]


def test_ids_that_follow_from_rows_are_looked_up_after_these():
    assert lookups(net(chained=True)) == [1, 1]


def test_ids_in_the_place_of_a_value_that_is_still_read_are_made_after_it_is():
    assert lookups(net(overwritten=True)) == [1, 1]


def test_every_value_is_made_before_it_is_read():
    program, _ = find_exchanges(trainer_of(net()))
    known = {name for name in program.main_block.vars if program.main_block.vars[name].persistable}
    made = {name for op in program.main_block.ops for name in op.output_names}
    for op in program.main_block.ops:
        assert {name for name in op.input_names if name in made} <= known
        known.update(op.output_names)


CASES = {
    "two tables": net(),
    "chained": net(chained=True),
    "overwritten": net(overwritten=True),
    **{name: ps.load(EXAMPLES / f"{name}.ir") for name in ("ctr_dnn", "simnet_bow", "word2vec", "deepfm")},
}


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("module", CASES.values(), ids=[*CASES])
def test_results_are_those_of_lookups_one_after_another(module: ps.Module, mode: str, monkeypatch: pytest.MonkeyPatch):
    compiled = ps.compile(module, ps.Job(pservers=2, trainers=1 if mode == "async" else 2, mode=mode))
    feeds = make_feeds(module.main, 3, 6, shares=2)
    together = ps.simulate(compiled, feeds, steps=3)
    monkeypatch.setattr(script._Exchanges, "_joins", lambda *_: False)
    apart = ps.simulate(compiled, feeds, steps=3)
    for name, value in apart.parameters.items():
        assert np.asarray(together.parameters[name]).tobytes() == np.asarray(value).tobytes(), name


@pytest.mark.parametrize("merges", [False, True])
@pytest.mark.parametrize("mode", ["sync", "async", "async split", "half-async", "fleet-sync"])
def test_rows_are_sent_once_where_a_lookup_merges_them_or_a_communicator_sends(
    mode: str, merges: bool, monkeypatch: pytest.MonkeyPatch
):
    model = L.Draft(seed=1)
    ids = L.data(model, "ids", [-1, 1], "int64")
    rows = L.embedding(ids, [50, 4], is_sparse=True, merge_rows=merges)
    minimize(L.mean(L.square(rows)), SGD(0.1))
    sent: list[list[int]] = []
    post = Link.post

    def posted(self: Link, kind: str, step: int, variable: str = "", payload: Any = None, slot: int = -1) -> None:
        if kind == SEND and isinstance(payload, SelectedRows):
            sent.append(payload.rows.tolist())
        post(self, kind, step, variable, payload, slot)

    monkeypatch.setattr(Link, "post", posted)
    kind, _, split = mode.partition(" ")
    settings = {"runtime_split_send_recv": True} if split else {}
    compiled = ps.compile(model.module(), ps.Job(pservers=1, trainers=2, mode=kind, **settings))
    fed = np.array([[7], [3], [7], [7], [3], [9], [3], [3]])
    ps.simulate(compiled, {"ids": fed[None]}, steps=1)
    once = merges or mode not in ("sync", "async")
    assert sorted(sent) == ([[3, 7], [3, 9]] if once else [[3, 9, 3, 3], [7, 3, 7, 7]])


def test_many_lookups_are_found_in_linear_time():
    """A thousand tables, with an op before and one after each: one exchange."""
    model = L.Draft(seed=1)
    rows = []
    for number in range(1000):
        ids = L.reshape(L.data(model, f"id_{number}", [-1, 2], "int64"), [-1, 1])
        rows.append(L.reduce_sum(L.embedding(ids, [9, 2], is_sparse=True)))
    minimize(L.sums(rows), SGD(0.1))
    assert lookups(model.module()) == [1000]
