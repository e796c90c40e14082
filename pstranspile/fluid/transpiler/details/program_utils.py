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


def delete_ops(block: Any, ops: Any) -> None:
    """Takes ops out of a block; those that it does not hold don't count."""
    gone = {id(op) for op in ops}
    for index in reversed(range(len(block.ops))):
        if id(block.ops[index]) in gone:
            block._remove_op(index)


def find_op_by_input_arg(block: Any, arg_name: str) -> int:
    """The place of the first op that reads a variable, -1 without one."""
    return next((index for index, op in enumerate(block.ops) if arg_name in op.input_arg_names), -1)


def find_op_by_output_arg(block: Any, arg_name: str, reverse: bool = False) -> int:
    """The place of the first op that writes a variable, of the last one with `reverse`, -1 without one."""
    places = [index for index, op in enumerate(block.ops) if arg_name in op.output_arg_names]
    return places[-1 if reverse else 0] if places else -1
