"""Kernels. Elementwise arithmetic of two tensors, with Fluid's axis broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr, real
from pstranspile.ops.math.elementwise import functors
from pstranspile.runtime.arithmetic import power, sigmoid, sum_over
from pstranspile.runtime.kernels.kernel import Run, has_output, kernel, per_op, plain_kernel
from pstranspile.runtime.kernels.numeric import (
    align,
    aligned_expression,
    aligned_kernel,
    first_number,
    formula,
    register_ufuncs,
    sum_to,
    truncated_quotient,
)
from pstranspile.runtime.kernels.rows import AS_ROWS, add_rows, in_use, merge_rows, scatter, sum_tables
from pstranspile.runtime.values import Array, LoDTensor, SelectedRows

register_ufuncs(
    {
        "elementwise_add": "add",
        "elementwise_sub": "subtract",
        "elementwise_max": "maximum",
        "elementwise_min": "minimum",
    }
)


@plain_kernel("elementwise_mul", inline=lambda op: aligned_expression(op, "np.multiply({X}, {Y})"))
def _mul(X: Array | SelectedRows, Y: Array, *, axis: int = -1) -> Array | SelectedRows:
    if isinstance(X, SelectedRows):
        if Y.size != 1:
            raise ValueError(f"X is SelectedRows, which only one number can multiply, and Y has {Y.size}")
        return X._replace(value=X.value * Y.reshape(-1))
    return np.multiply(*align(X, Y, axis))


def _is_integer(x: Array) -> bool:
    return x.dtype.kind in "iu"


def _divide(x: Array, y: Array) -> Array:
    return truncated_quotient(x, y) if _is_integer(x) else np.divide(x, y)


def _floor_divide(x: Array, y: Array) -> Array:
    return truncated_quotient(x, y) if _is_integer(x) else np.trunc(np.divide(x, y))


def _remainder(x: Array, y: Array) -> Array:
    if not _is_integer(x):
        return np.mod(x, y)
    if not y.all():
        raise ValueError("an integer is divided by zero")
    return np.fmod(x, y)


def _guard_zero_division(exact: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """The function `exact` (a quotient rounded down, or its remainder), which raises ValueError if an integer is
    divided by zero.
    """

    def function(x: Array, y: Array) -> Array:
        if _is_integer(x) and not y.all():
            raise ValueError("an integer is divided by zero")
        return exact(x, y)

    return function


def _power(x: Array, y: Array) -> Array:
    # As in Fluid, integers are computed in float64 and rounded, so 2 to the power of -1 is 0 and no error
    return np.rint(np.power(x.astype("float64"), y)).astype(x.dtype) if _is_integer(x) else power(x, y)


_FUNCTIONS = {
    "elementwise_div": _divide,
    "elementwise_floordiv": _floor_divide,
    "elementwise_mod": _remainder,
    "elementwise_pow": _power,
}


_FLOORED = {
    "elementwise_floordiv": _guard_zero_division(np.floor_divide),
    "elementwise_mod": _guard_zero_division(np.mod),
}
"""The functions of ops whose attribute `floored` is set."""


@kernel(" ".join(_FUNCTIONS))
def _function(op: Op) -> Run:
    return aligned_kernel(op, (_FLOORED if flag(op, "floored") else _FUNCTIONS)[op.type])


_GRADIENTS = "X@GRAD Y@GRAD"


@kernel("elementwise_add_grad elementwise_sub_grad", _GRADIENTS, lod="each")
def _add_grad(op: Op) -> Run:
    axis, wants_x, wants_y = _gradient_settings(op)
    negative, by_rows = op.type == "elementwise_sub_grad", axis in (-1, 1)

    def run(X: Array, Y: Array, Out_GRAD: Array) -> tuple[Array | None, Array | None]:
        x_grad = y_grad = None
        dims = Out_GRAD.shape
        if wants_y:
            if by_rows and len(dims) == 2 and dims[1:] == Y.shape != (1,):  # the usual case: Y is added to every row
                y_grad = sum_over(Out_GRAD, (0,))
            else:
                y_grad = Out_GRAD if Y.shape == dims else sum_to(Out_GRAD, Y.shape, axis)
            if negative:
                y_grad = np.negative(y_grad)
        if wants_x:
            x_grad = Out_GRAD if X.shape == dims else sum_to(Out_GRAD, X.shape, axis)
        return x_grad, y_grad

    return run


def _gradient_settings(op: Op) -> tuple[int, bool, bool]:
    return int_attr(op, "axis", -1), has_output(op, "X@GRAD"), has_output(op, "Y@GRAD")


_Slope: TypeAlias = Callable[[Array, Array, "Array | None", Array], Array]
"""A function for the gradient of an input, from X, Y, Out and Out@GRAD with aligned dims."""


def _power_slope(x: Array, y: Array, _out: Array | None, gradient: Array) -> Array:
    """The gradient of Y in X ** Y: Out@GRAD * X ** Y * log(X), where log(X) counts as 0 for X = 0."""
    return gradient * np.where(x == 0, 0, np.log(np.where(x == 0, 1, x))).astype(x.dtype) * power(x, y)


_SLOPES: dict[str, tuple[_Slope, _Slope]] = {
    "elementwise_mul_grad": (
        lambda _x, y, _out, gradient: gradient * y,
        lambda x, _y, _out, gradient: gradient * x,
    ),
    "elementwise_div_grad": (
        lambda _x, y, _out, gradient: gradient / y,
        lambda _x, y, out, gradient: -gradient * out / y,
    ),
    "elementwise_max_grad": (
        lambda x, y, _out, gradient: gradient * (x > y),
        lambda x, y, _out, gradient: gradient * ~(x > y),  # of equal elements, Y gets the whole gradient
    ),
    "elementwise_min_grad": (
        lambda x, y, _out, gradient: gradient * (x < y),
        lambda x, y, _out, gradient: gradient * ~(x < y),
    ),
    "elementwise_pow_grad": (
        lambda x, y, _out, gradient: gradient * y * power(x, y - 1),
        _power_slope,
    ),
}


@kernel(" ".join(_SLOPES), _GRADIENTS, lod="each")
def _function_grad(op: Op) -> Run:
    (of_x, of_y), (axis, wants_x, wants_y) = _SLOPES[op.type], _gradient_settings(op)

    def run(X: Array, Y: Array, Out: Array | None, Out_GRAD: Array) -> tuple[Array | None, Array | None]:
        if X.shape == Y.shape:
            return (
                of_x(X, Y, Out, Out_GRAD) if wants_x else None,
                of_y(X, Y, Out, Out_GRAD) if wants_y else None,
            )
        x, y = align(X, Y, axis)
        return (
            sum_to(of_x(x, y, Out, Out_GRAD), X.shape, axis) if wants_x else None,
            sum_to(of_y(x, y, Out, Out_GRAD), Y.shape, axis) if wants_y else None,
        )

    return run


formula("minus", "{X} - {Y}")


# Kernels. Comparisons and logic.

register_ufuncs(
    {
        "equal": "equal",
        "not_equal": "not_equal",
        "less_than": "less",
        "less_equal": "less_equal",
        "greater_than": "greater",
        "greater_equal": "greater_equal",
        **{name: name for name in ("bitwise_and", "bitwise_or", "bitwise_xor")},
    }
)
formula("logical_and", "np.logical_and({X}, {Y})")
formula("logical_or", "np.logical_or({X}, {Y})")
formula("logical_xor", "np.logical_xor({X}, {Y})")
formula("logical_not", "np.logical_not({X})")
formula("bitwise_not", "np.bitwise_not({X})")


@plain_kernel("allclose", lod="none")
def _allclose_values(Input: Array, Other: Array, *, rtol: float, atol: float, equal_nan: bool) -> Array:
    return np.array([np.allclose(Input, Other, rtol, atol, equal_nan)])


# Kernels. Sums of several tensors, and scalings.

Term: TypeAlias = "Array | SelectedRows"

OVER_TERM = "@over_term"
"""The attribute with the index of a term in whose memory a sum may be computed, because nothing reads
the term later.
"""


MOST_TERMS = 100
"""The most terms of a sum that is an expression: Python compiles each term of one a level deeper."""


def _plain_sum(op: Op) -> str | None:
    count = len(op.inputs["X"])
    return " + ".join(f"{{X[{at}]}}" for at in range(count)) if 1 < count <= MOST_TERMS else None


def _sum_of_arrays(arrays: list[list[Any]]) -> list[Any]:
    """The sum of tensor arrays, step by step. If an array lacks a step, the others are summed."""
    result: list[Any] = []
    for step in range(max(map(len, arrays))):
        items = [array[step] for array in arrays if step < len(array) and array[step] is not None]
        parts = [item.data if isinstance(item, LoDTensor) else item for item in items]
        total = sum(parts[1:], start=parts[0]) if parts else None
        result.append(items[0]._replace(data=total) if items and isinstance(items[0], LoDTensor) else total)
    return result


@kernel("sum", inline=_plain_sum, new=True)
def _sum_values(op: Op) -> Run:
    of_tables = AS_ROWS in op.attrs
    add_up = sum_tables if of_tables else merge_rows
    spare: Any = op.attrs.get(OVER_TERM)

    def run(X: list[Any]) -> Any:
        terms = [term for term in X if term is not None]
        if not terms:
            raise ValueError("none of X has a value")
        if of_tables and (arrays := [term for term in terms if isinstance(term, np.ndarray)]):
            terms = [scatter(term, arrays[0].shape) if isinstance(term, SelectedRows) else term for term in terms]
        if terms and isinstance(terms[0], list):
            return _sum_of_arrays(terms)
        sparse = [term for term in terms if isinstance(term, SelectedRows)]
        dense = [term for term in terms if not isinstance(term, SelectedRows)]
        if not dense:
            return add_up(sparse)
        if len(dense) > 1:
            total = dense[0] + dense[1]
        else:
            total = dense[0] if spare is not None and X[spare] is dense[0] else dense[0].copy()
        for term in dense[2:]:
            total += term
        for term in sparse:
            add_rows(total, term.rows, in_use(term).reshape(-1, *total.shape[1:]))
        return total

    return run


@kernel("scale", inline=lambda op: _scale_expression(op), over=lambda op: _scale_expression(op, over=True), new=True)
def _scale_values(op: Op) -> Run:
    factor, bias, after = real(op, "scale"), real(op, "bias"), flag(op, "bias_after_scale")

    def scale_array(x: Array, scale: float) -> Array:
        of_type = x.dtype.type  # for integers, scale and bias are converted to integers
        if bias == 0:
            return x * of_type(scale)
        return x * of_type(scale) + of_type(bias) if after else (x + of_type(bias)) * of_type(scale)

    def run(X: Term, ScaleTensor: Array | None) -> Term:
        scale = factor if ScaleTensor is None else first_number(ScaleTensor)
        if isinstance(X, SelectedRows):
            return SelectedRows(X.rows, scale_array(X.value, scale), X.height)
        return scale_array(X, scale)

    return run


def _scale_expression(op: Op, over: bool = False) -> str | None:
    """The expression of scale for plain arrays; with `over` it overwrites X."""
    if op.input("ScaleTensor"):
        return None
    factor, bias = (f"{{X}}.dtype.type({real(op, name)!r})" for name in ("scale", "bias"))
    if real(op, "bias") == 0:
        return f"imul({{X}}, {factor})" if over else f"{{X}} * {factor}"
    if over:
        return None
    return f"{{X}} * {factor} + {bias}" if flag(op, "bias_after_scale") else f"({{X}} + {bias}) * {factor}"


formula("increment", "{X} + {X}.dtype.type($step)")


# Kernels. An elementwise sum or product and an activation in one op.


class _FusedOp(NamedTuple):
    """The settings of a fused op: the sum or product, the activation and its slope as a function of its result, and
    which comes last.
    """

    product: bool
    activate: Callable[[Array], Array]
    slope: Callable[[Array], Array | float]
    last: bool
    axis: int


def _fused_functions(op: Op) -> _FusedOp:
    combined, name, last = functors(op)
    factor = np.float32(real(op, "scale"))
    activate: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array | float]]] = {
        "scale": (lambda x: x * factor, lambda _: factor),
        "relu": (lambda x: np.maximum(x, 0), lambda out: out > 0),
        "tanh": (np.tanh, lambda out: 1 - out * out),
        "sigmoid": (sigmoid, lambda out: out * (1 - out)),
    }
    return _FusedOp(combined == "elementwise_mul", *activate[name], last, int_attr(op, "axis", -1))


def _combine_operands(x: Array, y: Array, of: _FusedOp) -> Array:
    return np.multiply(*align(x, y, of.axis)) if of.product else np.add(*align(x, y, of.axis))


@plain_kernel("fused_elemwise_activation", "Out IntermediateOut")
def _fused_elemwise_activation(X: Array, Y: Array, *, of: _FusedOp = per_op(_fused_functions)) -> tuple[Array, Array]:
    if of.last:
        inner = _combine_operands(X, Y, of)
        return of.activate(inner), inner
    inner = of.activate(Y)
    return _combine_operands(X, inner, of), inner


@plain_kernel("fused_elemwise_activation_grad", "X@GRAD Y@GRAD IntermediateOut@GRAD", lod="each")
def _fused_elemwise_activation_grad(
    X: Array, Y: Array, Out: Array, Out_GRAD: Array, *, of: _FusedOp = per_op(_fused_functions)
) -> tuple[Array, Array, Array]:
    """Gradient of fused_elemwise_activation. Slopes are computed from results, so the op's intermediate output is not
    read.
    """
    grad, other = (Out_GRAD * of.slope(Out), Y) if of.last else (Out_GRAD, of.activate(Y))
    x_grad, y_grad = grad, grad
    if of.product:
        wide_x, wide_y = align(X, other, of.axis)
        x_grad, y_grad = grad * wide_y, grad * wide_x
    x_grad, inner = sum_to(x_grad, X.shape, of.axis), sum_to(y_grad, Y.shape, of.axis)
    if of.last:
        return x_grad, inner, grad
    return x_grad, inner * of.slope(other), inner
