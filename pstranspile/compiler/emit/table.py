"""The distributed lookup table in the programs of trainers and servers."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from functools import partial

from pstranspile.compiler.analysis.tables import RemoteTable, lookups_in
from pstranspile.compiler.emit.rules import (
    LOOKUP,
    MERGE_TABLE,
    SAVE_TABLE,
    SEND_TABLE_GRADIENT,
    SERVE_ROWS,
    SPLIT_TABLE_GRADIENT,
    TABLE_LOOKUP,
    UPDATE_TABLE,
    Timing,
    derived_origin,
)
from pstranspile.compiler.emit.server_block import ServerProgram, SourcePart
from pstranspile.compiler.plan.plan import Plan, PlannedParameter, PlannedTable
from pstranspile.ir.attributes import AttrValue, Longs, Strings
from pstranspile.ir.model import Op, Origin, Program, TensorType, Var
from pstranspile.ir.types import OpRole, VarKind
from pstranspile.ops.build import make_op

# Lookups in tables that stay on the servers.

Insertion = Callable[[int], Sequence[Op]]
"""The ops at a position of a trainer's program, as a function of the trainer's number."""


def insert_lookups(
    inserted: dict[int, list[Insertion]],
    ops: Sequence[Op],
    tables: Sequence[RemoteTable],
    plan: Plan,
    moved: Container[int],
) -> set[int]:
    """Adds the lookups on servers to `inserted`, by the op after which they come; returns the local lookups that they
    replace.
    """
    fused: set[int] = set()
    for table in tables:
        for merged in reversed(table.lookups):
            fused.update(merged.lookups)
            fetch = partial(fetch_rows, plan.by_name[table.parameter], [ops[i] for i in merged.lookups])
            inserted.setdefault(merged.after_op, []).insert(0, fetch)
    if plan.table is not None:
        lookups = lookups_in(ops, plan.table.name, moved)
        fused.update(lookups)
        if lookups:
            first = partial(fetch_table_rows, plan, plan.table, [ops[i] for i in lookups])
            inserted.setdefault(lookups[0], []).append(first)
    return fused


def lookup_vars(program: Program, plan: Plan, moved: Container[int]) -> dict[str, Var]:
    """The variables that a trainer's program declares for lookups in the distributed lookup table, if it has any."""
    if plan.table is None or not lookups_in(program.main_block.ops, plan.table.name, moved):
        return {}
    variables = {name: Var(name, tensor=plan.table.ids) for name in plan.table.ids_sent}
    variables.update((name, Var(name, tensor=plan.table.rows)) for name in plan.table.rows_got)
    return variables


def fetch_rows(table: PlannedParameter, lookups: Sequence[Op], trainer: int) -> list[Op]:
    """One `distributed_lookup_table` in place of lookups of one kind and one padding."""
    first = lookups[0]
    attrs = {
        "table_names": Strings(s.name for s in table.slices),
        "height_sections": Longs(s.stop - s.start for s in table.slices),
        "endpoints": Strings(s.endpoint for s in table.slices),
        "padding_idx": first.attrs.get("padding_idx", -1),
        "trainer_id": trainer,
        "lookup_table_version": first.type,
    }
    ids = [op.inputs["Ids"][0] for op in lookups]
    results = [op.outputs["Out"][0] for op in lookups]
    return [
        make_op(
            "distributed_lookup_table",
            {"Ids": ids, "W": [table.name]},
            {"Outputs": results},
            attrs,
            origin=derived_origin(first.origin, LOOKUP),
        )
    ]


def fetch_table_rows(plan: Plan, table: PlannedTable, lookups: Sequence[Op], trainer: int) -> list[Op]:
    """Ops that do all lookups at once: ids go to their servers, rows come back, and each lookup gets its own."""
    del trainer  # the ops are the same on all trainers
    ids = [op.inputs["Ids"][0] for op in lookups]
    results = [op.outputs["Out"][0] for op in lookups]
    sent, got = list(table.ids_sent), list(table.rows_got)
    origin = derived_origin(lookups[0].origin, TABLE_LOOKUP)
    attrs = {"epmap": Strings(plan.pservers)}
    return [
        make_op("split_ids", {"Ids": ids}, {"Out": sent}, origin=origin),
        make_op("prefetch", {"X": sent}, {"Out": got}, attrs, origin=origin),
        make_op("merge_ids", {"Ids": ids, "Rows": sent, "X": got}, {"Out": results}, origin=origin),
    ]


def send_table_gradient(
    plan: Plan, timing: Timing, table: PlannedTable, trainer: int, *, origin: Origin | None
) -> list[Op]:
    """Ops that split the table's gradient by id and send the parts."""
    parts = sent_gradients(plan, table, trainer)
    split = make_op(
        "split_ids",
        {"Ids": [table.gradient]},
        {"Out": parts},
        role=OpRole.DIST,
        origin=derived_origin(origin, SPLIT_TABLE_GRADIENT),
    )
    send = make_op(
        "send",
        {"X": parts},
        {"Out": [table.send_control] if timing.orders_table_send else []},
        {"epmap": Strings(plan.pservers), "trainer_id": trainer},
        role=OpRole.RPC,
        role_vars=(table.name, table.gradient),
        origin=derived_origin(origin, SEND_TABLE_GRADIENT),
    )
    return [split, send]


def sent_gradients(plan: Plan, table: PlannedTable, trainer: int) -> list[str]:
    """The names under which a trainer sends its gradient of the table, one per server."""
    who = trainer if _named_by_trainer(plan) else None
    return [table.sent_name(who, server) for server in range(len(plan.pservers))]


def table_vars(plan: Plan, table: PlannedTable, trainer: int) -> dict[str, Var]:
    """The variables that a trainer's program declares to send the gradient of the table."""
    variables: dict[str, Var] = {}
    for name in sent_gradients(plan, table, trainer):
        variables[name] = Var(name, VarKind.SELECTED_ROWS, table.tensor._replace(lod_level=0))
    variables[table.send_control] = Var(table.send_control)
    return variables


def serve_table(server: ServerProgram, plan: Plan, number: int, parent: int) -> dict[str, AttrValue]:
    """Adds the table to server `number`: blocks that update it, look rows up and save it.

    Returns the attributes of listen_and_serv for them; the update's block is the first of the three.
    """
    table = plan.table
    assert table is not None
    here = server.blocks[0].vars
    _declare_table(server, table)
    server.declare_copy(table.learning_rate)
    update = server.new_block(parent)
    gradient = _gradients_here(server, plan, table, number, update)
    server.blocks[update].ops.append(
        make_op(
            "sgd",
            {"Param": [table.name], "Grad": [gradient], "LearningRate": [table.learning_rate]},
            {"ParamOut": [table.name]},
            origin=derived_origin(table.updated_by, UPDATE_TABLE),
        )
    )
    sent, got = table.ids_sent[number], table.rows_got[number]
    here[sent] = Var(sent, tensor=table.ids)
    here[got] = Var(got, tensor=TensorType(table.rows.dtype, (len(table.ids.shape), *table.tensor.shape[1:])))
    lookup = server.new_block(update)
    origin = derived_origin(table.looked_up_by, SERVE_ROWS)
    server.blocks[lookup].ops.append(
        make_op("lookup_sparse_table", {"Ids": [sent], "W": [table.name]}, {"Out": [got]}, origin=origin)
    )
    here[table.path] = Var(table.path, VarKind.RAW, persistable=True)
    save = server.new_block(update)
    origin = derived_origin(table.updated_by, SAVE_TABLE)
    server.blocks[save].ops.append(make_op("save", {"X": [table.name]}, {}, {"file_path": "none"}, origin=origin))
    return {"prefetch_var_name_to_block_id": Strings([f"{sent}:{lookup}"]), "checkpint_block_id": save}


def _declare_table(server: ServerProgram, table: PlannedTable) -> None:
    """Declares a server's part of the table, as sparse rows."""
    source = server.source.main_block.vars[table.name]
    tensor = table.tensor._replace(shape=(table.rows_per_server, *table.tensor.shape[1:]))
    server.blocks[0].vars[table.name] = source._replace(
        kind=VarKind.SELECTED_ROWS, tensor=tensor, persistable=True, location=None
    )
    server.cuts[table.name] = SourcePart(table.name, 0)


def _gradients_here(server: ServerProgram, plan: Plan, table: PlannedTable, number: int, block: int) -> str:
    """Declares the gradients that a server receives for the table; adds an op for their sum (not their mean) if there
    are several.
    """
    tensor = table.tensor._replace(lod_level=0)
    if not _named_by_trainer(plan):
        gradient = table.sent_name(None, number)
        server.declare_tensor(gradient, tensor, VarKind.SELECTED_ROWS, persistable=True)
        return gradient
    received = [table.sent_name(trainer, number) for trainer in range(plan.trainers)]
    for name in received:
        server.declare_tensor(name, tensor, VarKind.SELECTED_ROWS, persistable=False)
    server.declare_tensor(table.gradient, tensor, VarKind.SELECTED_ROWS, persistable=True)
    origin = derived_origin(table.updated_by, MERGE_TABLE)
    server.blocks[block].ops.append(make_op("sum", {"X": received}, {"Out": [table.gradient]}, origin=origin))
    return table.gradient


def merged_gradient(plan: Plan, table: PlannedTable, number: int) -> str:
    """The name of the gradient with which a server selects the block of the table's update."""
    return table.gradient if _named_by_trainer(plan) else table.sent_name(None, number)


def _named_by_trainer(plan: Plan) -> bool:
    return plan.per_trainer and not plan.runtime_split
