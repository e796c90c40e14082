"""The initial gradients of a program, and the rest of a program for a machine without rows.

Every gradient is proportional to the initial gradients, the constants with which backward ops begin. So these determine
the weight of a share of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pstranspile.ir.attributes import BlockRef, BlockRefs
from pstranspile.ir.diagnostics import DiagnosticError, at_op
from pstranspile.ir.model import Block, FrozenMap, Module, Op, Program, Var
from pstranspile.ir.types import OpRole, VarKind
from pstranspile.runtime.kernels.kernel import Value
from pstranspile.runtime.run.batch import UNKNOWN, BatchAxes, has_rows, rows_of
from pstranspile.runtime.run.feeds import written_names
from pstranspile.runtime.values import NUMPY_TYPES, LoDTensor, SelectedRows

# Terms of gradients that no op writes.

TERM = "@GRAD@RENAME@"
"""The part of the names of terms that Fluid sums up to a gradient."""


def without_unmade_terms(program: Program) -> Program:
    """The program in which sums of gradients leave out terms that no op writes; the same object if there are none.

    Fluid's backward pass names a term for every use of a variable, also for uses that let no gradient through (the
    labels of a loss); its `sum` skips what has no value.
    """
    suspects = [op for block in program.blocks for op in block.ops if _has_terms(op)]
    if not suspects:
        return program
    written = written_names(program)
    if all(name in written for op in suspects for name in op.inputs["X"]):
        return program
    blocks = [
        block._replace(ops=tuple(_drop_unwritten_terms(op, written) if _has_terms(op) else op for op in block.ops))
        for block in program.blocks
    ]
    return program._replace(blocks=tuple(blocks))


def _has_terms(op: Op) -> bool:
    return op.type == "sum" and op.role == OpRole.BACKWARD and any(TERM in name for name in op.inputs.get("X", ()))


def _drop_unwritten_terms(op: Op, written: frozenset[str]) -> Op:
    """The sum of the terms that are written; unchanged if none is."""
    kept = tuple(name for name in op.inputs["X"] if TERM not in name or name in written)
    return op._replace(inputs=FrozenMap({**op.inputs, "X": kept})) if kept else op


# Programs without dropout, to examine training without randomness.

_RATE = "dropout_prob"


def without_dropout(module: Module) -> Module:
    """The module with rate 0 in every dropout op and its gradient op, so that all elements are kept."""
    programs = {
        name: program._replace(blocks=tuple(map(_kept_all, program.blocks)))
        for name, program in module.programs.items()
    }
    return replace(module, programs=FrozenMap(programs))


def _kept_all(block: Block) -> Block:
    return block._replace(
        ops=tuple(
            op._replace(attrs=FrozenMap({**op.attrs, _RATE: 0.0})) if _RATE in op.attrs or op.type == "dropout" else op
            for op in block.ops
        )
    )


# The number of rows that a program's loss is a mean of, among the rows that a machine is fed.

MEANS = ("mean", "reduce_mean")
"""Op types that average the losses of rows."""


def loss_op(program: Program) -> Op | None:
    """The op that computes the loss of a program, None if no op is marked so."""
    wanted = OpRole.FORWARD | OpRole.LOSS
    return next((op for op in program.main_block.ops if op.role == wanted), None)


def is_divided(program: Program, name: str) -> bool:
    """Whether an input is divided among trainers: its first dim is unknown (-1). Every trainer is fed all of an input
    with fixed dims.
    """
    var = program.main_block.vars.get(name)
    return var is None or not var.shape or var.shape[0] < 0


class LossRows:
    """Counts the rows of a feed that a program's loss is a mean of.

    These are the sequences of a ragged input if the loss has one number for each sequence, and the rows of its
    sequences if the loss has one number for each row. If neither can be determined, or there is no loss, they are the
    batch's rows.
    """

    def __init__(self, program: Program):
        self._program = program
        self._divided_by_name: dict[str, bool] = {}
        self._feed, self._inner = _averaged_input(program)

    def __call__(self, feed: Mapping[str, Any]) -> int | None:
        """The number of these rows in a feed; None if no fed value has rows of the batch."""
        name = self._feed if self._feed in feed else next((name for name in feed if self._has_rows(name)), None)
        if name is None:
            return None
        value = feed[name]
        if self._inner and name == self._feed and isinstance(value, LoDTensor):
            return len(value.data)
        return rows_of(value) if has_rows(value) else None

    def _has_rows(self, name: str) -> bool:
        known = self._divided_by_name.get(name)
        if known is None:
            known = self._divided_by_name[name] = is_divided(self._program, name)
        return known


def _averaged_input(program: Program) -> tuple[str, bool]:
    """(the input whose rows the loss is a mean of, "" for any; whether the loss is a mean of rows of sequences)."""
    op = loss_op(program)
    if op is None or op.type not in MEANS:
        return "", False
    name = op.input("X") or ""
    axis, var = BatchAxes(program).of(name), program.main_block.vars.get(name)
    if axis is None or axis == UNKNOWN or not axis.feed:
        return "", False
    ragged = var is not None and var.tensor is not None and var.tensor.lod_level > 0
    return axis.feed, ragged


_SEED = OpRole.BACKWARD | OpRole.LOSS


def seeds_of(program: Program) -> dict[int, str]:
    """The ops of block 0 that create initial gradients: index -> the variable that the op fills."""
    ops = enumerate(program.main_block.ops)
    return {i: next(iter(op.output_names)) for i, op in ops if op.type == "fill_constant" and op.role == _SEED}


def fed_seeds(program: Program) -> tuple[Program, dict[str, Value]]:
    """The program with its initial gradients as inputs, and their values. Raises DiagnosticError if gradients begin in
    another way.
    """
    seeds, ops = seeds_of(program), program.main_block.ops
    backward = next((op for op in ops if (op.role or OpRole.FORWARD) & OpRole.BACKWARD), None)
    if backward is not None and not seeds:
        message = "shares can't be weighted: no fill_constant with the roles backward and loss begins the gradients"
        raise DiagnosticError([at_op("feed-shares", message, backward)])
    rest = tuple(op for index, op in enumerate(ops) if index not in seeds)
    values = {name: _seed_value(ops[index], program.main_block.vars[name]) for index, name in seeds.items()}
    return _with_ops(program, rest), values


def _seed_value(op: Op, var: Var) -> Value:
    value: Any = op.attrs.get("value", 1.0)
    return np.full(var.shape, value, NUMPY_TYPES[var.dtype] if var.dtype else "float32")


def _with_ops(program: Program, ops: tuple[Op, ...]) -> Program:
    return program._replace(blocks=(program.main_block._replace(ops=ops), *program.blocks[1:]))


def without_rows(
    program: Program, inputs: Iterable[str], sends: Callable[[str], bool]
) -> tuple[Program, dict[str, Value]]:
    """The program of a machine that is fed no rows: the ops that need neither `inputs` nor gradients of them. Zeros
    replace the values made of `inputs` that are sent by ops for whose type `sends` returns true.

    Persistable variables keep their values. Raises DiagnosticError if the dims of a value are not known.
    """
    rest, senders = _without_row_ops(program, inputs, sends)
    return rest, {name: nothing_of(program, op, name) for name, op in senders.items()}


def sends_of_rows(program: Program, inputs: Iterable[str], sends: Callable[[str], bool]) -> bool:
    """Whether ops for whose type `sends` returns true send a value that is made of `inputs`, or of
    gradients of them.
    """
    return bool(_without_row_ops(program, inputs, sends)[1])


def _without_row_ops(
    program: Program, inputs: Iterable[str], sends: Callable[[str], bool]
) -> tuple[Program, dict[str, Op]]:
    """(the program without the ops that need rows; the ops that send a value made of rows, by the variable)."""
    needing = {*inputs, *seeds_of(program).values()}
    senders: dict[str, Op] = {}
    kept_ops: list[Op] = []
    for op in program.main_block.ops:
        needed = [name for name in _read(program, op) if name in needing]
        if needed and sends(op.type):
            senders.update(dict.fromkeys(needed, op))
            needed = []
        if needed:
            needing.update(n for n in op.output_names if (var := program.find_var(n)) is None or not var.persistable)
        else:
            kept_ops.append(op)
            needing.difference_update(op.output_names)
    return _with_ops(program, tuple(kept_ops)), senders


def apart_from(program: Program, inputs: Iterable[str], indices: Collection[int]) -> list[int]:
    """The indices, among these, of the ops that need neither `inputs` nor gradients of them."""
    rest, _ = _without_row_ops(program, inputs, lambda _op_type: False)
    kept = {id(op) for op in rest.main_block.ops}
    ops = program.main_block.ops
    return [index for index in indices if id(ops[index]) in kept]


def nothing_of(program: Program, op: Op, name: str) -> Value:
    """The value of a variable without any rows: zeros, or no rows."""
    var = program.find_var(name)
    shape = var.shape if var is not None else ()
    if var is None or var.tensor is None or any(dim < 0 for dim in shape[1:]):
        message = f"what a trainer without rows sends as {name} is not declared with dims"
        raise DiagnosticError([at_op("feed-shares", message, op, focus=name)])
    kind = NUMPY_TYPES[var.tensor.dtype]
    if var.kind is VarKind.SELECTED_ROWS:
        return SelectedRows(np.zeros(0, "int64"), np.zeros((0, *shape[1:]), kind), next(iter(shape)))
    zeros = np.zeros([max(dim, 0) for dim in shape], kind)
    return LoDTensor(zeros, [[0]] * var.tensor.lod_level) if var.tensor.lod_level else zeros


def _read(program: Program, op: Op) -> set[str]:
    """The variables that an op reads, also in its sub-blocks."""
    result, waiting = set(op.input_names), [op]
    while waiting:
        for value in waiting.pop().attrs.values():
            inner = [value] if type(value) is BlockRef else value if type(value) is BlockRefs else ()
            for index in inner:
                if 0 < int(index) < len(program.blocks):
                    for nested in program.blocks[int(index)].ops:
                        result.update(nested.input_names)
                        waiting.append(nested)
    return result


def scale_seeds(values: Mapping[str, Value], weight: float) -> dict[str, Value]:
    """Initial gradients multiplied by the weight of a share."""
    return {name: value * value.dtype.type(weight) for name, value in values.items()}
