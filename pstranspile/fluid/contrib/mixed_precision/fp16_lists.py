"""Fluid's `fp16_lists`: which ops compute in float16 under mixed precision, which never do, and which follow others."""

from __future__ import annotations

from collections.abc import Iterable

white_list = {"conv2d", "matmul", "mul"}
"""Op types that compute in float16."""

black_list = {
    *("exp", "square", "log", "mean", "sum", "cos_sim", "softmax", "softmax_with_cross_entropy"),
    *("sigmoid_cross_entropy_with_logits", "cross_entropy", "cross_entropy2"),
}
"""Op types that compute in float32."""

gray_list = {
    *(f"elementwise_{kind}" for kind in ("add", "sub", "mul", "div", "max", "min", "pow", "mod", "floordiv")),
    *("batch_norm", "tanh", "sigmoid", "lookup_table", "top_k", "pool2d", "pool3d", "dropout", "relu", "relu6"),
    *("leaky_relu", "soft_relu", "flatten2", "stack", "unstack", "uniform_random_batch_size_like", "gaussian_random"),
    *("gaussian_random_batch_size_like", "slice", "rank", "scale", "transpose2", "reshape2", "gather"),
    *("fill_constant", "get_tensor_from_selected_rows", "sign", "cast"),
}
"""Op types that compute as the ops before them."""


class AutoMixedPrecisionLists:
    """The three lists, with op types that a script has moved, and variables whose ops compute in float32."""

    def __init__(
        self,
        custom_white_list: Iterable[str] | None = None,
        custom_black_list: Iterable[str] | None = None,
        custom_black_varnames: Iterable[str] | None = None,
    ):
        white, black = set(custom_white_list or ()), set(custom_black_list or ())
        if both := sorted(white & black):
            raise ValueError(f"the white list and the black list both have {', '.join(both)}")
        self.white_list = (white_list | white) - black
        self.black_list = (black_list | black) - white
        self.gray_list = gray_list - white - black
        self.black_varnames = custom_black_varnames if custom_black_varnames is None else set(custom_black_varnames)
