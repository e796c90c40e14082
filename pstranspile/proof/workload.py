"""What both sides of a check run: which programs, in which steps, on what data, and what is looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import repeat
from typing import Any, TypeAlias

from pstranspile.ir.model import MAIN, Block, Module, Program
from pstranspile.ir.roles import OpRole
from pstranspile.ir.types import VarKind
from pstranspile.run.cluster.cluster import Cluster
from pstranspile.run.cluster.shares import Weighing
from pstranspile.run.program_feeds import ProgramFeeds
from pstranspile.run.step_feeds import Feeds, GivenFeeds
from pstranspile.run.turns import Turns, parse_turns, step_programs, union_of

FLOATS = ("f16", "f32", "f64")


def loss_of(main: Program) -> str | None:
    """The variable that the program trains on: what its op with the role of the loss makes."""
    for op in main.main_block.ops:
        if op.role is not None and op.role == OpRole.FORWARD | OpRole.LOSS:
            return next(iter(op.output_names), None)
    return None


def results_of(program: Program) -> tuple[str, ...]:
    """The numbers that a program without a loss makes and does not use itself."""
    block = program.main_block
    read = {name for op in block.ops for name in op.input_names}
    made = dict.fromkeys(name for op in block.ops for name in op.output_names if name not in read)
    names: list[str] = []
    for name in made:
        var = block.vars.get(name)
        if var is not None and not var.persistable and var.kind is VarKind.LOD_TENSOR and var.dtype is not None:
            names += [name] if var.dtype.text in FLOATS else []
    return tuple(names)


def metrics_of(program: Program) -> frozenset[str]:
    """What a program keeps, or makes, for metrics only: nothing that is trained, and no loss, comes of it.

    These are the variables kept from step to step that no parameter, learning rate, state of an optimizer or loss is
    made of, and what the ops that write them make besides.
    """
    block = program.main_block
    matters = {var.name for var in program.parameters()} | {name for b in program.blocks[1:] for name in _named(b)}
    for op in block.ops:
        role = op.role or OpRole.FORWARD
        if role != OpRole.FORWARD:
            matters.update(op.names)
    size = -1
    while size != len(matters):  # values also come from the step before
        size = len(matters)
        for op in reversed(block.ops):
            if not matters.isdisjoint(op.output_names):
                matters.update(op.input_names)
    kept = {name for name, var in block.vars.items() if var.persistable and name not in matters}
    writers = [op for op in block.ops if not kept.isdisjoint(op.output_names)]
    return frozenset(name for op in writers for name in op.output_names)


def _named(block: Block) -> Iterator[str]:
    for op in block.ops:
        yield from op.input_names
        yield from op.output_names


Tell: TypeAlias = "Callable[[str, int, int], object]"
"""Is told what is being done, how much of it is done, and of how much."""


Watch: TypeAlias = "Callable[[Cluster], object]"
"""Is given each cluster that is run, before it starts."""


class Workload:
    """The steps of a check. `text` says which program each runs (`main*5,generator`), None for always @main.

    Raises DiagnosticError.
    """

    def __init__(
        self,
        module: Module,
        text: str | None,
        steps: int,
        tell: Tell | None = None,
        shares: Weighing = "equal",
        watch: Watch | None = None,
    ):
        self.text = text or ""
        self.tell: Tell = tell or (lambda _what, _done, _of: None)
        self.watch: Watch = watch or (lambda _cluster: None)
        self.steps = steps
        self.shares: Weighing = shares
        """How much the shares of a batch count."""
        known = step_programs(module)
        self.turns = Turns(repeat(MAIN), (MAIN,)) if text is None else parse_turns(text, known)
        self.known = known
        self.programs: dict[str, Program] = {name: known[name] for name in self.turns.names}

    def each_step(self, what: str) -> Iterator[int]:
        """The steps, as indices from 0; whoever wants to know is told of each that `what` has done."""
        for step in range(self.steps):
            yield step
            self.tell(what, step + 1, self.steps)

    @property
    def given_turns(self) -> Turns | None:
        """What a cluster is told."""
        return self.turns if self.text else None

    @cached_property
    def whole(self) -> Program:
        """What all programs declare and do, to look at."""
        return union_of(self.programs.values())

    def label(self, program: str, name: str) -> str:
        """How a variable of a program is called: `PROGRAM/NAME` where there are several."""
        return f"{program}/{name}" if self.text else name

    def steps_of(self, program: str) -> list[int]:
        """The steps that run a program, counted from 1."""
        return [step + 1 for step in range(self.steps) if self.turns.program(step) == program]

    def joined(self, feeds: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """The arrays of all programs under one name each, as a cluster takes them."""
        return {self.label(owner, name): array for owner, arrays in feeds.items() for name, array in arrays.items()}

    def feeds(self, feeds: GivenFeeds) -> Feeds | ProgramFeeds:
        """The feeds of all steps, given as arrays by input (or by `PROGRAM/INPUT`), or for each step."""
        if not self.text:
            return Feeds(self.programs[MAIN], feeds)
        return ProgramFeeds(self.known, self.turns, feeds)

    @cached_property
    def metrics(self) -> frozenset[str]:
        """What is kept or made for metrics only, in any program (`metrics_of`)."""
        return metrics_of(self.whole)

    @cached_property
    def losses(self) -> dict[str, str | None]:
        """The loss of each program, as far as it is known."""
        return {name: loss_of(program) for name, program in self.programs.items()}

    def updated(self, program: str) -> set[str]:
        """The parameters that the ops of a program write."""
        parameters = {var.name for var in self.whole.parameters()}
        return {n for op in self.programs[program].main_block.ops for n in op.output_names} & parameters

    @cached_property
    def watched(self) -> dict[str, tuple[str, ...]]:
        """What is fetched of each program: its loss; its results where it trains nothing, or several are run."""
        return {
            name: (loss,)
            if (loss := self.losses[name])
            else results_of(program)
            if self.text or not self.updated(name)
            else ()
            for name, program in self.programs.items()
        }

    def kind(self, program: str) -> str:
        """Whether what is fetched of a program is its "loss" or its "result"."""
        return "loss" if self.losses[program] else "result"

    def first_step(self, program: str) -> int:
        """The first step that runs a program, counted from 0; -1 if none does."""
        return next((step - 1 for step in self.steps_of(program)), -1)
