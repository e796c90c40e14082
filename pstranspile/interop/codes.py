"""Diagnostic codes of files read and written: ProgramDescs, `--meta`, inputs and outputs."""

from __future__ import annotations

from pstranspile.ir.codes import declare

DAMAGED = declare(
    "desc-damaged",
    "The file is not a readable ProgramDesc: it is cut short or its bytes are not valid protobuf.",
)
WIRE_TYPE = declare("desc-wire-type", "A field of the ProgramDesc is encoded in another way than the format says.")
MISSING = declare("desc-missing", "A field that every ProgramDesc must carry is missing.")
ENUM = declare("desc-enum", "A field of the ProgramDesc holds a number that stands for nothing.")
NO_VALUE = declare("desc-no-value", "An attribute says of which kind it is but carries no value.")
DUPLICATE = declare("desc-duplicate", "A ProgramDesc names the same variable, slot or attribute twice.")
BLOCK_INDEX = declare("desc-block-index", "A block of the ProgramDesc does not carry its own position as index.")
ROLE = declare("desc-role", "The attribute op_role or op_role_var has another kind or value than it may have.")
NOT_KEPT = declare(
    "desc-not-kept", "The ProgramDesc carries something this program model has no place for; it is left out."
)
UNWRITABLE = declare(
    "desc-unwritable", "The program holds a value that a ProgramDesc can't carry, such as a number too large."
)
INPUT_UNREADABLE = declare("input-unreadable", "An input file is missing, is a folder, or may not be read.")
INPUT_LARGE = declare("input-large", "An input is larger than 1 GiB, or has no end.")
INPUT_EMPTY = declare("input-empty", "An input file holds nothing.")
INPUT_FORMAT = declare("input-format", "An input is neither program text nor a serialized ProgramDesc.")
INPUT_ENCODING = declare("input-encoding", "An input that must be text is not UTF-8.")
INPUT_STARTUP = declare("input-startup", "The startup program is given twice, or the file given for it holds none.")
META_JSON = declare("meta-json", "The `--meta` file is not a JSON object.")
META_TYPE = declare("meta-type", "A value in the `--meta` file has another type or range than its key takes.")
META_DUPLICATE = declare("meta-duplicate", "The `--meta` file names a parameter twice.")
META_UNKNOWN = declare(
    "meta-unknown-parameter", "The `--meta` file names a parameter that no program declares; it is ignored."
)
META_PROGRAM = declare(
    "meta-unknown-program", "The `--meta` file has the distribution of a program that is not there; it is ignored."
)
OUTPUT_NAME = declare("output-name", "An output file has a name that is not a plain file name.")
OUTPUT_UNWRITABLE = declare("output-unwritable", "An output file or folder can't be written.")
