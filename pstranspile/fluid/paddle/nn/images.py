"""Parts of `paddle.nn.functional`: convolutions, pools, norms and sizes of sequences, images and volumes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pstranspile.fluid import layers
from pstranspile.fluid.graph.plain import several
from pstranspile.fluid.graph.variable import last_op
from pstranspile.fluid.layers.adapt import to_core, wrap
from pstranspile.fluid.missing import refused
from pstranspile.frontends.layers.basic import layer_outputs
from pstranspile.frontends.layers.conv import each_dim, paddings_of

L: Any = layers
_CHANNELS_FIRST = {1: "NCL", 2: "NCHW", 3: "NCDHW"}


def _op(op_type: str, inputs: dict[str, Any], outputs: str, attrs: dict[str, Any], name: Any = None) -> list[Any]:
    """The outputs of an op; the first ones have the element type of its first input."""
    given = {slot: to_core(value) for slot, value in inputs.items() if value is not None}
    kind: Any = next(iter(given.values())).dtype
    slots: dict[str, Any] = dict.fromkeys(outputs.split(), kind)
    return wrap(layer_outputs(op_type, given, slots, attrs, name=name))


def _wide(value: Any, before: Any) -> Any:
    """A setting of one dim as that of two, of which the first has size 1."""
    if isinstance(value, str) or value is None:
        return value
    listed = [value] if isinstance(value, int) else list(value)
    return [*([before] * len(listed)), *listed]


def _last(data_format: str) -> bool:
    return data_format.endswith("C")


def _biased(made: Any, bias: Any, data_format: str) -> Any:
    return made if bias is None else L.elementwise_add(made, bias, axis=-1 if _last(data_format) else 1)


def _sequences(function: Callable[[Any], Any], x: Any, data_format: str) -> Any:
    """What a function of images makes of sequences, which are images of height 1."""
    axis = 1 if _last(data_format) else 2
    return L.squeeze(function(L.unsqueeze(x, [axis])), [axis])


def convolved(rank: int, x: Any, weight: Any, bias: Any, settings: tuple[Any, ...], data_format: str) -> Any:
    """x convolved with filters; settings are stride, padding, dilation and groups."""
    stride, padding, dilation, groups = settings
    if rank == 1:
        wide = _wide(stride, 1), _wide(padding, 0), _wide(dilation, 1), groups
        image, filters = ("NHWC" if _last(data_format) else "NCHW"), L.unsqueeze(weight, [2])
        return _sequences(lambda held: convolved(2, held, filters, bias, wide, image), x, data_format)
    paddings, algorithm = paddings_of(padding, data_format)
    attrs = {
        "strides": each_dim(stride, rank),
        "paddings": paddings,
        "dilations": each_dim(dilation, rank),
        "groups": groups,
        "use_cudnn": True,
        "padding_algorithm": algorithm,
        "data_format": data_format,
    }
    return _biased(_op(f"conv{rank}d", {"Input": x, "Filter": weight}, "Output", attrs)[0], bias, data_format)


def transposed(
    rank: int, x: Any, weight: Any, bias: Any, settings: tuple[Any, ...], output_size: Any, data_format: str
) -> Any:
    """The transposed convolution; settings are stride, padding, added size, dilation and groups."""
    stride, padding, more, dilation, groups = settings
    if rank == 1:
        wide = _wide(stride, 1), _wide(padding, 0), _wide(more, 0), _wide(dilation, 1), groups
        image, filters = ("NHWC" if _last(data_format) else "NCHW"), L.unsqueeze(weight, [2])
        sizes = _wide(output_size, 1)
        return _sequences(lambda held: transposed(2, held, filters, bias, wide, sizes, image), x, data_format)
    paddings, algorithm = paddings_of(padding, data_format)
    strides, dilations = each_dim(stride, rank), each_dim(dilation, rank)
    sizes = [] if output_size is None else each_dim(output_size, rank)
    if any(added := each_dim(more, rank)):
        images = x.shape[1:-1] if _last(data_format) else x.shape[2:]
        if min(images) < 0 or len(paddings) != rank:
            raise refused("output_padding for images of open size", "give output_size")
        axes = zip(images, strides, paddings, dilations, weight.shape[2:], added, strict=True)
        sizes = [(size - 1) * step - 2 * p + apart * (k - 1) + 1 + a for size, step, p, apart, k, a in axes]
    attrs = {
        "output_size": sizes,
        "strides": strides,
        "paddings": paddings,
        "padding_algorithm": algorithm,
        "dilations": dilations,
        "groups": groups,
        "use_cudnn": True,
        "data_format": "NHWC" if _last(data_format) else "NCHW",
    }
    made = _op(f"conv{rank}d_transpose", {"Input": x, "Filter": weight}, "Output", attrs)[0]
    return _biased(made, bias, data_format)


def pooled(
    rank: int,
    kind: str,
    x: Any,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    exclusive: bool = True,
    data_format: str | None = None,
    refuse: Any = None,
) -> Any:
    """The largest elements (`max`) or the means (`avg`) of windows. Raises NotHere for `refuse`."""
    if refuse:
        raise refused(f"{kind}_pool{rank}d(return_mask or divisor_override)", "leave it out")
    stride, data_format = stride or kernel_size, data_format or _CHANNELS_FIRST[rank]
    if rank == 1:
        settings = _wide(kernel_size, 1), _wide(stride, 1), _wide(padding, 0), ceil_mode, exclusive
        image = "NHWC" if _last(data_format) else "NCHW"
        return _sequences(lambda held: pooled(2, kind, held, *settings, image), x, data_format)
    pool = L.pool2d if rank == 2 else L.pool3d
    return pool(
        x, kernel_size, kind, stride, padding, ceil_mode=ceil_mode, exclusive=exclusive, data_format=data_format
    )


def adaptive(rank: int, kind: str, x: Any, output_size: Any, data_format: str | None = None, mask: bool = False) -> Any:
    """The largest elements or the means of as many windows as `output_size` says."""
    if data_format not in (None, _CHANNELS_FIRST[rank]):
        raise refused(f"adaptive_{kind}_pool{rank}d(data_format={data_format!r})", "put channels first")
    if rank == 1:
        return _sequences(lambda held: adaptive(2, kind, held, _wide(output_size, 1)), x, "NCL")
    sizes: list[Any] = [output_size] * rank if isinstance(output_size, int) else list(output_size)
    sizes = [x.shape[2 + dim] if size in (None, -1) else size for dim, size in enumerate(sizes)]
    return (L.adaptive_pool2d if rank == 2 else L.adaptive_pool3d)(x, sizes, kind, mask)


def batch_norm(
    x: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any,
    bias: Any,
    training: bool = False,
    momentum: float = 0.9,
    epsilon: float = 1e-05,
    data_format: str = "NCHW",
    use_global_stats: bool | None = None,
    name: Any = None,
) -> Any:
    """Each channel with mean 0 and variance 1, then scaled and shifted.

    The mean and the variance are the running ones where it does not train, else those of the batch, which the running
    ones take in; `use_global_stats` says otherwise.
    """
    held = {"X": x, "Mean": running_mean, "Variance": running_var, "Scale": weight, "Bias": bias}
    given = {slot: to_core(value) for slot, value in held.items()}
    kept = not training if use_global_stats is None else use_global_stats
    attrs = {"momentum": momentum, "epsilon": epsilon, "is_test": not training, "use_global_stats": kept}
    attrs |= {"data_layout": "NHWC" if _last(data_format) and len(data_format) > 2 else "NCHW"}
    attrs |= {"trainable_statistics": use_global_stats is False}
    outputs = {"Y": given["X"].dtype, "MeanOut": given["Mean"], "VarianceOut": given["Variance"]}
    outputs |= dict.fromkeys(("SavedMean", "SavedVariance"), given["Mean"].dtype)
    return wrap(layer_outputs("batch_norm", given, outputs, attrs, name=name))[0]


def layer_norm(
    x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, epsilon: float = 1e-05, name: Any = None
) -> Any:
    """Each sample with mean 0 and variance 1 over its last dims, then scaled and shifted."""
    dims = 1 if isinstance(normalized_shape, int) else len(normalized_shape)
    attrs = {"epsilon": epsilon, "begin_norm_axis": len(x.shape) - dims}
    return _op("layer_norm", {"X": x, "Scale": weight, "Bias": bias}, "Y Mean Variance", attrs)[0]


def group_norm(
    x: Any,
    num_groups: int,
    epsilon: float = 1e-05,
    weight: Any = None,
    bias: Any = None,
    data_format: str = "NCHW",
    name: Any = None,
) -> Any:
    """Each group of channels of a sample with mean 0 and variance 1, then scaled and shifted."""
    attrs = {"epsilon": epsilon, "groups": num_groups, "data_layout": data_format}
    return _op("group_norm", {"X": x, "Scale": weight, "Bias": bias}, "Y Mean Variance", attrs, name)[0]


def instance_norm(
    x: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.9,
    eps: float = 1e-05,
    data_format: str = "NCHW",
    name: Any = None,
) -> Any:
    """Each channel of a sample with mean 0 and variance 1, then scaled and shifted where it is said by what."""
    if len(x.shape) == 3:
        return _sequences(lambda held: instance_norm(held, None, None, weight, bias, eps=eps), x, "NCL")
    held = [
        L.fill_constant([x.shape[1]], x.dtype, value) if given is None else given
        for given, value in ((weight, 1.0), (bias, 0.0))
    ]
    inputs = {"X": x, "Scale": held[0], "Bias": held[1]}
    return _op("instance_norm", inputs, "Y SavedMean SavedVariance", {"epsilon": eps})[0]


def local_response_norm(
    x: Any,
    size: int,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 1.0,
    data_format: str = "NCHW",
    name: Any = None,
) -> Any:
    """Elements divided by a power of the mean of squares over `size` channels around each."""
    if len(x.shape) != 4:
        raise refused(f"local_response_norm of {len(x.shape)} dims", "it takes images")
    return L.lrn(x, size, k, alpha / size, beta, data_format=data_format)


def pad(
    x: Any, pad: Any, mode: str = "constant", value: float = 0.0, data_format: str = "NCHW", name: Any = None
) -> Any:
    """Elements put around the last dims, from the last one on: two for it, two for the one before it.

    With two for each dim, in the order of the dims.
    """
    sides = [pad] * (2 * (len(x.shape) - 2)) if isinstance(pad, int) else [int(side) for side in pad]
    if len(sides) == 2 * len(x.shape):
        if mode != "constant":
            raise refused(f"pad of all dims with {mode}", "it pads with a constant")
        return L.pad(x, sides, float(value))
    pairs = [sides[at : at + 2] for at in range(0, len(sides), 2)][::-1]
    if mode != "constant":
        if len(x.shape) != 4 or mode == "circular":
            raise refused(f"pad of {len(x.shape)} dims with {mode}", "it pads images with constant, reflect, replicate")
        kind = {"reflect": "reflect", "replicate": "edge"}[mode]
        return L.pad2d(x, [side for pair in pairs for side in pair], kind, data_format=data_format)
    outer = [[0, 0], *pairs, [0, 0]] if _last(data_format) else [[0, 0], [0, 0], *pairs]
    return L.pad(x, [side for pair in outer for side in pair], float(value))


def interpolate(
    x: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool = False,
    align_mode: int = 0,
    data_format: str = "NCHW",
    name: Any = None,
) -> Any:
    """Images of another size, or of their own times a factor."""
    kind = {"nearest": "NEAREST", "bilinear": "BILINEAR", "trilinear": "TRILINEAR"}.get(mode)
    factors: set[Any] = {*scale_factor} if several(scale_factor) else {scale_factor}
    factor = next(iter(factors))
    if kind is None or len(factors) > 1:
        raise refused(f"interpolate(mode={mode!r}, scale_factor={scale_factor!r})", "it takes one factor; no cubes")
    corners = align_corners if mode != "nearest" else False
    made = L.image_resize(
        x, size, factor, resample=kind, align_corners=corners, align_mode=align_mode, data_format=data_format
    )
    if size is None:
        last_op(made)._set_attr("by_scale", True)
    return made
