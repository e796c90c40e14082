"""Declarations of gradients: their kind and type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from pstranspile.frontends.layers.draft import Draft
from pstranspile.ir.attributes import BlockRef
from pstranspile.ir.model import Op, TensorType, Var
from pstranspile.ir.types import DType, VarKind
from pstranspile.ops import facts_of
from pstranspile.ops.gradient import EMPTY_NAME, SUFFIX, differentiated
from pstranspile.ops.gradients.versions import FLOATS
from pstranspile.ops.shapes import ShapeError, Types, infer_types

_ARRAYS = ("write_to_array", "lod_tensor_to_array")
_SAME_KIND: Mapping[tuple[str, str], str] = {
    ("while_grad", "X@GRAD"): "X",
    ("conditional_block_grad", "Input@GRAD"): "Input",
    ("tensor_array_to_tensor_grad", "X@GRAD"): "X",
    ("scale", "Out"): "X",
    ("assign", "Out"): "X",
}
"""Outputs that are variables of the same kind as an input: (op type, output slot) -> input slot."""


def declare_gradients(draft: Draft, block: int, start: int, variable_of: Mapping[str, str]) -> dict[str, str]:
    """Declares the outputs of a block's ops from `start` on, sub-blocks first, and drops idle ops.

    An op is idle if it writes nothing, or if none of the gradients that it reads exist. Returns variable -> gradient
    for each variable in `variable_of`'s values that now has a gradient.
    """
    gradients: dict[str, str] = {}
    carried = _carried_through(draft, block)
    ops = draft.blocks[block].ops
    kept: list[Op] = []
    for op in ops[start:]:
        sub_block = op.attrs.get("sub_block")
        if isinstance(sub_block, BlockRef):
            gradients |= declare_gradients(draft, int(sub_block), 0, variable_of)
        if _idle(draft, block, op, carried):
            continue
        kept.append(op)
        if op.type == "sum":
            _declare_dropped_terms(draft, block, op)
        for name in _declare_outputs(draft, block, op):
            if name in variable_of:
                gradients[variable_of[name]] = name
    ops[start:] = kept
    return gradients


def _carried_through(draft: Draft, block: int) -> set[str]:
    """The variables that the op owning a block both reads and writes: a loop passes them from step to step."""
    if block == 0:
        return set()
    for other in draft.blocks:
        for op in other.all_ops():
            if op.attrs.get("sub_block") == block and isinstance(op.attrs["sub_block"], BlockRef):
                return set(op.input_names) & set(op.output_names)
    return set()


def _idle(draft: Draft, block: int, op: Op, carried: set[str]) -> bool:
    if all(name == EMPTY_NAME for name in op.output_names):
        return True
    gradients = [name for name in op.input_names if SUFFIX in name]
    # In a recurrent op's steps this op reads a gradient that the executor puts there; nothing declares it.
    if not gradients or op.type == "rnn_memory_helper_grad":
        return False
    return all(name not in carried and draft.find(name, block) is None for name in gradients)


def _declare_dropped_terms(draft: Draft, block: int, op: Op) -> None:
    """Declares terms that only an idle op would have written, without a type, as Fluid does. They add nothing."""
    for name in op.inputs["X"]:
        if draft.find(name, block) is None:
            draft.declare(Var(name), block)


def _declare_outputs(draft: Draft, block: int, op: Op) -> list[str]:
    with draft.inside(block):
        new = [name for name in op.output_names if name != EMPTY_NAME and draft.find(name) is None]
        over = [name for name in op.output_names if op.type == "reshape2_grad" and name in op.input_names]
        if not new and not over:
            return []
        inferred = _inferred(draft, op)
        types = {
            name: held
            for slot, names in op.outputs.items()
            for name, held in zip(names, inferred.get(slot, ()), strict=False)
        }
        for slot, names in op.outputs.items():
            for at, name in enumerate(names):
                if name in new:
                    draft.declare(_gradient_var(draft, op, slot, at, name, types.get(name)))
    for name in over:
        _redeclare(draft, block, name, types.get(name))
    return new


def _inferred(draft: Draft, op: Op) -> Types:
    """The types of a gradient op's outputs. Gradients that Fluid declares f32 fit variables of other floats."""

    def of_one_float(name: str) -> TensorType | None:
        type_ = draft.seen(name)
        return type_._replace(dtype=DType.FP32) if type_ is not None and type_.dtype in FLOATS else type_

    for type_of in (draft.seen, of_one_float):
        with suppress(ShapeError):
            return infer_types(op, type_of)
    return {}


def _redeclare(draft: Draft, block: int, name: str, made: TensorType | None) -> None:
    """Declares a gradient that an op writes in place with the dims of the op's result, as Fluid does."""
    known = draft.blocks[block].vars.get(name)
    if known is not None and known.tensor is not None and made is not None:
        draft.declare(known._replace(tensor=known.tensor._replace(shape=made.shape)), block)


def _gradient_var(draft: Draft, op: Op, slot: str, at: int, name: str, inferred: TensorType | None) -> Var:
    kind = _kind(draft, op, slot, at)
    forward = draft.find(differentiated(name))
    if forward is not None and forward.tensor is not None:
        lod = 0 if kind is VarKind.SELECTED_ROWS else _lod_level(draft, op, inferred)
        return Var(name, kind, forward.tensor._replace(lod_level=lod))
    shape = inferred.shape if inferred else ()
    return Var(name, kind, TensorType(DType.FP32, shape))


def _lod_level(draft: Draft, op: Op, inferred: TensorType | None) -> int:
    lod = facts_of(op.type).result_lod
    if lod == "of_gradient":
        inferred = draft.type_of(op.inputs["Out@GRAD"][0])
    elif op.type == "sum":
        inferred = draft.type_of(op.inputs["X"][0])
    elif lod == "none" or (op.type == "linear_chain_crf_grad" and op.inputs.get("Length")):
        return 0
    return inferred.lod_level if inferred else 0


def _kind(draft: Draft, op: Op, slot: str, at: int) -> VarKind:
    if facts_of(op.type).sparse_gradient == slot:
        return VarKind.SELECTED_ROWS if op.attrs.get("is_sparse") is True else VarKind.LOD_TENSOR
    if op.type in _ARRAYS:
        return VarKind.LOD_TENSOR_ARRAY
    like = _SAME_KIND.get((op.type, slot))
    if like is not None:
        source = draft.find(op.inputs[like][at])
        return source.kind if source else VarKind.LOD_TENSOR
    if op.type == "sum":
        return sum_kind(result.kind for result in map(draft.find, op.inputs["X"]) if result)
    return VarKind.LOD_TENSOR


def sum_kind(kinds: Iterable[VarKind]) -> VarKind:
    """The kind of a sum: an array if one part is, sparse rows only if all parts are."""
    distinct = set(kinds)
    if VarKind.LOD_TENSOR_ARRAY in distinct:
        return VarKind.LOD_TENSOR_ARRAY
    return VarKind.SELECTED_ROWS if distinct == {VarKind.SELECTED_ROWS} else VarKind.LOD_TENSOR
