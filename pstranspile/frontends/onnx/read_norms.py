"""Nodes of norms and slopes as Fluid's ops."""

from __future__ import annotations

from typing import Any

from pstranspile.frontends.onnx.graph import Refused
from pstranspile.frontends.onnx.reading import Reading, attribute, onnx_reader
from pstranspile.frontends.onnx.reshaping import reshape


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
def _group_norm(node: Any, reading: Reading) -> None:
    x, scale, bias = node.input
    out, groups = node.output[0], attribute(node, "num_groups")
    if reading.dims(scale) != reading.dims(x)[1:2]:
        raise Refused("it has a scale for each group; Fluid's have one for each channel")
    made = {"Y": out, "Mean": reading.temp(out), "Variance": reading.temp(out)}
    epsilon = attribute(node, "epsilon", 1e-5)
    reading.op("group_norm", {"X": x, "Scale": scale, "Bias": bias}, made, groups=groups, epsilon=epsilon)


@onnx_reader("LRN")
def _lrn(node: Any, reading: Reading) -> None:
    size = attribute(node, "size")
    if size % 2 == 0:
        raise Refused("its size is even; Fluid's is odd")
    attrs = {"alpha": attribute(node, "alpha", 1e-4) / size, "beta": attribute(node, "beta", 0.75)}
    made = {"Out": node.output[0], "MidOut": reading.temp(node.output[0])}
    reading.op("lrn", {"X": node.input[0]}, made, n=size, k=attribute(node, "bias", 1.0), **attrs)


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
        _sloped(node, reading)
        return
    reading.op("prelu", {"X": node.input[0], "Alpha": node.input[1]}, {"Out": node.output[0]}, mode=mode)


def _sloped(node: Any, reading: Reading) -> None:
    """What is positive, and what is negative times slopes that are broadcast."""
    (x, slopes), out = node.input, node.output[0]
    above, below = reading.made("relu", out, X=x), reading.made("relu", out, X=reading.scaled(x, -1.0))
    times = reading.made("elementwise_mul", out, X=below, Y=slopes)
    reading.op("elementwise_sub", {"X": above, "Y": times}, {"Out": out})
