"""Kinds of variables: what an op makes of tensors is a tensor, and must be declared as one.

Fluid makes a variable of the declared kind before its ops run, and an op can't make another kind of it.
"""

from __future__ import annotations

from pstranspile.compiler.verify.places import declared_here
from pstranspile.compiler.verify.walk import Walk
from pstranspile.ir.describe import var_text
from pstranspile.ir.model import Op
from pstranspile.ir.text.literals import KIND_TEXT
from pstranspile.ir.types import VarKind
from pstranspile.ops import schema_of
from pstranspile.ops.shapes import rule_of

_EITHER = frozenset({"fill_constant", "uniform_random"})
"""Ops that fill rows as well as tensors."""

_SPARSE = {"lookup_table_grad": "W@GRAD", "lookup_table_v2_grad": "W@GRAD"}
"""Ops and the slot that holds rows where the op is sparse."""

_ARRAYS = frozenset({"write_to_array", "lod_tensor_to_array"})


def check_kinds(walk: Walk) -> None:
    """Reports what ops write to variables that are declared to hold something of another kind."""
    other = {name for block in walk.blocks for name, var in block.vars.items() if var.kind is not VarKind.LOD_TENSOR}
    for index in sorted(walk.visited):
        for position, op in enumerate(walk.blocks[index].ops):
            if op.type not in _SPARSE and op.type not in _ARRAYS and (not other or other.isdisjoint(op.output_names)):
                continue
            for slot, names in op.outputs.items():
                made = _kind(walk, index, op, slot)
                for name in names if made is not None else ():
                    _check(walk, (index, position), name, made)


def _kind(walk: Walk, index: int, op: Op, slot: str) -> VarKind | None:
    """The kind of what a slot is given, None where it is not known or not the same everywhere."""
    if rule_of(op.type) is None or schema_of(op.type) is None or op.type in _EITHER:
        return None
    read = [walk.names.find(name, index) for name in op.input_names]
    if any(var is None or var.kind is not VarKind.LOD_TENSOR for var in read):
        return None
    if op.type in _ARRAYS:
        return VarKind.LOD_TENSOR_ARRAY if slot == "Out" else None
    if op.attrs.get("is_sparse") is True:
        return VarKind.SELECTED_ROWS if _SPARSE.get(op.type) == slot else None
    return VarKind.LOD_TENSOR


def _check(walk: Walk, place: tuple[int, int], name: str, made: VarKind | None) -> None:
    var = walk.names.find(name, place[0])
    if made is None or var is None or var.kind is made:
        return
    message = f"{var_text(name)} is declared as {KIND_TEXT[var.kind]}, but the op makes {KIND_TEXT[made]} of it"
    walk.findings.op("type-mismatch", message, place, focus=var_text(name), notes=declared_here(var))
