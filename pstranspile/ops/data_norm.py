"""Normalisation by statistics that are trained with the model."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.lazy import lazy_import
from pstranspile.ops.kernel import Run, kernel, wanted
from pstranspile.ops.norm_image import require_vectors
from pstranspile.ops.numeric import flag, real
from pstranspile.ops.schema import declare, declare_gradient
from pstranspile.ops.shapes import Types, int_attr, one, shape_rule
from pstranspile.ops.values import Array

np = lazy_import("numpy")

declare(
    "data_norm",
    "scale_w? bias? X BatchSize BatchSum BatchSquareSum -> Y Means Scales",
    {
        "epsilon": 0.0001,
        "slot_dim": -1,
        "summary_decay_rate": 0.9999999,
        "enable_scale_and_shift": False,
        "data_layout": "NCHW",
        "sync_stats": False,
        "use_mkldnn": False,
    },
    doc="Y = X normalised by statistics that are trained with it",
)
declare_gradient(
    "data_norm",
    "scale_w? bias? X Means Scales Y@GRAD -> BatchSize BatchSum BatchSquareSum "
    "scale_w@GRAD? bias@GRAD? X@GRAD BatchSize@GRAD BatchSum@GRAD BatchSquareSum@GRAD",
)


@shape_rule("data_norm")
def _data_norm(_op: Op, types: Types) -> Types:
    x = one(types, "X")
    columns = x.shape[-1]
    require_vectors(types, ("BatchSize", "BatchSum", "BatchSquareSum", "scale_w", "bias"), columns, x)
    statistic = (TensorType(x.dtype, (columns,)),)
    return {"Y": (x,), "Means": statistic, "Scales": statistic}


@shape_rule("data_norm_grad")
def _data_norm_grad_types(op: Op, types: Types) -> Types:
    x = one(types, "X")
    statistic = (TensorType(x.dtype, (x.shape[-1],)),)
    return {slot: (x,) if slot == "X@GRAD" else statistic for slot in op.outputs}


# Kernels


def _shown(op: Op, x: Array) -> Array | None:
    """Which elements count: those of slots whose first element, the number of shows, is not 0. None: all do."""
    width = int_attr(op, "slot_dim", -1)
    if width <= 0:
        return None
    if x.shape[-1] % width:
        raise ValueError(f"the rows of X have {x.shape[-1]} elements, not slots of slot_dim {width}")
    return np.repeat(np.abs(x[:, ::width]) >= _NOTHING, width, axis=1)


_NOTHING = 1e-7
"""A number of shows that is smaller is none."""


def _rows(x: Array) -> Array:
    return x.reshape(-1, x.shape[-1])


@kernel("data_norm", "Y Means Scales", lod="Y")
def _data_norm_values(op: Op) -> Run:
    shifts = flag(op, "enable_scale_and_shift")

    def run(
        scale_w: Array | None, bias: Array | None, X: Array, BatchSize: Array, BatchSum: Array, BatchSquareSum: Array
    ) -> tuple[Array, Array, Array]:
        means, scales = BatchSum / BatchSize, np.sqrt(BatchSize / BatchSquareSum)
        y = (X - means) * scales
        if shifts:
            y = y * scale_w + bias
        shown = _shown(op, _rows(X))
        if shown is not None:
            y = np.where(shown.reshape(X.shape), y, 0).astype(X.dtype, copy=False)
        return y, means, scales

    return run


@kernel(
    "data_norm_grad",
    "scale_w@GRAD bias@GRAD X@GRAD BatchSize@GRAD BatchSum@GRAD BatchSquareSum@GRAD",
    lod="none",
)
def _data_norm_grad(op: Op) -> Run:
    """What it gives for the statistics is no derivative: it is the batch's part in them, which an optimizer adds."""
    shifts, epsilon, wants_x = flag(op, "enable_scale_and_shift"), real(op, "epsilon"), wanted(op, "X@GRAD")

    def run(scale_w: Array | None, X: Array, Means: Array, Scales: Array, Y_GRAD: Array) -> tuple[Array | None, ...]:
        x, gradient = _rows(X), _rows(Y_GRAD)
        shown, away = _shown(op, x), x - Means
        total, squares = x, np.square(away)
        if shown is not None:
            total, squares, gradient = (np.where(shown, part, 0).astype(x.dtype) for part in (x, squares, gradient))
        of_sum, of_squares = np.add.reduce(total, axis=0), np.add.reduce(squares, axis=0)
        of_size = np.full(Means.shape, len(x), x.dtype)
        if shown is not None:  # Fluid counts a batch of slots as one
            counts = np.add.reduce(shown, axis=0).astype(x.dtype)
            of_size = (counts > 0).astype(x.dtype)
            of_sum, of_squares = (part / np.maximum(counts, 1) for part in (of_sum, of_squares))
            of_squares += counts * epsilon
        else:
            of_squares += len(x) * epsilon
        scale_grad = bias_grad = x_grad = None
        if shifts:
            scale_grad = np.add.reduce(gradient * (away * Scales), axis=0)
            bias_grad = np.add.reduce(gradient, axis=0)
        if wants_x:
            x_grad = ((gradient * scale_w if shifts else gradient) * Scales).reshape(X.shape)
        return scale_grad, bias_grad, x_grad, of_size, of_sum, of_squares

    return run
