"""Checkpoints of jobs: saved whole, loaded into a cluster of any size, and never half.

`manifest` says what a checkpoint holds, `runs` keeps a folder of them under a lock. `numbered_checkpoints` needs
neither, so that it can be called where a signal has interrupted an import.
"""

import os

from pstranspile.ir.patterns import Pattern

_STEP = Pattern(r"step_([0-9]{8,})")


def numbered_checkpoints(folder: str | os.PathLike[str]) -> list[tuple[int, str]]:
    """Steps and names of the numbered checkpoints in a folder, in order. Raises OSError, ValueError."""
    return sorted((int(match[1]), name) for name in os.listdir(folder) if (match := _STEP.fullmatch(name)))
