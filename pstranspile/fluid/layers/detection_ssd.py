"""The head and the loss of an SSD (arXiv 1512.02325)."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor
from typing import Any, NamedTuple

from pstranspile.fluid.graph.plain import several
from pstranspile.fluid.layers import loss as losses
from pstranspile.fluid.layers import nn, tensor
from pstranspile.fluid.layers.adapt import to_core, wrap
from pstranspile.fluid.layers.detection_ops import (
    VARIANCES,
    bipartite_match,
    box_coder,
    iou_similarity,
    listed,
    made_by,
    prior_box,
    target_assign,
)
from pstranspile.frontends.layers import basic

_LAYERS: Any = vars(nn)


def _reshaped_as(value: Any, dims: Any) -> Any:
    """A value with its first dim as it is in a run: that of a vector of dims."""
    core = to_core(value)
    inputs = {"X": core, "Shape": to_core(dims).stopped()}
    outputs = {"Out": core.dtype, "XShape": core.dtype}
    made = basic.layer_outputs("reshape2", inputs, outputs, {"shape": [-1, 0]})
    return wrap(made[0].declared((-1, *core.shape[1:])))


def _stopped(value: Any) -> Any:
    value.stop_gradient = True
    return value


def _rows(value: Any) -> Any:
    """The last dim of a value, row by row."""
    return nn.flatten(value, axis=2)


class _Matched(NamedTuple):
    """The boxes that have an object, those without that count, the labels, the scores row by row, and their dims."""

    indices: Any
    negative: Any
    labels: Any
    rows: Any
    dims: Any


def _mined(
    confidence: Any, dims: Any, label: Any, matched: tuple[Any, Any], background: int, attrs: dict[str, Any]
) -> _Matched:
    """Of the boxes without object those with the largest losses."""
    indices, alike = matched
    labels = _stopped(nn.reshape(label, [0] * (len(label.shape) - 1) + [-1, 1]))
    wanted, _ = target_assign(labels, indices, mismatch_value=background)
    rows = _rows(confidence)
    wanted = _stopped(_rows(tensor.cast(wanted, "int64")))
    sure = losses.softmax_with_cross_entropy(rows, wanted)
    first = _stopped(nn.slice(dims, [0], [0], [2]))
    sure = _stopped(_reshaped_as(sure, first))
    inputs = {"ClsLoss": sure, "MatchIndices": indices, "MatchDist": alike}
    slots = "NegIndices:int32 UpdatedMatchIndices:int32"
    negative, indices = made_by("mine_hard_examples", inputs, slots, attrs, key="ssd_loss")
    return _Matched(indices, negative, labels, rows, first)


def ssd_loss(
    location: Any,
    confidence: Any,
    gt_box: Any,
    gt_label: Any,
    prior_box: Any,
    prior_box_var: Any = None,
    background_label: int = 0,
    overlap_threshold: float = 0.5,
    neg_pos_ratio: float = 3.0,
    neg_overlap: float = 0.5,
    loc_loss_weight: float = 1.0,
    conf_loss_weight: float = 1.0,
    match_type: str = "per_prediction",
    mining_type: str = "max_negative",
    normalize: bool = True,
    sample_size: int | None = None,
) -> Any:
    """For each image the loss [images, 1] of where boxes are and of what they show.

    Objects are `gt_box` [objects, 4] and `gt_label` [objects, 1], a sequence for each image. Raises ValueError for a
    `mining_type` that is not `max_negative`.
    """
    if mining_type != "max_negative":
        raise ValueError(f"ssd_loss: mining_type must be 'max_negative', not {mining_type!r}")
    attrs = {
        "neg_pos_ratio": neg_pos_ratio,
        "neg_dist_threshold": neg_overlap,
        "mining_type": mining_type,
        "sample_size": sample_size or 0,
    }
    dims = nn.shape(confidence)
    matched = bipartite_match(iou_similarity(gt_box, prior_box), match_type, overlap_threshold)
    of = _mined(confidence, dims, gt_label, matched, background_label, attrs)
    codes = box_coder(prior_box, prior_box_var, gt_box, "encode_center_size")
    places, counts = target_assign(codes, of.indices, mismatch_value=background_label)
    wanted, weight = target_assign(of.labels, of.indices, of.negative, background_label)
    wanted = _stopped(tensor.cast(_rows(wanted), "int64"))
    what = losses.softmax_with_cross_entropy(of.rows, wanted)
    what = what * _stopped(_rows(weight))
    predicted = _rows(location)
    where = nn.smooth_l1(predicted, _stopped(_rows(places)))
    counts = _stopped(_rows(counts))
    where = where * counts
    loss = _reshaped_as(conf_loss_weight * what + loc_loss_weight * where, of.dims)
    loss = _LAYERS["reduce_sum"](loss, dim=1, keep_dim=True)
    return loss / _LAYERS["reduce_sum"](counts) if normalize else loss


class _Priors(NamedTuple):
    """What the prior boxes of all layers share."""

    variance: Sequence[float]
    flip: bool
    clip: bool
    offset: float
    ordered: bool


def _sizes_of_ratios(count: int, base: int, least: int, most: int) -> tuple[list[float], list[float]]:
    """Sizes for each of the layers: a tenth and a fifth of the base for the first, then evenly between ratios in
    percent.
    """
    step = floor((most - least) / (count - 2))
    ratios = range(least, most + 1, step)
    smallest = [base * 0.1, *(base * ratio / 100.0 for ratio in ratios)]
    return smallest, [base * 0.2, *(base * (ratio + step) / 100.0 for ratio in ratios)]


def _per_layer(name: str, value: Any, count: int) -> list[Any]:
    if not several(value) or len(value) != count:
        raise ValueError(f"multi_box_head: {name} must be a list with one entry for each of {count} inputs")
    return list(value)


def multi_box_head(
    inputs: Any,
    image: Any,
    base_size: int,
    num_classes: int,
    aspect_ratios: Any,
    min_ratio: int | None = None,
    max_ratio: int | None = None,
    min_sizes: Any = None,
    max_sizes: Any = None,
    steps: Any = None,
    step_w: Any = None,
    step_h: Any = None,
    offset: float = 0.5,
    variance: Sequence[float] = VARIANCES,
    flip: bool = True,
    clip: bool = False,
    kernel_size: Any = 1,
    pad: Any = 0,
    stride: Any = 1,
    name: str | None = None,
    min_max_aspect_ratios_order: bool = False,
) -> Any:
    """Codes of boxes [images, boxes, 4], scores [images, boxes, classes], prior boxes and their variances [boxes, 4].

    They come from several feature maps, each with prior boxes of its own. Raises ValueError for settings that are not
    there for each of them.
    """
    if not several(inputs):
        raise ValueError("multi_box_head: inputs must be a list of variables")
    count = len(inputs)
    if min_sizes is None and max_sizes is None:
        if count <= 2 or min_ratio is None or max_ratio is None:
            raise ValueError(
                "multi_box_head: up to two inputs need min_sizes and max_sizes, others these or the ratios"
            )
        min_sizes, max_sizes = _sizes_of_ratios(count, base_size, min_ratio, max_ratio)
    smallest = _per_layer("min_sizes", min_sizes, count)
    largest = [None] * count if not max_sizes else _per_layer("max_sizes", max_sizes, count)
    ratios = _per_layer("aspect_ratios", aspect_ratios, count)
    apart = (steps or step_w, steps or step_h)
    across, down = (_per_layer("steps", held, count) if held else [0.0] * count for held in apart)
    settings = _Priors(variance, flip, clip, offset, min_max_aspect_ratios_order)
    sizes, distances = zip(smallest, largest, ratios, strict=True), zip(across, down, strict=True)
    made = [
        _head(x, image, num_classes, of, apart, settings, (kernel_size, stride, pad))
        for x, of, apart in zip(inputs, sizes, distances, strict=True)
    ]
    return _joined(made, num_classes)


def _head(
    x: Any, image: Any, classes: int, sizes: tuple[Any, Any, Any], steps: tuple[float, float], of: _Priors, conv: Any
) -> tuple[Any, Any, Any, Any]:
    """Codes and scores of one feature map, each image a row, and its prior boxes."""
    least, most, ratios = sizes
    most = most if most is None else listed(most)
    boxes, variances = prior_box(
        x, image, listed(least), most, listed(ratios), of.variance, of.flip, of.clip, steps, of.offset, None, of.ordered
    )
    size, stride, pad = conv
    rows: list[Any] = []
    for width in (4, classes):
        found = nn.conv2d(x, boxes.shape[2] * width, size, padding=pad, stride=stride)
        rows.append(nn.flatten(nn.transpose(found, [0, 2, 3, 1]), axis=1))
    return rows[0], rows[1], boxes, variances


def _joined(made: list[tuple[Any, Any, Any, Any]], classes: int) -> tuple[Any, Any, Any, Any]:
    """What all feature maps give together. As in Fluid a single one gives what it has."""
    if len(made) == 1:
        codes, scores, boxes, variances = made[0]
    else:
        priors = [(nn.flatten(boxes, axis=3), nn.flatten(variances, axis=3)) for _, _, boxes, variances in made]
        boxes, variances = (tensor.concat([pair[number] for pair in priors]) for number in (0, 1))
        codes = nn.reshape(tensor.concat([each[0] for each in made], axis=1), [0, -1, 4])
        scores = nn.reshape(tensor.concat([each[1] for each in made], axis=1), [0, -1, classes])
    boxes.stop_gradient = variances.stop_gradient = True
    return codes, scores, boxes, variances
