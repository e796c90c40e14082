"""Ops that find objects in images: what recordings of Fluid can't say, which are refusals, results without rows, and
samples that are drawn.
"""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from pstranspile.ir.attributes import Floats, Ints
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ops.shapes import ShapeError
from pstranspile.runtime.values import LoDTensor
from tests.ops.computing import compute
from tests.ops.typed import infer

BOXES = np.float32([[0, 0, 4, 4], [1, 1, 5, 5], [8, 8, 12, 12]])
SCORES = np.float32([[[0.9, 0.8, 0.7]]])
NMS: dict[str, Any] = {
    "score_threshold": 0.1,
    "nms_top_k": -1,
    "keep_top_k": -1,
    "nms_threshold": 0.3,
    "background_label": -1,
}
FEW = LoDTensor(BOXES, [[0, 3]])
CROWD = LoDTensor(np.zeros((3, 1), "int32"), [[0, 3]])
CLASSES = LoDTensor(np.ones((3, 1), "int32"), [[0, 3]])
INFO = np.float32([[20, 20, 1]])
YOLO = {"anchors": Ints([10, 12]), "anchor_mask": Ints([0]), "class_num": 2, "downsample_ratio": 8}
GRID = np.zeros((1, 7, 2, 2), "float32")
OBJECT = np.float32([[[0.5, 0.5, 0.2, 0.2]]])
FEATURES = np.zeros((1, 4, 5, 5), "float32")

REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any], str, str]] = {
    "polygons": (
        "multiclass_nms",
        {"BBoxes": np.zeros((1, 3, 8), "float32"), "Scores": SCORES},
        NMS,
        "Out",
        "boxes of 8 numbers are polygons",
    ),
    "images": (
        "multiclass_nms",
        {"BBoxes": BOXES[None].repeat(2, axis=0), "Scores": SCORES},
        NMS,
        "Out",
        "BBoxes has 2 sequences for 1 images",
    ),
    "no sequences": ("roi_align", {"X": FEATURES, "ROIs": BOXES}, {}, "Out", "ROIs has no LoD"),
    "other images": (
        "roi_pool",
        {"X": FEATURES, "ROIs": LoDTensor(BOXES, [[0, 1, 3]])},
        {},
        "Out",
        r"the offsets \[0, 1, 3\] for 1 images",
    ),
    "priors": (
        "box_coder",
        {"PriorBox": BOXES, "TargetBox": np.zeros((2, 5, 4), "float32")},
        {"code_type": "decode_center_size"},
        "OutputBox",
        "PriorBox has 3 boxes, TargetBox 5",
    ),
    "label": (
        "yolov3_loss",
        {"X": GRID, "GTBox": OBJECT, "GTLabel": np.int32([[2]])},
        YOLO,
        "Loss",
        "the label 2 is not in 0 to 1",
    ),
    "outside": (
        "yolov3_loss",
        {"X": GRID, "GTBox": OBJECT + 0.5, "GTLabel": np.int32([[1]])},
        YOLO,
        "Loss",
        "the middle of a box lies in the place 2",
    ),
    "crowd": (
        "rpn_target_assign",
        {"Anchor": BOXES, "GtBoxes": FEW, "IsCrowd": LoDTensor(np.zeros((2, 1), "int32"), [[0, 2]]), "ImInfo": INFO},
        {"rpn_straddle_thresh": 0.0},
        "LocationIndex",
        "image 0 has 3 boxes, and 2 rows of IsCrowd",
    ),
    "scale": (
        "distribute_fpn_proposals",
        {"FpnRois": FEW},
        {"min_level": 2, "max_level": 2, "refer_level": 2, "refer_scale": 0},
        "MultiFpnRois",
        "refer_scale is 0",
    ),
    "polygons of objects": (
        "generate_mask_labels",
        {
            "ImInfo": INFO,
            "GtClasses": CLASSES,
            "IsCrowd": CROWD,
            "GtSegms": LoDTensor(np.zeros((4, 2), "float32"), [[0, 1], [0, 4]]),
            "Rois": FEW,
            "LabelsInt32": CLASSES,
        },
        {"num_classes": 2, "resolution": 4},
        "MaskInt32",
        "GtSegms must have three levels",
    ),
    "classes": (
        "detection_map",
        {
            "DetectRes": LoDTensor(np.float32([[3, 0.5, 0, 0, 1, 1]]), [[0, 1]]),
            "Label": LoDTensor(np.float32([[1, 0, 0, 1, 1]]), [[0, 1]]),
        },
        {"class_num": 2},
        "MAP",
        "the label 3 is not in 0 to 1",
    ),
    "moves": (
        "deformable_psroi_pooling",
        {"Input": FEATURES, "ROIs": FEW, "Trans": np.zeros((3, 2, 2, 2), "float32")},
        {
            "no_trans": False,
            "spatial_scale": 1.0,
            "output_dim": 4,
            "group_size": Ints([1, 1]),
            "pooled_height": 1,
            "pooled_width": 1,
            "part_size": Ints([1, 1]),
            "sample_per_part": 1,
            "trans_std": 0.1,
        },
        "Output",
        r"Trans has the dims \[3, 2, 2, 2\]",
    ),
    "offsets": (
        "deformable_conv_v1",
        {"Input": FEATURES, "Offset": np.zeros((1, 8, 2, 2), "float32"), "Filter": np.zeros((2, 4, 2, 2), "float32")},
        {},
        "Output",
        "offsets and mask are not for 1 parts of windows",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str):
    op_type, inputs, attrs, slot, message = REFUSED[what]
    with pytest.raises(DiagnosticError, match=message):
        compute(op_type, inputs, {slot: "out"}, attrs)


SHAPES: dict[str, tuple[str, dict[str, str], dict[str, Any], str]] = {
    "sizes": (
        "prior_box",
        {"Input": "f32[1, 4, 2, 2]", "Image": "f32[1, 3, 8, 8]"},
        {
            "min_sizes": Floats([4]),
            "max_sizes": Floats([4]),
            "aspect_ratios": Floats([1]),
            "variances": Floats([1] * 4),
        },
        "each must be larger",
    ),
    "ratio": (
        "anchor_generator",
        {"Input": "f32[1, 4, 2, 2]"},
        {"anchor_sizes": Floats([4]), "aspect_ratios": Floats([0]), "variances": Floats([1] * 4)},
        "aspect_ratios has 0",
    ),
    "boxes": ("iou_similarity", {"X": "f32[3, 4]", "Y": "f32[3, 5]"}, {}, "boxes have the dims"),
    "code": ("box_coder", {"PriorBox": "f32[3, 4]", "TargetBox": "f32[3, 4]"}, {"code_type": "both"}, "it must be"),
    "match": ("bipartite_match", {"DistMat": "f32[3, 4]"}, {"match_type": "all"}, "'bipartite' or 'per_prediction'"),
    "mask": (
        "yolov3_loss",
        {"X": "f32[1, 7, 2, 2]", "GTBox": "f32[1, 1, 4]", "GTLabel": "i32[1, 1]"},
        {**YOLO, "anchor_mask": Ints([1])},
        "anchors are numbered from 0 to 0",
    ),
    "channels": (
        "psroi_pool",
        {"X": "f32[1, 7, 2, 2]", "ROIs": "f32[3, 4]"},
        {"output_channels": 2, "pooled_height": 2, "pooled_width": 2},
        r"it must have 2 \* 2 \* 2 channels",
    ),
}


@pytest.mark.parametrize("what", SHAPES)
def test_shapes_that_do_not_fit(what: str):
    op_type, inputs, attrs, message = SHAPES[what]
    with pytest.raises(ShapeError, match=message):
        infer(op_type, inputs, attrs)


def test_no_box_is_a_single_number_or_no_row():
    inputs, attrs = {"BBoxes": BOXES[None], "Scores": SCORES}, {**NMS, "score_threshold": 0.95}
    found = compute("multiclass_nms", inputs, {"Out": "out"}, attrs).find("out")
    assert (found.data.tolist(), found.lod) == ([[-1.0]], [[0, 1]])
    frame = compute("multiclass_nms2", inputs, {"Out": "out", "Index": "index"}, attrs)
    assert [frame.find(name).data.shape for name in ("out", "index")] == [(0, 6), (0, 1)]
    assert frame.find("out").lod == [[0, 0]]


def test_anchors_are_drawn_anew_in_every_step_and_as_many_as_wanted():
    anchors = np.float32([[x, y, x + 3, y + 3] for x in range(10) for y in range(10)])
    inputs = {"Anchor": anchors, "GtBoxes": LoDTensor(BOXES[:1], [[0, 1]]), "ImInfo": INFO}
    inputs["IsCrowd"] = LoDTensor(np.zeros((1, 1), "int32"), [[0, 1]])
    attrs = {"rpn_batch_size_per_im": 6, "rpn_straddle_thresh": 0.0, "use_random": True}
    drawn = [
        compute("rpn_target_assign", inputs, {"ScoreIndex": "at"}, attrs, step=step).find("at").data
        for step in range(3)
    ]
    assert [len(np.unique(places)) for places in drawn] == [6, 6, 6]
    assert len({tuple(places) for places in drawn}) > 1
    again = compute("rpn_target_assign", inputs, {"ScoreIndex": "at"}, attrs, step=2).find("at").data
    np.testing.assert_array_equal(again, drawn[2])


def test_an_image_without_objects_trains_no_box():
    empty = LoDTensor(np.zeros((0, 4), "float32"), [[0, 0]])
    inputs = {"Anchor": BOXES, "GtBoxes": empty, "IsCrowd": LoDTensor(np.zeros((0, 1), "int32"), [[0, 0]])}
    outputs = {"LocationIndex": "boxes", "TargetLabel": "labels"}
    attrs = {"rpn_straddle_thresh": 0.0, "use_random": False}
    frame = compute("rpn_target_assign", {**inputs, "ImInfo": INFO}, outputs, attrs)
    assert (len(frame.find("boxes").data), frame.find("labels").data.ravel().tolist()) == (0, [0, 0, 0])


def test_proposals_are_sampled():
    rois = LoDTensor(np.float32([[x, 0, x + 4, 4] for x in range(12)]), [[0, 12]])
    inputs = {"RpnRois": rois, "GtClasses": CLASSES, "IsCrowd": CROWD, "GtBoxes": FEW, "ImInfo": INFO}
    attrs = {"batch_size_per_im": 4, "fg_fraction": 0.5, "fg_thresh": 0.5, "bg_thresh_hi": 0.5, "bg_thresh_lo": 0.0}
    attrs |= {"bbox_reg_weights": Floats([1] * 4), "class_nums": 2}
    frame = compute("generate_proposal_labels", inputs, {"Rois": "rois", "LabelsInt32": "labels"}, attrs)
    assert frame.find("labels").data.ravel().tolist() == [1, 1, 0, 0]
    assert frame.find("rois").lod == [[0, 4]]


def test_samples_of_large_regions_take_memory_by_the_result_and_not_by_their_number():
    """A region of the whole feature map has a sample for each pixel of each channel, some 100 MB here."""
    x = np.random.default_rng(1).normal(size=(1, 256, 80, 80)).astype("float32")
    rois = LoDTensor(np.float32([[0, 0, 79, 79]]), [[0, 1]])
    attrs = {"pooled_height": 2, "pooled_width": 2, "spatial_scale": 1.0, "sampling_ratio": -1}
    tracemalloc.start()
    try:
        out = compute("roi_align", {"X": x, "ROIs": rois}, {"Out": "Out"}, attrs).find("Out")
        compute("roi_align_grad", {"X": x, "ROIs": rois, "Out@GRAD": out}, {"X@GRAD": "G"}, attrs)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 6 * x.nbytes
    edges = x[0, :, :40, :40].astype("float64")
    assert np.allclose(out[0, :, 0, 0], edges.mean(axis=(1, 2)), atol=0.02)


def test_a_region_far_larger_than_its_image_is_refused():
    rois = LoDTensor(np.float32([[0, 0, 1e6, 1e6]]), [[0, 1]])
    attrs = {"pooled_height": 2, "pooled_width": 2, "spatial_scale": 1.0, "sampling_ratio": -1}
    with pytest.raises(DiagnosticError, match=r"region 0 of ROIs has 1,000,000 x 1,000,000 pixels.* has 5 x 5 pixels"):
        compute("roi_align", {"X": FEATURES, "ROIs": rois}, {"Out": "Out"}, attrs)


ENDLESS = {
    "hash": ("hash", {"X": np.ones((2, 2), "int64")}, "Out", {"num_hash": 1 << 30}, "num_hash is 1073741824"),
    "spectral_norm": (
        "spectral_norm",
        {"Weight": np.ones((2, 2)), "U": np.ones(2), "V": np.ones(2)},
        "Out",
        {"power_iters": 1 << 30},
        "power_iters is 1073741824",
    ),
    "density_prior_box": (
        "density_prior_box",
        {"Input": FEATURES, "Image": FEATURES},
        "Boxes",
        {"densities": Ints([1 << 30]), "fixed_sizes": Floats([1.0]), "variances": Floats([0.1] * 4)},
        "densities has 1073741824",
    ),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_attributes_that_ask_for_turns_without_end_are_refused(what: str):
    op_type, inputs, slot, attrs, told = ENDLESS[what]
    with pytest.raises(DiagnosticError, match=told):
        compute(op_type, inputs, {slot: slot}, attrs)


def test_boxes_have_as_many_levels_as_the_op_has_outputs():
    attrs = {"min_level": 2, "max_level": 1 << 30, "refer_level": 4, "refer_scale": 224}
    found = compute("distribute_fpn_proposals", {"FpnRois": FEW}, {"MultiFpnRois": "Level"}, attrs)
    assert len(found.find("Level").data) == 3
