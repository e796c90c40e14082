"""Writing outputs: a set of files appears whole or not at all."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from pstranspile.interop import codes
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import Location

PLAN_FILE = "plan.json"
"""The file every compile leaves; a folder that has one holds the outputs of an earlier compile."""

_WORK_PREFIX = ".pstranspile-"
_ROLE_FILE = re.compile(r"(trainer|pserver)_(0|[1-9][0-9]*)\.(ir|main\.pb|startup\.pb|meta\.json)")


def write_outputs(folder: str | os.PathLike[str], files: Mapping[str, bytes]) -> None:
    """Writes `files` (name -> content) into `folder`, which is made if there is none.

    All are first written under temporary names, then renamed; if anything fails the folder is as it was
    before (and gone if it was made for this). When both the folder and `files` have a plan, the files of roles
    that the earlier compile left and this one does not have are removed; everything else in the folder stays.
    Raises DiagnosticError when a file can't be written.
    """
    target = Path(folder)
    for name in files:
        if not name or name in (".", "..") or "/" in name or os.sep in name or "\0" in name:
            raise DiagnosticError(
                [error(codes.OUTPUT_NAME, f"{name!r} is not a plain file name", Location(str(target)))]
            )
    made: list[Path] = []
    try:
        _make_folder(target, made)
        _replace_files(target, files)
    except BaseException as problem:
        for path in reversed(made):
            path.rmdir()
        if isinstance(problem, OSError | ValueError):
            raise _failure(target, problem) from None
        raise


def write_output(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes one file, whole or not at all; its folder is made if there is none.

    What is not a regular file (a terminal, a pipe) is written to directly. Raises DiagnosticError.
    """
    target = Path(path)
    try:
        if target.exists() and not target.is_file() and not target.is_dir():
            target.write_bytes(data)
            return
        resolved = target.resolve()
    except (OSError, ValueError, RuntimeError) as problem:  # RuntimeError: a loop of symbolic links
        raise _failure(target, problem) from None
    write_outputs(resolved.parent, {resolved.name: data})


def _failure(folder: Path, problem: Exception) -> DiagnosticError:
    place, reason = str(folder), str(problem)
    if isinstance(problem, OSError):
        named = problem.filename2 or problem.filename
        if isinstance(named, str) and _WORK_PREFIX not in named:
            place = named
        reason = problem.strerror or reason
        if isinstance(problem, FileExistsError | NotADirectoryError):
            reason = "there is a file where a folder is needed"
    return DiagnosticError([error(codes.OUTPUT_UNWRITABLE, f"can't be written: {reason}", Location(place))])


def _make_folder(folder: Path, made: list[Path]) -> None:
    """Makes `folder` and what is missing above it, noting each in `made`."""
    missing: list[Path] = []
    path = folder
    while not path.exists():
        missing.append(path)
        if path.parent == path:
            break
        path = path.parent
    for path in reversed(missing):
        path.mkdir()
        made.append(path)
    if not folder.is_dir():
        raise NotADirectoryError(0, "", str(folder))


def _stale(folder: Path, files: Mapping[str, bytes]) -> list[str]:
    if PLAN_FILE not in files or not (folder / PLAN_FILE).is_file():
        return []
    with os.scandir(folder) as entries:
        return sorted(
            entry.name
            for entry in entries
            if _ROLE_FILE.fullmatch(entry.name) and entry.name not in files and entry.is_file(follow_symlinks=False)
        )


def _replace_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes into a folder beside the targets (same file system), then renames, undoing it on failure."""
    for name in files:
        if (folder / name).is_dir():
            raise IsADirectoryError(21, "there is a folder of this name", str(folder / name))
    stale = _stale(folder, files)
    work = _make_work_folder(folder)
    new, old = work / "new", work / "old"
    try:
        new.mkdir()
        old.mkdir()
        for name, data in files.items():
            (new / name).write_bytes(data)
            _keep_permissions(folder / name, new / name)
        _commit(folder, list(files), stale, new, old)
    finally:
        _remove_work_folder(work, new, old)


def _keep_permissions(old: Path, new: Path) -> None:
    """Gives a new file the permissions of the one it replaces. Raises PermissionError when that is read-only."""
    if old.is_file():
        if not os.access(old, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
            raise PermissionError(13, "Permission denied", str(old))
        new.chmod(stat.S_IMODE(old.stat().st_mode))


def _make_work_folder(folder: Path) -> Path:
    number = 0
    while True:
        work = folder / f"{_WORK_PREFIX}{os.getpid()}-{number}"
        try:
            work.mkdir()
        except FileExistsError:  # of another thread, or left by a process that was killed
            number += 1
        else:
            return work


def _remove_work_folder(work: Path, *parts: Path) -> None:
    for part in parts:
        if part.is_dir():
            for path in part.iterdir():
                path.unlink()
            part.rmdir()
    work.rmdir()


def _commit(folder: Path, names: list[str], stale: list[str], new: Path, old: Path) -> None:
    placed: list[str] = []
    kept: list[str] = []
    try:
        for name in (*names, *stale):
            if os.path.lexists(folder / name):
                os.rename(folder / name, old / name)
                kept.append(name)
        for name in names:
            os.rename(new / name, folder / name)
            placed.append(name)
    except BaseException:
        for name in placed:
            os.unlink(folder / name)
        for name in kept:
            os.rename(old / name, folder / name)
        raise
