"""The programs of a module that the steps of a command run, and what is fetched of each."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pstranspile.ir.diagnostics import raise_errors
from pstranspile.ir.model import MAIN
from pstranspile.ir.types import OpRole, VarKind

if TYPE_CHECKING:
    from pstranspile.ir.model import Module, Program
    from pstranspile.runtime.run.step_feeds import Turns

TURNS_HELP = (
    "which program each step runs: `main*5,generator` runs @main five times, then @generator, and so on; "
    "`evaluation/10` adds a step of @evaluation after every 10 others (default: always @main)"
)
"""What `--program` means."""


def requested_turns(options: argparse.Namespace, module: Module) -> Turns | None:
    """The turns of the module's programs, None if they were not asked for. Raises DiagnosticError."""
    from pstranspile.runtime.run.step_feeds import parse_turns, step_programs

    return None if options.program is None else parse_turns(options.program, step_programs(module))


def requested_fetches(options: argparse.Namespace, module: Module, turns: Turns | None) -> dict[str, tuple[str, ...]]:
    """What is fetched of each program that is run: what was asked for, else the `usual_fetches`.

    Of programs that take turns these are the losses, and what fetch ops name. Raises DiagnosticError.
    """
    from pstranspile.runtime.run.step_feeds import fetches_by_program, step_programs

    if turns is None:
        fetches = tuple(dict.fromkeys(options.fetch)) or usual_fetches(step_programs(module)[MAIN])
        require_fetches(module.main, fetches)
        return {MAIN: fetches}
    return fetches_by_program(options.fetch, {name: module[name] for name in turns.names}, _losses)


def usual_fetches(program: Program) -> tuple[str, ...]:
    """The loss that the gradients of a program start from, else what its `fetch` ops name, in the order of `col`, else
    its results: what an op gives of which no other op takes anything, such as the outputs of an imported model.
    """
    return _losses(program) or _results(program)


def _losses(program: Program) -> tuple[str, ...]:
    from pstranspile.ops.attributes import int_attr

    ops = program.main_block.ops
    for op in ops:
        if op.role == OpRole.LOSS:
            return tuple(op.output_names)[:1]
    fetched = [(int_attr(op, "col"), name) for op in ops if op.type == "fetch" for name in op.input_names]
    return tuple(dict.fromkeys(name for _, name in sorted(fetched, key=lambda pair: pair[0])))


def _results(program: Program) -> tuple[str, ...]:
    """The tensors that forward ops give of which no op takes anything, without those for their gradients alone, and
    those of blocks that may not run.
    """
    from pstranspile.ops import schema_of

    variables = program.main_block.vars
    taken = {name for block in program.blocks for op in block.ops for name in op.input_names}
    result: dict[str, None] = {}
    for op in program.main_block.ops:
        if op.role != OpRole.FORWARD or op.type.startswith("conditional_block"):
            continue
        known = [variables[name] for name in op.output_names if name in variables]
        result_names = [var.name for var in known if not var.persistable and var.kind is VarKind.LOD_TENSOR]
        if taken.isdisjoint(result_names):
            schema = schema_of(op.type)
            kept = (
                {slot.name for slot in schema.outputs.values() if slot.intermediate}
                if schema is not None
                else set[str]()
            )
            mine = [name for slot, names in op.outputs.items() if slot not in kept for name in names]
            result.update(dict.fromkeys(name for name in mine if name in result_names))
    return tuple(result)


def require_fetches(program: Program, fetches: Sequence[str], source: Program | None = None) -> None:
    """Raises DiagnosticError for variables that a program does not declare. `source` is the one that it was made of,
    which the user knows.
    """
    from pstranspile.runtime.run.feeds import fetch_problem

    findings = [fetch_problem(source or program, name) for name in fetches if name not in program.main_block.vars]
    raise_errors(findings)
