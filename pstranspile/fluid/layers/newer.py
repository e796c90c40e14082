"""Layers that came with the last versions of Fluid 1, in which arguments have the names of Fluid 2."""

from __future__ import annotations

import sys
from typing import Any

from pstranspile.fluid.graph.plain import several
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.graph.vartype import dtype_of, vartype_of
from pstranspile.fluid.layer_helper import LayerHelper
from pstranspile.fluid.layers import control_flow, loss, nn, ops, tensor
from pstranspile.fluid.layers.adapt import (
    check_element_type,
    check_kind,
    check_variable,
    checked_all,
    live,
    named,
    one_op,
    renamed_all,
    to_core,
    wrap,
)
from pstranspile.frontends.layers import basic
from pstranspile.ir.types import DType

log1p = one_op("log1p", "x, out=None, name=None", "X=x")
mish = one_op("mish", "x, threshold=20, name=None", "X=x", attrs="threshold")
addmm = one_op(
    "addmm", "input, x, y, alpha=1.0, beta=1.0, name=None", "Input=input X=x Y=y", attrs="Alpha=alpha Beta=beta"
)
sigmoid_focal_loss = one_op(
    "sigmoid_focal_loss",
    "x, label, fg_num, gamma=2.0, alpha=0.25",
    "X=x Label=label FgNum=fg_num",
    attrs="gamma alpha",
)
allclose = one_op(
    "allclose",
    "input, other, rtol=1e-05, atol=1e-08, equal_nan=False, name=None",
    "Input=input Other=other",
    "Out:bool",
    "rtol atol equal_nan",
)
_crossed = one_op("cross", "input, other, dim=None", "X=input Y=other", attrs="dim")
_diagonals = one_op("diag_embed", "input, offset=0, dim1=-2, dim2=-1", "Input=input", attrs="offset dim1 dim2")
_summed: Any = vars(nn)["reduce_sum"]
_averaged: Any = vars(nn)["reduce_mean"]
_windows = one_op(
    "unfold",
    "x, kernel_sizes, strides, paddings, dilations, name=None",
    "X=x",
    "Y",
    "kernel_sizes strides paddings dilations",
)


def cross(input: Any, other: Any, dim: int | None = None) -> Any:
    """The cross products of the vectors along `dim`, by default the first dim of 3 elements."""
    return _crossed(input, other, dim or None)


def diag_embed(input: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    """Matrices with the rows of a tensor on their diagonals. Raises AssertionError for dims that can't be."""
    value = input if isinstance(input, Variable) else tensor.assign(input)
    dims = len(value.shape)
    if abs(dim1) > dims or abs(dim2) > dims or dim1 % (dims + 1) == dim2 % (dims + 1):
        raise AssertionError(f"dim1 and dim2 are two dims of {dims + 1}, not {dim1} and {dim2}")
    made = _diagonals(value, offset, dim1, dim2)
    made.stop_gradient = True
    return made


def _pair(name: str, given: Any) -> list[int]:
    if isinstance(given, int):
        return [given, given]
    if not isinstance(given, list) or len(given) != 2:  # pyright: ignore[reportUnknownArgumentType]
        raise AssertionError(f"unfold: {name} is a whole number or a list of two, not {given!r}")
    return given  # pyright: ignore[reportUnknownVariableType]


def unfold(x: Any, kernel_sizes: Any, strides: Any = 1, paddings: Any = 0, dilations: Any = 1, name: Any = None) -> Any:
    """The windows of images as columns. Raises AssertionError and ValueError for settings of another length."""
    if len(x.shape) != 4:
        raise AssertionError(f"unfold takes images [N, C, H, W], not {list(x.shape)}")
    around: list[int] = [paddings] if isinstance(paddings, int) else list(paddings)
    if len(around) not in (1, 2, 4):
        raise ValueError(f"unfold: paddings are a whole number or a list of two or four, not {paddings!r}")
    around = around * (4 // len(around))
    sizes, steps = _pair("kernel_sizes", kernel_sizes), _pair("strides", strides)
    return _windows(x, sizes, steps, around, _pair("dilations", dilations), name)


def affine_channel(
    x: Any, scale: Any = None, bias: Any = None, data_layout: str = "NCHW", name: Any = None, act: Any = None
) -> Any:
    """A scale and a bias for each channel."""
    with named(name):
        value = to_core(x)
        layer = value.draft.names.mint("affine_channel")
        inputs = {"X": value, "Scale": to_core(scale), "Bias": to_core(bias)}
        made = basic.layer("affine_channel", inputs, value.dtype, {"data_layout": data_layout}, name=layer)
        return wrap(basic.activation(layer, made, act))


def affine_grid(theta: Any, out_shape: Any, name: Any = None) -> Any:
    """The former positions of the pixels of images of `out_shape` that `theta` moves."""
    if not several(out_shape) and not isinstance(out_shape, Variable):
        raise ValueError(f"affine_grid: out_shape is a list or a variable, not a {type(out_shape).__name__}")
    inputs, given = {"Theta": to_core(theta)}, isinstance(out_shape, Variable)
    if given:
        inputs["OutputShape"] = to_core(out_shape)
    attrs = {} if given else {"output_shape": list(out_shape)}
    made = basic.layer_outputs("affine_grid", inputs, {"Output": inputs["Theta"].dtype}, attrs)
    return wrap(made[0])


def meshgrid(input: Any, name: Any = None) -> list[Any]:
    """The coordinates of a grid, from those along each dim."""
    if not isinstance(input, list):
        raise TypeError(f"meshgrid takes a list of variables, not a {type(input).__name__}")
    values: list[Any] = to_core(input)
    draft = live()
    layer = draft.names.mint("meshgrid")
    made = [draft.temporary(layer, value.dtype) for value in values]
    draft.op("meshgrid", {"X": values}, {"Out": made})
    return wrap(made)


def full(
    shape: Any,
    fill_value: Any,
    out: Any = None,
    dtype: Any = None,
    device: Any = None,
    stop_gradient: bool = True,
    name: Any = None,
) -> Any:
    """A tensor of one value."""
    check_element_type("full", "dtype", dtype or "float32", ("bool", "float16", "float32", "float64", "int32", "int64"))
    check_kind("full", "shape", shape, ("Variable", "list", "tuple"))
    target = LayerHelper("full").create_variable_for_type_inference(dtype or "float32") if out is None else out
    made = tensor.fill_constant(shape, dtype or "float32", fill_value, out=target)
    made.stop_gradient = stop_gradient
    return made


def full_like(
    input: Any,
    fill_value: Any,
    out: Any = None,
    dtype: Any = None,
    device: Any = None,
    stop_gradient: bool = True,
    name: Any = None,
) -> Any:
    """A tensor of one value with the dims of another."""
    kinds = ("bool", "float16", "float32", "float64", "int32", "int64")
    check_element_type("full_like", "dtype", input.dtype if dtype is None else dtype, kinds)
    value = to_core(input)
    kind = value.dtype if dtype is None else dtype_of(dtype)
    written = {"Out": kind if out is None else to_core(out)}
    attrs = {"value": float(fill_value), "dtype": kind}
    made = wrap(basic.layer_outputs("fill_any_like", {"X": value}, written, attrs, key="full_like")[0])
    made.stop_gradient = stop_gradient
    return made


def elementwise_equal(x: Any, y: Any, name: Any = None) -> Any:
    """Whether two tensors are equal, element by element."""
    inputs = {"X": to_core(x), "Y": to_core(y)}
    made = basic.layer_outputs("equal", inputs, {"Out": DType.BOOL}, {"force_cpu": False}, key="elementwise_equal")
    return wrap(made[0].stopped())


def arange(start: Any, end: Any, step: Any = 1, dtype: Any = None, name: Any = None) -> Any:
    """Numbers from start to end (which is left out), `step` apart."""
    return tensor.range(start, end, step, dtype or "float32")


def addcmul(input: Any, tensor1: Any, tensor2: Any, value: Any = 1.0, out: Any = None, name: Any = None) -> Any:
    """input + tensor1 * tensor2 * value. Raises TypeError for a value that is not of their kind."""
    wanted = int if to_core(input).dtype in (DType.INT32, DType.INT64) else float
    if not isinstance(value, wanted):
        raise TypeError(f"addcmul: value must be {wanted.__name__}, not {type(value).__name__}")
    product: Any = vars(nn)["elementwise_mul"](tensor1, tensor2)
    made = vars(nn)["elementwise_add"](input, product * value)
    return made if out is None else tensor.assign(made, out)


def clamp(input: Any, min: Any = None, max: Any = None, output: Any = None, name: Any = None) -> Any:
    """What lies below `min` or above `max`, numbers or variables, takes that value. Raises AssertionError for none."""
    if min is None and max is None:
        raise AssertionError("clamp needs min or max")
    value = to_core(input)
    inputs, attrs = {"X": value}, {"min": sys.float_info.min, "max": sys.float_info.max}
    for slot, attr, bound in (("Min", "min", min), ("Max", "max", max)):
        if isinstance(bound, Variable):
            inputs[slot] = to_core(bound).stopped()
        elif bound is not None:
            attrs[attr] = bound
    written = {"Out": value.dtype if output is None else to_core(output)}
    return wrap(basic.layer_outputs("clip", inputs, written, attrs, key="clamp")[0])


def logsumexp(x: Any, dim: Any = None, keepdim: bool = False, out: Any = None, name: Any = None) -> Any:
    """The logarithm of the sum of the exponentials along dims. Raises AssertionError for None."""
    assert x is not None, "logsumexp: x must be Variable, not None"
    check_variable("logsumexp", "x", x, ("float32", "float64"))
    summed = basic.reduce_sum(basic.exp(to_core(x)), dim, keep_dim=keepdim)
    if out is None:
        return wrap(basic.log(summed, name=name))
    return wrap(basic.layer_outputs("log", {"X": summed}, {"Out": to_core(out)}, key="logsumexp")[0])


def log_softmax(input: Any, axis: int | None = None, dtype: Any = None, name: Any = None) -> Any:
    """The logarithm of the softmax along a dim (default: the last one), of the input as `dtype` where that is given."""
    if dtype is None:
        check_variable("log_softmax", "input", input, ("float16", "float32", "float64"))
    helper, held = LayerHelper("log_softmax", name=name), input
    cast: dict[str, Any] = {} if dtype is None else {"in_dtype": input.dtype, "out_dtype": vartype_of(dtype_of(dtype))}
    softmax = {"axis": -1 if axis is None else axis, "use_cudnn": False}
    for op_type, attrs in (("cast", cast), ("softmax", softmax), ("log", {})):
        if op_type != "cast" or cast:
            made = helper.create_variable_for_type_inference(cast.get("out_dtype", input.dtype))
            helper.append_op(type=op_type, inputs={"X": held}, outputs={"Out": made}, attrs=attrs)
            held = made
    return held


def t(input: Any, name: Any = None) -> Any:
    """A matrix with its dims exchanged; a vector as it is. Raises ValueError for more dims."""
    if len(input.shape) > 2:
        raise ValueError(f"t takes matrices and vectors, not {list(input.shape)}: use transpose")
    if len(input.shape) == 1:
        return input
    helper = LayerHelper("t", name=name)
    made, dims = (helper.create_variable_for_type_inference(input.dtype) for _ in range(2))
    outputs = {"Out": made, "XShape": dims}
    helper.append_op(type="transpose2", inputs={"X": input}, outputs=outputs, attrs={"axis": [1, 0]})
    return made


def nonzero(input: Any, as_tuple: bool = False) -> Any:
    """The positions of elements other than 0: a row of places for each, or with `as_tuple` a column for each dim."""
    made, dims = nn.where(input), len(input.shape)
    if not as_tuple:
        return made
    if dims == 1:
        return (made,)
    return tuple(nn.slice(made, [dims - 1], [dim], [dim + 1]) for dim in range(dims))


def scatter_nd(index: Any, updates: Any, shape: Any, name: Any = None) -> Any:
    """Zeros of dims `shape`, with updates added at places."""
    return nn.scatter_nd_add(tensor.zeros(shape, updates.dtype), index, updates, name)


def npair_loss(anchor: Any, positive: Any, labels: Any, l2_reg: float = 0.002) -> Any:
    """The cross entropy of the likeness of anchors and positives, and a quarter of the decay `l2_reg` of both."""
    rows = labels.shape[0]
    columns = nn.expand(nn.reshape(labels, [rows, 1], inplace=True), [1, rows])
    alike: Any = control_flow.equal(columns, nn.transpose(columns, [1, 0])).astype("float32")
    shares = alike / _summed(alike, 1, True)
    sizes = [_averaged(_summed(vars(ops)["square"](each), 1)) for each in (anchor, positive)]
    decay = (sizes[0] + sizes[1]) * 0.25 * l2_reg
    entropy = loss.softmax_with_cross_entropy(nn.matmul(anchor, positive, False, True), shares, soft_label=True)
    return decay + _averaged(_summed(shares * entropy, 0))


renamed_all({name: value for name, value in globals().items() if getattr(value, "__signature__", None) is not None})
checked_all(globals())
