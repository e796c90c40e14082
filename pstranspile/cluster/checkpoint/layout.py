"""The placement of every variable of a job: the machine that holds each part, and the part's name there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import prod
from typing import NamedTuple, TypeAlias

from pstranspile.compiler.compile import Compiled
from pstranspile.compiler.plan.plan import PlannedParameter, Slice, fingerprint, slice_name, trainer_suffix
from pstranspile.ir.attributes import Strings
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import MAIN, STARTUP, Location, Module, Program, Role, TensorType, Var
from pstranspile.ir.types import DType, VarKind

MACHINE = "machine"
"""The name of the machine of a job that has only one."""

KEPT = (VarKind.LOD_TENSOR, VarKind.SELECTED_ROWS)


class VariablePart(NamedTuple):
    """The part of a variable that one machine holds: the elements from `offset` on, as a tensor of dims `shape`."""

    machine: str
    name: str
    offset: int
    shape: tuple[int, ...]


class VariableLayout(NamedTuple):
    """A whole variable of a job, and its holders.

    `parts` make up the whole, in order; the value of a checkpoint comes from them. `other_parts` are further copies (of
    parts, or of the whole). Without `parts`, the `other_parts` are independent variables of one name. `table`: sparse
    rows, shared out by id modulo the number of servers. `optional`: it need not have a value (the source program does
    not keep it from step to step). `startup_shape` are the dims in the start-up program, where they differ from those
    in the program that uses the variable, and `declaration` is the place where that program declares it.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    parts: tuple[VariablePart, ...]
    other_parts: tuple[VariablePart, ...]
    table: bool = False
    optional: bool = False
    startup_shape: tuple[int, ...] = ()
    declaration: Location | None = None

    @property
    def holders(self) -> tuple[VariablePart, ...]:
        """All holders of the variable or of parts of it."""
        return (*self.parts, *self.other_parts)


@dataclass(frozen=True)
class Layout:
    """All variables of a job by name, in the order of names; `machines` are role names, servers first.

    `fingerprint` is the hash of the source program, `servers` is a hash of the variables on each server.
    """

    fingerprint: str
    mode: str
    pservers: tuple[str, ...]
    trainers: int
    machines: tuple[str, ...]
    variables: Mapping[str, VariableLayout]

    @property
    def servers(self) -> str:
        """A hash of the placement: the same for jobs whose servers hold the same variables."""
        held = sorted(part for v in self.variables.values() for part in v.holders if part.machine.startswith("pserver"))
        return "sha256:" + sha256(repr([tuple(part) for part in held]).encode("utf-8", "surrogateescape")).hexdigest()


Place: TypeAlias = "tuple[str, int]"
"""The whole variable that a server's variable is a part of, and the element it starts at."""


class _MachineVar(NamedTuple):
    """One variable of one machine, before the variables of all machines are combined."""

    origin: str
    part: VariablePart
    whole_type: TensorType
    table: bool = False


def layout_of(job: Compiled | Module) -> Layout:
    """The placement of a compiled job's variables; those of a module are on the one machine that trains it.

    Variables are those of block 0 that are kept from step to step. Raises DiagnosticError (`checkpoint-place`) if the
    parts of a variable don't make up the whole.
    """
    if isinstance(job, Module):
        layouts = [_whole(var, MACHINE) for var in _persistable_vars(sources_of(job))]
        return Layout(fingerprint(job), "alone", (), 0, (MACHINE,), _put_together(layouts, job))
    plan = job.plan
    layouts = [one for number in range(len(plan.pservers)) for one in _on_server(job, number)]
    elsewhere = {v.origin for v in job.distributed_vars if v.vtype == "RemotePrefetch"}
    elsewhere.update(one.origin for one in layouts if one.table)
    for number in range(plan.trainers):
        role = job.trainer(number)
        named = _used_names(role)
        # a trainer at most declares tables that servers look up and variables that only servers update
        kept = (
            var for var in _persistable_vars(trainer_variables(role)) if var.name in named and var.name not in elsewhere
        )
        layouts += (_whole(var, role.name) for var in kept)
    machines = (*(f"pserver_{j}" for j in range(len(plan.pservers))), *(f"trainer_{i}" for i in range(plan.trainers)))
    variables = _put_together(layouts, job.source, job.rewritten)
    return Layout(job.fingerprint, plan.mode, plan.pservers, plan.trainers, machines, variables)


def _whole(var: Var, machine: str) -> _MachineVar:
    return _MachineVar(var.name, VariablePart(machine, var.name, 0, var.shape), _type(var))


def _type(var: Var) -> TensorType:
    return var.tensor or TensorType(DType.FP32, ())


def _persistable_vars(variables: Mapping[str, Var]) -> Iterator[Var]:
    return (var for var in variables.values() if var.persistable and var.kind in KEPT)


def declared_variables(source: Module, rewritten: Module | None) -> Mapping[str, Var]:
    """The variables of block 0 of a source, and those that a mode adds in rewriting it, such as a state for each
    parameter.
    """
    declared = sources_of(source)
    return declared if rewritten is None else {**sources_of(rewritten), **declared}


def sources_of(module: Module) -> Mapping[str, Var]:
    """The variables of block 0 of a module's programs, first those of @main; the start-up program's are left out."""
    others = (program for name, program in module.programs.items() if name not in (MAIN, STARTUP))
    return _merged_variables((module.main, *others))


def trainer_variables(role: Role) -> Mapping[str, Var]:
    """The variables of block 0 of all programs of a trainer."""
    return _merged_variables((role.main, *role.others.values()))


def _used_names(role: Role) -> set[str]:
    """The names of all variables that any op of a trainer uses. A variable that is not among them has no value
    there.
    """
    programs = (role.startup, role.main, *role.others.values())
    ops = (op for program in programs for block in program.blocks for op in block.ops)
    return {name for op in ops for side in (op.inputs, op.outputs) for names in side.values() for name in names}


def _merged_variables(programs: Sequence[Program]) -> Mapping[str, Var]:
    """The variables of several programs by name. Where programs declare one differently, a persistable declaration
    wins.
    """
    result = dict(programs[0].main_block.vars)
    for program in programs[1:]:
        for name, var in program.main_block.vars.items():
            if name not in result or (var.persistable and not result[name].persistable):
                result[name] = var
    return result


# Servers


def _on_server(job: Compiled, number: int) -> Iterator[_MachineVar]:
    """Yields the variables that a server keeps between steps.

    Gradients and intermediate results of updates are left out, as the source does not keep them either. The results of
    the learning-rate ops are kept: without barriers, an update may read them before they are computed again.
    """
    endpoint = job.plan.pservers[number]
    role = job.pserver(endpoint)
    program, source = role.main, declared_variables(job.source, job.rewritten)
    cuts = {**_cut_with_parameters(job, program), **_overview(job, endpoint)}
    passing = _gradients(program)
    passing.update(name for name, var in sources_of(job.source).items() if not var.persistable)
    passing -= _rates(program)
    named = job.plan.distributed_lookup_table
    tables = (named,) if isinstance(named, str) else named or ()
    for var in _persistable_vars(program.main_block.vars):
        origin, offset = cuts.get(var.name, (var.name, 0))
        if var.name not in passing and origin not in passing:
            table = var.kind is VarKind.SELECTED_ROWS or origin in tables
            part = VariablePart(role.name, var.name, 0 if table else offset, var.shape)
            yield _MachineVar(origin, part, _type(source.get(origin, var)), table)
    yield from _backups(role, cuts, source)


def _backups(role: Role, cuts: Mapping[str, Place], source: Mapping[str, Var]) -> Iterator[_MachineVar]:
    """The copies of parameters that a server keeps for each trainer (DC-ASGD), as parts of whole copies."""
    here = role.main.main_block.vars
    numbers: dict[str, int] = {}
    ops = role.startup.main_block.ops
    copies = {op.output("Out") or "": op.input("X") or "" for op in ops if op.type == "assign"}
    for copy, parameter in copies.items():
        origin, offset = cuts.get(parameter, (parameter, 0))
        if copy in here and not here[copy].persistable and origin in source:
            number = numbers[parameter] = numbers.get(parameter, -1) + 1
            part = VariablePart(role.name, copy, offset, here[copy].shape)
            yield _MachineVar(f"{origin}{trainer_suffix(number)}_bak", part, _type(source[origin]))


def _gradients(program: Program) -> set[str]:
    """The variables that a server receives or merges: the inputs of its listen_and_serv, and the gradients that start
    its blocks.
    """
    lines: set[str] = set()
    for op in program.main_block.ops:
        lines.update(op.inputs.get("X", ()))
        for pair in _strings(op.attrs.get("grad_to_block_id")):
            lines.add(pair.rpartition(":")[0])
    return lines


def _rates(program: Program) -> set[str]:
    """The variables that the learning-rate block of a server writes."""
    blocks = [op.attrs.get("lr_decay_block_id", -1) for op in program.main_block.ops]
    ops = (op for block in blocks if isinstance(block, int) and block > 0 for op in program.blocks[block].ops)
    return {name for op in ops for name in op.output_names}


def _strings(value: object) -> Iterable[str]:
    return value if isinstance(value, Strings) else ()


def _overview(job: Compiled, endpoint: str) -> dict[str, Place]:
    """Server variable -> (origin, offset), by the plan's table of variables on servers."""
    program = job.pserver(endpoint).main.main_block.vars
    places: dict[str, Place] = {}
    for row in job.distributed_vars:
        if row.endpoint == endpoint:
            name = slice_name(row.slice, row.block_id)  # of the state of one of several slices there
            name = name if row.is_slice and row.vtype == "Optimizer" and name in program else row.slice
            places[name] = (row.origin, row.offset if row.is_slice else 0)
    return places


def _cut_with_parameters(job: Compiled, program: Program) -> dict[str, Place]:
    """Server variable -> (origin, offset) for all that is cut as the parameter that its block updates."""
    source, here = declared_variables(job.source, job.rewritten), program.main_block.vars
    slices = {s.gradient: (p, s) for p in job.plan.parameters if p.is_cut for s in p.slices}
    places: dict[str, Place] = {}
    for op in program.main_block.ops:
        for pair in _strings(op.attrs.get("grad_to_block_id")):
            gradient, _, block = pair.rpartition(":")
            if gradient in slices:
                parameter, s = slices[gradient]
                named = {n for o in program.blocks[int(block)].ops for n in o.names}
                places.update(_cut_like(parameter, s, named, source, here))
    return places


def _cut_like(
    parameter: PlannedParameter, s: Slice, named: set[str], source: Mapping[str, Var], here: Mapping[str, Var]
) -> Iterator[tuple[str, Place]]:
    suffix = slice_name("", s.number)
    for name in named:
        if name not in here:
            continue
        numbered = name.endswith(suffix) and name not in source
        origin = name.removesuffix(suffix) if numbered else name
        var = source.get(origin)
        if var is None or origin == parameter.name:
            continue
        if var.shape == parameter.shape and here[name].shape == s.shape:
            yield name, (origin, s.offset)
        elif numbered and here[name].shape == var.shape:
            yield name, (origin, 0)  # every slice there has a whole copy of its own


# All machines


def _put_together(
    held: Iterable[_MachineVar], module: Module, rewritten: Module | None = None
) -> dict[str, VariableLayout]:
    """The whole variables by name, in the order of names. Those that the module does not have or keep, such as what a
    mode has added in rewriting it, are optional.
    """
    source, declared = sources_of(module), declared_variables(module, rewritten)
    startup = module.programs.get(STARTUP)
    by_origin: dict[str, list[_MachineVar]] = {}
    for one in held:
        by_origin.setdefault(one.origin, []).append(one)
    result = {
        name: _place_variable(name, by_origin[name], declared.get(name), _is_optional(source.get(name)))
        for name in sorted(by_origin)
    }
    for name, placed in result.items():
        started = startup.main_block.vars.get(name) if startup is not None else None
        shape = started.shape if started is not None else ()
        if not shape or shape == placed.shape or placed.table:
            shape = placed.startup_shape
        place = source[name].location if name in source else None
        result[name] = placed._replace(startup_shape=shape, declaration=place)
    return result


def _is_optional(declared: Var | None) -> bool:
    """Whether a variable need not have a value, as the source does not declare or keep it."""
    return declared is None or not declared.persistable


def _place_variable(name: str, held: list[_MachineVar], declared: Var | None, optional: bool) -> VariableLayout:
    dtype, shape, _ = _type(declared) if declared is not None and declared.tensor is not None else held[0].whole_type
    parts = tuple(one.part for one in held)
    if any(one.table for one in held):
        return VariableLayout(name, dtype, shape, parts, (), True, optional)
    servers = tuple(part for part in parts if part.machine.startswith("pserver"))
    if len({one.whole_type for one in held}) > 1 and declared is None:
        return VariableLayout(name, dtype, (), (), parts, optional=True)
    chosen = _cover(servers, shape) or _cover(parts, shape)
    if chosen is None:
        ranges = ", ".join(f"{p.offset} to {p.offset + prod(p.shape)} on {p.machine}" for p in parts)
        message = f"the parts of {name} do not make up its {prod(shape)} elements: {ranges}"
        raise DiagnosticError([error("checkpoint-place", message)])
    return VariableLayout(name, dtype, shape, chosen, tuple(p for p in parts if p not in chosen), optional=optional)


def _cover(parts: Iterable[VariablePart], shape: tuple[int, ...]) -> tuple[VariablePart, ...] | None:
    """Selects parts that together are the whole variable, in order; None if they can't be. Of equal parts, the first
    machine's is selected.
    """
    waiting = sorted(parts, key=lambda part: part.offset)  # stable: in the order of machines where offsets are equal
    chosen: list[VariablePart] = []
    at = 0
    for part in waiting:
        if part.shape == shape and not chosen:
            return (part,)
        if part.offset == at and 0 < prod(part.shape) <= prod(shape) - at:
            chosen.append(part)
            at += prod(part.shape)
    return tuple(chosen) if chosen and at == prod(shape) else None
