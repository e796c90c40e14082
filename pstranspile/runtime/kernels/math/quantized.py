"""Kernels. Quantisation: numbers rounded to integers of a few bits by a scale, which is computed or tracked, and the
inverse.
"""

from __future__ import annotations

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr, real
from pstranspile.ops.math.quantized import MOST_BITS
from pstranspile.ops.shapes import Dims
from pstranspile.runtime.kernels.detection.boxes import round_half_away
from pstranspile.runtime.kernels.kernel import ExecutionContext, Run, kernel, plain_kernel
from pstranspile.runtime.values import Array


def _largest_integer(bits: int) -> int:
    if not 1 <= bits <= MOST_BITS:
        raise ValueError(f"integers of {bits} bits; there are some of 1 to {MOST_BITS}")
    return 2 ** (bits - 1) - 1


def _as_integers(x: Array, scale: Array, largest: int) -> Array:
    """x / scale * largest, rounded to integers of at most `largest`. Tiny scales don't divide by zero."""
    inverse = 1 / np.where(scale <= 1e-30, scale + 1e-6, scale).astype(x.dtype)
    return round_half_away(largest * inverse * np.clip(x, -scale, scale)).astype(x.dtype, copy=False)


def _scale(x: Array) -> Array:
    return np.abs(x).max(keepdims=True).reshape(1)


@plain_kernel("fake_quantize_abs_max", "Out OutScale", lod="Out")
def _fake_quantize_abs_max(X: Array, *, bit_length: int) -> tuple[Array, Array]:
    scale = _scale(X)
    return _as_integers(X, scale, _largest_integer(bit_length)), scale


@plain_kernel("fake_channel_wise_quantize_abs_max", "Out OutScale", lod="Out")
def _fake_channel_wise_quantize_abs_max(X: Array, *, bit_length: int) -> tuple[Array, Array]:
    scales = np.abs(X).reshape(len(X), -1).max(axis=1)
    return _as_integers(X, scales.reshape(-1, *[1] * (X.ndim - 1)), _largest_integer(bit_length)), scales


@kernel("fake_quantize_range_abs_max", "Out OutScale OutScales", lod="Out")
def _fake_quantize_range_abs_max(op: Op) -> Run:
    largest, window, fixed = (
        _largest_integer(int_attr(op, "bit_length")),
        int_attr(op, "window_size"),
        flag(op, "is_test"),
    )

    def run(X: Array, InScale: Array, Iter: Array | None, context: ExecutionContext) -> tuple[Array | None, ...]:
        """Tracks the largest scale in a window of steps. The output OutScales also holds the scales of
        earlier steps.
        """
        if fixed:
            return _as_integers(X, InScale, largest), None, None
        if Iter is None:
            raise ValueError("Iter is missing, the number of the step")
        name, step = op.output("OutScales"), int(Iter.reshape(-1)[0])
        held = context.find(name) if name else None
        scales = np.zeros(window, X.dtype) if held is None else np.array(held).reshape(-1)
        now, before = _scale(X), InScale.reshape(-1)[:1]
        left, scales[step % window] = scales[step % window], now[0]
        if before[0] < now[0]:
            before = now
        elif abs(left - before[0]) < 1e-6:
            before = _scale(scales[: min(step, window)]) if step else before
        return _as_integers(X, before, largest), before.copy(), scales

    return run


def _moving_average_scale(
    x: Array, accumulated: Array | None, state: Array | None, rate: float
) -> tuple[Array, Array, Array]:
    """(moving average of the largest absolute values, accumulated number of steps, accumulated sum of these values);
    both accumulate with decay `rate`.
    """
    if accumulated is None or state is None:
        raise ValueError("InAccum and InState are missing, which training needs")
    kept = x.dtype.type(rate)
    count: Array = (kept * state + 1).astype(x.dtype)
    total: Array = (kept * accumulated + _scale(x)).astype(x.dtype)
    return total / count, count, total


@kernel(
    "fake_quantize_moving_average_abs_max fake_quantize_dequantize_moving_average_abs_max",
    "Out OutScale OutState OutAccum",
    lod="Out",
)
def _moving_average(op: Op) -> Run:
    largest, fixed, rate = _largest_integer(int_attr(op, "bit_length")), flag(op, "is_test"), real(op, "moving_rate")
    back = op.type.startswith("fake_quantize_dequantize")

    def run(X: Array, InScale: Array, InAccum: Array | None, InState: Array | None) -> tuple[Array | None, ...]:
        found = (InScale,) if fixed else _moving_average_scale(X, InAccum, InState, rate)
        out = _as_integers(X, found[0], largest)
        if back:
            out = found[0] / np.float32(largest) * out
        return (out, None, None, None) if fixed else (out, *found)

    return run


@plain_kernel("moving_average_abs_max_scale", "Out OutScale OutState OutAccum", lod="Out")
def _moving_scale(
    X: Array, InAccum: Array | None, InState: Array | None, *, is_test: bool, moving_rate: float
) -> tuple[Array | None, ...]:
    return (
        (X.copy(), None, None, None)
        if is_test
        else (X.copy(), *_moving_average_scale(X, InAccum, InState, moving_rate))
    )


@plain_kernel("fake_dequantize_max_abs dequantize_abs_max")
def _dequantise(X: Array, Scale: Array, *, max_range: float) -> Array:
    return (Scale.reshape(-1)[0] * X / np.float32(max_range)).astype(Scale.dtype)


@plain_kernel("fake_channel_wise_dequantize_max_abs")
def _dequantise_channels(X: Array, Scales: list[Array], *, quant_bits: Dims) -> Array:
    dim = len(Scales) - 1
    if (
        dim not in (0, 1)
        or len(quant_bits) < len(Scales)
        or Scales[0].size != X.shape[dim]
        or (dim and Scales[1].size != 1)
    ):
        sizes = [scale.size for scale in Scales]
        raise ValueError(f"scales of {sizes} numbers and {len(quant_bits)} quant_bits don't fit X of {list(X.shape)}")
    scale = Scales[0].reshape(*[1] * dim, -1, *[1] * (X.ndim - 1 - dim))
    divisor = _largest_integer(quant_bits[0])
    if dim:
        scale, divisor = scale * Scales[1].reshape(-1)[0], divisor * _largest_integer(quant_bits[1])
    return (scale * X / X.dtype.type(divisor)).astype(X.dtype)


@plain_kernel("dequantize_log")
def _dequantise_log(X: Array, Dict: Array) -> Array:
    places = X.astype(np.int64)
    values = Dict[np.where(places < 0, places + 128, places)]
    return np.where(places < 0, -values, values)
