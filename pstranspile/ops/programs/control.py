"""Ops that run a block once or in a loop."""

from __future__ import annotations

from pstranspile.ir.attributes import BlockRef, Strings
from pstranspile.ir.model import FrozenMap, Op
from pstranspile.ops.facts import AmongThose
from pstranspile.ops.gradient import (
    EMPTY_NAME,
    GradientBlock,
    WantedGradients,
    bare_op,
    gradient,
    gradient_name,
    like_forward,
    output_gradients,
)
from pstranspile.ops.schema import BLOCK, STRINGS, declare, declare_gradient, optional, strings
from pstranspile.ops.shapes import Types, one, outputs_like, shape_rule

declare(
    "while",
    "X* Condition* -> Out* StepScopes",
    {"sub_block": BLOCK, "is_test": False, "skip_eager_deletion_vars": strings()},
    rows="own",
    lists_may_be_empty=True,
    doc="runs sub_block as long as Condition is true",
)
declare_gradient(
    "while",
    "X* Out* Out@GRAD* StepScopes -> X@GRAD*",
    {"sub_block": BLOCK, "is_test": False, "skip_eager_deletion_vars": strings(), "original_output_grad": STRINGS},
    lists_may_be_empty=True,
)
declare(
    "conditional_block",
    "Cond* Input* -> Out* Scope",
    {"sub_block": BLOCK, "is_scalar_condition": False, "skip_eager_deletion_vars": strings()},
    rows="own",
    lists_may_be_empty=True,
    doc="runs sub_block if Cond is true",
)
declare_gradient(
    "conditional_block",
    "Cond* Input* Out* Out@GRAD* Scope -> Cond@GRAD*? Input@GRAD*",
    {"sub_block": BLOCK, "is_scalar_condition": False, "skip_eager_deletion_vars": optional("strings")},
    lists_may_be_empty=True,
)


def gradient_block(wanted: WantedGradients) -> GradientBlock:
    """The gradient block in `wanted`, which must be set."""
    assert wanted.block is not None, "the gradient of an op with a sub-block needs its gradient block"
    return wanted.block


def _outer_gradients(op: Op, block: GradientBlock) -> tuple[str, ...]:
    """The gradients that the steps of a loop read from outside: those that no step writes and no block declares."""
    known = {*op.inputs.get("X", ()), *op.outputs.get("Out", ())}
    result: dict[str, None] = {}
    for step in block.ops:
        result.update((name, None) for name in step.input_names if name not in known and not block.sees(name))
        known.update(step.output_names)
    return tuple(result)


@gradient("while")
def _while_gradient(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
    block = gradient_block(wanted)
    made = {name for step in block.ops for name in step.output_names}
    gradients = tuple(name if name in made else EMPTY_NAME for name in wanted.gradients_or_empty(op, "X"))
    outer = _outer_gradients(op, block)
    inputs = {
        "X": op.inputs["X"],
        "Out": op.outputs["Out"],
        "Out@GRAD": outer,
        "StepScopes": op.outputs["StepScopes"],
    }
    made_op = like_forward(op, "while_grad", inputs, {"X@GRAD": gradients})
    more = {
        "sub_block": BlockRef(block.number),
        "skip_eager_deletion_vars": Strings(),
        "original_output_grad": Strings(outer),
    }
    return (made_op._replace(attrs=FrozenMap({**op.attrs, **more})),)


@gradient("conditional_block")
def _conditional_gradient(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
    inputs = {slot: op.inputs.get(slot, ()) for slot in ("Cond", "Input")}
    outputs = {slot: op.outputs.get(slot, ()) for slot in ("Out", "Scope")}
    gradients = {"Input@GRAD": wanted.gradients_or_empty(op, "Input")}
    attrs = {
        "sub_block": BlockRef(gradient_block(wanted).number),
        "is_scalar_condition": op.attrs["is_scalar_condition"],
    }
    taken = {**inputs, **outputs, "Out@GRAD": output_gradients(op, "Out")}
    return (bare_op("conditional_block_grad", taken, gradients, attrs),)


# Selection of branches, for a whole tensor or for each row.

declare(
    "split_lod_tensor",
    "X Mask -> OutTrue OutFalse",
    {"level": 0},
    rows="own",
    row_order="by_values",
    doc="OutTrue and OutFalse = the rows of X where Mask is true and false",
)
declare(
    "merge_lod_tensor",
    "X Mask InTrue InFalse -> Out",
    {"level": 0},
    may_lack="InTrue InFalse",
    rows="own",
    row_order="by_values",
    doc="Out = the rows of InTrue and InFalse, put together as Mask says",
)
declare(
    "merge_lod_tensor_infer",
    "X Mask InTrue InFalse -> Out",
    {"level": 0},
    may_lack="InTrue InFalse",
    doc="as merge_lod_tensor, where nothing is trained",
)


@shape_rule("split_lod_tensor")
def _split_lod_tensor(_op: Op, types: Types) -> Types:
    part = one(types, "X")._replace(lod_level=0)  # Fluid declares each part with all rows
    return {"OutTrue": (part,), "OutFalse": (part,)}


shape_rule("merge_lod_tensor", "merge_lod_tensor_infer")(outputs_like(Out="InTrue"))


@gradient("split_lod_tensor")
def _split_lod_tensor_gradient(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
    inputs = {
        "X": op.inputs["X"],
        "Mask": op.inputs["Mask"],
        "InTrue": output_gradients(op, "OutTrue"),
        "InFalse": output_gradients(op, "OutFalse"),
    }
    return (like_forward(op, "merge_lod_tensor", inputs, {"Out": wanted.gradient_names(op, "X")}),)


@gradient("merge_lod_tensor")
def _merge_lod_tensor_gradient(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
    inputs = {"X": output_gradients(op, "Out"), "Mask": op.inputs["Mask"]}
    gradients = {"OutTrue": wanted.gradient_names(op, "InTrue"), "OutFalse": wanted.gradient_names(op, "InFalse")}
    return (like_forward(op, "split_lod_tensor", inputs, gradients),)


declare("select_input", "X* Mask -> Out", domains={"Mask": AmongThose("X")}, doc="Out = X of the number Mask")
declare(
    "select_output",
    "X Mask -> Out*",
    rows="own",
    row_order="by_values",
    domains={"Mask": AmongThose("Out")},
    doc="Out of the number Mask = X",
)


@gradient("select_input")
def _select_input_gradient(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
    inputs = {"X": output_gradients(op, "Out"), "Mask": op.inputs["Mask"]}
    return (like_forward(op, "select_output", inputs, {"Out": wanted.gradients_or_empty(op, "X")}),)


@gradient("select_output")
def _select_output_gradient(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
    inputs = {"X": output_gradients(op, "Out"), "Mask": op.inputs["Mask"]}
    return (like_forward(op, "select_input", inputs, {"Out": wanted.gradient_names(op, "X")}),)


# Recurrences: a block run for each step of sequences of one length.

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
    lists_may_be_empty=True,
    doc="runs sub_block for every step of `inputs`, states carried from step to step",
)
declare_gradient(
    "recurrent",
    "inputs* initial_states* parameters* outputs* step_scopes outputs@GRAD* step_scopes@GRAD -> "
    "inputs@GRAD* initial_states@GRAD* parameters@GRAD*",
    lists_may_be_empty=True,
)

declare("rnn_memory_helper", "X -> Out", {"dtype": 5}, doc="Out = X")
declare_gradient("rnn_memory_helper", "X Out Out@GRAD -> X@GRAD", may_lack="Out@GRAD")

shape_rule("rnn_memory_helper")(outputs_like(Out="X"))
shape_rule("rnn_memory_helper_grad")(outputs_like(**{"X@GRAD": "X"}))


@gradient("recurrent")
def _recurrent_gradient(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
    outputs, scopes = op.outputs["outputs"], op.outputs["step_scopes"]
    inputs = {
        **op.inputs,
        "outputs": outputs,
        "outputs@GRAD": tuple(map(gradient_name, outputs)),
        "step_scopes": scopes,
        "step_scopes@GRAD": scopes,
    }
    gradients = {f"{slot}@GRAD": wanted.gradients_or_empty(op, slot) for slot in op.inputs}
    made = like_forward(op, "recurrent_grad", inputs, gradients)
    return (made._replace(attrs=FrozenMap({**op.attrs, "sub_block": BlockRef(gradient_block(wanted).number)})),)
