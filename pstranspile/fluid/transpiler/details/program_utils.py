"""Fluid's `program_utils`, of which scripts take the printing of programs."""

from __future__ import annotations

from typing import Any

from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import MAIN, Module
from pstranspile.ops.textual import print_module


def program_to_code(prog: Any, fout: Any = None, skip_op_callstack: bool = True) -> None:
    """Writes a program as text, to a file or to standard output."""
    import sys

    (fout or sys.stdout).write(print_module(Module(FrozenMap({MAIN: prog.freeze()}))))
