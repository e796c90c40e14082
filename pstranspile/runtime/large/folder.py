"""The storage of the numbers of large tables: in memory, or in files.

with rows_on_disk("/fast/disk"):
    ps.simulate(result, feeds)       # tables that are made here have files there
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

_FOLDER: ContextVar[str | None] = ContextVar("rows_on_disk", default=None)


@contextmanager
def rows_on_disk(folder: str | os.PathLike[str] | None) -> Generator[None]:
    """Has large tables that this thread makes while it holds keep their numbers in files in `folder`; None: in memory.

    What they compute is the same. The folder is made if there is none. Raises DiagnosticError (`table-folder`) if rows
    can't be kept there, and so does a table for whose rows the disk has no room.
    """
    if folder is not None:
        # Imported here, as few programs need it
        from pstranspile.runtime.large.disk import require_usable

        require_usable(os.fspath(folder))
    token = _FOLDER.set(None if folder is None else os.fspath(folder))
    try:
        yield
    finally:
        _FOLDER.reset(token)


def chosen_folder() -> str | None:
    """The folder that holds, None for memory."""
    return _FOLDER.get()
