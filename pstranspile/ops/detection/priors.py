"""Prior boxes and anchors on the grid of a feature map.

A box is left, top, right, bottom.
"""

from __future__ import annotations

from pstranspile.ir.attributes import float32
from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.attributes import flag, ints_attr, reals_attr
from pstranspile.ops.schema import FLOATS, declare, floats, ints
from pstranspile.ops.shapes import ShapeError, Types, describe, one, shape_rule

declare(
    "prior_box",
    "Input Image -> Boxes Variances",
    {
        "min_sizes": FLOATS,
        "max_sizes": floats(),
        "aspect_ratios": FLOATS,
        "variances": FLOATS,
        "flip": True,
        "clip": True,
        "step_w": 0.0,
        "step_h": 0.0,
        "offset": 0.5,
        "min_max_aspect_ratios_order": False,
        "use_mkldnn": False,
        "use_quantizer": False,
    },
    doc="Boxes = boxes of several sizes and ratios at each place of Input, as shares of Image; Variances = scales",
)
declare(
    "density_prior_box",
    "Input Image -> Boxes Variances",
    {
        "variances": FLOATS,
        "clip": True,
        "flatten_to_2d": False,
        "step_w": 0.0,
        "step_h": 0.0,
        "offset": 0.5,
        "fixed_sizes": floats(),
        "fixed_ratios": floats(),
        "densities": ints(),
    },
    doc="as prior_box, with several boxes of each size around each place",
)
declare(
    "anchor_generator",
    "Input -> Anchors Variances",
    {
        "anchor_sizes": FLOATS,
        "aspect_ratios": FLOATS,
        "variances": FLOATS,
        "stride": floats(16.0, 16.0),
        "offset": 0.5,
    },
    doc="Anchors = boxes of several sizes and ratios at each place of Input, in pixels; Variances = their scales",
)

SAME_RATIO = 1e-6
"""Ratios that differ by less are one."""


def positive(op: Op, name: str) -> tuple[float, ...]:
    """A FLOATS attribute of sizes, ratios or distances. Raises ShapeError for one that is not above 0."""
    tensor = reals_attr(op, name)
    if not all(value > 0 for value in tensor):
        raise ShapeError(f"{name} has {min(tensor)}, all must be above 0", "Input")
    return tensor


def expanded_ratios(op: Op) -> list[float]:
    """The distinct ratios of prior boxes, 1 first; with `flip` also the inverse of each (float32)."""
    result = [1.0]
    for ratio in positive(op, "aspect_ratios"):
        if all(abs(ratio - tensor) >= SAME_RATIO for tensor in result):
            result.append(ratio)
            if flag(op, "flip"):
                result.append(float32(1 / ratio))
    return result


def _places(types: Types, *slots: str) -> tuple[TensorType, tuple[int, int]]:
    """The feature map, and its height and width. Raises ShapeError for inputs that are not images."""
    for slot in slots:
        tensor = one(types, slot)
        if len(tensor.shape) != 4:
            raise ShapeError(f"{slot} is {describe(tensor)}, images have four dims", slot)
    x = one(types, "Input")
    return x, (x.shape[2], x.shape[3])


def _require_four_variances(op: Op) -> None:
    count = len(reals_attr(op, "variances"))
    if count != 4:
        raise ShapeError(f"variances has {count} numbers, a box has 4", "Input")


@shape_rule("prior_box")
def _prior_box(op: Op, types: Types) -> Types:
    x, places = _places(types, "Input", "Image")
    _require_four_variances(op)
    least, most = positive(op, "min_sizes"), reals_attr(op, "max_sizes")
    if most and (len(most) != len(least) or any(a >= b for a, b in zip(least, most, strict=False))):
        raise ShapeError("max_sizes must be as many as min_sizes, and each must be larger", "Input")
    boxes = TensorType(x.dtype, (*places, len(expanded_ratios(op)) * len(least) + len(most), 4))
    return {"Boxes": (boxes,), "Variances": (boxes,)}


@shape_rule("density_prior_box")
def _density_prior_box(op: Op, types: Types) -> Types:
    x, places = _places(types, "Input", "Image")
    _require_four_variances(op)
    densities = ints_attr(op, "densities")
    if len(densities) != len(reals_attr(op, "fixed_sizes")):
        raise ShapeError("densities must be as many as fixed_sizes", "Input")
    if any(density < 1 for density in densities):
        raise ShapeError("a density is below 1", "Input")
    count = sum(density * density for density in densities) * len(positive(op, "fixed_ratios"))
    dims = (*places, count, 4)
    if flag(op, "flatten_to_2d"):
        dims = (-1, 4)
    boxes = TensorType(x.dtype, dims)
    return {"Boxes": (boxes,), "Variances": (boxes,)}


@shape_rule("anchor_generator")
def _anchor_generator(op: Op, types: Types) -> Types:
    x, places = _places(types, "Input")
    _require_four_variances(op)
    if len(positive(op, "stride")) != 2:
        raise ShapeError("stride must be two numbers", "Input")
    count = len(reals_attr(op, "anchor_sizes")) * len(positive(op, "aspect_ratios"))
    boxes = TensorType(x.dtype, (*places, count, 4))
    return {"Anchors": (boxes,), "Variances": (boxes,)}
