"""Control flow, and ops that only look."""

from __future__ import annotations

from pstranspile.ir.attributes import BlockRef, Strings
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Op
from pstranspile.ops.gradient import (
    EMPTY_NAME,
    GradientBlock,
    Wanted,
    bare_op,
    gradient,
    gradient_name,
    like_forward,
    output_gradients,
)
from pstranspile.ops.schema import BLOCK, BOOL, INT, STRING, STRINGS, declare, declare_gradient, optional, strings
from pstranspile.ops.shapes import outputs_like, shape_rule

declare(
    "while",
    "X* Condition* -> Out* StepScopes",
    {"sub_block": BLOCK, "is_test": False, "skip_eager_deletion_vars": strings()},
    doc="runs sub_block as long as Condition is true",
)
declare_gradient(
    "while",
    "X* Out* Out@GRAD* StepScopes -> X@GRAD*",
    {"sub_block": BLOCK, "is_test": False, "skip_eager_deletion_vars": strings(), "original_output_grad": STRINGS},
)
declare(
    "conditional_block",
    "Cond* Input* -> Out* Scope",
    {"sub_block": BLOCK, "is_scalar_condition": False, "skip_eager_deletion_vars": strings()},
    doc="runs sub_block if Cond is true",
)
declare_gradient(
    "conditional_block",
    "Cond* Input* Out* Out@GRAD* Scope -> Cond@GRAD*? Input@GRAD*",
    {"sub_block": BLOCK, "is_scalar_condition": False, "skip_eager_deletion_vars": optional("strings")},
)
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
declare("select_input", "X* Mask -> Out", doc="Out = X of the number Mask")
declare("select_output", "X Mask -> Out*", doc="Out of the number Mask = X")
declare("rnn_memory_helper", "X -> Out", {"dtype": 5}, doc="Out = X")
declare_gradient("rnn_memory_helper", "X Out Out@GRAD -> X@GRAD")
declare("delete_var", "X* ->", doc="frees X")
declare(
    "print",
    "In -> Out",
    {
        "first_n": INT,
        "message": STRING,
        "summarize": INT,
        "print_tensor_name": BOOL,
        "print_tensor_type": BOOL,
        "print_tensor_shape": BOOL,
        "print_tensor_lod": BOOL,
        "print_phase": "BOTH",
        "is_forward": True,
    },
    doc="Out = In, printed",
)


shape_rule("rnn_memory_helper")(outputs_like(Out="X"))
shape_rule("rnn_memory_helper_grad")(outputs_like(**{"X@GRAD": "X"}))
shape_rule("print")(outputs_like(Out="In"))


def _gradient_block(wanted: Wanted) -> GradientBlock:
    assert wanted.block is not None, "the gradient of an op with a sub-block needs its gradient block"
    return wanted.block


def _handed_in(op: Op, block: GradientBlock) -> tuple[str, ...]:
    """Gradients that the steps of a loop take from outside: those no step makes and no block declares."""
    known = {*op.inputs.get("X", ()), *op.outputs.get("Out", ())}
    found: dict[str, None] = {}
    for step in block.ops:
        found.update((name, None) for name in step.input_names if name not in known and not block.sees(name))
        known.update(step.output_names)
    return tuple(found)


@gradient("while")
def _while_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    block = _gradient_block(wanted)
    made = {name for step in block.ops for name in step.output_names}
    gradients = tuple(name if name in made else EMPTY_NAME for name in wanted.placed(op, "X"))
    handed_in = _handed_in(op, block)
    inputs = {
        "X": op.inputs["X"],
        "Out": op.outputs["Out"],
        "Out@GRAD": handed_in,
        "StepScopes": op.outputs["StepScopes"],
    }
    made_op = like_forward(op, "while_grad", inputs, {"X@GRAD": gradients})
    more = {
        "sub_block": BlockRef(block.number),
        "skip_eager_deletion_vars": Strings(),
        "original_output_grad": Strings(handed_in),
    }
    return (made_op._replace(attrs=FrozenMap({**op.attrs, **more})),)


@gradient("conditional_block")
def _conditional_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    inputs = {slot: op.inputs.get(slot, ()) for slot in ("Cond", "Input")}
    outputs = {slot: op.outputs.get(slot, ()) for slot in ("Out", "Scope")}
    gradients = {"Input@GRAD": wanted.placed(op, "Input")}
    attrs = {
        "sub_block": BlockRef(_gradient_block(wanted).number),
        "is_scalar_condition": op.attrs["is_scalar_condition"],
    }
    taken = {**inputs, **outputs, "Out@GRAD": output_gradients(op, "Out")}
    return (bare_op("conditional_block_grad", taken, gradients, attrs),)


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
    return (made._replace(attrs=FrozenMap({**op.attrs, "sub_block": BlockRef(_gradient_block(wanted).number)})),)


@gradient("print")
def _print_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    made = like_forward(op, "print", {"In": output_gradients(op, "Out")}, {"Out": wanted.kept(op, "In")})
    return (made._replace(attrs=FrozenMap({**op.attrs, "is_forward": False})),)


@gradient("select_input")
def _select_input_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    inputs = {"X": output_gradients(op, "Out"), "Mask": op.inputs["Mask"]}
    return (like_forward(op, "select_output", inputs, {"Out": wanted.placed(op, "X")}),)


@gradient("select_output")
def _select_output_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    inputs = {"X": output_gradients(op, "Out"), "Mask": op.inputs["Mask"]}
    return (like_forward(op, "select_input", inputs, {"Out": wanted.kept(op, "X")}),)
