"""A table that is dealt out by id: every server has the rows whose id modulo the number of servers is its number.

The trainer splits the ids (`split_ids`), has each server look its part up (`prefetch`) and puts the rows together
(`merge_ids`); it splits and sends the gradient in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pstranspile.compiler.link.base import described, finding
from pstranspile.compiler.link.machines import Cluster, Server, Trainer
from pstranspile.compiler.link.remote_lookups import check_dims
from pstranspile.ir.diagnostics import Diagnostic
from pstranspile.ir.model import Op
from pstranspile.ir.types import VarKind
from pstranspile.ops.attributes import int_attr, strings_attr

SAVE_PATH = "kLookupTablePath"
"""The variable that carries the path for a server's part of the table."""


def check_prefetches(trainer: Trainer, cluster: Cluster) -> Iterator[Diagnostic]:
    """The lookups of a trainer, and that its gradients go the same way."""
    main, role = trainer.main, trainer.role
    prefetches = main.of("prefetch")
    if not prefetches:
        return
    splits = {op.outputs.get("Out", ()): op for _, op in main.of("split_ids")}
    merges = {op.inputs.get("X", ()): op for _, op in main.of("merge_ids")}
    tables: dict[str, Sequence[str]] = {}
    counted: set[tuple[str, str]] = set()
    for _, op in prefetches:
        sent, answers, endpoints = op.inputs.get("X", ()), op.outputs.get("Out", ()), strings_attr(op, "epmap")
        split, merge = splits.get(sent), merges.get(answers)
        if not len(sent) == len(answers) == len(endpoints) or len(set(endpoints)) != len(endpoints):
            message = f"{len(sent)} parts of the ids go to the servers {list(endpoints)}, {len(answers)} come back"
            yield finding("link-prefetch", role, op, message, next(iter(sent), ""))
        if not sent or not answers:
            continue
        if split is None:
            yield finding(
                "link-prefetch", role, op, f"no split_ids makes %{sent[0]} and the other parts in order", sent[0]
            )
        if merge is None or merge.inputs.get("Rows") != sent:
            message = f"no merge_ids puts %{answers[0]} and the other parts together in order"
            yield finding("link-prefetch", role, op, message, answers[0])
        elif split is not None and merge.inputs.get("Ids") != split.inputs.get("Ids"):
            message = "it puts the rows of other ids together than those that were split"
            yield finding("link-prefetch", role, merge, message, next(iter(merge.inputs.get("Ids", ())), ""))
        for name, result, endpoint in zip(sent, answers, endpoints, strict=False):
            server = cluster.servers.get(endpoint)
            table = _answered(server, name, result) if server else None
            if server is None or table is None:
                message = f"{endpoint!r} does not answer the ids %{name} with %{result}"
                yield finding("link-prefetch", role, op, message, name)
                continue
            server.looked_up.add(table)
            if (endpoint, table) not in counted:
                counted.add((endpoint, table))
                server.fetched[table] = server.fetched.get(table, 0) + 1
            yield from _check_rows(trainer, op, server, table, result, len(endpoints))
            if tables.setdefault(table, endpoints) != endpoints:
                yield finding(
                    "link-prefetch", role, op, f"%{table} is dealt out in another order than elsewhere", table
                )
    yield from check_dims(trainer, dict.fromkeys(tables, prefetches[0].op))
    yield from _check_gradients(trainer, cluster, tables)


def _answered(server: Server, ids: str, result: str) -> str | None:
    """The table whose rows the server gives for these ids under that name, None if it does not."""
    for entry in strings_attr(server.op, "prefetch_var_name_to_block_id"):
        name, _, text = entry.rpartition(":")
        lookup = _lookup(server, text)
        if name == ids and lookup is not None and lookup.input("Ids") == ids and lookup.output("Out") == result:
            return lookup.input("W")
    return None


def _lookup(server: Server, text: str) -> Op | None:
    blocks = server.role.main.blocks
    index = int(text) if text.isdigit() else -1
    if not 0 < index < len(blocks):
        return None
    return next((op for op in blocks[index].ops if op.type == "lookup_sparse_table"), None)


def _check_rows(
    trainer: Trainer, op: Op, server: Server, table: str, result: str, servers: int
) -> Iterator[Diagnostic]:
    """The server has its share of the table's rows, as wide as what the trainer takes them for."""
    whole, held, rows = trainer.main.vars.get(table), server.vars.get(table), trainer.main.vars.get(result)
    if whole is None or held is None or not whole.shape:
        message = f"%{table} is {described(whole)} here, {described(held)} on {server.role.name}"
        yield finding("link-prefetch", trainer.role, op, message, table)
        return
    share = (-(-whole.shape[0] // servers), *whole.shape[1:])
    if held.shape != share or held.dtype is not whole.dtype:
        message = (
            f"%{table} is {described(held)} on {server.role.name}, {list(share)} is its share of {servers} servers"
        )
        yield finding("link-prefetch", trainer.role, op, message, table)
    if rows is None or rows.shape[1:] != whole.shape[1:] or rows.dtype is not whole.dtype:
        yield finding(
            "link-prefetch", trainer.role, op, f"%{result} is {described(rows)}, a row of %{table} is not", result
        )


def _check_gradients(trainer: Trainer, cluster: Cluster, tables: dict[str, Sequence[str]]) -> Iterator[Diagnostic]:
    """The k-th part of the table's gradient goes where the k-th part of the ids went."""
    sends = {op.inputs.get("X", ()): op for _, op in trainer.main.of("send")}
    done: set[str] = set()
    prefetched = {op.inputs.get("X", ()) for _, op in trainer.main.of("prefetch")}
    for _, op in trainer.main.of("split_ids"):
        parts, whole = op.outputs.get("Out", ()), op.input("Ids") or ""
        if parts in prefetched:
            continue
        send, gradient = sends.get(parts), trainer.main.vars.get(whole)
        if send is None or not parts:
            name = next(iter(parts), whole)
            yield finding("link-prefetch", trainer.role, op, f"%{name} and the other parts are not sent", name)
            continue
        if gradient is None or gradient.kind is not VarKind.SELECTED_ROWS:
            message = f"it splits %{whole}, {described(gradient)}, which is no sparse gradient"
            yield finding("link-prefetch", trainer.role, op, message, whole)
        endpoints = strings_attr(send, "epmap")
        for name, endpoint in zip(parts, endpoints, strict=False):
            server = cluster.servers.get(endpoint)
            table = server.feeds.get(name) if server else None
            if table is None or tables.get(table) != endpoints:
                message = f"%{name} goes to {endpoint!r}, ids of the rows of %{table or '?'} are split otherwise"
                yield finding("link-prefetch", trainer.role, send, message, name)
            else:
                done.add(table)
    for table in tables if len(cluster.parts) == 1 else ():
        if table not in done and any(table in server.parameters for server in cluster.servers.values()):
            op = trainer.main.of("prefetch")[0].op
            yield finding("link-prefetch", trainer.role, op, f"the gradient of %{table} is not split and sent", table)


def check_table_blocks(server: Server) -> Iterator[Diagnostic]:
    """The blocks that look rows up and save the table exist, and are about a table that the server updates."""
    role, op = server.role, server.op
    entries = strings_attr(op, "prefetch_var_name_to_block_id")
    checkpoint = int_attr(op, "checkpint_block_id", -1)
    blocks = role.main.blocks
    tables: set[str] = set()
    for entry in entries:
        name, _, text = entry.rpartition(":")
        lookup = _lookup(server, text)
        table = lookup.input("W") if lookup is not None else None
        if lookup is None or table is None or lookup.input("Ids") != name or name not in server.vars:
            message = f"prefetch_var_name_to_block_id names {entry!r}, but that block does not look %{name} up"
            yield finding("link-prefetch", role, op, message, name)
            continue
        tables.add(table)
        if table not in server.parameters or table not in server.initialised:
            message = f"rows of %{table} are looked up, which no block updates or nothing initialises"
            yield finding("link-prefetch", role, lookup, message, table)
    if checkpoint == -1 and not entries:
        return
    saved = blocks[checkpoint].ops if 0 < checkpoint < len(blocks) else ()
    names = {name for save in saved if save.type == "save" for name in save.inputs.get("X", ())}
    if not saved or not names <= tables or not names or SAVE_PATH not in server.vars:
        shown = ", ".join([f"%{name}" for name in sorted(names)]) or "nothing"
        message = f"checkpint_block_id {checkpoint} saves {shown}, not the table that is looked up"
        yield finding("link-blocks", role, op, message, next(iter(sorted(tables)), ""))
