"""Ops of images and norms in ONNX: convolutions, pooling, scaling, normalisation."""

from __future__ import annotations

from typing import Any

from pstranspile.frontends.onnx.graph import Graph, Refused, onnx_writer, refuse_given
from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr, ints_attr, real, text
from pstranspile.ops.images.conv import dilations_of, padding_of, transposed_dims, window_counts


def _channels_first(op: Op, name: str = "data_format") -> None:
    if text(op, name) not in ("NCHW", "NCDHW", "AnyLayout", ""):
        raise Refused(f"{name} is {text(op, name)}; ONNX has channels before the dims of the image")


def _padding(op: Op, spatial: int) -> dict[str, Any]:
    """The attributes of ONNX that say how images are padded."""
    algorithm, listed = op.attrs.get("padding_algorithm"), ints_attr(op, "paddings")
    if algorithm == "SAME":
        return {"auto_pad": "SAME_UPPER"}
    if algorithm == "VALID":
        return {"pads": [0] * (2 * spatial)}
    if len(listed) == spatial:
        return {"pads": [*listed, *listed]}
    return {"pads": [*listed[::2], *listed[1::2]]}


# Convolutions


@onnx_writer("conv2d", "depthwise_conv2d", "conv3d")
def _conv(op: Op, graph: Graph) -> None:
    _channels_first(op)
    refuse_given(op, "ResidualData")
    inputs = [graph.input(op, "Input"), graph.input(op, "Filter")]
    if bias := graph.optional(op, "Bias"):
        inputs.append(bias)
    graph.node(
        "Conv",
        inputs,
        op.outputs["Output"],
        strides=[*ints_attr(op, "strides")],
        dilations=[*dilations_of(op)],
        group=int_attr(op, "groups", 1),
        **_padding(op, 3 if op.type == "conv3d" else 2),
    )


@onnx_writer("conv2d_transpose", "depthwise_conv2d_transpose", "conv3d_transpose")
def _conv_transpose(op: Op, graph: Graph) -> None:
    _channels_first(op)
    if op.attrs.get("padding_algorithm") == "SAME":
        raise Refused("its padding_algorithm is SAME, which ONNX counts from the other side")
    inputs = [graph.input(op, "Input"), graph.input(op, "Filter")]
    if bias := graph.optional(op, "Bias"):
        inputs.append(bias)
    more: dict[str, Any] = {}
    if asked := ints_attr(op, "output_size"):
        dims, size = graph.dims(op.inputs["Input"][0])[2:], graph.dims(op.inputs["Filter"][0])[2:]
        if -1 in dims:
            raise Refused("it has an output_size, and the dims of its input are known at run time only")
        least = transposed_dims(op._replace(attrs=op.attrs | {"output_size": ()}), dims, size)
        more["output_padding"] = [want - dim for want, dim in zip(asked, least, strict=True)]
    graph.node(
        "ConvTranspose",
        inputs,
        op.outputs["Output"],
        strides=[*ints_attr(op, "strides")],
        dilations=[*dilations_of(op)],
        group=int_attr(op, "groups", 1),
        **_padding(op, 3 if op.type == "conv3d_transpose" else 2),
        **more,
    )


# Pooling


@onnx_writer("pool2d", "pool3d")
def _pool(op: Op, graph: Graph) -> None:
    _channels_first(op)
    x, source, average = graph.input(op, "X"), op.inputs["X"][0], text(op, "pooling_type") == "avg"
    spatial, size = 3 if op.type == "pool3d" else 2, ints_attr(op, "ksize")
    adaptive = flag(op, "adaptive")
    if (flag(op, "global_pooling") and not adaptive) or (adaptive and set(size) == {1}):
        graph.node("GlobalAveragePool" if average else "GlobalMaxPool", [x], op.outputs["Out"])
        return
    attrs: dict[str, Any]
    if adaptive:
        dims = graph.dims(source)[2:]
        if any(dim < 0 or dim % count for dim, count in zip(dims, size, strict=True)):
            raise Refused("it is adaptive, with windows that differ in size; those of ONNX are alike", source)
        windows = [dim // count for dim, count in zip(dims, size, strict=True)]
        attrs = {"kernel_shape": windows, "strides": windows}
    else:
        if flag(op, "ceil_mode"):
            _refuse_past_the_end(op, graph)
        attrs = {"kernel_shape": [*size], "strides": [*ints_attr(op, "strides")], **_padding(op, spatial)}
        attrs["ceil_mode"] = int(flag(op, "ceil_mode"))
        if average:
            attrs["count_include_pad"] = int(not flag(op, "exclusive"))
    graph.node("AveragePool" if average else "MaxPool", [x], op.outputs["Out"], **attrs)


def _refuse_past_the_end(op: Op, graph: Graph) -> None:
    """Raises Refused where ceil_mode may make a window that begins in the padding at the end, which ONNX leaves out."""
    if text(op, "pooling_type") == "avg":
        raise Refused("it is an average with ceil_mode, whose windows past the end ONNX divides otherwise")
    source, size = op.inputs["X"][0], ints_attr(op, "ksize")
    dims = graph.dims(source)[2:]
    if -1 in dims:
        raise Refused("it has ceil_mode, and dims of its input are known at run time only", source)
    counts = window_counts(op, dims, size, (1,) * len(dims))
    before = (first for first, _ in padding_of(op, dims, size))
    for dim, count, stride, padding in zip(dims, counts, ints_attr(op, "strides"), before, strict=True):
        if (count - 1) * stride >= dim + padding:
            raise Refused("its ceil_mode makes a window of padding alone, which ONNX leaves out", source)


# Scaling


@onnx_writer("bilinear_interp", "nearest_interp")
def _resize(op: Op, graph: Graph) -> None:
    _channels_first(op, "data_layout")
    refuse_given(op, "OutSize", "SizeTensor", "Scale")
    x, made = graph.input(op, "X"), op.outputs["Out"][0]
    dims, corners = graph.dims(made)[2:], flag(op, "align_corners")
    if -1 in dims:
        raise Refused("the dims of its result are known at run time only", made)
    leading = graph.node("Shape", [x], start=0, end=2)
    sizes = graph.node("Concat", [leading, graph.constant([*dims])], axis=0)
    half = op.type == "bilinear_interp" and int_attr(op, "align_mode", 1) == 0
    attrs: dict[str, Any] = {
        "coordinate_transformation_mode": "align_corners" if corners else "half_pixel" if half else "asymmetric",
        "mode": "linear" if op.type == "bilinear_interp" else "nearest",
    }
    if op.type == "nearest_interp":
        attrs["nearest_mode"] = "round_prefer_ceil" if corners else "floor"
    graph.node("Resize", [x, "", "", sizes], [made], **attrs)


@onnx_writer("pixel_shuffle")
def _pixel_shuffle(op: Op, graph: Graph) -> None:
    _channels_first(op)
    size = int_attr(op, "upscale_factor")
    graph.node("DepthToSpace", [graph.input(op, "X")], op.outputs["Out"], blocksize=size, mode="CRD")


# Norms and slopes


@onnx_writer("batch_norm")
def _batch_norm(op: Op, graph: Graph) -> None:
    _channels_first(op, "data_layout")
    if not (flag(op, "use_global_stats") or (flag(op, "is_test") and not flag(op, "trainable_statistics"))):
        raise Refused("it takes the statistics of the batch; a program cut down for inference (--fetch) does not")
    inputs = [graph.input(op, slot) for slot in ("X", "Scale", "Bias", "Mean", "Variance")]
    graph.node("BatchNormalization", inputs, op.outputs["Y"], epsilon=real(op, "epsilon"))


@onnx_writer("layer_norm")
def _layer_norm(op: Op, graph: Graph) -> None:
    source, begin = op.inputs["X"][0], int_attr(op, "begin_norm_axis", 1)
    dims = graph.dims(source)[begin:]
    if -1 in dims:
        raise Refused("dims that it normalises over are known at run time only", source)

    def shaped(slot: str, missing: float) -> str:
        given = graph.optional(op, slot)
        if not given:
            return graph.constant([missing], graph.dtype(source))
        return graph.node("Reshape", [given, graph.constant([*dims])]) if len(dims) > 1 else given

    value, epsilon = graph.input(op, "X"), real(op, "epsilon")
    if graph.optional(op, "Scale"):
        inputs = [value, shaped("Scale", 1.0), shaped("Bias", 0.0)]
        graph.node("LayerNormalization", inputs, op.outputs["Y"], axis=begin, epsilon=epsilon)
        return
    ones = graph.constant([1.0] * dims[-1], graph.dtype(source))
    plain = graph.node("LayerNormalization", [value, ones], axis=begin, epsilon=epsilon)
    graph.node("Add", [plain, shaped("Bias", 0.0)], op.outputs["Y"])


def _affine(op: Op, graph: Graph, value: str, to: str) -> None:
    """The value times Scale plus Bias, each of which is a number for each channel, or missing."""
    rank = graph.rank(op.inputs["X"][0])
    dims = graph.constant([-1, *[1] * (rank - 2)])
    steps = [(kind, graph.optional(op, slot)) for kind, slot in (("Mul", "Scale"), ("Add", "Bias"))]
    steps = [(kind, graph.node("Reshape", [given, dims])) for kind, given in steps if given]
    for kind, given in steps[:-1]:
        value = graph.node(kind, [value, given])
    if steps:
        graph.node(steps[-1][0], [value, steps[-1][1]], [to])
    else:
        graph.node("Identity", [value], [to])


@onnx_writer("affine_channel")
def _affine_channel(op: Op, graph: Graph) -> None:
    if text(op, "data_layout") != "NCHW":  # any other one means channels last to this op
        raise Refused(f"data_layout is {text(op, 'data_layout')}; ONNX has channels before the dims of the image")
    _affine(op, graph, graph.input(op, "X"), op.outputs["Out"][0])


@onnx_writer("instance_norm", "group_norm")
def _instance_norm(op: Op, graph: Graph) -> None:
    x, source, dtype = graph.input(op, "X"), op.inputs["X"][0], graph.dtype(op.inputs["X"][0])
    if op.type == "group_norm":
        _channels_first(op, "data_layout")
        groups = int_attr(op, "groups", 1)
        parts = graph.node("Reshape", [x, graph.constant([0, groups, -1])])
    else:
        groups, parts = graph.dims(source)[1], x
    numbers = [graph.constant([number] * groups, dtype) for number in (1.0, 0.0)]
    normal = graph.node("InstanceNormalization", [parts, *numbers], epsilon=real(op, "epsilon"))
    if op.type == "group_norm":
        normal = graph.node("Reshape", [normal, graph.node("Shape", [x])])
    _affine(op, graph, normal, op.outputs["Y"][0])


@onnx_writer("prelu")
def _prelu(op: Op, graph: Graph) -> None:
    x, slope, mode = graph.input(op, "X"), graph.input(op, "Alpha"), text(op, "mode")
    rank = graph.rank(op.inputs["X"][0])
    if mode == "channel":
        slope = graph.node("Reshape", [slope, graph.constant([-1, *[1] * (rank - 2)])])
    elif mode == "all":
        slope = graph.node("Reshape", [slope, graph.constant([1])])
    graph.node("PRelu", [x, slope], op.outputs["Out"])
