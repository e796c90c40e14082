"""Deformable convolution: every sample has an offset of its own (arXiv 1703.06211, with a mask 1811.11168)."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.attributes import int_attr, ints_attr
from pstranspile.ops.schema import declare, declare_gradient, ints
from pstranspile.ops.shapes import ShapeError, Types, describe, disagree, fits, given, gradient_types, one, shape_rule

_DEFORMABLE = {
    "strides": ints(1, 1),
    "paddings": ints(0, 0),
    "dilations": ints(1, 1),
    "groups": 1,
    "deformable_groups": 1,
    "im2col_step": 64,
}

declare(
    "deformable_conv",
    "Input Offset Mask Filter -> Output",
    _DEFORMABLE,
    doc="Output = Input, sampled at places moved by Offset, times Mask, convolved with Filter",
)
declare_gradient(
    "deformable_conv", "Input Offset Mask Filter Output@GRAD -> Input@GRAD Offset@GRAD Mask@GRAD Filter@GRAD"
)
declare(
    "deformable_conv_v1",
    "Input Offset Filter -> Output",
    _DEFORMABLE,
    doc="Output = Input, sampled at places moved by Offset, convolved with Filter",
)
declare_gradient("deformable_conv_v1", "Input Offset Filter Output@GRAD -> Input@GRAD Offset@GRAD Filter@GRAD")


def moved_dims(op: Op, dims: tuple[int, ...], window: tuple[int, ...]) -> tuple[int, ...]:
    """Height and width of the result; -1 where it is not known. Raises ShapeError where there is no window."""
    strides, paddings, dilations = (ints_attr(op, name) for name in ("strides", "paddings", "dilations"))
    if not len(strides) == len(paddings) == len(dilations) == 2 or min(*strides, *dilations) < 1:
        raise ShapeError("strides, paddings and dilations must be two numbers each, strides and dilations above 0")
    result: list[int] = []
    for dim, size, stride, padding, dilation in zip(dims, window, strides, paddings, dilations, strict=True):
        made = -1 if min(dim, size) < 0 else (dim + 2 * padding - dilation * (size - 1) - 1) // stride + 1
        if made < 1 and min(dim, size) >= 0:
            raise ShapeError(f"images of {list(dims)} have no window of {list(window)}", "Input")
        result.append(made)
    return tuple(result)


@shape_rule("deformable_conv", "deformable_conv_v1")
def _deformable_conv(op: Op, types: Types) -> Types:
    x, filters, offset = one(types, "Input"), one(types, "Filter"), one(types, "Offset")
    for slot, tensor in (("Input", x), ("Filter", filters), ("Offset", offset)):
        if len(tensor.shape) != 4:
            raise ShapeError(f"{slot} is {describe(tensor)}, it must have four dims", slot)
    groups, parts = int_attr(op, "groups"), int_attr(op, "deformable_groups")
    if min(groups, parts) < 1:
        raise ShapeError(f"groups is {groups}, deformable_groups {parts}, both must be above 0", "Input")
    if min(x.shape[1], filters.shape[1]) >= 0 and x.shape[1] != filters.shape[1] * groups:
        disagree("Input", x, "Filter", filters)
    if (x.shape[1] % parts and x.shape[1] > 0) or (filters.shape[0] % groups and filters.shape[0] > 0):
        raise ShapeError(f"Input is {describe(x)}, Filter {describe(filters)}; groups cut neither evenly", "Input")
    dims = moved_dims(op, x.shape[2:], filters.shape[2:])
    window = filters.shape[2] * filters.shape[3] if min(filters.shape[2:]) >= 0 else -1
    for slot, channels in (("Offset", 2), ("Mask", 1)):
        tensor = given(types, slot)
        if tensor is not None and not fits(tensor.shape[1:], (channels * parts * window if window >= 0 else -1, *dims)):
            disagree(slot, tensor, "Filter", filters)
    return {"Output": (TensorType(x.dtype, (x.shape[0], filters.shape[0], *dims)),)}


shape_rule("deformable_conv_grad", "deformable_conv_v1_grad")(gradient_types)
