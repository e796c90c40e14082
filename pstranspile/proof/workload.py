"""The workload of a check: the program of each step, the data, and the variables that are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.feeding import Weighing
from pstranspile.compiler.compile import Compiled, Role, compile
from pstranspile.compiler.plan.edited import parse_plan
from pstranspile.compiler.plan.plan import plan_text
from pstranspile.ir.attributes import Floats, float32
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import MAIN, Block, Module, Op, Program, TensorType, Var
from pstranspile.ir.types import DType, OpRole, VarKind
from pstranspile.ops import schema_of
from pstranspile.runtime.run.batch import Dealt
from pstranspile.runtime.run.step_feeds import (
    Feeds,
    GivenFeeds,
    ProgramFeeds,
    Turns,
    parse_turns,
    step_programs,
    union_of,
)
from pstranspile.runtime.values import LoDTensor

# Programs in double precision: what is left of a difference there is no rounding of single precision.

# What a check is given, and the same in double precision.

T = TypeVar("T")


class Given(NamedTuple):
    """A module, what was compiled of it, the steps, the data, what to start from, and the seed."""

    module: Module
    made: Compiled
    workload: Workload
    feeds: GivenFeeds
    init: Mapping[str, Any]
    seed: int

    def in_doubles(self) -> Given:
        """The same in double precision. Raises DiagnosticError where an op does not take it."""
        module = module_in_doubles(self.module, self.made.plan.trainers)
        made = compiled_in_doubles(self.made, module)
        of = self.workload
        workload = Workload(module, of.text or None, of.steps, of.progress, of.shares, buffers=of.buffers)
        given = self.feeds
        feeds = values_in_doubles(given) if isinstance(given, Mapping) else [values_in_doubles(step) for step in given]
        return Given(module, made, workload, feeds, values_in_doubles(self.init), self.seed)


def precisely(given: Given, work: Callable[[Given], T]) -> tuple[T, str]:
    """What some work gives in double precision; where that can't be had, in single precision, and why."""
    try:
        return work(given.in_doubles()), ""
    except DiagnosticError as problem:
        refused = problem.diagnostics[0].message
    return work(given), refused


TYPES = ("dtype", "in_dtype", "out_dtype", "in_data_type", "out_data_type")
"""Attributes that are numbers of element types."""


def in_doubles(program: Program, trainers: int) -> Program:
    """A program with f64 in the place of f32, in what it declares and what its ops make.

    Attributes hold f32. The nearest one to 1 / `trainers`, by which sums of so many gradients become means, is made
    exact. The source may scale by the same number, so it is made exact there too: both sides stay the same program.
    """
    blocks = tuple(
        block._replace(
            vars=FrozenMap({name: _variable(var) for name, var in block.vars.items()}),
            ops=tuple(_op(op, trainers) for op in block.ops),
        )
        for block in program.blocks
    )
    return program._replace(blocks=blocks)


def _variable(var: Var) -> Var:
    return var._replace(
        tensor=None if var.tensor is None else _wider(var.tensor), readers=tuple(_wider(type) for type in var.readers)
    )


def _wider(type: TensorType) -> TensorType:
    return type._replace(dtype=DType.FP64) if type.dtype is DType.FP32 else type


def _op(op: Op, trainers: int) -> Op:
    changed: dict[str, Any] = {name: DType.FP64.value for name in TYPES if op.attrs.get(name) == DType.FP32.value}
    if op.type == "scale" and op.attrs.get("scale") == float32(1 / trainers):
        changed["scale"] = 1 / trainers
    if op.type == "assign_value" and changed:  # which has no list of f64
        changed["value"] = op.attrs.get("fp32_values", Floats(()))
        op = op._replace(type="fill")
    return op._replace(attrs=FrozenMap({**op.attrs, **changed})) if changed else op


def values_in_doubles(values: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays of f32 as f64, by name, dealt as they are."""
    wide = {name: _value(value) for name, value in values.items()}
    return Dealt(wide, values.rows) if isinstance(values, Dealt) else wide


def _value(value: Any) -> Any:
    if isinstance(value, LoDTensor):
        return LoDTensor(_value(value.data), value.lod)
    return value.astype("float64") if getattr(value, "dtype", None) == np.float32 else value


def module_in_doubles(module: Module, trainers: int) -> Module:
    """All programs of a module in double precision, as those of a job with so many trainers are."""
    return Module(FrozenMap({name: in_doubles(program, trainers) for name, program in module.programs.items()}))


def compiled_in_doubles(made: Compiled, module: Module) -> Compiled:
    """What was compiled of a module, in double precision, where `module` already is."""
    assert made.job is not None
    trainers = made.plan.trainers
    roles: dict[str, Role] = {}
    for name, role in made.roles().items():
        main, startup = (in_doubles(program, trainers) for program in (role.main, role.startup))
        others = FrozenMap({n: in_doubles(program, trainers) for n, program in role.others.items()})
        roles[name] = Role(name, main, startup, others)
    plan = parse_plan(plan_text(replace(made.plan, made_for=module)))  # which may be another than the job's own
    return compile(module, made.job, plan=plan).with_roles(roles)


FLOATS = ("f16", "f32", "f64")


def loss_of(main: Program) -> str | None:
    """The loss of a program: the output of its op with the role of the loss."""
    for op in main.main_block.ops:
        if op.role is not None and op.role == OpRole.FORWARD | OpRole.LOSS:
            return next(iter(op.output_names), None)
    return None


def _made_for_all(op: Op) -> Iterator[str]:
    """The outputs of an op but those that are only there for its gradient, such as the dims before a reshape."""
    schema = schema_of(op.type)
    for slot, names in op.outputs.items():
        if schema is None or slot not in schema.outputs or not schema.outputs[slot].intermediate:
            yield from names


def results_of(program: Program) -> tuple[str, ...]:
    """The outputs of a program without a loss: numbers that no op of it reads, and that are not for gradients alone."""
    block = program.main_block
    read = {name for op in block.ops for name in op.input_names}
    made = dict.fromkeys(name for op in block.ops for name in _made_for_all(op) if name not in read)
    names: list[str] = []
    for name in made:
        var = block.vars.get(name)
        if var is not None and not var.persistable and var.kind is VarKind.LOD_TENSOR and var.dtype is not None:
            names += [name] if var.dtype.text in FLOATS else []
    return tuple(names)


def metrics_of(program: Program) -> frozenset[str]:
    """The variables that a program keeps or computes for metrics only.

    These are the persistable variables on which no parameter, learning rate, optimizer state or loss depends, and the
    other outputs of the ops that write them.
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


def sums_of(program: Program) -> frozenset[str]:
    """The variables in which a program adds up gradients from step to step, on each trainer those of its shares."""
    block = program.main_block
    written, sums = set[str](), set[str]()
    for op in block.ops:
        if (op.role or OpRole.FORWARD) & OpRole.BACKWARD:
            kept = {name for name in op.input_names if name in block.vars and block.vars[name].persistable}
            sums |= {name for name in kept - written if block.vars[name].parameter is None}
        written.update(op.output_names)
    made = {name for op in block.ops if (op.role or OpRole.FORWARD) & OpRole.BACKWARD for name in op.output_names}
    return frozenset(sums & made)


def _named(block: Block) -> Iterator[str]:
    for op in block.ops:
        yield from op.input_names
        yield from op.output_names


OnProgress: TypeAlias = "Callable[[str, int, int], object]"
"""Called with the progress: what is being done, how much of it is done, and of how much."""


Watch: TypeAlias = "Callable[[Cluster], object]"
"""Called with each cluster before it starts."""


class Workload:
    """The steps of a check. `text` selects their programs (`main*5,generator`); None: always @main.

    Raises DiagnosticError.
    """

    def __init__(
        self,
        module: Module,
        text: str | None,
        steps: int,
        progress: OnProgress | None = None,
        shares: Weighing = "equal",
        watch: Watch | None = None,
        *,
        buffers: bool = False,
    ):
        self.text = text or ""
        self.progress: OnProgress = progress or (lambda _what, _done, _of: None)
        self.watch: Watch = watch or (lambda _cluster: None)
        self.steps = steps
        self.shares: Weighing = shares
        """How much the shares of a batch count."""
        self.buffers = buffers
        """Whether what programs keep for metrics is part of a model, of which only the first trainer's counts: then it
        is compared as other states are.
        """
        known = step_programs(module)
        self.turns = Turns(repeat(MAIN), (MAIN,)) if text is None else parse_turns(text, known)
        self.known = known
        self.programs: dict[str, Program] = {name: known[name] for name in self.turns.names}

    def limit_to(self, steps: int) -> None:
        """The check has so many steps."""
        self.steps = steps

    def steps_of_run(self, what: str) -> Iterator[int]:
        """The steps, as indices from 0. Reports each one as progress of `what`."""
        for step in range(self.steps):
            yield step
            self.progress(what, step + 1, self.steps)

    @property
    def given_turns(self) -> Turns | None:
        """The turns for a cluster; None if it always runs @main."""
        return self.turns if self.text else None

    @cached_property
    def whole(self) -> Program:
        """One program with all variables and ops of the programs, for analysis."""
        return union_of(self.programs.values())

    def label(self, program: str, name: str) -> str:
        """The name of a program's variable in reports: `PROGRAM/NAME` where there are several programs."""
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
        """The variables for metrics only, in any program (`metrics_of`)."""
        return frozenset() if self.buffers else metrics_of(self.whole)

    @cached_property
    def sums(self) -> frozenset[str]:
        """The variables in which trainers add up gradients, in any program (`sums_of`)."""
        return sums_of(self.whole)

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
