"""Names of the files of a checkpoint: those of variables are the variables' own, as in Fluid's layout."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import NamedTuple

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


class Limits(NamedTuple):
    """What the file system of a folder allows: the bytes of a name and of a path in the folder, and whether names that
    differ in upper and lower case alone are the same.
    """

    name: int
    path: int
    ignores_case: bool

    def problem_of(self, name: str) -> str:
        """Why no file of the folder can have this name; empty if one can."""
        longest = max(len(os.fsencode(part)) for part in name.split("/"))
        if longest > self.name:
            return f"it has {longest} bytes, and the file system allows names of {self.name}"
        if len(os.fsencode(name)) > self.path:
            return f"it has {len(os.fsencode(name))} bytes, and the file system allows {self.path} below this folder"
        return ""


_WORK = 80
"""Bytes that the path of a file has more while its checkpoint is being written, at most."""


def limits_of(folder: Path) -> Limits:
    """The limits of the file system of a folder that is there."""
    name, path = 255, 4095
    if hasattr(os, "pathconf"):
        name, path = (os.pathconf(folder, limit) for limit in ("PC_NAME_MAX", "PC_PATH_MAX"))
    return Limits(name, path - _WORK - len(os.fsencode(os.path.abspath(folder))), ignores_case(folder))


def ignores_case(folder: Path) -> bool:
    """Whether a folder is found under its name in the other case, too."""
    place = Path(os.path.abspath(folder))
    other = place.with_name(place.name.swapcase())
    try:
        return other != place and os.path.samefile(place, other)
    except OSError:
        return False


def require_names(files: Iterable[str], variables: Iterable[str], place: str, limits: Limits | None = None) -> None:
    """Raises DiagnosticError unless one folder can hold all files, and no variable's file has a reserved name.

    `limits` are those of the folder's file system, if it is there.
    """
    findings: list[Diagnostic] = []
    taken: set[str] = set()
    folders: set[str] = set()
    spelt: dict[str, str] = {}

    def refuse(name: str, reason: str) -> None:
        findings.append(error("checkpoint-name", f"{name!r}: {reason}", Location(place)))

    for name in variables:
        if name.split("/")[0] in RESERVED:
            refuse(name, "a variable of this name can't have a file of its own: the checkpoint needs the name")
    for name in files:
        reason = problem_of(name) or (limits.problem_of(name) if limits is not None else "")
        alike = spelt.setdefault(name.casefold(), name) if limits is not None and limits.ignores_case else name
        if reason:
            refuse(name, reason)
        elif name in taken:
            refuse(name, "two things need this file")
        elif alike != name:
            refuse(name, f"the file system takes it for {alike!r}, which differs in upper and lower case alone")
        else:
            taken.add(name)
            folders.update(str(folder) for folder in PurePosixPath(name).parents)
    for name in sorted(taken & folders):
        refuse(name, "it would be a file and a folder")
    raise_errors(findings)
