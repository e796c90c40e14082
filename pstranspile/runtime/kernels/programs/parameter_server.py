"""Kernels. Communication with parameter servers."""

from __future__ import annotations

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import ints_attr
from pstranspile.runtime.kernels.kernel import Run, Surroundings, kernel
from pstranspile.runtime.values import NUMPY_TYPES, SelectedRows


@kernel("fake_init")
def _fake_init(op: Op) -> Run:
    dims, name = ints_attr(op, "shape"), op.outputs["Out"][0]
    if not dims or min(dims) < 0:
        raise ValueError(f"shape is {list(dims)}, not the dims of a table")

    def run(surroundings: Surroundings) -> SelectedRows:
        var = surroundings.declared(name)
        kind = NUMPY_TYPES[var.tensor.dtype] if var is not None and var.tensor is not None else "float32"
        # a table without local rows: it only provides dims for gradients, and lookups in it are refused
        return SelectedRows(np.empty(0, "int64"), np.empty((0, *dims[1:]), kind), dims[0])

    return run
