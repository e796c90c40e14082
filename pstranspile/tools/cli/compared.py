"""`compile --check`: do the files of a folder hold what a compile gives?"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from pstranspile.compiler.diff import diff_modules, render
from pstranspile.frontends.loading import is_text, load_bytes, read_bytes
from pstranspile.runtime.files.outputs import superfluous_files


def differing(folder: str, files: Mapping[str, bytes]) -> Iterator[str]:
    """The difference of every file that is missing, superfluous, or has other contents.

    Text is shown as a unified diff, serialized programs by what they mean. Raises DiagnosticError.
    """
    for name, made in files.items():
        path = os.path.join(folder, name)
        if not os.path.lexists(path):
            yield f"{path}: is missing\n"
            continue
        held = read_bytes(path)
        if held != made:
            yield _unified(path, held, made) if is_text(held) and is_text(made) else _programs(path, made)
    for name in superfluous_files(Path(folder), files) if os.path.isdir(folder) else ():
        yield f"{os.path.join(folder, name)}: no machine of the job has these programs\n"


def _unified(path: str, held: bytes, made: bytes) -> str:
    before, after = (data.decode("utf-8", "backslashreplace").splitlines() for data in (held, made))
    lines = difflib.unified_diff(before, after, path, f"{path} (compiled)", lineterm="")
    return "\n".join([*lines, ""]) or f"{path}: only line ends differ\n"


def _programs(path: str, made: bytes) -> str:
    def ignored(_: object) -> None:
        """Drops warnings: they are for readers of the file, not for a comparison."""

    first = load_bytes(read_bytes(path), path, report=ignored)
    second = load_bytes(made, path, report=ignored)
    shown = render(diff_modules(first, second), names=(path, f"{path} (compiled)"))
    return shown or f"{path}: written otherwise, and means the same\n"
