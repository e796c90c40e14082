"""Norms along dims and of whole tensors, and distances."""

from __future__ import annotations

from collections.abc import Callable

from pstranspile.ir.model import Op, TensorType
from pstranspile.lazy import lazy_import
from pstranspile.ops.broadcasting import sum_to
from pstranspile.ops.kernel import Run, kernel, wanted
from pstranspile.ops.numeric import flag, formula, real
from pstranspile.ops.schema import INT, declare, declare_gradient, ints
from pstranspile.ops.shapes import ShapeError, Types, describe, int_attr, ints_attr, one, shape_rule
from pstranspile.ops.values import Array

np = lazy_import("numpy")

declare("norm", "X -> Norm Out", {"axis": INT, "epsilon": 1e-10}, doc="Out = X divided by its L2 norm along `axis`")
declare_gradient("norm", "X Norm Out@GRAD -> X@GRAD")
declare(
    "p_norm",
    "X -> Out",
    {"porder": 2.0, "axis": -1, "epsilon": 1e-12, "keepdim": False},
    doc="Out = the p-norm of X along `axis`",
)
declare_gradient("p_norm", "X Out Out@GRAD -> X@GRAD")
declare("l1_norm", "X -> Out", doc="Out = the sum of the absolute values of X")
declare_gradient("l1_norm", "X Out@GRAD -> X@GRAD")
declare(
    "frobenius_norm",
    "X -> Out",
    {"dim": ints(0), "keep_dim": False, "reduce_all": False, "in_dtype": -1, "out_dtype": -1},
    doc="Out = the square root of the sum of squares over `dim`",
)
declare_gradient("frobenius_norm", "X Out Out@GRAD -> X@GRAD")
declare("dist", "X Y -> Out", {"p": 2.0}, doc="Out = the p-norm of X - Y")
declare_gradient("dist", "X Y Out Out@GRAD -> X@GRAD Y@GRAD")


def _dim(x: TensorType, dim: int) -> int:
    """The dim counted from 0. Raises ShapeError if X has none such."""
    rank = len(x.shape)
    if not -rank <= dim < rank:
        raise ShapeError(f"dim {dim} is not a dim of X, which is {describe(x)}", "X")
    return dim % rank


def _reduced(x: TensorType, gone: set[int], keep: bool) -> TensorType:
    """X without these dims, or with 1 in their place."""
    if keep:
        dims = tuple(1 if at in gone else dim for at, dim in enumerate(x.shape))
    else:
        dims = tuple(dim for at, dim in enumerate(x.shape) if at not in gone)
    return TensorType(x.dtype, dims or (1,), 0 if 0 in gone else x.lod_level)


@shape_rule("norm")
def _norm(op: Op, types: Types) -> Types:
    x = one(types, "X")
    return {
        "Norm": (_reduced(x, {_dim(x, int_attr(op, "axis"))}, True)._replace(lod_level=0),),
        "Out": (x._replace(lod_level=0),),
    }


@shape_rule("p_norm")
def _p_norm(op: Op, types: Types) -> Types:
    x = one(types, "X")
    return {"Out": (_reduced(x, {_dim(x, int_attr(op, "axis", -1))}, flag(op, "keepdim"))._replace(lod_level=0),)}


@shape_rule("frobenius_norm")
def _frobenius_norm(op: Op, types: Types) -> Types:
    x = one(types, "X")
    gone = {_dim(x, dim) for dim in ints_attr(op, "dim")}
    if op.attrs.get("reduce_all"):
        gone = set(range(len(x.shape)))
    return {"Out": (_reduced(x, gone, flag(op, "keep_dim")),)}


@shape_rule("l1_norm", "dist")
def _one_number(_op: Op, types: Types) -> Types:
    return {"Out": (TensorType(one(types, "X").dtype, (1,)),)}


# Kernels


@kernel("norm", "Norm Out", lod="none")
def _norm_values(op: Op) -> Run:
    axis, epsilon = int_attr(op, "axis"), real(op, "epsilon")

    def run(X: Array) -> tuple[Array, Array]:
        norm = np.sqrt(np.add.reduce(np.square(X), axis=axis, keepdims=True) + epsilon)
        return norm, X / norm

    return run


@kernel("norm_grad", "X@GRAD", lod="none")
def _norm_grad(op: Op) -> Run:
    axis = int_attr(op, "axis")

    def run(X: Array, Norm: Array, Out_GRAD: Array) -> Array:
        along = np.add.reduce(X * Out_GRAD, axis=axis, keepdims=True)
        return (Out_GRAD - X * (along / np.square(Norm))) / Norm

    return run


def _power_norm(x: Array, p: float, axis: int | None, keep: bool) -> Array:
    """The p-norm along one dim or of all elements; p = 0 counts those that are not 0."""
    size = np.abs(x)
    if np.isinf(p):
        reduce = np.maximum.reduce if p > 0 else np.minimum.reduce
        return reduce(size, axis=axis, keepdims=keep)
    if p == 0:
        return np.add.reduce((x != 0).astype(x.dtype), axis=axis, keepdims=keep)
    return np.add.reduce(size**p, axis=axis, keepdims=keep) ** (1 / p)


def _at_least_1d(value: Array) -> Array:
    """Fluid has no tensors without dims: a norm of everything has one."""
    return np.asarray(value).reshape(-1) if np.ndim(value) == 0 else value


def _power_norm_slope(x: Array, norm: Array, p: float) -> Array:
    """The derivative of a p-norm by each element, 0 where the element or the norm is 0."""
    if p == 0:
        return np.zeros_like(x)
    sign, size = np.sign(x), np.abs(x)
    if np.isinf(p):
        return sign * (size == norm)
    if p == 1:
        return sign
    moves = (size > 0) & (norm > 0)
    share = np.where(moves, size, 1) / np.where(norm > 0, norm, 1)
    return np.where(moves, sign * share ** (p - 1), 0).astype(x.dtype)


@kernel("p_norm", lod="none")
def _p_norm_values(op: Op) -> Run:
    p, axis, keep = real(op, "porder"), int_attr(op, "axis", -1), flag(op, "keepdim")

    def run(X: Array) -> Array:
        return _at_least_1d(_power_norm(X, p, axis, keep))

    return run


@kernel("p_norm_grad", "X@GRAD", lod="none")
def _p_norm_grad(op: Op) -> Run:
    p, axis, keep = real(op, "porder"), int_attr(op, "axis", -1), flag(op, "keepdim")

    def run(X: Array, Out: Array, Out_GRAD: Array) -> Array:
        if keep or X.ndim == 1:
            return _power_norm_slope(X, Out, p) * Out_GRAD
        return _power_norm_slope(X, np.expand_dims(Out, axis), p) * np.expand_dims(Out_GRAD, axis)

    return run


formula("l1_norm", "np.add.reduce(np.abs({X}), axis=None).reshape(1)", lod="none")
formula("l1_norm_grad", "np.sign({X}) * {Out_GRAD}", "X@GRAD", lod="none")


def _axes(op: Op) -> Callable[[int], tuple[int, ...]]:
    """From the number of dims to the dims that are summed over, counted from 0."""
    dims = None if flag(op, "reduce_all") else ints_attr(op, "dim")

    def axes(rank: int) -> tuple[int, ...]:
        return tuple(range(rank)) if dims is None else tuple([dim % rank for dim in dims])

    return axes


@kernel("frobenius_norm")
def _frobenius_norm_values(op: Op) -> Run:
    axes, keep = _axes(op), flag(op, "keep_dim")

    def run(X: Array) -> Array:
        return _at_least_1d(np.sqrt(np.add.reduce(np.square(X), axis=axes(X.ndim), keepdims=keep)))

    return run


@kernel("frobenius_norm_grad", "X@GRAD", lod="each")
def _frobenius_norm_grad(op: Op) -> Run:
    axes = _axes(op)

    def run(X: Array, Out: Array, Out_GRAD: Array) -> Array:
        gone = axes(X.ndim)
        kept = tuple([1 if at in gone else dim for at, dim in enumerate(X.shape)])
        return _power_norm_slope(X, Out.reshape(kept), 2) * Out_GRAD.reshape(kept)

    return run


@kernel("dist", lod="none")
def _dist_values(op: Op) -> Run:
    p = real(op, "p")

    def run(X: Array, Y: Array) -> Array:
        return _at_least_1d(_power_norm(X - Y, p, None, False))

    return run


@kernel("dist_grad", "X@GRAD Y@GRAD", lod="none")
def _dist_grad(op: Op) -> Run:
    p = real(op, "p")
    wants_x, wants_y = wanted(op, "X@GRAD"), wanted(op, "Y@GRAD")

    def run(X: Array, Y: Array, Out: Array, Out_GRAD: Array) -> tuple[Array | None, Array | None]:
        gradient = _power_norm_slope(X - Y, Out, p) * Out_GRAD
        x_grad = sum_to(gradient, X.shape, -1) if wants_x else None
        return x_grad, -sum_to(gradient, Y.shape, -1) if wants_y else None

    return run
