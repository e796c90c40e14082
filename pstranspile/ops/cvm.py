"""Counts of shows and clicks in front of an embedding (the continuous value model of click-through rates)."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.lazy import lazy_import
from pstranspile.ops.kernel import Run, kernel
from pstranspile.ops.lod import plain, row_counts
from pstranspile.ops.numeric import flag
from pstranspile.ops.schema import declare, declare_gradient
from pstranspile.ops.shapes import ShapeError, Types, describe, given, one, shape_rule
from pstranspile.ops.values import Array, LoDTensor

np = lazy_import("numpy")

declare(
    "cvm",
    "X CVM -> Y",
    {"use_cvm": True},
    doc="Y = X, its first two columns, shows and clicks, made logarithms (use_cvm) or left out",
)
declare_gradient("cvm", "X CVM Y@GRAD -> X@GRAD")


@shape_rule("cvm")
def _cvm(op: Op, types: Types) -> Types:
    x, counts = one(types, "X"), given(types, "CVM")
    if len(x.shape) != 2 or 0 <= x.shape[1] < 2:
        raise ShapeError(f"X is {describe(x)}, it must be rows that begin with shows and clicks", "X")
    if counts is not None and (len(counts.shape) != 2 or counts.shape[1] not in (2, -1)):
        raise ShapeError(f"CVM is {describe(counts)}, it must be rows of shows and clicks", "CVM")
    width = x.shape[1] if op.attrs.get("use_cvm") or x.shape[1] < 0 else x.shape[1] - 2
    return {"Y": (TensorType(x.dtype, (x.shape[0], width), x.lod_level),)}


# Kernels


@kernel("cvm", "Y")
def _cvm_values(op: Op) -> Run:
    def with_counts(X: Array) -> Array:
        found = X.copy()
        logs = np.log(X[:, :2] + 1)
        found[:, 0] = logs[:, 0]
        found[:, 1] = logs[:, 1] - logs[:, 0]  # the logarithm of the share of clicks
        return found

    def without(X: Array) -> Array:
        return X[:, 2:].copy()

    return with_counts if flag(op, "use_cvm") else without


@kernel("cvm_grad", "X@GRAD", lod="own")
def _cvm_grad(op: Op) -> Run:
    skipped = 2 if flag(op, "use_cvm") else 0

    def run(X: Array | LoDTensor, CVM: Array | LoDTensor, Y_GRAD: Array | LoDTensor) -> Array | LoDTensor:
        """The first two columns get no gradient but the counts of CVM, for a table that adds them up."""
        counts, rows = plain(CVM), len(plain(X))
        if isinstance(X, LoDTensor):
            if len(X.lod[-1]) != len(counts) + 1:
                raise ValueError(f"CVM has {len(counts)} rows, X has {len(X.lod[-1]) - 1} sequences")
            counts = np.repeat(counts, row_counts(X.lod[-1]), axis=0)
        if len(counts) != rows:
            raise ValueError(f"CVM has {len(counts)} rows, X has {rows}")
        found = np.concatenate([counts, plain(Y_GRAD)[:, skipped:]], axis=1)
        return LoDTensor(found, X.lod) if isinstance(X, LoDTensor) else found

    return run
