"""`paddle.nn.functional`: activations, layers without parameters of their own, and losses."""

from __future__ import annotations

from typing import Any

import numpy as np

from pstranspile.fluid import layers, nets, unique_name
from pstranspile.fluid.layers.adapt import bound, signature_of, to_core, wrap
from pstranspile.fluid.paddle.figures import norm
from pstranspile.fluid.paddle.later import from_tables, later
from pstranspile.fluid.paddle.nn import images
from pstranspile.fluid.paddle.nn.losses import binary_cross_entropy as binary_cross_entropy
from pstranspile.fluid.paddle.nn.losses import binary_cross_entropy_with_logits as binary_cross_entropy_with_logits
from pstranspile.fluid.paddle.nn.losses import cosine_similarity as cosine_similarity
from pstranspile.fluid.paddle.nn.losses import cross_entropy as cross_entropy
from pstranspile.fluid.paddle.nn.losses import ctc_loss as ctc_loss
from pstranspile.fluid.paddle.nn.losses import kl_div as kl_div
from pstranspile.fluid.paddle.nn.losses import l1_loss as l1_loss
from pstranspile.fluid.paddle.nn.losses import margin_ranking_loss as margin_ranking_loss
from pstranspile.fluid.paddle.nn.losses import mse_loss as mse_loss
from pstranspile.fluid.paddle.nn.losses import nll_loss as nll_loss
from pstranspile.fluid.paddle.nn.losses import reduced as reduced
from pstranspile.fluid.paddle.nn.losses import sigmoid_focal_loss as sigmoid_focal_loss
from pstranspile.fluid.paddle.nn.losses import smooth_l1_loss as smooth_l1_loss
from pstranspile.frontends.layers.basic import layer_outputs

L: Any = layers

_TABLE: dict[str, tuple[str, ...]] = {
    "leaky_relu": ("leaky_relu", "x, negative_slope=0.01", "negative_slope=alpha"),
    "elu": ("elu", "x, alpha=1.0"),
    "gelu": ("gelu", "x, approximate=False"),
    "relu6": ("relu6", "x"),
    "hardswish": ("hard_swish", "x"),
    "hardsigmoid": ("hard_sigmoid", "x, slope=0.1666667, offset=0.5"),
    "hardtanh": ("brelu", "x, min=-1.0, max=1.0", "min=t_min max=t_max"),
    "log_sigmoid": ("logsigmoid", "x"),
    "swish": ("swish", "x"),
    "maxout": ("maxout", "x, groups, axis=1"),
    "label_smooth": ("label_smooth", "label, prior_dist=None, epsilon=0.1"),
    "log_loss": ("log_loss", "input, label, epsilon=0.0001"),
    "square_error_cost": ("square_error_cost", "input, label"),
    "sequence_mask": ("sequence_mask", "x, maxlen=None, dtype='int64'"),
    "pixel_shuffle": ("pixel_shuffle", "x, upscale_factor"),
    "selu": ("selu", "x, scale=1.0507009873554805, alpha=1.6732632423543772"),
    "hardshrink": ("hard_shrink", "x, threshold=0.5"),
    "softshrink": ("softshrink", "x, threshold=0.5", "threshold=alpha"),
    "tanhshrink": ("tanh_shrink", "x"),
    "thresholded_relu": ("thresholded_relu", "x, threshold=1.0"),
    "temporal_shift": ("temporal_shift", "x, seg_num, shift_ratio=0.25"),
    "mish": ("mish", "x"),
}
_SAME = """diag_embed dice_loss gather_tree npair_loss relu sigmoid softmax_with_cross_entropy softsign tanh unfold"""


def softmax(x: Any, axis: int = -1, dtype: Any = None, name: Any = None) -> Any:
    """Shares along `axis` that sum to one, as elements of `dtype`."""
    return L.softmax(x if dtype is None else L.cast(x, dtype), axis=axis, name=name)


def log_softmax(x: Any, axis: int = -1, dtype: Any = None, name: Any = None) -> Any:
    """The logarithm of `softmax`."""
    x = x if dtype is None else L.cast(x, dtype)
    shifted = L.elementwise_sub(x, L.reduce_max(x, dim=axis, keep_dim=True))
    return L.elementwise_sub(shifted, L.log(L.reduce_sum(L.exp(shifted), dim=axis, keep_dim=True)))


def dropout(
    x: Any, p: float = 0.5, axis: Any = None, training: bool = True, mode: str = "upscale_in_train", name: Any = None
) -> Any:
    """Some elements zero in training; with an `axis` whole slices, with a number for each element of these dims."""
    if axis is not None and training:
        sizes, kept = L.shape(x), [axis] if isinstance(axis, int) else axis
        dims: list[Any] = [1] * len(x.shape)
        for dim in kept:
            dims[dim] = x.shape[dim] if x.shape[dim] > 0 else L.slice(sizes, [0], [dim], [dim + 1])
        return L.elementwise_mul(x, dropout(L.fill_constant(dims, x.dtype, 1.0), p, mode=mode))
    if not training:
        return L.scale(x, 1.0 - p if mode == "downscale_in_infer" else 1.0, name=name)
    return L.dropout(x, p, dropout_implementation=mode.replace("downscale_in_infer", "downgrade_in_infer"), name=name)


def linear(x: Any, weight: Any, bias: Any = None, name: Any = None) -> Any:
    """x * weight + bias."""
    own = name or unique_name.generate("linear")  # for both ops, and between the names of layers, as in 2.x
    made = L.matmul(x, weight, name=own)
    return made if bias is None else L.elementwise_add(made, bias, axis=len(x.shape) - 1, name=own)


def embedding(x: Any, weight: Any, padding_idx: int | None = None, sparse: bool = False, name: Any = None) -> Any:
    """The rows of a table that ids choose."""
    ids, table = to_core(x), to_core(weight)
    padding = -1 if padding_idx is None else padding_idx if padding_idx >= 0 else weight.shape[0] + padding_idx
    attrs = {"is_sparse": sparse, "is_distributed": False, "remote_prefetch": sparse, "padding_idx": padding}
    own = name or unique_name.generate("embedding")
    return wrap(layer_outputs("lookup_table_v2", {"Ids": ids, "W": table}, {"Out": table.dtype}, attrs, name=own)[0])


def one_hot(x: Any, num_classes: Any, name: Any = None) -> Any:
    """A row for each id, one at the id and else zero."""
    from pstranspile.fluid.input import one_hot as rows

    return rows(x, num_classes)


def softplus(x: Any, beta: float = 1, threshold: float = 20, name: Any = None) -> Any:
    """The logarithm of 1 + exp(beta * x), by beta; x itself where beta * x is above the threshold."""
    if beta == 1 and threshold >= 20:
        return L.softplus(x)
    scaled = L.scale(x, float(beta))
    # a gradient of clip is 0 at the limit, where that of softplus still counts
    near = L.scale(L.softplus(L.clip(scaled, -3e38, float(np.nextafter(np.float32(threshold), np.inf)))), 1.0 / beta)
    beyond = L.cast(L.greater_than(scaled, L.fill_constant([1], x.dtype, float(threshold))), x.dtype)
    return L.elementwise_add(L.elementwise_mul(near, L.scale(beyond, -1.0, 1.0)), L.elementwise_mul(x, beyond))


def silu(x: Any, name: Any = None) -> Any:
    """x times its sigmoid."""
    return L.swish(x)


def prelu(x: Any, weight: Any, name: Any = None) -> Any:
    """x where it is positive, else x times a weight, one for all or one for each channel."""
    alone = weight.shape[0] == 1
    below = L.elementwise_mul(L.elementwise_min(x, L.zeros_like(x)), weight, axis=-1 if alone else 1)
    return L.elementwise_add(L.relu(x), below)


def normalize(x: Any, p: float = 2, axis: int = 1, epsilon: float = 1e-12, name: Any = None) -> Any:
    """Vectors along `axis`, divided by their p-norm."""
    sizes = norm(x, float(p), axis, True)
    return L.elementwise_div(x, L.elementwise_max(sizes, L.fill_constant([1], x.dtype, epsilon)))


def bilinear(x1: Any, x2: Any, weight: Any, bias: Any = None, name: Any = None) -> Any:
    """A number of each matrix of the weight for pairs of vectors."""
    inputs = {"X": to_core(x1), "Y": to_core(x2), "Weight": to_core(weight)}
    if bias is not None:
        inputs["Bias"] = to_core(bias)
    return wrap(layer_outputs("bilinear_tensor_product", inputs, {"Out": inputs["X"].dtype})[0])


def alpha_dropout(x: Any, p: float = 0.5, training: bool = True, name: Any = None) -> Any:
    """Some elements at the lower end of `selu` in training, so that mean and variance stay."""
    if not training or p == 0:
        return x
    low = -1.0507009873554805 * 1.6732632423543772
    spread = ((1 - p) * (1 + p * low**2)) ** -0.5
    kept = L.dropout(L.ones_like(x), p, dropout_implementation="downgrade_in_infer")
    made = L.elementwise_add(L.elementwise_mul(x, kept), L.scale(kept, -low, low))
    return L.scale(made, spread, -spread * p * low)


def dropout2d(x: Any, p: float = 0.5, training: bool = True, data_format: str = "NCHW", name: Any = None) -> Any:
    """Some channels zero in training."""
    return dropout(x, p, [0, len(x.shape) - 1 if data_format.endswith("C") else 1], training)


def dropout3d(x: Any, p: float = 0.5, training: bool = True, data_format: str = "NCDHW", name: Any = None) -> Any:
    """Some channels zero in training."""
    return dropout(x, p, [0, len(x.shape) - 1 if data_format.endswith("C") else 1], training)


def affine_grid(theta: Any, out_shape: Any, align_corners: bool = True, name: Any = None) -> Any:
    """The former positions of the pixels of images of `out_shape` that `theta` moves."""
    if not align_corners:
        raise ValueError("affine_grid takes corners as pixels: leave out align_corners")
    return L.affine_grid(theta, out_shape)


def grid_sample(
    x: Any,
    grid: Any,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = True,
    name: Any = None,
) -> Any:
    """The pixels of images at places of a grid."""
    if (mode, padding_mode, align_corners) != ("bilinear", "zeros", True):
        raise ValueError("grid_sample is bilinear, with zeros outside and corners as pixels")
    return L.grid_sampler(x, grid)


def max_pool1d(
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    return_mask: bool = False,
    ceil_mode: bool = False,
    name: Any = None,
) -> Any:
    """The largest elements of windows of sequences."""
    return images.pooled(1, "max", x, kernel_size, stride, padding, ceil_mode, refuse=return_mask)


def avg_pool1d(
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    exclusive: bool = True,
    ceil_mode: bool = False,
    name: Any = None,
) -> Any:
    """The means of windows of sequences."""
    return images.pooled(1, "avg", x, kernel_size, stride, padding, ceil_mode, exclusive)


def _max_pool(rank: int) -> Any:
    def pool(
        x: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        return_mask: bool = False,
        ceil_mode: bool = False,
        data_format: str | None = None,
        name: Any = None,
    ) -> Any:
        """The largest elements of windows."""
        return images.pooled(
            rank, "max", x, kernel_size, stride, padding, ceil_mode, data_format=data_format, refuse=return_mask
        )

    return pool


def _avg_pool(rank: int) -> Any:
    def pool(
        x: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        exclusive: bool = True,
        divisor_override: Any = None,
        data_format: str | None = None,
        name: Any = None,
    ) -> Any:
        """The means of windows."""
        settings = kernel_size, stride, padding, ceil_mode, exclusive, data_format, divisor_override
        return images.pooled(rank, "avg", x, *settings)

    return pool


def _adaptive(rank: int, kind: str) -> Any:
    if kind == "max":

        def largest(x: Any, output_size: Any, return_mask: bool = False, name: Any = None) -> Any:
            """The largest elements of as many windows as `output_size` says."""
            return images.adaptive(rank, "max", x, output_size, mask=return_mask)

        return largest

    def means(x: Any, output_size: Any, data_format: str | None = None, name: Any = None) -> Any:
        """The means of as many windows as `output_size` says."""
        return images.adaptive(rank, "avg", x, output_size, data_format)

    return means


def _conv(rank: int, first: str) -> Any:
    def conv(
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        data_format: str = first,
        name: Any = None,
    ) -> Any:
        """What is read, convolved with filters."""
        return images.convolved(rank, x, weight, bias, (stride, padding, dilation, groups), data_format)

    return conv


def _transposed(rank: int, first: str) -> Any:
    signature = signature_of(
        "x, weight, bias=None, stride=1, padding=0, output_padding=0, "
        + ("dilation=1, groups=1" if rank == 2 else "groups=1, dilation=1")
        + f", output_size=None, data_format='{first}', name=None"
    )

    def conv(*args: Any, **options: Any) -> Any:
        """The transposed convolution with filters."""
        given = bound(f"conv{rank}d_transpose", signature, args, options)
        settings = tuple(given[key] for key in ("stride", "padding", "output_padding", "dilation", "groups"))
        held = given["x"], given["weight"], given["bias"]
        return images.transposed(rank, *held, settings, given["output_size"], given["data_format"])

    conv.__signature__ = signature  # type: ignore[attr-defined]
    return conv


max_pool2d, max_pool3d, avg_pool2d, avg_pool3d = _max_pool(2), _max_pool(3), _avg_pool(2), _avg_pool(3)
adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = (_adaptive(rank, "avg") for rank in (1, 2, 3))
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = (_adaptive(rank, "max") for rank in (1, 2, 3))
conv1d, conv2d, conv3d = _conv(1, "NCL"), _conv(2, "NCHW"), _conv(3, "NCDHW")
conv1d_transpose, conv2d_transpose = _transposed(1, "NCL"), _transposed(2, "NCHW")
conv3d_transpose = _transposed(3, "NCDHW")
interpolate = upsample = images.interpolate
layer_norm, instance_norm, local_response_norm = images.layer_norm, images.instance_norm, images.local_response_norm
group_norm, pad, batch_norm = images.group_norm, images.pad, images.batch_norm
glu = later("glu", nets.glu, "x, axis=-1", "x=input axis=dim")


_tabled = from_tables("paddle.nn.functional", globals(), _TABLE, _SAME)


def __getattr__(name: str) -> Any:
    if name in ("relu_", "elu_", "softmax_", "tanh_"):  # nothing is changed in place
        name = name[:-1]
        return globals().get(name) or _tabled(name)
    return _tabled(name)
