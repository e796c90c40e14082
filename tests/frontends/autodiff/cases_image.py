"""What is drawn for the ops over images and volumes, so that their gradients can be checked."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from pstranspile.ir.attributes import Long
from tests.frontends.autodiff.cases import Draw, case, dims, distinct, off_zero, smooth
from tests.frontends.autodiff.numeric import Case


@case("conv2d_transpose", "depthwise_conv2d_transpose", "conv3d_transpose", "conv3d")
def _conv(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    spatial = 3 if "3d" in op_type else 2
    groups, per_group = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    if op_type.startswith("depthwise"):
        per_group = 1
    size, stride, dilation = ([draw(st.integers(1, 2)) for _ in range(spatial)] for _ in range(3))
    padding = [draw(st.integers(0, 1)) for _ in range(2 * spatial)]
    image = [draw(st.integers(2, 3)) for _ in range(spatial)]
    made = draw(st.integers(1, 2))
    channels = groups * per_group
    filters = (groups * made, per_group, *size) if op_type == "conv3d" else (channels, made, *size)
    inputs = {"Input": smooth(random, (2, channels, *image)), "Filter": smooth(random, filters)}
    attrs: dict[str, object] = {"strides": stride, "paddings": padding, "dilations": dilation, "groups": groups}
    if op_type == "conv3d":
        attrs["dilations"] = [1] * spatial
    return Case(op_type, inputs, attrs, wrt=("Input", "Filter"), outputs={"Output": 1})


@case("unfold", "im2sequence")
def _windows(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    size, stride = ([draw(st.integers(1, 3)) for _ in "hw"] for _ in range(2))
    padding = [draw(st.integers(0, 1)) for _ in range(4)]
    x = smooth(random, (2, 2, draw(st.integers(3, 5)), draw(st.integers(3, 5))))
    if op_type == "im2sequence":
        return Case(op_type, {"X": x}, {"kernels": size, "strides": stride, "paddings": padding})
    attrs = {"kernel_sizes": size, "strides": stride, "paddings": padding, "dilations": [1, 1]}
    return Case(op_type, {"X": x}, attrs, outputs={"Y": 1})


@case("group_norm", "instance_norm")
def _norm(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    groups, per_group = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    channels = groups * per_group
    last = draw(st.booleans()) and op_type == "group_norm"
    shape = (2, *dims(draw, 1, 3, 3), 2)
    shape = (*shape, channels) if last else (shape[0], channels, *shape[1:])
    vectors = {"Scale": off_zero(random, (channels,)), "Bias": smooth(random, (channels,))}
    inputs = {"X": smooth(random, shape), **vectors}
    if op_type == "instance_norm":
        return Case(op_type, inputs, {}, ("X", *vectors), {"Y": 1}, others=("SavedMean", "SavedVariance"))
    attrs = {"groups": groups, "data_layout": "NHWC" if last else "NCHW"}
    return Case(op_type, inputs, attrs, ("X", *vectors), {"Y": 1}, others=("Mean", "Variance"))


@case("affine_channel")
def _affine_channel(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    channels, last = draw(st.integers(1, 3)), draw(st.booleans())
    shape = (2, 2, 3, channels) if last else (2, channels, 2, 3)
    inputs = {name: smooth(random, of) for name, of in (("X", shape), ("Scale", (channels,)), ("Bias", (channels,)))}
    return Case(op_type, inputs, {"data_layout": "NHWC" if last else "NCHW"}, wrt=("X", "Scale", "Bias"))


@case("lrn")
def _lrn(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    attrs = {"n": draw(st.integers(1, 6)), "alpha": 0.3, "k": 1.5}
    attrs["data_format"] = draw(st.sampled_from(["NCHW", "NHWC"]))
    return Case(op_type, {"X": smooth(random, (2, draw(st.integers(1, 5)), 2, 3))}, attrs, others=("MidOut",))


@case("spectral_norm")
def _spectral_norm(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    """Without steps: the singular vectors count as constants."""
    shape, dim = (*dims(draw, 2, 4, 3),), draw(st.integers(0, 1))
    rows, columns = shape[dim], int(np.prod(shape)) // shape[dim]
    inputs = {"Weight": smooth(random, shape, 0.2), "U": smooth(random, (rows,), 0.2)}
    inputs["V"] = smooth(random, (columns,), 0.2)
    return Case(op_type, inputs, {"dim": dim, "power_iters": 0}, wrt=("Weight",))


@case("data_norm")
def _data_norm(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    """What it gives for its statistics is no derivative, and not checked."""
    x, shifts = smooth(random, (3, draw(st.integers(1, 4)))), draw(st.booleans())
    vectors = {name: smooth(random, x.shape[1:], 0.5) for name in ("BatchSize", "BatchSum", "BatchSquareSum")}
    attrs: dict[str, object] = {"enable_scale_and_shift": shifts, "slot_dim": -1}
    trained: dict[str, np.ndarray] = {}
    if shifts:
        trained = {name: smooth(random, x.shape[1:]) for name in ("scale_w", "bias")}
    inputs = {"X": x, **vectors, **trained}
    return Case(op_type, inputs, attrs, ("X", *trained), {"Y": 1}, others=("Means", "Scales"))


@case("pixel_shuffle", "shuffle_channel", "space_to_depth", "temporal_shift")
def _moved(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    size, more = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    shape = {"space_to_depth": (1, size * size, size * more, size), "temporal_shift": (size * more, 7, 2, 1)}
    attrs: dict[str, dict[str, object]] = {
        "pixel_shuffle": {"upscale_factor": size},
        "shuffle_channel": {"group": size},
        "space_to_depth": {"blocksize": Long(size)},
        "temporal_shift": {"seg_num": size, "shift_ratio": 0.3},
    }
    x = smooth(random, shape.get(op_type, (2, size * size * more, 2, 3)))
    return Case(op_type, {"X": x}, attrs[op_type])


@case("maxout")
def _maxout(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    axis, groups, channels = draw(st.sampled_from([1, 3, -1])), draw(st.integers(2, 3)), draw(st.integers(1, 2))
    shape = (2, groups * channels, 2, 3) if axis == 1 else (2, 2, 3, groups * channels)
    return Case(op_type, {"X": distinct(random, shape)}, {"groups": groups, "axis": axis})


@case("prelu")
def _prelu(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    mode, shape = draw(st.sampled_from(["all", "channel", "element"])), dims(draw, 2, 4, 3)
    alpha = {"all": (1,), "channel": (1, shape[1], *(1 for _ in shape[2:])), "element": (1, *shape[1:])}[mode]
    inputs = {"X": off_zero(random, shape), "Alpha": smooth(random, alpha)}
    return Case(op_type, inputs, {"mode": mode}, wrt=("X", "Alpha"))


@case("pad")
def _pad(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw)
    paddings = [draw(st.integers(0, 2)) for _ in range(2 * len(shape))]
    return Case(op_type, {"X": smooth(random, shape)}, {"paddings": paddings, "pad_value": 0.5})


@case("pad2d")
def _pad2d(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    attrs = {
        "paddings": [draw(st.integers(0, 2)) for _ in range(4)],
        "mode": draw(st.sampled_from(["constant", "reflect", "edge"])),
        "data_format": draw(st.sampled_from(["NCHW", "NHWC"])),
    }
    return Case(op_type, {"X": smooth(random, (2, 3, 3, 3))}, attrs)


@case("pad_constant_like")
def _pad_constant_like(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw)
    inputs = {"X": smooth(random, tuple(dim + draw(st.integers(0, 2)) for dim in shape)), "Y": smooth(random, shape)}
    return Case(op_type, inputs, {"pad_value": 0.5}, wrt=("Y",))


@case("crop", "crop_tensor")
def _crop(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw)
    offsets = [draw(st.integers(0, dim - 1)) for dim in shape]
    sizes = [draw(st.integers(1, dim - start)) for dim, start in zip(shape, offsets, strict=True)]
    return Case(op_type, {"X": smooth(random, shape)}, {"offsets": offsets, "shape": sizes})


@case("bilinear_interp", "nearest_interp", "bicubic_interp", "trilinear_interp")
def _interpolate(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    names = ("out_d", "out_h", "out_w") if op_type == "trilinear_interp" else ("out_h", "out_w")
    last, spatial = draw(st.booleans()), [draw(st.integers(1, 4)) for _ in names]
    attrs: dict[str, object] = {name: draw(st.integers(1, 5)) for name in names}
    attrs |= {"align_corners": draw(st.booleans()), "align_mode": draw(st.integers(0, 1))}
    attrs["data_layout"] = "NHWC" if last else "NCHW"
    x = smooth(random, (1, *spatial, 2) if last else (1, 2, *spatial))
    return Case(op_type, {"X": x}, attrs)


@case("grid_sampler")
def _grid_sampler(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    """Points that are not on a row or column of X, where the slope is another on each side; some outside."""
    height, width = draw(st.integers(2, 4)), draw(st.integers(2, 4))
    places = [random.integers(-2, dim + 1, size=(2, 3, 2)) for dim in (width, height)]
    scaled = [
        (at + random.uniform(0.2, 0.8, size=at.shape)) / (dim - 1) * 2 - 1
        for at, dim in zip(places, (width, height), strict=True)
    ]
    inputs = {"X": smooth(random, (2, 2, height, width)), "Grid": np.stack(scaled, axis=-1)}
    return Case(op_type, inputs, wrt=("X", "Grid"), outputs={"Output": 1})


@case("affine_grid")
def _affine_grid(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = [2, 1, draw(st.integers(1, 3)), draw(st.integers(1, 3))]
    theta = smooth(random, (2, 2, 3))
    return Case(op_type, {"Theta": theta}, {"output_shape": shape}, wrt=("Theta",), outputs={"Output": 1})


@case("pool3d", "max_pool2d_with_index", "max_pool3d_with_index")
def _pool(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    spatial = 2 if "2d" in op_type else 3
    x = distinct(random, (1, 2, *(draw(st.integers(3, 4)) for _ in range(spatial))))
    attrs: dict[str, object] = {
        "ksize": [2] * spatial,
        "strides": [draw(st.integers(1, 2)) for _ in range(spatial)],
        "paddings": [draw(st.integers(0, 1)) for _ in range(spatial)],
        "adaptive": draw(st.booleans()),
    }
    if op_type != "pool3d":
        return Case(op_type, {"X": x}, attrs, others=("Mask",))
    attrs |= {"pooling_type": draw(st.sampled_from(["max", "avg"])), "exclusive": draw(st.booleans())}
    return Case(op_type, {"X": x}, attrs)


@case("unpool")
def _unpool(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    places = np.stack([random.permutation(16)[:4] for _ in range(2)]).reshape(1, 2, 2, 2).astype("int32")
    attrs: dict[str, object] = {"ksize": [2, 2], "strides": [2, 2], "unpooling_type": "max"}
    return Case(op_type, {"X": smooth(random, places.shape), "Indices": places}, attrs)


@case("spp")
def _spp(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    x = distinct(random, (2, 1, draw(st.integers(6, 9)), draw(st.integers(6, 9))))
    attrs = {"pyramid_height": draw(st.integers(1, 3)), "pooling_type": draw(st.sampled_from(["max", "avg"]))}
    return Case(op_type, {"X": x}, attrs)
