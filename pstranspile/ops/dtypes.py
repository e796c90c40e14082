"""Ops that declare what they write with the element type of what they read, whatever was declared before."""

from __future__ import annotations

from collections.abc import Mapping

_UNARY = (
    "abs acos asin assign atan brelu ceil cos elu exp flip floor get_tensor_from_selected_rows hard_shrink "
    "hard_sigmoid hard_swish leaky_relu log log1p logsigmoid mean merge_selected_rows pool2d pool3d pow reciprocal "
    "relu relu6 round rsqrt scale selu sigmoid sin soft_relu softmax softplus softshrink softsign sqrt square stanh "
    "sum swish tanh tanh_shrink thresholded_relu"
)
_BINARY = "add div max min mul pow sub"

DTYPE_FOLLOWS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys((*_UNARY.split(), "mul", "write_to_array"), ("X", "Out")),
    **{f"elementwise_{name}": ("X", "Out") for name in _BINARY.split()},
    **dict.fromkeys(("conv2d", "conv3d", "depthwise_conv2d"), ("Input", "Output")),
    **{f"{kind}_norm": ("X", "Y") for kind in ("batch", "group", "instance")},
    **dict.fromkeys(("cross_entropy", "cross_entropy2", "inplace_abn"), ("X", "Y")),
}
"""Op type -> the input slot whose element type Fluid gives to the output slot when the op is appended."""
