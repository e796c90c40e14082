"""Sums of several tensors, and scalings."""

from __future__ import annotations

from pstranspile.ir.model import Op
from pstranspile.ops.gradient import Wanted, bare_op, gradient, output_gradients, scaled
from pstranspile.ops.schema import declare
from pstranspile.ops.shapes import Types, disagree, fits, outputs_like, several, shape_rule

declare(
    "sum",
    "X* -> Out",
    {"use_mkldnn": False},
    row_wise=True,
    may_lack="X",
    doc="Out = the sum of all X; dense, SelectedRows, or mixed",
)
declare(
    "scale",
    "X ScaleTensor? -> Out",
    {"scale": 1.0, "bias": 0.0, "bias_after_scale": True},
    row_wise=True,
    doc="Out = scale * X + bias, or scale * (X + bias)",
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
