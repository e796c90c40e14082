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
from pstranspile.compiler.plan.plan import plan_text
from pstranspile.compiler.plan.plan_file import parse_plan
from pstranspile.ir.attributes import Floats, float32
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import MAIN, Block, FrozenMap, Module, Op, Program, TensorType, Var
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

# Programs in double precision. A difference that remains there is not due to rounding in single precision.

# The input of a check, and its conversion to double precision.

T = TypeVar("T")


class CheckInput(NamedTuple):
    """The input of a check: a module, its compile, the workload, the data, the initial values, and the seed."""

    module: Module
    compiled: Compiled
    workload: Workload
    feeds: GivenFeeds
    init: Mapping[str, Any]
    seed: int

    def in_doubles(self) -> CheckInput:
        """The same input in double precision. Raises DiagnosticError if an op does not support f64."""
        module = module_in_doubles(self.module, self.compiled.plan.trainers)
        made = compiled_in_doubles(self.compiled, module)
        of = self.workload
        workload = Workload(module, of.text or None, of.steps, of.progress, of.shares, buffers=of.buffers)
        given = self.feeds
        feeds = values_in_doubles(given) if isinstance(given, Mapping) else [values_in_doubles(step) for step in given]
        return CheckInput(module, made, workload, feeds, values_in_doubles(self.init), self.seed)


def precisely(check_input: CheckInput, work: Callable[[CheckInput], T]) -> tuple[T, str]:
    """Returns the result of `work` in double precision, and "".

    If double precision is refused, the result is of single precision, and the second value is the message.
    """
    try:
        return work(check_input.in_doubles()), ""
    except DiagnosticError as problem:
        refused = problem.diagnostics[0].message
    return work(check_input), refused


TYPES = ("dtype", "in_dtype", "out_dtype", "in_data_type", "out_data_type")
"""The attributes that are codes of element types."""


def in_doubles(program: Program, trainers: int) -> Program:
    """Returns a program in which f64 replaces f32, in declarations and in the outputs of ops.

    Attributes are stored as f32. The f32 nearest to 1 / `trainers`, which turns the sum of gradients into the mean, is
    replaced by the exact number. This also applies to the source, so that both sides remain the same program.
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
    if op.type == "assign_value" and changed:  # this op has no list of f64
        changed["value"] = op.attrs.get("fp32_values", Floats(()))
        op = op._replace(type="fill")
    return op._replace(attrs=FrozenMap({**op.attrs, **changed})) if changed else op


def values_in_doubles(values: Mapping[str, Any]) -> dict[str, Any]:
    """Converts arrays of f32 to f64, by name. A `Dealt` mapping stays one."""
    wide = {name: _value(value) for name, value in values.items()}
    return Dealt(wide, values.rows) if isinstance(values, Dealt) else wide


def _value(value: Any) -> Any:
    if isinstance(value, LoDTensor):
        return LoDTensor(_value(value.data), value.lod)
    return value.astype("float64") if getattr(value, "dtype", None) == np.float32 else value


def module_in_doubles(module: Module, trainers: int) -> Module:
    """Converts all programs of a module to double precision, for a job with this number of trainers."""
    return Module(FrozenMap({name: in_doubles(program, trainers) for name, program in module.programs.items()}))


def compiled_in_doubles(made: Compiled, module: Module) -> Compiled:
    """Converts a compile to double precision. `module` is its module in double precision."""
    assert made.job is not None
    trainers = made.plan.trainers
    roles: dict[str, Role] = {}
    for name, role in made.roles().items():
        main, startup = (in_doubles(program, trainers) for program in (role.main, role.startup))
        others = FrozenMap({n: in_doubles(program, trainers) for n, program in role.others.items()})
        roles[name] = Role(name, main, startup, others)
    plan = parse_plan(plan_text(replace(made.plan, made_for=module)))  # which may be another than the job's own
    return compile(module, made.job, plan=plan).with_roles(roles)


def micro_batches(program: Program) -> int:
    """The number of micro-batches to which a program deals the rows that it is fed; 1 if it deals them to none."""
    variables = program.main_block.vars
    for op in program.main_block.ops:
        if op.type == "reshape2" and (var := variables.get(op.input("X") or "")) is not None and var.need_check_feed:
            dealt = variables.get(op.output("Out") or "")
            if dealt is not None and dealt.tensor is not None and dealt.tensor.shape[1:2] == (-1,):
                return max(dealt.tensor.shape[0], 1)
    return 1


FLOATS = ("f16", "f32", "f64")


def loss_of(main: Program) -> str | None:
    """The loss of a program: the first output of the op with the role of the loss; None if there is no such op."""
    for op in main.main_block.ops:
        if op.role is not None and op.role == OpRole.FORWARD | OpRole.LOSS:
            return next(iter(op.output_names), None)
    return None


def _made_for_all(op: Op) -> Iterator[str]:
    """The outputs of an op, without those that exist only for its gradient, such as the dims before a reshape."""
    schema = schema_of(op.type)
    for slot, names in op.outputs.items():
        if schema is None or slot not in schema.outputs or not schema.outputs[slot].intermediate:
            yield from names


def results_of(program: Program) -> tuple[str, ...]:
    """The results of a program without a loss: floating-point outputs that no op reads and that are not for gradients
    only.
    """
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
    matters = {var.name for var in program.parameters()} | {
        name for b in program.blocks[1:] for name in _names_in_block(b)
    }
    for op in block.ops:
        role = op.role or OpRole.FORWARD
        if role != OpRole.FORWARD:
            matters.update(op.names)
    size = -1
    while size != len(matters):  # a value may come from the step before
        size = len(matters)
        for op in reversed(block.ops):
            if not matters.isdisjoint(op.output_names):
                matters.update(op.input_names)
    kept = {name for name, var in block.vars.items() if var.persistable and name not in matters}
    writers = [op for op in block.ops if not kept.isdisjoint(op.output_names)]
    return frozenset(name for op in writers for name in op.output_names)


def sums_of(program: Program) -> frozenset[str]:
    """The variables in which a program adds up gradients over several steps. Each trainer adds those of its own
    shares.
    """
    block = program.main_block
    written, sums = set[str](), set[str]()
    for op in block.ops:
        if (op.role or OpRole.FORWARD) & OpRole.BACKWARD:
            kept = {name for name in op.input_names if name in block.vars and block.vars[name].persistable}
            sums |= {name for name in kept - written if block.vars[name].parameter is None}
        written.update(op.output_names)
    made = {name for op in block.ops if (op.role or OpRole.FORWARD) & OpRole.BACKWARD for name in op.output_names}
    return frozenset(sums & made)


def _names_in_block(block: Block) -> Iterator[str]:
    for op in block.ops:
        yield from op.input_names
        yield from op.output_names


OnProgress: TypeAlias = "Callable[[str, int, int], object]"
"""Called with what is being done, how many parts of it are done, and how many there are."""


Watch: TypeAlias = "Callable[[Cluster], object]"
"""Called with each cluster before it starts."""


class Workload:
    """The steps of a check: the program of each step, the data, and the variables that are compared.

    `text` selects the programs of the steps, as in `main*5,generator`; None selects @main for every step. Raises
    DiagnosticError.
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
        """How the shares of a batch are weighted."""
        self.buffers = buffers
        """Whether variables for metrics are buffers of a model, which are compared as other states are. Only those of
        the first trainer count.
        """
        known = step_programs(module)
        self.turns = Turns(repeat(MAIN), (MAIN,)) if text is None else parse_turns(text, known)
        self.known_programs = known
        self.programs: dict[str, Program] = {name: known[name] for name in self.turns.names}

    def limit_to(self, steps: int) -> None:
        """Sets the number of steps."""
        self.steps = steps

    def steps_of_run(self, what: str) -> Iterator[int]:
        """Iterates over the steps, from 0, and reports each as progress of `what`."""
        for step in range(self.steps):
            yield step
            self.progress(what, step + 1, self.steps)

    @property
    def given_turns(self) -> Turns | None:
        """The program of each step, for a cluster; None if every step runs @main."""
        return self.turns if self.text else None

    @cached_property
    def whole_program(self) -> Program:
        """One program with all variables and ops of the programs, for analysis."""
        return union_of(self.programs.values())

    def label(self, program: str, name: str) -> str:
        """The name of a variable in reports: `PROGRAM/NAME` if programs were selected, else NAME."""
        return f"{program}/{name}" if self.text else name

    def steps_of(self, program: str) -> list[int]:
        """The steps that run a program, counted from 1."""
        return [step + 1 for step in range(self.steps) if self.turns.program(step) == program]

    def merge_feeds(self, feeds: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """The arrays of all programs in one mapping, with names as in reports, as a cluster takes them."""
        return {self.label(owner, name): array for owner, arrays in feeds.items() for name, array in arrays.items()}

    def feeds(self, feeds: GivenFeeds) -> Feeds | ProgramFeeds:
        """The feeds of all steps. `feeds` has arrays by input or by `PROGRAM/INPUT`, or a mapping for each step."""
        if not self.text:
            return Feeds(self.programs[MAIN], feeds)
        return ProgramFeeds(self.known_programs, self.turns, feeds)

    @cached_property
    def metrics(self) -> frozenset[str]:
        """The variables for metrics only, in any program (`metrics_of`)."""
        return frozenset() if self.buffers else metrics_of(self.whole_program)

    @cached_property
    def sums(self) -> frozenset[str]:
        """The variables in which trainers add up gradients, in any program (`sums_of`)."""
        return sums_of(self.whole_program)

    @cached_property
    def losses(self) -> dict[str, str | None]:
        """The loss of each program; None for a program without one."""
        return {name: loss_of(program) for name, program in self.programs.items()}

    def updated_parameters(self, program: str) -> set[str]:
        """The parameters that the ops of a program write."""
        parameters = {var.name for var in self.whole_program.parameters()}
        return {n for op in self.programs[program].main_block.ops for n in op.output_names} & parameters

    @cached_property
    def fetched_names(self) -> dict[str, tuple[str, ...]]:
        """The variables fetched from each program: its loss, or its results if it has no loss.

        Results are fetched only if the program updates no parameter, or programs were selected.
        """
        return {
            name: (loss,)
            if (loss := self.losses[name])
            else results_of(program)
            if self.text or not self.updated_parameters(name)
            else ()
            for name, program in self.programs.items()
        }

    def kind(self, program: str) -> str:
        """The kind of a program's fetched variables: "loss" or "result"."""
        return "loss" if self.losses[program] else "result"

    def first_step(self, program: str) -> int:
        """The first step that runs a program, counted from 0; -1 if none does."""
        return next((step - 1 for step in self.steps_of(program)), -1)
