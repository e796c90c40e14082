"""The programs of a module that the steps of a command run, and what is fetched of each."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pstranspile.ir.diagnostics import raise_errors
from pstranspile.ir.model import MAIN
from pstranspile.ir.types import OpRole

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
    """What is fetched of each program that is run: what was asked for, else the losses. Raises DiagnosticError."""
    from pstranspile.runtime.run.step_feeds import fetches_by_program, step_programs

    if turns is None:
        fetches = tuple(dict.fromkeys(options.fetch)) or loss_names(step_programs(module)[MAIN])
        require_fetches(module.main, fetches)
        return {MAIN: fetches}
    return fetches_by_program(options.fetch, {name: module[name] for name in turns.names}, loss_names)


def loss_names(program: Program) -> tuple[str, ...]:
    """The loss that the gradients of a program start from, else what its `fetch` ops name, in the order of `col`."""
    from pstranspile.ops.attributes import int_attr

    ops = program.main_block.ops
    for op in ops:
        if op.role == OpRole.LOSS:
            return tuple(op.output_names)[:1]
    fetched = [(int_attr(op, "col"), name) for op in ops if op.type == "fetch" for name in op.input_names]
    return tuple(dict.fromkeys(name for _, name in sorted(fetched, key=lambda pair: pair[0])))


def require_fetches(program: Program, fetches: Sequence[str]) -> None:
    """Raises DiagnosticError for variables that a program does not declare."""
    from pstranspile.runtime.run.feeds import fetch_problem

    findings = [fetch_problem(program, name) for name in fetches if name not in program.main_block.vars]
    raise_errors(findings)
