"""Fluid's `distribute_lookup_table`: the table of a program whose rows lie on the servers."""

from __future__ import annotations

from typing import Any

LOOKUP_TABLE_TYPE = "lookup_table"


def _lookups(program: Any, table_name: str) -> list[Any]:
    return [op for op in program.global_block().ops if op.type == LOOKUP_TABLE_TYPE and op.input("W")[0] == table_name]


def find_distributed_lookup_table_inputs(program: Any, table_name: str) -> list[Any]:
    """The variables with the ids that are looked up in a table."""
    known = program.current_block().vars
    return [known[name] for op in _lookups(program, table_name) for name in op.input("Ids")]


def find_distributed_lookup_table_outputs(program: Any, table_name: str) -> list[Any]:
    """The variables that get rows of a table."""
    known = program.current_block().vars
    return [known[name] for op in _lookups(program, table_name) for name in op.output("Out")]


def find_distributed_lookup_table(program: Any) -> str | None:
    """The name of the table with `is_distributed`, None for none.

    Raises RuntimeError for several, AssertionError where some ops only look up in the same table with it.
    """
    ops = [op for op in program.global_block().ops if op.type == LOOKUP_TABLE_TYPE]
    names = list(dict.fromkeys(op.input("W")[0] for op in ops if op.attr("is_distributed") is True))
    if len(names) > 1:
        raise RuntimeError(f"all distributed lookup_table_ops should have only one table, not {' and '.join(names)}")
    mixed = [op for op in ops if op.attr("is_distributed") is not True and op.input("W")[0] in names]
    assert not mixed, f"{names[0]} is looked up with is_distributed and without"
    return names[0] if names else None
