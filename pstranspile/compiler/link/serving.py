"""The blocks of a server: listed, mapped to their gradients, fed with all they read, merging every trainer's part."""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose

from pstranspile.compiler.link.base import finding
from pstranspile.compiler.link.machines import Server
from pstranspile.ir.attributes import BlockRefs
from pstranspile.ir.diagnostics import Diagnostic
from pstranspile.ir.types import VarKind
from pstranspile.ops import schema_of
from pstranspile.ops.attributes import ints_attr, strings_attr
from pstranspile.ops.schema import Slicing

FILLED_BY_THE_SERVER = frozenset({"@TRAINER_ID@"})
"""Variables that the server's loop writes itself."""


def check_server(server: Server) -> Iterator[Diagnostic]:
    """One server by itself; what it is `sent` is known."""
    yield from _check_blocks(server)
    yield from _check_updates(server)
    yield from _check_gradient_map(server)
    yield from _check_reads(server)
    yield from _check_dims(server)


def _check_blocks(server: Server) -> Iterator[Diagnostic]:
    role, op, blocks = server.role, server.op, server.role.main.blocks
    listed = op.attrs.get("optimize_blocks")
    given = tuple(listed) if isinstance(listed, BlockRefs) else ()
    if not given or len(given) != len(server.blocks) or len(set(given)) != len(given):
        message = f"optimize_blocks {list(given)} are not blocks of the program, each once ({len(blocks)} blocks)"
        yield finding("link-blocks", role, op, message)
    if server.rates != -1 and server.rates not in server.blocks[:1]:
        message = f"lr_decay_block_id {server.rates} is not the first of optimize_blocks {list(server.blocks)}"
        yield finding("link-blocks", role, op, message)
    for index in server.blocks:
        if index != server.rates and not blocks[index].ops and len(server.blocks) > 1:
            yield finding("link-blocks", role, op, f"block {index} has no ops")


def _check_updates(server: Server) -> Iterator[Diagnostic]:
    """Every block updates a parameter, in place, with what is received."""
    for index, op in server.idle:
        name = op.input("Param") or next(op.input_names, "")
        message = f"block {index} does not update %{name}, or not with what it receives"
        yield finding("link-blocks", server.role, op, message, name)


def _check_gradient_map(server: Server) -> Iterator[Diagnostic]:
    """`grad_to_block_id` names the block of every gradient, `sparse_grad_to_param` the slice of a sparse one."""
    role, op = server.role, server.op
    mapped: dict[str, int] = {}
    for entry in strings_attr(op, "grad_to_block_id"):
        name, _, text = entry.rpartition(":")
        block = int(text) if text.isdigit() else -1
        if name not in server.vars or name not in server.touched.get(block, ()) or name in mapped:
            yield finding(
                "link-blocks", role, op, f"grad_to_block_id names {entry!r}, but that block does not use it", name
            )
        mapped[name] = block
    served = set(mapped.values())
    for name, (index, reader) in server.outside.items():
        if name in server.sent and index not in served:
            message = f"block {index} uses %{name}, but grad_to_block_id does not name the block"
            yield finding("link-blocks", role, reader, message, name)
        elif server.mode != 0 and name in server.sent and name not in mapped:
            yield finding("link-blocks", role, reader, f"grad_to_block_id does not name %{name}", name)
    for name in op.inputs.get("X", ()):
        if name not in server.outside:
            yield finding("link-blocks", role, op, f"%{name} is received, but no block uses it", name)
    yield from _check_sparse(server, mapped)


def _check_sparse(server: Server, mapped: dict[str, int]) -> Iterator[Diagnostic]:
    role, op = server.role, server.op
    paired: set[str] = set()
    for entry in strings_attr(op, "sparse_grad_to_param"):
        name, _, parameter = entry.rpartition(":")
        paired.add(name)
        held = server.vars.get(parameter)
        touched = server.touched.get(mapped.get(name, -1), ())
        if name not in mapped or held is None or parameter not in touched:
            yield finding(
                "link-blocks", role, op, f"sparse_grad_to_param names {entry!r}, which no block updates", name
            )
    for name, block in mapped.items():
        var = server.vars.get(name)
        if var is None or var.kind is not VarKind.SELECTED_ROWS or name in paired:
            continue
        table = server.feeds.get(name) or next(iter(server.parameters.keys() & server.touched.get(block, ())), "")
        held, update = server.vars.get(table), server.parameters.get(table)
        direct = update is not None and (update.type == "sum" or update.inputs.get("Grad") == (name,))
        if direct and held is not None and held.kind is VarKind.LOD_TENSOR:
            yield finding("link-blocks", role, op, f"sparse_grad_to_param does not name %{name}", name)


def _check_reads(server: Server) -> Iterator[Diagnostic]:
    listed = set(server.op.inputs.get("X", ()))
    for name, (_, op) in server.outside.items():
        if name not in listed and name not in server.sent and name not in FILLED_BY_THE_SERVER:
            message = f"%{name} is neither received, made before this, nor initialised"
            yield finding("link-unserved", server.role, op, message, name)


def check_merges(server: Server, trainers: int) -> Iterator[Diagnostic]:
    """What the server adds up, of the gradients that are sent in one part of the job.

    One gradient of every trainer, and their mean where the server waits for them. (The gradients of a table that is
    dealt out by id are not inputs of the server; they are only added up.)
    """
    listed, all_trainers = set(server.op.inputs.get("X", ())), list(range(trainers))
    for merged in server.merges if server.mode == 0 else ():
        names = merged.names
        senders = [trainer for name in names for trainer in server.senders.get(name, ())]
        if not senders:
            continue
        if len(names) != trainers or sorted(senders) != all_trainers:
            who = ", ".join(map(str, sorted(senders)))
            message = f"it adds up {len(names)} gradients of the trainers {who}, there are {trainers}"
            yield finding("link-merge", server.role, merged.op, message, names[0])
        if names[0] in listed and (merged.factor is None or not isclose(merged.factor, 1.0 / trainers, rel_tol=1e-6)):
            name = merged.op.output("Out") or names[0]
            message = f"%{name}, the sum of {trainers} gradients, is multiplied by {merged.factor}"
            yield finding("link-merge", server.role, merged.scale or merged.op, message, name)


def _check_dims(server: Server) -> Iterator[Diagnostic]:
    """Optimizer state that is cut like its parameter has the dims of the slice; initialisers have those declared."""
    variables = server.vars
    following: dict[str, tuple[str, ...]] = {}
    for name, op in server.parameters.items():
        parameter = variables.get(name)
        if op.type not in following:
            following[op.type] = _following(op.type)
        for slot in following[op.type]:
            names = op.inputs.get(slot)
            state = variables.get(names[0]) if names else None
            if state is None or parameter is None or state.tensor == parameter.tensor:
                continue
            if state.shape != parameter.shape and state.kind is not VarKind.SELECTED_ROWS:
                message = f"%{state.name} is {list(state.shape)}, but %{name} is {list(parameter.shape)}"
                yield finding("link-state", server.role, op, message, state.name)
    for op in server.misfits:
        name = op.outputs["Out"][0]
        message = f"it makes %{name} as {list(ints_attr(op, 'shape'))}, which is {list(variables[name].shape)} here"
        yield finding("link-state", server.role, op, message, name)


def _following(kind: str) -> tuple[str, ...]:
    """The inputs of an optimizer that are cut like the parameter."""
    schema = schema_of(kind)
    if schema is None:
        return ()
    return tuple(slot for slot in schema.inputs if slot != "Param" and schema.slicing.get(slot) is Slicing.FOLLOWS)
