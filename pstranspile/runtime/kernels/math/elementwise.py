"""Kernels. Elementwise arithmetic of two tensors, with Fluid's axis broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr
from pstranspile.runtime.arithmetic import power
from pstranspile.runtime.kernels.broadcasting import align, aligned, register_ufuncs, sum_to
from pstranspile.runtime.kernels.kernel import Run, kernel, plain_kernel, wanted
from pstranspile.runtime.kernels.numeric import formula, truncated_quotient
from pstranspile.runtime.values import Array, SelectedRows

register_ufuncs(
    {
        "elementwise_add": "add",
        "elementwise_sub": "subtract",
        "elementwise_max": "maximum",
        "elementwise_min": "minimum",
    }
)


@plain_kernel("elementwise_mul", inline=lambda op: "np.multiply({X}, {Y})" if int_attr(op, "axis", -1) < 0 else None)
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


def _floored(exact: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """A quotient rounded down, or its remainder."""

    def function(x: Array, y: Array) -> Array:
        if _is_integer(x) and not y.all():
            raise ValueError("an integer is divided by zero")
        return exact(x, y)

    return function


def _power(x: Array, y: Array) -> Array:
    # As in Fluid, integers are rounded from float64, so 2 to the power of -1 is 0 and no error
    return np.rint(np.power(x.astype("float64"), y)).astype(x.dtype) if _is_integer(x) else power(x, y)


_FUNCTIONS = {
    "elementwise_div": _divide,
    "elementwise_floordiv": _floor_divide,
    "elementwise_mod": _remainder,
    "elementwise_pow": _power,
}


_FLOORED = {"elementwise_floordiv": _floored(np.floor_divide), "elementwise_mod": _floored(np.mod)}
"""What ops with the attribute `floored` compute."""


@kernel(" ".join(_FUNCTIONS))
def _function(op: Op) -> Run:
    return aligned(op, (_FLOORED if flag(op, "floored") else _FUNCTIONS)[op.type])


_GRADIENTS = "X@GRAD Y@GRAD"


@kernel("elementwise_add_grad elementwise_sub_grad", _GRADIENTS, lod="each", dims_only="X Y")
def _add_grad(op: Op) -> Run:
    axis, wants_x, wants_y = _wanted(op)
    negative = op.type == "elementwise_sub_grad"

    def run(X: Array, Y: Array, Out_GRAD: Array) -> tuple[Array | None, Array | None]:
        x_grad = y_grad = None
        dims = Out_GRAD.shape
        if wants_y:
            y_grad = Out_GRAD if Y.shape == dims else sum_to(Out_GRAD, Y.shape, axis)
            if negative:
                y_grad = np.negative(y_grad)
        if wants_x:
            x_grad = Out_GRAD if X.shape == dims else sum_to(Out_GRAD, X.shape, axis)
        return x_grad, y_grad

    return run


def _wanted(op: Op) -> tuple[int, bool, bool]:
    return int_attr(op, "axis", -1), wanted(op, "X@GRAD"), wanted(op, "Y@GRAD")


_Slope: TypeAlias = Callable[[Array, Array, "Array | None", Array], Array]
"""The gradient of an input from X, Y, Out and Out@GRAD, aligned."""


def _power_slope(x: Array, y: Array, _out: Array | None, gradient: Array) -> Array:
    """The gradient of the exponent; the derivative of 0 to the power of y is 0 for y > 0."""
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
        lambda x, y, _out, gradient: gradient * ~(x > y),  # for equal elements the whole gradient goes to Y
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
    (of_x, of_y), (axis, wants_x, wants_y) = _SLOPES[op.type], _wanted(op)

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
