"""A server program under construction: its variables and blocks, and the adaptation of ops to slices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pstranspile.compiler.analysis.updates import follows_parameter
from pstranspile.compiler.emit.rules import rename_slots
from pstranspile.compiler.plan.plan import PlannedParameter, Slice, slice_name
from pstranspile.ir.model import Block, FrozenMap, Op, Program, TensorType, Var
from pstranspile.ir.types import VarKind
from pstranspile.ops import schema_of

_NEVER_PERSISTABLE = (VarKind.STEP_SCOPES, VarKind.RAW)
"""Kinds of variables that keep their own persistable flag when Fluid copies them to a server."""


class OpenBlock:
    """A block being filled."""

    def __init__(self, parent: int):
        self.parent = parent
        self.vars: dict[str, Var] = {}
        self.ops: list[Op] = []


WHOLE = -1
"""The offset of a server variable that holds all of a source variable, under a name of its own."""


class SourcePart(NamedTuple):
    """The part of a source variable that a server variable contains: the elements from `offset` on, or the `WHOLE`."""

    source: str
    offset: int


class SliceView(NamedTuple):
    """A slice of a parameter from the point of view of its update's ops.

    `only_slice`: the server has no other slice of this parameter, so the state of the slice keeps its name. Otherwise
    each slice has a copy of `uncut_state`: the variables that the update writes and does not cut, such as the powers of
    Adam's betas, which would otherwise advance once for every slice.
    """

    parameter: PlannedParameter
    slice: Slice
    only_slice: bool
    uncut_state: frozenset[str] = frozenset()


class ServerMain(NamedTuple):
    """A server's main program, and the part of a source variable that each of its variables contains.

    `backups` are copies of parameters to initialise: (parameter, copy).
    """

    program: Program
    cuts: FrozenMap[str, SourcePart]
    backups: tuple[tuple[str, str], ...] = ()


class ServerProgram:
    """Collects blocks and variables; `finish` gives the frozen program."""

    def __init__(self, source: Program):
        self.source = source
        self.blocks = [OpenBlock(-1)]
        self.cuts: dict[str, SourcePart] = {}

    def new_block(self, parent: int) -> int:
        """Adds an empty block and returns its index."""
        self.blocks.append(OpenBlock(parent))
        return len(self.blocks) - 1

    def finish(self, backups: Iterable[tuple[str, str]] = ()) -> ServerMain:
        """Returns the program, with the source's random seed."""
        blocks = tuple(Block(FrozenMap(b.vars), tuple(b.ops), b.parent) for b in self.blocks)
        return ServerMain(
            Program(blocks, self.source.random_seed, self.source.version), FrozenMap(self.cuts), tuple(backups)
        )

    def declare_tensor(self, name: str, tensor: TensorType, kind: VarKind, *, persistable: bool) -> None:
        """Declares a variable of block 0."""
        self.blocks[0].vars[name] = Var(name, kind, tensor, persistable)

    def declare_parameter(self, parameter: PlannedParameter, s: Slice) -> None:
        """Declares a slice of a parameter as persistable."""
        source = self.source.main_block.vars[parameter.name]
        tensor = TensorType(parameter.dtype, s.shape, parameter.lod_level)
        self.blocks[0].vars[s.name] = source._replace(name=s.name, tensor=tensor, persistable=True, location=None)
        if parameter.is_cut:
            self.cuts[s.name] = SourcePart(parameter.name, s.offset)

    def declare_copy(self, name: str, tensor: TensorType | None = None, *, persistable: bool = True) -> None:
        """Declares a copy of a source variable in block 0, if it is not there yet.

        `tensor` replaces its type (a slice's). Step scopes and raw variables keep their own persistable flag.
        """
        variables = self.blocks[0].vars
        if name in variables:
            return
        var = self.source.main_block.vars[name]
        keep = var.kind in _NEVER_PERSISTABLE
        variables[name] = var._replace(
            tensor=tensor or var.tensor,
            persistable=var.persistable if keep else persistable or var.persistable,
            parameter=None,
            need_check_feed=False,
            location=None,
        )

    def on_slice(self, op: Op, view: SliceView) -> Op:
        """The optimize op for one slice; its variables are declared.

        The parameter and its gradient become the slice's. Other variables keep their names. Those of the parameter's
        shape are cut like it where the op's schema says so: in the slots of an optimizer that follow the parameter, and
        in every slot of an op that works row by row.
        """
        schema = schema_of(op.type)
        names = {view.parameter.name: view.slice.name, view.parameter.gradient: view.slice.gradient}
        renamed: dict[str, str] = {}
        is_optimizer = schema is not None and schema.is_optimizer
        for slots in (op.inputs, op.outputs):
            for slot, row in slots.items():
                for name in row:
                    if name in names:
                        renamed[name] = names[name]
                    elif name not in renamed:
                        renamed[name] = self._declare_for(name, view, follows_parameter(schema, slot), is_optimizer)
        changed = {old: new for old, new in renamed.items() if old != new}
        if not changed:
            return op
        return op._replace(inputs=rename_slots(op.inputs, changed), outputs=rename_slots(op.outputs, changed))

    def _declare_for(self, name: str, view: SliceView, follows: bool, is_optimizer: bool) -> str:
        """Declares another variable of an op for a slice; returns its name on the server."""
        var = self.source.main_block.vars[name]
        parameter, s = view.parameter, view.slice
        cut = follows and parameter.is_cut and var.shape == parameter.shape and var.tensor is not None
        if not cut or var.tensor is None:
            if not view.only_slice and name in view.uncut_state:
                here = slice_name(name, s.number)
                self.cuts[here] = SourcePart(name, WHOLE)
                self.blocks[0].vars[here] = var._replace(name=here, parameter=None, location=None)
                return here
            self.declare_copy(name, persistable=not is_optimizer)
            return name
        here = name if view.only_slice else slice_name(name, s.number)
        if here not in self.blocks[0].vars:
            self.cuts[here] = SourcePart(name, s.offset)
            tensor = var.tensor._replace(shape=s.shape)
            self.blocks[0].vars[here] = var._replace(
                name=here,
                tensor=tensor,
                persistable=var.persistable or not is_optimizer,
                parameter=None,
                location=None,
            )
        return here
