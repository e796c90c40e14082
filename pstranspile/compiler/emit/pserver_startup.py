"""The server's start-up program: the source's initialisers, of what the server holds."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple

from pstranspile.compiler.analysis.uses import sub_blocks
from pstranspile.compiler.emit.dc_asgd import first_backups
from pstranspile.compiler.emit.rename import rename_vars
from pstranspile.compiler.emit.rules import INITIALISE, made
from pstranspile.compiler.emit.server_block import ServerMain
from pstranspile.compiler.plan.initialisers import sliced
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Block, Op, Program, Var
from pstranspile.ir.types import DType, VarKind

_TYPED = frozenset({"fill_constant", "uniform_random", "gaussian_random"})
"""Initialisers from which Fluid infers the element type of what they make."""

_DTYPES = {dtype.value: dtype for dtype in DType}


class Target(NamedTuple):
    """A server variable to initialise: the part of the source variable from `offset` on, or (-1) all of it."""

    name: str
    shape: tuple[int, ...]
    offset: int


class Initialisers:
    """The source's start-up ops by what they make, worked out once for all servers of a job."""

    def __init__(self, startup: Program, declared: Mapping[str, Var]):
        """`declared` are the variables of the main program; `misdeclared`: some have another element type there."""
        self.startup = startup
        self.writers: dict[str, tuple[int, ...]] = {}
        self.misdeclared = False
        writers = self.writers
        for index, op in enumerate(startup.main_block.ops):
            this, dtype = (index,), _made_as(op)
            for names in op.outputs.values():
                for name in names:
                    writers[name] = (*writers[name], index) if name in writers else this
                    if dtype is not None and not self.misdeclared:
                        var = declared.get(name)
                        self.misdeclared = var is not None and var.tensor is not None and var.tensor.dtype is not dtype
        self._cut: dict[int, Op] = {}

    def to_cut(self, index: int) -> Op:
        """A start-up op of which servers will run parts, as its origin states."""
        op = self._cut.get(index)
        if op is None:
            source = self.startup.main_block.ops[index]
            op = self._cut[index] = source._replace(origin=made(source.origin, INITIALISE))
        return op


def emit_pserver_startup(server: ServerMain, initialisers: Initialisers) -> Program:
    """The start-up program that goes with a server's main program.

    It declares all of the main program's block-0 variables as persistable, and runs the source's initialisers of
    those in source order, each making just the slice that the server holds, with all that they need.
    """
    startup, source = initialisers.startup, initialisers.startup.main_block
    variables = {name: _persistable(var) for name, var in server.program.main_block.vars.items()}
    held, cuts = server.program.main_block.vars, server.cuts
    targets = _targets(server)
    chosen: set[int] = set()
    todo = [cuts[name].source if name in cuts else name for name in held] if cuts else list(held)
    for name in todo:  # grows by the inputs of what it finds
        for index in initialisers.writers.get(name, ()):
            if index not in chosen:
                chosen.add(index)
                inputs = source.ops[index].inputs
                for needed in chain.from_iterable(inputs.values()) if inputs else ():
                    if needed not in targets and (needed not in held or needed in cuts):
                        todo.append(needed)
                        if needed in source.vars:  # the process that feeds a reader makes its queue
                            variables.setdefault(needed, source.vars[needed]._replace(location=None))
    ops: list[Op] = []
    for index in sorted(chosen):
        ops += _on_server(initialisers, index, targets) if targets else (source.ops[index],)
    if server.backups:
        makers = {name: op.origin for op in ops for name in op.output_names}
        ops += first_backups(server.backups, makers)
    if initialisers.misdeclared:
        for op in ops:
            _declare_as_made(op, variables)
    main = Block(FrozenMap(variables), tuple(ops))
    uses_blocks = len(startup.blocks) > 1 and any(sub_blocks(op) for op in ops)
    return Program((main, *(startup.blocks[1:] if uses_blocks else ())), startup.random_seed, startup.version)


def _made_as(op: Op) -> DType | None:
    """The element type that Fluid infers from an initialiser; None: it infers none."""
    number = op.attrs.get("dtype") if op.type in _TYPED else None
    return _DTYPES.get(number) if isinstance(number, int) else None


def _declare_as_made(op: Op, variables: dict[str, Var]) -> None:
    """Gives the output of an initialiser the element type that it makes, whatever the main program declares.

    Fluid infers it as it appends the op: the decay of an `ExponentialMovingAverage` is declared i64 and made f32.
    """
    dtype = _made_as(op)
    for name in op.outputs["Out"] if dtype is not None else ():
        var = variables.get(name)
        if var is not None and var.tensor is not None and var.tensor.dtype is not dtype:
            variables[name] = var._replace(tensor=var.tensor._replace(dtype=dtype))


def _persistable(var: Var) -> Var:
    if var.persistable or var.kind in (VarKind.STEP_SCOPES, VarKind.RAW):
        return var
    return var._replace(persistable=True)


def _targets(server: ServerMain) -> dict[str, list[Target]]:
    """Source variable of which the server holds parts or copies -> what it holds of it. Others it holds as they are."""
    targets: dict[str, list[Target]] = {cut.source: [] for cut in server.cuts.values()}
    for name, var in server.program.main_block.vars.items() if targets else ():
        cut = server.cuts.get(name)
        source, offset = (cut.source, cut.offset) if cut else (name, -1)
        if source in targets:
            targets[source].append(Target(name, var.shape, offset))
    return targets


def _on_server(initialisers: Initialisers, index: int, targets: Mapping[str, list[Target]]) -> list[Op]:
    """The op once per server variable it initialises; once, as it is, if it has several outputs or makes an input."""
    op = initialisers.startup.main_block.ops[index]
    outputs = list(op.output_names)
    ops: list[Op] = []
    for target in targets.get(outputs[0], ()) if len(outputs) == 1 else ():
        if target.offset < 0:
            ops.append(op if target.name == outputs[0] else rename_vars(op, {outputs[0]: target.name}))
        else:
            part = sliced(initialisers.to_cut(index), target.shape, target.offset)
            inputs = [(name, other) for name in op.input_names for other in targets.get(name, ())]
            needed = {name: other.name for name, other in inputs if other.offset == target.offset}
            ops.append(rename_vars(part, {outputs[0]: target.name, **needed}))
    return ops or [op]
