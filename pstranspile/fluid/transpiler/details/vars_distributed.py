"""Fluid's overview of the variables on servers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pstranspile.fluid.graph.vartype import VarType, vartype_of
from pstranspile.ir.distribution import DistributedVar
from pstranspile.ir.model import Module, Var


@dataclass
class VarStruct:
    """What is known of a variable without a program around it."""

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
        """Whether all that is known of two variables is the same."""
        return _struct(var1) == _struct(var2)

    def __str__(self) -> str:
        cut = f"[{self.offset}:] as block {self.block_id}" if self.is_slice else ""
        return f"{self.vtype} {self.origin.name}{list(self.origin.shape)}{cut}: {self.slice.name} at {self.endpoint}"


def _struct(var: Any) -> VarStruct:
    if isinstance(var, VarStruct):
        return var
    return VarStruct(var.name, var.shape, var.dtype, var.type, var.lod_level, var.persistable)


class VarsDistributed:
    """All variables on the servers of a job, and questions about them."""

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
        """Whether all that is known of two variables is the same."""
        return VarDistributed.equal(var1, var2)

    def get_distributed_var_by_slice(self, var_name: str) -> VarDistributed | None:
        """The row of a slice, None for another name."""
        return next((row for row in self.distributed_vars if row.slice.name == var_name), None)

    def get_distributed_var_by_origin_and_ep(self, origin_var_name: str, endpoint: str) -> VarDistributed | None:
        """The part of a variable that a server has; None if it has none."""
        rows = (row for row in self.distributed_vars if row.origin.name == origin_var_name)
        return next((row for row in rows if row.endpoint == endpoint), None)

    def get_distributed_vars_by_vtypes(self, vtypes: Sequence[str], groupby: bool = False) -> Any:
        """The rows of some kinds, as a list, or by the name of the whole variable."""
        rows = [row for row in self.distributed_vars if row.vtype in vtypes]
        if not groupby:
            return rows
        grouped: dict[str, list[VarDistributed]] = {}
        for row in rows:
            grouped.setdefault(row.origin.name, []).append(row)
        return grouped

    def get_distributed_vars_by_ep(self, endpoint: str, vtype: str | None = None) -> list[VarDistributed]:
        """The rows of a server, of one kind or of all."""
        rows = (row for row in self.distributed_vars if row.endpoint == endpoint)
        return [row for row in rows if not vtype or row.vtype == vtype]

    def overview(self) -> str:
        """All rows as text, a line each."""
        return "\n".join(map(str, self.distributed_vars))


def overview_of(module: Module, rows: Iterable[DistributedVar]) -> VarsDistributed:
    """The overview of a compiled module, from what the compile says of the variables on servers."""
    known = {var.name: var for name in reversed(list(module.programs)) for var in module[name].main_block.vars.values()}
    result = VarsDistributed()
    for row in rows:
        var = known.get(row.origin)
        result.add_distributed_var(
            _placed(row.origin, row.origin_shape, var),
            _placed(row.slice, row.slice_shape, var),
            row.is_slice,
            row.block_id,
            row.offset,
            row.vtype,
            row.endpoint,
        )
    return result


def _placed(name: str, shape: tuple[int, ...], var: Var | None) -> VarStruct:
    tensor = var.tensor if var is not None else None
    dtype = VarType.FP32 if tensor is None else vartype_of(tensor.dtype)
    return VarStruct(name, shape, dtype, VarType.LOD_TENSOR, 0, True)
