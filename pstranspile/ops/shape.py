"""Other shapes of the same elements. XShape holds the shape of X after a leading 0, and no data."""

from __future__ import annotations

from collections.abc import Callable

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.lazy import lazy_import
from pstranspile.ops.fill import asked_dims
from pstranspile.ops.kernel import Run, kernel, wanted
from pstranspile.ops.numeric import first
from pstranspile.ops.schema import INTS, declare, declare_gradient, ints
from pstranspile.ops.shapes import ShapeError, Types, describe, given, int_attr, ints_attr, one, shape_rule, size
from pstranspile.ops.values import Array

np = lazy_import("numpy")

declare(
    "reshape",
    "X Shape? ShapeTensor*? -> Out",
    {"shape": ints()},
    doc="Out = X with dims `shape` (0: as in X, -1: the rest)",
)
declare(
    "reshape2",
    "X Shape? ShapeTensor*? -> Out XShape",
    {"shape": ints(), "use_quantizer": False},
    doc="as reshape, with the old shape in XShape",
)
declare_gradient("reshape2", "XShape Out@GRAD -> X@GRAD")
declare(
    "transpose",
    "X -> Out",
    {"axis": INTS, "use_mkldnn": False, "data_format": "AnyLayout", "use_quantizer": False},
    doc="Out = X with its dims in the order `axis`",
)
declare_gradient("transpose", "X Out Out@GRAD -> X@GRAD")
declare(
    "transpose2",
    "X -> Out XShape",
    {"axis": INTS, "use_mkldnn": False, "data_format": "AnyLayout", "use_quantizer": False},
    doc="as transpose, with the old shape in XShape",
)
declare_gradient("transpose2", "XShape Out@GRAD -> X@GRAD")
declare("squeeze", "X -> Out", {"axes": ints()}, doc="Out = X without the dims `axes` of size 1")
declare_gradient("squeeze", "X Out@GRAD -> X@GRAD")
declare("squeeze2", "X -> Out XShape", {"axes": ints()}, doc="as squeeze, with the old shape in XShape")
declare_gradient("squeeze2", "XShape Out@GRAD -> X@GRAD")
declare(
    "unsqueeze",
    "X AxesTensor? AxesTensorList*? -> Out",
    {"axes": ints()},
    doc="Out = X with dims of size 1 put in at `axes`",
)
declare_gradient("unsqueeze", "X Out@GRAD -> X@GRAD")
declare(
    "unsqueeze2",
    "X AxesTensor? AxesTensorList*? -> Out XShape",
    {"axes": ints()},
    doc="as unsqueeze, with the old shape in XShape",
)
declare_gradient("unsqueeze2", "XShape Out@GRAD -> X@GRAD")
declare(
    "flatten",
    "X -> Out",
    {"axis": 1},
    doc="Out = X as a matrix, its dims before `axis` made one and those from `axis` on",
)
declare_gradient("flatten", "X Out@GRAD -> X@GRAD")
declare("flatten2", "X -> Out XShape", {"axis": 1}, doc="as flatten, with the old shape in XShape")
declare_gradient("flatten2", "XShape Out@GRAD -> X@GRAD")
declare("shape", "Input -> Out", doc="Out = the dims of Input, i32")


def _without_data(x: TensorType) -> tuple[TensorType]:
    """The type of XShape: the dims of X after a leading 0."""
    return (TensorType(x.dtype, (0, *x.shape), x.lod_level),)


def _reshaped(x: TensorType, dims: tuple[int, ...]) -> Types:
    lod = x.lod_level if dims[:1] == x.shape[:1] else 0
    return {"Out": (TensorType(x.dtype, dims, lod),), "XShape": _without_data(x)}


@shape_rule("reshape", "reshape2")
def _reshape(op: Op, types: Types) -> Types:
    x = one(types, "X")
    asked = ints_attr(op, "shape")
    if not asked or "Shape" in types:
        return {"XShape": _without_data(x)}
    if any(dim == 0 and at >= len(x.shape) for at, dim in enumerate(asked)):
        raise ShapeError(f"shape is {list(asked)}, but X is {describe(x)}", "X")
    dims = tuple(x.shape[at] if dim == 0 else dim for at, dim in enumerate(asked))
    whole = size(x.shape)
    if asked.count(-1) == 1 and whole >= 0 and "ShapeTensor" not in types:
        rest = size(tuple(dim for dim in dims if dim != -1))
        if rest <= 0 or whole % rest:
            raise ShapeError(f"X is {describe(x)}, which cannot have the dims {list(asked)}", "X")
        dims = tuple(whole // rest if dim == -1 else dim for dim in dims)
    elif whole >= 0 and size(dims) >= 0 and size(dims) != whole:
        raise ShapeError(f"X is {describe(x)}, which cannot have the dims {list(asked)}", "X")
    return _reshaped(x, dims)


@shape_rule("transpose", "transpose2")
def _transpose(op: Op, types: Types) -> Types:
    x = one(types, "X")
    order = ints_attr(op, "axis")
    if sorted(order) != list(range(len(x.shape))):
        raise ShapeError(f"axis {list(order)} is not an order of the dims of X, which is {describe(x)}", "X")
    return {"Out": (TensorType(x.dtype, tuple(x.shape[at] for at in order)),), "XShape": _without_data(x)}


@shape_rule("squeeze", "squeeze2")
def _squeeze(op: Op, types: Types) -> Types:
    x = one(types, "X")
    axes = ints_attr(op, "axes")
    rank = len(x.shape)
    for axis in axes:
        if not -rank <= axis < rank or x.shape[axis] not in (1, -1):
            raise ShapeError(f"axes has {axis}, which is not a dim of size 1 of X, {describe(x)}", "X")
    if not axes and -1 in x.shape:
        return {"XShape": _without_data(x)}  # an unknown dim may be of size 1
    gone = {axis % rank for axis in axes} or {at for at, dim in enumerate(x.shape) if dim == 1}
    return _reshaped(x, tuple(dim for at, dim in enumerate(x.shape) if at not in gone))


@shape_rule("unsqueeze", "unsqueeze2")
def _unsqueeze(op: Op, types: Types) -> Types:
    x = one(types, "X")
    if "AxesTensor" in types or "AxesTensorList" in types:
        return {"XShape": _without_data(x)}
    dims = list(x.shape)
    for axis in ints_attr(op, "axes"):
        at = axis if axis >= 0 else axis + len(dims) + 1
        if not 0 <= at <= len(dims):
            raise ShapeError(f"axes has {axis}, but X is {describe(x)}", "X")
        dims.insert(at, 1)
    return _reshaped(x, tuple(dims))


@shape_rule("flatten", "flatten2")
def _flatten(op: Op, types: Types) -> Types:
    x = one(types, "X")
    axis = int_attr(op, "axis")
    return _reshaped(x, (size(x.shape[:axis]), size(x.shape[axis:])))


@shape_rule("reshape2_grad", "transpose2_grad", "squeeze2_grad", "unsqueeze2_grad", "flatten2_grad")
def _from_x_shape(_op: Op, types: Types) -> Types:
    shape, gradient = one(types, "XShape"), given(types, "Out@GRAD")
    dtype = shape.dtype if gradient is None else gradient.dtype
    return {"X@GRAD": (TensorType(dtype, shape.shape[1:], shape.lod_level),)}


@shape_rule("shape")
def _shape(_op: Op, types: Types) -> Types:
    return {"Out": (TensorType(DType.INT32, (len(one(types, "Input").shape),)),)}


# Kernels


def _with_x_shape(op: Op, change: Callable[[Array], Array]) -> Callable[[Array], tuple[Array, Array | None]]:
    """A copy of what `change` makes of X (X may be a parameter, which is updated in place later), and XShape."""
    named = wanted(op, "XShape")

    def run(x: Array) -> tuple[Array, Array | None]:
        return change(x).copy(), np.empty((0, *x.shape), x.dtype) if named else None

    return run


@kernel("reshape reshape2", "Out XShape")
def _reshape_values(op: Op) -> Run:
    written = ints_attr(op, "shape")
    named = wanted(op, "XShape")

    def run(X: Array, Shape: Array | None, ShapeTensor: list[Array]) -> tuple[Array, Array | None]:
        dims = (
            written
            if Shape is None and not ShapeTensor
            else asked_dims(op, None if ShapeTensor else Shape, ShapeTensor)
        )
        if 0 in dims:
            dims = [X.shape[at] if dim == 0 and at < X.ndim else dim for at, dim in enumerate(dims)]
        return X.reshape(dims).copy(), np.empty((0, *X.shape), X.dtype) if named else None

    return run


@kernel("transpose transpose2", "Out XShape", lod="none")
def _transpose_values(op: Op) -> Run:
    order = ints_attr(op, "axis")
    make = _with_x_shape(op, lambda x: x.transpose(order))

    def run(X: Array) -> tuple[Array, Array | None]:
        return make(X)

    return run


@kernel("squeeze squeeze2", "Out XShape")
def _squeeze_values(op: Op) -> Run:
    axes = ints_attr(op, "axes")

    def squeezed(x: Array) -> Array:
        found = x.squeeze(axes or None)
        return found if found.ndim else found.reshape(1)

    make = _with_x_shape(op, squeezed)

    def run(X: Array) -> tuple[Array, Array | None]:
        return make(X)

    return run


@kernel("unsqueeze unsqueeze2", "Out XShape")
def _unsqueeze_values(op: Op) -> Run:
    given_axes = ints_attr(op, "axes")

    def run(X: Array, AxesTensor: Array | None, AxesTensorList: list[Array]) -> tuple[Array, Array | None]:
        axes = given_axes
        if AxesTensor is not None:
            axes = tuple(AxesTensor.reshape(-1).tolist())
        elif AxesTensorList:
            axes = tuple(first(part) for part in AxesTensorList)
        dims = list(X.shape)
        for axis in axes:
            at = axis if axis >= 0 else axis + len(dims) + 1
            if not 0 <= at <= len(dims):
                raise ValueError(f"axes has {axis}, but X has {len(dims)} dims")
            dims.insert(at, 1)
        return _with_x_shape(op, lambda x: x.reshape(dims))(X)

    return run


@kernel("flatten flatten2", "Out XShape")
def _flatten_values(op: Op) -> Run:
    axis = int_attr(op, "axis", 1)
    make = _with_x_shape(op, lambda x: x.reshape(size(x.shape[:axis]), size(x.shape[axis:])))

    def run(X: Array) -> tuple[Array, Array | None]:
        return make(X)

    return run


@kernel("reshape2_grad squeeze2_grad unsqueeze2_grad flatten2_grad", "X@GRAD")
def _from_x_shape_values(_op: Op) -> Run:
    def run(XShape: Array, Out_GRAD: Array) -> Array:
        return Out_GRAD.reshape(XShape.shape[1:])

    return run


@kernel("squeeze_grad unsqueeze_grad flatten_grad", "X@GRAD")
def _like_x(_op: Op) -> Run:
    def run(X: Array, Out_GRAD: Array) -> Array:
        return Out_GRAD.reshape(X.shape)

    return run


@kernel("transpose_grad transpose2_grad", "X@GRAD", lod="none")
def _transpose_grad(op: Op) -> Run:
    order = ints_attr(op, "axis")
    inverse = tuple(order.index(at) for at in range(len(order)))

    def run(Out_GRAD: Array) -> Array:
        return np.ascontiguousarray(Out_GRAD.transpose(inverse))

    return run


@kernel("shape", lod="none")
def _shape_values(_op: Op) -> Run:
    def run(Input: Array) -> Array:
        return np.array(Input.shape, "int32")

    return run
