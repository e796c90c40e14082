"""The values of variables at run time: arrays, ragged tensors and sparse rows; and the names of dtypes."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from pstranspile.ir.types import DType

Array: TypeAlias = Any
"""A numpy array. (numpy is imported late, and its own types describe dims and dtypes too loosely to be checked.)"""


def array_of(value: Any) -> Array:
    """A tensor of PyTorch, or any other value that numpy accepts, as an array of at least one dim."""
    import numpy as np

    made = value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)
    return made.reshape(made.shape or (1,))


class LoDTensor(NamedTuple):
    """A ragged tensor: rows grouped into sequences. `lod` holds one offset table per level.

    `LoDTensor(data, [[0, 2, 5]])`: the first sequence is rows 0 and 1, the second rows 2 to 4.
    """

    data: Array
    lod: list[list[int]]


class SelectedRows(NamedTuple):
    """Sparse rows of a tall matrix: `value[i]` belongs to row `rows[i]`. Rows may repeat.

    `rows` is int64 [n], `value` [n, ...], `height` the number of rows of the whole matrix. The `value` of a growing
    table may have spare capacity: more than n rows, of which the first n are in use.
    """

    rows: Array
    value: Array
    height: int


NUMPY_TYPES: dict[DType, str] = {
    DType.BOOL: "bool",
    DType.INT16: "int16",
    DType.INT32: "int32",
    DType.INT64: "int64",
    DType.FP16: "float16",
    DType.FP32: "float32",
    DType.FP64: "float64",
    DType.SIZE_T: "uint64",
    DType.UINT8: "uint8",
    DType.INT8: "int8",
}
"""numpy's name of every element type."""
