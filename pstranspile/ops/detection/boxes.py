"""Boxes: overlaps, codes relative to other boxes, and clipping.

A box is left, top, right, bottom. Boxes in pixels (`box_normalized` false) include both edges: a box from 2 to 4 is 3
wide.
"""

from __future__ import annotations

from pstranspile.ir.attributes import float32
from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.attributes import flag, int_attr, ints_attr, reals_attr, text
from pstranspile.ops.schema import FLOATS, bounded, declare, floats, ints
from pstranspile.ops.shapes import ShapeError, Types, describe, disagree, fits, one, one_or_none, shape_rule

declare(
    "iou_similarity",
    "X Y -> Out",
    {"box_normalized": True},
    rows="own",
    doc="Out = for each box of X and of Y, their common area as a share of what they cover together",
)
declare(
    "box_coder",
    "PriorBox PriorBoxVar? TargetBox -> OutputBox",
    {"code_type": "encode_center_size", "box_normalized": True, "axis": 0, "variance": floats()},
    rows="own",
    doc="OutputBox = TargetBox as distances from PriorBox in shares of its sides, or the other way round",
)
declare("box_clip", "Input ImInfo -> Output", rows="own", doc="Output = Input, cut at the edges of the images")
declare(
    "polygon_box_transform",
    "Input -> Output",
    rows="own",
    doc="Output = corners of polygons, from their distances to the places of a map a quarter of the image's size",
)
declare(
    "box_decoder_and_assign",
    "PriorBox PriorBoxVar? TargetBox BoxScore -> DecodeBox OutputAssignBox",
    {"box_clip": 4.135},
    rows="own",
    doc="DecodeBox = for each class a box from distances to PriorBox; OutputAssignBox = that of the likeliest class",
)

ENCODE = "encode_center_size"
"""The `code_type` of box_coder that encodes boxes."""

DECODE = "decode_center_size"
"""The `code_type` of box_coder that decodes boxes."""


def require_boxes(x: TensorType, slot: str) -> None:
    """Raises ShapeError unless a type is [boxes, 4]."""
    if len(x.shape) != 2 or x.shape[1] not in (4, -1):
        raise ShapeError(f"{slot} is {describe(x)}, boxes have the dims [boxes, 4]", slot)


@shape_rule("iou_similarity")
def _iou_similarity(_op: Op, types: Types) -> Types:
    x, y = one(types, "X"), one(types, "Y")
    require_boxes(x, "X")
    require_boxes(y, "Y")
    return {"Out": (x._replace(shape=(x.shape[0], y.shape[0])),)}


@shape_rule("box_coder")
def _box_coder(op: Op, types: Types) -> Types:
    prior, target, kind = one(types, "PriorBox"), one(types, "TargetBox"), text(op, "code_type")
    require_boxes(prior, "PriorBox")
    variances = one_or_none(types, "PriorBoxVar")
    if variances is not None and not fits(variances.shape, prior.shape):
        disagree("PriorBoxVar", variances, "PriorBox", prior)
    if len(reals_attr(op, "variance")) not in (0, 4):
        raise ShapeError("variance must be four numbers", "PriorBox")
    if kind == ENCODE:
        require_boxes(target, "TargetBox")
        return {"OutputBox": (TensorType(target.dtype, (target.shape[0], prior.shape[0], 4), target.lod_level),)}
    if kind != DECODE:
        raise ShapeError(f"code_type is {kind!r}, it must be {ENCODE!r} or {DECODE!r}", "PriorBox")
    axis = int_attr(op, "axis")
    if axis not in (0, 1):
        raise ShapeError(f"axis is {axis}, it must be 0 or 1", "PriorBox")
    if len(target.shape) != 3 or target.shape[2] not in (4, -1):
        disagree("TargetBox", target, "PriorBox", prior)
    like = prior if axis else target
    # as in Fluid, the number of boxes is checked at run time
    return {"OutputBox": (target._replace(lod_level=like.lod_level),)}


@shape_rule("box_clip")
def _box_clip(_op: Op, types: Types) -> Types:
    x, info = one(types, "Input"), one(types, "ImInfo")
    if x.shape[-1] not in (4, -1):
        raise ShapeError(f"Input is {describe(x)}, the last dim of boxes is 4", "Input")
    require_image_info(info)
    return {"Output": (x,)}


def require_image_info(info: TensorType) -> None:
    """Raises ShapeError unless a type is [images, 3]: height, width and scale."""
    if len(info.shape) != 2 or info.shape[1] not in (3, -1):
        raise ShapeError(f"ImInfo is {describe(info)}, it must have height, width and scale of each image", "ImInfo")


@shape_rule("polygon_box_transform")
def _polygon_box_transform(_op: Op, types: Types) -> Types:
    x = one(types, "Input")
    if len(x.shape) != 4 or (x.shape[1] % 2 and x.shape[1] > 0):
        raise ShapeError(f"Input is {describe(x)}, it must have 4 dims and an even number of channels", "Input")
    return {"Output": (x,)}


@shape_rule("box_decoder_and_assign")
def _box_decoder_and_assign(_op: Op, types: Types) -> Types:
    prior, target, score = one(types, "PriorBox"), one(types, "TargetBox"), one(types, "BoxScore")
    require_boxes(prior, "PriorBox")
    if len(target.shape) != 2 or not fits(target.shape[:1], prior.shape[:1]):
        disagree("TargetBox", target, "PriorBox", prior)
    classes = score.shape[1] if len(score.shape) == 2 else 0
    if len(score.shape) != 2 or (classes >= 0 <= target.shape[1] and target.shape[1] != 4 * classes):
        disagree("BoxScore", score, "TargetBox", target)
    return {"DecodeBox": (target._replace(lod_level=prior.lod_level),), "OutputAssignBox": (prior,)}


# Prior boxes and anchors on the grid of a feature map.
#
# A box is left, top, right, bottom.

declare(
    "prior_box",
    "Input Image -> Boxes Variances",
    {
        "min_sizes": FLOATS,
        "max_sizes": floats(),
        "aspect_ratios": FLOATS,
        "variances": bounded(FLOATS, above=0),
        "flip": True,
        "clip": True,
        "step_w": bounded(0.0, 0),
        "step_h": bounded(0.0, 0),
        "offset": 0.5,
        "min_max_aspect_ratios_order": False,
        "use_mkldnn": False,
        "use_quantizer": False,
    },
    rows="own",
    doc="Boxes = boxes of several sizes and ratios at each place of Input, as shares of Image; Variances = scales",
)
declare(
    "density_prior_box",
    "Input Image -> Boxes Variances",
    {
        "variances": bounded(FLOATS, above=0),
        "clip": True,
        "flatten_to_2d": False,
        "step_w": bounded(0.0, 0),
        "step_h": bounded(0.0, 0),
        "offset": 0.5,
        "fixed_sizes": bounded(floats(), above=0),
        "fixed_ratios": floats(),
        "densities": bounded(ints(), most=1024),
    },
    rows="own",
    doc="as prior_box, with several boxes of each size around each place",
)
declare(
    "anchor_generator",
    "Input -> Anchors Variances",
    {
        "anchor_sizes": bounded(FLOATS, above=0),
        "aspect_ratios": FLOATS,
        "variances": bounded(FLOATS, above=0),
        "stride": floats(16.0, 16.0),
        "offset": 0.5,
    },
    rows="own",
    doc="Anchors = boxes of several sizes and ratios at each place of Input, in pixels; Variances = their scales",
)

SAME_RATIO = 1e-6
"""Ratios of sides that differ by less than this count as equal."""


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
    """(type of the feature map, its height and width). Raises ShapeError for inputs that are not images."""
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
