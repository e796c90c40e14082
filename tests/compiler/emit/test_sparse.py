"""Sparse tables: which lookups become one, where they stand, and what the trainers hold instead."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pstranspile.compiler.compile import Compiled, compile
from pstranspile.compiler.job import Job
from pstranspile.compiler.verify import verify
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import L2, SGD, Adam, minimize
from pstranspile.ir.attributes import Longs, Strings
from pstranspile.ir.diagnostics import DiagnosticError, Severity
from pstranspile.ir.model import Module, Program
from pstranspile.ir.types import DType
from tests.recorded_fluid import source
from tests.sparse import Look, after_first, kinds, model, of_type

SERVERS = ["a:6174", "b:6174"]
MODES = ("sync", "async", "half-async", "fleet-sync")


def job(**settings: object) -> Job:
    return Job(SERVERS, 2, **{"min_block_size": 500, **settings})  # pyright: ignore[reportArgumentType]


def assert_well_formed(compiled: Compiled) -> None:
    """Among other things, nothing is read before it is written."""
    for role in compiled.roles().values():
        assert [d.message for d in verify(role.module) if d.severity is Severity.ERROR] == []


def fetched(program: Program) -> list[tuple[str, ...]]:
    return [op.outputs["Out"] for op in of_type(program, "recv")]


def assert_local(compiled: Compiled, table: str) -> None:
    """The trainers hold the table: they receive it every step and at the start, and look rows up in it."""
    trainer = compiled.trainer(0)
    slices = tuple(s.name for s in compiled.plan.by_name[table].slices)
    assert ((table,) if compiled.plan.runtime_split else slices) in fetched(trainer.main)
    assert slices in fetched(trainer.startup)
    assert (table,) not in [op.outputs["Out"] for op in of_type(trainer.startup, "fake_init")]
    assert table not in [op.input("W") for op in of_type(trainer.main, "distributed_lookup_table")]


def test_lookups_of_one_table_become_one() -> None:
    compiled = compile(model([Look(ids="a"), Look(ids="b"), Look(ids="c")]), job())
    main, startup = compiled.trainer(1).main, compiled.trainer(1).startup
    (lookup,) = of_type(main, "distributed_lookup_table")
    assert lookup.inputs["Ids"] == ("a", "b", "c")
    assert lookup.inputs["W"] == ("table",)
    assert len(lookup.outputs["Outputs"]) == 3
    assert lookup.attrs["table_names"] == Strings(["table.block0", "table.block1"])
    assert lookup.attrs["height_sections"] == Longs([100, 100])
    assert lookup.attrs["trainer_id"] == 1
    assert lookup.attrs["lookup_table_version"] == "lookup_table"
    assert of_type(main, "lookup_table") == []
    assert fetched(main) == fetched(startup) == [("bias",), ("weight",)]
    assert [op.output("Out") for op in of_type(startup, "fake_init")] == ["table"]
    assert_well_formed(compiled)


def test_lookups_of_different_padding_are_not_merged() -> None:
    looks = [Look(ids="a", padding_idx=0), Look(ids="b", padding_idx=3), Look(ids="c", padding_idx=0), Look(ids="d")]
    compiled = compile(model(looks), job())
    found = of_type(compiled.trainer(0).main, "distributed_lookup_table")
    assert {op.attrs["padding_idx"]: op.inputs["Ids"] for op in found} == {0: ("a", "c"), 3: ("b",), -1: ("d",)}
    assert_well_formed(compiled)


def test_lookups_of_different_kind_are_not_merged() -> None:
    compiled = compile(model([Look(ids="a"), Look(ids="b", v2=True)]), job())
    found = of_type(compiled.trainer(0).main, "distributed_lookup_table")
    assert {op.attrs["lookup_table_version"]: op.inputs["Ids"] for op in found} == {
        "lookup_table": ("a",),
        "lookup_table_v2": ("b",),
    }


@pytest.mark.parametrize("mode", MODES)
def test_a_lookup_that_depends_on_another_of_its_table_comes_after_it(mode: str) -> None:
    compiled = compile(model([Look(ids="a"), Look(ids=after_first), Look(ids="b")]), job(mode=mode))
    main = compiled.trainer(0).main
    first, second = of_type(main, "distributed_lookup_table")
    assert [len(op.inputs["Ids"]) for op in (first, second)] == [2, 1]
    places = kinds(main)
    assert places.index("distributed_lookup_table") < places.index("arg_max")
    assert places.index("arg_max") < len(places) - 1 - places[::-1].index("distributed_lookup_table")
    assert_well_formed(compiled)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_fluids_own_chain_of_lookups_comes_in_a_legal_order(mode: str) -> None:
    compiled = compile(source("lookup_chain"), job(mode=mode))
    assert len(of_type(compiled.trainer(0).main, "distributed_lookup_table")) == 2
    assert_well_formed(compiled)


def test_tables_that_are_fed_by_data_come_in_fluids_order() -> None:
    # Fluid goes from table to table and inserts at the beginning each time: the last parameter comes first.
    compiled = compile(model([Look("one", "a"), Look("two", "b"), Look("six", "c")]), job())
    order = [p.name for p in compiled.plan.parameters if p.prefetched]
    assert [op.input("W") for op in of_type(compiled.trainer(0).main, "distributed_lookup_table")] == order[::-1]
    assert kinds(compiled.trainer(0).main)[:3] == ["distributed_lookup_table"] * 3


LOCAL = {
    "tied_softmax_sparse": {"tied_emb": False},  # also a weight of a matrix product
    "lookup_3d_ids": {"emb3": True},
    "nce_sparse": {"nce_w": True, "nce_b": False},
    "hsigmoid_sparse": {"hierarchical_sigmoid_0.w_0": True, "hierarchical_sigmoid_0.b_0": False},
}
"""Recorded models, their parameters that trainers must hold, and whether the gradient is sparse."""


@pytest.mark.parametrize("case", LOCAL)
@pytest.mark.parametrize("mode", MODES)
def test_what_can_not_be_fetched_by_rows_is_received_whole(case: str, mode: str) -> None:
    compiled = compile(source(case), job(mode=mode))
    splits = {op.input("X"): op.type for op in of_type(compiled.trainer(0).main, "split_selected_rows", "split_byref")}
    for name, sparse in LOCAL[case].items():
        assert_local(compiled, name)
        parameter = compiled.plan.by_name[name]
        assert parameter.sparse == sparse
        if parameter.is_cut and not compiled.plan.runtime_split:
            assert splits[parameter.gradient] == ("split_selected_rows" if parameter.sparse else "split_byref")
    assert_well_formed(compiled)
    warned = [w.focus for w in compiled.warnings if w.code == "table-not-remote"]
    assert warned == (["%emb3"] if case == "lookup_3d_ids" else [])


def branch(draft: L.Draft, ids: L.Value) -> L.Value:
    """The rows of a table at these ids, looked up inside a loop that runs once."""
    count, end = L.fill_constant(draft, [1], DType.INT64, 0), L.fill_constant(draft, [1], DType.INT64, 1)
    out = L.fill_constant(draft, [1], DType.FP32, 0.0)
    going = L.less_than(count, end)
    with L.while_(going):
        rows = L.embedding(ids, (200, 8), is_sparse=True, param_attr="table")
        L.assign(L.mean(rows), out)
        L.increment(count)
        L.less_than(count, end, out=going)
    return out


def with_inner_lookup() -> Module:
    """A table that is looked up in block 0, and once more in a loop whose result only is watched."""
    draft = L.Draft(seed=1)
    ids = L.data(draft, "ids", [-1, 1], "i64")
    rows = L.embedding(ids, (200, 8), is_sparse=True, param_attr="table")
    branch(draft, ids)
    prediction = L.fc(rows, 1, param_attr="weight", bias_attr="bias")
    minimize(L.mean(L.square_error_cost(prediction, L.data(draft, "y", [-1, 1], "f32"))), SGD(0.1))
    return draft.module()


@pytest.mark.parametrize("mode", MODES)
def test_a_table_with_a_lookup_inside_a_sub_block_is_received_whole(mode: str) -> None:
    compiled = compile(with_inner_lookup(), job(mode=mode))
    assert compiled.plan.by_name["table"].sparse
    assert_local(compiled, "table")
    assert_well_formed(compiled)
    (warning,) = compiled.warnings
    assert (warning.code, warning.focus) == ("table-not-remote", "%table")
    assert "while reads it on the trainer" in warning.message


@pytest.mark.parametrize("mode", MODES)
def test_a_table_that_is_not_cut(mode: str) -> None:
    compiled = compile(model([Look()]), job(mode=mode, slice_var_up=False))
    main = compiled.trainer(0).main
    (lookup,) = of_type(main, "distributed_lookup_table")
    assert lookup.attrs["table_names"] == Strings(["table"])
    assert lookup.attrs["height_sections"] == Longs([200])
    assert of_type(main, "split_selected_rows", "split_byref") == []
    sent = {op.input("X") for op in of_type(main, "send")}
    own = mode == "sync"
    assert sent == {f"{name}@GRAD.trainer_0" if own else f"{name}@GRAD" for name in ("weight", "bias", "table")}


@pytest.mark.parametrize(
    ("mode", "suffix"), [("sync", ".trainer_1"), ("async", ""), ("half-async", ""), ("fleet-sync", ".trainer_1")]
)
def test_what_trainers_call_the_rows_they_send(mode: str, suffix: str) -> None:
    compiled = compile(model([Look()]), job(mode=mode))
    sends = {op.role_vars[0]: op for op in of_type(compiled.trainer(1).main, "send") if op.role_vars}
    names = [f"table@GRAD.block{k}{suffix}" for k in (0, 1)]
    send = sends["table"]
    if compiled.plan.runtime_split:
        assert send.inputs["X"] == ("table@GRAD",)
        assert send.attrs["send_varnames"] == Strings(names)
        assert send.attrs["sections"] == Longs([100, 100])
    else:
        assert send.inputs["X"] == tuple(names)


@pytest.mark.parametrize("mode", MODES)
def test_more_servers_than_rows(mode: str) -> None:
    servers = [f"ps{i}:6174" for i in range(5)]
    compiled = compile(model([Look(size=(3, 4))]), Job(servers, 2, mode=mode, min_block_size=1))
    slices = compiled.plan.by_name["table"].slices
    assert [s.shape for s in slices] == [(1, 4)] * 3
    assert len({s.endpoint for s in slices}) == 3
    assert_well_formed(compiled)


def test_placed_variables_of_a_table() -> None:
    compiled = compile(model([Look()], Adam(0.1)), job())
    rows = [v for v in compiled.distributed_vars if v.origin.startswith("table")]
    assert [(v.vtype, v.slice, v.slice_shape, v.is_slice, v.block_id, v.offset) for v in rows] == [
        ("RemotePrefetch", "table.block0", (100, 8), True, 0, 0),
        ("RemotePrefetch", "table.block1", (100, 8), True, 1, 800),
        *(
            ("Optimizer", *state)
            for number, offset in ((k, 800 * k) for k in compiled_order(compiled))
            for state in (
                ("table_beta1_pow_acc_0", (1,), False, 0, 0),
                ("table_beta2_pow_acc_0", (1,), False, 0, 0),
                ("table_moment1_0", (100, 8), True, number, offset),
                ("table_moment2_0", (100, 8), True, number, offset),
            )
        ),
    ]


def compiled_order(compiled: Compiled) -> list[int]:
    """The slices of the table in the order of the servers that hold them."""
    slices = compiled.plan.by_name["table"].slices
    return [s.number for endpoint in compiled.plan.pservers for s in slices if s.endpoint == endpoint]


def test_weight_decay_makes_a_sparse_gradient_dense_on_the_server() -> None:
    compiled = compile(model([Look()], SGD(0.1, regularizer=L2(0.1))), job())
    blocks = [kinds(compiled.pserver(SERVERS[0]).main, 1 + k) for k in range(2)]
    assert sorted(blocks) == [["sum", "scale", "scale", "sum", "sgd"]] * 2
    assert_well_formed(compiled)
    (serving,) = compiled.pserver(SERVERS[0]).main.main_block.ops
    assert serving.attrs["sparse_grad_to_param"] == Strings([])


def test_lookups_are_merged_into_as_few_as_there_can_be() -> None:
    def second(found: Sequence[L.Value]) -> L.Value:
        return L.reshape(L.arg_max(found[1], axis=1), [-1, 1])

    looks = [
        Look(ids="a"),
        Look(ids=after_first),
        Look(ids=second),
        Look(ids="b"),
        Look(ids=after_first),
        Look(ids="c"),
    ]
    compiled = compile(model(looks), job())
    found = of_type(compiled.trainer(0).main, "distributed_lookup_table")
    assert [len(op.inputs["Ids"]) for op in found] == [1, 3, 2]  # three depend on each other in turn
    assert_well_formed(compiled)


def with_ids_made_anew(*, is_distributed: bool = False) -> Module:
    """Two lookups at ids of one name, which are made anew between them."""
    draft = L.Draft(seed=1)
    first, other = L.data(draft, "a", [-1, 1], "i64"), L.data(draft, "b", [-1, 1], "i64")
    ids = L.assign(first)
    found = [look(ids, is_distributed=is_distributed)]
    L.assign(other, ids)
    found.append(look(ids, is_distributed=is_distributed))
    prediction = L.fc(L.concat(found, axis=1), 1, param_attr="weight", bias_attr="bias")
    minimize(L.mean(L.square_error_cost(prediction, L.data(draft, "y", [-1, 1], "f32"))), SGD(0.1))
    return draft.module()


def look(ids: L.Value, *, is_distributed: bool) -> L.Value:
    return L.embedding(ids, (200, 8), is_sparse=True, is_distributed=is_distributed, param_attr="table")


def test_lookups_at_ids_that_are_made_anew_between_them_are_not_merged() -> None:
    main = compile(with_ids_made_anew(), job()).trainer(0).main
    assert kinds(main)[:4] == ["assign", "distributed_lookup_table", "assign", "distributed_lookup_table"]


def test_a_distributed_table_takes_no_ids_that_are_made_anew_between_its_lookups() -> None:
    with pytest.raises(DiagnosticError) as refusal:
        compile(with_ids_made_anew(is_distributed=True), job())
    assert [d.code for d in refusal.value.diagnostics] == ["table-order"]
