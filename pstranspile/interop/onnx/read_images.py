"""Nodes of images and norms as Fluid's ops: convolutions, pooling, scaling, normalisation."""

from __future__ import annotations

from typing import Any

from pstranspile.interop.onnx.graph import Refused
from pstranspile.interop.onnx.reading import Reading, attribute, onnx_reader


def _padding(node: Any, spatial: int) -> dict[str, object]:
    """The attributes of Fluid's ops that say how images are padded."""
    automatic = attribute(node, "auto_pad", "NOTSET")
    if automatic == "SAME_LOWER":
        raise Refused("auto_pad is SAME_LOWER; Fluid pads more at the end")
    if automatic in ("SAME_UPPER", "VALID"):
        return {"paddings": [0] * spatial, "padding_algorithm": automatic.partition("_")[0]}
    pads = list(attribute(node, "pads", [0] * (2 * spatial)))
    if pads[:spatial] == pads[spatial:]:
        return {"paddings": pads[:spatial]}
    return {"paddings": [size for pair in zip(pads[:spatial], pads[spatial:], strict=True) for size in pair]}


def _spatial(node: Any, reading: Reading) -> int:
    spatial = len(reading.dims(node.input[0])) - 2
    if spatial not in (2, 3):
        raise Refused(f"its images have {spatial} dims; Fluid's have 2 or 3")
    return spatial


def _window(node: Any, spatial: int) -> dict[str, object]:
    return {"strides": list(attribute(node, "strides", [1] * spatial)), **_padding(node, spatial)}


@onnx_reader("Conv", "ConvTranspose")
def _conv(node: Any, reading: Reading) -> None:
    (x, kernel, *bias), out, spatial = node.input, node.output[0], _spatial(node, reading)
    attrs = _window(node, spatial)
    attrs["dilations"] = list(attribute(node, "dilations", [1] * spatial))
    attrs["groups"] = attribute(node, "group", 1)
    transposed = node.op_type == "ConvTranspose"
    if transposed and (any(attribute(node, "output_padding", [])) or attribute(node, "output_shape")):
        raise Refused("it has output_padding or output_shape")
    if transposed and "padding_algorithm" in attrs:
        raise Refused("it has auto_pad")
    made = reading.temp(out) if bias and bias[0] else out
    op_type = f"conv{spatial}d_transpose" if transposed else f"conv{spatial}d"
    reading.op(op_type, {"Input": x, "Filter": kernel}, {"Output": made}, **attrs)
    if made != out:
        reading.op("elementwise_add", {"X": made, "Y": bias[0]}, {"Out": out}, axis=1)


@onnx_reader("MaxPool", "AveragePool")
def _pool(node: Any, reading: Reading) -> None:
    spatial, average = _spatial(node, reading), node.op_type == "AveragePool"
    ceil = bool(attribute(node, "ceil_mode", 0))
    if any(node.output[1:]) or set(attribute(node, "dilations", [1])) != {1}:
        raise Refused("it has dilations, or its indices are asked for")
    if ceil:
        raise Refused("it has ceil_mode, whose windows past the end Fluid counts otherwise")
    attrs = _window(node, spatial)
    attrs |= {"ksize": list(attribute(node, "kernel_shape")), "pooling_type": "avg" if average else "max"}
    if average:
        attrs["exclusive"] = not attribute(node, "count_include_pad", 0)
    reading.op(f"pool{spatial}d", {"X": node.input[0]}, {"Out": node.output[0]}, **attrs)


@onnx_reader("GlobalMaxPool", "GlobalAveragePool")
def _global_pool(node: Any, reading: Reading) -> None:
    spatial = _spatial(node, reading)
    kind = "avg" if node.op_type == "GlobalAveragePool" else "max"
    attrs = {"ksize": [1] * spatial, "strides": [1] * spatial, "paddings": [0] * spatial}
    reading.op(
        f"pool{spatial}d",
        {"X": node.input[0]},
        {"Out": node.output[0]},
        pooling_type=kind,
        global_pooling=True,
        **attrs,
    )


@onnx_reader("Resize")
def _resize(node: Any, reading: Reading) -> None:
    names = [*node.input[1:], "", "", ""]
    dims, mode = reading.dims(node.input[0]), attribute(node, "mode", "nearest")
    if len(dims) != 4 or attribute(node, "axes") or mode not in ("nearest", "linear"):
        raise Refused("it is no bilinear or nearest scaling of images")
    if names[2]:
        sizes = [int(number) for number in reading.constant(names[2], "its sizes")][2:]
    elif -1 in dims[2:]:
        raise Refused("the dims of its image are known at run time only")
    else:
        scales = reading.constant(names[1], "its scales")
        sizes = [int(dim * float(scale)) for dim, scale in zip(dims[2:], scales[2:], strict=True)]
    way = attribute(node, "coordinate_transformation_mode", "half_pixel")
    nearest = attribute(node, "nearest_mode", "round_prefer_floor")
    whole = all(dim > 0 and size % dim == 0 for dim, size in zip(dims[2:], sizes, strict=True))
    if mode == "nearest":
        fits = (way == "asymmetric" and nearest == "floor") or (way == "half_pixel" and whole and "floor" in nearest)
    else:
        fits = way in ("align_corners", "half_pixel", "asymmetric")
    if not fits:
        raise Refused(f"it scales with {way}, {nearest}; Fluid has no such way")
    op_type = "nearest_interp" if mode == "nearest" else "bilinear_interp"
    attrs = {"out_h": sizes[0], "out_w": sizes[1], "interp_method": op_type.partition("_")[0]}
    attrs |= {"align_corners": way == "align_corners", "align_mode": 0 if way == "half_pixel" else 1}
    reading.op(op_type, {"X": node.input[0]}, {"Out": node.output[0]}, **attrs)


@onnx_reader("DepthToSpace")
def _depth_to_space(node: Any, reading: Reading) -> None:
    if attribute(node, "mode", "DCR") != "CRD":
        raise Refused("its mode is DCR; Fluid's pixel_shuffle is CRD")
    size = attribute(node, "blocksize")
    reading.op("pixel_shuffle", {"X": node.input[0]}, {"Out": node.output[0]}, upscale_factor=size)


# Norms and slopes


@onnx_reader("BatchNormalization")
def _batch_norm(node: Any, reading: Reading) -> None:
    if attribute(node, "training_mode", 0):
        raise Refused("it is set to training; export the model for inference")
    x, scale, bias, mean, variance = node.input
    out = node.output[0]
    kept = [reading.statistic(name) for name in (mean, variance)]
    reading.op(
        "batch_norm",
        {"X": x, "Scale": scale, "Bias": bias, "Mean": kept[0], "Variance": kept[1]},
        {
            "Y": out,
            "MeanOut": kept[0],
            "VarianceOut": kept[1],
            "SavedMean": reading.temp(out),
            "SavedVariance": reading.temp(out),
        },
        epsilon=attribute(node, "epsilon", 1e-5),
        momentum=attribute(node, "momentum", 0.9),
        use_global_stats=True,
    )


@onnx_reader("LayerNormalization")
def _layer_norm(node: Any, reading: Reading) -> None:
    dims, out = reading.dims(node.input[0]), node.output[0]
    begin = attribute(node, "axis", -1) % len(dims)
    if any(node.output[1:]):
        raise Refused("its statistics are asked for")
    inputs = {"X": node.input[0]}
    for slot, name in zip(("Scale", "Bias"), node.input[1:], strict=False):
        if not name:
            continue
        if reading.constant(name, f"its {slot}").shape != dims[begin:]:
            raise Refused(f"its {slot} has other dims than it normalises over")
        inputs[slot] = name if len(dims) - begin == 1 else reading.flat(name)
    made = {"Y": out, "Mean": reading.temp(out), "Variance": reading.temp(out)}
    reading.op("layer_norm", inputs, made, begin_norm_axis=begin, epsilon=attribute(node, "epsilon", 1e-5))


@onnx_reader("InstanceNormalization")
def _instance_norm(node: Any, reading: Reading) -> None:
    x, scale, bias = node.input
    out = node.output[0]
    made = {"Y": out, "SavedMean": reading.temp(out), "SavedVariance": reading.temp(out)}
    epsilon = attribute(node, "epsilon", 1e-5)
    reading.op("instance_norm", {"X": x, "Scale": scale, "Bias": bias}, made, epsilon=epsilon)


@onnx_reader("PRelu")
def _prelu(node: Any, reading: Reading) -> None:
    dims, slopes = reading.dims(node.input[0]), reading.dims(node.input[1])
    channels = dims[1] if len(dims) > 1 else 0
    if all(dim == 1 for dim in slopes):
        mode = "all"
    elif slopes == (channels, *[1] * (len(dims) - 2)):
        mode = "channel"
    else:
        raise Refused("its slopes are neither one nor one for each channel")
    reading.op("prelu", {"X": node.input[0], "Alpha": node.input[1]}, {"Out": node.output[0]}, mode=mode)
