"""Sines and cosines of the position, added to sequences."""

from __future__ import annotations

from pstranspile.ir.model import Op
from pstranspile.lazy import lazy_import
from pstranspile.ops.kernel import Run, kernel
from pstranspile.ops.lod import plain, row_counts
from pstranspile.ops.numeric import formula, real
from pstranspile.ops.shapes import ShapeError, Types, describe, one, shape_rule
from pstranspile.ops.values import Array, LoDTensor

np = lazy_import("numpy")


@shape_rule("add_position_encoding")
def _add_position_encoding(_op: Op, types: Types) -> Types:
    x = one(types, "X")
    if x.shape[-1] % 2 and x.shape[-1] > 0:
        raise ShapeError(f"X is {describe(x)}, its last dim must be even: half sines, half cosines", "X")
    return {"Out": (x,)}


@shape_rule("add_position_encoding_grad")
def _add_position_encoding_grad(_op: Op, types: Types) -> Types:
    return {"X@GRAD": (one(types, "Out@GRAD"),)}


# Kernels


def _encoding(positions: Array, width: int) -> Array:
    """[positions, width]: sines, then cosines, of wave lengths that grow from 2 pi to 10000 times that."""
    half = width // 2
    steps = np.arange(half) / (half - 1) if half > 1 else np.ones(1)
    angles = positions[:, None] / 10000.0**steps
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


@kernel("add_position_encoding", lod="own")
def _add_position_encoding_values(op: Op) -> Run:
    alpha, beta = real(op, "alpha"), real(op, "beta")

    def run(X: Array | LoDTensor) -> Array | LoDTensor:
        x = plain(X)
        if x.shape[-1] % 2:
            raise ValueError(f"the last dim of X is {x.shape[-1]}, it must be even: half sines, half cosines")
        if isinstance(X, LoDTensor):
            lengths = row_counts(X.lod[0])
            positions = np.arange(len(x)) - np.repeat(X.lod[0][:-1], lengths)
        else:
            if x.ndim != 3:
                raise ValueError(f"X has no LoD and {x.ndim} dims, it must have 3: sequences, positions, columns")
            positions = np.arange(x.shape[1])
        found = alpha * x + (beta * _encoding(positions, x.shape[-1])).astype(x.dtype)
        return LoDTensor(found, X.lod) if isinstance(X, LoDTensor) else found

    return run


formula("add_position_encoding_grad", lambda op: f"{real(op, 'alpha')!r} * {{Out_GRAD}}", "X@GRAD", lod="none")
