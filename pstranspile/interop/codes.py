"""Diagnostic codes of files read and written: ProgramDescs, `--meta`, inputs and outputs."""

from __future__ import annotations

from pstranspile.ir.codes import declare

DAMAGED = declare(
    "desc-damaged",
    "The file is not a readable ProgramDesc: it is cut short or its bytes are not valid protobuf.",
)
WIRE_TYPE = declare(
    "desc-wire-type", "A field of the ProgramDesc is encoded in another way than the format says."
)
MISSING = declare("desc-missing", "A field that every ProgramDesc must carry is missing.")
ENUM = declare("desc-enum", "A field of the ProgramDesc holds a number that stands for nothing.")
NO_VALUE = declare("desc-no-value", "An attribute says of which kind it is but carries no value.")
DUPLICATE = declare("desc-duplicate", "A ProgramDesc names the same variable, slot or attribute twice.")
BLOCK_INDEX = declare(
    "desc-block-index", "A block of the ProgramDesc does not carry its own position as index."
)
ROLE = declare(
    "desc-role", "The attribute op_role or op_role_var has another kind or value than it may have."
)
NOT_KEPT = declare(
    "desc-not-kept", "The ProgramDesc carries something this program model has no place for; it is left out."
)
UNWRITABLE = declare(
    "desc-unwritable", "The program holds a value that a ProgramDesc can't carry, such as a number too large."
)
