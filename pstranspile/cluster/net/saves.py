"""The folder below which a server saves what other machines ask it to, chosen by whoever started the server.

A message names a path, which is resolved against the server's own working folder and must lie below the save folder.
Every folder on the way is opened without following links, and the file is written in the folder that is open, so that a
link made meanwhile leads nowhere.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath

from pstranspile.ir.diagnostics import DiagnosticError, visible

VARIABLE = "PSTRANSPILE_SAVES"
"""The environment variable that gives scripts the folder."""

_GIVEN = "the folder that it was started with (--saves)"
"""The folder in messages to others, who need not know where it is."""

_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


class Unplaced(Exception):
    """A path to which nothing is written, for the reason in the message."""


class SaveFolder:
    """Gives the place of files below `folder` ("": there is none). Relative paths begin at `working`."""

    def __init__(self, folder: str, working: str = "."):
        self._folder = os.path.abspath(folder) if folder else ""
        self._working = os.path.abspath(working)

    @contextmanager
    def place(self, path: str) -> Generator[str]:
        """The path at which the file is written while the context lasts; the folders on the way are made.

        Raises Unplaced, also for what is raised in the context where the file can't be written.
        """
        names = self._names_below(path)
        try:
            os.makedirs(self._folder, exist_ok=True)
            here = os.open(self._folder, _DIRECTORY)
        except OSError as problem:
            raise Unplaced(f"{_GIVEN} can't be opened: {problem.strerror}") from None
        try:
            for name in names[:-1]:
                here = _enter(here, name, path)
            _require_file(here, names[-1], path)
            own = f"/proc/self/fd/{here}"
            place = os.path.join(own if os.path.isdir(own) else _checked(self._folder, names[:-1], path), names[-1])
            try:
                yield place
            except DiagnosticError as problem:
                raise Unplaced(str(problem).replace(place, visible(path))) from None
        finally:
            os.close(here)

    def _names_below(self, path: str) -> Sequence[str]:
        """The names of the folders below the given one, and of the file. Raises Unplaced."""
        shown = visible(path)
        if not self._folder:
            raise Unplaced(f"{shown}: it was started without a folder for that (--saves DIR; of scripts: {VARIABLE})")
        if "\0" in path or ".." in PurePath(path).parts:
            raise Unplaced(f"{shown} is no path below {_GIVEN}")
        whole = os.path.normpath(os.path.join(self._working, path))
        for folder in (self._folder, os.path.realpath(self._folder)):
            if whole != folder and PurePath(whole).is_relative_to(folder) and not path.endswith("/"):
                return PurePath(whole).relative_to(folder).parts
        raise Unplaced(f"{shown} is no file below {_GIVEN}")


def _enter(here: int, name: str, path: str) -> int:
    """The folder `name` of the open folder `here`, which is closed. Raises Unplaced."""
    try:
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=here)
        inner = os.open(name, _DIRECTORY | _NO_LINK, dir_fd=here)
    except OSError as problem:
        reason = "is a link, or no folder" if _is_there(here, name) else str(problem.strerror)
        raise Unplaced(f"{visible(path)}: {visible(name)} {reason}") from None
    os.close(here)
    return inner


def _is_there(here: int, name: str) -> bool:
    try:
        return not stat.S_ISDIR(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _require_file(here: int, name: str, path: str) -> None:
    """Raises Unplaced if there is something else than a file of that name."""
    try:
        found = os.stat(name, dir_fd=here, follow_symlinks=False)
    except OSError:
        return
    if not stat.S_ISREG(found.st_mode):
        raise Unplaced(f"{visible(path)} is there already, and no file")


def _checked(folder: str, names: Sequence[str], path: str) -> str:
    """The path of the folders, where no open folder has one. Raises Unplaced if a link leads out."""
    real = os.path.realpath(os.path.join(folder, *names))
    if not Path(real).is_relative_to(os.path.realpath(folder)):
        raise Unplaced(f"{visible(path)} leads out of {_GIVEN}")
    return real
