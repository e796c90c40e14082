"""The server's start-up program: the source's initialisers, of what the server holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pstranspile.analysis.uses import sub_blocks
from pstranspile.emit.rename import rename_vars
from pstranspile.emit.server_block import ServerMain
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Block, Op, Program, Var
from pstranspile.ir.types import VarKind
from pstranspile.plan.initialisers import sliced

_NOT_FROM_TRAINERS = frozenset({"recv", "fetch_barrier", "concat"})


class Target(NamedTuple):
    """A server variable to initialise: the part of the source variable from `offset` on, or (-1) all of it."""

    name: str
    shape: tuple[int, ...]
    offset: int


def emit_pserver_startup(server: ServerMain, startup: Program) -> Program:
    """The start-up program that goes with a server's main program (A2.109 to A2.111).

    It declares all of the main program's block-0 variables as persistable, and runs the source's initialisers of
    those in source order, each making just the slice that the server holds.
    """
    variables = {name: _persistable(var) for name, var in server.program.main_block.vars.items()}
    targets = _targets(server)
    ops: list[Op] = []
    kept_blocks = False
    wanted = _needed_inputs(startup, targets)
    for op in startup.main_block.ops:
        if op.type in _NOT_FROM_TRAINERS:
            continue
        made = _on_server(op, targets)
        if not made and any(name in wanted for name in op.output_names):
            made = [op]
            for name in op.output_names:
                if name not in variables and name in startup.main_block.vars:
                    variables[name] = startup.main_block.vars[name]._replace(location=None)
        ops += made
        kept_blocks = kept_blocks or (bool(made) and bool(sub_blocks(op)))
    main = Block(FrozenMap(variables), tuple(ops))
    return Program((main, *(startup.blocks[1:] if kept_blocks else ())), startup.random_seed, startup.version)


def _persistable(var: Var) -> Var:
    if var.kind in (VarKind.STEP_SCOPES, VarKind.RAW):
        return var
    return var._replace(persistable=True)


def _targets(server: ServerMain) -> dict[str, list[Target]]:
    """Source variable -> what the server holds of it."""
    targets: dict[str, list[Target]] = {}
    for name, var in server.program.main_block.vars.items():
        cut = server.cuts.get(name)
        source, offset = (cut.source, cut.offset) if cut else (name, -1)
        targets.setdefault(source, []).append(Target(name, var.shape, offset))
    return targets


def _on_server(op: Op, targets: Mapping[str, list[Target]]) -> list[Op]:
    """The op once per server variable it initialises; an op with several outputs is kept as it is, once."""
    outputs = list(op.output_names)
    if len(outputs) != 1:
        return [op] if any(name in targets for name in outputs) else []
    made: list[Op] = []
    for target in targets.get(outputs[0], ()):
        if target.offset < 0:
            made.append(op)
        else:
            made.append(rename_vars(sliced(op, target.shape, target.offset), {outputs[0]: target.name}))
    return made


def _needed_inputs(startup: Program, targets: Mapping[str, list[Target]]) -> set[str]:
    """Variables that initialisers on the server read and the server does not hold otherwise."""
    wanted: set[str] = set()
    for op in reversed(startup.main_block.ops):
        if op.type not in _NOT_FROM_TRAINERS and any(n in targets or n in wanted for n in op.output_names):
            wanted.update(name for name in op.input_names if name not in targets)
    return wanted
