"""An elementwise sum or product and an activation in one op."""

from __future__ import annotations

from pstranspile.ir.attributes import Strings
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Op
from pstranspile.ops.gradient import Wanted, gradient, like_forward, output_gradients
from pstranspile.ops.math.elementwise import broadcast
from pstranspile.ops.schema import STRINGS, declare, declare_gradient
from pstranspile.ops.shapes import ShapeError, Types, gradient_types, one, shape_rule

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
    """The sum or product, the activation, and whether the activation comes last. Raises ShapeError for others."""
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
def _fused_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    saves = op.attrs.get("save_intermediate_out") is True
    inputs = {
        "X": op.inputs["X"],
        "Y": op.inputs["Y"],
        "Out": op.outputs["Out"],
        "Out@GRAD": output_gradients(op, "Out"),
        "IntermediateOut": op.outputs.get("IntermediateOut", ()) if saves else (),
    }
    outputs = {
        "X@GRAD": wanted.kept(op, "X"),
        "Y@GRAD": wanted.kept(op, "Y"),
        "IntermediateOut@GRAD": output_gradients(op, "IntermediateOut") if saves else (),
    }
    made = like_forward(op, "fused_elemwise_activation_grad", inputs, outputs)
    given = op.attrs.get("functor_list")
    if isinstance(given, Strings):
        names = Strings(f"{name}_grad" for name in given)
        made = made._replace(attrs=FrozenMap({**made.attrs, "functor_list": names}))
    return (made,)


shape_rule("fused_elemwise_activation_grad")(gradient_types)
