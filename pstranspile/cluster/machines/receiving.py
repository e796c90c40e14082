"""Writing a variable to a file as its slices come from the servers (`recv_save`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from pstranspile.ir.diagnostics import DiagnosticError, at_op
from pstranspile.ir.model import Op
from pstranspile.ir.table_rules import takes_any_id
from pstranspile.ir.types import DType
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.values import NUMPY_TYPES, SelectedRows
from pstranspile.runtime.values.reading import refuse
from pstranspile.runtime.values.writing import encode, write_file


def write_whole(
    op: Op, names: Sequence[str], servers: int, folder: str | Path
) -> Callable[[list[Value]], Sequence[Value]]:
    """What to do with the slices, in the order asked for: write them to the op's file, one after another.

    Raises DiagnosticError if the op's lists don't go together, or the slices don't make up the whole (which Fluid does
    not look at: its file of a value that several servers have is too long).
    """
    attrs: dict[str, Any] = {**op.attrs}
    shape = tuple(map(int, attrs.get("shape", ())))
    slices = [tuple(int(dim) for dim in text.split(",") if dim) for text in attrs.get("slice_shapes", ())]
    number = attrs.get("dtype", DType.FP32.value)
    if number not in [kind.value for kind in DType]:
        raise DiagnosticError([at_op("cluster-placement", f"dtype {number} is no element type", op)])
    kind = NUMPY_TYPES[DType(number)]
    file = Path(folder) / str(attrs.get("file_path", ""))
    overwrite = attrs.get("overwrite", True)
    if not len(names) == servers == len(slices) == len(attrs.get("slice_varnames", ())):
        message = "endpoints, remote_varnames, slice_varnames and slice_shapes are not of the same length"
        raise DiagnosticError([at_op("cluster-placement", message, op)])
    if sum(map(prod, slices)) != prod(shape):
        message = f"the slices have {sum(map(prod, slices))} elements, the whole, {list(shape)}, has {prod(shape)}"
        raise DiagnosticError([at_op("cluster-placement", message, op)])

    def finish(answers: list[Value]) -> Sequence[Value]:
        if all(isinstance(answer, SelectedRows) for answer in answers):
            write_file(file, encode(_joined(answers)))
            return ()
        # Scripts set numbers, such as a learning rate, to arrays without dims.
        for name, dims, answer in zip(names, slices, answers, strict=True):
            if not isinstance(answer, np.ndarray) or answer.dtype.name != kind or (answer.shape or (1,)) != dims:
                held = f"{answer.dtype.name}{list(answer.shape)}" if isinstance(answer, np.ndarray) else "no tensor"
                message = f"{name} is {held} on its server, {kind}{list(dims)} is expected"
                raise DiagnosticError([at_op("cluster-placement", message, op)])
        if not overwrite and file.exists():
            refuse("values-exist", str(file), "the file is there already, and overwrite is not set")
        write_file(file, encode(np.concatenate([answer.reshape(-1) for answer in answers]).reshape(shape)))
        return ()

    return finish


def _joined(parts: Sequence[Any]) -> SelectedRows:
    """The rows of a large table whose parts follow each other, or which has a row for every id."""
    if takes_any_id((parts[0].height, *parts[0].value.shape[1:])):
        ids = np.concatenate([part.rows for part in parts])
        order = ids.argsort(kind="stable")
        return SelectedRows(ids[order], np.concatenate([part.value for part in parts])[order], parts[0].height)
    starts = [sum(part.height for part in parts[:index]) for index in range(len(parts) + 1)]
    rows = np.concatenate([part.rows + start for part, start in zip(parts, starts, strict=False)])
    return SelectedRows(rows, np.concatenate([part.value for part in parts]), starts[-1])
