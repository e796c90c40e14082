"""Steps of trainers without an exchange: when they occur, and which program runs in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from pstranspile.cluster.machines.server import part_of, read_first
from pstranspile.compiler.emit.rules import AVERAGE_PARAMETERS, SUM_DIFFERENCES, WAIT_SUMS
from pstranspile.ir.model import Op, Program
from pstranspile.ir.types import OpRole
from pstranspile.runtime.run import run
from pstranspile.runtime.run.feeds import fetched_value, written_names
from pstranspile.runtime.run.scope import Scope

# The programs that a script derives from a machine's program, beside the one that the machine runs.

_OF_STEPS = frozenset({"send", "send_barrier", "recv", "fetch_barrier"})


def quiet(program: Program, trained: Program) -> Program:
    """A copy for tests without the ops by which a step sends gradients to servers and receives their results.

    `trained` is the program that trains: the variables that it writes and the copy does not are gradients, so ops that
    prepare or join messages from these are left out too.
    """
    return without_steps(program, {*written_names(trained)} - written_names(program))


def without_steps(program: Program, unwritten_names: Iterable[str]) -> Program:
    """The program without the ops by which a step sends gradients to servers and receives their results.

    The variables `unwritten_names` are no longer written, so ops that prepare or join messages from these are left out
    too.
    """
    unwritten_names, kept = {*unwritten_names}, list[Op]()
    for op in program.main_block.ops:
        talks = bool((op.role or 0) & (OpRole.RPC | OpRole.DIST))
        if talks and (op.type in _OF_STEPS or not unwritten_names.isdisjoint(op.input_names)):
            unwritten_names.update(op.output_names)
        else:
            kept.append(op)
    return part_of(program, kept)


class SurroundingOps:
    """The ops of block 0 before and after the op that serves, which run in the scope of the script.

    The later ones can read what the earlier ones write, as if they were one program.
    """

    def __init__(self, program: Program, serving: Op, scope: Scope):
        ops = program.main_block.ops
        place = next(index for index, op in enumerate(ops) if op is serving)
        self._earlier_program, self._later_program = (
            part_of(program, some) for some in (ops[:place], ops[place + 1 :])
        )
        self._scope = scope
        self._values: dict[str, Any] = {}

    def begin(self, feed: Mapping[str, Any]) -> None:
        """Runs the ops before the op that serves. Raises DiagnosticError."""
        read = set(read_first(self._later_program.main_block.ops))
        self._values = {name: value for name, value in feed.items() if name in read}
        if self._earlier_program.main_block.ops:
            written = {name for op in self._earlier_program.main_block.ops for name in op.output_names}
            self._values.update(run(self._earlier_program, feed, sorted(read & written), self._scope))

    def end(self, fetch: Sequence[str]) -> dict[str, Any]:
        """Runs the ops after the op that serves, and returns the fetched values. Raises DiagnosticError."""
        if not self._later_program.main_block.ops:
            return held_in(self._scope, self._later_program, fetch)
        kept = {name for name, var in self._later_program.main_block.vars.items() if var.persistable}
        return run(
            self._later_program,
            {name: value for name, value in self._values.items() if name not in kept},
            fetch,
            self._scope,
        )


def held_in(scope: Scope, program: Program, names: Sequence[str]) -> dict[str, Any]:
    """The values in a scope of variables of a program, by name. Raises DiagnosticError for a variable
    without a value.
    """
    return {name: fetched_value(program, name, scope.get(name)) for name in names}


_AVERAGING = frozenset({AVERAGE_PARAMETERS, SUM_DIFFERENCES, WAIT_SUMS})


class Pace(NamedTuple):
    """How often trainers exchange: in each step up to `begin_step`, and then in every `k_steps`-th one after it."""

    k_steps: int
    begin_step: int = 0

    def exchanges(self, step: int) -> bool:
        """Whether trainers exchange in a step, counted from 1."""
        return step <= self.begin_step or (step - self.begin_step) % self.k_steps == 0


Between: TypeAlias = Callable[[Program], Program]
"""A function that derives the program that a trainer runs in a step without an exchange from the one it
runs in others.
"""


class PacedJob(NamedTuple):
    """A job whose trainers run a derived program instead of the main one in most steps."""

    derived_programs: Mapping[str, Program]
    """The derived programs of the source, by name."""
    text: str
    """A text that says which program each step of the source runs, in the form that `check` takes."""
    pace: Pace
    between: Between


def without_averages(program: Program) -> Program:
    """A trainer's program without the ops that average parameters, so that it applies only its own updates."""
    ops = program.main_block.ops
    return part_of(program, [op for op in ops if op.origin is None or op.origin.rule not in _AVERAGING])
