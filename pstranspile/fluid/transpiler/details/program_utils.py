"""Fluid's `program_utils`: programs as text, and ops by what they read and write."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.graph.desc import AttrType
from pstranspile.fluid.graph.variable import Parameter
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import MAIN, Module
from pstranspile.ops.textual import print_module


def program_to_code(prog: Any, fout: Any = None, skip_op_callstack: bool = True) -> None:
    """Writes a program as text, to a file or to standard output."""
    import sys

    (fout or sys.stdout).write(print_module(Module(FrozenMap({MAIN: prog.freeze()}))))


def get_indent_space(indent: int, space_num: int = 4) -> str:
    """The space in front of a line."""
    return " " * (indent * space_num)


def variable_to_code(var: Any) -> str:
    """A variable as Fluid prints it."""
    text = f"{var.name} : fluid.{var.type}"
    tensor = var.type.name in ("LOD_TENSOR", "SELECTED_ROWS")
    text += f".shape{tuple(var.shape)}.astype({var.dtype})" if tensor else ")"
    kind = ("trainable parameter" if var.trainable else "parameter") if isinstance(var, Parameter) else "var"
    return f"{'persist ' if var.persistable else ''}{kind} {text}"


def op_to_code(op: Any, skip_op_callstack: bool = True) -> str:
    """An op as Fluid prints it: what it writes, its type, what it reads, and its attributes by name."""
    writes, reads = (
        ", ".join(f"{slot}={held(slot)}" for slot in slots)
        for slots, held in ((op.output_names, op.output), (op.input_names, op.input))
    )
    attrs: list[str] = []
    for name in sorted(op.attr_names):
        if skip_op_callstack and name == "op_callstack":
            continue
        kind, shown = op.attr_type(name), " = {}"
        if kind in (AttrType.BLOCK, AttrType.BLOCKS):
            held = op._block_attr_id(name) if kind == AttrType.BLOCK else op._blocks_attr_ids(name)
            shown = " = block[{}]" if kind == AttrType.BLOCK else " = blocks{}"
        else:
            held = op.attr(name)
        attrs.append(name + shown.format(held))
    head = f"{{{writes}}} = " if writes else ""
    return f"{head}{op.type}(inputs={{{reads}}}, {', '.join(attrs)})"


def block_to_code(block: Any, block_idx: int, fout: Any = None, skip_op_callstack: bool = False) -> None:
    """Writes a block as Fluid prints it, variables by name, to a file or to standard output."""
    shown = [variable_to_code(var) for _, var in sorted(block.vars.items())]
    lines = [*shown, *[""][: len(shown)], *(op_to_code(op, skip_op_callstack) for op in block.ops)]
    body = [get_indent_space(1) + line if line else "" for line in lines]
    print("\n".join([f"{{ // block {block_idx}", *body, "}"]), file=fout)


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
