"""ATen operators that compute element by element, and reductions, as ops of a program."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pstranspile.frontends.layers.draft import Refused
from pstranspile.frontends.onnx.read_tensors import (
    common,
    expand,
    fill,
    of_one_shape,
    reshape,
    sizes_of,
    with_x_shape,
)
from pstranspile.frontends.onnx.reading import Dim, is_code
from pstranspile.frontends.torch.tracing import FLOATS, Tracing, argument, aten, dtype_of, fraction_of
from pstranspile.ir.types import DType

# Functions of one value.

_UNARY = {
    "relu": "relu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "exp": "exp",
    "log": "log",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "abs": "abs",
    "ceil": "ceil",
    "floor": "floor",
    "cos": "cos",
    "sin": "sin",
    "acos": "acos",
    "asin": "asin",
    "atan": "atan",
    "erf": "erf",
    "reciprocal": "reciprocal",
    "square": "square",
    "sign": "sign",
    "softsign": "softsign",
    "log_sigmoid": "logsigmoid",
    "log1p": "log1p",
    "round": "round",
    "logical_not": "logical_not",
}
"""The op of each ATen operator with one tensor operand."""


@aten(*_UNARY)
def _unary(node: Any, tracing: Tracing, out: str) -> None:
    kind = node.target.__name__.split(".")[0]
    x = tracing.value(node.args[0])
    if kind == "logical_not":
        x = tracing.as_type(x, DType.BOOL)
    elif tracing.dtype(x) not in FLOATS:
        if kind not in ("abs", "sign", "square", "relu"):
            x = tracing.as_type(x, dtype_of(node.meta["val"].dtype))
    elif kind == "relu" and _is_absolute(node.args[0]):
        # what follows may have an infinite gradient at 0, as a root has in `lp_pool2d`, which the op multiplies by 0
        tracing.op("where", {"Condition": positive(x, tracing), "X": x, "Y": zeros_as(x, tracing)}, {"Out": out})
        return
    elif kind == "sign":
        # its gradient is 0 even where that of what follows is infinite; the condition does not hold for numbers
        made = tracing.op_result("sign", out, X=x)
        tracing.draft.stop_gradient.add(made)
        tracing.op(
            "where", {"Condition": comparison_flags("not_equal", made, made, tracing), "X": x, "Y": made}, {"Out": out}
        )
        return
    tracing.op(_UNARY[kind], {"X": x}, {"Out": out})


def _is_absolute(arg: Any) -> bool:
    """Whether an argument is the absolute value of another."""
    return arg.op == "call_function" and arg.target.__name__.startswith("abs.")


def positive(x: str, tracing: Tracing) -> str:
    """The flags of the elements above 0."""
    return comparison_flags("greater_than", x, tracing.constant_of(0.0, tracing.dtype(x), x), tracing)


def zeros_as(x: str, tracing: Tracing) -> str:
    """Zeros of the dims and the element type of `x`."""
    made = tracing.op_result("fill_zeros_like", x, X=x)
    tracing.draft.stop_gradient.add(made)
    return made


def append_where(condition: str, x: str, y: str, out: str, tracing: Tracing) -> None:
    """`out` is `x` where the condition holds, else `y`; they are broadcast together."""
    flags, first, second = of_one_shape([condition, x, y], tracing)
    tracing.op("where", {"Condition": flags, "X": first, "Y": second}, {"Out": out})


def detached(x: str, tracing: Tracing) -> str:
    """The value of `x` without its gradient."""
    made = tracing.op_result("assign", x, X=x)
    tracing.draft.stop_gradient.add(made)
    return made


@aten("neg")
def _neg(node: Any, tracing: Tracing, out: str) -> None:
    tracing.scale(tracing.value(node.args[0]), out, -1.0)


@aten("bitwise_not")
def _not(node: Any, tracing: Tracing, out: str) -> None:
    x = tracing.value(node.args[0])
    op_type = "logical_not" if tracing.dtype(x) is DType.BOOL else "bitwise_not"
    tracing.op(op_type, {"X": x}, {"Out": out})
    tracing.draft.stop_gradient.add(out)


@aten("silu")
def _silu(node: Any, tracing: Tracing, out: str) -> None:
    x = tracing.value(node.args[0])
    tracing.op("elementwise_mul", {"X": x, "Y": tracing.op_result("sigmoid", out, X=x)}, {"Out": out})


@aten("log2", "log10")
def _log_of_base(node: Any, tracing: Tracing, out: str) -> None:
    base = 2.0 if node.target.__name__.startswith("log2") else 10.0
    tracing.scale(tracing.op_result("log", out, X=tracing.value(node.args[0])), out, 1 / math.log(base))


@aten("tan", "sinh", "cosh")
def _of_two(node: Any, tracing: Tracing, out: str) -> None:
    """tan = sin / cos; sinh and cosh are half of exp(x) - exp(-x), and of their sum."""
    kind, x = node.target.__name__.split(".")[0], tracing.value(node.args[0])
    if kind == "tan":
        parts = {"X": tracing.op_result("sin", out, X=x), "Y": tracing.op_result("cos", out, X=x)}
        tracing.op("elementwise_div", parts, {"Out": out})
        return
    up, down = tracing.op_result("exp", out, X=x), tracing.op_result("exp", out, X=tracing.scaled(x, -1.0))
    both = tracing.op_result("elementwise_sub" if kind == "sinh" else "elementwise_add", out, X=up, Y=down)
    tracing.scale(both, out, 0.5)


@aten("asinh", "acosh", "atanh")
def _area_functions(node: Any, tracing: Tracing, out: str) -> None:
    """The inverse hyperbolic functions.

    asinh is log(|x| + sqrt(x x + 1)) with the sign of x, and acosh has x x - 1; atanh is log((1 + x) / (1 - x)) / 2.
    The |x| of asinh has the gradient 1 at 0, with which that of asinh is 1.
    """
    kind, x = node.target.__name__.split(".")[0], tracing.value(node.args[0])
    if kind == "atanh":
        parts = {"X": tracing.scaled(x, 1.0, 1.0), "Y": tracing.scaled(x, -1.0, 1.0)}
        ratio = tracing.op_result("elementwise_div", out, X=parts["X"], Y=parts["Y"])
        tracing.scale(tracing.op_result("log", out, X=ratio), out, 0.5)
        return
    below, size = "", x
    if kind == "asinh":
        below = comparison_flags("less_than", x, tracing.constant_of(0.0, tracing.dtype(x), out), tracing)
        size = tracing.op_result("where", out, Condition=below, X=tracing.scaled(x, -1.0), Y=x)
    beside = tracing.scaled(tracing.op_result("square", out, X=x), 1.0, 1.0 if kind == "asinh" else -1.0)
    total = tracing.op_result("elementwise_add", out, X=size, Y=tracing.op_result("sqrt", out, X=beside))
    if kind == "acosh":
        tracing.op("log", {"X": total}, {"Out": out})
    else:
        area = tracing.op_result("log", out, X=total)
        tracing.op("where", {"Condition": below, "X": tracing.scaled(area, -1.0), "Y": area}, {"Out": out})


@aten("exp2")
def _exp2(node: Any, tracing: Tracing, out: str) -> None:
    tracing.op("exp", {"X": tracing.scaled(tracing.value(node.args[0]), math.log(2))}, {"Out": out})


@aten("erfc")
def _erfc(node: Any, tracing: Tracing, out: str) -> None:
    tracing.scale(tracing.op_result("erf", out, X=tracing.value(node.args[0])), out, -1.0, 1.0)


@aten("trunc")
def _trunc(node: Any, tracing: Tracing, out: str) -> None:
    tracing.alias(out, round_towards_zero(tracing.value(node.args[0]), tracing))


def round_towards_zero(x: str, tracing: Tracing) -> str:
    """`x` rounded towards zero, without a gradient."""
    whole = tracing.op_result("floor", x, X=tracing.op_result("abs", x, X=x))
    made = tracing.op_result("elementwise_mul", x, X=whole, Y=tracing.op_result("sign", x, X=x))
    tracing.draft.stop_gradient.update((whole, made))
    return made


@aten("hypot")
def _hypot(node: Any, tracing: Tracing, out: str) -> None:
    first, second = (tracing.op_result("square", out, X=tracing.value(arg)) for arg in node.args)
    tracing.op("sqrt", {"X": tracing.op_result("elementwise_add", out, X=first, Y=second)}, {"Out": out})


@aten("copysign")
def _copysign(node: Any, tracing: Tracing, out: str) -> None:
    kind = dtype_of(node.meta["val"].dtype)
    x, y = (_operand(arg, kind, tracing, out) for arg in node.args)
    size = tracing.op_result("abs", out, X=x)
    below = comparison_flags("less_than", y, tracing.constant_of(0.0, kind, out), tracing)
    condition, first, second = of_one_shape([below, tracing.scaled(size, -1.0), size], tracing)
    tracing.op("where", {"Condition": condition, "X": first, "Y": second}, {"Out": out})


@aten("fmod")
def _fmod(node: Any, tracing: Tracing, out: str) -> None:
    """What is left of a quotient that is rounded towards 0."""
    result = dtype_of(node.meta["val"].dtype)
    x, y = (_operand(arg, result, tracing, out) for arg in node.args)
    if _is_infinite(node.args[1]):
        tracing.alias(out, x)
    elif result in FLOATS:
        subtract_multiple(
            x, y, round_towards_zero(tracing.op_result("elementwise_div", out, X=x, Y=y), tracing), out, tracing
        )
    else:
        tracing.op("elementwise_mod", {"X": x, "Y": y}, {"Out": out})


def _is_infinite(argument: object) -> bool:
    """Whether an argument is an infinite number, of which a product with 0 is none."""
    return isinstance(argument, float) and math.isinf(argument)


def subtract_multiple(x: str, y: str, times: str, out: str, tracing: Tracing) -> None:
    """`out` is `x - times * y`, where `times` passes no gradient on."""
    tracing.op("elementwise_sub", {"X": x, "Y": tracing.op_result("elementwise_mul", out, X=times, Y=y)}, {"Out": out})


@aten("bucketize", "searchsorted")
def _bucketize(node: Any, tracing: Tracing, out: str) -> None:
    """The number of boundaries less than each value; with `right`, of those at most equal to it.

    The boundaries are one row for all values, or for `searchsorted` a row of boundaries for each row of values.
    """
    first, second = node.args[:2]
    values, bounds = (first, second) if node.target.__name__.startswith("bucketize") else (second, first)
    right = bool(argument(node, 3, "right", False)) or node.kwargs.get("side") == "right"
    if not hasattr(values, "name") or argument(node, 5, "sorter") is not None:
        raise Refused("it looks for a number, or in an order that is given beside the bounds")
    x, y = tracing.value(values), tracing.value(bounds)
    kind = _common_type(values, bounds, tracing)
    rank, rows = len(tracing.dims(x)), len(tracing.dims(y)) > 1
    wide, many = tracing.as_type(x, kind), tracing.as_type(y, kind)
    with_x_shape("unsqueeze2", wide, one := tracing.temp(out), tracing, axes=[rank])
    if rows:
        with_x_shape("unsqueeze2", many, every := tracing.temp(out), tracing, axes=[rank - 1])
        many = every
    before, bound = of_one_shape([many, one], tracing)
    passed = comparison_flags("less_equal" if right else "less_than", before, bound, tracing)
    counts = tracing.as_type(passed, DType.INT64)
    reduce_axes("reduce_sum", counts, out, [rank], False, tracing)
    tracing.draft.stop_gradient.update((one, before, bound, counts, out))


@aten("expm1")
def _expm1(node: Any, tracing: Tracing, out: str) -> None:
    tracing.scale(tracing.op_result("exp", out, X=tracing.value(node.args[0])), out, 1.0, -1.0)


@aten("gelu")
def _gelu(node: Any, tracing: Tracing, out: str) -> None:
    tanh = argument(node, 1, "approximate", "none") == "tanh"
    tracing.op("gelu", {"X": tracing.value(node.args[0])}, {"Out": out}, approximate=tanh)


@aten("leaky_relu")
def _leaky_relu(node: Any, tracing: Tracing, out: str) -> None:
    """The gradient of the op goes by the sign of Out, which is not that of X where the slope is negative."""
    x, slope = tracing.value(node.args[0]), float(argument(node, 1, "negative_slope", 0.01))
    if slope >= 0:
        tracing.op("leaky_relu", {"X": x}, {"Out": out}, alpha=slope)
        return
    above = comparison_flags("greater_than", x, tracing.constant_of(0, tracing.dtype(x), out), tracing)
    tracing.op("where", {"Condition": above, "X": x, "Y": tracing.scaled(x, slope)}, {"Out": out})


@aten("elu", "selu", "celu")
def _elu(node: Any, tracing: Tracing, out: str) -> None:
    """scale * (max(x, 0) + alpha * (exp(input_scale * min(x, 0)) - 1)); the gradient at 0 is that of numbers below."""
    kind, x = node.target.__name__.split(".")[0], tracing.value(node.args[0])
    alpha, scale = float(argument(node, 1, "alpha", 1.0)), float(argument(node, 2, "scale", 1.0))
    inner = float(argument(node, 3, "input_scale", 1.0))
    if kind == "selu":
        alpha, scale = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
    elif kind == "celu":
        inner = 1.0 / alpha
    above = positive(x, tracing)
    below = tracing.op_result("where", out, Condition=above, X=zeros_as(x, tracing), Y=x)
    below = tracing.scaled(below, inner) if inner != 1 else below
    powers = tracing.scaled(tracing.op_result("exp", out, X=below), alpha, -alpha)
    both = out if scale == 1 else tracing.temp(out)
    tracing.op("where", {"Condition": above, "X": x, "Y": powers}, {"Out": both})
    if both != out:
        tracing.scale(both, out, scale)


@aten("softplus")
def _softplus(node: Any, tracing: Tracing, out: str) -> None:
    """log(1 + exp(beta x)) / beta, computed without overflow; x where beta x is above the threshold."""
    x = tracing.value(node.args[0])
    beta, threshold = float(argument(node, 1, "beta", 1)), float(argument(node, 2, "threshold", 20))
    given = tracing.scaled(x, beta) if beta != 1 else x
    soft = soft_plus(given, out, tracing)
    soft = tracing.scaled(soft, 1 / beta) if beta != 1 else soft
    bound = tracing.constant_of(threshold, tracing.dtype(x), out)
    above = comparison_flags("greater_than", given, bound, tracing)
    tracing.op("where", {"Condition": above, "X": x, "Y": soft}, {"Out": out})


def soft_plus(x: str, of: str, tracing: Tracing) -> str:
    """log(1 + exp(x)), which is -log(sigmoid(-x))."""
    return tracing.scaled(tracing.op_result("logsigmoid", of, X=tracing.scaled(x, -1.0)), -1.0)


@aten("mish")
def _mish(node: Any, tracing: Tracing, out: str) -> None:
    x = tracing.value(node.args[0])
    inner = tracing.op_result("tanh", out, X=soft_plus(x, out, tracing))
    tracing.op("elementwise_mul", {"X": x, "Y": inner}, {"Out": out})


@aten("hardtanh", "clamp", "clamp_min", "clamp_max", "relu6")
def _clamp(node: Any, tracing: Tracing, out: str) -> None:
    kind = node.target.__name__.split(".")[0]
    x = tracing.value(node.args[0])
    low, high = argument(node, 1, "min"), argument(node, 2, "max")
    if kind == "hardtanh":
        low, high = argument(node, 1, "min_val", -1), argument(node, 2, "max_val", 1)
    elif kind == "relu6":
        low, high = 0, 6
    elif kind == "clamp_max":
        low, high = None, node.args[1]
    x = tracing.as_type(x, dtype_of(node.meta["val"].dtype))
    tensors = [hasattr(bound, "name") for bound in (low, high)]
    if tracing.dtype(x) in FLOATS:
        if any(tensors):
            _clamp_to_tensors(x, low, high, out, tracing)
        else:
            # torch's own kernel of this loss, of which its definition has the clamp, has no gradient at a margin of 0
            of_margins = str(node.meta.get("torch_fn", ("", ""))[1]).endswith(".multi_margin_loss")
            _clip_to_numbers(x, low, high, out, tracing, inclusive=kind.startswith("clamp") and not of_margins)
        return
    wanted = [(bound, op) for bound, op in ((low, "elementwise_max"), (high, "elementwise_min")) if bound is not None]
    for at, (bound, op_type) in enumerate(wanted, 1):
        y = tracing.value(bound) if hasattr(bound, "name") else tracing.constant_of(bound, tracing.dtype(x), out)
        made = out if at == len(wanted) else tracing.temp(out)
        tracing.op(op_type, {"X": x, "Y": tracing.as_type(y, tracing.dtype(x))}, {"Out": made})
        x = made
    if not wanted:
        tracing.alias(out, x)


def _clip_to_numbers(
    x: str, low: float | None, high: float | None, out: str, tracing: Tracing, *, inclusive: bool
) -> None:
    """`out` is `x` limited to numbers. The gradient passes between them, and at them too if they are `inclusive`."""
    most = math.inf if high is None else float(high)
    least = -math.inf if low is None else float(low)
    if least > most:  # torch gives the upper bound; no element is between them
        least, inclusive = most, False
    if not inclusive:
        tracing.op("clip", {"X": x}, {"Out": out}, min=least, max=most)
        return
    held = tracing.op_result("clip", out, {"min": least, "max": most}, X=x)
    tracing.draft.stop_gradient.add(held)
    tracing.op("where", {"Condition": comparison_flags("equal", x, held, tracing), "X": x, "Y": held}, {"Out": out})


def _clamp_to_tensors(x: str, low: Any, high: Any, out: str, tracing: Tracing) -> None:
    """`out` is `x` limited to bounds of which one or both are tensors: at a bound the gradient goes to `x`."""
    kind = tracing.dtype(x)
    wanted = [(bound, how) for bound, how in ((low, "less_than"), (high, "greater_than")) if bound is not None]
    for at, (bound, how) in enumerate(wanted, 1):
        y = _operand(bound, kind, tracing, out)
        made = out if at == len(wanted) else tracing.temp(out)
        append_where(comparison_flags(how, x, y, tracing), y, x, made, tracing)
        x = made


@aten("hardsigmoid", "hardswish")
def _hard(node: Any, tracing: Tracing, out: str) -> None:
    x = tracing.value(node.args[0])
    kind = tracing.dtype(x)
    raised = tracing.scaled(x, 1.0, 3.0)
    low = tracing.op_result("relu", out, X=raised)
    held = tracing.op_result("elementwise_min", out, X=low, Y=tracing.constant_of(6.0, kind, out))
    share = tracing.scaled(held, 1 / 6)
    if node.target.__name__.startswith("hardswish"):
        tracing.op("elementwise_mul", {"X": x, "Y": share}, {"Out": out})
    else:
        tracing.alias(out, share)


@aten("prelu", "_prelu_kernel")
def _prelu(node: Any, tracing: Tracing, out: str) -> None:
    x, slopes = (tracing.value(arg) for arg in node.args)
    below = tracing.op_result("where", out, Condition=positive(x, tracing), X=zeros_as(x, tracing), Y=x)
    rank, count = len(tracing.dims(x)), tracing.dims(slopes)
    if len(count) == 1 and count[0] > 1 and rank > 2:
        reshape(slopes, wide := tracing.temp(slopes), [count[0], *[1] * (rank - 2)], tracing)
        slopes = wide
    times = tracing.op_result("elementwise_mul", out, X=below, Y=slopes)
    tracing.op("elementwise_add", {"X": tracing.op_result("relu", out, X=x), "Y": times}, {"Out": out})


# Functions of two values.

_BINARY = {
    "add": "elementwise_add",
    "sub": "elementwise_sub",
    "rsub": "elementwise_sub",
    "mul": "elementwise_mul",
    "div": "elementwise_div",
    "maximum": "elementwise_max",
    "minimum": "elementwise_min",
    "max": "elementwise_max",
    "min": "elementwise_min",
    "floor_divide": "elementwise_floordiv",
}


@aten("add", "sub", "rsub", "mul", "div", "maximum", "minimum", "max.other", "min.other", "floor_divide", "remainder")
def _binary(node: Any, tracing: Tracing, out: str) -> None:
    kind = node.target.__name__.split(".")[0]
    left, right = node.args[:2]
    if kind == "rsub":
        left, right = right, left
    alpha = node.kwargs.get("alpha", node.args[2] if len(node.args) > 2 else 1)
    result = dtype_of(node.meta["val"].dtype)
    rounding = node.kwargs.get("rounding_mode")
    if rounding is None and _by_number(kind, left, right, alpha, result, tracing, out):
        return
    x, y = (_operand(arg, result, tracing, out) for arg in (left, right))
    if alpha != 1:
        scaled = y if kind != "rsub" else x
        scaled = tracing.scaled(scaled, float(alpha))
        x, y = (x, scaled) if kind != "rsub" else (scaled, y)
    if kind == "remainder" and _is_infinite(right):
        below, zero = right < 0, tracing.constant_of(0.0, result, out)
        other = comparison_flags("greater_than" if below else "less_than", x, zero, tracing)
        append_where(other, y, x, out, tracing)
        return
    if kind in ("floor_divide", "remainder") or rounding is not None:
        _divide_rounded(x, y, "remainder" if kind == "remainder" else str(rounding or "floor"), result, out, tracing)
        return
    if kind[:3] in ("max", "min") and result in FLOATS:
        _larger(_BINARY[kind], x, y, out, tracing)
        return
    tracing.op(_BINARY[kind], {"X": x, "Y": y}, {"Out": out})


def _larger(op_type: str, x: str, y: str, out: str, tracing: Tracing) -> None:
    """`out` is the larger or the smaller of two values. As in torch, equal ones have half of the gradient each."""
    if {x, y} <= tracing.draft.stop_gradient:
        tracing.op(op_type, {"X": x, "Y": y}, {"Out": out})
        return
    same = comparison_flags("equal", x, y, tracing)
    halves = tracing.op_result("elementwise_add", out, X=tracing.scaled(x, 0.5), Y=tracing.scaled(y, 0.5))
    append_where(same, halves, tracing.op_result(op_type, out, X=x, Y=y), out, tracing)


def _divide_rounded(x: str, y: str, how: str, kind: DType, out: str, tracing: Tracing) -> None:
    """The quotient of `x` and `y`, rounded down ("floor") or towards 0 ("trunc"), or what is left when it is rounded
    down ("remainder").

    The ops of whole numbers round towards 0, and their rest has the sign of `x`.
    """
    if kind in FLOATS:
        ratio = tracing.op_result("elementwise_div", out, X=x, Y=y)
        times = round_towards_zero(ratio, tracing) if how == "trunc" else tracing.op_result("floor", out, X=ratio)
        tracing.draft.stop_gradient.add(times)
        if how == "remainder":
            subtract_multiple(x, y, times, out, tracing)
        else:
            tracing.alias(out, times)
        return
    if how == "trunc":
        tracing.op("elementwise_floordiv", {"X": x, "Y": y}, {"Out": out})
        return
    above = tracing.op_result("elementwise_add", out, X=tracing.op_result("elementwise_mod", out, X=x, Y=y), Y=y)
    if how == "remainder":
        tracing.op("elementwise_mod", {"X": above, "Y": y}, {"Out": out})
        return
    left = tracing.op_result("elementwise_mod", out, X=above, Y=y)
    exact = tracing.op_result("elementwise_sub", out, X=x, Y=left)
    tracing.op("elementwise_floordiv", {"X": exact, "Y": y}, {"Out": out})


@aten("__lshift__.Scalar", "__rshift__.Scalar", "bitwise_left_shift.Tensor_Scalar", "bitwise_right_shift.Tensor_Scalar")
def _bit_shift(node: Any, tracing: Tracing, out: str) -> None:
    """A product with a power of two, or the quotient, rounded down."""
    kind, x = dtype_of(node.meta["val"].dtype), tracing.value(node.args[0])
    factor = tracing.constant_of(1 << int(node.args[1]), kind, out)
    if node.target.__name__.startswith(("__lshift__", "bitwise_left_shift")):
        tracing.op("elementwise_mul", {"X": tracing.as_type(x, kind), "Y": factor}, {"Out": out})
    else:
        _divide_rounded(tracing.as_type(x, kind), factor, "floor", kind, out, tracing)


def _operand(arg: Any, kind: DType, tracing: Tracing, of: str) -> str:
    """The variable of an operand, cast to an element type; a number becomes a constant."""
    if hasattr(arg, "name"):
        if arg.name in tracing.integers:
            return tracing.as_type(tracing.size_variable(tracing.integers[arg.name]), kind)
        return fraction_of(arg, kind, tracing) or tracing.as_type(tracing.value(arg), kind)
    return tracing.constant_of(arg, kind, of)


def _by_number(kind: str, left: Any, right: Any, alpha: Any, result: DType, tracing: Tracing, out: str) -> bool:
    """Adds the op with a number as attribute if an operand is a Python number; returns whether it did."""
    plain = [not hasattr(arg, "name") for arg in (left, right)]
    if result not in FLOATS or plain == [False, False] or kind not in ("add", "sub", "rsub", "mul", "div"):
        return False
    if plain == [True, False] and kind == "div":
        x = tracing.as_type(tracing.value(right), result)
        tracing.scale(tracing.op_result("reciprocal", out, X=x), out, float(left))
        return True
    number = float(left if plain[0] else right)
    x = tracing.as_type(_operand(right if plain[0] else left, result, tracing, out), result)
    if kind == "add":
        factor, bias = (float(alpha), number) if plain[0] else (1.0, number * float(alpha))
    elif kind in ("sub", "rsub"):
        factor, bias = (-float(alpha), number) if plain[0] else (1.0, -number * float(alpha))
        if kind == "rsub":
            factor, bias = (-float(alpha), number) if plain[0] else (1.0, -number * float(alpha))
    elif kind == "mul":
        factor, bias = number, 0.0
    else:
        if number == 0.0:
            return False
        factor, bias = 1.0 / number, 0.0
    tracing.scale(x, out, factor, bias)
    return True


@aten("pow")
def _pow(node: Any, tracing: Tracing, out: str) -> None:
    base, power = node.args
    result = dtype_of(node.meta["val"].dtype)
    if hasattr(power, "name") or not hasattr(base, "name"):
        x, y = (_operand(arg, result, tracing, out) for arg in (base, power))
        if not hasattr(base, "name") and base > 0:  # b ** y as exp(y log b), which has a gradient by y
            tracing.op("exp", {"X": tracing.scaled(y, math.log(base))}, {"Out": out})
        elif result in FLOATS:
            _to_the_power(x, y, out, tracing)
        else:
            tracing.op("elementwise_pow", {"X": x, "Y": y}, {"Out": out})
        return
    x, number = tracing.as_type(tracing.value(base), result), float(power)
    if number == 2:
        tracing.op("square", {"X": x}, {"Out": out})
    elif number == 0.5:
        tracing.op("sqrt", {"X": x}, {"Out": out})
    elif number == 1:
        tracing.alias(out, x)
    elif number == 0:
        tracing.op("fill_any_like", {"X": x}, {"Out": out}, value=1.0)
        tracing.draft.stop_gradient.add(out)
    else:
        tracing.op("pow", {"X": x}, {"Out": out}, factor=number)


def _to_the_power(x: str, y: str, out: str, tracing: Tracing) -> None:
    """`out` is `x` to the power of `y`: 1, without a gradient, where both are 0."""
    zero = tracing.constant_of(0.0, tracing.dtype(x), out)
    bases, powers = of_one_shape([x, y], tracing)
    empty = comparison_flags("equal", bases, zero, tracing)
    both = tracing.op_result("logical_and", out, X=empty, Y=comparison_flags("equal", powers, zero, tracing))
    tracing.draft.stop_gradient.add(both)
    append_where(both, tracing.constant_of(1.0, tracing.dtype(x), out), bases, held := tracing.temp(out), tracing)
    tracing.op("elementwise_pow", {"X": held, "Y": powers}, {"Out": out})


@aten("addcmul", "addcdiv")
def _addc(node: Any, tracing: Tracing, out: str) -> None:
    x, first, second = (tracing.value(arg) for arg in node.args[:3])
    op_type = "elementwise_mul" if node.target.__name__.startswith("addcmul") else "elementwise_div"
    made = tracing.op_result(op_type, out, X=first, Y=second)
    made = tracing.scaled(made, float(node.kwargs.get("value", 1)))
    tracing.op("elementwise_add", {"X": x, "Y": made}, {"Out": out})


@aten("lerp")
def _lerp(node: Any, tracing: Tracing, out: str) -> None:
    x, end = (tracing.value(arg) for arg in node.args[:2])
    way = tracing.op_result("elementwise_sub", out, X=end, Y=x)
    weight = node.args[2]
    if hasattr(weight, "name"):
        part = tracing.op_result("elementwise_mul", out, X=way, Y=tracing.value(weight))
    else:
        part = tracing.scaled(way, float(weight))
    tracing.op("elementwise_add", {"X": x, "Y": part}, {"Out": out})


# Comparisons.

_COMPARED = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less_than",
    "le": "less_equal",
    "gt": "greater_than",
    "ge": "greater_equal",
}


def comparison_flags(op_type: str, x: str, y: str, tracing: Tracing) -> str:
    """The flags of a comparison of two values of one element type; no gradient is passed on."""
    made = tracing.temp(x)
    compare(op_type, x, y, made, tracing)
    return made


def compare(op_type: str, x: str, y: str, out: str, tracing: Tracing) -> None:
    """`out` is the flags of a comparison of two values, which are broadcast together."""
    if sizes_of(x, tracing) != (dims := common([x, y], tracing)):
        expand(x, wide := tracing.temp(x), dims, tracing)
        x = wide
    tracing.op(op_type, {"X": x, "Y": y}, {"Out": out})
    tracing.draft.stop_gradient.add(out)


@aten(*_COMPARED)
def _comparison(node: Any, tracing: Tracing, out: str) -> None:
    kind = node.target.__name__.split(".")[0]
    left, right = node.args
    kind_of = _common_type(left, right, tracing)
    x, y = (_operand(arg, kind_of, tracing, out) for arg in (left, right))
    compare(_COMPARED[kind], x, y, out, tracing)


def _common_type(left: Any, right: Any, tracing: Tracing) -> DType:
    """The element type in which two operands are compared."""
    kinds: list[DType] = []
    for arg in (left, right):
        if hasattr(arg, "name"):
            if arg.name in tracing.fractions:
                kinds.append(DType.FP32)
                continue
            kinds.append(DType.INT64 if arg.name in tracing.integers else tracing.dtype(tracing.value(arg)))
        elif isinstance(arg, float):
            kinds.append(DType.FP32)
        elif isinstance(arg, bool):
            kinds.append(DType.BOOL)
        else:
            kinds.append(DType.INT64)
    given = zip(kinds, (left, right), strict=True)
    tensors = [kind for kind, arg in given if hasattr(arg, "name") and arg.name not in tracing.fractions]
    floats = [kind for kind in tensors if kind in FLOATS]
    if floats:
        return DType.FP64 if DType.FP64 in floats else DType.FP32
    if any(kind in FLOATS for kind in kinds):
        return DType.FP32
    order = (DType.BOOL, DType.UINT8, DType.INT8, DType.INT16, DType.INT32, DType.INT64)
    return (
        max(tensors or kinds, key=order.index)
        if not all(k is DType.BOOL for k in tensors)
        else max(kinds, key=order.index)
    )


_LOGICAL = {
    "logical_and": "and",
    "logical_or": "or",
    "logical_xor": "xor",
    "bitwise_and": "and",
    "bitwise_or": "or",
    "bitwise_xor": "xor",
    "__and__": "and",
    "__or__": "or",
    "__xor__": "xor",
}


@aten(*_LOGICAL)
def _logical(node: Any, tracing: Tracing, out: str) -> None:
    kind, result = node.target.__name__.split(".")[0], dtype_of(node.meta["val"].dtype)
    bits = not kind.startswith("logical") and result is not DType.BOOL
    values = [_operand(arg, result if bits else DType.BOOL, tracing, out) for arg in node.args]
    x, y = of_one_shape(values, tracing)  # logical ops need operands of the same dims
    tracing.op(f"{'bitwise' if bits else 'logical'}_{_LOGICAL[kind]}", {"X": x, "Y": y}, {"Out": out})
    tracing.draft.stop_gradient.add(out)


@aten("isnan", "isinf", "isfinite")
def _is(node: Any, tracing: Tracing, out: str) -> None:
    kind, x = node.target.__name__.split(".")[0], tracing.value(node.args[0])
    if kind == "isnan":
        compare("not_equal", x, x, out, tracing)
        return
    none = tracing.op_result("elementwise_sub", out, X=x, Y=x)  # 0 for finite numbers, nan for inf and nan
    finite = comparison_flags("equal", none, none, tracing)
    if kind == "isfinite":
        tracing.alias(out, finite)
        return
    number = comparison_flags("equal", x, x, tracing)
    odd = tracing.op_result("logical_not", out, X=finite)
    compare("logical_and", odd, number, out, tracing)


@aten("where")
def _where(node: Any, tracing: Tracing, out: str) -> None:
    if len(node.args) < 3:
        _places(node, tracing, out)
        return
    result = dtype_of(node.meta["val"].dtype)
    condition = tracing.value(node.args[0])
    x, y = (_operand(arg, result, tracing, out) for arg in node.args[1:])
    condition, x, y = of_one_shape([condition, x, y], tracing)
    tracing.op("where", {"Condition": condition, "X": x, "Y": y}, {"Out": out})


def _places(node: Any, tracing: Tracing, out: str) -> None:
    """The places of the elements that are set, as a tensor of the numbers along each dim."""
    flags = tracing.as_type(tracing.value(node.args[0]), DType.BOOL)
    found = tracing.op_result("where_index", out, Condition=flags)
    tracing.draft.stop_gradient.add(found)
    values = node.meta["val"]
    names = [tracing.temp(out) for _ in values]
    for name, value in zip(names, values, strict=True):
        tracing.note(name, value)
    tracing.op("unstack", {"X": found}, {"Y": names}, axis=1, num=len(names))
    tracing.draft.stop_gradient.update(names)
    tracing.parts[node.name] = [*names]


@aten("masked_fill")
def _masked_fill(node: Any, tracing: Tracing, out: str) -> None:
    x, mask, number = node.args
    kind = tracing.dtype(tracing.value(x))
    filler = _operand(number, kind, tracing, out)
    condition, x, y = of_one_shape([tracing.value(mask), filler, tracing.value(x)], tracing)
    tracing.op("where", {"Condition": condition, "X": x, "Y": y}, {"Out": out})


# Reductions.


def axes_of(given: Any, rank: int) -> list[int]:
    """Axes as numbers from 0 to `rank - 1`; all axes for None or an empty list."""
    if given is None or given == []:
        return [*range(rank)]
    listed = [given] if isinstance(given, int) else list(given)
    return [axis % rank for axis in listed] if rank else []


def reduce_axes(op_type: str, x: str, out: str, axes: Sequence[int], keep: bool, tracing: Tracing) -> None:
    """`out` is `x` reduced along axes by an op; with `keep`, the axes stay as dims of 1."""
    rank = len(tracing.dims(x))
    if not axes or not rank:
        tracing.alias(out, x)
        return
    whole = len(axes) == rank
    if whole and not keep:
        tracing.scalars.add(out)
    tracing.op(op_type, {"X": x}, {"Out": out}, keep_dim=keep, reduce_all=whole, dim=list(axes))


_REDUCED = {
    "sum": "reduce_sum",
    "mean": "reduce_mean",
    "amax": "reduce_max",
    "amin": "reduce_min",
    "prod": "reduce_prod",
}


@aten(*_REDUCED)
def _reduce(node: Any, tracing: Tracing, out: str) -> None:
    kind = node.target.__name__.split(".")[0]
    x = tracing.as_type(tracing.value(node.args[0]), dtype_of(node.meta["val"].dtype))
    axes = axes_of(argument(node, 1, "dim"), len(tracing.dims(x)))
    if kind in ("amax", "amin") and tracing.dtype(x) in FLOATS:
        evenly(f"reduce_{kind[1:]}", x, out, axes, bool(argument(node, 2, "keepdim", False)), tracing)
        return
    reduce_axes(_REDUCED[kind], x, out, axes, bool(argument(node, 2, "keepdim", False)), tracing)


def evenly(op_type: str, x: str, out: str, axes: Sequence[int], keep: bool, tracing: Tracing) -> None:
    """`out` is the maximum or minimum along axes. As in torch, equal elements share the gradient evenly."""
    reduce_axes(op_type, x, found := tracing.temp(out), axes, True, tracing)
    tracing.draft.stop_gradient.add(found)
    wide = out if keep else tracing.temp(out)
    share_gradient(x, found, wide, axes, tracing, apart="less_than" if op_type.endswith("max") else "greater_than")
    if not keep:
        reduce_axes("reduce_sum", wide, out, axes, False, tracing)


def share_gradient(
    x: str, found: str, out: str, axes: Sequence[int], tracing: Tracing, *, apart: str = "not_equal"
) -> None:
    """`out` is `found`, elements of `x` along axes that stay as dims of 1; those equal to it share its gradient.

    `apart` is the comparison that holds for each of the others, unless `found` is NaN: then all gradients are NaN.
    """
    same = tracing.as_type(comparison_flags("equal", x, found, tracing), tracing.dtype(x))
    reduce_axes("reduce_sum", same, count := tracing.temp(out), axes, True, tracing)
    shares = tracing.op_result("elementwise_div", out, X=same, Y=count)
    tracing.draft.stop_gradient.update((same, count, shares))
    # 0 in place of the others, of which an infinite one times 0 is no number
    others = comparison_flags(apart, x, found, tracing)
    alike = tracing.op_result("where", out, Condition=others, X=zeros_as(x, tracing), Y=x)
    parts = tracing.op_result("elementwise_mul", out, X=alike, Y=shares)
    reduce_axes("reduce_sum", parts, total := tracing.temp(out), axes, True, tracing)
    # the parts make up the element, but for rounding, for which the rest stands; infinite ones have none
    rest = tracing.op_result("elementwise_sub", out, X=found, Y=detached(total, tracing))
    tracing.draft.stop_gradient.add(rest)
    whole = tracing.op_result("elementwise_add", out, X=total, Y=rest)
    exact = comparison_flags("equal", total, found, tracing)
    tracing.op("where", {"Condition": exact, "X": total, "Y": whole}, {"Out": out})


@aten("argmax", "argmin")
def _arg_extreme(node: Any, tracing: Tracing, out: str) -> None:
    kind, x = node.target.__name__.split(".")[0], tracing.value(node.args[0])
    axis, rank, keep = argument(node, 1, "dim"), len(tracing.dims(x)), bool(argument(node, 2, "keepdim", False))
    op_type = "arg_max" if kind == "argmax" else "arg_min"
    if axis is None:  # the index into the flattened tensor
        reshape(x, flat := tracing.temp(x), [-1], tracing)
        x, axis, rank, keep = flat, 0, 1, True
        tracing.scalars.add(out)
    tracing.op(op_type, {"X": x}, {"Out": out}, axis=axis % rank, keepdims=keep or rank == 1)
    tracing.draft.stop_gradient.add(out)


@aten("any", "all")
def _any(node: Any, tracing: Tracing, out: str) -> None:
    kind = node.target.__name__.split(".")[0]
    x = tracing.as_type(tracing.value(node.args[0]), DType.BOOL)
    axes = axes_of(argument(node, 1, "dim"), len(tracing.dims(x)))
    reduce_axes(f"reduce_{kind}", x, out, axes, bool(argument(node, 2, "keepdim", False)), tracing)
    tracing.draft.stop_gradient.add(out)


@aten("logsumexp")
def _logsumexp(node: Any, tracing: Tracing, out: str) -> None:
    x = tracing.value(node.args[0])
    axes, keep = axes_of(node.args[1], len(tracing.dims(x))), bool(argument(node, 2, "keepdim", False))
    log_sum_exp(x, out, axes, keep, tracing)


def log_sum_exp(x: str, out: str, axes: Sequence[int], keep: bool, tracing: Tracing) -> None:
    """`out` is log(sum(exp(x))) along axes. The maximum is subtracted before exp, to avoid overflow."""
    largest = _finite_largest(x, axes, out, tracing)
    rest = tracing.op_result("elementwise_sub", out, X=x, Y=largest)
    reduce_axes("reduce_sum", tracing.op_result("exp", out, X=rest), summed := tracing.temp(out), axes, True, tracing)
    wide = out if keep else tracing.temp(out)
    tracing.op("elementwise_add", {"X": tracing.op_result("log", out, X=summed), "Y": largest}, {"Out": wide})
    if not keep:  # a sum over dims of 1 removes them
        reduce_axes("reduce_sum", wide, out, axes, False, tracing)


def _finite_largest(x: str, axes: Sequence[int], of: str, tracing: Tracing) -> str:
    """The maxima along axes, which stay as dims of 1, with 0 in place of infinite ones; without a gradient."""
    reduce_axes("reduce_max", x, largest := tracing.temp(of), axes, True, tracing)
    tracing.draft.stop_gradient.add(largest)
    bound = tracing.constant_of(math.inf, tracing.dtype(x), of)
    finite = comparison_flags("less_than", tracing.op_result("abs", of, X=largest), bound, tracing)
    made = tracing.op_result("where", of, Condition=finite, X=largest, Y=zeros_as(largest, tracing))
    tracing.draft.stop_gradient.add(made)
    return made


@aten("var", "std", "var_mean", "std_mean")
def _variance(node: Any, tracing: Tracing, out: str) -> None:
    name, _, overload = node.target.__name__.partition(".")
    x = tracing.value(node.args[0])
    rank = len(tracing.dims(x))
    axes, correction = None, 1
    if overload == "correction":
        axes, correction = argument(node, 1, "dim"), node.kwargs.get("correction", 1)
    elif overload == "dim":
        axes, correction = node.args[1], int(bool(argument(node, 2, "unbiased", True)))
    elif len(node.args) > 1 or "unbiased" in node.kwargs:
        correction = int(bool(argument(node, 1, "unbiased", True)))
    correction = 1 if correction is None else correction
    keep = bool(node.kwargs.get("keepdim", node.args[3] if len(node.args) > 3 else False))
    listed = axes_of(axes, rank)
    reduce_axes("reduce_mean", x, mean := tracing.temp(out), listed, True, tracing)
    apart = tracing.op_result("square", out, X=tracing.op_result("elementwise_sub", out, X=x, Y=mean))
    both, spread = name.endswith("_mean"), name.startswith("std")
    made = tracing.temp(out) if both else out
    reduce_axes("reduce_mean", apart, plain := tracing.temp(out), listed, keep, tracing)
    plain = corrected_variance(plain, x, listed, float(correction), out, tracing)
    if spread:
        root(plain, made, tracing)
    else:
        tracing.alias(made, plain)
    if both:
        if not keep:
            reduce_axes("reduce_mean", x, mean := tracing.temp(out), listed, False, tracing)
        tracing.parts[node.name] = [made, mean]


def corrected_variance(value: str, x: str, axes: Sequence[int], correction: float, of: str, tracing: Tracing) -> str:
    """A variance times n / (n - correction), where n is the number of elements of `x` along axes."""
    if not correction:
        return value
    count = count_of(x, axes, tracing)
    if isinstance(count, int):
        return tracing.scaled(value, count / (count - correction))
    number = tracing.as_type(count, tracing.dtype(value))
    share = tracing.op_result("elementwise_div", of, X=number, Y=tracing.scaled(number, 1.0, -correction))
    tracing.draft.stop_gradient.add(share)
    return tracing.op_result("elementwise_mul", of, X=value, Y=share)


def count_of(x: str, axes: Sequence[int], tracing: Tracing) -> int | str:
    """The number of elements along axes; the name of an i32 variable if it is known at run time only."""
    size = 1
    for axis in axes:
        size = tracing.integer("Mul", size, tracing.size(x, axis))
    return tracing.size_variable(size) if is_code(size) else size


@aten("linalg_vector_norm", "norm")
def _vector_norm(node: Any, tracing: Tracing, out: str) -> None:
    x = tracing.value(node.args[0])
    order = float(argument(node, 1, "ord", 2))
    axes = axes_of(argument(node, 2, "dim"), len(tracing.dims(x)))
    keep = bool(argument(node, 3, "keepdim", False))
    if order == 2:
        reduce_axes(
            "reduce_sum", tracing.op_result("square", out, X=x), total := tracing.temp(out), axes, keep, tracing
        )
        root(total, out, tracing)
    elif order == 1:
        reduce_axes("reduce_sum", tracing.op_result("abs", out, X=x), out, axes, keep, tracing)
    elif math.isinf(order):
        evenly(
            "reduce_max" if order > 0 else "reduce_min", tracing.op_result("abs", out, X=x), out, axes, keep, tracing
        )
    elif order == 0:
        some = comparison_flags("not_equal", x, tracing.constant_of(0.0, tracing.dtype(x), out), tracing)
        reduce_axes("reduce_sum", tracing.as_type(some, tracing.dtype(x)), out, axes, keep, tracing)
        tracing.draft.stop_gradient.update((some, out))
    else:
        size, some = tracing.op_result("abs", out, X=x), ""
        if order < 1:  # the gradient of a power is infinite at 0, where that of the norm is 0
            kind = tracing.dtype(x)
            some = comparison_flags("not_equal", x, tracing.constant_of(0.0, kind, out), tracing)
            append_where(some, size, tracing.constant_of(1.0, kind, out), held := tracing.temp(out), tracing)
            size = held
        powers = tracing.op_result("pow", out, {"factor": order}, X=size)
        if some:
            none = tracing.constant_of(0.0 if order > 0 else math.inf, tracing.dtype(x), out)
            append_where(some, powers, none, held := tracing.temp(out), tracing)
            powers = held
        reduce_axes("reduce_sum", powers, total := tracing.temp(out), axes, keep, tracing)
        root(total, out, tracing, order)


def root(x: str, out: str, tracing: Tracing, order: float = 2) -> None:
    """`out` is the square root of a sum of squares, or that of another order. Where it is 0, its gradient is 0, as in
    torch.
    """
    zero = tracing.constant_of(0.0, tracing.dtype(x), out)
    none = tracing.as_type(comparison_flags("equal", x, zero, tracing), tracing.dtype(x))
    tracing.draft.stop_gradient.add(none)
    raised = tracing.op_result("elementwise_add", out, X=x, Y=none)
    shifted = (
        tracing.op_result("sqrt", out, X=raised)
        if order == 2
        else tracing.op_result("pow", out, {"factor": 1 / order}, X=raised)
    )
    tracing.op("elementwise_sub", {"X": shifted, "Y": none}, {"Out": out})


@aten("_cdist_forward", "cdist")
def _distances(node: Any, tracing: Tracing, out: str) -> None:
    rows, others = tracing.value(node.args[0]), tracing.value(node.args[1])
    order, rank = float(argument(node, 2, "p", 2.0)), len(tracing.dims(rows))
    apart = tracing.op_result(
        "elementwise_sub", out, X=_unsqueeze(rows, rank - 1, tracing), Y=_unsqueeze(others, rank - 2, tracing)
    )
    if order == 2:
        reduce_axes(
            "reduce_sum", tracing.op_result("square", out, X=apart), total := tracing.temp(out), [rank], False, tracing
        )
        root(total, out, tracing)
    else:  # order 1; others are defined by norms
        reduce_axes("reduce_sum", tracing.op_result("abs", out, X=apart), out, [rank], False, tracing)


def _unsqueeze(x: str, axis: int, tracing: Tracing) -> str:
    """`x` with a dim of 1 inserted at `axis`."""
    sizes = sizes_of(x, tracing)
    reshape(x, wide := tracing.temp(x), [*sizes[:axis], 1, *sizes[axis:]], tracing)
    return wide


@aten("logcumsumexp")
def _log_cumsum_exp(node: Any, tracing: Tracing, out: str) -> None:
    x = tracing.value(node.args[0])
    axis = node.args[1] % max(len(tracing.dims(x)), 1)
    largest = _finite_largest(x, [axis], out, tracing)
    powers = tracing.op_result("exp", out, X=tracing.op_result("elementwise_sub", out, X=x, Y=largest))
    sums = tracing.op_result("cumsum", out, {"axis": axis}, X=powers)
    tracing.op("elementwise_add", {"X": tracing.op_result("log", out, X=sums), "Y": largest}, {"Out": out})


@aten("cumsum")
def _cumsum(node: Any, tracing: Tracing, out: str) -> None:
    x = tracing.as_type(tracing.value(node.args[0]), dtype_of(node.meta["val"].dtype))
    tracing.op("cumsum", {"X": x}, {"Out": out}, axis=node.args[1] % max(len(tracing.dims(x)), 1))


# Constants.


@aten(
    "full",
    "zeros",
    "ones",
    "scalar_tensor",
    "empty",
    "empty_permuted",
    "new_zeros",
    "new_ones",
    "new_full",
    "zeros_like",
    "ones_like",
    "full_like",
)
def _full(node: Any, tracing: Tracing, out: str) -> None:
    kind = node.target.__name__.split(".")[0]
    values: dict[str, Callable[[], Any]] = {
        "full": lambda: node.args[1],
        "new_full": lambda: node.args[2],
        "full_like": lambda: node.args[1],
        "scalar_tensor": lambda: node.args[0],
    }
    number: Any = values[kind]() if kind in values else int("ones" in kind)
    if hasattr(number, "name"):
        computed = number.name in tracing.integers or number.name in tracing.fractions
        if kind in ("full_like", "new_full", "full", "scalar_tensor") and computed:
            given = _operand(number, dtype_of(node.meta["val"].dtype), tracing, out)
            shape = tracing.shape_of(node.meta["val"], out)
            expand(given, out, shape, tracing) if shape else tracing.alias(out, given)
            return
        raise Refused("it fills a tensor with a number that a run makes")
    shape = tracing.shape_of(node.meta["val"], out)
    value = np.array([number], str(node.meta["val"].dtype).removeprefix("torch."))
    fill(out, shape or [1], value, tracing)


@aten("fill")
def _fill(node: Any, tracing: Tracing, out: str) -> None:
    x, number = node.args
    kind = tracing.dtype(tracing.value(x))
    expand(_operand(number, kind, tracing, out), out, tracing.shape_of(node.meta["val"], out), tracing)


@aten("arange")
def _arange(node: Any, tracing: Tracing, out: str) -> None:
    overload = node.target.__name__.partition(".")[2]
    numbers = list(node.args)
    if overload == "default":
        numbers = [0, *numbers]
    start, end, step = (*numbers, 1)[:3]
    kind = dtype_of(node.meta["val"].dtype)
    bounds = [
        tracing.as_type(tracing.size_variable(tracing.number_of(n)), DType.INT64 if kind not in FLOATS else kind)
        for n in (start, end, step)
    ]
    made = out if kind in (*FLOATS, DType.INT64) else tracing.temp(out)
    tracing.op("range", dict(zip(("Start", "End", "Step"), bounds, strict=True)), {"Out": made})
    tracing.draft.stop_gradient.add(made)
    if made != out:
        tracing.cast(made, out, kind)


@aten("_local_scalar_dense")
def _number(node: Any, tracing: Tracing, out: str) -> None:
    """A whole number that a run computes, such as that of the longest row. Its code is the size of as many numbers."""
    made = node.meta["val"]
    if not hasattr(made, "node") or made.node.pytype is not int:
        raise Refused("it makes a number of Python of what a run computes; the tensor does as well, without .item()")
    whole = tracing.as_type(tracing.value(node.args[0]), DType.INT64)
    none, one = (tracing.constant_of(number, DType.INT64, out) for number in (0, 1))
    codes: list[int] = []
    for end in (whole, tracing.scaled(whole, -1.0)):
        places = tracing.op_result("range", out, Start=none, End=end, Step=one)
        tracing.draft.stop_gradient.update((end, places))
        codes.append(tracing.sizes.code(Dim(tracing.name(places), 0)))
    tracing.count(node, tracing.integer("Sub", *codes))


@aten("to", "_to_copy", "type_as")
def _to(node: Any, tracing: Tracing, out: str) -> None:
    x, kind = tracing.value(node.args[0]), dtype_of(node.meta["val"].dtype)
    if kind is DType.FP16 and tracing.dtype(x) in FLOATS:  # no gradient goes through it
        raise Refused("its elements are float16; the values of a program are f32, f64, whole numbers or flags")
    if tracing.dtype(x) is kind:
        tracing.alias(out, x)
    else:
        tracing.cast(x, out, kind)
        if kind not in FLOATS:
            tracing.draft.stop_gradient.add(out)


@aten("copy")
def _copy(node: Any, tracing: Tracing, out: str) -> None:
    """The second value, with the dims and the element type of the first."""
    kind = dtype_of(node.meta["val"].dtype)
    expand(_operand(node.args[1], kind, tracing, out), out, tracing.shape_of(node.meta["val"], out), tracing)


@aten("view_as_real")
def _parts_of_complex(node: Any, tracing: Tracing, out: str) -> None:
    """The parts of complex numbers that are known, in a last dim."""
    value = tracing.known_values.get(tracing.value(node.args[0]))
    if value is None:
        raise Refused("it takes complex numbers, which are no constants")
    tracing.known_values[out] = np.stack([value.real, value.imag], -1)


@aten("clone", "contiguous", "alias", "lift_fresh_copy", "lift_fresh", "positive")
def _identity(node: Any, tracing: Tracing, out: str) -> None:
    tracing.alias(out, tracing.value(node.args[0]))


@aten("detach", "detach_")
def _detach(node: Any, tracing: Tracing, out: str) -> None:
    tracing.op("assign", {"X": tracing.value(node.args[0])}, {"Out": out})
    tracing.draft.stop_gradient.add(out)
