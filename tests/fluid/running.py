"""Runs scripts of Fluid in this process, each with programs, names and variables of its own."""

from __future__ import annotations

import io
import runpy
import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import pstranspile.fluid as fluid
from pstranspile.fluid import aliases

SCRIPTS = Path(__file__).parent / "scripts"
RECORDED = Path(__file__).parent / "recorded"


@contextmanager
def fresh() -> Generator[None]:
    """New default programs, counters and scope for the block."""
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.unique_name.guard(),
        fluid.scope_guard(fluid.Scope()),
    ):
        yield


@contextmanager
def known_as_paddle() -> Generator[None]:
    """`paddle` is this package within the block, and afterwards unknown."""
    finders = list(sys.meta_path)
    aliases.install()
    try:
        yield
    finally:
        sys.meta_path[:] = finders
        fluid.framework.Variable.later = False
        for name in [name for name in sys.modules if name.partition(".")[0] == "paddle"]:
            del sys.modules[name]


def printed(script: Path, *arguments: str) -> str:
    """What a script prints."""
    out, before = io.StringIO(), sys.argv
    sys.argv = [str(script), *arguments]
    try:
        with fresh(), known_as_paddle(), redirect_stdout(out):
            runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv = before
    return out.getvalue()
