"""Lookups of rows of a table whose slices are on servers: the slices exist there, and are the table's rows in order.

This is Fluid's remote prefetch: an op with `table_names`, `height_sections` and `endpoints`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pstranspile.compiler.link.base import described, finding, names_text
from pstranspile.compiler.link.collect import REMOTE_LOOKUPS
from pstranspile.compiler.link.machines import Cluster, Trainer
from pstranspile.ir.diagnostics import Diagnostic
from pstranspile.ir.model import Op
from pstranspile.ops.attributes import ints_attr, strings_attr

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
    pairs = [op for kind in ("distributed_lookup_table", "merge_ids") for _, op in trainer.main.of(kind)]
    backward = _backward(trainer) if pairs else {}
    for op in pairs:
        yield from _check_pairs(trainer, op, backward)
    yield from check_dims(trainer, {op.input("W") or op.input("Weight") or "": op for op in lookups})
    faked = {name for _, op in trainer.startup.of("fake_init") for name in op.output_names}
    results = {name: op for op in lookups for name in op.output_names}
    results |= {name: op for _, op in trainer.main.of("merge_ids") for name in op.output_names}
    if faked or results:
        yield from _check_uses(trainer, faked, results)


def _check_lookup(trainer: Trainer, op: Op, cluster: Cluster) -> Iterator[Diagnostic]:
    role, table = trainer.role, op.input("W") or op.input("Weight") or ""
    names, heights = strings_attr(op, "table_names"), ints_attr(op, "height_sections")
    endpoints = strings_attr(op, "endpoints") or strings_attr(op, "epmap")
    if not len(names) == len(heights) == len(endpoints):
        message = f"%{table} has {len(names)} table_names, {len(heights)} height_sections, {len(endpoints)} endpoints"
        yield finding("link-lookup", role, op, message, table)
    whole = trainer.main.vars.get(table)
    dims = whole.shape if whole is not None else ()
    if whole is None or not dims or sum(heights) != dims[0]:
        message = f"height_sections {list(heights)} are not the rows of %{table}, {described(whole)}"
        yield finding("link-lookup", role, op, message, table)
        return
    again = table in trainer.layouts
    for name, height, endpoint in zip(names, heights, endpoints, strict=False):
        server = cluster.servers.get(endpoint)
        held = server.vars.get(name) if server else None
        if server is None or held is None or not held.persistable:
            yield finding("link-lookup", role, op, f"{endpoint!r} does not hold %{name}, a slice of %{table}", name)
            continue
        server.looked_up.add(name)
        if not again:
            server.fetched[name] = server.fetched.get(name, 0) + 1
        if held.dtype is not whole.dtype or held.shape != (height, *dims[1:]):
            message = f"%{name} is {described(held)} on {server.role.name}, the lookup takes {height} rows of it"
            yield finding("link-lookup", role, op, message, name)
        owners = cluster.owners.get(name)
        if owners != [endpoint]:
            shown = ", ".join(owners or ()) or "none"
            yield finding("link-owner", role, op, f"%{name} is looked up on {endpoint}, updated by {shown}", name)
    known = trainer.layouts.setdefault(table, tuple(names))
    if known != tuple(names):
        yield finding("link-lookup", role, op, f"%{table} is made of other slices than in another op", table)


def _backward(trainer: Trainer) -> dict[str, str]:
    """The gradient of every looked-up result -> the ids with which the gradient of the table is computed."""
    return {
        gradient.input("Out@GRAD") or "": gradient.input("Ids") or ""
        for kind in ("lookup_table_grad", "lookup_table_v2_grad")
        for _, gradient in trainer.main.of(kind)
    }


def _check_pairs(trainer: Trainer, op: Op, backward: Mapping[str, str]) -> Iterator[Diagnostic]:
    """As many results as ids, all declared, and the gradient of each result is computed with the same ids."""
    code = "link-prefetch" if op.type == "merge_ids" else "link-lookup"
    results = op.outputs.get("Outputs") or op.outputs.get("Out", ())
    ids = op.inputs.get("Ids", ())
    missing = [name for name in (*ids, *results) if name not in trainer.main.vars]
    if len(ids) != len(results) or not ids or missing:
        message = f"{names_text(ids)} are looked up as {names_text(results)}"
        message += f", of which {names_text(missing)} are not declared" if missing else ""
        yield finding(code, trainer.role, op, message, next(iter(missing or ids or results), ""))
    for name, result in zip(ids, results, strict=False):
        other = backward.get(f"{result}@GRAD")
        if other is not None and other != name:
            message = f"%{result} are the rows at %{name}, but its gradient is that of the rows at %{other}"
            yield finding(code, trainer.role, op, message, result)


def check_dims(trainer: Trainer, tables: Mapping[str, Op]) -> Iterator[Diagnostic]:
    """Tables (each with an op that looks it up) have their dims from the start-up program."""
    if not tables:
        return
    made = {name for op in trainer.startup.program.main_block.ops for name in op.output_names}
    for table, op in tables.items():
        if table not in made:
            yield finding("link-lookup", trainer.role, op, f"no op at start-up gives %{table} its dims", table)
    for _, op in trainer.startup.of("fake_init"):
        name = op.output("Out") or ""
        var = trainer.main.vars.get(name)
        if name in tables and var is not None and tuple(ints_attr(op, "shape")) != var.shape:
            message = f"it gives %{name} the dims {list(ints_attr(op, 'shape'))}, which is {described(var)}"
            yield finding("link-lookup", trainer.role, op, message, name)


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
                    yield finding("link-order", role, results[name], message, name)
                    made.add(name)
                elif name in absent and op.type not in READS_NO_VALUE and not op.attrs.get("table_names"):
                    yield finding("link-unfetched", role, op, f"%{name} has no value on this machine", name)
        for names in op.outputs.values():
            made.update(names)
            for name in names:
                if name in awaited:
                    message = f"it takes the ids %{name}, which {op.type} makes after it"
                    yield finding("link-order", role, awaited[name], message, name)
        if id(op) in lookups:
            awaited.update((name, op) for name in op.inputs.get("Ids", ()) if name not in made)
