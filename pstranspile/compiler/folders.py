"""The programs of the machines in an output folder, by role."""

from __future__ import annotations

import os
from pathlib import Path

from pstranspile.frontends.loading import Report, load, require_regular
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import MAIN, STARTUP, Location, Module

_MAIN, _STARTUP, _META = ".main.pb", ".startup.pb", ".meta.json"
_EXPORTED = (f"{MAIN}.pb", f"{STARTUP}.pb")


def roles_in(folder: str | os.PathLike[str]) -> dict[str, list[Path]]:
    """Role -> its files: `<role>.ir`, or `<role>.main.pb` and `<role>.startup.pb`, or `<role>.pb`; in order of name.

    `main.pb` and `startup.pb`, as `export` writes them, are the programs of one role, `main`. Raises DiagnosticError
    when the folder can't be read, holds no program, or a role twice.
    """
    place = Location(os.fspath(folder))
    try:
        files = sorted(path for path in Path(folder).iterdir() if path.suffix in (".ir", ".pb"))
    except OSError as problem:
        message = f"the folder can't be read: {problem.strerror}"
        raise DiagnosticError([error("folder-without-programs", message, place)]) from None
    exported = {path.name for path in files}.issuperset(_EXPORTED)
    result: dict[str, list[Path]] = {}
    for path in files:
        ending = next(ending for ending in (_MAIN, _STARTUP, ".ir", ".pb") if path.name.endswith(ending))
        role = MAIN if exported and path.name in _EXPORTED else path.name.removesuffix(ending)
        result.setdefault(role, []).append(path)
    if not result:
        raise DiagnosticError([error("folder-without-programs", "no .ir or .pb file in this folder", place)])
    for role, paths in result.items():
        endings = {path.name.removeprefix(role) for path in paths}
        if endings not in ({".ir"}, {".pb"}, {_MAIN}, {_STARTUP}, {_MAIN, _STARTUP}, {".pb", _EXPORTED[1]}):
            names = ", ".join(path.name for path in paths)
            raise DiagnosticError([error("folder-role-twice", f"{role} is here more than once: {names}", place)])
    return result


def load_role(paths: list[Path], report: Report | None = None) -> Module:
    """The programs of one machine, with the metadata next to them. Raises DiagnosticError."""
    require_regular(*paths)
    first, *others = paths
    meta = first.with_name("meta.json" if first.name == _EXPORTED[0] else first.name.removesuffix(_MAIN) + _META)
    module = load(first, others[0] if others else None, meta if meta.is_file() else None, report=report)
    if first.name.endswith(_STARTUP):
        return Module(FrozenMap({STARTUP: module[MAIN]}), module.source)
    return module
