"""Fluid's `transpiler.details`: programs as text, searches for ops by their variables, and the overview of variables on
servers.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Hashable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from pstranspile.fluid.graph.desc import AttrType
from pstranspile.fluid.graph.values import VarType, vartype_of
from pstranspile.fluid.graph.variable import Parameter
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.fluid.running.failures import naming_wait
from pstranspile.ir.model import MAIN, DistributedVar, FrozenMap, Module, Var
from pstranspile.ops.textual import print_module

PAUSE = 0.2
"""Seconds between two attempts to connect."""


def wait_server_ready(endpoints: Sequence[str]) -> None:
    """Returns when a process listens at every endpoint; the endpoints that it waits for are named on stderr once."""
    assert not isinstance(endpoints, str), "wait_server_ready takes a list of endpoints"
    silent = [endpoint for endpoint in endpoints if not _listens(endpoint)]
    if silent:
        print(f"waiting for {', '.join(silent)}", file=sys.stderr)
    for endpoint in silent:
        with naming_wait(lambda endpoint=endpoint: f"it waits for {endpoint}, where nobody listens"):
            while not _listens(endpoint):
                time.sleep(PAUSE)


def _listens(endpoint: str) -> bool:
    host, _, port = endpoint.rpartition(":")
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as tried:
        tried.settimeout(2)
        return tried.connect_ex((host, int(port))) == 0


def program_to_code(prog: Any, fout: Any = None, skip_op_callstack: bool = True) -> None:
    """Writes a program as text, to a file or to standard output."""
    import sys

    (fout or sys.stdout).write(print_module(Module(FrozenMap({MAIN: prog.freeze()}))))


def get_indent_space(indent: int, space_num: int = 4) -> str:
    """The indent of a line."""
    return " " * (indent * space_num)


def variable_to_code(var: Any) -> str:
    """A variable as text, in the form that Fluid prints."""
    text = f"{var.name} : fluid.{var.type}"
    tensor = var.type.name in ("LOD_TENSOR", "SELECTED_ROWS")
    text += f".shape{tuple(var.shape)}.astype({var.dtype})" if tensor else ")"
    kind = ("trainable parameter" if var.trainable else "parameter") if isinstance(var, Parameter) else "var"
    return f"{'persist ' if var.persistable else ''}{kind} {text}"


def op_to_code(op: Any, skip_op_callstack: bool = True) -> str:
    """An op as text, in the form that Fluid prints: the variables that it writes, its type, those that it reads, and
    its attributes by name.
    """
    writes, reads = (
        ", ".join(f"{slot}={held(slot)}" for slot in slots)
        for slots, held in ((op.output_names, op.output), (op.input_names, op.input))
    )
    attrs: list[str] = []
    for name in sorted(op.attr_names):
        if skip_op_callstack and name == "op_callstack":
            continue
        kind, shown = op.attr_type(name), " = {}"
        if kind in (AttrType.BLOCK, AttrType.BLOCKS):
            held = op._block_attr_id(name) if kind == AttrType.BLOCK else op._blocks_attr_ids(name)
            shown = " = block[{}]" if kind == AttrType.BLOCK else " = blocks{}"
        else:
            held = op.attr(name)
        attrs.append(name + shown.format(held))
    head = f"{{{writes}}} = " if writes else ""
    return f"{head}{op.type}(inputs={{{reads}}}, {', '.join(attrs)})"


def block_to_code(block: Any, block_idx: int, fout: Any = None, skip_op_callstack: bool = False) -> None:
    """Writes a block in the form that Fluid prints, variables by name, to a file or to standard output."""
    shown = [variable_to_code(var) for _, var in sorted(block.vars.items())]
    lines = [*shown, *[""][: len(shown)], *(op_to_code(op, skip_op_callstack) for op in block.ops)]
    body = [get_indent_space(1) + line if line else "" for line in lines]
    print("\n".join([f"{{ // block {block_idx}", *body, "}"]), file=fout)


def delete_ops(block: Any, ops: Any) -> None:
    """Removes ops from a block; ops that are not in the block are ignored."""
    gone = {id(op) for op in ops}
    for index in reversed(range(len(block.ops))):
        if id(block.ops[index]) in gone:
            block._remove_op(index)


def find_op_by_input_arg(block: Any, arg_name: str) -> int:
    """The index of the first op that reads a variable, -1 if there is none."""
    return next((index for index, op in enumerate(block.ops) if arg_name in op.input_arg_names), -1)


def find_op_by_output_arg(block: Any, arg_name: str, reverse: bool = False) -> int:
    """The index of the first op that writes a variable, or with `reverse` of the last one; -1 if there is none."""
    places = [index for index, op in enumerate(block.ops) if arg_name in op.output_arg_names]
    return places[-1 if reverse else 0] if places else -1


class UnionFind:
    """A partition of elements into disjoint sets; at first each element is a set of its own."""

    def __init__(self, elementes: Iterable[Hashable] | None = None):
        self._above: list[int] = []
        self._numbers: dict[Hashable, int] = {}
        for number, element in enumerate(elementes or ()):
            self._above.append(number)
            self._numbers[element] = number

    def find(self, x: Hashable) -> int:
        """The number of an element's set, -1 for an unknown element."""
        at = self._numbers.get(x, -1)
        while at >= 0 and self._above[at] != at:
            self._above[at] = at = self._above[self._above[at]]
        return at

    def union(self, x: Hashable, y: Hashable) -> None:
        """Joins the sets of two elements."""
        one, other = self.find(x), self.find(y)
        if one != other:
            self._above[one] = other

    def is_connected(self, x: Hashable, y: Hashable) -> bool:
        """Whether two elements are in one set."""
        return self.find(x) == self.find(y)


@dataclass
class VarStruct:
    """The facts about a variable outside of a program: name, shape, element type and so on."""

    name: str
    shape: Any
    dtype: Any
    type: Any
    lod_level: int | None
    persistable: bool


class VarDistributed:
    """A variable, or a slice of it, and the server that has it. `offset` counts elements."""

    def __init__(
        self,
        origin_var: Any,
        slice_var: Any,
        is_slice: bool | None = None,
        block_id: int | None = None,
        offset: int | None = None,
        vtype: str | None = None,
        endpoint: str | None = None,
    ):
        self.origin, self.slice = _struct(origin_var), _struct(slice_var)
        self.is_slice = is_slice if is_slice is not None else not self.equal(self.origin, self.slice)
        self.block_id, self.offset = block_id or 0, offset or 0
        self.vtype, self.endpoint = vtype, endpoint

    @staticmethod
    def equal(var1: Any, var2: Any) -> bool:
        """Whether two variables agree in all their facts."""
        return _struct(var1) == _struct(var2)

    def __str__(self) -> str:
        cut = f"[{self.offset}:] as block {self.block_id}" if self.is_slice else ""
        return f"{self.vtype} {self.origin.name}{list(self.origin.shape)}{cut}: {self.slice.name} at {self.endpoint}"


def _struct(var: Any) -> VarStruct:
    if isinstance(var, VarStruct):
        return var
    return VarStruct(var.name, var.shape, var.dtype, var.type, var.lod_level, var.persistable)


class VarsDistributed:
    """All variables on the servers of a job, with searches over them."""

    def __init__(self) -> None:
        self.distributed_vars: list[VarDistributed] = []

    def add_distributed_var(
        self,
        origin_var: Any,
        slice_var: Any,
        is_slice: bool | None = None,
        block_id: int | None = None,
        offset: int | None = None,
        vtype: str | None = None,
        endpoint: str | None = None,
    ) -> None:
        """Adds a variable, or a slice of one."""
        self.distributed_vars.append(VarDistributed(origin_var, slice_var, is_slice, block_id, offset, vtype, endpoint))

    @staticmethod
    def equal(var1: Any, var2: Any) -> bool:
        """Whether two variables agree in all their facts."""
        return VarDistributed.equal(var1, var2)

    def get_distributed_var_by_slice(self, var_name: str) -> VarDistributed | None:
        """The entry of the slice with a name, None if there is none."""
        return next((row for row in self.distributed_vars if row.slice.name == var_name), None)

    def get_distributed_var_by_origin_and_ep(self, origin_var_name: str, endpoint: str) -> VarDistributed | None:
        """The part of a variable that a server has; None if it has none."""
        rows = (row for row in self.distributed_vars if row.origin.name == origin_var_name)
        return next((row for row in rows if row.endpoint == endpoint), None)

    def get_distributed_vars_by_vtypes(self, vtypes: Sequence[str], groupby: bool = False) -> Any:
        """The entries of some kinds, as a list, or grouped by the name of the whole variable."""
        rows = [row for row in self.distributed_vars if row.vtype in vtypes]
        if not groupby:
            return rows
        grouped: dict[str, list[VarDistributed]] = {}
        for row in rows:
            grouped.setdefault(row.origin.name, []).append(row)
        return grouped

    def get_distributed_vars_by_ep(self, endpoint: str, vtype: str | None = None) -> list[VarDistributed]:
        """The entries of a server, of one kind or of all kinds."""
        rows = (row for row in self.distributed_vars if row.endpoint == endpoint)
        return [row for row in rows if not vtype or row.vtype == vtype]

    def overview(self) -> str:
        """All entries as text, one a line."""
        return "\n".join(map(str, self.distributed_vars))


def overview_of(module: Module, rows: Iterable[DistributedVar]) -> VarsDistributed:
    """The overview of a compiled module, from the compile's list of variables on servers."""
    known = {var.name: var for name in reversed(list(module.programs)) for var in module[name].main_block.vars.values()}
    result = VarsDistributed()
    for row in rows:
        var = known.get(row.origin)
        result.add_distributed_var(
            _var_struct(row.origin, row.origin_shape, var),
            _var_struct(row.slice, row.slice_shape, var),
            row.is_slice,
            row.block_id,
            row.offset,
            row.vtype,
            row.endpoint,
        )
    return result


def _var_struct(name: str, shape: tuple[int, ...], var: Var | None) -> VarStruct:
    tensor = var.tensor if var is not None else None
    dtype = VarType.FP32 if tensor is None else vartype_of(tensor.dtype)
    return VarStruct(name, shape, dtype, VarType.LOD_TENSOR, 0, True)


__getattr__ = names_of_fluid(__name__, globals())
