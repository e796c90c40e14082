"""Recurrences: a block run for each step of sequences of one length."""

from __future__ import annotations

from pstranspile.ir.attributes import BlockRef
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Op
from pstranspile.ops.gradient import Wanted, gradient, gradient_name, like_forward
from pstranspile.ops.programs.control import gradient_block
from pstranspile.ops.schema import BLOCK, STRINGS, declare, declare_gradient, strings
from pstranspile.ops.shapes import outputs_like, shape_rule

declare(
    "recurrent",
    "inputs* initial_states* parameters* -> outputs* step_scopes",
    {
        "has_states": False,
        "ex_states": STRINGS,
        "states": STRINGS,
        "sub_block": BLOCK,
        "reverse": False,
        "is_train": True,
        "skip_eager_deletion_vars": strings(),
    },
    doc="runs sub_block for every step of `inputs`, states carried from step to step",
)
declare_gradient(
    "recurrent",
    "inputs* initial_states* parameters* outputs* step_scopes outputs@GRAD* step_scopes@GRAD -> "
    "inputs@GRAD* initial_states@GRAD* parameters@GRAD*",
)

declare("rnn_memory_helper", "X -> Out", {"dtype": 5}, doc="Out = X")
declare_gradient("rnn_memory_helper", "X Out Out@GRAD -> X@GRAD", may_lack="Out@GRAD")

shape_rule("rnn_memory_helper")(outputs_like(Out="X"))
shape_rule("rnn_memory_helper_grad")(outputs_like(**{"X@GRAD": "X"}))


@gradient("recurrent")
def _recurrent_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    outputs, scopes = op.outputs["outputs"], op.outputs["step_scopes"]
    inputs = {
        **op.inputs,
        "outputs": outputs,
        "outputs@GRAD": tuple(map(gradient_name, outputs)),
        "step_scopes": scopes,
        "step_scopes@GRAD": scopes,
    }
    gradients = {f"{slot}@GRAD": wanted.placed(op, slot) for slot in op.inputs}
    made = like_forward(op, "recurrent_grad", inputs, gradients)
    return (made._replace(attrs=FrozenMap({**op.attrs, "sub_block": BlockRef(gradient_block(wanted).number)})),)
