"""Quantisation: numbers rounded to integers of a few bits by a scale, which is computed or tracked, and the inverse."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.attributes import int_attr, ints_attr
from pstranspile.ops.schema import FLOAT, declare, ints
from pstranspile.ops.shapes import ShapeError, Types, describe, one, outputs_like, shape_rule

MOST_BITS = 64
"""The most bits of the integers that stand for numbers; to make them, Fluid takes 16 at most."""

declare("fake_quantize_abs_max", "X -> Out OutScale", {"bit_length": 8}, doc="Out = X as integers, OutScale = max |X|")
declare(
    "fake_channel_wise_quantize_abs_max",
    "X -> Out OutScale",
    {"bit_length": 8},
    doc="as fake_quantize_abs_max, with a scale for each index of dim 0",
)
declare(
    "fake_quantize_range_abs_max",
    "X InScale Iter? -> Out OutScale OutScales?",
    {"window_size": 10000, "bit_length": 8, "is_test": False},
    rows="own",
    doc="as fake_quantize_abs_max, with the largest scale of the last window_size steps",
)
_MOVING = {"moving_rate": 0.9, "bit_length": 8, "is_test": False}
_MOVED = "X InScale InAccum? InState? -> Out OutScale OutState? OutAccum?"
declare(
    "fake_quantize_moving_average_abs_max",
    _MOVED,
    _MOVING,
    doc="as fake_quantize_abs_max, with the moving average of the scales",
)
declare(
    "fake_quantize_dequantize_moving_average_abs_max",
    _MOVED,
    _MOVING,
    doc="as fake_quantize_moving_average_abs_max, with Out as numbers again",
)
declare(
    "moving_average_abs_max_scale",
    "X InAccum? InState? -> Out OutScale OutState? OutAccum?",
    {"moving_rate": 0.9, "is_test": False},
    doc="Out = X, OutScale = the moving average of max |X|",
)
declare("fake_dequantize_max_abs", "X Scale -> Out", {"max_range": FLOAT}, doc="Out = X * Scale / max_range")
declare(
    "fake_channel_wise_dequantize_max_abs",
    "X Scales* -> Out",
    {"quant_bits": ints(8)},
    doc="Out = X times its scales, divided by the largest integers of quant_bits",
)
declare("dequantize_abs_max", "X Scale -> Out", {"max_range": FLOAT}, doc="Out = integers X * Scale / max_range")
declare(
    "dequantize_log",
    "X Dict -> Out",
    doc="Out = the elements of Dict at X; those at X + 128 with the other sign where X is negative",
)


@shape_rule(
    "fake_quantize_abs_max",
    "fake_channel_wise_quantize_abs_max",
    "fake_quantize_range_abs_max",
    "fake_quantize_moving_average_abs_max",
    "fake_quantize_dequantize_moving_average_abs_max",
    "moving_average_abs_max_scale",
)
def _fake_quantise(op: Op, types: Types) -> Types:
    x = one(types, "X")
    if not 1 <= int_attr(op, "bit_length", 8) <= 16:
        raise ShapeError(f"bit_length is {int_attr(op, 'bit_length')}, it must be 1 to 16", "X")
    count = x.shape[0] if op.type == "fake_channel_wise_quantize_abs_max" else 1
    one_number = (TensorType(x.dtype, (1,)),)
    made: dict[str, tuple[TensorType | None, ...]] = {"Out": (x,), "OutScale": (TensorType(x.dtype, (count,)),)}
    made |= {slot: one_number for slot in ("OutState", "OutAccum") if op.outputs.get(slot)}
    if op.outputs.get("OutScales"):
        made["OutScales"] = (TensorType(x.dtype, (int_attr(op, "window_size"),)),)
    return made


shape_rule("fake_dequantize_max_abs")(outputs_like(Out="X"))


@shape_rule("fake_channel_wise_dequantize_max_abs")
def _dequantised_channels(op: Op, types: Types) -> Types:
    bits = ints_attr(op, "quant_bits")
    if not all(1 <= each <= MOST_BITS for each in bits):
        raise ShapeError(f"quant_bits is {list(bits)}, each must be 1 to {MOST_BITS}", "X")
    return {"Out": (one(types, "X"),)}


@shape_rule("dequantize_abs_max", "dequantize_log")
def _dequantise_by_scale(op: Op, types: Types) -> Types:
    x, scale = one(types, "X"), one(types, "Scale" if op.type == "dequantize_abs_max" else "Dict")
    if len(scale.shape) != 1:
        raise ShapeError(f"the scale is {describe(scale)}, it must have one dim", "X")
    return {"Out": (TensorType(scale.dtype, x.shape, x.lod_level),)}
