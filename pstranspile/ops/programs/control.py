"""Ops that run a block once or in a loop."""

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
    like_forward,
    output_gradients,
)
from pstranspile.ops.schema import BLOCK, STRINGS, declare, declare_gradient, optional, strings

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


def gradient_block(wanted: Wanted) -> GradientBlock:
    """The gradient block in `wanted`, which must be set."""
    assert wanted.block is not None, "the gradient of an op with a sub-block needs its gradient block"
    return wanted.block


def _outer_gradients(op: Op, block: GradientBlock) -> tuple[str, ...]:
    """The gradients that the steps of a loop read from outside: no step writes them and no block declares them."""
    known = {*op.inputs.get("X", ()), *op.outputs.get("Out", ())}
    result: dict[str, None] = {}
    for step in block.ops:
        result.update((name, None) for name in step.input_names if name not in known and not block.sees(name))
        known.update(step.output_names)
    return tuple(result)


@gradient("while")
def _while_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    block = gradient_block(wanted)
    made = {name for step in block.ops for name in step.output_names}
    gradients = tuple(name if name in made else EMPTY_NAME for name in wanted.placed(op, "X"))
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
def _conditional_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    inputs = {slot: op.inputs.get(slot, ()) for slot in ("Cond", "Input")}
    outputs = {slot: op.outputs.get(slot, ()) for slot in ("Out", "Scope")}
    gradients = {"Input@GRAD": wanted.placed(op, "Input")}
    attrs = {
        "sub_block": BlockRef(gradient_block(wanted).number),
        "is_scalar_condition": op.attrs["is_scalar_condition"],
    }
    taken = {**inputs, **outputs, "Out@GRAD": output_gradients(op, "Out")}
    return (bare_op("conditional_block_grad", taken, gradients, attrs),)
