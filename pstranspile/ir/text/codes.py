"""The diagnostic codes of the text layer."""

from __future__ import annotations

from pstranspile.ir.codes import declare

SYNTAX = declare("syntax", "The text does not follow the grammar at this place.")
VERSION_LINE = declare("version-line", "The text does not open with the version line `ir 1`.")
UNKNOWN_WORD = declare(
    "unknown-word", "A word stands where the language knows only certain words (storage, type, role, literal)."
)
UNKNOWN_ATTRIBUTE = declare(
    "unknown-attribute", "The schema of the op has no attribute of this name, and the text gives no kind for it."
)
UNKNOWN_ABSENT_SLOT = declare("unknown-absent-slot", "`-Slot` names an input that the schema of the op does not have.")
ATTRIBUTE_LITERAL = declare(
    "attribute-literal", "The literal of an attribute has no kind, or not the kind written after its name."
)
NUMBER_RANGE = declare("number-range", "A number does not fit its kind (INT 32 bits, LONG 64 bits, FLOAT float32).")
DUPLICATE_NAME = declare("duplicate-name", "A slot, attribute or setting is written twice in the same statement.")
DUPLICATE_VARIABLE = declare("duplicate-variable", "A variable is declared twice in the same block.")
DUPLICATE_PROGRAM = declare("duplicate-program", "Two programs of the module have the same name.")
DUPLICATE_BLOCK = declare("duplicate-block", "Two blocks of a program have the same label.")
MISSING_BLOCK = declare("missing-block", "The labels of a program's blocks are not 0, 1, 2, ... without a gap.")
NESTING = declare("nesting", "Blocks stand inside each other deeper than the limit.")
UNBALANCED = declare("unbalanced", "A `{` is not closed, or a `}` closes nothing.")
DISTRIBUTION = declare(
    "distribution", "A statement about the distribution of a program says what it can't say, or not enough."
)
MISPLACED = declare("misplaced", "A statement stands where it can't: an op outside a block, a block outside a program.")
NOT_TEXT = declare("not-text", "The input is not UTF-8 text.")
