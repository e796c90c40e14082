"""Sums, scalings and norms of whole tensors."""

from __future__ import annotations

from typing import Any, TypeAlias

from pstranspile.arithmetic import sum_over
from pstranspile.ir.model import Op, TensorType
from pstranspile.lazy import lazy_import
from pstranspile.ops.broadcasting import sum_to
from pstranspile.ops.gradient import Wanted, bare_op, gradient, output_gradients, scaled
from pstranspile.ops.kernel import Run, kernel, wanted
from pstranspile.ops.numeric import as_matrix, first, flag, formula, real
from pstranspile.ops.rows import AS_ROWS, add_rows, in_use, merge_rows, sum_tables
from pstranspile.ops.schema import UNSCOPED, declare, declare_gradient
from pstranspile.ops.shapes import (
    Types,
    disagree,
    fits,
    one,
    outputs_like,
    several,
    shape_rule,
    size,
)
from pstranspile.ops.values import Array, LoDTensor, SelectedRows

np = lazy_import("numpy")

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
    if not fits(x.shape[1:], y.shape[1:]):
        disagree("Y", y, "X", x)
    column = TensorType(x.dtype, (x.shape[0], 1), x.lod_level)
    gives: Types = {
        "Out": (column,),
        "XNorm": (column._replace(lod_level=0),),
        "YNorm": (TensorType(x.dtype, (y.shape[0], 1)),),
    }
    if not (y.shape[0] in (1, -1) or fits(x.shape[:1], y.shape[:1])):
        disagree("Y", y, "X", x, gives)
    return gives


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


@kernel("sum", inline=_plain_sum, may_lack="X")
def _sum_values(op: Op) -> Run:
    add_up = sum_tables if AS_ROWS in op.attrs else merge_rows

    def run(X: list[Any]) -> Any:
        terms = [term for term in X if term is not None]
        if not terms:
            raise ValueError("none of X has a value")
        if terms and isinstance(terms[0], list):
            return _sum_of_arrays(terms)
        sparse = [term for term in terms if isinstance(term, SelectedRows)]
        dense = [term for term in terms if not isinstance(term, SelectedRows)]
        if not dense:
            return add_up(sparse)
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
formula("mean_grad", "np.divide({Out_GRAD}, {X}.size, out=np.empty({X}.shape, {X}.dtype))", "X@GRAD")
formula("increment", lambda op: f"{{X}} + {{X}}.dtype.type({real(op, 'step')!r})")
formula("squared_l2_norm", "np.dot({X}.reshape(-1), {X}.reshape(-1)).reshape(1)", lod="none")
formula("squared_l2_norm_grad", "2 * {Out_GRAD} * {X}", "X@GRAD", lod="none")


@kernel("squared_l2_distance", "sub_result Out", lod="Out")
def _squared_l2_distance_values(_op: Op) -> Run:
    def run(X: Array, Y: Array) -> tuple[Array, Array]:
        difference = as_matrix(X) - as_matrix(Y)
        return difference, np.add.reduce(np.square(difference), axis=1, keepdims=True)

    return run


@kernel("squared_l2_distance_grad", "X@GRAD Y@GRAD", lod="none")
def _squared_l2_distance_grad(_op: Op) -> Run:
    def run(X: Array, Y: Array, sub_result: Array, Out_GRAD: Array) -> tuple[Array, Array]:
        gradient = 2 * Out_GRAD * sub_result
        return gradient.reshape(X.shape), -sum_to(gradient, as_matrix(Y).shape, -1).reshape(Y.shape)

    return run


def _norms(x: Array) -> Array:
    """The norm of each row, at least 1e-4, so that rows of zeros have the cosine 0, as in Fluid."""
    return np.sqrt(np.maximum(_row_sums(np.square(x)), 1e-8))


def _row_sums(x: Array) -> Array:
    return sum_over(x, (1,))[:, None]


def _partners(x: Array, y: Array) -> int:
    """How many rows of y take part: all, or the first alone, with every row of x, where the numbers of rows differ."""
    return len(y) if len(x) == len(y) else 1


@kernel("cos_sim", "Out XNorm YNorm", lod="Out")
def _cos_sim_values(_op: Op) -> Run:
    def run(X: Array, Y: Array) -> tuple[Array, Array, Array]:
        x, y = as_matrix(X), as_matrix(Y)
        x_norm, y_norm = _norms(x), _norms(y)
        count = _partners(x, y)
        return _row_sums(x * y[:count]) / (x_norm * y_norm[:count]), x_norm, y_norm

    return run


@kernel("cos_sim_grad", "X@GRAD Y@GRAD", lod="none")
def _cos_sim_grad(op: Op) -> Run:
    wants_x, wants_y = wanted(op, "X@GRAD"), wanted(op, "Y@GRAD")

    def of(a: Array, b: Array, cosine: Array, a_norm: Array, b_norm: Array) -> Array:
        return b * (1 / (a_norm * b_norm)) - cosine * a * (1 / (a_norm * a_norm))

    def run(
        X: Array, Y: Array, Out: Array, XNorm: Array, YNorm: Array, Out_GRAD: Array
    ) -> tuple[Array | None, Array | None]:
        x, rows = as_matrix(X), as_matrix(Y)
        count = _partners(x, rows)
        y, y_norm, y_grad = rows[:count], YNorm[:count], None
        x_grad = (Out_GRAD * of(x, y, Out, XNorm, y_norm)).reshape(X.shape) if wants_x else None
        if wants_y:
            y_grad = sum_to(Out_GRAD * of(y, x, Out, y_norm, XNorm), y.shape, -1)
            if count < len(rows):
                y_grad = np.concatenate([y_grad, np.zeros_like(rows[count:])])
        return x_grad, None if y_grad is None else y_grad.reshape(Y.shape)

    return run
