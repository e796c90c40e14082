"""What a sparse table can't be, said at the line where it shows; and the remedies that the messages name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest

from pstranspile.compiler.compile import compile
from pstranspile.compiler.job import Job
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import L2, SGD, Adadelta, Adam, ClipByGlobalNorm, Momentum, Optimizer
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Severity
from pstranspile.ir.model import Module
from tests.sparse import Look, after_first, distributed, model, of_type

SERVERS = ["a:6174", "b:6174"]
ROWS = "; distributed_table=rows distributes it by ranges of rows instead"


class Found(NamedTuple):
    """A finding: its code, its words, the op at its line (with which the words begin), and the variable."""

    code: str
    message: str
    op: str
    focus: str


def shown(module: Module, findings: Sequence[Diagnostic]) -> list[Found]:
    assert module.source is not None
    lines = module.source.text.split("\n")
    found: list[Found] = []
    for d in findings:
        assert d.location is not None
        assert (d.location.file, d.location.column) == ("net.ir", 5)
        op = lines[d.location.line - 1].strip().split("(")[0]
        assert d.message.startswith(f"{op}: ")
        found.append(Found(d.code, d.message.removeprefix(f"{op}: "), op, d.focus))
    return found


def refused(module: Module, **settings: object) -> list[Found]:
    with pytest.raises(DiagnosticError) as refusal:
        compile(module, Job(SERVERS, 2, **settings))  # pyright: ignore[reportArgumentType]
    assert all(d.severity is Severity.ERROR for d in refusal.value.diagnostics)
    return shown(module, refusal.value.diagnostics)


def warned(module: Module, **settings: object) -> list[Found]:
    warnings = compile(module, Job(SERVERS, 2, **settings)).warnings  # pyright: ignore[reportArgumentType]
    assert all(d.severity is Severity.WARNING for d in warnings)
    return shown(module, warnings)


def test_a_table_that_something_else_reads_is_received_whole() -> None:
    def watched(draft: L.Draft) -> L.Value:
        L.reduce_sum(L.Value(draft, "table"))
        return L.data(draft, "more", [-1, 8], "f32")

    module = model([Look()], extra=watched)
    message = "%table is received whole by every trainer: reduce_sum reads it on the trainer"
    assert warned(module) == [Found("table-not-remote", message, "reduce_sum", "%table")]


def test_a_table_with_ids_of_rank_3_is_received_whole() -> None:
    module = model([Look()], ids_shape=(-1, 4, 1))
    message = "%table is received whole by every trainer: a lookup on servers takes ids of rank 2"
    assert warned(module) == [Found("table-not-remote", message, "lookup_table", "%table")]


def test_two_distributed_tables() -> None:
    module = model([distributed("one"), distributed("two", ids="others")])
    message = "%one and %two are both distributed; there can be one distributed lookup table"
    assert refused(module) == [Found("table-several", message + ROWS, "lookup_table", "%two")]
    assert warned(module, distributed_table="rows") == []


def test_another_reader_of_a_distributed_table() -> None:
    message = "%table is a distributed lookup table, which this op on the trainer can't read"
    module = model([distributed(), Look(ids="others")])
    assert refused(module) == [Found("table-reader", message, "lookup_table", "%table")]
    assert warned(module, distributed_table="rows") == []


def test_ids_that_come_after_the_first_lookup() -> None:
    module = model([distributed(), distributed(ids=after_first)])
    (found,) = refused(module)
    assert found.code == "table-order"
    assert found.op == "lookup_table"
    assert found.message == f"the ids {found.focus} are made after the first lookup in %table, too late for it" + ROWS
    assert found.focus.startswith("%reshape")
    compiled = compile(module, Job(SERVERS, 2, distributed_table="rows"))
    assert len(of_type(compiled.trainer(0).main, "distributed_lookup_table")) == 2


def test_an_update_that_is_joined_with_others() -> None:
    module = model([distributed()], Adam(0.1, clip=ClipByGlobalNorm(1.0)))
    (found,) = refused(module)
    assert found.code == "table-joined"
    assert found.focus == "%table"
    assert found.message.startswith("the update of %table, a distributed lookup table, is joined with that of %")
    assert found.message.endswith(ROWS)
    compile(module, Job(SERVERS, 2, distributed_table="rows"))


def test_padding_is_not_known_to_the_servers() -> None:
    module = model([distributed(), distributed(ids="others", padding_idx=3)])
    compiled = compile(module, Job(SERVERS, 1))
    message = (
        "row 3 of the distributed lookup table %table is looked up like any other, "
        "instead of giving zeros as padding_idx says"
    )
    assert shown(module, compiled.warnings) == [Found("table-padding", message + ROWS, "lookup_table", "%table")]
    blocks = compiled.pserver(SERVERS[0]).main.blocks
    (served,) = [op for block in blocks for op in block.ops if op.type == "lookup_sparse_table"]
    assert served.attrs["padding_idx"] == -1
    by_rows = compile(module, Job(SERVERS, 1, distributed_table="rows"))
    assert by_rows.warnings == ()
    found = of_type(by_rows.trainer(0).main, "distributed_lookup_table")
    assert sorted(str(op.attrs["padding_idx"]) for op in found) == ["-1", "3"]


SUM = "by the sum of the trainers' gradients, not their mean"


@pytest.mark.parametrize(
    ("optimizer", "trainers", "changes"),
    [
        pytest.param(SGD(0.1), 2, SUM, id="sum"),
        pytest.param(Adam(0.1), 1, "by sgd, not adam", id="adam"),
        pytest.param(Adam(0.1), 2, f"by sgd, not adam, {SUM}", id="adam, sum"),
        pytest.param(SGD(0.1, regularizer=L2(0.1)), 1, "without weight decay or clipping", id="weight decay"),
        pytest.param(
            Momentum(0.1, 0.9, regularizer=L2(0.1)),
            3,
            f"by sgd, not momentum, without weight decay or clipping, {SUM}",
            id="all",
        ),
    ],
)
def test_what_becomes_of_the_update(optimizer: Optimizer, trainers: int, changes: str) -> None:
    module = model([distributed()], optimizer)
    compiled = compile(module, Job(SERVERS, trainers))
    message = f"the distributed lookup table %table is updated {changes}" + ROWS
    kind = optimizer.update("table").op_type
    assert shown(module, compiled.warnings) == [Found("table-update", message, kind, "%table")]
    assert compile(module, Job(SERVERS, trainers, distributed_table="rows")).warnings == ()


def test_nothing_is_said_of_an_update_that_stays_as_it_is() -> None:
    assert compile(model([distributed()]), Job(SERVERS, 1)).warnings == ()


def test_an_optimizer_without_a_rate() -> None:
    module = model([distributed()], Adadelta(0.1))
    message = "the distributed lookup table %table is updated by sgd, and adadelta has no rate"
    assert refused(module) == [Found("table-update", message, "adadelta", "%table")]
    assert warned(module, distributed_table="rows") == []
