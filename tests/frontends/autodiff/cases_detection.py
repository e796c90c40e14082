"""What is drawn for the ops that find objects in images, so that their gradients can be checked."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

import pstranspile as ps
from tests.frontends.autodiff.cases import Draw, case, distinct, smooth
from tests.frontends.autodiff.numeric import Case


def regions(draw: Draw, random: np.random.Generator, images: int, side: float) -> ps.LoDTensor:
    """Boxes of images, from one to three each; their corners lie near no pixel's edge."""
    counts = [draw(st.integers(1, 3)) for _ in range(images)]
    low = np.floor(random.uniform(-1, side - 2, size=(sum(counts), 2))) + random.uniform(
        0.2, 0.4, size=(sum(counts), 2)
    )
    high = low + np.floor(random.uniform(1, side, size=low.shape)) + random.uniform(0.1, 0.15, size=low.shape)
    return ps.LoDTensor(np.concatenate([low, high], axis=1), [[0, *map(int, np.cumsum(counts))]])


@case("yolov3_loss")
def _yolov3_loss(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    """No two objects are in one place, where only the last would count, and no place is near the threshold."""
    classes, side = draw(st.integers(1, 3)), 4
    middles = (random.permutation(side * side)[:3, None] // [1, side] % side + random.uniform(0.2, 0.8, (3, 2))) / side
    boxes = np.concatenate([middles, random.uniform(0.1, 0.5, (3, 2))], axis=1)[None]
    inputs = {
        "X": smooth(random, (1, 2 * (5 + classes), side, side), -0.8, 0.8),
        "GTBox": boxes,
        "GTLabel": random.integers(0, classes, (1, 3)).astype("int32"),
        "GTScore": random.uniform(0.5, 1, (1, 3)),
    }
    attrs: dict[str, object] = {"anchors": [10, 13, 16, 30, 33, 23], "anchor_mask": [0, 2], "class_num": classes}
    attrs |= {"ignore_thresh": 0.999, "downsample_ratio": 8, "use_label_smooth": draw(st.booleans())}
    return Case(op_type, inputs, attrs, outputs={"Loss": 1}, others=("ObjectnessMask", "GTMatchMask"))


@case("roi_pool", "roi_align", "psroi_pool")
def _region(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    height, width = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    attrs: dict[str, object] = {"pooled_height": height, "pooled_width": width}
    attrs["spatial_scale"] = draw(st.sampled_from([1.0, 0.5]))
    channels = 2
    if op_type == "psroi_pool":
        attrs["output_channels"], channels = 2, 2 * height * width
    if op_type == "roi_align":
        attrs["sampling_ratio"] = draw(st.sampled_from([-1, 1, 2]))
    inputs = {"X": distinct(random, (2, channels, 5, 6)), "ROIs": regions(draw, random, 2, 6.0)}
    return Case(op_type, inputs, attrs, others=("Argmax",) if op_type == "roi_pool" else ())


@case("prroi_pool")
def _precise_region(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    attrs: dict[str, object] = {"pooled_height": draw(st.integers(1, 3)), "pooled_width": draw(st.integers(1, 3))}
    rois = regions(draw, random, 2, 6.0)
    rois.data[:] += random.uniform(0, 0.01, rois.data.shape)
    inputs = {"X": smooth(random, (2, 2, 5, 6)), "ROIs": rois}
    return Case(op_type, inputs, {**attrs, "spatial_scale": 0.5}, wrt=("X",))


@case("deformable_conv", "deformable_conv_v1")
def _deformable_conv(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    groups, parts, padding = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(0, 1))
    size, height, width = draw(st.integers(1, 2)), 3, 4
    dims = (height + 2 * padding - size + 1, width + 2 * padding - size + 1)
    count = parts * size * size
    between = random.integers(-1, 2, (1, 2 * count, *dims)) + random.uniform(0.2, 0.8, (1, 2 * count, *dims))
    inputs = {"Input": smooth(random, (1, 2 * groups * parts, height, width)), "Offset": between}
    if op_type == "deformable_conv":
        inputs["Mask"] = smooth(random, (1, count, *dims))
    inputs["Filter"] = smooth(random, (2 * groups, 2 * parts, size, size))
    attrs: dict[str, object] = {"groups": groups, "deformable_groups": parts, "paddings": [padding, padding]}
    return Case(op_type, inputs, attrs, wrt=tuple(inputs), outputs={"Output": 1})


@case("deformable_psroi_pooling")
def _moved_region(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    height, width, classes = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    rois = regions(draw, random, 2, 6.0)
    inputs = {"Input": smooth(random, (2, 2 * classes, 6, 7)), "ROIs": rois}
    inputs["Trans"] = smooth(random, (len(rois.data), 2 * classes, height, width), 0.1, 0.4)
    attrs: dict[str, object] = {"pooled_height": height, "pooled_width": width, "output_dim": 2 * classes}
    attrs |= {"part_size": [height, width], "group_size": [1, 1], "sample_per_part": 2, "trans_std": 0.13}
    attrs |= {"no_trans": False, "spatial_scale": 1.0}
    return Case(op_type, inputs, attrs, wrt=("Input", "Trans"), outputs={"Output": 1}, others=("TopCount",))
