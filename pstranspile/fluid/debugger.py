"""Text forms of programs and searches in them: Fluid's `debugger` and `distribute_lookup_table`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pstranspile.fluid.graph.nodes import write_graph
from pstranspile.fluid.missing import names_of_fluid

_GRADIENT = "@GRAD"


def pprint_program_codes(program_desc: Any) -> str:
    """The blocks of a program as text, without gradients and the ops that use them."""
    return "\n".join(pprint_block_codes(block) for block in program_desc.blocks)


def pprint_block_codes(block_desc: Any, show_backward: bool = False) -> str:
    """A block as text: its variables, then its ops; with `show_backward` including those of gradients."""
    ops = [
        op
        for op in block_desc.ops
        if show_backward
        or not (op.type.endswith("_grad") or any(_GRADIENT in n for n in (*op.input_arg_names, *op.output_arg_names)))
    ]
    shown = [var for name, var in block_desc.vars.items() if show_backward or _GRADIENT not in name]
    head = f"// block-{block_desc.idx}  parent-{block_desc.parent_idx}"
    return "\n".join([head, "// variables", *map(str, shown), "", "// operators", *map(str, ops), ""])


def draw_block_graphviz(block: Any, highlights: Sequence[str] | None = None, path: str = "./temp.dot") -> None:
    """Writes a block to `path` as a graph, and as a PDF beside it where Graphviz is installed.

    Ops and variables whose names match one of the patterns in `highlights` are orange.
    """

    def node(number: int, name: str, shape: str) -> str:
        marked = any(re.match(pattern, name) for pattern in highlights or ())
        return f'  node_{number} [label="{name}" shape={shape}{" style=filled fillcolor=orange" if marked else ""}]'

    used = [name for op in block.ops for name in (*op.input_arg_names, *op.output_arg_names)]
    numbers = {name: number for number, name in enumerate(dict.fromkeys([*block.vars, *used]))}
    kept = {name for name, var in block.vars.items() if var.persistable}
    lines = [node(number, name, "box" if name in kept else "ellipse") for name, number in numbers.items()]
    for at, op in enumerate(block.ops, start=len(numbers)):
        lines.append(node(at, op.type, "box"))
        lines += [f"  node_{numbers[name]} -> node_{at}" for name in op.input_arg_names]
        lines += [f"  node_{at} -> node_{numbers[name]}" for name in op.output_arg_names]
    write_graph(path, lines)


LOOKUP_TABLE_TYPE = "lookup_table"


def _lookups(program: Any, table_name: str) -> list[Any]:
    return [op for op in program.global_block().ops if op.type == LOOKUP_TABLE_TYPE and op.input("W")[0] == table_name]


def find_distributed_lookup_table_inputs(program: Any, table_name: str) -> list[Any]:
    """The variables with the ids that are looked up in a table."""
    known = program.current_block().vars
    return [known[name] for op in _lookups(program, table_name) for name in op.input("Ids")]


def find_distributed_lookup_table_outputs(program: Any, table_name: str) -> list[Any]:
    """The variables that receive rows of a table."""
    known = program.current_block().vars
    return [known[name] for op in _lookups(program, table_name) for name in op.output("Out")]


def find_distributed_lookup_table(program: Any) -> str | None:
    """The name of the table that is looked up with `is_distributed`, None if there is none.

    Raises RuntimeError for several such tables, AssertionError where only some lookups of the table have
    `is_distributed`.
    """
    ops = [op for op in program.global_block().ops if op.type == LOOKUP_TABLE_TYPE]
    names = list(dict.fromkeys(op.input("W")[0] for op in ops if op.attr("is_distributed") is True))
    if len(names) > 1:
        raise RuntimeError(f"all distributed lookup_table_ops should have only one table, not {' and '.join(names)}")
    mixed = [op for op in ops if op.attr("is_distributed") is not True and op.input("W")[0] in names]
    assert not mixed, f"{names[0]} is looked up with is_distributed and without"
    return names[0] if names else None


__getattr__ = names_of_fluid(__name__, globals())
