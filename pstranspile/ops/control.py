"""Control flow, and ops that only look."""

from __future__ import annotations

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
