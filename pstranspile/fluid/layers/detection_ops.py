"""What layers of detection share, and those that are one op each, over boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from pstranspile.fluid.graph.plain import several
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.graph.vartype import dtype_of
from pstranspile.fluid.layers.adapt import check_kind, named, one_op, renamed_all, to_core, wrap
from pstranspile.frontends.layers import basic
from pstranspile.ir.types import DType

VARIANCES = (0.1, 0.1, 0.2, 0.2)
"""Default variances of boxes: the scales of the encoded x, y, width and height."""


def made_by(
    op_type: str,
    inputs: Mapping[str, Any],
    outputs: str,
    attrs: Mapping[str, Any] | None = None,
    *,
    key: str = "",
    name: str | None = None,
    stopped: str = "",
) -> list[Any]:
    """The variables that one op writes.

    `outputs` are slots, each with its element type if that is not the first input's (`"Out Index:int32"`). Those named
    in `stopped` get no gradient; `*` means all. Inputs that are None are left out. Raises TypeError for what is no
    variable.
    """
    for slot, value in inputs.items():
        check_kind(key or op_type, slot, value, ("Variable", "Variables", "NoneType"))
    values = {slot: to_core(value) for slot, value in inputs.items() if value is not None}
    if not values:
        raise TypeError(f"{key or op_type}: there is no input")
    first = next(iter(values.values()))
    kind: DType = first[0].dtype if several(first) else first.dtype
    slots = [slot.partition(":")[::2] for slot in outputs.split()]
    written: dict[str, Any] = {slot: dtype_of(dtype) if dtype else kind for slot, dtype in slots}
    with named(name):
        made = basic.layer_outputs(op_type, values, written, attrs, key=key)
    for (slot, _), value in zip(slots, made, strict=True):
        if stopped == "*" or slot in stopped.split():
            value.stopped()
    return wrap(made)


def listed(value: Any) -> list[Any]:
    """A list of what is one, or a single thing as a list."""
    return list(value) if several(value) else [value]


def numbers(value: Any) -> list[float]:
    """A number or several, as floats. Raises TypeError for others."""
    held = listed(value)
    if not all(isinstance(item, Real) for item in held):
        raise TypeError(f"a number, or a list of numbers, is needed in place of {value!r}")
    return [float(item) for item in held]


def pair(layer: str, name: str, value: Any) -> list[float]:
    """Two numbers. Raises ValueError for another count."""
    if not several(value) or len(value) != 2:
        raise ValueError(f"{layer}: {name} must be two numbers, not {value!r}")
    return numbers(value)


iou_similarity = one_op("iou_similarity", "x, y, box_normalized=True, name=None", "X=x Y=y", attrs="box_normalized")
polygon_box_transform = one_op("polygon_box_transform", "input, name=None", "Input=input", "Output")
box_clip = one_op("box_clip", "input, im_info, name=None", "Input=input ImInfo=im_info", "Output")
box_decoder_and_assign = one_op(
    "box_decoder_and_assign",
    "prior_box, prior_box_var, target_box, box_score, box_clip, name=None",
    "PriorBox=prior_box PriorBoxVar=prior_box_var TargetBox=target_box BoxScore=box_score",
    "DecodeBox OutputAssignBox*",
    "box_clip",
)
renamed_all({name: value for name, value in globals().items() if getattr(value, "__signature__", None) is not None})


def box_coder(
    prior_box: Any,
    prior_box_var: Any,
    target_box: Any,
    code_type: str = "encode_center_size",
    box_normalized: bool = True,
    name: str | None = None,
    axis: int = 0,
) -> Any:
    """Boxes as distances from prior boxes in shares of their sides, or the other way round.

    `prior_box_var` scales the distances: four numbers, or a variable with four for each prior box. Raises TypeError
    for what is neither.
    """
    inputs, attrs = {"PriorBox": prior_box, "PriorBoxVar": None, "TargetBox": target_box}, dict[str, Any]()
    if isinstance(prior_box_var, Variable):
        inputs["PriorBoxVar"] = prior_box_var
    elif isinstance(prior_box_var, list):
        attrs["variance"] = numbers(prior_box_var)
    else:
        kind = type(prior_box_var).__name__
        raise TypeError(f"box_coder: prior_box_var must be a variable or a list of four numbers, not {kind}")
    attrs |= {"code_type": code_type, "box_normalized": box_normalized, "axis": axis}
    return made_by("box_coder", inputs, "OutputBox", attrs, name=name)[0]


def bipartite_match(dist_matrix: Any, match_type: Any = None, dist_threshold: Any = None, name: Any = None) -> Any:
    """For each column of likenesses the row that it is matched with, or -1, and how alike both are."""
    given = {"match_type": match_type, "dist_threshold": dist_threshold}
    attrs = {name: value for name, value in given.items() if value is not None}
    made = made_by(
        "bipartite_match",
        {"DistMat": dist_matrix},
        "ColToRowMatchIndices:int32 ColToRowMatchDist",
        attrs,
        name=name,
    )
    return tuple(made)


def target_assign(
    input: Any,
    matched_indices: Any,
    negative_indices: Any = None,
    mismatch_value: Any = None,
    name: str | None = None,
) -> Any:
    """The row of `input` that each box is matched with, or `mismatch_value`, and whether the box counts."""
    inputs = {"X": input, "MatchIndices": matched_indices, "NegIndices": negative_indices}
    attrs = {"mismatch_value": mismatch_value or 0}
    return tuple(made_by("target_assign", inputs, "Out OutWeight:float32", attrs, name=name))


def anchor_generator(
    input: Any,
    anchor_sizes: Any = None,
    aspect_ratios: Any = None,
    variance: Sequence[float] = VARIANCES,
    stride: Any = None,
    offset: float = 0.5,
    name: str | None = None,
) -> Any:
    """Boxes of several sizes and ratios at each place, in pixels, and their variances. Raises ValueError for a stride
    that is not two numbers.
    """
    attrs = {
        "anchor_sizes": numbers(anchor_sizes),
        "aspect_ratios": numbers(aspect_ratios),
        "variances": numbers(variance),
        "stride": pair("anchor_generator", "stride", stride),
        "offset": offset,
    }
    made = made_by("anchor_generator", {"Input": input}, "Anchors Variances", attrs, name=name, stopped="*")
    return tuple(made)


def prior_box(
    input: Any,
    image: Any,
    min_sizes: Any,
    max_sizes: Any = None,
    aspect_ratios: Any = (1.0,),
    variance: Sequence[float] = VARIANCES,
    flip: bool = False,
    clip: bool = False,
    steps: Any = (0.0, 0.0),
    offset: float = 0.5,
    name: str | None = None,
    min_max_aspect_ratios_order: bool = False,
) -> Any:
    """Boxes of several sizes and ratios at each place, as shares of the image, and their variances.

    Raises ValueError for steps that are not two numbers.
    """
    across, down = pair("prior_box", "steps", steps)
    attrs = {
        "min_sizes": numbers(min_sizes),
        "aspect_ratios": numbers(aspect_ratios),
        "variances": numbers(variance),
        "flip": flip,
        "clip": clip,
        "step_w": across,
        "step_h": down,
        "offset": offset,
        "min_max_aspect_ratios_order": min_max_aspect_ratios_order,
    }
    largest = [] if max_sizes is None else numbers(max_sizes)
    if largest and largest[0] > 0:
        attrs["max_sizes"] = largest
    inputs = {"Input": input, "Image": image}
    return tuple(made_by("prior_box", inputs, "Boxes Variances", attrs, name=name, stopped="*"))


def density_prior_box(
    input: Any,
    image: Any,
    densities: Any = None,
    fixed_sizes: Any = None,
    fixed_ratios: Any = None,
    variance: Sequence[float] = VARIANCES,
    clip: bool = False,
    steps: Any = (0.0, 0.0),
    offset: float = 0.5,
    flatten_to_2d: bool = False,
    name: str | None = None,
) -> Any:
    """Boxes as by `prior_box`, with a grid of density x density boxes of each size around each place.

    Raises TypeError for densities, sizes or ratios that are no list, ValueError for lists that don't fit.
    """
    given = {"densities": densities, "fixed_sizes": fixed_sizes, "fixed_ratios": fixed_ratios}
    for what, value in given.items():
        if not several(value):
            raise TypeError(f"density_prior_box: {what} must be a list or a tuple, not {type(value).__name__}")
    if len(densities) != len(fixed_sizes):
        raise ValueError("density_prior_box: densities and fixed_sizes must be as many")
    across, down = pair("density_prior_box", "steps", steps)
    attrs = {
        "variances": numbers(variance),
        "clip": clip,
        "step_w": across,
        "step_h": down,
        "offset": offset,
        "densities": [int(density) for density in densities],
        "fixed_sizes": numbers(fixed_sizes),
        "fixed_ratios": numbers(fixed_ratios),
        "flatten_to_2d": flatten_to_2d,
    }
    inputs = {"Input": input, "Image": image}
    return tuple(made_by("density_prior_box", inputs, "Boxes Variances", attrs, name=name, stopped="*"))


def yolov3_loss(
    x: Any,
    gt_box: Any,
    gt_label: Any,
    anchors: Any,
    anchor_mask: Any,
    class_num: int,
    ignore_thresh: float,
    downsample_ratio: int,
    gt_score: Any = None,
    use_label_smooth: bool = True,
    name: str | None = None,
    scale_x_y: float = 1.0,
) -> Any:
    """For each image how far a grid is from the objects in it (YOLOv3).

    Raises TypeError for anchors or a mask that are no list.
    """
    for what, value in {"anchors": anchors, "anchor_mask": anchor_mask}.items():
        if not several(value):
            raise TypeError(f"yolov3_loss: {what} must be a list or a tuple, not {type(value).__name__}")
    attrs = {
        "anchors": listed(anchors),
        "anchor_mask": listed(anchor_mask),
        "class_num": class_num,
        "ignore_thresh": ignore_thresh,
        "downsample_ratio": downsample_ratio,
        "use_label_smooth": use_label_smooth,
        "scale_x_y": scale_x_y,
    }
    inputs = {"X": x, "GTBox": gt_box, "GTLabel": gt_label, "GTScore": gt_score}
    made = made_by("yolov3_loss", inputs, "Loss ObjectnessMask:int32 GTMatchMask:int32", attrs, name=name)
    to_core(made[1]).declared((x.shape[0], len(anchor_mask), *x.shape[2:]))
    return made[0]


def yolo_box(
    x: Any,
    img_size: Any,
    anchors: Any,
    class_num: int,
    conf_thresh: float,
    downsample_ratio: int,
    clip_bbox: bool = True,
    name: str | None = None,
    scale_x_y: float = 1.0,
) -> Any:
    """The boxes that a grid has found, in pixels, and how likely each class is. Raises TypeError for anchors that
    are no list.
    """
    if not several(anchors):
        raise TypeError(f"yolo_box: anchors must be a list or a tuple, not {type(anchors).__name__}")
    attrs = {
        "anchors": listed(anchors),
        "class_num": class_num,
        "conf_thresh": conf_thresh,
        "downsample_ratio": downsample_ratio,
        "clip_bbox": clip_bbox,
        "scale_x_y": scale_x_y,
    }
    return tuple(made_by("yolo_box", {"X": x, "ImgSize": img_size}, "Boxes Scores", attrs, name=name))
