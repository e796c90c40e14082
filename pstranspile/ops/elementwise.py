"""Elementwise arithmetic of two tensors, with Fluid's axis broadcasting."""

from __future__ import annotations

from collections.abc import Callable

from pstranspile.arithmetic import power
from pstranspile.ir.model import Op, TensorType
from pstranspile.lazy import lazy_import
from pstranspile.ops.broadcasting import align, sum_to
from pstranspile.ops.kernel import Run, kernel, wanted
from pstranspile.ops.numeric import truncated_quotient
from pstranspile.ops.schema import declare, declare_gradient
from pstranspile.ops.shapes import ShapeError, Types, describe, disagree, int_attr, one, shape_rule
from pstranspile.ops.values import Array, SelectedRows

np = lazy_import("numpy")

_BINARY = {"axis": -1, "use_mkldnn": False, "x_data_format": "", "y_data_format": ""}

declare(
    "elementwise_add",
    "X Y -> Out",
    _BINARY,
    row_wise=True,
    doc="Out = X + Y; the dims of Y lie on those of X from `axis` on (-1: the last ones), the rest is broadcast",
)
declare_gradient("elementwise_add", "X Y Out@GRAD -> X@GRAD Y@GRAD")
declare("elementwise_sub", "X Y -> Out", _BINARY, row_wise=True, doc="Out = X - Y")
declare_gradient("elementwise_sub", "X Y Out@GRAD -> X@GRAD Y@GRAD")
declare("elementwise_mul", "X Y -> Out", _BINARY, row_wise=True, doc="Out = X * Y")
declare_gradient("elementwise_mul", "X Y Out@GRAD -> X@GRAD Y@GRAD")
declare("elementwise_div", "X Y -> Out", _BINARY, row_wise=True, doc="Out = X / Y; integers truncate toward zero")
declare_gradient("elementwise_div", "X Y Out Out@GRAD -> X@GRAD Y@GRAD")
declare("elementwise_max", "X Y -> Out", _BINARY, row_wise=True, doc="Out = the larger of X and Y")
declare_gradient("elementwise_max", "X Y Out@GRAD -> X@GRAD Y@GRAD")
declare("elementwise_min", "X Y -> Out", _BINARY, row_wise=True, doc="Out = the smaller of X and Y")
declare_gradient("elementwise_min", "X Y Out@GRAD -> X@GRAD Y@GRAD")
declare("elementwise_pow", "X Y -> Out", _BINARY, row_wise=True, doc="Out = X to the power of Y")
declare_gradient("elementwise_pow", "X Y Out@GRAD -> X@GRAD Y@GRAD")
declare(
    "elementwise_mod",
    "X Y -> Out",
    _BINARY,
    row_wise=True,
    doc="Out = the remainder of X / Y; of integers with the sign of X, of floats with the sign of Y",
)
declare("elementwise_floordiv", "X Y -> Out", _BINARY, row_wise=True, doc="Out = X / Y, truncated toward zero")


def broadcast(op: Op, types: Types) -> TensorType:
    """The type of X op Y: the dims of Y lie on those of X from `axis` on, dims of size 1 repeat.

    Raises ShapeError when dims or element types differ, Unknown when one is not known.
    """
    x, y = one(types, "X"), one(types, "Y")
    if x.dtype is not y.dtype:
        disagree("Y", y, "X", x)
    if x.shape == y.shape:
        return x
    wide, narrow = (x, y) if len(x.shape) >= len(y.shape) else (y, x)
    axis = op.attrs.get("axis", -1)
    start = axis if isinstance(axis, int) and axis >= 0 else len(wide.shape) - len(narrow.shape)
    if start + len(narrow.shape) > len(wide.shape):
        raise ShapeError(f"axis is {start}, but Y is {describe(y)} and X is {describe(x)}", "Y")
    dims = list(wide.shape)
    for at, dim in enumerate(narrow.shape, start):
        if dim > 1 and dims[at] > 1 and dim != dims[at]:
            raise ShapeError(f"Y is {describe(y)}, which does not fit X, {describe(x)}, from dim {start} on", "Y")
        dims[at] = dims[at] if dim == 1 else dim if dims[at] == 1 else max(dim, dims[at])
    return TensorType(x.dtype, tuple(dims), x.lod_level)


@shape_rule(
    "elementwise_add",
    "elementwise_sub",
    "elementwise_mul",
    "elementwise_div",
    "elementwise_max",
    "elementwise_min",
    "elementwise_pow",
    "elementwise_mod",
    "elementwise_floordiv",
)
def _elementwise(op: Op, types: Types) -> Types:
    return {"Out": (broadcast(op, types),)}


# Kernels

_UFUNCS = {
    "elementwise_add": "add",
    "elementwise_sub": "subtract",
    "elementwise_max": "maximum",
    "elementwise_min": "minimum",
}


def _plain(op: Op) -> str | None:
    """With axis -1 numpy's own broadcasting is Fluid's."""
    return f"np.{_UFUNCS[op.type]}({{X}}, {{Y}})" if int_attr(op, "axis", -1) < 0 else None


@kernel(" ".join(_UFUNCS), inline=_plain)
def _ufunc(op: Op) -> Run:
    return _binary(op, getattr(np, _UFUNCS[op.type]))


def _binary(op: Op, function: Callable[[Array, Array], Array]) -> Run:
    axis = int_attr(op, "axis", -1)

    def run(X: Array, Y: Array) -> Array:
        return function(X, Y)

    def run_aligned(X: Array, Y: Array) -> Array:
        if X.ndim - Y.ndim == axis:  # as it mostly is: numpy does the same
            return function(X, Y)
        return function(*align(X, Y, axis))

    return run if axis < 0 else run_aligned


@kernel("elementwise_mul", inline=lambda op: "np.multiply({X}, {Y})" if int_attr(op, "axis", -1) < 0 else None)
def _mul(op: Op) -> Run:
    axis = int_attr(op, "axis", -1)

    def run(X: Array | SelectedRows, Y: Array) -> Array | SelectedRows:
        if isinstance(X, SelectedRows):
            if Y.size != 1:
                raise ValueError(f"X is SelectedRows, which only one number can multiply, and Y has {Y.size}")
            return X._replace(value=X.value * Y.reshape(-1))
        return np.multiply(*align(X, Y, axis))

    return run


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


def _power(x: Array, y: Array) -> Array:
    # Integers as Fluid does: rounded from float64, so that 2 to the power of -1 is 0 and not an error
    return np.rint(np.power(x.astype("float64"), y)).astype(x.dtype) if _is_integer(x) else power(x, y)


_FUNCTIONS = {
    "elementwise_div": _divide,
    "elementwise_floordiv": _floor_divide,
    "elementwise_mod": _remainder,
    "elementwise_pow": _power,
}


@kernel(" ".join(_FUNCTIONS))
def _function(op: Op) -> Run:
    return _binary(op, _FUNCTIONS[op.type])


_GRADIENTS = "X@GRAD Y@GRAD"


@kernel("elementwise_add_grad elementwise_sub_grad", _GRADIENTS, lod="each")
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


def _gradients(op: Op, of_x: Callable[..., Array], of_y: Callable[..., Array]) -> Run:
    """From the derivatives of both inputs, given X, Y, Out and Out@GRAD (aligned), their gradients."""
    axis, wants_x, wants_y = _wanted(op)

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


@kernel("elementwise_mul_grad", _GRADIENTS, lod="each")
def _mul_grad(op: Op) -> Run:
    def of_x(_x: Array, y: Array, _out: None, gradient: Array) -> Array:
        return gradient * y

    def of_y(x: Array, _y: Array, _out: None, gradient: Array) -> Array:
        return gradient * x

    return _gradients(op, of_x, of_y)


@kernel("elementwise_div_grad", _GRADIENTS, lod="each")
def _div_grad(op: Op) -> Run:
    def of_x(_x: Array, y: Array, _out: Array, gradient: Array) -> Array:
        return gradient / y

    def of_y(_x: Array, y: Array, out: Array, gradient: Array) -> Array:
        return -gradient * out / y

    return _gradients(op, of_x, of_y)


@kernel("elementwise_max_grad elementwise_min_grad", _GRADIENTS, lod="each")
def _extreme_grad(op: Op) -> Run:
    chosen = np.greater if op.type == "elementwise_max_grad" else np.less

    def of_x(x: Array, y: Array, _out: None, gradient: Array) -> Array:
        return gradient * chosen(x, y)

    def of_y(x: Array, y: Array, _out: None, gradient: Array) -> Array:
        return gradient * ~chosen(x, y)  # equal elements: all to Y

    return _gradients(op, of_x, of_y)


@kernel("elementwise_pow_grad", _GRADIENTS, lod="each")
def _pow_grad(op: Op) -> Run:
    def of_x(x: Array, y: Array, _out: None, gradient: Array) -> Array:
        return gradient * y * power(x, y - 1)

    def of_y(x: Array, y: Array, _out: None, gradient: Array) -> Array:
        # 0 to the power of y does not change with y > 0
        return gradient * np.where(x == 0, 0, np.log(np.where(x == 0, 1, x))).astype(x.dtype) * power(x, y)

    return _gradients(op, of_x, of_y)
