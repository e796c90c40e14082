"""Diagnostic codes of files that hold the values of variables."""

from __future__ import annotations

from pstranspile.ir.codes import declare

FILE_UNREADABLE = declare(
    "values-unreadable", "A file of variables' values is missing, is a folder, or may not be read."
)
FILE_UNWRITABLE = declare("values-unwritable", "A file of variables' values can't be written.")
FILE_EXISTS = declare("values-exist", "A file that must not be overwritten is there already.")
FILE_DAMAGED = declare(
    "values-damaged", "A file of variables' values is cut short, or a field of it holds what cannot be."
)
FILE_VERSION = declare("values-version", "A file of variables' values is of a version that is not known.")
FILE_TYPE = declare("values-type", "A file of variables' values has an element type that is not known, or not allowed.")
FILE_REST = declare("values-rest", "A file of variables' values goes on after all that is to be read.")
FILE_RANGE = declare("values-range", "A part to be read reaches beyond what the file holds.")
NOT_WRITABLE = declare("values-kind", "A variable holds nothing that this format can carry.")
FILE_MISSING = declare("values-missing", "A file of several variables does not have one that is to be read.")
FILE_NAME = declare("values-name", "A variable has a name that can't be the name of a file.")
FILE_SHAPE = declare("values-shape", "A saved value has another element type or other dims than the program declares.")
NO_VALUE = declare("values-none", "A variable that is to be saved has no value yet.")
