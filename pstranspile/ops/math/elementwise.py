"""Elementwise arithmetic of two tensors, with Fluid's axis broadcasting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pstranspile.ir.attributes import Strings
from pstranspile.ir.model import EMPTY, FrozenMap, Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.gradient import WantedGradients, bare_op, gradient, like_forward, output_gradients, scale_op
from pstranspile.ops.schema import STRINGS, AttrSpec, declare, declare_gradient, later
from pstranspile.ops.shapes import (
    ShapeError,
    Types,
    describe,
    disagree,
    fits,
    gradient_types,
    one,
    one_or_none,
    outputs_like,
    require_alike,
    several,
    shape_rule,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pstranspile.ops.facts import StatedFacts

_BINARY = {"axis": -1, "use_mkldnn": False, "x_data_format": "", "y_data_format": ""}


def _declare(
    op_type: str,
    doc: str,
    reads: str = "X Y Out@GRAD",
    attrs: Mapping[str, AttrSpec] = EMPTY,
    reads_dims_of: str = "",
    **facts: Unpack[StatedFacts],
) -> None:
    """Declares a binary op and, unless `reads` is "", its gradient op, which reads these slots, and nothing but the
    dims of those in `reads_dims_of`.
    """
    declare(op_type, "X Y -> Out", {**_BINARY, **attrs}, row_wise=True, doc=doc, **facts)
    if reads:
        declare_gradient(op_type, f"{reads} -> X@GRAD Y@GRAD", dims_only=reads_dims_of)
    shape_rule(op_type)(lambda op, types: {"Out": (broadcast(op, types),)})


_declare(
    "elementwise_add",
    "Out = X + Y; the dims of Y lie on those of X from `axis` on (-1: the last ones), the rest is broadcast",
    numbers="combined",
    typed_by="X",
    memory="over",
    reads_dims_of="X Y",
)
_declare("elementwise_sub", "Out = X - Y", typed_by="X", memory="over", reads_dims_of="X Y")
_declare("elementwise_mul", "Out = X * Y", numbers="combined", typed_by="X")
_declare(
    "elementwise_div",
    "Out = X / Y; integers truncate toward zero",
    "X Y Out Out@GRAD",
    domains={"Y": "positive"},
    typed_by="X",
)
_declare("elementwise_max", "Out = the larger of X and Y", typed_by="X", memory="over", branches=True)
_declare("elementwise_min", "Out = the smaller of X and Y", typed_by="X", memory="over", branches=True)
_declare("elementwise_pow", "Out = X to the power of Y", domains={"X": "positive"}, typed_by="X")
_declare(
    "elementwise_mod",
    "Out = the remainder of X / Y; of integers with the sign of X, of floats or if floored with the sign of Y",
    reads="",
    attrs={"floored": later("bool")},
)
_declare(
    "elementwise_floordiv",
    "Out = X / Y, truncated toward zero, or if floored rounded down",
    reads="",
    attrs={"floored": later("bool")},
)


def broadcast(op: Op, types: Types, result_dtype: DType | None = None) -> TensorType:
    """The type of X op Y: the dims of Y are aligned with those of X from `axis` on, and dims of size 1 are broadcast.

    Its dtype is `result_dtype` (default: that of X). Raises ShapeError when dims or dtypes differ, UnknownType when one
    is not known.
    """
    x, y = one(types, "X"), one(types, "Y")
    axis = op.attrs.get("axis", -1)
    if isinstance(axis, int) and axis < -1:
        raise ShapeError(f"axis is {axis}; the least is -1, which lays Y on the last dims of X", "Y")
    if x.dtype is not y.dtype:
        alike = {**types, "Y": (y._replace(dtype=x.dtype),)}
        disagree("Y", y, "X", x, declares={"Out": (broadcast(op, alike, result_dtype),)})
    dtype = result_dtype or x.dtype
    if x.shape == y.shape:
        return x._replace(dtype=dtype)
    wide, narrow = (x, y) if len(x.shape) >= len(y.shape) else (y, x)
    start = axis if isinstance(axis, int) and axis >= 0 else len(wide.shape) - len(narrow.shape)
    if start + len(narrow.shape) > len(wide.shape):
        raise ShapeError(f"axis is {start}, but Y is {describe(y)} and X is {describe(x)}", "Y")
    after = len(wide.shape) - start - len(narrow.shape)
    dims: list[int] = []
    for one_dim, other in zip(wide.shape, (*[1] * start, *narrow.shape, *[1] * after), strict=True):
        if one_dim > 1 and other > 1 and one_dim != other:
            raise ShapeError(f"Y is {describe(y)}, which does not fit X, {describe(x)}, from dim {start} on", "Y")
        dims.append(max(one_dim, other) if max(one_dim, other) > 1 or one_dim == other == 1 else -1)
    return TensorType(dtype, tuple(dims), x.lod_level)


declare("minus", "X Y -> Out", row_wise=True, doc="Out = X - Y")


@gradient("minus")
def _minus_gradient(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
    (out,) = output_gradients(op, "Out")
    signs = (("X", 1.0), ("Y", -1.0))
    return tuple(scale_op(out, name, sign) for slot, sign in signs for name in wanted.gradient_names(op, slot))


shape_rule("minus")(outputs_like(Out="X"))


# Comparisons and logic.

_COMPARE = {"axis": -1, "force_cpu": False}

declare(
    "equal", "X Y -> Out", _COMPARE, row_wise=True, constant=True, doc="Out = X == Y, broadcast as elementwise ops are"
)
declare("not_equal", "X Y -> Out", _COMPARE, row_wise=True, constant=True, doc="Out = X != Y")
declare("less_than", "X Y -> Out", _COMPARE, row_wise=True, constant=True, doc="Out = X < Y", branches=True)
declare("less_equal", "X Y -> Out", _COMPARE, row_wise=True, constant=True, doc="Out = X <= Y", branches=True)
declare("greater_than", "X Y -> Out", _COMPARE, row_wise=True, constant=True, doc="Out = X > Y", branches=True)
declare("greater_equal", "X Y -> Out", _COMPARE, row_wise=True, constant=True, doc="Out = X >= Y", branches=True)
declare("logical_and", "X Y -> Out", row_wise=True, doc="Out = X and Y")
declare("logical_or", "X Y -> Out", row_wise=True, doc="Out = X or Y")
declare("logical_xor", "X Y -> Out", row_wise=True, doc="Out = X or Y, not both")
declare("logical_not", "X -> Out", row_wise=True, doc="Out = not X")


@shape_rule("equal", "not_equal", "less_than", "less_equal", "greater_than", "greater_equal")
def _compare(op: Op, types: Types) -> Types:
    made = broadcast(op, types, DType.BOOL)
    return {"Out": (made._replace(shape=one(types, "X").shape),)}  # as Fluid declares it, also where Y is larger


@shape_rule("logical_and", "logical_or", "logical_xor", "logical_not")
def _logical(_op: Op, types: Types) -> Types:
    x, y = one(types, "X"), one_or_none(types, "Y")
    if y is not None and not fits(x.shape, y.shape):
        disagree("Y", y, "X", x)
    return {"Out": (x._replace(dtype=DType.BOOL),)}


declare("bitwise_and", "X Y -> Out", row_wise=True, doc="Out = the bits that X and Y have, broadcast as numpy does")
declare("bitwise_or", "X Y -> Out", row_wise=True, doc="Out = the bits that X or Y has")
declare("bitwise_xor", "X Y -> Out", row_wise=True, doc="Out = the bits that one of X and Y has")
declare("bitwise_not", "X -> Out", row_wise=True, doc="Out = the bits that X does not have")


@shape_rule("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not")
def _bitwise(op: Op, types: Types) -> Types:
    x = one(types, "X")
    if x.dtype.text.startswith("f"):
        raise ShapeError(f"X is {describe(x)}; the ops on bits take whole numbers or booleans", "X")
    return {"Out": (x if op.type == "bitwise_not" else broadcast(op, types),)}


declare(
    "allclose",
    "Input Other -> Out",
    {"rtol": 1e-05, "atol": 1e-08, "equal_nan": False},
    doc="Out = whether all elements of Input and Other are nearly equal",
)


@shape_rule("allclose")
def _allclose(_op: Op, types: Types) -> Types:
    require_alike(types, "Other", "Input")
    one(types, "Input")
    return {"Out": (TensorType(DType.BOOL, (1,)),)}


# Sums of several tensors, and scalings.

declare(
    "sum",
    "X* -> Out",
    {"use_mkldnn": False},
    row_wise=True,
    may_lack="X",
    numbers="combined",
    typed_by="X",
    doc="Out = the sum of all X; dense, SelectedRows, or mixed",
    memory="new",
)
declare(
    "scale",
    "X ScaleTensor? -> Out",
    {"scale": 1.0, "bias": 0.0, "bias_after_scale": True},
    row_wise=True,
    typed_by="X",
    doc="Out = scale * X + bias, or scale * (X + bias)",
    memory="over",
)

declare("increment", "X -> Out", {"step": 1.0}, doc="Out = X + step; X has one element")

shape_rule("scale", "increment")(outputs_like(Out="X"))


@shape_rule("sum")
def _sum(_op: Op, types: Types) -> Types:
    terms = several(types, "X")
    first = terms[0]
    for term in terms:
        alike = fits(term.shape, first.shape)
        if term.dtype is not first.dtype or not alike:
            disagree("X", term, "the first term", first, declares={"Out": (first,)} if alike else None)
    return {"Out": (first,)}


@gradient("sum")
def _sum_gradient(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
    (out,) = output_gradients(op, "Out")
    return tuple(scale_op(out, name, 1.0) for name in wanted.gradients_or_empty(op, "X"))


@gradient("scale")
def _scale_gradient(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
    inputs = {"X": output_gradients(op, "Out"), "ScaleTensor": op.inputs.get("ScaleTensor", ())}
    attrs = {"scale": op.attrs["scale"], "bias": 0.0, "bias_after_scale": True}
    return (bare_op("scale", inputs, {"Out": wanted.gradient_names(op, "X")}, attrs),)


@gradient("increment")
def _increment_gradient(op: Op, _wanted: WantedGradients) -> tuple[Op, ...]:
    """An increment by the negative step, so that a loop's counter has its old value while its steps run backward (as
    Fluid does).
    """
    step = op.attrs["step"]
    assert isinstance(step, float)
    return (bare_op("increment", {"X": op.outputs["Out"]}, {"Out": op.inputs["X"]}, {"step": -step}),)


# An elementwise sum or product and an activation in one op.

ACTIVATIONS = ("scale", "relu", "tanh", "sigmoid")
SUMS = ("elementwise_add", "elementwise_mul")

declare(
    "fused_elemwise_activation",
    "X Y -> Out IntermediateOut~",
    {"axis": -1, "scale": 0.0, "save_intermediate_out": False, "functor_list": STRINGS},
    doc="Out = f(X + Y) for the functors [f, elementwise_add], X + f(Y) for [elementwise_add, f]; likewise products",
)
declare_gradient(
    "fused_elemwise_activation",
    "X Y Out IntermediateOut Out@GRAD -> X@GRAD Y@GRAD IntermediateOut@GRAD",
)


def functors(op: Op) -> tuple[str, str, bool]:
    """(elementwise sum or product, activation, whether the activation comes last). Raises ShapeError for other
    functors.
    """
    given = op.attrs.get("functor_list")
    names = [name.removesuffix("_grad") for name in given] if isinstance(given, Strings) else []
    for last, pair in ((True, names[::-1]), (False, names)):
        if len(pair) == 2 and pair[0] in SUMS and pair[1] in ACTIVATIONS:
            return pair[0], pair[1], last
    raise ShapeError(f"functor_list is {names}: it must be one of {list(SUMS)} and one of {list(ACTIVATIONS)}")


@shape_rule("fused_elemwise_activation")
def _fused_elemwise_activation(op: Op, types: Types) -> Types:
    out = broadcast(op, types)
    return {"Out": (out,), "IntermediateOut": (out if functors(op)[2] else one(types, "Y"),)}


@gradient("fused_elemwise_activation")
def _fused_gradient(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
    saves = op.attrs.get("save_intermediate_out") is True
    inputs = {
        "X": op.inputs["X"],
        "Y": op.inputs["Y"],
        "Out": op.outputs["Out"],
        "Out@GRAD": output_gradients(op, "Out"),
        "IntermediateOut": op.outputs.get("IntermediateOut", ()) if saves else (),
    }
    outputs = {
        "X@GRAD": wanted.gradient_names(op, "X"),
        "Y@GRAD": wanted.gradient_names(op, "Y"),
        "IntermediateOut@GRAD": output_gradients(op, "IntermediateOut") if saves else (),
    }
    made = like_forward(op, "fused_elemwise_activation_grad", inputs, outputs)
    given = op.attrs.get("functor_list")
    if isinstance(given, Strings):
        names = Strings(f"{name}_grad" for name in given)
        made = made._replace(attrs=FrozenMap({**made.attrs, "functor_list": names}))
    return (made,)


shape_rule("fused_elemwise_activation_grad")(gradient_types)
