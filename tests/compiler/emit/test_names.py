"""Names of the program that look like generated ones never collide with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pstranspile.compiler.compile import Compiled, compile
from pstranspile.compiler.emit.rules import rename_vars
from pstranspile.compiler.job import Job
from pstranspile.compiler.verify import verify
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, Exponential, minimize
from pstranspile.ir.diagnostics import Severity
from pstranspile.ir.model import FrozenMap, Module, Program
from tests.sparse import of_type

GENERATED = [
    "w.block0",
    "w.block1",
    "w.trainer_0",
    "w.block0.trainer_1",
    "w@GRAD.block0",
    "w@GRAD.block0.trainer_1",
    "v@GRAD.trainer_0",
    "__control_var@w",
    "__control_var@send_barrier",
    "__control_var@fetch_barrier",
    "__control_var@table",
    "@TRAINER_ID@",
    "tmp_dc_output_0",
    "w.local_bak",
    "w.block0.local_bak",
    "table.block0",
    "table@GRAD.block1",
    "table@GRAD.block1.trainer_0",
    "table@GRAD.pserver_0",
    "table@GRAD.trainer_0.pserver_1",
    "prefetch_compress_in_tmp_0",
    "prefetch_compress_out_tmp_1",
    "@LR_DECAY_COUNTER@.trainer_0",
    "__control_var@@LR_DECAY_COUNTER@",
]
"""Names that the compiler gives to what it makes for the model below."""

JOBS: dict[str, dict[str, object]] = {
    "sync": {},
    "async": {"mode": "async"},
    "run-time split": {"mode": "async", "runtime_split_send_recv": True},
    "half-async": {"mode": "half-async"},
    "fleet-sync": {"mode": "fleet-sync"},
    "dc-asgd": {"mode": "async", "enable_dc_asgd": True},
}


def net(*, is_distributed: bool) -> Module:
    """A cut weight, one that is not, a table, five more parameters `p0`... and a rate that decays."""
    draft = L.Draft(seed=1)
    x, ids = L.data(draft, "x", [-1, 50], "f32"), L.data(draft, "ids", [-1, 1], "i64")
    rows = L.embedding(ids, (200, 8), is_sparse=True, is_distributed=is_distributed, param_attr="table")
    hidden = L.fc([L.fc(x, 20, param_attr="w", bias_attr=False), rows], 4, param_attr=["v", "u"], bias_attr=False)
    for number in range(5):
        hidden = L.fc(hidden, 4 if number < 4 else 1, param_attr=f"p{number}", bias_attr=False)
    loss = L.mean(L.square_error_cost(hidden, L.data(draft, "y", [-1, 1], "f32")))
    minimize(loss, SGD(Exponential(0.1, 10, 0.5)))
    return draft.module()


def renamed(module: Module, names: Mapping[str, str]) -> Module:
    """The module with variables renamed everywhere."""

    def program(old: Program) -> Program:
        blocks = [
            block._replace(
                vars=FrozenMap({names.get(n, n): v._replace(name=names.get(n, n)) for n, v in block.vars.items()}),
                ops=tuple([rename_vars(op, dict(names)) for op in block.ops]),
            )
            for block in old.blocks
        ]
        return old._replace(blocks=tuple(blocks))

    return Module(FrozenMap({name: program(p) for name, p in module.programs.items()}))


def job(kind: str) -> Job:
    return Job(["a:6174", "b:6174"], 2, min_block_size=500, **JOBS[kind])  # pyright: ignore[reportArgumentType]


def census(compiled: Compiled) -> Counter[tuple[str, str]]:
    """How many variables and ops of each kind every machine has."""
    found: Counter[tuple[str, str]] = Counter()
    for role in compiled.roles().values():
        for program in (role.main, role.startup):
            for block in program.blocks:
                found.update((role.name, str((v.kind, v.tensor, v.persistable))) for v in block.vars.values())
                found.update((role.name, op.type) for op in block.ops)
    return found


def assert_the_same_cluster(module: Module, names: Mapping[str, str], kind: str) -> None:
    """Renaming changes no number of variables or ops, and what is emitted is well formed; `compile` links it."""
    plain, strange = compile(module, job(kind)), compile(renamed(module, names), job(kind))
    assert census(plain) == census(strange)
    for role in strange.roles().values():
        assert [d.message for d in verify(role.module) if d.severity is Severity.ERROR] == []
    parameters = {names.get(op.input("Param") or "", op.input("Param")) for op in of_type(module.main, "sgd")}
    table = strange.plan.distributed_lookup_table
    assert {p.name for p in strange.plan.parameters} == parameters - {table}


@pytest.mark.parametrize("kind", JOBS)
@pytest.mark.parametrize("is_distributed", [False, True])
def test_parameters_and_feeds_with_names_of_generated_variables(kind: str, is_distributed: bool) -> None:
    module = net(is_distributed=is_distributed)
    for start in range(0, len(GENERATED), 6):
        names = dict(zip(["p0", "p1", "p2", "p3", "p4", "x"], GENERATED[start : start + 6], strict=True))
        if kind == "dc-asgd":
            names = {old: new for old, new in names.items() if new != "@TRAINER_ID@"}  # refused there
        assert_the_same_cluster(module, names, kind)


ORIGINALS = ["p0", "p1", "p2", "x", "ids", "y", "v", "table"]


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from(sorted(JOBS)),
    st.booleans(),
    st.lists(st.sampled_from([n for n in GENERATED if n != "@TRAINER_ID@"]), min_size=8, max_size=8, unique=True),
)
def test_any_of_them(kind: str, is_distributed: bool, chosen: list[str]) -> None:
    assert_the_same_cluster(net(is_distributed=is_distributed), dict(zip(ORIGINALS, chosen, strict=True)), kind)
