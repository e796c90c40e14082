"""Lookups of rows of a table whose slices are on servers: the slices exist there, and are the table's rows in order.

This is Fluid's remote prefetch: an op with `table_names`, `height_sections` and `endpoints` (FEATURES A2.66 to A2.71).
"""

from __future__ import annotations

from collections.abc import Iterator

from pstranspile.ir.diagnostics import Diagnostic
from pstranspile.ir.model import Op
from pstranspile.link.base import described, finding, numbers, strings
from pstranspile.link.codes import LOOKUP, ORDER, OWNER, UNFETCHED
from pstranspile.link.collect import REMOTE_LOOKUPS, Cluster, Trainer

READS_NO_VALUE = frozenset({
    "distributed_lookup_table", "lookup_table_grad", "lookup_table_v2_grad", "nce_grad", "hierarchical_sigmoid_grad",
    "fetch_barrier",
})  # fmt: skip
"""Op types that may have a table as input whose rows are not here."""


def check_lookups(trainer: Trainer, cluster: Cluster) -> Iterator[Diagnostic]:
    """All lookups of a trainer that go to servers. Fills in the layouts of the tables."""
    lookups = [op for kind in REMOTE_LOOKUPS for _, op in trainer.main.of(kind) if op.attrs.get("table_names")]
    for op in lookups:
        yield from _check_lookup(trainer, op, cluster)
    faked = {name for _, op in trainer.startup.of("fake_init") for name in op.output_names}
    results = {name: op for op in lookups for name in op.output_names}
    results |= {name: op for _, op in trainer.main.of("merge_ids") for name in op.output_names}
    if faked or results:
        yield from _check_uses(trainer, faked, results)


def _check_lookup(trainer: Trainer, op: Op, cluster: Cluster) -> Iterator[Diagnostic]:
    role, table = trainer.role, op.input("W") or op.input("Weight") or ""
    names, heights = strings(op, "table_names"), numbers(op, "height_sections")
    endpoints = strings(op, "endpoints") or strings(op, "epmap")
    if not len(names) == len(heights) == len(endpoints):
        message = f"%{table} has {len(names)} table_names, {len(heights)} height_sections, {len(endpoints)} endpoints"
        yield finding(LOOKUP, role, op, message, table)
    whole = trainer.main.vars.get(table)
    dims = whole.shape if whole is not None else ()
    if whole is None or not dims or sum(heights) != dims[0]:
        message = f"height_sections {list(heights)} are not the rows of %{table}, {described(whole)}"
        yield finding(LOOKUP, role, op, message, table)
        return
    again = table in trainer.layouts
    for name, height, endpoint in zip(names, heights, endpoints, strict=False):
        server = cluster.servers.get(endpoint)
        held = server.vars.get(name) if server else None
        if server is None or held is None or not held.persistable:
            yield finding(LOOKUP, role, op, f"{endpoint!r} does not hold %{name}, a slice of %{table}", name)
            continue
        server.looked_up.add(name)
        if not again:
            server.fetched[name] = server.fetched.get(name, 0) + 1
        if held.dtype is not whole.dtype or held.shape != (height, *dims[1:]):
            message = f"%{name} is {described(held)} on {server.role.name}, the lookup takes {height} rows of it"
            yield finding(LOOKUP, role, op, message, name)
        owners = cluster.owners.get(name)
        if owners != [endpoint]:
            found = ", ".join(owners or ()) or "none"
            yield finding(OWNER, role, op, f"%{name} is looked up on {endpoint}, updated by {found}", name)
    known = trainer.layouts.setdefault(table, tuple(names))
    if known != tuple(names):
        yield finding(LOOKUP, role, op, f"%{table} is made of other slices than in another op", table)


def _check_uses(trainer: Trainer, faked: set[str], results: dict[str, Op]) -> Iterator[Diagnostic]:
    """Rows are used after they were looked up, ids made before; a table without memory is not read here."""
    role, absent = trainer.role, faked.difference(trainer.startup_layouts)
    lookups = {id(op): op for op in results.values()}
    made: set[str] = set()
    awaited: dict[str, Op] = {}
    for op in trainer.main.program.blocks[0].ops:
        for names in op.inputs.values():
            for name in names:
                if name in results and name not in made:
                    message = f"%{name} is used by {op.type} before it is looked up"
                    yield finding(ORDER, role, results[name], message, name)
                    made.add(name)
                elif name in absent and op.type not in READS_NO_VALUE and not op.attrs.get("table_names"):
                    yield finding(UNFETCHED, role, op, f"%{name} has no value on this machine", name)
        for names in op.outputs.values():
            made.update(names)
            for name in names:
                if name in awaited:
                    message = f"it takes the ids %{name}, which {op.type} makes after it"
                    yield finding(ORDER, role, awaited[name], message, name)
        if id(op) in lookups:
            awaited.update((name, op) for name in op.inputs.get("Ids", ()) if name not in made)
