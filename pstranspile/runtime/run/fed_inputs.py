"""What is fed in one step, compared with what the program does with it: inputs whose rows an op takes side by side must
have as many, and ids must be those of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Note, at_op, counted, raise_errors
from pstranspile.ir.model import Op, Program, TensorType, Var
from pstranspile.ops import schema_of
from pstranspile.ops.shapes import ShapeError, Types, fits, infer_types
from pstranspile.runtime.run.fed_ids import tables_of, wrong_ids


class Apart(NamedTuple):
    """Two inputs with different numbers of rows, and the op that brings their rows together."""

    inputs: tuple[str, str]
    rows: tuple[int, int]
    op: Op

    def told(self, place: str) -> Diagnostic:
        """The error; `place` says where the rows are from, such as `step 3 of feed.npz`."""
        (one, other), (first, second) = self.inputs, self.rows
        message = (
            f"{one} has {counted(first, 'row')} and {other} has {second:,} in {place}, which it takes side by side"
        )
        single = one if first == 1 else other
        declaring = f"{single} is declared with -1 rows; a single row for all others is declared with 1"
        notes = [Note(declaring)] if 1 in self.rows else []
        return at_op("run-feed-mismatch", message, self.op, notes=notes)


class FedRows:
    """Compares the rows of a program's inputs in each step.

    Compared are arrays whose input is declared with the first dim -1 and no LoD. Inputs may have different numbers of
    rows where no op takes a row of one beside the same row of the other.
    """

    def __init__(self, program: Program):
        self._program = program
        self._open: dict[str, Var] = {
            name: var
            for name, var in program.main_block.vars.items()
            if not var.persistable and var.tensor is not None and var.shape[:1] == (-1,) and not var.tensor.lod_level
        }
        self._known: dict[tuple[tuple[str, tuple[int, ...]], ...], Apart | None] = {}
        """What was found for the dims of the arrays of a step."""

    def apart(self, feed: Mapping[str, Any]) -> Apart | None:
        """The first two inputs of a step that have different numbers of rows although an op takes them side by side."""
        given = {name: value.shape for name, value in feed.items() if name in self._open and self._fits(name, value)}
        if len({shape[:1] for shape in given.values()}) < 2:
            return None
        key = tuple(given.items())
        if key not in self._known:
            self._known[key] = self._search(given)
        return self._known[key]

    def _fits(self, name: str, value: Any) -> bool:
        """Whether a value is an array with the declared dims, whatever its rows."""
        dims = self._open[name].shape
        return isinstance(value, np.ndarray) and len(value.shape) == len(dims) and fits(value.shape[1:], dims[1:])

    def _search(self, shapes: Mapping[str, tuple[int, ...]]) -> Apart | None:
        types: dict[str, TensorType] = {}
        origins = {name: frozenset([name]) for name in shapes}
        for name, shape in shapes.items():
            tensor = self._open[name].tensor
            assert tensor is not None
            types[name] = tensor._replace(shape=shape)

        def declared(name: str) -> TensorType | None:
            var = self._program.find_var(name)
            return None if var is None else var.tensor

        def known(name: str) -> TensorType | None:
            return types.get(name) or declared(name)

        for op in self._program.main_block.ops:
            of = frozenset[str]().union(*(origins.get(name, frozenset()) for name in op.input_names))
            if not of:
                continue
            made: Types = {}
            try:
                made = infer_types(op, known)
                meet = _side_by_side(op, types, origins)
            except ShapeError:
                meet = [*of] if _fits(op, declared) else []
            for one, other in combinations([name for name in shapes if name in meet], 2):
                if shapes[one][0] != shapes[other][0]:
                    return Apart((one, other), (shapes[one][0], shapes[other][0]), op)
            for slot, names in op.outputs.items():
                for name, tensor in zip(names, made.get(slot, (None,) * len(names)), strict=False):
                    types.pop(name, None)
                    origins[name] = of
                    if tensor is not None and tensor.shape:
                        types[name] = tensor
        return None


class FedInputs:
    """Checks what a program is fed in each step; with `any_id` ids may be such that no table has a row for them."""

    def __init__(self, program: Program, *, any_id: bool = False):
        self._rows = FedRows(program)
        self._tables = {} if any_id else tables_of(program)

    def require(self, feed: Mapping[str, Any], place: str) -> None:
        """Raises DiagnosticError for inputs whose rows don't fit together, and for ids that a table has no row for;
        `place` says where they are from.
        """
        apart = self._rows.apart(feed)
        if apart is not None:
            raise DiagnosticError([apart.told(place)])
        raise_errors(wrong.told(place) for wrong in wrong_ids(self._tables, feed))


def _side_by_side(op: Op, types: Mapping[str, TensorType], origins: Mapping[str, frozenset[str]]) -> list[str]:
    """The inputs of the program whose rows an op takes side by side, though they are not as many; else none."""
    schema = schema_of(op.type)
    names = [name for name in dict.fromkeys(op.input_names) if origins.get(name) and name in types]
    if schema is None or not schema.row_wise or len(names) < 2 or op.attrs.get("axis", -1) not in (-1, 0):
        return []
    alike = {len(types[name].shape) for name in names}
    rows = {types[name].shape[0] for name in names if types[name].shape}
    if len(rows) < 2 or min(rows) < 0 or (len(alike) > 1 and op.attrs.get("axis", -1) != 0):
        return []
    return [origin for name in names for origin in origins[name]]


def _fits(op: Op, declared: Any) -> bool:
    """Whether the declared dims of an op's inputs fit together, so that only the rows of a step do not."""
    try:
        infer_types(op, declared)
    except ShapeError:
        return False
    return True
