"""Products that are less often used, and differences."""

from __future__ import annotations

from pstranspile.arithmetic import dot, matmul
from pstranspile.ir.model import Op, TensorType
from pstranspile.lazy import lazy_import
from pstranspile.ops.broadcasting import sum_to
from pstranspile.ops.gradient import Wanted, gradient, output_gradients, scaled
from pstranspile.ops.kernel import Run, kernel, wanted
from pstranspile.ops.numeric import formula, real
from pstranspile.ops.schema import UNSCOPED, declare, declare_gradient
from pstranspile.ops.shapes import (
    ShapeError,
    Types,
    describe,
    disagree,
    fits,
    given,
    int_attr,
    one,
    outputs_like,
    require_alike,
    shape_rule,
)
from pstranspile.ops.values import Array

np = lazy_import("numpy")

declare(
    "addmm",
    "Input X Y -> Out",
    {"use_mkldnn": False, "Alpha": 1.0, "Beta": 1.0},
    doc="Out = Beta * Input + Alpha * X @ Y",
)
declare_gradient("addmm", "Input X Y Out@GRAD -> Input@GRAD X@GRAD Y@GRAD")
declare("bmm", "X Y -> Out", doc="Out = X @ Y for each of a batch")
declare_gradient("bmm", "X Y Out@GRAD -> X@GRAD Y@GRAD", UNSCOPED)
declare("dot", "X Y -> Out", doc="Out = the inner product of each row of X with that row of Y")
declare_gradient("dot", "X Y Out@GRAD -> X@GRAD Y@GRAD")
declare("kron", "X Y -> Out", doc="Out = the Kronecker product of X and Y")
declare_gradient("kron", "X Y Out@GRAD -> X@GRAD Y@GRAD")
declare("cross", "X Y -> Out", {"dim": 9}, doc="Out = the cross product of X and Y along `dim`")
declare_gradient("cross", "X Y Out@GRAD -> X@GRAD Y@GRAD")
declare("minus", "X Y -> Out", row_wise=True, doc="Out = X - Y")
declare(
    "bilinear_tensor_product",
    "X Y Weight Bias? -> Out",
    doc="Out = X * Weight * Y for each of Weight's slices, plus Bias",
)
declare_gradient("bilinear_tensor_product", "X Y Weight Out@GRAD -> X@GRAD Y@GRAD Weight@GRAD Bias@GRAD?")
declare("trace", "Input -> Out", {"offset": 0, "dim1": -2, "dim2": -1}, doc="Out = the sum along the diagonal of X")
declare_gradient("trace", "Input Out@GRAD -> Input@GRAD")


@gradient("minus")
def _minus_gradient(op: Op, asked: Wanted) -> tuple[Op, ...]:
    (out,) = output_gradients(op, "Out")
    signs = (("X", 1.0), ("Y", -1.0))
    return tuple(scaled(out, name, sign) for slot, sign in signs for name in asked.kept(op, slot))


@shape_rule("addmm")
def _addmm(_op: Op, types: Types) -> Types:
    x, y, added = one(types, "X"), one(types, "Y"), given(types, "Input")
    if len(x.shape) != 2 or len(y.shape) != 2 or not fits(x.shape[1:], y.shape[:1]):
        disagree("Y", y, "X", x)
    dims = (x.shape[0], y.shape[1])
    if added is not None and not _spreads(added.shape, dims):
        raise ShapeError(f"Input is {describe(added)}, X @ Y has the dims {list(dims)}", "Input")
    return {"Out": (TensorType(x.dtype, dims, added.lod_level if added is not None else 0),)}


def _spreads(dims: tuple[int, ...], over: tuple[int, ...]) -> bool:
    """Whether a tensor of these dims can be repeated to have the others."""
    return len(dims) == len(over) and all(a in (1, -1, b) or b == -1 for a, b in zip(dims, over, strict=True))


@shape_rule("bmm")
def _bmm(_op: Op, types: Types) -> Types:
    x, y = one(types, "X"), one(types, "Y")
    if len(x.shape) != 3 or len(y.shape) != 3 or not fits((x.shape[0], x.shape[2]), y.shape[:2]):
        disagree("Y", y, "X", x)
    return {"Out": (TensorType(x.dtype, (*x.shape[:2], y.shape[2]), x.lod_level),)}


@shape_rule("dot")
def _dot(_op: Op, types: Types) -> Types:
    require_alike(types, "Y", "X")
    x = one(types, "X")
    if len(x.shape) > 2:
        raise ShapeError(f"X is {describe(x)}, it must have 1 or 2 dims", "X")
    return {"Out": (TensorType(x.dtype, (*x.shape[:-1], 1)),)}


@shape_rule("kron")
def _kron(_op: Op, types: Types) -> Types:
    x, y = one(types, "X"), one(types, "Y")
    rank = max(len(x.shape), len(y.shape))
    pairs = zip(_padded(x.shape, rank), _padded(y.shape, rank), strict=True)
    return {"Out": (TensorType(x.dtype, tuple(-1 if a < 0 or b < 0 else a * b for a, b in pairs)),)}


@shape_rule("cross")
def _cross(op: Op, types: Types) -> Types:
    require_alike(types, "Y", "X")
    x = one(types, "X")
    if -1 not in x.shape:
        _cross_dim(op, x.shape)
    return {"Out": (x,)}


shape_rule("minus")(outputs_like(Out="X"))


@shape_rule("bilinear_tensor_product")
def _bilinear(_op: Op, types: Types) -> Types:
    x, y, weight = one(types, "X"), one(types, "Y"), one(types, "Weight")
    if not fits(weight.shape[1:], (x.shape[1], y.shape[1])):
        disagree("Weight", weight, "X", x)
    if not fits(x.shape[:1], y.shape[:1]):
        disagree("Y", y, "X", x)
    return {"Out": (TensorType(x.dtype, (x.shape[0], weight.shape[0]), x.lod_level),)}


@shape_rule("trace")
def _trace(op: Op, types: Types) -> Types:
    x = one(types, "Input")
    rank = len(x.shape)
    pair = [int_attr(op, "dim1", -2), int_attr(op, "dim2", -1)]
    if any(not -rank <= dim < rank for dim in pair) or pair[0] % rank == pair[1] % rank:
        raise ShapeError(f"dims {pair[0]} and {pair[1]} are not two dims of Input, which is {describe(x)}", "Input")
    gone = {dim % rank for dim in pair}
    return {"Out": (TensorType(x.dtype, tuple(dim for at, dim in enumerate(x.shape) if at not in gone) or (1,)),)}


@shape_rule("fsp")
def _fsp(_op: Op, types: Types) -> Types:
    x, y = one(types, "X"), one(types, "Y")
    if len(x.shape) != 4 or not fits((x.shape[0], *x.shape[2:]), (y.shape[0], *y.shape[2:])):
        disagree("Y", y, "X", x)
    return {"Out": (TensorType(x.dtype, (x.shape[0], x.shape[1], y.shape[1]), x.lod_level),)}


# Kernels


@kernel("addmm")
def _addmm_values(op: Op) -> Run:
    alpha, beta = real(op, "Alpha"), real(op, "Beta")

    def run(Input: Array, X: Array, Y: Array) -> Array:
        return beta * Input + alpha * dot(X, Y)

    return run


@kernel("addmm_grad", "Input@GRAD X@GRAD Y@GRAD", lod="each")
def _addmm_grad(op: Op) -> Run:
    alpha, beta = real(op, "Alpha"), real(op, "Beta")
    wants_x, wants_y = wanted(op, "X@GRAD"), wanted(op, "Y@GRAD")

    def run(Input: Array, X: Array, Y: Array, Out_GRAD: Array) -> tuple[Array, Array | None, Array | None]:
        x_grad = alpha * dot(Out_GRAD, Y, transpose_b=True) if wants_x else None
        y_grad = alpha * dot(X, Out_GRAD, transpose_a=True) if wants_y else None
        return beta * sum_to(Out_GRAD, Input.shape, -1), x_grad, y_grad

    return run


@kernel("bmm")
def _bmm_values(_op: Op) -> Run:
    def run(X: Array, Y: Array) -> Array:
        return matmul(X, Y)

    return run


@kernel("bmm_grad", "X@GRAD Y@GRAD", lod="none")
def _bmm_grad(op: Op) -> Run:
    wants_x, wants_y = wanted(op, "X@GRAD"), wanted(op, "Y@GRAD")

    def run(X: Array, Y: Array, Out_GRAD: Array) -> tuple[Array | None, Array | None]:
        x_grad = matmul(Out_GRAD, Y, transpose_b=True) if wants_x else None
        return x_grad, matmul(X, Out_GRAD, transpose_a=True) if wants_y else None

    return run


formula("dot", "np.add.reduce({X} * {Y}, axis=-1, keepdims=True, dtype={X}.dtype)", lod="none")


@kernel("dot_grad", "X@GRAD Y@GRAD", lod="each")
def _dot_grad(_op: Op) -> Run:
    def run(X: Array, Y: Array, Out_GRAD: Array) -> tuple[Array, Array]:
        gradient = Out_GRAD.reshape(*X.shape[:-1], 1)
        return gradient * Y, gradient * X

    return run


def _padded(dims: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return (1,) * (rank - len(dims)) + dims


def _interleaved(x: Array, rank: int, at: int) -> Array:
    """x with each of its dims as one of a pair, the `at`-th; the other one is of size 1."""
    dims = [1] * (2 * rank)
    dims[at::2] = _padded(x.shape, rank)
    return x.reshape(dims)


@kernel("kron", lod="none")
def _kron_values(_op: Op) -> Run:
    def run(X: Array, Y: Array) -> Array:
        rank = max(X.ndim, Y.ndim)
        dims = np.multiply(_padded(X.shape, rank), _padded(Y.shape, rank))
        return (_interleaved(X, rank, 0) * _interleaved(Y, rank, 1)).reshape(dims)

    return run


@kernel("kron_grad", "X@GRAD Y@GRAD", lod="none")
def _kron_grad(op: Op) -> Run:
    wants_x, wants_y = wanted(op, "X@GRAD"), wanted(op, "Y@GRAD")

    def run(X: Array, Y: Array, Out_GRAD: Array) -> tuple[Array | None, Array | None]:
        rank = max(X.ndim, Y.ndim)
        x, y = _interleaved(X, rank, 0), _interleaved(Y, rank, 1)
        gradient = Out_GRAD.reshape(np.multiply(x.shape, y.shape))
        x_grad = sum_to(gradient * y, x.shape, -1).reshape(X.shape) if wants_x else None
        return x_grad, sum_to(gradient * x, y.shape, -1).reshape(Y.shape) if wants_y else None

    return run


_ANY_DIM = 9
"""The value of `dim` that stands for the first dim of size 3."""


def _cross_dim(op: Op, dims: tuple[int, ...]) -> int:
    """The dim of size 3 along which the vectors lie. Raises ShapeError where there is none."""
    dim = int_attr(op, "dim", _ANY_DIM)
    if dim == _ANY_DIM and 3 in dims:
        return dims.index(3)
    if not -len(dims) <= dim < len(dims) or dims[dim] != 3:
        raise ShapeError(f"X has the dims {list(dims)}, of which {dim} is not one of size 3", "X")
    return dim


def _crossed(x: Array, y: Array, dim: int) -> Array:
    def turned(value: Array, by: int) -> Array:
        return np.roll(value, -by, axis=dim)

    return turned(x, 1) * turned(y, 2) - turned(x, 2) * turned(y, 1)


def _dim_of_vectors(op: Op, x: Array) -> int:
    try:
        return _cross_dim(op, x.shape)
    except ShapeError as error:
        raise ValueError(error.message) from None


@kernel("cross")
def _cross_values(op: Op) -> Run:
    def run(X: Array, Y: Array) -> Array:
        return _crossed(X, Y, _dim_of_vectors(op, X))

    return run


@kernel("cross_grad", "X@GRAD Y@GRAD", lod="none")
def _cross_grad(op: Op) -> Run:
    def run(X: Array, Y: Array, Out_GRAD: Array) -> tuple[Array, Array]:
        dim = _dim_of_vectors(op, X)
        return _crossed(Y, Out_GRAD, dim), _crossed(Out_GRAD, X, dim)

    return run


formula("minus", "{X} - {Y}")


@kernel("bilinear_tensor_product")
def _bilinear_values(_op: Op) -> Run:
    def run(X: Array, Y: Array, Weight: Array, Bias: Array | None) -> Array:
        turned = np.tensordot(X, Weight, axes=(1, 1))  # [rows, slices, columns of Y]
        product = np.matmul(turned, Y[:, :, None])[:, :, 0]
        return product if Bias is None else product + Bias.reshape(-1)

    return run


@kernel("bilinear_tensor_product_grad", "X@GRAD Y@GRAD Weight@GRAD Bias@GRAD", lod="none")
def _bilinear_grad(op: Op) -> Run:
    wants_x, wants_y, wants_weight = (wanted(op, f"{slot}@GRAD") for slot in ("X", "Y", "Weight"))

    def run(
        X: Array, Y: Array, Weight: Array, Out_GRAD: Array
    ) -> tuple[Array | None, Array | None, Array | None, Array]:
        x_grad = y_grad = weight_grad = None
        if wants_x or wants_y:
            slopes = np.tensordot(Out_GRAD, Weight, axes=(1, 0))  # [rows, columns of X, columns of Y]
            x_grad = np.matmul(slopes, Y[:, :, None])[:, :, 0] if wants_x else None
            y_grad = np.matmul(X[:, None, :], slopes)[:, 0, :] if wants_y else None
        if wants_weight:
            weight_grad = np.tensordot(Out_GRAD, X[:, :, None] * Y[:, None, :], axes=(0, 0))
        return x_grad, y_grad, weight_grad, np.add.reduce(Out_GRAD, axis=0, keepdims=True)

    return run


def _plane(op: Op, rank: int) -> list[int]:
    """The dims of the diagonal, in ascending order whichever of them is `dim1`, as Fluid takes them."""
    return sorted(int_attr(op, name) % rank for name in ("dim1", "dim2"))


@kernel("trace", lod="none")
def _trace_values(op: Op) -> Run:
    offset = int_attr(op, "offset")

    def run(Input: Array) -> Array:
        total = np.trace(Input, offset, *_plane(op, Input.ndim), dtype=Input.dtype)
        return np.asarray(total).reshape(-1) if np.ndim(total) == 0 else total

    return run


@kernel("trace_grad", "Input@GRAD", lod="none")
def _trace_grad(op: Op) -> Run:
    offset = int_attr(op, "offset")

    def run(Input: Array, Out_GRAD: Array) -> Array:
        first, second = _plane(op, Input.ndim)
        diagonal = np.eye(Input.shape[first], Input.shape[second], offset, dtype=Input.dtype)
        others = Out_GRAD.reshape(-1)[0] if Input.ndim == 2 else Out_GRAD[..., None, None]
        return np.ascontiguousarray(np.moveaxis(others * diagonal, (-2, -1), (first, second)))

    return run


def _maps(x: Array) -> Array:
    return x.reshape(*x.shape[:2], -1)


@kernel("fsp")
def _fsp_values(_op: Op) -> Run:
    def run(X: Array, Y: Array) -> Array:
        return np.matmul(_maps(X), _maps(Y).swapaxes(1, 2)) / (X.shape[2] * X.shape[3])

    return run


@kernel("fsp_grad", "X@GRAD Y@GRAD", lod="none")
def _fsp_grad(op: Op) -> Run:
    wants_x, wants_y = wanted(op, "X@GRAD"), wanted(op, "Y@GRAD")

    def run(X: Array, Y: Array, Out_GRAD: Array) -> tuple[Array | None, Array | None]:
        gradient = Out_GRAD / (X.shape[2] * X.shape[3])
        x_grad = np.matmul(gradient, _maps(Y)).reshape(X.shape) if wants_x else None
        return x_grad, np.matmul(gradient.swapaxes(1, 2), _maps(X)).reshape(Y.shape) if wants_y else None

    return run
