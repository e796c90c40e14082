"""Data to check a program with, made from what the program declares and does with its inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.expect import expect_program
from pstranspile.ir.model import Op, Program, Var
from pstranspile.ir.types import VarKind
from pstranspile.lazy import lazy_import
from pstranspile.ops.tensor_bytes import NUMPY_TYPES
from pstranspile.ops.values import LoDTensor
from pstranspile.proof import codes
from pstranspile.run.feeds import declared
from pstranspile.run.step_arrays import LENGTHS, arrays_of
from pstranspile.run.terms import without_unmade_terms

np = lazy_import("numpy")

LARGEST = 1 << 27
"""Numbers that are made for one input, at most: half a gigabyte of f32."""

LONGEST = 5
"""Rows of the longest sequence that is made."""

LONGEST_NESTED = 3
"""Parts of the longest sequence that is made of sequences, and rows of those."""

_SAME_NUMBERS = frozenset(
    {
        *("assign", "cast", "concat", "expand", "flatten", "flatten2", "lod_reset", "reshape", "reshape2", "slice"),
        *("sequence_concat", "sequence_expand", "sequence_pad", "sequence_reshape", "sequence_slice", "split", "stack"),
        *("squeeze", "squeeze2", "transpose", "transpose2", "unsqueeze", "unsqueeze2", "unstack"),
    }
)
"""Op types whose outputs hold the numbers of their inputs, so that what reads the outputs limits the inputs."""

_OF_READERS = frozenset({"create_py_reader", "create_double_buffer_reader", "read"})
"""Op types that make readers, or give what a reader holds."""

_PROBABILITIES = {
    "sigmoid_cross_entropy_with_logits": "Label",
    "log_loss": "Labels",
    "bce_loss": "Label",
    "modified_huber_loss": "Y",
    "rank_loss": "Label",
    "margin_rank_loss": "Label",
    "hinge_loss": "Labels",
}
"""Op type -> the slot that takes 0 or 1."""


def make_feeds(main: Program, steps: int, batch: int, seed: int = 0) -> dict[str, Any]:
    """Arrays for every input of a program, in the form of a feed file (`run.step_arrays`), by name.

    Integers lie in the range that the ops which read them take; sequences have 1 to 5 rows, the same number on every
    machine in turn; other numbers are between -1 and 1. The same arguments give the same data. Raises DiagnosticError
    (`check-no-data`) for inputs of other kinds.
    """
    expect_program(main, "make_feeds")
    random = np.random.Generator(np.random.Philox(key=seed))
    limits = _Limits(main)
    feeds: dict[str, Any] = {}
    for var in inputs_of(main):
        feeds.update(_input(var, steps, batch, limits, random))
    return feeds


def inputs_of(main: Program) -> list[Var]:
    """The variables that a program reads before it makes them, in the order in which it reads them first.

    What a `read` op gives is among them: a run is fed what readers would give. Raises DiagnosticError for other ops
    that read a reader.
    """
    main = without_unmade_terms(main)
    inner = {name for block in main.blocks[1:] for op in block.ops for name in op.output_names}
    variables = main.main_block.vars
    made = set[str]()
    found: dict[str, Var] = {}
    for op in main.main_block.ops:
        if op.type in _OF_READERS:
            given = [variables[name] for name in op.output_names if name in variables]
            found.update((var.name, var) for var in given if var.kind is not VarKind.READER)
            made.update(op.output_names)
            continue
        for name in op.input_names:
            var = variables.get(name)
            if var is None or var.persistable or name in made or name in inner:
                if var is not None and var.kind is VarKind.READER:
                    message = f"{op.type} reads %{name}, which is a reader; a check needs inputs that are fed"
                    raise DiagnosticError([error(codes.NO_DATA, message, var.location, focus=f"%{name}")])
                continue
            found.setdefault(name, var)
        made.update(op.output_names)
    return list(found.values())


def _input(var: Var, steps: int, batch: int, limits: _Limits, random: Any) -> dict[str, Any]:
    tensor = var.tensor
    if var.kind is not VarKind.LOD_TENSOR or tensor is None:
        message = f"no data can be made for %{var.name}, declared {declared(var)}; give it with --feed"
        raise DiagnosticError([error(codes.NO_DATA, message, var.location, focus=f"%{var.name}")])
    inner = tuple(dim if dim >= 0 else LONGEST for dim in tensor.shape[1:])
    leading = batch if not tensor.shape or tensor.shape[0] < 0 else tensor.shape[0]
    if math.prod(inner) * steps * (batch * LONGEST**tensor.lod_level if tensor.lod_level else leading) > LARGEST:
        message = f"%{var.name}, declared {declared(var)}, takes more data than is made; give it with --feed"
        raise DiagnosticError([error(codes.NO_DATA, message, var.location, focus=f"%{var.name}")])
    if tensor.lod_level > 1:
        return arrays_of(var.name, [_nested(var, step, batch, limits, random) for step in range(steps)])
    if tensor.lod_level:
        lengths = 1 + (np.arange(steps * batch).reshape(steps, batch) + np.arange(steps)[:, None]) % LONGEST
        rows = limits.draw(var.name, tensor.dtype, (int(lengths.sum()), *inner), random)
        return {var.name: rows, var.name + LENGTHS: lengths.astype("int64")}
    shape = (steps, leading, *inner) if tensor.shape else (steps,)
    return {var.name: limits.draw(var.name, tensor.dtype, shape, random)}


def _nested(var: Var, step: int, batch: int, limits: _Limits, random: Any) -> LoDTensor:
    """Sequences of sequences for one step."""
    assert var.tensor is not None
    lod: list[list[int]] = []
    count = batch
    for level in range(var.tensor.lod_level):
        lod.append([0, *np.cumsum(1 + (np.arange(count) + step + level) % LONGEST_NESTED).tolist()])
        count = lod[-1][-1]
    inner = tuple(dim if dim >= 0 else LONGEST for dim in var.tensor.shape[1:])
    return LoDTensor(limits.draw(var.name, var.tensor.dtype, (count, *inner), random), lod)


class _Limits:
    """What numbers an input may hold, by what reads it."""

    def __init__(self, main: Program):
        self.main = main
        self.readers: dict[str, list[Op]] = {}
        for block in main.blocks:
            for op in block.ops:
                for name in op.input_names:
                    self.readers.setdefault(name, []).append(op)

    def draw(self, name: str, dtype: Any, shape: tuple[int, ...], random: Any) -> Any:
        """Numbers for an input, of its element type."""
        kind = np.dtype(NUMPY_TYPES[dtype])
        limit = self._limit(name, set())
        if kind.kind in "iu":
            return random.integers(0, limit or 2, shape).astype(kind)
        if kind.kind == "b":
            return random.integers(0, 2, shape).astype(kind)
        if self._is_probability(name, set()):
            return random.integers(0, 2, shape).astype(kind)
        return random.uniform(-1.0, 1.0, shape).astype(kind)

    def _limit(self, name: str, seen: set[str]) -> int | None:
        """One more than the largest integer that every reader takes; None if no reader sets a limit."""
        if name in seen:
            return None
        seen.add(name)
        found: list[int] = []
        for op in self.readers.get(name, ()):
            bound = _bound(op, name, self.main)
            if bound is not None:
                found.append(bound)
            elif op.type in _SAME_NUMBERS:
                found += (b for out in op.output_names if (b := self._limit(out, seen)) is not None)
        return min(found, default=None)

    def _is_probability(self, name: str, seen: set[str]) -> bool:
        if name in seen:
            return False
        seen.add(name)
        for op in self.readers.get(name, ()):
            slot = _PROBABILITIES.get(op.type)
            if slot is not None and name in op.inputs.get(slot, ()):
                return True
            if op.type in _SAME_NUMBERS and any(self._is_probability(out, seen) for out in op.output_names):
                return True
        return False


_ROWS: Mapping[tuple[str, str], str] = {
    ("lookup_table", "Ids"): "W",
    ("lookup_table_v2", "Ids"): "W",
    ("distributed_lookup_table", "Ids"): "W",
    ("gather", "Index"): "X",
}
"""(Op type, slot of indices) -> the slot whose rows they count."""

_CLASSES: Mapping[tuple[str, str], str] = {
    ("cross_entropy", "Label"): "X",
    ("cross_entropy2", "Label"): "X",
    ("softmax_with_cross_entropy", "Label"): "Logits",
    ("bpr_loss", "Label"): "X",
    ("sigmoid_focal_loss", "Label"): "X",
    ("sample_logits", "Labels"): "Logits",
    ("accuracy", "Label"): "Out",
}
"""(Op type, slot of labels) -> the slot whose last dim counts the classes."""

_CHANNELS: Mapping[tuple[str, str], str] = {("nll_loss", "Label"): "X"}
"""(Op type, slot of labels) -> the slot whose dim 1 counts the classes."""

_COUNTS: Mapping[tuple[str, str], str] = {
    ("nce", "Label"): "num_total_classes",
    ("hierarchical_sigmoid", "Label"): "num_classes",
    ("center_loss", "Label"): "cluster_num",
    ("mean_iou", "Predictions"): "num_classes",
    ("mean_iou", "Labels"): "num_classes",
    ("precision_recall", "Indices"): "class_number",
    ("precision_recall", "Labels"): "class_number",
    ("one_hot", "X"): "depth",
    ("one_hot_v2", "X"): "depth",
    ("sampled_softmax_with_cross_entropy", "Labels"): "num_classes",
}
"""(Op type, slot) -> the attribute that counts the classes."""


def _bound(op: Op, name: str, main: Program) -> int | None:
    for slot, names in op.inputs.items():
        if name not in names:
            continue
        key = (op.type, slot)
        count = op.attrs.get(_COUNTS[key]) if key in _COUNTS else None
        if isinstance(count, int):
            return count
        for slots, axis in ((_ROWS, 0), (_CLASSES, -1), (_CHANNELS, 1)):
            dim = _dim(op, slots.get(key), main, axis)
            if dim:
                return dim
    return None


def _dim(op: Op, slot: str | None, main: Program, axis: int) -> int | None:
    var = main.find_var(op.input(slot) or "") if slot else None
    shape = var.shape if var is not None else ()
    return shape[axis] if shape and shape[axis] > 0 else None
