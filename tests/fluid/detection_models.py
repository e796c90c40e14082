"""Small programs of the layers of detection, as scripts of Fluid make them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pstranspile import fluid

L: Any = fluid.layers
MODELS: dict[str, Callable[[], Any]] = {}


def model(function: Callable[[], Any]) -> Callable[[], Any]:
    MODELS[function.__name__] = function
    return function


def img(name: str = "image", c: int = 3, h: int = 32, w: int = 32) -> Any:
    return L.data(name=name, shape=[c, h, w], dtype="float32")


def d(name: str, shape: list[int], dtype: str = "float32", lod: int = 0) -> Any:
    return fluid.data(name, shape, dtype, lod_level=lod)


def trained(value: Any) -> Any:
    fluid.optimizer.SGD(0.1).minimize(L.mean(value))
    return value


@model
def prior() -> Any:
    return L.prior_box(
        L.conv2d(img(), 4, 3),
        img("i2"),
        min_sizes=[4.0, 8.0],
        max_sizes=[6.0, 12.0],
        aspect_ratios=[2.0],
        flip=True,
        clip=True,
        steps=[3.0, 4.0],
    )


@model
def density() -> Any:
    return L.density_prior_box(
        img("f", 8, 4, 4), img("i2"), densities=[4, 2], fixed_sizes=[8.0, 4.0], fixed_ratios=[1.0], clip=True
    )


@model
def density_flat() -> Any:
    return L.density_prior_box(
        img("f", 8, 4, 4),
        img("i2"),
        densities=[4, 2],
        fixed_sizes=[8.0, 4.0],
        fixed_ratios=[1.0],
        flatten_to_2d=True,
        name="den",
    )


@model
def multibox() -> Any:
    i = img("image", 3, 300, 300)
    cs = [L.data(name=f"c{k}", shape=[8, s, s], dtype="float32") for k, s in enumerate((19, 10, 5, 3, 2, 1))]
    return L.multi_box_head(
        inputs=cs,
        image=i,
        base_size=300,
        num_classes=21,
        aspect_ratios=[[2.0], [2.0, 3.0], [2.0, 3.0], [2.0, 3.0], [2.0], [2.0]],
        min_ratio=20,
        max_ratio=90,
        offset=0.5,
        flip=True,
        clip=True,
    )


@model
def multibox_sizes() -> Any:
    i = img("image", 3, 300, 300)
    cs = [L.data(name=f"c{k}", shape=[8, s, s], dtype="float32") for k, s in enumerate((19, 10, 5))]
    return L.multi_box_head(
        inputs=cs,
        image=i,
        base_size=300,
        num_classes=4,
        aspect_ratios=[[2.0], [2.0, 3.0], [2.0, 3.0]],
        min_sizes=[60.0, 105.0, 150.0],
        max_sizes=[[], 150.0, 195.0],
        steps=[8, 16, 32],
        kernel_size=3,
        pad=1,
        stride=1,
        flip=False,
        name="mb",
        variance=[0.1, 0.1, 0.2, 0.3],
    )


@model
def multibox_steps() -> Any:
    i = img("image", 3, 300, 300)
    cs = [L.data(name=f"c{k}", shape=[8, s, s], dtype="float32") for k, s in enumerate((19, 10, 5))]
    return L.multi_box_head(
        inputs=cs,
        image=i,
        base_size=300,
        num_classes=4,
        aspect_ratios=[[2.0], [2.0, 3.0], [2.0, 3.0]],
        min_sizes=[60.0, 105.0, 150.0],
        max_sizes=[75.0, 150.0, 195.0],
        step_w=[8.0, 16.0, 32.0],
        step_h=[8.0, 15.0, 30.0],
        min_max_aspect_ratios_order=True,
    )


@model
def match() -> Any:
    return L.bipartite_match(d("dist", [-1, 6], lod=1), "per_prediction", 0.6)


@model
def assign() -> Any:
    return L.target_assign(d("x", [-1, 20, 4], lod=1), d("mi", [8, 20], "int32"), mismatch_value=0)


@model
def assign_neg() -> Any:
    return L.target_assign(
        d("x", [-1, 20, 4], lod=1), d("mi", [8, 20], "int32"), d("ni", [-1, 1], "int32", 1), mismatch_value=3
    )


@model
def iou() -> Any:
    return L.iou_similarity(d("x", [-1, 4], lod=1), d("y", [5, 4]), box_normalized=False)


@model
def coder() -> Any:
    return L.box_coder(
        d("p", [5, 4]), [0.1, 0.1, 0.2, 0.2], d("t", [-1, 5, 4]), "decode_center_size", box_normalized=False, axis=0
    )


@model
def coder_var() -> Any:
    return L.box_coder(d("p", [5, 4]), d("pv", [5, 4]), d("t", [-1, 4], lod=1))


@model
def polygon() -> Any:
    return L.polygon_box_transform(d("x", [4, 8, 5, 6]))


@model
def ssd() -> Any:
    return L.ssd_loss(
        d("loc", [-1, 10, 4]),
        d("conf", [-1, 10, 21]),
        d("gb", [-1, 4], lod=1),
        d("gl", [-1, 1], "int32", 1),
        d("pb", [10, 4]),
        d("pv", [10, 4]),
    )


@model
def ssd_train() -> Any:
    i = img("image", 3, 64, 64)
    c1 = L.conv2d(i, 4, 3, stride=8, padding=1)
    c2 = L.conv2d(c1, 8, 3, stride=2, padding=1)
    loc, conf, box, var = L.multi_box_head(
        [c1, c2], i, 64, 3, [[2.0], [2.0]], min_sizes=[10.0, 20.0], max_sizes=[20.0, 40.0]
    )
    loss = L.reduce_sum(
        L.ssd_loss(loc, conf, L.data("gb", [4], lod_level=1), L.data("gl", [1], dtype="int32", lod_level=1), box, var)
    )
    fluid.optimizer.SGD(0.01).minimize(loss)
    return loss


@model
def output() -> Any:
    return L.detection_output(
        d("loc", [-1, 10, 4]), d("s", [-1, 10, 21]), d("pb", [10, 4]), d("pv", [10, 4]), nms_eta=0.9
    )


@model
def output_index() -> Any:
    return L.detection_output(
        d("loc", [2, 10, 4]), d("s", [2, 10, 21]), d("pb", [10, 4]), d("pv", [10, 4]), return_index=True
    )


@model
def nms() -> Any:
    return L.multiclass_nms(
        d("b", [-1, 81, 4]),
        d("s", [-1, 5, 81]),
        background_label=1,
        score_threshold=0.5,
        nms_top_k=400,
        nms_threshold=0.3,
        keep_top_k=200,
        normalized=False,
    )


@model
def nms_lod() -> Any:
    return L.multiclass_nms(d("b", [-1, 5, 4], lod=1), d("s", [-1, 5], lod=1), 0.5, 400, 200, name="n")


@model
def nms2() -> Any:
    return fluid.contrib.layers.multiclass_nms2(
        d("b", [-1, 81, 4]), d("s", [-1, 5, 81]), 0.5, 400, 200, return_index=True
    )


@model
def nms2_plain() -> Any:
    return fluid.contrib.layers.multiclass_nms2(d("b", [-1, 81, 4]), d("s", [-1, 5, 81]), 0.5, 400, 200)


@model
def local_nms() -> Any:
    return L.locality_aware_nms(
        d("b", [-1, 81, 4]),
        d("s", [-1, 1, 81]),
        score_threshold=0.5,
        nms_top_k=400,
        nms_threshold=0.3,
        keep_top_k=200,
        normalized=False,
    )


@model
def matrix() -> Any:
    return L.matrix_nms(d("b", [-1, 81, 4]), d("s", [-1, 3, 81]), 0.5, 0.1, 400, 200)


@model
def matrix_index() -> Any:
    return L.matrix_nms(
        d("b", [-1, 81, 4]),
        d("s", [-1, 3, 81]),
        0.5,
        0.1,
        400,
        200,
        use_gaussian=True,
        return_index=True,
        normalized=False,
    )


@model
def retina_out() -> Any:
    return L.retinanet_detection_output(
        [d("b0", [-1, 100, 4]), d("b1", [-1, 30, 4])],
        [d("s0", [-1, 100, 5]), d("s1", [-1, 30, 5])],
        [d("a0", [100, 4]), d("a1", [30, 4])],
        d("info", [-1, 3]),
    )


@model
def yolo() -> Any:
    x = L.conv2d(img("x", 3, 13, 13), 3 * (5 + 10), 1)
    loss = L.yolov3_loss(
        x,
        d("gb", [-1, 6, 4]),
        d("gl", [-1, 6], "int32"),
        [10, 13, 16, 30, 33, 23, 30, 61, 62, 45],
        [0, 1, 2],
        10,
        0.7,
        32,
        gt_score=d("gs", [-1, 6]),
        use_label_smooth=False,
        scale_x_y=1.1,
    )
    fluid.optimizer.SGD(0.01).minimize(L.mean(loss))
    return loss


@model
def yolo_plain() -> Any:
    return L.yolov3_loss(
        d("x", [-1, 45, 13, 13]),
        d("gb", [-1, 6, 4]),
        d("gl", [-1, 6], "int32"),
        [10, 13, 16, 30, 33, 23],
        [0, 1, 2],
        10,
        0.7,
        32,
        name="y",
    )


@model
def ybox() -> Any:
    return L.yolo_box(
        d("x", [-1, 45, 13, 13]), d("sz", [-1, 2], "int32"), [10, 13, 16, 30, 33, 23], 10, 0.01, 32, clip_bbox=False
    )


@model
def focal() -> Any:
    return L.detection.sigmoid_focal_loss(d("x", [-1, 8]), d("l", [-1, 1], "int32"), d("n", [1], "int32"), 2.0, 0.25)


@model
def anchors() -> Any:
    return L.anchor_generator(
        img("f", 8, 4, 4), anchor_sizes=[64.0, 128.0], aspect_ratios=[0.5, 1.0, 2.0], stride=[16.0, 16.0]
    )


@model
def anchors_one() -> Any:
    return L.anchor_generator(img("f", 8, 4, 4), 64.0, 1.0, stride=[16.0, 16.0], name="a", offset=0.0)


@model
def clip() -> Any:
    return L.box_clip(d("b", [-1, 8, 4], lod=1), d("info", [-1, 3]))


@model
def decode() -> Any:
    return L.box_decoder_and_assign(d("p", [-1, 4]), d("pv", [4]), d("t", [-1, 20]), d("s", [-1, 5]), 4.135)


@model
def rpn() -> Any:
    return L.rpn_target_assign(
        d("bp", [-1, 12, 4]),
        d("cl", [-1, 12, 1]),
        d("ab", [12, 4]),
        d("av", [12, 4]),
        d("gb", [-1, 4], lod=1),
        d("ic", [-1, 1], "int32", 1),
        d("info", [-1, 3]),
        use_random=False,
    )


@model
def retina() -> Any:
    return L.retinanet_target_assign(
        d("bp", [1, 12, 4]),
        d("cl", [1, 12, 10]),
        d("ab", [12, 4]),
        d("av", [12, 4]),
        d("gb", [-1, 4], lod=1),
        d("gl", [-1, 1], "int32", 1),
        d("ic", [-1, 1], "int32", 1),
        d("info", [1, 3]),
        10,
    )


@model
def proposals() -> Any:
    return L.generate_proposals(
        d("s", [-1, 3, 5, 5]),
        d("bd", [-1, 12, 5, 5]),
        d("info", [-1, 3]),
        d("a", [5, 5, 3, 4]),
        d("v", [5, 5, 3, 4]),
        100,
        50,
    )


@model
def proposals_num() -> Any:
    return L.generate_proposals(
        d("s", [-1, 3, 5, 5]),
        d("bd", [-1, 12, 5, 5]),
        d("info", [-1, 3]),
        d("a", [5, 5, 3, 4]),
        d("v", [5, 5, 3, 4]),
        100,
        50,
        0.7,
        1.0,
        0.9,
        return_rois_num=True,
    )


@model
def proposal_labels() -> Any:
    return L.generate_proposal_labels(
        d("r", [-1, 4], lod=1),
        d("gc", [-1, 1], "int32", 1),
        d("ic", [-1, 1], "int32", 1),
        d("gb", [-1, 4], lod=1),
        d("info", [-1, 3]),
        class_nums=10,
        use_random=False,
    )


@model
def mask_labels() -> Any:
    return L.generate_mask_labels(
        d("info", [-1, 3]),
        d("gc", [-1, 1], "int32", 1),
        d("ic", [-1, 1], "int32", 1),
        d("gs", [-1, 2], lod=3),
        d("r", [-1, 4], lod=1),
        d("l", [-1, 1], "int32", 1),
        81,
        14,
    )


@model
def distribute() -> Any:
    return L.distribute_fpn_proposals(d("r", [-1, 4], lod=1), 2, 5, 4, 224)


@model
def collect() -> Any:
    return L.collect_fpn_proposals(
        [d(f"r{k}", [-1, 4], lod=1) for k in range(3)], [d(f"s{k}", [-1, 1], lod=1) for k in range(3)], 2, 4, 100
    )


@model
def dmap() -> Any:
    return L.detection.detection_map(d("dr", [-1, 6], lod=1), d("l", [-1, 6], lod=1), 21)


@model
def pool() -> Any:
    x = L.conv2d(img("x", 3, 16, 16), 4, 3)
    o = L.roi_pool(x, d("r", [-1, 4], lod=1), 2, 3, 0.5)
    fluid.optimizer.SGD(0.1).minimize(L.mean(o))
    return o


@model
def align() -> Any:
    x = L.conv2d(img("x", 3, 16, 16), 4, 3)
    o = L.roi_align(x, d("r", [-1, 4], lod=1), 2, 3, 0.5, 2)
    fluid.optimizer.SGD(0.1).minimize(L.mean(o))
    return o


@model
def align_lod() -> Any:
    return L.roi_align(d("x", [-1, 3, 16, 16]), d("r", [-1, 4]), rois_lod=d("rl", [-1], "int64"), name="ra")


@model
def pool_lod() -> Any:
    return L.roi_pool(d("x", [-1, 3, 16, 16]), d("r", [-1, 4]), rois_lod=d("rl", [-1], "int64"))


@model
def psroi() -> Any:
    x = L.conv2d(img("x", 3, 16, 16), 12, 3)
    o = L.psroi_pool(x, d("r", [-1, 4], lod=1), 2, 1.0, 2, 3)
    fluid.optimizer.SGD(0.1).minimize(L.mean(o))
    return o


@model
def prroi() -> Any:
    x = L.conv2d(img("x", 3, 16, 16), 12, 3)
    r = d("r", [-1, 4], lod=1)
    r.stop_gradient = False
    o = L.prroi_pool(x, r, 1.0, 2, 3)
    fluid.optimizer.SGD(0.1).minimize(L.mean(o))
    return o


@model
def prroi_nums() -> Any:
    return L.prroi_pool(d("x", [-1, 3, 16, 16]), d("r", [-1, 4]), batch_roi_nums=d("rl", [-1], "int64"))


@model
def deform() -> Any:
    x = L.conv2d(img("x", 3, 16, 16), 4, 3, padding=1)
    o = L.deformable_conv(
        x,
        L.conv2d(x, 18, 3, padding=1),
        L.conv2d(x, 9, 3, padding=1),
        6,
        3,
        padding=1,
        groups=2,
        deformable_groups=1,
        im2col_step=1,
    )
    fluid.optimizer.SGD(0.1).minimize(L.mean(o))
    return o


@model
def deform_v1() -> Any:
    return L.deformable_conv(
        d("x", [-1, 4, 16, 16]),
        d("o", [-1, 18, 16, 16]),
        None,
        6,
        3,
        padding=1,
        modulated=False,
        im2col_step=1,
        bias_attr=False,
        deformable_groups=1,
    )


@model
def deform_pool() -> Any:
    x = L.conv2d(img("x", 3, 16, 16), 12, 3)
    o = L.deformable_roi_pooling(
        x,
        d("r", [-1, 4], lod=1),
        d("t", [-1, 2, 2, 3]),
        no_trans=False,
        pooled_height=2,
        pooled_width=3,
        sample_per_part=4,
        spatial_scale=0.5,
    )
    fluid.optimizer.SGD(0.1).minimize(L.mean(o))
    return o


@model
def deform_pool_fixed() -> Any:
    return L.deformable_roi_pooling(
        d("x", [2, 8, 16, 16]),
        d("r", [-1, 4], lod=1),
        d("t", [-1, 2, 2, 3]),
        no_trans=True,
        part_size=(2, 3),
        group_size=[1, 1],
        name="dp",
    )


@model
def dmap_states() -> Any:
    return L.detection.detection_map(
        d("dr", [-1, 6], lod=1),
        d("l", [-1, 6], lod=1),
        21,
        0,
        0.4,
        False,
        d("has", [1], "int32"),
        [d("ic", [-1, 1], "int32"), d("it", [-1, 2], lod=1), d("if", [-1, 2], lod=1)],
        [d("oc", [-1, 1], "int32"), d("ot", [-1, 2], lod=1), d("of", [-1, 2], lod=1)],
        "11point",
    )
