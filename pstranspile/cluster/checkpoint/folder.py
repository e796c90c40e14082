"""A folder that appears whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import NoReturn

from pstranspile.cluster.checkpoint.manifest import FileEntry
from pstranspile.cluster.checkpoint.names import MANIFEST
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import Location
from pstranspile.runtime.files.folders import exchange, work_folder


def previous_of(folder: Path) -> Path:
    """Where the folder that is being replaced lies for the moment between two renames."""
    return folder.with_name(f".{folder.name}.previous")


def present(folder: Path) -> Path:
    """The folder itself, or, if its replacing was cut off between two renames, the one that was being replaced."""
    previous = previous_of(folder)
    return previous if not os.path.lexists(folder) and previous.is_dir() else folder


def require_target(folder: Path) -> None:
    """Raises DiagnosticError unless `folder` can be written: it is not there, is empty, or is a checkpoint."""
    if folder.name in ("", ".."):
        _refuse(folder, "a checkpoint needs a folder of its own")
    if not os.path.lexists(folder):
        return
    if folder.is_symlink() or not folder.is_dir():
        _refuse(folder, "it is there, and is no folder")
    try:
        held = sorted(entry.name for entry in os.scandir(folder))
    except OSError as problem:
        _refuse(folder, f"can't be read: {problem.strerror}")
    if held and MANIFEST not in held:
        _refuse(folder, f"it holds other things ({held[0]}); a checkpoint replaces only another checkpoint")


def _refuse(folder: Path, reason: str) -> NoReturn:
    raise DiagnosticError([error("checkpoint-target", reason, Location(str(folder)))])


class NewFolder:
    """A folder being written next to its final place. Leaving the context without `publish` removes it.

    Every file and folder is on disk (fsync) before the folder gets its name.
    """

    def __init__(self, target: Path):
        self.target = Path(os.path.abspath(target))
        self.entries: list[FileEntry] = []
        self.work = self.target
        self._open = ExitStack()

    def __enter__(self) -> NewFolder:
        require_target(self.target)
        self.target.parent.mkdir(parents=True, exist_ok=True)
        held = self._open.enter_context(work_folder(self.target.parent, f".{self.target.name}.", ".part"))
        self.work = held / self.target.name
        self.work.mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def write(self, path: str, pieces: Iterable[bytes | memoryview]) -> None:
        """Writes a file of the folder, and notes its size and hash in `entries`."""
        digest, size = sha256(), 0
        file = self.work / path
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "xb") as stream:
            for piece in pieces:
                digest.update(piece)
                size += len(piece)
                stream.write(piece)
            stream.flush()
            os.fsync(stream.fileno())
        self.entries.append(FileEntry(path, size, digest.hexdigest()))

    def publish(self) -> None:
        """Gives the folder its name, in place of the one that has it."""
        for folder, _, _ in os.walk(self.work, topdown=False):
            _sync(Path(folder))
        previous = previous_of(self.target)
        if not os.path.lexists(self.target):
            os.rename(self.work, self.target)
        elif not exchange(self.work, self.target):
            if previous.exists():
                shutil.rmtree(previous)
            os.rename(self.target, previous)
            try:
                os.rename(self.work, self.target)
            except OSError:
                os.rename(previous, self.target)
                raise
        _sync(self.target.parent)
        shutil.rmtree(previous, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Has a folder's entries written to disk, where the system can do that for folders."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        if os.name == "nt":  # folders can't be opened there
            return
        raise
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_folder(target: Path, files: Mapping[str, Iterable[bytes | memoryview]]) -> None:
    """Writes a folder of files, whole or not at all. Raises OSError, and DiagnosticError for the target."""
    with NewFolder(target) as new:
        for path, pieces in files.items():
            new.write(path, pieces)
        new.publish()
