"""Gradients of gradient ops, for those that have one in Fluid 1.8.5.

A slot `DX` holds the gradient of X from the first backward pass, and `DDX` the gradient of that gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from pstranspile.ir.model import FrozenMap, Op
from pstranspile.ops.gradient import GradientRule, WantedGradients, gradient, like_forward, output_gradients
from pstranspile.ops.schema import declare, op_schemas
from pstranspile.ops.shapes import ShapeRule, Types, outputs_like, shape_rule

for _family in (
    "math.activation",
    "math.elementwise",
    "math.products",
    "images.conv",
    "images.norm",
    "tensors.shape",
):
    import_module(f"pstranspile.ops.{_family}")  # these families declare the ops that are differentiated again

_FUNCTION = {"Out": "Out", "X": "X", "DOut": "Out@GRAD", "DX": "X@GRAD"}
_BINARY = {**_FUNCTION, "Y": "Y"}


def _declare(forward: str, slots: str, doc: str, *, of: Mapping[str, str] = _BINARY, may_lack: str = "") -> None:
    """Declares `<forward>_grad_grad`, the gradient op of `<forward>_grad`, with the attributes of `forward`.

    `of` maps a slot to an input or output of the gradient op. An input slot `DDX` holds the gradient of the output
    whose name `of` gives for `DX`. The output `DDOut` is the gradient of the input whose name `of` gives for `DOut`.
    Other outputs are gradients of inputs: `DX` is that of X.
    """
    op_type = f"{forward}_grad_grad"
    attrs = op_schemas()[forward].attrs
    schema = declare(op_type, slots, attrs, may_lack=may_lack, doc=doc)

    def rule(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
        inputs: dict[str, tuple[str, ...]] = {}
        for slot in schema.inputs:
            if slot.startswith("DD"):
                inputs[slot] = output_gradients(op, of.get(slot[1:], f"{slot[2:]}@GRAD"))
            else:
                source = of.get(slot, slot)
                inputs[slot] = op.inputs[source] if source in op.inputs else op.outputs.get(source, ())
        outputs = {slot: wanted.gradient_names(op, _result_of(slot, of)) for slot in schema.outputs}
        return (like_forward(op, op_type, inputs, outputs),)

    gradient(f"{forward}_grad")(rule)


def _result_of(slot: str, of: Mapping[str, str]) -> str:
    """The input slot of the gradient op whose gradient an output slot of the second gradient op holds."""
    if slot.startswith("DD"):
        return of[slot[1:]]
    return slot.removesuffix("@GRAD") if slot.endswith("@GRAD") else slot[1:]


_declare("relu", "Out DDX -> DDOut", "DDOut = DDX where Out > 0, else 0", of=_FUNCTION)
_declare("leaky_relu", "Out DDX -> DDOut", "DDOut = DDX where Out > 0, else alpha * DDX", of=_FUNCTION)
_declare("elu", "X DOut DDX -> DX DDOut", "the gradients of elu_grad, DX that of its X", of=_FUNCTION)
_declare("square", "X DOut DDX -> DX DDOut", "DX = 2 * DDX * DOut, DDOut = 2 * DDX * X", of=_FUNCTION)
_declare("sqrt", "Out DX DDX -> DOut DDOut", "DOut = -DX * DDX / Out, DDOut = DDX / (2 * Out)", of=_FUNCTION)
_declare("elementwise_add", "Y DOut DDX DDY -> DDOut", "DDOut = DDX + DDY", may_lack="DDX DDY")
_declare("elementwise_sub", "Y DOut DDX DDY -> DDOut", "DDOut = DDX - DDY", may_lack="DDX DDY")
_declare(
    "elementwise_mul",
    "X Y DOut DDX DDY -> DDOut X@GRAD Y@GRAD",
    "DDOut = DDX * Y + X * DDY, X@GRAD = DOut * DDY, Y@GRAD = DOut * DDX",
    may_lack="DDX DDY",
)
_declare(
    "elementwise_div",
    "Y Out DX DDX DDY -> Y@GRAD DOut DDOut",
    "DDOut = (DDX - Out * DDY) / Y, DOut = -DX * DDY, Y@GRAD = DX * (Out * DDY - DDX) / Y",
    may_lack="DDX DDY",
)
_declare("reshape2", "DOut DDX -> DDOut", "DDOut = DDX with the dims of DOut", of=_FUNCTION)
_declare(
    "mul",
    "X Y DOut DDX DDY -> DX DY DDOut",
    "DDOut = DDX @ Y + X @ DDY, DX = DOut @ DDY turned, DY = DDX turned @ DOut",
    may_lack="DDX DDY",
)
_CONV = {"DOutput": "Output@GRAD", "DInput": "Input@GRAD", "DFilter": "Filter@GRAD"}
for _forward in ("conv2d", "conv3d"):
    _declare(
        _forward,
        "Input Filter DOutput DDInput DDFilter -> DInput DFilter DDOutput",
        "the gradients of the gradient op, DInput that of its Input",
        of=_CONV,
        may_lack="DDInput DDFilter",
    )
_declare(
    "instance_norm",
    "X Scale SavedMean SavedVariance DY DDX DDScale DDBias -> DX DScale DDY",
    "the gradients of the gradient op, DX that of its X",
    of={"DY": "Y@GRAD", "DX": "X@GRAD", "DScale": "Scale@GRAD", "DBias": "Bias@GRAD"},
    may_lack="DDX DDScale DDBias",
)


def _forward_as_gradient(op_type: str, slot: str) -> GradientRule:
    """The rule of a gradient op that undoes `op_type`, a linear op of this slot: its gradient is `op_type` itself."""

    def rule(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
        inputs = {slot: output_gradients(op, f"{slot}@GRAD")}
        rest = {name: names for name, names in op.inputs.items() if name not in (slot, "Out@GRAD")}
        made = like_forward(op, op_type, {**inputs, **rest}, {"Out": wanted.gradient_names(op, "Out@GRAD")})
        known = op_schemas()[op_type].attrs
        return (made._replace(attrs=FrozenMap({name: held for name, held in made.attrs.items() if name in known})),)

    return rule


for _forward, _slot in (("reduce_sum", "X"), ("reduce_mean", "X"), ("expand", "X"), ("slice", "Input")):
    gradient(f"{_forward}_grad")(_forward_as_gradient(_forward, _slot))


shape_rule("relu_grad_grad", "leaky_relu_grad_grad")(outputs_like(DDOut="Out"))
shape_rule("elu_grad_grad", "square_grad_grad")(outputs_like(DX="X", DDOut="DOut"))
shape_rule("sqrt_grad_grad")(outputs_like(DOut="Out", DDOut="Out"))
shape_rule("elementwise_add_grad_grad", "elementwise_sub_grad_grad", "reshape2_grad_grad")(outputs_like(DDOut="DOut"))
shape_rule("elementwise_mul_grad_grad")(outputs_like(**{"DDOut": "DOut", "X@GRAD": "X", "Y@GRAD": "Y"}))
shape_rule("elementwise_div_grad_grad")(outputs_like(**{"DDOut": "Out", "DOut": "Out", "Y@GRAD": "Y"}))


def _of_factors(out: str, x: str, y: str) -> ShapeRule:
    """The shape rule of a product's second gradient. Fluid declares no dims for an output to which no
    given input adds.
    """

    def rule(_op: Op, types: Types) -> Types:
        made = {f"DD{out}": types.get(f"D{out}", ())}
        for factor, other in ((x, y), (y, x)):
            if any(types.get(f"DD{other}", ())):
                made[f"D{factor}"] = types.get(factor, ())
        return made

    return rule


shape_rule("mul_grad_grad")(_of_factors("Out", "X", "Y"))
shape_rule("conv2d_grad_grad", "conv3d_grad_grad")(_of_factors("Output", "Input", "Filter"))
shape_rule("instance_norm_grad_grad")(outputs_like(DX="X", DScale="Scale", DDY="X"))
