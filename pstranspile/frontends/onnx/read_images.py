"""Reads nodes of images as Fluid's ops: convolutions, pooling, scaling. Images with one spatial dim become images with
one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from pstranspile.frontends.layers.draft import Refused
from pstranspile.frontends.onnx.read_tensors import reshape, with_x_shape
from pstranspile.frontends.onnx.reading import GraphReading, attribute, onnx_reader

# Nodes of normalisations and learned slopes as Fluid's ops.


@onnx_reader("BatchNormalization")
def _batch_norm(node: Any, reading: GraphReading) -> None:
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
def _layer_norm(node: Any, reading: GraphReading) -> None:
    dims, out = reading.dims(node.input[0]), node.output[0]
    begin = attribute(node, "axis", -1) % len(dims)
    if any(node.output[1:]):
        raise Refused("its statistics are asked for")
    scale, bias = [*node.input[1:], "", ""][:2]
    inputs, after = {"X": node.input[0]}, list[tuple[str, str]]()
    for slot, name, op_type in (("Scale", scale, "elementwise_mul"), ("Bias", bias, "elementwise_add")):
        if not name:
            continue
        if reading.dims(name) != dims[begin:] or -1 in dims[begin:] or after:
            after.append((op_type, name))
        elif len(dims) - begin == 1:
            inputs[slot] = name
        else:
            reshape(name, flat := reading.temp(name), [-1], reading)
            inputs[slot] = flat
    made = reading.temp(out) if after else out
    results = {"Y": made, "Mean": reading.temp(out), "Variance": reading.temp(out)}
    reading.op("layer_norm", inputs, results, begin_norm_axis=begin, epsilon=attribute(node, "epsilon", 1e-5))
    for at, (op_type, name) in enumerate(after, 1):
        result = out if at == len(after) else reading.temp(out)
        reading.op(op_type, {"X": made, "Y": name}, {"Out": result})
        made = result


@onnx_reader("GroupNormalization")
def _group_norm(node: Any, reading: GraphReading) -> None:
    x, scale, bias = node.input
    out, groups = node.output[0], attribute(node, "num_groups")
    if reading.dims(scale) != reading.dims(x)[1:2]:
        raise Refused("it has a scale for each group; Fluid's have one for each channel")
    made = {"Y": out, "Mean": reading.temp(out), "Variance": reading.temp(out)}
    epsilon = attribute(node, "epsilon", 1e-5)
    reading.op("group_norm", {"X": x, "Scale": scale, "Bias": bias}, made, groups=groups, epsilon=epsilon)


@onnx_reader("LRN")
def _lrn(node: Any, reading: GraphReading) -> None:
    size = attribute(node, "size")
    if size % 2 == 0:
        raise Refused("its size is even; Fluid's is odd")
    attrs = {"alpha": attribute(node, "alpha", 1e-4) / size, "beta": attribute(node, "beta", 0.75)}
    made = {"Out": node.output[0], "MidOut": reading.temp(node.output[0])}
    reading.op("lrn", {"X": node.input[0]}, made, n=size, k=attribute(node, "bias", 1.0), **attrs)


@onnx_reader("InstanceNormalization")
def _instance_norm(node: Any, reading: GraphReading) -> None:
    x, scale, bias = node.input
    out = node.output[0]
    made = {"Y": out, "SavedMean": reading.temp(out), "SavedVariance": reading.temp(out)}
    epsilon = attribute(node, "epsilon", 1e-5)
    reading.op("instance_norm", {"X": x, "Scale": scale, "Bias": bias}, made, epsilon=epsilon)


@onnx_reader("PRelu")
def _prelu(node: Any, reading: GraphReading) -> None:
    dims, slopes = reading.dims(node.input[0]), reading.dims(node.input[1])
    channels = dims[1] if len(dims) > 1 else 0
    if all(dim == 1 for dim in slopes):
        mode = "all"
    elif slopes == (channels, *[1] * (len(dims) - 2)):
        mode = "channel"
    else:
        _prelu_by_relus(node, reading)
        return
    reading.op("prelu", {"X": node.input[0], "Alpha": node.input[1]}, {"Out": node.output[0]}, mode=mode)


def _prelu_by_relus(node: Any, reading: GraphReading) -> None:
    """PRelu: relu(x) - slopes * relu(-x), with slopes broadcast to x."""
    (x, slopes), out = node.input, node.output[0]
    above, below = reading.op_result("relu", out, X=x), reading.op_result("relu", out, X=reading.scaled(x, -1.0))
    times = reading.op_result("elementwise_mul", out, X=below, Y=slopes)
    reading.op("elementwise_sub", {"X": above, "Y": times}, {"Out": out})


Dims: TypeAlias = "Sequence[int]"


class Window(NamedTuple):
    """A window over an image: its size, its steps and the distances of its elements, along each dim."""

    size: Sequence[int]
    strides: Sequence[int]
    dilations: Sequence[int]


def _same_pads(automatic: str, window: Window, dims: Dims) -> list[int]:
    """The padding for which a window has one result for each stride."""
    begin: list[int] = []
    end: list[int] = []
    for dim, size, stride, dilation in zip(dims, *window, strict=True):
        reach = (size - 1) * dilation + 1
        if dim < 0 and stride != 1:
            raise Refused(f"auto_pad is {automatic}, and the dims of its image are known at run time only")
        total = max((-(-dim // stride) - 1) * stride + reach - dim, 0) if dim >= 0 else reach - 1
        small, large = total // 2, total - total // 2
        begin.append(small if automatic == "SAME_UPPER" else large)
        end.append(large if automatic == "SAME_UPPER" else small)
    return [*begin, *end]


def _padding(node: Any, spatial: int, window: Window, dims: Dims) -> dict[str, object]:
    """The attributes of Fluid's ops for the padding of images."""
    automatic = attribute(node, "auto_pad", "NOTSET")
    flat = [0] * (spatial - len(dims))
    if automatic == "VALID":
        return {"paddings": [0] * spatial}
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        pads = _same_pads(automatic, window, dims)
    else:
        pads = list(attribute(node, "pads", [0] * (2 * len(dims))))
    pads = [*flat, *pads[: len(dims)], *flat, *pads[len(dims) :]]
    return {"paddings": _paddings(pads[:spatial], pads[spatial:])}


def _paddings(begin: list[int], end: list[int]) -> list[int]:
    """The padding of each dim in Fluid's form: one number if both ends are equal, else two."""
    return begin if begin == end else [size for pair in zip(begin, end, strict=True) for size in pair]


def _image_dims(node: Any, reading: GraphReading) -> tuple[int, ...]:
    dims = reading.dims(node.input[0])[2:]
    if len(dims) not in (1, 2, 3):
        raise Refused(f"its images have {len(dims)} dims; Fluid's have 2 or 3, and those of 1 are read as of 2")
    return dims


def _rows(value: str, dims: Dims, reading: GraphReading) -> str:
    """Images with one spatial dim as images with one row; others unchanged."""
    if len(dims) > 1:
        return value
    with_x_shape("unsqueeze2", value, made := reading.temp(value), reading, axes=[2])
    return made


def _image_op(op_type: str, slots: tuple[str, str], node: Any, reading: GraphReading, **attrs: object) -> None:
    """Appends an op on images from the node's first input to its result, and adds a bias for each channel if there is
    one.
    """
    out, dims = node.output[0], _image_dims(node, reading)
    inputs = {slots[0]: _rows(node.input[0], dims, reading)}
    bias = ""
    if op_type.startswith("conv"):
        inputs["Filter"] = _rows(node.input[1], dims, reading)
        bias = node.input[2] if len(node.input) > 2 else ""
    wide = reading.temp(out) if len(dims) == 1 else out
    made = reading.temp(out) if bias else wide
    reading.op(op_type, inputs, {slots[1]: made}, **attrs)
    if bias:
        reading.op("elementwise_add", {"X": made, "Y": bias}, {"Out": wide}, axis=1)
    if wide != out:
        with_x_shape("squeeze2", wide, out, reading, axes=[2])


def _flat(numbers: Sequence[int], spatial: int) -> list[int]:
    return [*[1] * (spatial - len(numbers)), *numbers]


def _window(node: Any, dims: Dims, size: Sequence[int]) -> Window:
    ones = [1] * len(dims)
    return Window(size, attribute(node, "strides", ones), attribute(node, "dilations", ones))


def _convolution(suffix: str, node: Any, reading: GraphReading, window: Window, spatial: int, **attrs: object) -> None:
    attrs |= {"strides": _flat(window.strides, spatial), "dilations": _flat(window.dilations, spatial)}
    attrs["groups"] = attribute(node, "group", 1)
    _image_op(f"conv{spatial}d{suffix}", ("Input", "Output"), node, reading, **attrs)


@onnx_reader("Conv")
def _conv(node: Any, reading: GraphReading) -> None:
    dims = _image_dims(node, reading)
    window, spatial = _window(node, dims, reading.dims(node.input[1])[2:]), max(len(dims), 2)
    _convolution("", node, reading, window, spatial, **_padding(node, spatial, window, dims))


@onnx_reader("ConvTranspose")
def _conv_transpose(node: Any, reading: GraphReading) -> None:
    dims = _image_dims(node, reading)
    window, spatial = _window(node, dims, reading.dims(node.input[1])[2:]), max(len(dims), 2)
    if attribute(node, "output_shape") or attribute(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise Refused("it has output_shape or auto_pad; export the model with pads")
    pads, added = (
        list(attribute(node, name, [0] * len(dims) * count)) for name, count in (("pads", 2), ("output_padding", 1))
    )
    ends = [after - more for after, more in zip(pads[len(dims) :], added, strict=True)]
    flat = [0] * (spatial - len(dims))
    begin = [*flat, *pads[: len(dims)]]
    attrs: dict[str, object]
    if min(ends) >= 0:
        attrs = {"paddings": _paddings(begin, [*flat, *ends])}
    elif -1 in dims:
        raise Refused("it has more output_padding than padding, and the dims of its image are known at run time only")
    else:
        reach = zip(dims, *window, pads[: len(dims)], ends, strict=True)
        sizes = [
            (dim - 1) * step + (size - 1) * apart + 1 - before - end for dim, size, step, apart, before, end in reach
        ]
        attrs = {"paddings": _paddings(begin, [*flat, *pads[len(dims) :]]), "output_size": _flat(sizes, spatial)}
    _convolution("_transpose", node, reading, window, spatial, **attrs)


# Pooling


@onnx_reader("MaxPool", "AveragePool")
def _pool(node: Any, reading: GraphReading) -> None:
    dims, average = _image_dims(node, reading), node.op_type == "AveragePool"
    window, spatial = _window(node, dims, attribute(node, "kernel_shape")), max(len(dims), 2)
    if any(node.output[1:]) or {*window.dilations} != {1}:
        raise Refused("it has dilations, or its indices are asked for")
    attrs = _padding(node, spatial, window, dims)
    whole = not attribute(node, "count_include_pad", 0)
    if attribute(node, "ceil_mode", 0):
        attrs["ceil_mode"] = _rounds_up(node, window, dims, plain=not average or whole)
    attrs |= {"ksize": _flat(window.size, spatial), "pooling_type": "avg" if average else "max"}
    if average:
        attrs["exclusive"] = whole
    _image_op(f"pool{spatial}d", ("X", "Out"), node, reading, strides=_flat(window.strides, spatial), **attrs)


def _rounds_up(node: Any, window: Window, dims: Dims, *, plain: bool) -> bool:
    """Whether ceil_mode makes more windows. Raises Refused if Fluid would count them differently.

    Fluid also has the windows that begin in the padding at the end, and divides averages that include padding by the
    size of the whole window.
    """
    if -1 in dims:
        raise Refused("it has ceil_mode, and the dims of its image are known at run time only")
    pads = list(attribute(node, "pads", [0] * (2 * len(dims))))
    up = False
    for dim, size, stride, before, after in zip(
        dims, window.size, window.strides, pads[: len(dims)], pads[len(dims) :], strict=True
    ):
        span = dim + before + after - size
        if span % stride == 0:
            continue
        up = True
        if not plain or -(-span // stride) * stride >= dim + before:
            raise Refused("it has ceil_mode, whose windows past the end Fluid counts otherwise")
    return up


@onnx_reader("GlobalMaxPool", "GlobalAveragePool")
def _global_pool(node: Any, reading: GraphReading) -> None:
    spatial = max(len(_image_dims(node, reading)), 2)
    kind = "avg" if node.op_type == "GlobalAveragePool" else "max"
    attrs = {"ksize": [1] * spatial, "strides": [1] * spatial, "paddings": [0] * spatial}
    _image_op(f"pool{spatial}d", ("X", "Out"), node, reading, pooling_type=kind, global_pooling=True, **attrs)


# Scaling


@onnx_reader("Resize")
def _resize(node: Any, reading: GraphReading) -> None:
    dims, mode = reading.dims(node.input[0]), attribute(node, "mode", "nearest")
    way = attribute(node, "coordinate_transformation_mode", "half_pixel").replace("pytorch_", "")
    spatial = len(dims) - 2
    op_type = {"nearest": "nearest", "cubic": "bicubic", "linear": "trilinear" if spatial == 3 else "bilinear"}[mode]
    if spatial not in (1, 2, 3) or (spatial == 3 and mode != "linear") or (spatial == 1 and mode == "cubic"):
        raise Refused(f"it scales {spatial} dims, {mode}; Fluid has no such way")
    sizes, factors = _scaling(node, dims, way, reading)
    if not _fits(node, mode, way, factors) or attribute(node, "exclude_outside", 0) or attribute(node, "antialias", 0):
        rounding = attribute(node, "nearest_mode", "round_prefer_floor")
        raise Refused(f"it scales {mode}, {way}, {rounding}; Fluid has no such way")
    attrs: dict[str, Any] = {"interp_method": op_type}
    attrs |= {"align_corners": way == "align_corners", "align_mode": 0 if way == "half_pixel" else 1}
    if -1 in sizes:
        if len({*factors}) != 1 or spatial == 1:
            raise Refused("it scales dims that are known at run time only by different factors")
        attrs["scale"] = factors[0]
    names = ("out_d", "out_h", "out_w")[-max(spatial, 2) :]
    attrs |= dict(zip(names, _flat(sizes, max(spatial, 2)), strict=True))
    _image_op(f"{op_type}_interp", ("X", "Out"), node, reading, **attrs)


def _scaling(node: Any, dims: Dims, way: str, reading: GraphReading) -> tuple[list[int], list[float]]:
    """(sizes that an image is scaled to, -1 if known only at run time; factors), in the order of the image's dims."""
    names, spatial = [*node.input[1:], "", "", ""], len(dims) - 2
    axes = [axis % len(dims) for axis in attribute(node, "axes", range(len(dims)))]
    if names[2]:
        given: dict[int, float] = dict(zip(axes, reading.numbers(names[2], "its sizes"), strict=True))
        sizes = [int(given.get(axis, dims[axis])) for axis in range(2, 2 + spatial)]
        if any(size < 0 or dim < 0 for dim, size in zip(dims[2:], sizes, strict=True)):
            raise Refused("the dims of its image, or of its result, are known at run time only")
        return sizes, [size / dim for dim, size in zip(dims[2:], sizes, strict=True)]
    scales = reading.constant(names[1], "its scales").reshape(-1)
    given = {axis: float(scale) for axis, scale in zip(axes, scales, strict=True)}
    factors = [given.get(axis, 1.0) for axis in range(2, 2 + spatial)]
    sizes = [int(dim * factor) if dim >= 0 else -1 for dim, factor in zip(dims[2:], factors, strict=True)]
    for dim, size, factor in zip(dims[2:], sizes, factors, strict=True):
        exact = abs(dim * factor - size) < 1e-4 if dim >= 0 else factor == int(factor)
        if not exact:
            raise Refused(f"it scales {dim} elements by {factor}, which is no whole number of them")
    return sizes, factors


def _fits(node: Any, mode: str, way: str, factors: Sequence[float]) -> bool:
    """Whether Fluid samples an image at the same points as the node."""
    nearest = attribute(node, "nearest_mode", "round_prefer_floor")
    if mode == "cubic":
        return way in ("align_corners", "half_pixel") and abs(attribute(node, "cubic_coeff_a", -0.75) + 0.75) < 1e-6
    if mode == "linear":
        return way in ("align_corners", "half_pixel", "asymmetric")
    whole = all(factor == int(factor) for factor in factors)
    return (
        (way == "asymmetric" and nearest == "floor")
        or (way == "half_pixel" and whole and nearest.startswith("round_prefer"))
        or (way == "align_corners" and nearest == "round_prefer_ceil")
    )
