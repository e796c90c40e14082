"""The layers of `paddle.nn` that have no parameters: activations, pools, losses and dropout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pstranspile.fluid import layers
from pstranspile.fluid.layers.adapt import bound, signature_of
from pstranspile.fluid.paddle import figures
from pstranspile.fluid.paddle.nn import functional
from pstranspile.fluid.paddle.nn.layer import Layer
from pstranspile.fluid.paddle.tensor import flatten

L: Any = layers


def _calls(name: str, function: Callable[..., Any], arguments: str, inputs: str = "x") -> Any:
    """A class of layers without parameters: `arguments` are the parameters of its constructor; a call of the layer
    passes its `inputs`, followed by these, to `function`.
    """
    signature, read = signature_of(f"{arguments}{', ' if arguments else ''}name=None"), signature_of(inputs)

    def start(self: Any, *args: Any, **options: Any) -> None:
        Layer.__init__(self)
        self._settings = bound(name, signature, args, options)
        del self._settings["name"]

    def forward(self: Any, *args: Any, **options: Any) -> Any:
        given = bound(name, read, args, options)
        return function(*given.values(), **self._settings)

    return type(name, (Layer,), {"__init__": start, "forward": forward, "__doc__": function.__doc__})


_TWO = "input, label"
ReLU = _calls("ReLU", L.relu, "")
Sigmoid, Tanh = _calls("Sigmoid", L.sigmoid, ""), _calls("Tanh", L.tanh, "")
Softmax, LogSoftmax = (
    _calls("Softmax", functional.softmax, "axis=-1"),
    _calls("LogSoftmax", functional.log_softmax, "axis=-1"),
)
LeakyReLU = _calls("LeakyReLU", functional.leaky_relu, "negative_slope=0.01")
ReLU6, ELU = _calls("ReLU6", functional.relu6, ""), _calls("ELU", functional.elu, "alpha=1.0")
GELU, Swish = _calls("GELU", functional.gelu, "approximate=False"), _calls("Swish", functional.swish, "")
Hardswish, Hardsigmoid = (
    _calls("Hardswish", functional.hardswish, ""),
    _calls("Hardsigmoid", functional.hardsigmoid, ""),
)
Flatten = _calls("Flatten", flatten, "start_axis=1, stop_axis=-1")
AdaptiveAvgPool2D = _calls("AdaptiveAvgPool2D", functional.adaptive_avg_pool2d, "output_size")
AdaptiveMaxPool2D = _calls("AdaptiveMaxPool2D", functional.adaptive_max_pool2d, "output_size")
CrossEntropyLoss = _calls(
    "CrossEntropyLoss",
    functional.cross_entropy,
    "weight=None, ignore_index=-100, reduction='mean', soft_label=False, axis=-1",
    _TWO,
)
MSELoss = _calls("MSELoss", functional.mse_loss, "reduction='mean'", _TWO)
L1Loss = _calls("L1Loss", functional.l1_loss, "reduction='mean'", _TWO)
SmoothL1Loss = _calls("SmoothL1Loss", functional.smooth_l1_loss, "reduction='mean', delta=1.0", _TWO)
BCELoss = _calls("BCELoss", functional.binary_cross_entropy, "weight=None, reduction='mean'", _TWO)
BCEWithLogitsLoss = _calls(
    "BCEWithLogitsLoss",
    functional.binary_cross_entropy_with_logits,
    "weight=None, reduction='mean', pos_weight=None",
    "logit, label",
)
KLDivLoss = _calls("KLDivLoss", functional.kl_div, "reduction='mean'", _TWO)
CosineSimilarity = _calls("CosineSimilarity", functional.cosine_similarity, "axis=1, eps=1e-08", "x1, x2")


def _pair_distance(x: Any, y: Any, p: float = 2.0, epsilon: float = 1e-6, keepdim: bool = False) -> Any:
    """The p-norms of the differences of corresponding rows."""
    return figures.norm(L.scale(L.elementwise_sub(x, y), 1.0, epsilon), p, 1, keepdim)


def _dropped(function: Callable[..., Any], name: str, arguments: str) -> Any:
    """A class of layers that call a dropout function, to which they pass whether they train."""
    made = _calls(name, function, arguments)
    own = made.forward

    def forward(self: Any, x: Any) -> Any:
        self._settings["training"] = self.training
        return own(self, x)

    made.forward = forward
    return made


_RESIZED = "size=None, scale_factor=None, {}data_format='NCHW'"
_WINDOWS = "kernel_size, stride=None, padding=0, "
Hardshrink, Softshrink = (
    _calls("Hardshrink", functional.hardshrink, "threshold=0.5"),
    _calls("Softshrink", functional.softshrink, "threshold=0.5"),
)
Tanhshrink, Softsign = _calls("Tanhshrink", functional.tanhshrink, ""), _calls("Softsign", functional.softsign, "")
ThresholdedReLU = _calls("ThresholdedReLU", functional.thresholded_relu, "threshold=1.0")
Hardtanh, LogSigmoid = (
    _calls("Hardtanh", functional.hardtanh, "min=-1.0, max=1.0"),
    _calls("LogSigmoid", functional.log_sigmoid, ""),
)
SELU = _calls("SELU", functional.selu, "scale=1.0507009873554805, alpha=1.6732632423543772")
Softplus, Silu, Mish = (
    _calls("Softplus", functional.softplus, "beta=1, threshold=20"),
    _calls("Silu", functional.silu, ""),
    _calls("Mish", functional.mish, ""),
)
Maxout = _calls("Maxout", functional.maxout, "groups, axis=1")
PixelShuffle = _calls("PixelShuffle", functional.pixel_shuffle, "upscale_factor")
MaxPool1D = _calls("MaxPool1D", functional.max_pool1d, _WINDOWS + "return_mask=False, ceil_mode=False")
MaxPool2D = _calls(
    "MaxPool2D", functional.max_pool2d, _WINDOWS + "return_mask=False, ceil_mode=False, data_format='NCHW'"
)
AvgPool2D = _calls(
    "AvgPool2D",
    functional.avg_pool2d,
    _WINDOWS + "ceil_mode=False, exclusive=True, divisor_override=None, data_format='NCHW'",
)
MaxPool3D = _calls(
    "MaxPool3D", functional.max_pool3d, _WINDOWS + "return_mask=False, ceil_mode=False, data_format='NCDHW'"
)
AvgPool1D = _calls("AvgPool1D", functional.avg_pool1d, _WINDOWS + "exclusive=True, ceil_mode=False")
AvgPool3D = _calls(
    "AvgPool3D",
    functional.avg_pool3d,
    _WINDOWS + "ceil_mode=False, exclusive=True, divisor_override=None, data_format='NCDHW'",
)
AdaptiveAvgPool1D = _calls("AdaptiveAvgPool1D", functional.adaptive_avg_pool1d, "output_size")
AdaptiveAvgPool3D = _calls("AdaptiveAvgPool3D", functional.adaptive_avg_pool3d, "output_size")
AdaptiveMaxPool1D = _calls("AdaptiveMaxPool1D", functional.adaptive_max_pool1d, "output_size, return_mask=False")
AdaptiveMaxPool3D = _calls("AdaptiveMaxPool3D", functional.adaptive_max_pool3d, "output_size, return_mask=False")
LocalResponseNorm = _calls(
    "LocalResponseNorm", functional.local_response_norm, "size, alpha=0.0001, beta=0.75, k=1.0, data_format='NCHW'"
)
Pad1D = _calls("Pad1D", functional.pad, "pad, mode='constant', value=0.0, data_format='NCL'")
Pad2D = _calls("Pad2D", functional.pad, "pad, mode='constant', value=0.0, data_format='NCHW'")
Pad3D = _calls("Pad3D", functional.pad, "pad, mode='constant', value=0.0, data_format='NCDHW'")
Upsample = _calls(
    "Upsample", functional.interpolate, _RESIZED.format("mode='nearest', align_corners=False, align_mode=0, ")
)
UpsamplingNearest2D = _calls("UpsamplingNearest2D", functional.interpolate, _RESIZED.format(""))


def _bilinear(x: Any, **settings: Any) -> Any:
    """Images resized by bilinear interpolation."""
    return functional.interpolate(x, mode="bilinear", align_corners=True, **settings)


UpsamplingBilinear2D = _calls("UpsamplingBilinear2D", _bilinear, _RESIZED.format(""))
NLLLoss = _calls("NLLLoss", functional.nll_loss, "weight=None, ignore_index=-100, reduction='mean'", _TWO)
MarginRankingLoss = _calls(
    "MarginRankingLoss", functional.margin_ranking_loss, "margin=0.0, reduction='mean'", "input, other, label"
)
CTCLoss = _calls(
    "CTCLoss", functional.ctc_loss, "blank=0, reduction='mean'", "log_probs, labels, input_lengths, label_lengths"
)
PairwiseDistance = _calls("PairwiseDistance", _pair_distance, "p=2.0, epsilon=1e-06, keepdim=False", "x, y")
Dropout = _dropped(functional.dropout, "Dropout", "p=0.5, axis=None, mode='upscale_in_train'")
Dropout2D = _dropped(functional.dropout2d, "Dropout2D", "p=0.5, data_format='NCHW'")
Dropout3D = _dropped(functional.dropout3d, "Dropout3D", "p=0.5, data_format='NCDHW'")
AlphaDropout = _dropped(functional.alpha_dropout, "AlphaDropout", "p=0.5")
