"""The diagnostic codes of the verifier."""

from __future__ import annotations

from pstranspile.ir.codes import declare

NO_BLOCK = declare("no-block", "A program has no block, so there is nothing to run.")
BLOCK_PARENT = declare("block-parent", "The parent or the forward block of a block does not exist.")
BLOCK_CYCLE = declare("block-cycle", "Following the parents of a block leads back to it.")
BLOCK_REFERENCE = declare("block-reference", "An op refers to a block that the program does not have.")
REFERENCE_CYCLE = declare("block-reference-cycle", "A block runs itself, directly or through the ops of other blocks.")
UNREFERENCED_BLOCK = declare("unreferenced-block", "No op refers to a block, so its ops never run and are not checked.")
UNDECLARED = declare(
    "undeclared-variable", "An op names a variable that neither its block nor an enclosing one declares."
)
READ_BEFORE_WRITE = declare(
    "read-before-write", "An op reads a variable that is written only later, or never where nothing could bring it."
)
PARAMETER = declare("parameter-not-persistable", "A parameter is not persistable, so it is gone after every step.")
GRADIENT = declare("gradient-without-variable", "A variable named `X@GRAD` is declared, but no variable `X`.")
ROLE_VARIABLE = declare("role-variable", "A role variable of an op is not declared.")
ROLE_PAIR = declare(
    "role-variable-pair", "The role variables of an op are not pairs of a persistable variable and its gradient."
)
UNKNOWN_OP = declare(
    "unknown-op", "An op type has no schema, so slots, attributes and types of its ops are not checked."
)
UNKNOWN_SLOT = declare("unknown-slot", "An op has a slot that its schema does not have.")
MISSING_SLOT = declare("missing-slot", "An op has no variable in a slot that its schema requires.")
SLOT_NOT_LIST = declare("slot-not-list", "An op has several variables in a slot that takes one.")
ATTRIBUTE_KIND = declare("attribute-kind", "An attribute has another kind than the schema of the op gives it.")
MISSING_ATTRIBUTE = declare("missing-attribute", "An op lacks an attribute that its schema requires.")
EXTRA_ATTRIBUTE = declare(
    "extra-attribute", "An op carries an attribute that its schema does not have; it has no effect."
)
GRADIENT_NOT_WRITTEN = declare("unwritten-gradient", "An optimizer op reads a gradient that no op writes.")
PARAMETER_WITHOUT_VALUE = declare(
    "parameter-without-value", "No op of @startup gives a parameter, or the state of an optimizer, a value."
)
PARAMETER_NOT_UPDATED = declare("parameter-not-updated", "No op of a training program updates a parameter.")
DIMS = declare("dims", "A variable that no op makes is declared with a dim below -1.")
TYPE_MISMATCH = declare("type-mismatch", "The declared element types or dims of an op's variables do not fit together.")
DECLARED_DIFFERENTLY = declare(
    "declared-differently",
    "Two programs of a module declare a persistable variable differently, which they share by name.",
)
