"""Names of the files of a checkpoint: those of variables are the variables' own, as in Fluid's layout."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

from pstranspile.ir.diagnostics import Diagnostic, error, raise_errors
from pstranspile.ir.model import Location

MANIFEST = "__manifest__.json"
"""Says what a checkpoint holds. A folder with it is a checkpoint of this program."""

COMBINED = "__params__"
"""The file of all whole variables in the layout `combined`."""

SAFETENSORS = "model.safetensors"
"""The file of all whole variables in the layout `safetensors`."""

TABLES = "__lookup_table__"
"""The folder of the parts of lookup tables, as in Fluid."""

MACHINES = "__machines__"
"""The folder of what single machines hold otherwise than the whole variables say, by role name."""

MEMORY = "__memory__"
"""The folder of the other state of single machines, by role name."""

RESERVED = (MEMORY, MANIFEST, COMBINED, SAFETENSORS, TABLES, MACHINES, "__model__")


def problem_of(name: str) -> str:
    """Why a name can't be that of a file in a folder; empty if it can. A `/` makes folders, as in Fluid."""
    if not name or "\0" in name or any(0xD800 <= ord(c) <= 0xDFFF for c in name):
        return "it is no name of a file"
    if "\\" in name or PurePosixPath(name).is_absolute():
        return "it does not lie in the folder"
    if any(part in ("", ".", "..") for part in name.split("/")):
        return "it does not lie in the folder, or has several spellings"
    return ""


def table_file(table: str, number: int) -> str:
    """The file of a server's part of a table, as in Fluid."""
    return f"{TABLES}/{table}_{number}"


def machine_file(machine: str, variable: str) -> str:
    """The file of a machine's own value of a variable."""
    return f"{MACHINES}/{machine}/{variable}"


def memory_file(machine: str, name: str) -> str:
    """The file of a machine's other state."""
    return f"{MEMORY}/{machine}/{name}"


def require_names(files: Iterable[str], variables: Iterable[str], place: str) -> None:
    """Raises DiagnosticError unless one folder can hold all files, and no variable's file has a reserved name."""
    findings: list[Diagnostic] = []
    taken: set[str] = set()
    folders: set[str] = set()

    def refuse(name: str, reason: str) -> None:
        findings.append(error("checkpoint-name", f"{name!r}: {reason}", Location(place)))

    for name in variables:
        if name.split("/")[0] in RESERVED:
            refuse(name, "a variable of this name can't have a file of its own: the checkpoint needs the name")
    for name in files:
        reason = problem_of(name)
        if reason:
            refuse(name, reason)
        elif name in taken:
            refuse(name, "two things need this file")
        else:
            taken.add(name)
            folders.update(str(folder) for folder in PurePosixPath(name).parents)
    for name in sorted(taken & folders):
        refuse(name, "it would be a file and a folder")
    raise_errors(findings)
