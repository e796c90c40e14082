"""What must hold for every model with sparse tables, in every mode with servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from hypothesis import given, settings
from hypothesis import strategies as st

from pstranspile.compiler.compile import Compiled, compile
from pstranspile.compiler.job import Job
from pstranspile.compiler.verify import verify
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import L2, SGD, Adam, Momentum
from pstranspile.ir.attributes import Longs, Strings
from pstranspile.ir.diagnostics import Severity
from pstranspile.ir.model import Module
from tests.sparse import Look, model, of_type

SIZES = {"one": (40, 4), "two": (200, 8), "three": (3, 2), "four": (1000, 1)}


def found_by(number: int) -> Callable[[Sequence[L.Value]], L.Value]:
    """Ids that depend on what an earlier lookup found."""
    return lambda found: L.reshape(L.arg_max(found[number % len(found)], axis=1), [-1, 1])


@st.composite
def looks(draw: st.DrawFn) -> list[Look]:
    chosen: list[Look] = []
    for number in range(draw(st.integers(1, 6))):
        table = draw(st.sampled_from(sorted(SIZES)))
        fed = st.sampled_from(["a", "b", "c"])
        made = st.integers(0, 5).map(found_by)
        ids = draw(st.one_of(fed, fed, made)) if number else draw(fed)
        chosen.append(
            Look(
                table,
                ids,
                SIZES[table],
                padding_idx=draw(st.sampled_from([None, None, 0, 1])),
                is_distributed=draw(st.integers(0, 4)) == 0,
                v2=draw(st.integers(0, 4)) == 0,
            )
        )
    return chosen


optimizers = st.sampled_from([SGD(0.1), Adam(0.1), Momentum(0.1, 0.9), SGD(0.1, regularizer=L2(0.1))])
modules = st.builds(model, looks(), optimizers)

modes = st.sampled_from([
    {"mode": "sync"},
    {"mode": "async"},
    {"mode": "async", "runtime_split_send_recv": True},
    {"mode": "async", "enable_dc_asgd": True},
    {"mode": "half-async"},
    {"sync_mode": False, "half_async": True},
    {"mode": "fleet-sync"},
])  # fmt: skip


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    return Job(
        [f"ps{i}:6174" for i in range(draw(st.integers(1, 5)))],
        draw(st.integers(1, 3)),
        slice_var_up=draw(st.booleans()),
        min_block_size=draw(st.sampled_from([1, 7, 50, 400, 8192])),
        split_method=draw(st.sampled_from(["RoundRobin", "HashName"])),
        distributed_table="rows",
        **draw(modes),  # pyright: ignore[reportArgumentType]
    )


def assert_partitioned(compiled: Compiled) -> None:
    """The slices of every parameter are its rows, each on one server."""
    for parameter in compiled.plan.parameters:
        assert [s.start for s in parameter.slices] == [0, *(s.stop for s in parameter.slices[:-1])]
        assert parameter.slices[-1].stop == parameter.shape[0]
        assert sum(prod(s.shape) for s in parameter.slices) == prod(parameter.shape)
    owned = [s.name for endpoint in compiled.plan.pservers for _, s in compiled.plan.slices_on(endpoint)]
    assert sorted(owned) == sorted(s.name for p in compiled.plan.parameters for s in p.slices)


def assert_same_lookups(module: Module, compiled: Compiled) -> None:
    """Every trainer looks up what the program does, each once, in slices that are the whole table."""
    kinds = ("lookup_table", "lookup_table_v2")
    wanted = {op.output("Out"): (op.type, op.input("Ids"), op.input("W")) for op in of_type(module.main, *kinds)}
    padding = {op.output("Out"): op.attrs.get("padding_idx", -1) for op in of_type(module.main, *kinds)}
    for trainer in range(compiled.plan.trainers):
        main = compiled.trainer(trainer).main
        got = {op.output("Out"): (op.type, op.input("Ids"), op.input("W")) for op in of_type(main, *kinds)}
        for op in of_type(main, "distributed_lookup_table"):
            (table,) = op.inputs["W"]
            slices = compiled.plan.by_name[table].slices
            assert op.attrs["table_names"] == Strings(s.name for s in slices)
            assert op.attrs["endpoints"] == Strings(s.endpoint for s in slices)
            assert op.attrs["height_sections"] == Longs(s.shape[0] for s in slices)
            assert op.attrs["trainer_id"] == trainer
            for ids, out in zip(op.inputs["Ids"], op.outputs["Outputs"], strict=True):
                assert out not in got
                assert op.attrs["padding_idx"] == padding[out]
                got[out] = (str(op.attrs["lookup_table_version"]), ids, table)
        assert got == wanted


@settings(deadline=None, max_examples=80)
@given(modules, jobs())
def test_tables_of_any_model(module: Module, job: Job) -> None:
    before = repr(module.programs)
    compiled = compile(module, job)  # links: every send has a receiver, every lookup its rows
    assert repr(module.programs) == before
    assert_partitioned(compiled)
    assert_same_lookups(module, compiled)
    for role in compiled.roles().values():  # a lookup stands after its ids and before its uses
        assert [d.message for d in verify(role.module) if d.severity is Severity.ERROR] == []
    remote = {v.origin for v in compiled.distributed_vars if v.vtype == "RemotePrefetch"}
    startup = compiled.trainer(0).startup
    assert {op.output("Out") for op in of_type(startup, "fake_init")} == remote
    received = {out for op in of_type(startup, "recv") for out in op.outputs["Out"]}
    assert received == {s.name for p in compiled.plan.parameters for s in p.slices if p.name not in remote}
