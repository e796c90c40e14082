"""Makes a Plan from facts and a job: slices, placement, names."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from pstranspile.compiler.analysis import Facts
from pstranspile.compiler.analysis.tables import LookupTable, is_sparse
from pstranspile.compiler.analysis.updates import Update, follows_parameter
from pstranspile.compiler.cost.balance import Item, Lookups, Moved, NoRoom, balance_items, lookups_of, moved_by
from pstranspile.compiler.cost.counts import IdCounts, read_counts
from pstranspile.compiler.job import COST, Job
from pstranspile.compiler.plan.plan import (
    CONTROL,
    DistributedVar,
    NameMint,
    Plan,
    PlannedParameter,
    PlannedTable,
    RowRange,
    SharedCounter,
    Slice,
    cut_rows,
    row_width,
    slice_name,
    slice_shape,
    trainer_suffix,
)
from pstranspile.ir.argument_checks import check_arguments, expect
from pstranspile.ir.attributes import Bools, Floats, Ints, Long, Longs
from pstranspile.ir.diagnostics import (
    Diagnostic,
    DiagnosticError,
    Severity,
    at_op,
    did_you_mean,
    error,
    quantity,
    raise_errors,
)
from pstranspile.ir.model import MAIN, STARTUP, FrozenMap, Location, Module, Op, Program, TensorType, Var
from pstranspile.ir.passes import Steps
from pstranspile.ir.table_rules import takes_any_id
from pstranspile.ops import facts_of, schema_of
from pstranspile.ops.attributes import ints_attr
from pstranspile.ops.schema import Slicing

# The choice of the server that each slice goes to.


class Placeable(NamedTuple):
    """A slice as dispatchers see it: its name and shape."""

    name: str
    shape: tuple[int, ...]


@check_arguments
class Dispatcher:
    """The base class of every dispatcher, like Fluid's PSDispatcher. It is constructed with the servers' endpoints."""

    def __init__(self, pserver_endpoints: Sequence[str]):
        self.endpoints = tuple(pserver_endpoints)
        """The servers of the job, in order."""
        self._eps, self._step = list(pserver_endpoints), 0  # attributes that subclasses in Fluid's scripts use

    def __repr__(self) -> str:
        """`<RoundRobin of 2 servers>`."""
        return f"<{type(self).__name__} of {quantity(len(self.endpoints), 'server')}>"

    @property
    def eps(self) -> list[str]:
        """Fluid's name for `endpoints`."""
        return self._eps

    def reset(self) -> None:
        """Starts again with the first server."""
        self._step = 0

    def dispatch(self, varlist: Sequence[Placeable]) -> Sequence[str]:
        """One endpoint for each slice, in order. Called once for each parameter; to be overridden."""
        raise NotImplementedError(f"{type(self).__name__} has no method dispatch")


class RoundRobin(Dispatcher):
    """Assigns slices to servers in turn; the turn continues from call to call."""

    def dispatch(self, varlist: Sequence[Placeable]) -> Sequence[str]:
        """The next endpoints in turn, one for each slice."""
        first = self._step
        self._step += len(varlist)
        return [self.endpoints[i % len(self.endpoints)] for i in range(first, self._step)]


def hash_bytes(name: str) -> bytes:
    """The bytes of a name that HashName hashes; names of ProgramDescs may contain invalid UTF-8."""
    return name.encode("utf-8", "surrogatepass")


class HashName(Dispatcher):
    """Server index = crc32 of the slice's name modulo the number of servers.

    Fluid's own HashName does not run; this hash is the same on every machine and in every process.
    """

    def dispatch(self, varlist: Sequence[Placeable]) -> Sequence[str]:
        """The endpoint that each slice's name hashes to."""
        return [self.endpoints[zlib.crc32(hash_bytes(v.name)) % len(self.endpoints)] for v in varlist]


BUILT_IN: dict[str, type[Dispatcher]] = {"RoundRobin": RoundRobin, "HashName": HashName}


def make_dispatcher(split_method: str, endpoints: Sequence[str]) -> Dispatcher:
    """The dispatcher called `RoundRobin`, `HashName`, or `module:Class` for one of the user's own.

    Raises DiagnosticError when the user's class can't be imported or made, or is no subclass of Dispatcher.
    """
    if split_method in BUILT_IN:
        return BUILT_IN[split_method](endpoints)
    module, _, name = split_method.partition(":")
    try:
        result: object = getattr(importlib.import_module(module), name)
        if not (isinstance(result, type) and issubclass(result, Dispatcher)):
            raise TypeError("it is no subclass of pstranspile.Dispatcher")
        return result(list(endpoints))
    except (Exception, SystemExit) as reason:  # the user's module may raise anything at import or construction
        message = f"split_method {split_method!r}: {type(reason).__name__}: {reason}"
        raise DiagnosticError([error("dispatcher", message)]) from reason


def dispatch(dispatcher: Dispatcher, slices: Sequence[Placeable], endpoints: Sequence[str]) -> tuple[str, ...]:
    """Calls the dispatcher and checks its answer. Raises DiagnosticError unless it is one known endpoint per slice."""
    try:
        answer = tuple(dispatcher.dispatch(slices))
    except (Exception, SystemExit) as reason:  # raised by the user's code
        message = f"the dispatcher failed on %{slices[0].name}: {type(reason).__name__}: {reason}"
        raise DiagnosticError([error("dispatcher", message)]) from reason
    if len(answer) != len(slices):
        message = f"the dispatcher gave {len(answer)} endpoints for {len(slices)} slices of %{slices[0].name}"
        raise DiagnosticError([error("dispatcher", message)])
    for name, endpoint in zip((s.name for s in slices), answer, strict=True):
        if endpoint not in endpoints:
            message = f"the dispatcher gave {endpoint!r} for %{name}, which is not a server of the job"
            raise DiagnosticError([error("dispatcher", message)])
    return answer


# Start-up ops that can initialise a slice of their output.

Listed = Floats | Ints | Longs | Bools

_TABLE = "large_table_state"
"""The op that makes an optimizer's state for each row of a table, which is cut like the table."""
_VALUES = ("fp32_values", "int32_values", "int64_values", "bool_values")


def can_slice(op: Op) -> bool:
    """Whether `slice_initialiser` can make this start-up op initialise a part of its output."""
    if op.type == "load":
        return "seek" in op.attrs
    if op.type == _TABLE:
        return True
    return (op.type == "assign_value" or facts_of(op.type).part_by_shape) and not any(op.input_names)


def slice_initialiser(op: Op, shape: tuple[int, ...], offset: int) -> Op:
    """The op that makes `prod(shape)` elements from element `offset` on, in place of the whole variable.

    Generators and constants take the slice's shape; `assign_value` takes the slice's values (Fluid keeps the whole
    array); `load` reads from `offset` on. Raises ValueError for an op that `can_slice` refuses.
    """
    if not can_slice(op):
        raise ValueError(f"{op.type} can't make a slice")
    attrs = {**op.attrs, "shape": _like(op.attrs.get("shape"), shape)}
    if op.type == "large_table" and takes_any_id(ints_attr(op, "shape")):
        attrs["any_id"] = True
    if op.type == "assign_value":
        for name in _VALUES:
            values = op.attrs.get(name)
            if isinstance(values, Floats | Ints | Longs | Bools) and values:
                attrs[name] = _part(values, offset, offset + prod(shape))
    elif op.type == "load":
        attrs["seek"] = Long(offset)
    return op._replace(attrs=FrozenMap(attrs))


def _part(values: Listed, start: int, stop: int) -> Listed:
    if isinstance(values, Floats):
        return Floats(values[start:stop])
    if isinstance(values, Bools):
        return Bools(values[start:stop])
    return type(values)(values[start:stop])


def _like(value: object, shape: tuple[int, ...]) -> Ints | Longs:
    return Ints(shape) if isinstance(value, Ints) else Longs(shape)


# Names that have a meaning of their own on servers, by which Fluid's server loop finds them at run time.

TRAINER_ID = "@TRAINER_ID@"
"""The variable in which a server finds the number of the trainer whose gradient it applies."""

TABLE_PATH = "kLookupTablePath"
"""The variable that carries the path for a server's part of the distributed lookup table."""


def backup_name(s: Slice, trainer: int) -> str:
    """The name of the copy of a slice that a server keeps for a trainer, and refreshes when that trainer fetches it."""
    return f"{s.name}{trainer_suffix(trainer)}_bak"


def reserved_names(program: Program, startup: Program, plan: Plan) -> list[Diagnostic]:
    """Errors for variables of a program that have one of these reserved names.

    Names of slices avoid those of the main programs; a server's start-up program has further variables from `startup`.
    """
    taken: dict[str, str] = {}
    if plan.table is not None:
        taken[TABLE_PATH] = "the path to save the distributed lookup table to"
    if plan.dc_asgd:
        taken[TRAINER_ID] = "the trainer whose gradient is applied"
        for parameter in plan.parameters:
            for s in () if parameter.sparse else parameter.slices:
                for trainer in range(plan.trainers):
                    taken[backup_name(s, trainer)] = f"%{s.name} as trainer {trainer} saw it last"
    named = [(name, var) for name, var in program.main_block.vars.items() if name in taken] if taken else []
    cut = {s.name: f"a slice of %{p.name}" for p in plan.parameters if p.is_cut for s in p.slices}
    taken.update(cut)
    named += [(name, var) for name, var in startup.main_block.vars.items() if name in cut]
    findings: list[Diagnostic] = []
    for name, var in named:
        message = f"%{name} must have another name: servers keep there {taken[name]}"
        findings.append(error("reserved-name", message, var.location, focus=f"%{name}"))
    return findings


# One training program's share of a plan that several programs are compiled for.


def share_of(plan: Plan, facts: Facts, counters: Sequence[SharedCounter]) -> Plan:
    """The plan restricted to the parameters that one program updates, under the names of this program's gradients.

    It is the whole plan if the program updates all of them.
    """
    gradient_names = {update.parameter: update.gradient for update in facts.updates}
    if len(gradient_names) == len(plan.parameters) and all(
        gradient_names[p.name] == p.gradient for p in plan.parameters
    ):
        return replace(plan, groups=facts.groups, counters=tuple(counters))
    mint = NameMint(facts.program.main_block.vars)
    suffixes = [trainer_suffix(i) for i in range(plan.trainers)] if plan.per_trainer else []
    kept = [i for i, parameter in enumerate(plan.parameters) if parameter.name in gradient_names]
    place = {index: number for number, index in enumerate(kept)}
    return replace(
        plan,
        parameters=tuple(_with_gradient(plan.parameters[i], gradient_names, mint, suffixes) for i in kept),
        send_order=tuple(place[i] for i in plan.send_order if i in place),
        groups=facts.groups,
        counters=tuple(counters),
        table=plan.table if facts.lookup_table is not None else None,
    )


def _with_gradient(
    parameter: PlannedParameter, own: dict[str, str], mint: NameMint, suffixes: Sequence[str]
) -> PlannedParameter:
    """The parameter from the point of view of a program whose gradient for it has its own name."""
    gradient = own[parameter.name]
    if gradient == parameter.gradient:
        return parameter
    slices = [
        s._replace(
            gradient=mint.mint_family(slice_name(gradient, s.number), suffixes) if parameter.is_cut else gradient
        )
        for s in parameter.slices
    ]
    return parameter._replace(gradient=gradient, slices=tuple(slices), send_control=mint.mint(CONTROL + parameter.name))


# Planning the distributed lookup table: its names and its room on each server.


def plan_table(facts: Facts, job: Job, table: LookupTable, mint: NameMint) -> PlannedTable:
    """Names and sizes for the distributed lookup table. Raises DiagnosticError if its shape is not static."""
    ops, variables = facts.program.main_block.ops, facts.program.main_block.vars
    optimizer, first = ops[table.update.optimizer[0]], ops[table.lookups[0]]
    var = variables.get(table.parameter)
    if var is None or var.tensor is None or len(var.shape) != 2 or min(var.shape) < 0:
        message = f"%{table.parameter} has no static shape [rows, width]"
        raise DiagnosticError([at_op("parameter-shape", message, optimizer, focus=f"%{table.parameter}")])
    rate = optimizer.input("LearningRate")
    if rate is None:
        message = f"the distributed lookup table %{table.parameter} is updated by sgd, and {optimizer.type} has no rate"
        raise DiagnosticError([at_op("table-update", message, optimizer, focus=f"%{table.parameter}")])
    ids, rows = variables[first.inputs["Ids"][0]].tensor, variables[first.outputs["Out"][0]].tensor
    if ids is None or rows is None:
        wrong = first.inputs["Ids"][0] if ids is None else first.outputs["Out"][0]
        message = f"%{wrong} must be declared with an element type and dims to be looked up on servers"
        raise DiagnosticError([at_op("parameter-shape", message, first, focus=f"%{wrong}")])
    servers = range(len(job.pservers))
    suffixes = [f"{who}.pserver_{s}" for who in ("", *map(trainer_suffix, range(job.trainers))) for s in servers]
    return PlannedTable(
        name=table.parameter,
        gradient=table.gradient,
        sent_gradient=mint.extend(table.gradient, suffixes),
        tensor=var.tensor,
        rows_per_server=-(-var.shape[0] // len(job.pservers)),
        learning_rate=rate,
        ids_sent=tuple(mint.mint(f"prefetch_compress_in_tmp_{s}") for s in servers),
        rows_got=tuple(mint.mint(f"prefetch_compress_out_tmp_{s}") for s in servers),
        ids=ids._replace(lod_level=0),
        rows=rows._replace(lod_level=0),
        path=TABLE_PATH,
        send_control=mint.mint(CONTROL + table.parameter),
        updated_by=optimizer.origin,
        looked_up_by=first.origin,
    )


class Piece(NamedTuple):
    """A parameter with its cuts, before names and servers; `sparse` and `prefetched` as in PlannedParameter.

    `divisible`: no op needs the whole of it, so that other cuts may be chosen.
    """

    update: Update
    tensor: TensorType
    cuts: tuple[RowRange, ...]
    sparse: bool = False
    prefetched: bool = False
    divisible: bool = True


@check_arguments
def make_plan(
    facts: Facts, startup: Program | None, job: Job, *, per_trainer: bool, steps: Steps | None = None
) -> tuple[Plan, list[Diagnostic]]:
    """The plan of a job for one training program, with warnings.

    Raises DiagnosticError when a parameter can't be placed. `per_trainer` as in `plan_pieces`.
    """
    expect(facts, Facts, "make_plan", "Facts")
    expect(job, Job, "make_plan")
    steps = steps or Steps()
    pieces, findings = steps.run("slice-variables", slice_variables, facts, startup, job)
    raise_errors(findings)
    programs = {MAIN: facts.program, **({} if startup is None else {STARTUP: startup})}
    plan = plan_pieces(facts, job, pieces, per_trainer, steps)
    return replace(plan, made_for=Module(FrozenMap(programs))), [*findings, *norm_warnings(facts, plan)]


def plan_pieces(facts: Facts, job: Job, pieces: Sequence[Piece], per_trainer: bool, steps: Steps | None = None) -> Plan:
    """The plan of a job whose parameters are cut into these pieces. Raises DiagnosticError.

    `per_trainer`: every trainer sends its gradients under names of its own (the mode says so).
    """
    steps = steps or Steps()
    order = steps.run("order-sends", send_order, len(pieces), facts.program.random_seed, job.slice_var_up)
    pieces, placed = steps.run("place-slices", place, facts, job, pieces, order)
    return steps.run("mint-names", assemble, facts, job, pieces, order, placed, per_trainer)


def slice_variables(facts: Facts, startup: Program | None, job: Job) -> tuple[list[Piece], list[Diagnostic]]:
    """Cuts every distributed parameter, unless its update, its group or its initialiser needs it whole."""
    findings: list[Diagnostic] = []
    pieces: list[Piece] = []
    grouped = {name for group in facts.groups for name in group.parameters}
    unsliceable = _initialisers_that_need_the_whole(startup)
    table = facts.lookup_table.parameter if facts.lookup_table else None
    if table in unsliceable:
        message = f"%{table} is dealt out to the servers: {unsliceable[table].type} can't make a part of it"
        findings.append(at_op("whole-initialiser", message, unsliceable[table]))
    servers = len(job.pservers) if job.slice_var_up else 1
    prefetched = {table.parameter for table in facts.tables}
    variables = facts.program.main_block.vars
    for update in facts.updates:
        tensor, problem = _tensor_of(facts, update, variables.get(update.parameter))
        if problem:
            findings.append(problem)
        if tensor is None:
            continue
        cuts = cut_rows(tensor.shape, servers, job.min_block_size)
        name = next((name for name in _cut_with(facts, update, tensor) if name in unsliceable), None)
        if name is not None and not update.uncut_reason:
            initialiser = unsliceable[name]
            sliced = "it" if name == update.parameter else f"%{name}"
            update = update._replace(uncut_reason=f"{initialiser.type} can't make a slice of {sliced}")
            if len(cuts) > 1:
                message = f"%{update.parameter} is kept whole: {update.uncut_reason}"
                findings.append(at_op("whole-initialiser", message, initialiser, severity=Severity.WARNING))
        if len(cuts) > 1 and (update.uncut_reason or update.parameter in grouped):
            cuts = (RowRange(0, tensor.shape[0]),)
        sparse = is_sparse(facts.program, update.gradient)
        if len(cuts) > 1 and not sparse and max(cut.stop - cut.start for cut in cuts) > _MOST_ROWS:
            focus, rows = f"%{update.parameter}", cuts[0].stop - cuts[0].start
            message = f"{focus} is cut into parts of {rows} rows; a part has at most {_MOST_ROWS}"
            op = facts.program.main_block.ops[update.optimizer[0]]
            findings.append(at_op("parameter-shape", message, op, focus=focus))
        divisible = job.slice_var_up and not update.uncut_reason and update.parameter not in grouped
        pieces.append(Piece(update, tensor, cuts, sparse, update.parameter in prefetched, divisible))
    return pieces, findings


_MOST_ROWS = (1 << 31) - 1
"""The most rows of a part: `split_byref`, which cuts gradients, counts them in 32 bits."""


def _cut_with(facts: Facts, update: Update, tensor: TensorType) -> Iterator[str]:
    """Yields a parameter, and the variables that are cut like it."""
    yield update.parameter
    variables = facts.program.main_block.vars
    for op in (facts.program.main_block.ops[index] for index in update.ops):
        schema = schema_of(op.type)
        for slot, names in (*op.inputs.items(), *op.outputs.items()):
            if follows_parameter(schema, slot):
                yield from (name for name in names if name in variables and variables[name].shape == tensor.shape)


def _tensor_of(facts: Facts, update: Update, var: Var | None) -> tuple[TensorType | None, Diagnostic | None]:
    """The static type of a parameter, or an error why it can't be distributed."""
    op = facts.program.main_block.ops[update.optimizer[0]]
    focus = f"%{update.parameter}"
    if var is None or var.tensor is None or min(var.shape, default=-1) < 0:
        shown = "no declaration" if var is None else "no static shape"
        return None, at_op("parameter-shape", f"%{update.parameter} has {shown}", op, focus=focus)
    return var.tensor, None


def norm_warnings(facts: Facts, plan: Plan) -> list[Diagnostic]:
    """Warnings for optimizers of parameters that a plan cuts, if they read a norm over the whole parameter."""
    findings: list[Diagnostic] = []
    cut = {parameter.name for parameter in plan.parameters if parameter.is_cut}
    for update in facts.updates:
        for op in (facts.program.main_block.ops[index] for index in update.optimizer if update.parameter in cut):
            schema = schema_of(op.type)
            if schema is not None and schema.whole_norm:
                message = f"%{update.parameter} is cut, and each server will use the norm of its own slice"
                findings.append(at_op("sliced-norm", message, op, severity=Severity.WARNING))
    return findings


def _initialisers_that_need_the_whole(startup: Program | None) -> dict[str, Op]:
    """Variables that an op of the start-up program writes and can't make a slice of, each with that op."""
    if startup is None:
        return {}
    result: dict[str, Op] = {}
    for op in startup.main_block.ops:
        if not can_slice(op):
            result.update((name, op) for name in op.output_names)
    return result


def send_order(count: int, random_seed: int, slice_var_up: bool) -> tuple[int, ...]:
    """The order in which gradients are assigned to servers: parameter order, shuffled when nothing is sliced.

    Fluid shuffles with numpy's legacy generator, seeded with the program's random seed; ours is a generator of its own,
    so the caller's global state is left alone. Raises DiagnosticError for a seed that it does not take.
    """
    order = list(range(count))
    if not slice_var_up and count > 1:
        if not 0 <= random_seed < 1 << 32:
            message = f"the program's random seed is {random_seed}; with slice_var_up=false it must be 0 to {2**32 - 1}"
            raise DiagnosticError([error("shuffle-seed", message)])
        import numpy as np  # imported here, as few jobs need it

        np.random.RandomState(random_seed).shuffle(order)
    return tuple(order)


Placed = tuple[Sequence[Piece], dict[int, tuple[str, ...]]]
"""The pieces of a plan, and for the index of each the endpoint of each of its slices."""


def place(facts: Facts, job: Job, pieces: Sequence[Piece], order: Sequence[int]) -> Placed:
    """The pieces with an endpoint for each of their slices; other pieces if the job has them cut by cost.

    A dispatcher is asked once per parameter, in send order, so a gradient is always on its parameter's server. A group
    goes where its first member goes. Raises DiagnosticError.
    """
    if job.split_method == COST:
        return place_by_cost(facts, job, pieces)
    dispatcher = make_dispatcher(job.split_method, job.pservers)
    group_of = {name: number for number, group in enumerate(facts.groups) for name in group.parameters}
    settled: dict[int, str] = {}
    placed: dict[int, tuple[str, ...]] = {}
    for index in order:
        name, shape = pieces[index].update.parameter, pieces[index].tensor.shape
        cuts = pieces[index].cuts
        asked = [
            Placeable(slice_name(name, k) if len(cuts) > 1 else name, slice_shape(shape, *cut))
            for k, cut in enumerate(cuts)
        ]
        endpoints = dispatch(dispatcher, asked, job.pservers)
        group = group_of.get(name)
        if group is not None:
            endpoints = (settled.setdefault(group, endpoints[0]),)
        placed[index] = endpoints
    return pieces, placed


# Placement by cost.


def place_by_cost(facts: Facts, job: Job, pieces: Sequence[Piece]) -> Placed:
    """Pieces cut and placed so that the busiest server moves as few bytes in a step as can be.

    Raises DiagnosticError: `id-counts` for a file of counts that can't be used, `plan-memory` if the parameters are
    more than the servers have memory for.
    """
    counts = _counts_of(facts.program, job, pieces)
    group_of = {name: number for number, group in enumerate(facts.groups) for name in group.parameters}
    together: dict[int, list[int]] = {}
    for index, piece in enumerate(pieces):
        together.setdefault(group_of.get(piece.update.parameter, -1 - index), []).append(index)
    members = list(together.values())
    added_up = job.runtime_split_send_recv or job.mode == "geo"
    lookups = lookups_of(facts.program, job.batch_rows, added_up=added_up)
    items = [
        _combine_items([_item(facts, job, pieces[index], lookups, counts) for index in indices]) for indices in members
    ]
    memory = job.server_memory * (1 << 20) if job.server_memory else float("inf")
    try:
        parts = balance_items(items, len(job.pservers), memory)
    except NoRoom as problem:
        index = members[next(number for number, item in enumerate(items) if item.name == problem.name)][0]
        op = facts.program.main_block.ops[pieces[index].update.optimizer[0]]
        message = (
            f"{problem.memory / (1 << 20):.1f} MiB of %{problem.name} and its updates find no room on "
            f"{quantity(len(job.pservers), 'server')} with server_memory {job.server_memory} MiB"
        )
        raise DiagnosticError([at_op("plan-memory", message, op, focus=f"%{problem.name}")]) from None
    result, placed = list(pieces), dict[int, tuple[str, ...]]()
    for indices, cut in zip(members, parts, strict=True):
        for index in indices:
            if len(cut) > 1:
                result[index] = pieces[index]._replace(cuts=tuple(RowRange(part.start, part.stop) for part in cut))
            else:
                rows = pieces[index].tensor.shape[0] if pieces[index].tensor.shape else 1
                result[index] = pieces[index]._replace(cuts=(RowRange(0, rows),))
            placed[index] = tuple(job.pservers[part.server] for part in cut)
    return result, placed


def _counts_of(program: Program, job: Job, pieces: Sequence[Piece]) -> IdCounts | None:
    """The counts of a job's ids, if it names a file of them. Raises DiagnosticError if they are of other tables, or
    some name is none of the program's: tables that the program reads alone may be counted too.
    """
    if not job.id_counts:
        return None
    counts = read_counts(job.id_counts)
    rows = {piece.update.parameter: piece.tensor.shape[0] for piece in pieces if piece.tensor.shape}
    looked_up = {name for op in program.main_block.ops for name in op.inputs.get(facts_of(op.type).looks_up, ())}
    looked_up |= {piece.update.parameter for piece in pieces if piece.sparse}
    where = Location(job.id_counts)
    if rows.keys().isdisjoint(counts.tables):
        named = ", ".join(sorted(counts.tables)[:3]) or "no table"
        hint = did_you_mean(named, rows) if len(counts.tables) == 1 else ""
        message = f"it counts ids of {named}, which the program does not update{hint}"
        raise DiagnosticError([error("id-counts", message, where)])
    for name, table in counts.tables.items():
        if program.find_var(name) is None:
            message = f"it counts ids of {name}, and the program has no such variable{did_you_mean(name, rows)}"
            raise DiagnosticError([error("id-counts", message, where)])
        if name not in looked_up:
            message = f"it counts ids of {name}, in which no op of the program looks rows up"
            raise DiagnosticError([error("id-counts", message, where)])
        end = table.ranges[-1].stop if table.ranges else 0
        if end > rows.get(name, end):
            message = f"it counts ids of {name} up to {end - 1}, and the table has {quantity(rows[name], 'row')}"
            raise DiagnosticError([error("id-counts", message, where)])
    return counts


def _item(facts: Facts, job: Job, piece: Piece, lookups: Mapping[str, Lookups], counts: IdCounts | None) -> Item:
    """A parameter as an item of the placement by cost. A server stores its rows, the optimizer's states of them, and
    dense gradients: one of each trainer, and the merged one.
    """
    name, tensor = piece.update.parameter, piece.tensor
    row = row_width(tensor.shape) * tensor.dtype.size
    copies = 1 + sum(follows for _, follows in optimizer_states(facts.program, piece.update))
    copies += 0 if piece.sparse else job.trainers + 1
    moved = moved_by(
        name,
        tensor,
        sparse=piece.sparse,
        prefetched=piece.prefetched,
        batch_rows=job.batch_rows,
        lookups=lookups,
        counts=counts,
    )
    least = max(1, -(-job.min_block_size // max(1, row_width(tensor.shape))))
    return Item(name, moved, row * copies, piece.divisible and moved.rows >= 2 * least, least)


def _combine_items(items: Sequence[Item]) -> Item:
    """One item for parameters that must be on one server."""
    if len(items) == 1:
        return items[0]
    moved = Moved(1, sum(item.moved.total for item in items))
    return Item(items[0].name, moved, sum(item.memory for item in items), False)


def assemble(
    facts: Facts,
    job: Job,
    pieces: Sequence[Piece],
    order: tuple[int, ...],
    placed: dict[int, tuple[str, ...]],
    per_trainer: bool,
) -> Plan:
    """Generates the names and assembles the plan."""
    program = facts.program
    inner = (name for block in program.blocks[1:] for name in block.vars)
    mint = NameMint(inner, program.main_block.vars)
    suffixes = [trainer_suffix(i) for i in range(job.trainers)] if per_trainer else []
    parameters = tuple(_parameter(mint, piece, placed[i], suffixes) for i, piece in enumerate(pieces))
    table = plan_table(facts, job, facts.lookup_table, mint) if facts.lookup_table else None
    return Plan(
        mode=job.mode,
        pservers=job.pservers,
        trainers=job.trainers,
        parameters=parameters,
        send_order=order,
        groups=facts.groups,
        per_trainer=per_trainer,
        barrier_control=mint.mint(f"{CONTROL}send_barrier"),
        startup_control=mint.mint(f"{CONTROL}fetch_barrier"),
        table=table,
    )


def _parameter(mint: NameMint, piece: Piece, endpoints: tuple[str, ...], suffixes: Sequence[str]) -> PlannedParameter:
    update, tensor, cuts = piece.update, piece.tensor, piece.cuts
    slices: list[Slice] = []
    width = row_width(tensor.shape)
    for index, (cut, endpoint) in enumerate(zip(cuts, endpoints, strict=True)):
        name, gradient = update.parameter, update.gradient
        if len(cuts) > 1:
            name = mint.mint(slice_name(name, index))
            gradient = mint.mint_family(slice_name(gradient, index), suffixes)
        else:
            gradient = mint.extend(gradient, suffixes)
        shape = slice_shape(tensor.shape, *cut)
        slices.append(Slice(index, *cut, shape, cut.start * width, name, gradient, endpoint))
    control = mint.mint(CONTROL + update.parameter)
    return PlannedParameter(
        update.parameter,
        update.gradient,
        tensor.dtype,
        tensor.shape,
        tensor.lod_level,
        tuple(slices),
        control,
        piece.sparse,
        piece.prefetched,
    )


def placed_parameters(plan: Plan) -> list[DistributedVar]:
    """The parameters on the servers, slice by slice, in parameter order."""
    rows: list[DistributedVar] = []
    for p in plan.parameters:
        kind = "RemotePrefetch" if p.prefetched else "Param"
        for s in p.slices:
            index, offset = (s.number, s.offset) if p.is_cut else (0, 0)
            rows.append(DistributedVar(p.name, p.shape, s.name, s.shape, p.is_cut, index, offset, s.endpoint, kind))
    return rows


def overview(plan: Plan, parts: Sequence[Facts]) -> tuple[DistributedVar, ...]:
    """Every variable on the servers: parameters in order, then per server the state of their optimizers.

    `parts` are the facts of the job's training programs.
    """
    states: dict[str, list[DistributedVar]] = {endpoint: [] for endpoint in plan.pservers}
    for facts in parts:
        for update in facts.updates:
            p, state = plan.by_name[update.parameter], optimizer_states(facts.program, update)
            for s in p.slices:
                for var, follows in state:
                    cut = s.shape, True, s.number, s.offset
                    dims = cut if follows and p.is_cut else (var.shape, False, 0, 0)
                    row = DistributedVar(var.name, var.shape, var.name, *dims, s.endpoint, "Optimizer")
                    states[s.endpoint].append(row)
    return (*placed_parameters(plan), *(row for rows in states.values() for row in rows))


def optimizer_states(program: Program, update: Update) -> list[tuple[Var, bool]]:
    """The state variables of a parameter's optimizers, and whether each is cut like the parameter."""
    variables: dict[str, tuple[Var, bool]] = {}
    for index in update.optimizer:
        op = program.main_block.ops[index]
        schema = schema_of(op.type)
        parameter = program.main_block.vars[update.parameter]
        for slot in sorted(op.inputs):
            name = op.input(slot)
            if schema is None or name is None or slot in NOT_STATE:
                continue
            var = program.main_block.vars[name]
            follows = schema.slicing.get(slot) is Slicing.FOLLOWS and var.shape == parameter.shape
            variables.setdefault(name, (var, follows))
    return list(variables.values())


NOT_STATE = frozenset({"Param", "Grad", "LearningRate", "Beta1Tensor", "Beta2Tensor"})
"""The slots of optimizers that have no state of their own."""
