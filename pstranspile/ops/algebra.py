"""Products, sums, scalings and norms of whole tensors."""

from __future__ import annotations

from typing import Any, TypeAlias

from pstranspile.ir.model import Op, TensorType
from pstranspile.lazy import lazy_import
from pstranspile.ops.arithmetic import dot, matmul
from pstranspile.ops.broadcasting import sum_to
from pstranspile.ops.gradient import Wanted, bare_op, gradient, output_gradients, scaled
from pstranspile.ops.kernel import Run, kernel, wanted
from pstranspile.ops.numeric import first, flag, formula, real
from pstranspile.ops.rows import add_rows, in_use, merge_rows
from pstranspile.ops.schema import UNSCOPED, declare, declare_gradient, floats, ints
from pstranspile.ops.shapes import (
    ShapeError,
    Types,
    Unknown,
    describe,
    disagree,
    fits,
    int_attr,
    one,
    outputs_like,
    several,
    shape_rule,
    size,
)
from pstranspile.ops.values import Array, LoDTensor, SelectedRows

np = lazy_import("numpy")

declare(
    "mul",
    "X Y -> Out",
    {
        "use_mkldnn": False,
        "x_num_col_dims": 1,
        "y_num_col_dims": 1,
        "scale_x": 1.0,
        "scale_y": floats(1.0),
        "scale_out": 1.0,
        "force_fp32_output": False,
    },
    doc="Out = X @ Y, X made a matrix at x_num_col_dims and Y at y_num_col_dims",
)
declare_gradient("mul", "X Y Out@GRAD -> X@GRAD Y@GRAD")
declare(
    "matmul",
    "X Y -> Out",
    {
        "transpose_X": False,
        "transpose_Y": False,
        "alpha": 1.0,
        "use_mkldnn": False,
        "fused_reshape_Out": ints(),
        "fused_transpose_Out": ints(),
        "use_quantizer": False,
        "Scale_x": 1.0,
        "Scale_y": 1.0,
        "Scale_out": 1.0,
        "force_fp32_output": False,
        "head_number": 1,
    },
    doc="Out = alpha * X @ Y over the last two dims, each transposed first if asked, leading dims broadcast",
)
declare_gradient("matmul", "X Y Out@GRAD -> X@GRAD Y@GRAD")
declare(
    "sum",
    "X* -> Out",
    {"use_mkldnn": False},
    row_wise=True,
    doc="Out = the sum of all X; dense, SelectedRows, or mixed",
)
declare(
    "scale",
    "X ScaleTensor? -> Out",
    {"scale": 1.0, "bias": 0.0, "bias_after_scale": True},
    row_wise=True,
    doc="Out = scale * X + bias, or scale * (X + bias)",
)
declare("mean", "X -> Out", doc="Out = the mean of all elements of X")
declare_gradient("mean", "X Out@GRAD -> X@GRAD", UNSCOPED)
declare("increment", "X -> Out", {"step": 1.0}, doc="Out = X + step; X has one element")
declare("squared_l2_norm", "X -> Out", doc="Out = the sum of the squares of X")
declare_gradient("squared_l2_norm", "X Out@GRAD -> X@GRAD")
declare(
    "squared_l2_distance",
    "X Y -> sub_result Out",
    doc="Out = the sum of (X - Y) squared of each row; sub_result = X - Y",
)
declare_gradient("squared_l2_distance", "X Y sub_result Out@GRAD -> X@GRAD Y@GRAD")
declare(
    "cos_sim",
    "X Y -> Out XNorm YNorm",
    {"@ALL_KERNELS_MUST_COMPUTE_RUNTIME_SHAPE@": True},
    doc="Out = the cosine of each row of X with that row of Y (or the only row of Y)",
)
declare_gradient("cos_sim", "X Y Out XNorm YNorm Out@GRAD -> X@GRAD Y@GRAD")


shape_rule("scale", "increment")(outputs_like(Out="X"))


@shape_rule("mul")
def _mul(op: Op, types: Types) -> Types:
    x, y = one(types, "X"), one(types, "Y")
    x_split, y_split = int_attr(op, "x_num_col_dims"), int_attr(op, "y_num_col_dims")
    columns, rows = size(x.shape[x_split:]), size(y.shape[:y_split])
    if columns != rows and columns >= 0 and rows >= 0:
        raise ShapeError(f"X is {describe(x)} with {columns} columns, Y is {describe(y)} with {rows} rows", "Y")
    return {"Out": (TensorType(x.dtype, x.shape[:x_split] + y.shape[y_split:], x.lod_level),)}


def _matrix(dims: tuple[int, ...], of_vector: tuple[int, ...], transposed: bool) -> tuple[int, ...]:
    """The dims of an operand of matmul: a vector is a row on the left and a column on the right, until turned."""
    matrix = dims if len(dims) > 1 else of_vector
    return (*matrix[:-2], matrix[-1], matrix[-2]) if transposed else matrix


@shape_rule("matmul")
def _matmul(op: Op, types: Types) -> Types:
    x, y = one(types, "X"), one(types, "Y")
    a = _matrix(x.shape, (1, *x.shape), bool(op.attrs.get("transpose_X")))
    b = _matrix(y.shape, (*y.shape, 1), bool(op.attrs.get("transpose_Y")))
    height, width = a[-2], b[-1]
    if a[-1] != b[-2] and a[-1] >= 0 and b[-2] >= 0:
        raise ShapeError(f"X is {describe(x)} with {a[-1]} columns, Y is {describe(y)} with {b[-2]} rows", "Y")
    if a[:-2] and b[:-2] and not fits(a[:-2], b[:-2]):
        disagree("Y", y, "X", x)
    if (len(x.shape) == 1 and height < 0) or (len(y.shape) == 1 and width < 0):
        raise Unknown  # a vector turned into one row or column loses that dim, into several not
    dims = max(a[:-2], b[:-2], key=len)
    if len(x.shape) > 1 or height > 1:
        dims = (*dims, height)
    if len(y.shape) > 1 or width > 1:
        dims = (*dims, width)
    return {"Out": (TensorType(x.dtype, dims or (1,), x.lod_level),)}


@shape_rule("sum")
def _sum(_op: Op, types: Types) -> Types:
    terms = several(types, "X")
    first = terms[0]
    for term in terms:
        if term.dtype is not first.dtype or not fits(term.shape, first.shape):
            disagree("X", term, "the first term", first)
    return {"Out": (first,)}


@shape_rule("mean", "squared_l2_norm")
def _one_number(_op: Op, types: Types) -> Types:
    return {"Out": (TensorType(one(types, "X").dtype, (1,)),)}


@shape_rule("squared_l2_distance")
def _squared_l2_distance(_op: Op, types: Types) -> Types:
    x = one(types, "X")
    columns = size(x.shape[1:])
    return {
        "sub_result": (TensorType(x.dtype, (x.shape[0], columns)),),
        "Out": (TensorType(x.dtype, (x.shape[0], 1), x.lod_level),),
    }


@shape_rule("cos_sim")
def _cos_sim(_op: Op, types: Types) -> Types:
    x, y = one(types, "X"), one(types, "Y")
    if not fits(x.shape[1:], y.shape[1:]) or not (y.shape[0] in (1, -1) or fits(x.shape[:1], y.shape[:1])):
        disagree("Y", y, "X", x)
    column = TensorType(x.dtype, (x.shape[0], 1), x.lod_level)
    return {
        "Out": (column,),
        "XNorm": (column._replace(lod_level=0),),
        "YNorm": (TensorType(x.dtype, (y.shape[0], 1)),),
    }


@gradient("sum")
def _sum_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    (out,) = output_gradients(op, "Out")
    return tuple(scaled(out, name, 1.0) for name in wanted.placed(op, "X"))


@gradient("scale")
def _scale_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    inputs = {"X": output_gradients(op, "Out"), "ScaleTensor": op.inputs.get("ScaleTensor", ())}
    attrs = {"scale": op.attrs["scale"], "bias": 0.0, "bias_after_scale": True}
    return (bare_op("scale", inputs, {"Out": wanted.kept(op, "X")}, attrs),)


@gradient("increment")
def _increment_gradient(op: Op, _wanted: Wanted) -> tuple[Op, ...]:
    """Counts back, so that a loop's counter has its old value while its steps run backward (as Fluid does)."""
    step = op.attrs["step"]
    assert isinstance(step, float)
    return (bare_op("increment", {"X": op.outputs["Out"]}, {"Out": op.inputs["X"]}, {"step": -step}),)


# Kernels


def _as_matrix(x: Array, split: int) -> Array:
    return x if x.ndim == 2 and split == 1 else x.reshape(size(x.shape[:split]), -1)


@kernel("mul")
def _mul_values(op: Op) -> Run:
    x_split, y_split = int_attr(op, "x_num_col_dims", 1), int_attr(op, "y_num_col_dims", 1)

    def run(X: Array, Y: Array) -> Array:
        product = dot(_as_matrix(X, x_split), _as_matrix(Y, y_split))
        return product.reshape(X.shape[:x_split] + Y.shape[y_split:])

    return run


@kernel("mul_grad", "X@GRAD Y@GRAD", lod="each")
def _mul_grad(op: Op) -> Run:
    x_split, y_split = int_attr(op, "x_num_col_dims", 1), int_attr(op, "y_num_col_dims", 1)
    wants_x, wants_y = wanted(op, "X@GRAD"), wanted(op, "Y@GRAD")

    def run(X: Array, Y: Array, Out_GRAD: Array) -> tuple[Array | None, Array | None]:
        x, y = _as_matrix(X, x_split), _as_matrix(Y, y_split)
        gradient = Out_GRAD.reshape(x.shape[0], y.shape[1])
        x_grad = dot(gradient, y, transpose_b=True).reshape(X.shape) if wants_x else None
        return x_grad, dot(x, gradient, transpose_a=True).reshape(Y.shape) if wants_y else None

    return run


def _stored(x: Array, y: Array) -> tuple[Array, Array]:
    """The matrices that matmul multiplies, before it transposes them: a vector is a row on the left, else a column."""
    return x if x.ndim > 1 else x.reshape(1, -1), y if y.ndim > 1 else y.reshape(-1, 1)


def _stacked(a: Array, b: Array, transpose_a: bool) -> bool:
    """Whether a stack of matrices times one matrix is a single product, of all their rows."""
    return a.ndim > 2 and b.ndim == 2 and not transpose_a


def _refuse_fused(op: Op) -> None:
    if int_attr(op, "head_number", 1) != 1 or op.attrs.get("fused_reshape_Out") or op.attrs.get("fused_transpose_Out"):
        raise ValueError("head_number and fused_... are for MKL kernels, which are not supported")


@kernel("matmul")
def _matmul_values(op: Op) -> Run:
    _refuse_fused(op)
    alpha, transpose_x, transpose_y = real(op, "alpha"), flag(op, "transpose_X"), flag(op, "transpose_Y")

    def run(X: Array, Y: Array) -> Array:
        a, b = _stored(X, Y)
        if _stacked(a, b, transpose_x):
            product = dot(a.reshape(-1, a.shape[-1]), b, transpose_b=transpose_y)
            product = product.reshape(*a.shape[:-1], product.shape[-1])
        else:
            product = matmul(a, b, transpose_x, transpose_y)
        if alpha != 1:
            product *= alpha
        if X.ndim > 1 and Y.ndim > 1:
            return product
        dims = product.shape[:-2]
        if X.ndim > 1 or product.shape[-2] > 1:
            dims = (*dims, product.shape[-2])
        if Y.ndim > 1 or product.shape[-1] > 1:
            dims = (*dims, product.shape[-1])
        return product.reshape(dims or (1,))

    return run


@kernel("matmul_grad", "X@GRAD Y@GRAD", lod="none")
def _matmul_grad(op: Op) -> Run:
    _refuse_fused(op)
    alpha, wants_x, wants_y = real(op, "alpha"), wanted(op, "X@GRAD"), wanted(op, "Y@GRAD")
    transpose_x, transpose_y = flag(op, "transpose_X"), flag(op, "transpose_Y")

    def of_x(y: Array, gradient: Array) -> Array:
        if transpose_x:
            return matmul(y, gradient, transpose_y, True)
        return matmul(gradient, y, False, not transpose_y)

    def of_y(x: Array, gradient: Array) -> Array:
        if transpose_y:
            return matmul(gradient, x, True, transpose_x)
        return matmul(x, gradient, not transpose_x, False)

    def run(X: Array, Y: Array, Out_GRAD: Array) -> tuple[Array | None, Array | None]:
        a, b = _stored(X, Y)
        rows, columns = a.shape[-1 if transpose_x else -2], b.shape[-2 if transpose_y else -1]
        if _stacked(a, b, transpose_x):
            a = a.reshape(-1, a.shape[-1])
            rows = len(a)
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        gradient = Out_GRAD.reshape((*batch, rows, columns))
        if alpha != 1:
            gradient = gradient * alpha
        x_grad = sum_to(of_x(b, gradient), a.shape, -1).reshape(X.shape) if wants_x else None
        y_grad = sum_to(of_y(a, gradient), b.shape, -1).reshape(Y.shape) if wants_y else None
        return x_grad, y_grad

    return run


Term: TypeAlias = "Array | SelectedRows"


def _plain_sum(op: Op) -> str | None:
    count = len(op.inputs["X"])
    return " + ".join(f"{{X[{at}]}}" for at in range(count)) if count > 1 else None


def _sum_of_arrays(arrays: list[list[Any]]) -> list[Any]:
    """Tensor arrays added up, step by step; a step that one of them has not is that of the others."""
    found: list[Any] = []
    for step in range(max(map(len, arrays))):
        held = [array[step] for array in arrays if step < len(array) and array[step] is not None]
        parts = [item.data if isinstance(item, LoDTensor) else item for item in held]
        total = sum(parts[1:], start=parts[0]) if parts else None
        found.append(held[0]._replace(data=total) if held and isinstance(held[0], LoDTensor) else total)
    return found


@kernel("sum", inline=_plain_sum)
def _sum_values(_op: Op) -> Run:
    def run(X: list[Any]) -> Any:
        terms = [term for term in X if term is not None]
        if terms and isinstance(terms[0], list):
            return _sum_of_arrays(terms)
        sparse = [term for term in terms if isinstance(term, SelectedRows)]
        dense = [term for term in terms if not isinstance(term, SelectedRows)]
        if not dense:
            return merge_rows(sparse)
        total = dense[0] + dense[1] if len(dense) > 1 else dense[0].copy()
        for term in dense[2:]:
            total += term
        for term in sparse:
            add_rows(total, term.rows, in_use(term).reshape(-1, *total.shape[1:]))
        return total

    return run


@kernel("scale", inline=lambda op: None if op.input("ScaleTensor") else _scaled(op))
def _scale_values(op: Op) -> Run:
    factor, bias, after = real(op, "scale"), real(op, "bias"), flag(op, "bias_after_scale")

    def scaled(x: Array, scale: float) -> Array:
        of_type = x.dtype.type  # of integers, scale and bias are integers as well
        if bias == 0:
            return x * of_type(scale)
        return x * of_type(scale) + of_type(bias) if after else (x + of_type(bias)) * of_type(scale)

    def run(X: Term, ScaleTensor: Array | None) -> Term:
        scale = factor if ScaleTensor is None else first(ScaleTensor)
        return X._replace(value=scaled(X.value, scale)) if isinstance(X, SelectedRows) else scaled(X, scale)

    return run


def _scaled(op: Op) -> str:
    """The expression of scale for plain arrays."""
    factor, bias = (f"{{X}}.dtype.type({real(op, name)!r})" for name in ("scale", "bias"))
    if real(op, "bias") == 0:
        return f"{{X}} * {factor}"
    return f"{{X}} * {factor} + {bias}" if flag(op, "bias_after_scale") else f"({{X}} + {bias}) * {factor}"


formula("mean", "total({X}) / {X}.size", lod="none")
formula("mean_grad", "np.full({X}.shape, {Out_GRAD} / {X}.size, {X}.dtype)", "X@GRAD")
formula("increment", lambda op: f"{{X}} + {{X}}.dtype.type({real(op, 'step')!r})")
formula("squared_l2_norm", "np.dot({X}.reshape(-1), {X}.reshape(-1)).reshape(1)", lod="none")
formula("squared_l2_norm_grad", "2 * {Out_GRAD} * {X}", "X@GRAD", lod="none")


def _rows_of(x: Array) -> Array:
    return x.reshape(x.shape[0], -1)


@kernel("squared_l2_distance", "sub_result Out", lod="Out")
def _squared_l2_distance_values(_op: Op) -> Run:
    def run(X: Array, Y: Array) -> tuple[Array, Array]:
        difference = _rows_of(X) - _rows_of(Y)
        return difference, np.add.reduce(np.square(difference), axis=1, keepdims=True)

    return run


@kernel("squared_l2_distance_grad", "X@GRAD Y@GRAD", lod="none")
def _squared_l2_distance_grad(_op: Op) -> Run:
    def run(X: Array, Y: Array, sub_result: Array, Out_GRAD: Array) -> tuple[Array, Array]:
        gradient = 2 * Out_GRAD * sub_result
        return gradient.reshape(X.shape), -sum_to(gradient, _rows_of(Y).shape, -1).reshape(Y.shape)

    return run


def _norms(x: Array) -> Array:
    """The norm of each row, at least 1e-4, so that rows of zeros have the cosine 0, as in Fluid."""
    return np.sqrt(np.maximum(np.add.reduce(np.square(x), axis=1, keepdims=True), 1e-8))


@kernel("cos_sim", "Out XNorm YNorm", lod="Out")
def _cos_sim_values(_op: Op) -> Run:
    def run(X: Array, Y: Array) -> tuple[Array, Array, Array]:
        x, y = _rows_of(X), _rows_of(Y)
        x_norm, y_norm = _norms(x), _norms(y)
        return np.add.reduce(x * y, axis=1, keepdims=True) / (x_norm * y_norm), x_norm, y_norm

    return run


@kernel("cos_sim_grad", "X@GRAD Y@GRAD", lod="none")
def _cos_sim_grad(op: Op) -> Run:
    wants_x, wants_y = wanted(op, "X@GRAD"), wanted(op, "Y@GRAD")

    def of(a: Array, b: Array, cosine: Array, a_norm: Array, b_norm: Array) -> Array:
        return b / (a_norm * b_norm) - cosine * a / (a_norm * a_norm)

    def run(
        X: Array, Y: Array, Out: Array, XNorm: Array, YNorm: Array, Out_GRAD: Array
    ) -> tuple[Array | None, Array | None]:
        x, y = _rows_of(X), _rows_of(Y)
        x_grad = (Out_GRAD * of(x, y, Out, XNorm, YNorm)).reshape(X.shape) if wants_x else None
        y_grad = Out_GRAD * of(y, x, Out, YNorm, XNorm) if wants_y else None
        return x_grad, None if y_grad is None else sum_to(y_grad, y.shape, -1).reshape(Y.shape)

    return run
