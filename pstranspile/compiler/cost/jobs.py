"""The cost of a job in a step: what each server moves and stores, the work and memory of each machine, and all of this
for other plans, several numbers of machines, and other settings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from pstranspile.compiler.compile import Compiled, prepare
from pstranspile.compiler.cost.balance import ID, Lookups, Moved, lookups_of, moved_by
from pstranspile.compiler.cost.counts import IdCounts, read_counts
from pstranspile.compiler.cost.profile import (
    Link,
    Profile,
    Profiles,
    parse_crash,
    parse_link,
    read_profiles,
    with_tls,
)
from pstranspile.compiler.cost.seconds import (
    Exchange,
    Flow,
    JobSeconds,
    Work,
    flows_of,
    format_seconds,
    job_seconds,
    places_of,
    seconds_json,
    seconds_lines,
    seconds_rows,
)
from pstranspile.compiler.cost.steps import StepCost, step_cost
from pstranspile.compiler.job import COST, DEFAULTS, MAX_MACHINES, Job, local_endpoints
from pstranspile.compiler.job.modes import settings_of
from pstranspile.compiler.modes.local_sgd import SNAPSHOT
from pstranspile.compiler.plan.plan import Plan, PlannedParameter, Slice, row_width
from pstranspile.ir.argument_checks import check_arguments, expect, expect_module, expect_number
from pstranspile.ir.diagnostics import DiagnosticError, cluster_of, quantity, shell_line
from pstranspile.ir.model import EMPTY, FrozenMap, Module, Op, Program, TensorType, Var
from pstranspile.ir.types import DType
from pstranspile.ops import facts_of
from pstranspile.ops.attributes import int_attr, strings_attr
from pstranspile.ops.work import bytes_of

if TYPE_CHECKING:
    from pstranspile.compiler.plan.plan_file import PlanFile


class ServerCost(NamedTuple):
    """The slices of a server, the bytes of parameters that it stores, and those that it moves in a step with all
    trainers together.
    """

    endpoint: str
    slices: int
    held: int
    moved: float


class MachineCost(NamedTuple):
    """The cost of a step on a machine, or on each of `alike` machines.

    `operations` are floating-point operations, `touched` the bytes that ops read and write, `moved` those that go to
    other machines and come from them, in so many `messages` (in modes without servers, on average). `held` are the
    bytes of variables that outlive a step (parameters, and states of optimizers), `peak` the most bytes of other values
    at one time, with those of messages on their way.
    """

    machine: str
    alike: int
    operations: float
    touched: float
    moved: float
    messages: float
    held: int
    peak: int


@check_arguments
@dataclass(frozen=True)
class PlanCost:
    """The cost of a plan for trainers whose batch has `batch_rows` rows, as `str` shows it.

    `counted_ids`: the job names counts of its ids; otherwise all rows of a table are assumed to be equally frequent.
    `servers` is empty in modes without servers. `machines` has the trainers, which are alike, as one, then the servers.
    `seconds` says how long a step takes, if profiles of the machines were given. `work` is what it is reckoned from.
    """

    plan: Plan
    batch_rows: int
    counted_ids: bool
    servers: tuple[ServerCost, ...]
    machines: tuple[MachineCost, ...] = ()
    loops: int = 0
    seconds: JobSeconds | None = None
    work: Work | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        """`<PlanCost of <Plan ...>: the busiest server moves 1.02 of the mean>`."""
        if not self.servers:
            return f"<PlanCost of {self.plan!r}>"
        return f"<PlanCost of {self.plan!r}: the busiest server moves {self.of_mean(self.busiest):.2f} of the mean>"

    def __str__(self) -> str:
        """The tables that `pstranspile plan --cost` prints."""
        return cost_text(self).rstrip("\n")

    @property
    def mean(self) -> float:
        """The bytes that a server moves in a step, on average; 0 without servers."""
        return sum(server.moved for server in self.servers) / len(self.servers) if self.servers else 0.0

    @property
    def busiest(self) -> ServerCost:
        """The server that moves the most bytes. Raises ValueError in a mode without servers."""
        return max(self.servers, key=lambda server: server.moved)

    @check_arguments
    def of_mean(self, server: ServerCost) -> float:
        """The ratio of the bytes that a server moves to those of the mean; 1 if no bytes are moved."""
        return server.moved / self.mean if self.mean else 1.0


@check_arguments
def cost(
    compiled: Compiled,
    *,
    profile: Profile | Profiles | str | None = None,
    link: str | None = None,
    processors: int | None = None,
    slow: Mapping[str, float] | None = None,
    example: Mapping[str, Any] | None = None,
    crash: str | None = None,
) -> PlanCost:
    """The cost of a compiled job's plan in a step; in mode geo, what machines exchange is that of an exchange.

    `example` are the arrays of one batch, which tell the dims that the program leaves open and the length of sequences
    (default: those that the author of the model gave).

    With the `profile` of its machines (that of `calibrate`, a file, or `trainers=FILE,servers=FILE`), also how long a
    step takes. `link` is the link of each machine, such as "1Gb,200us" or, if messages go through TLS, "1Gb,200us,tls"
    (default: that of the profile, inside a host, without TLS);
    `processors` is how many the host has on which all machines run (None: each has a host of its own). `slow` says how
    many times slower machines are than their profile, or their links: `{"trainer_3": 2.0, "pserver_0:link": 10.0}`.
    `crash` is a machine that crashes, as `--crash` of `plan` takes it: "pserver_0,restart=2s,state_every=20".

    Raises DiagnosticError for a file of counts or a profile that can't be used, and at an op that can't work on a batch
    of so many rows; ValueError for a link that is none, for a slow machine that the job does not have, and for `link`,
    `processors`, `slow` or `crash` without `profile`.
    """
    expect(compiled, Compiled, "cost", "Compiled")
    plan, job = compiled.plan, compiled.job
    counts = read_counts(job.id_counts) if job is not None and job.id_counts else None
    rows = job.batch_rows if job is not None else DEFAULTS["batch_rows"]
    found = cost_of(plan, compiled.source.main, rows, counts)
    given = compiled.source.example if example is None else example
    machines, loops, work = _machines(compiled, found, counts, given)
    timing = timing_of(profile, link, processors)
    for name in slow or ():
        expect(name, str, "cost", "the name of a slow machine")
    if slow and timing is None:
        raise ValueError("slow needs a profile, which has seconds")
    if crash is not None and timing is None:
        raise ValueError("crash needs a profile, which has seconds")
    given_crash = parse_crash(crash) if crash is not None else None
    seconds = job_seconds(plan, work, rows, *timing, slow or EMPTY, given_crash) if timing is not None else None
    return PlanCost(plan, rows, counts is not None, found.servers, machines, loops, seconds, work)


def timing_of(
    profile: Profile | Profiles | str | None, link: str | None, processors: int | None
) -> tuple[Profiles, Link, int | None] | None:
    """The profiles and the link that are asked for, and the processors that all machines share; None if no profile is.

    Raises DiagnosticError and ValueError as `cost` does.
    """
    if profile is None:
        if link is not None or processors is not None:
            raise ValueError(f"{'link' if link is not None else 'processors'} needs a profile, which has seconds")
        return None
    if processors is not None:
        expect_number(processors, "cost", "a number of processors", least=1)
    profiles = read_profiles(profile) if isinstance(profile, str) else profile
    profiles = Profiles(profiles, profiles) if isinstance(profiles, Profile) else profiles
    wire = profiles.servers.wire
    inside = Link(wire.bytes_per_second, wire.latency)
    of_link = inside if link is None else parse_link(link, inside.latency)
    return Profiles(*map(with_tls, profiles)) if of_link.tls else profiles, of_link, processors


def cost_of(plan: Plan, program: Program, batch_rows: int, counts: IdCounts | None) -> PlanCost:
    """The cost of a plan for the training program that it was made for: what its servers move and store.

    In mode geo the bytes are those of an exchange.
    """
    slices, held = (dict.fromkeys(plan.pservers, 0) for _ in range(2))
    total = dict.fromkeys(plan.pservers, 0.0)
    lookups = planned_lookups(plan, program, batch_rows)
    for parameter in plan.parameters if plan.pservers else ():
        of_rows = moved_of(parameter, lookups, batch_rows, counts)
        row = row_width(parameter.shape) * parameter.dtype.size
        for part in parameter.slices:
            slices[part.endpoint] += 1
            held[part.endpoint] += row * (part.stop - part.start)
            total[part.endpoint] += plan.trainers * (of_rows.below(part.stop) - of_rows.below(part.start))
    servers = tuple(ServerCost(each, slices[each], held[each], total[each]) for each in plan.pservers)
    return PlanCost(plan, batch_rows, counts is not None, servers)


def planned_lookups(plan: Plan, program: Program, batch_rows: int) -> dict[str, Lookups]:
    """The lookups in each table in a step of a trainer, whose communicator, if it has one, adds gradients up."""
    return lookups_of(program, batch_rows, added_up=plan.runtime_split or plan.geo is not None)


def moved_of(
    parameter: PlannedParameter, lookups: Mapping[str, Lookups], batch_rows: int, counts: IdCounts | None
) -> Moved:
    """The bytes that a parameter of a plan moves in a step of a trainer."""
    return moved_by(
        parameter.name,
        TensorType(parameter.dtype, parameter.shape),
        sparse=parameter.sparse,
        prefetched=parameter.prefetched,
        batch_rows=batch_rows,
        lookups=lookups,
        counts=counts,
    )


def _machines(
    compiled: Compiled, found: PlanCost, counts: IdCounts | None, example: Mapping[str, Any]
) -> tuple[tuple[MachineCost, ...], int, Work]:
    """The cost of a trainer and of each server, the number of loops that are counted as one round, and what a step's
    seconds are reckoned from.
    """
    plan, rows = compiled.plan, found.batch_rows
    elsewhere = {parameter.name for parameter in plan.parameters if parameter.prefetched}
    elsewhere |= {plan.table.name} if plan.table is not None else set()
    trainer = _as_trained(compiled.trainer(0).main, compiled.source.main)
    step = step_cost(trainer, rows, example=example, held_rows=dict.fromkeys(elsewhere, 0))
    moved = sum(server.moved for server in found.servers) / plan.trainers
    messages = float(sum(_messages(op) for op in trainer.main_block.ops))
    flows: tuple[Flow, ...] = ()
    reduced = Exchange()
    if plan.pservers:
        lookups = planned_lookups(plan, compiled.source.main, rows)
        flows = flows_of(plan, trainer, lambda each: moved_of(each, lookups, rows, counts))
    else:
        moved, messages = _of_collectives(trainer, plan.trainers)
        frames = min(messages / 2, 2.0 * (plan.trainers - 1))
        reduced = Exchange(messages / 2, messages / 2, moved / 2, moved / 2, frames)
    waits = False
    # Messages are copies of what they carry: those that are sent are kept until the other side has them, those that
    # come until their values are replaced. A server writes an answer anew for each trainer.
    on_their_way = _sent_bytes(flows) + _received_bytes(flows)
    machines = [_cost(_names(plan.trainers), plan.trainers, step, moved, messages, on_their_way)]
    told = Counter(endpoint for op in trainer.main_block.ops for endpoint in _message_endpoints(op))
    steps = [step]
    known: dict[object, tuple[StepCost, bool]] = {}
    holds = _Holds(plan, compiled.source.main, rows, counts)
    for number, server in enumerate(found.servers):
        like = holds.like(server.endpoint)
        if like not in known:
            main = compiled.pserver(server.endpoint).main
            known[like] = step_cost(main, rows, sparse_rows=holds.arriving(server.endpoint)), _waits(main)
        of_server, waits_too = known[like]
        steps.append(of_server)
        waits = waits or waits_too
        count = float(told[server.endpoint] * plan.trainers)
        answers = _received_bytes(flows[number : number + 1]) * plan.trainers
        machines.append(_cost(f"pserver_{number}", 1, of_server, server.moved, count, answers))
    names = [machine.machine for machine in machines]
    places = places_of(plan, trainer, step)
    background = plan.geo is not None or (not waits and _goes_on(trainer))
    return tuple(machines), step.loops, Work(names, steps, flows, reduced, waits, places, background)


def _sent_bytes(flows: Iterable[Flow]) -> float:
    """The bytes that a trainer sends in a step."""
    return sum(each.up for flow in flows for each in flow.exchanges)


def _received_bytes(flows: Iterable[Flow]) -> float:
    """The bytes that a trainer gets in a step."""
    return sum(each.down for flow in flows for each in flow.exchanges)


def _goes_on(trainer: Program) -> bool:
    """Whether a trainer leaves its gradients to a communicator, and goes on meanwhile."""
    ops = trainer.main_block.ops
    waits = any(op.type == "send_barrier" and op.attrs.get("half_async") for op in ops)
    given = any(op.type == "send" and op.attrs.get("send_varnames") and op.attrs.get("use_send_handler") for op in ops)
    return given and not waits


def _as_trained(program: Program, source: Program) -> Program:
    """A trainer's program whose parameters and their snapshots have the element types of the source's: those of a
    local-sgd trainer are declared as bool, as in Fluid.
    """
    sources, block = source.main_block.vars, program.main_block
    variables: dict[str, Var] = {}
    for name, var in block.vars.items():
        own = sources.get(name.removesuffix(SNAPSHOT))
        is_other = own is not None and own.tensor is not None and own.dtype is not var.dtype is DType.BOOL
        variables[name] = var._replace(tensor=own.tensor) if is_other and own is not None else var
    return program.with_main_block(block._replace(vars=FrozenMap(variables)))


def _cost(machine: str, count: int, step: StepCost, moved: float, messages: float, on_their_way: float) -> MachineCost:
    peak = step.peak + round(on_their_way)
    return MachineCost(machine, count, step.operations, step.touched, moved, messages, step.held, peak)


def _names(trainers: int) -> str:
    return "trainer_0" if trainers == 1 else f"trainer_0 to {trainers - 1}"


def _messages(op: Op) -> int:
    """The messages that an op of a trainer sends to all servers, and those that answer it."""
    return len(_message_endpoints(op))


def _message_endpoints(op: Op) -> tuple[str, ...]:
    """The endpoint of each message between an op of a trainer and the servers."""
    facts = facts_of(op.type)
    if facts.communicates != "request":
        return ()
    return (*strings_attr(op, "epmap"), *strings_attr(op, "endpoints")) * (2 if facts.receives else 1)


def _waits(server: Program) -> bool:
    """Whether a server updates once in a step, when all trainers have sent their gradients."""
    serving = [op for op in server.main_block.ops if facts_of(op.type).communicates == "server"]
    return any(int_attr(op, "distributed_mode") == 0 for op in serving)


def _of_collectives(program: Program, trainers: int) -> tuple[float, float]:
    """The bytes and the messages of a trainer in the collective ops of a step, on average.

    One of the trainers sums a value: the others send it theirs, and get the sum. Dims have to be known.
    """
    ops = [op for op in program.main_block.ops if facts_of(op.type).communicates == "collective"]
    variables = [program.find_var(name) for op in ops for name in op.input_names]
    size = sum(bytes_of(var.tensor) for var in variables if var is not None)
    each = 4 * (trainers - 1) / trainers  # half of them sent, half received; each message has two ends
    return each * size, each * len(ops)


class _Holds:
    """What the servers hold: which of them are alike, and the rows of the sparse gradients that come to each."""

    def __init__(self, plan: Plan, program: Program, rows: int, counts: IdCounts | None):
        self._plan = plan
        lookups = planned_lookups(plan, program, rows)
        self._slices: dict[str, list[tuple[PlannedParameter, Slice, int]]] = {each: [] for each in plan.pservers}
        for parameter in plan.parameters:
            moved = moved_of(parameter, lookups, rows, counts) if parameter.sparse else None
            width = row_width(parameter.shape) * parameter.dtype.size + ID
            for part in parameter.slices:
                number = 0
                if moved is not None:
                    number = round((moved.looked_up_below(part.stop) - moved.looked_up_below(part.start)) / width)
                self._slices.setdefault(part.endpoint, []).append((parameter, part, number))
        looked_up = lookups.get(plan.table.name, Lookups(rows)).number if plan.table else 0.0
        self._looked_up = round(looked_up / max(1, len(plan.pservers)))

    def like(self, endpoint: str) -> object:
        """A value that is equal for servers with equal programs, but for the names of slices."""
        return tuple((each.name, part.stop - part.start, number) for each, part, number in self._slices[endpoint])

    def arriving(self, endpoint: str) -> dict[str, int]:
        """The rows of the sparse gradients that come to a server, by name."""
        result: dict[str, int] = {}
        plan = self._plan
        for parameter, part, number in self._slices[endpoint]:
            if parameter.sparse:
                names = [plan.sent_name(part, trainer) for trainer in range(plan.trainers)] or [part.gradient]
                result.update(dict.fromkeys(names, number))
        if plan.table is not None:
            for server in range(len(plan.pservers)):
                names = [plan.table.sent_name(trainer, server) for trainer in (None, *range(plan.trainers))]
                result.update(dict.fromkeys(names, self._looked_up))
        return result


def cost_text(cost: PlanCost) -> str:
    """The cost as tables, preceded by a sentence on the busiest server."""
    plan = cost.plan
    unit = "an exchange" if plan.geo else "a step"
    ids = "ids as they were counted" if cost.counted_ids else "all ids as frequent"
    size, rows = cluster_of(plan.trainers, len(plan.pservers)), quantity(cost.batch_rows, "row")
    lines = [f"{size} ({plan.mode}), {rows} a batch of a trainer, {ids}", ""]
    if cost.servers:
        busiest = cost.busiest
        lines.insert(
            0,
            f"the busiest server, {busiest.endpoint}, moves {busiest.moved:,.0f} bytes {unit}: "
            f"{cost.of_mean(busiest):.2f} of the mean",
        )
        table = [("server", "slices", "bytes held", f"bytes {unit}", "of the mean")]
        table += [
            (each.endpoint, f"{each.slices:,}", f"{each.held:,}", f"{each.moved:,.0f}", f"{cost.of_mean(each):.2f}")
            for each in cost.servers
        ]
        lines += [*columns(table), ""]
    machines = [("machine", "operations", "bytes touched", "bytes moved", "messages", "bytes held", "peak of a step")]
    machines += [
        (
            each.machine,
            f"{each.operations:,.0f}",
            f"{each.touched:,.0f}",
            f"{each.moved:,.0f}",
            f"{each.messages:,.0f}",
            f"{each.held:,}",
            f"{each.peak:,}",
        )
        for each in cost.machines
    ]
    lines += columns(machines) if cost.machines else []
    if cost.seconds is not None:
        table = [line.rstrip() for line in columns(seconds_rows(cost.seconds), left=1)]
        lines = [cost.seconds.verdict, *seconds_lines(cost.seconds), *lines, "", *table]
    if cost.loops:
        lines += ["", f"{quantity(cost.loops, 'op')} of a trainer with a block, counted as if the block ran once"]
    return "\n".join(lines) + "\n"


def columns(table: Sequence[Sequence[str]], left: int = 0) -> list[str]:
    """The lines of a table, the first column and so many at the end aligned at the left, the others at the right."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    right = range(1, len(widths) - left)
    return [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in table
    ]


def cost_json(cost: PlanCost) -> dict[str, Any]:
    """The cost as JSON."""
    busiest = {"endpoint": cost.busiest.endpoint, "of_mean": cost.of_mean(cost.busiest)} if cost.servers else None
    return {
        "version": 1,
        "mode": cost.plan.mode,
        "trainers": cost.plan.trainers,
        "batch_rows": cost.batch_rows,
        "counted_ids": cost.counted_ids,
        "busiest": busiest,
        "servers": [{**server._asdict(), "of_mean": cost.of_mean(server)} for server in cost.servers],
        "machines": [machine._asdict() for machine in cost.machines],
        "loops": cost.loops,
        **({"seconds": seconds_json(cost.seconds)} if cost.seconds is not None else {}),
    }


# Two plans of a program: what changes in cost.


OF_MEAN = "of the mean"
"""The unit of a ratio to the mean of all servers."""


class CostChange(NamedTuple):
    """A figure of a step that another plan changes, in `unit`; None where a plan has no such machine."""

    figure: str
    before: float | None
    after: float | None
    unit: str = "bytes"


def cost_under(compiled: Compiled, plan: PlanFile, *, by_id: bool) -> PlanCost | None:
    """The cost that a plan of another job has for the program of a compiled one, for the same batch and ids; None if
    the plan is for another program.

    `by_id`: its large table is dealt out by id. What the plan does not say is as in the compiled job. Raises
    DiagnosticError for a plan that leaves rows without a server.
    """
    made = compiled.plan
    job = compiled.job or Job(pservers=made.pservers or None, trainers=made.trainers, mode=made.mode)
    if plan.source != compiled.fingerprint:
        return None
    given: dict[str, Any] = {"pservers": plan.pservers or None, "trainers": plan.trainers, "trainer_endpoints": None}
    given["large_tables"] = None  # the program has them already
    if by_id != (compiled.plan.table is not None):
        given["distributed_table"] = "modulo" if by_id else "rows"
    if plan.mode == job.mode:
        other = replace(job, **given)
    else:
        alike = ("slice_var_up", "min_block_size", "distributed_table", "batch_rows", "id_counts", "allow")
        other = Job(**{**{key: getattr(job, key) for key in alike}, **given}, mode=plan.mode)
    return cost(prepare(compiled.source, other, plan=plan))


def cost_changes(before: PlanCost, after: PlanCost) -> list[CostChange]:
    """The figures that differ between the costs of two plans: of the busiest server, of what each server holds, and of
    a trainer.
    """
    old, new = _figures(before), _figures(after)
    keys = sorted(
        {**old, **new}, key=lambda key: key[0].startswith("a trainer")
    )  # servers that come or go, then trainers
    figures = ((figure, old.get((figure, unit)), new.get((figure, unit)), unit) for figure, unit in keys)
    return [CostChange(*each) for each in figures if each[1] != each[2]]


def _figures(found: PlanCost) -> dict[tuple[str, str], float]:
    """The figures of a cost that are compared, each with its unit."""
    result: dict[tuple[str, str], float] = {}
    unit = "bytes an exchange" if found.plan.geo else "bytes a step"
    trainer, *machines = found.machines
    if found.servers:
        result["the busiest server moves", unit] = found.busiest.moved
        result["the busiest server moves", OF_MEAN] = found.of_mean(found.busiest)
    for server, machine in zip(found.servers, machines, strict=True):
        result[f"server {server.endpoint} holds", "bytes"] = machine.held
    result["a trainer moves", unit] = trainer.moved
    result["a trainer's messages", ""] = trainer.messages
    result["a trainer holds", "bytes"] = trainer.held
    result["a trainer's peak of a step", "bytes"] = trainer.peak
    return result


def cost_changes_text(changes: Sequence[CostChange]) -> str:
    """A line for each figure that changes, with its sign as in the changes of a plan."""
    lines = [_change_line(change) for change in changes]
    return "\n".join(["cost of a step:" if lines else "the cost of a step is the same", *lines]) + "\n"


def _change_line(change: CostChange) -> str:
    figure, before, after, unit = change
    one, other = (f"{value or 0.0:,.2f}" if unit == OF_MEAN else f"{value or 0.0:,.0f}" for value in (before, after))
    unit = f" {unit}" if unit else ""
    if before is None or after is None:
        return f"+ {figure}: {other}{unit}" if before is None else f"- {figure}: {one}{unit}"
    share = f" ({(after - before) / before:+.1%})" if before else ""
    return f"~ {figure}: {one} -> {other}{unit}{share}"


# Several numbers of machines.


HELPS = 0.05
"""The least share by which one more server has to lower the bytes of the busiest server to be worth it."""

MOST = 10_000
"""The most combinations of numbers of machines in a sweep."""


class SweepRow(NamedTuple):
    """The cost of a step with some numbers of machines.

    `server_moved` are the bytes that the busiest server moves, `of_mean` their ratio to those of the mean;
    `server_held` is the most that a server holds between steps, `server_peak` the most of its other values at one time.
    `trainer_moved`, `trainer_held` and `trainer_peak` are those of a trainer, `messages` those that it sends and gets.
    `is_knee`: the fewest servers, for this number of trainers, beyond which the next number of servers lowers the bytes
    of the busiest one by less than 5 %. With a profile, `seconds` has how long a step takes.
    """

    trainers: int
    pservers: int
    server_moved: float
    of_mean: float
    server_held: int
    server_peak: int
    trainer_moved: float
    trainer_held: int
    trainer_peak: int
    messages: float
    is_knee: bool = False
    seconds: JobSeconds | None = None


@check_arguments
@dataclass(frozen=True)
class Sweep:
    """The rows of a sweep, by trainers and then by servers, as `str` shows them.

    A batch of a trainer has `batch_rows` rows.
    """

    mode: str
    batch_rows: int
    rows: tuple[SweepRow, ...]

    def __repr__(self) -> str:
        """`<Sweep sync: 8 combinations>`."""
        return f"<Sweep {self.mode}: {quantity(len(self.rows), 'combination')}>"

    def __str__(self) -> str:
        """The table that `pstranspile plan --sweep` prints."""
        return sweep_text(self).rstrip("\n")


@check_arguments
def sweep(
    module: Module,
    job: Job,
    *,
    pservers: Iterable[int] | None = None,
    trainers: Iterable[int] | None = None,
    profile: Profile | Profiles | str | None = None,
    link: str | None = None,
    processors: int | None = None,
) -> Sweep:
    """The cost of a step for these numbers of machines; numbers that are not given are those of the job.

    `profile`, `link` and `processors` are those of `cost`, and give the seconds of a step.

    Raises DiagnosticError as `compile` and `cost` do, JobError for a mode that can't have such numbers, and ValueError
    for numbers below 1 and for more than 10,000 combinations.
    """
    expect_module(module, "sweep")
    expect(job, Job, "sweep", "job")
    served = [*dict.fromkeys(pservers if pservers is not None else [len(job.pservers)])]
    trained = [*dict.fromkeys(trainers if trainers is not None else [job.trainers])]
    for number in (*served, *trained):
        expect_number(number, "sweep", "a number of machines", least=1 if job.pservers else 0)
    if len(served) * len(trained) > MOST:
        raise ValueError(f"sweep: {len(served) * len(trained):,} combinations; at most {MOST:,} are compared")
    rows: list[SweepRow] = []
    timing = timing_of(profile, link, processors)
    for number in trained:
        rows += _with_knee([_row(module, job, servers, number, timing) for servers in served])
    return Sweep(job.mode, job.batch_rows, tuple(rows))


def _row(
    module: Module, job: Job, pservers: int, trainers: int, timing: tuple[Profiles, Link, int | None] | None
) -> SweepRow:
    given = replace(job, pservers=pservers or (), trainers=trainers, trainer_endpoints=None)
    found = cost(prepare(module, given))
    trainer, *servers = found.machines
    seconds = None
    if timing is not None and found.work is not None:
        seconds = job_seconds(found.plan, found.work, found.batch_rows, *timing)
    return SweepRow(
        trainers,
        pservers,
        max((server.moved for server in servers), default=0.0),
        found.of_mean(found.busiest) if servers else 1.0,
        max((server.held for server in servers), default=0),
        max((server.peak for server in servers), default=0),
        trainer.moved,
        trainer.held,
        trainer.peak,
        trainer.messages,
        seconds=seconds,
    )


def _with_knee(rows: Sequence[SweepRow]) -> Iterator[SweepRow]:
    """Yields the rows of one number of trainers, the fewest servers beyond which more hardly help marked."""
    by_servers = sorted(rows, key=lambda row: row.pservers)
    knee = next(
        (one.pservers for one, more in pairwise(by_servers) if more.server_moved > one.server_moved * (1 - HELPS)),
        None,
    )
    for row in rows:
        yield row._replace(is_knee=row.pservers == knee)


def sweep_text(found: Sweep) -> str:
    """The rows as a table; a knee is marked with `*`."""
    has_servers = any(row.pservers for row in found.rows)
    head = ("servers", "busiest moves", "of the mean", "server holds", "server peak") if has_servers else ()
    timed = any(row.seconds is not None for row in found.rows)
    of_time = ("step", "rows a second", "machine-seconds for 1,000,000 rows", "bottleneck") if timed else ()
    table = [("trainers", *head, "trainer moves", "messages", "trainer holds", "trainer peak", *of_time, "")]
    for row in found.rows:
        of_servers = (
            f"{row.pservers:,}",
            f"{row.server_moved:,.0f}",
            f"{row.of_mean:.2f}",
            f"{row.server_held:,}",
            f"{row.server_peak:,}",
        )
        table.append(
            (
                f"{row.trainers:,}",
                *(of_servers if has_servers else ()),
                f"{row.trainer_moved:,.0f}",
                f"{row.messages:,.0f}",
                f"{row.trainer_held:,}",
                f"{row.trainer_peak:,}",
                *(_time_columns(row.seconds) if row.seconds is not None else ()),
                "*" if row.is_knee else "",
            )
        )
    lines = [f"mode {found.mode}, {quantity(found.batch_rows, 'row')} a batch of a trainer; bytes in a step", ""]
    lines += [line.rstrip() for line in columns(table)]
    if any(row.is_knee for row in found.rows):
        lines += ["", f"* more servers lower the bytes of the busiest one by less than {HELPS:.0%}"]
    return "\n".join(lines) + "\n"


def _time_columns(seconds: JobSeconds) -> tuple[str, ...]:
    """The last columns of a sweep with a profile: a step, rows a second, the price of rows, and the bottleneck."""
    what = f"{seconds.machine or 'host'}, {seconds.part}"
    return format_seconds(seconds.step), f"{seconds.rows_per_second:,.0f}", f"{seconds.machine_seconds:,.1f}", what


def sweep_json(found: Sweep) -> dict[str, Any]:
    """The sweep as JSON."""
    rows = [_row_json(row) for row in found.rows]
    return {"version": 1, "mode": found.mode, "batch_rows": found.batch_rows, "rows": rows}


_OF_SWEEP = ("step", "machine", "part", "share", "rows_per_second", "machine_seconds")
"""The figures of a step's seconds that a sweep has."""


def _row_json(row: SweepRow) -> dict[str, Any]:
    fields = {name: value for name, value in row._asdict().items() if name != "seconds"}
    if row.seconds is None:
        return fields
    timed = seconds_json(row.seconds)
    return {**fields, "seconds": {name: timed[name] for name in _OF_SWEEP}}


# Settings that lower the cost of a job.


class Suggestion(NamedTuple):
    """A setting that lowers the bytes that the busiest machine moves in a step, or the most memory of a machine, by
    more than 5 %.

    `option` are the words of a command that set it, in place of a value given before. `moved` and `memory` are the
    bytes with it; `exactness` says what it changes in the results.
    """

    option: str
    moved: float
    memory: int
    exactness: str


@check_arguments
@dataclass(frozen=True)
class Suggestions:
    """The settings that lower the cost of a job, as `str` shows them: the one that lowers most comes first.

    `moved` are the bytes that the busiest machine of the job moves in a step, trainers included, `memory` the most
    bytes that a machine holds and has at the peak of a step. `tried` are the options of all settings that were
    compared, `refused` those that the job can't have, each with the reason.
    """

    mode: str
    batch_rows: int
    moved: float
    memory: int
    suggestions: tuple[Suggestion, ...]
    tried: tuple[str, ...]
    refused: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        """`<Suggestions for sync: 2 of 7 settings>`."""
        return f"<Suggestions for {self.mode}: {len(self.suggestions)} of {quantity(len(self.tried), 'setting')}>"

    def __str__(self) -> str:
        """The lines that `pstranspile plan --suggest` prints."""
        return suggestions_text(self).rstrip("\n")


@check_arguments
def suggest(module: Module, job: Job) -> Suggestions:
    """The settings of a job that lower the bytes of its busiest machine, or the most memory of a machine, by more than
    5 %: placement by cost, slices, their least size, lookups on servers, and one server more or fewer.

    Each is compared alone with the job; of several least sizes, the best one is given. Raises DiagnosticError as
    `compile` and `cost` do.
    """
    expect_module(module, "suggest")
    expect(job, Job, "suggest", "job")
    compiled = prepare(module, job)
    known = {(each.code, each.message) for each in compiled.warnings}
    moved, memory = _most(cost(compiled))
    best: dict[str, Suggestion] = {}
    tried: list[str] = []
    refused: list[tuple[str, str]] = []
    for kind, words, given, exactness in _settings(compiled, job):
        option = shell_line(words)
        tried.append(option)
        try:
            other = prepare(module, replace(job, **given))
            found = Suggestion(option, *_most(cost(other)), exactness)
        except DiagnosticError as problem:
            refused.append((option, problem.diagnostics[0].message))
            continue
        if found.moved >= moved * (1 - HELPS) and found.memory >= memory * (1 - HELPS):
            continue
        told = [f"; {each.message}" for each in other.warnings if (each.code, each.message) not in known]
        found = found._replace(exactness="".join([exactness, *told]))
        if kind not in best or _gain(found, moved, memory) > _gain(best[kind], moved, memory):
            best[kind] = found
    order = sorted(best.values(), key=lambda each: -_gain(each, moved, memory))
    return Suggestions(job.mode, job.batch_rows, moved, memory, tuple(order), tuple(tried), tuple(refused))


def _most(found: PlanCost) -> tuple[float, int]:
    """The bytes that the busiest machine moves, and the most that a machine holds and has at its peak."""
    machines = found.machines
    return max(each.moved for each in machines), max(each.held + each.peak for each in machines)


def _gain(found: Suggestion, moved: float, memory: int) -> float:
    """The larger one of the shares by which a setting lowers the bytes moved and the memory."""
    return max(1 - found.moved / moved if moved else 0.0, 1 - found.memory / memory if memory else 0.0)


_SIZES = (4, 1 / 4, 16, 1 / 16, 64, 1 / 64)
"""The factors of the least size of slices that are tried; of two that lower costs as much, the first is given."""

_Setting = tuple[str, list[str], dict[str, Any], str]
"""The kind of a setting, the words of a command for it, its key and value, and what it changes in the results."""


def _settings(compiled: Compiled, job: Job) -> Iterator[_Setting]:
    """Yields the settings to try, in order: those that have an effect in the mode, and are not the job's already."""
    mode = settings_of(job.mode)
    options, same = mode.options, f"the same results (equal to one machine: {mode.promise.value})"
    if "split_method" in options and job.split_method != COST:
        yield "split_method", ["--set", f"split_method={COST}"], {"split_method": COST}, same
    if "slice_var_up" in options and not job.slice_var_up:
        yield "slice_var_up", ["--set", "slice_var_up=true"], {"slice_var_up": True}, same
    if "min_block_size" in options and len(job.pservers) > 1 and (job.slice_var_up or job.mode == "geo"):
        for size in dict.fromkeys(max(1, round(job.min_block_size * factor)) for factor in _SIZES):
            if size != job.min_block_size:
                yield "min_block_size", ["--set", f"min_block_size={size}"], {"min_block_size": size}, same
    whole = [each.name for each in compiled.plan.parameters if each.sparse and not each.prefetched]
    if "large_tables" in options and whole:
        names = [*job.large_tables, *whole]
        exactness = "the same bits with SGD, Adagrad and lazy Adam; others no longer move rows without a gradient"
        yield "large_tables", ["--set", f"large_tables={','.join(names)}"], {"large_tables": names}, exactness
    # What a table that is dealt out by id moves is not counted, so that numbers of servers can't be compared with one.
    if job.pservers == local_endpoints(len(job.pservers) or 1) and compiled.plan.table is None:
        for count in (len(job.pservers) - 1, len(job.pservers) + 1):
            if 1 <= count <= MAX_MACHINES:
                yield f"pservers {count}", ["--pservers", str(count)], {"pservers": count}, same


def suggestions_text(found: Suggestions) -> str:
    """The settings as a table, each followed by what it changes in the results."""
    unit = "an exchange" if found.mode == "geo" else "a step"
    lines = [
        f"mode {found.mode}, {quantity(found.batch_rows, 'row')} a batch of a trainer: the busiest machine moves "
        f"{found.moved:,.0f} bytes {unit}, the most memory of a machine is {found.memory:,} bytes",
        "",
    ]
    table = [("setting", "busiest moves", "", "most memory", "")]
    for each in found.suggestions:
        shares = [f"{_share(*pair):+.1%}" for pair in ((found.moved, each.moved), (found.memory, each.memory))]
        table.append((each.option, f"{each.moved:,.0f}", shares[0], f"{each.memory:,}", shares[1]))
    if found.suggestions:
        head, *rows = columns(table)
        lines.append(head.rstrip())
        for row, each in zip(rows, found.suggestions, strict=True):
            lines += [row, f"    {each.exactness}"]
    else:
        lines.append(f"none of {quantity(len(found.tried), 'setting')} lowers one of them by more than {HELPS:.0%}")
    lines += [f"{option} is refused: {reason}" for option, reason in found.refused]
    return "\n".join(lines) + "\n"


def _share(before: float, after: float) -> float:
    return (after - before) / before if before else 0.0


def suggestions_json(found: Suggestions) -> dict[str, Any]:
    """The settings as JSON."""
    return {
        "version": 1,
        "mode": found.mode,
        "batch_rows": found.batch_rows,
        "moved": found.moved,
        "memory": found.memory,
        "suggestions": [each._asdict() for each in found.suggestions],
        "tried": list(found.tried),
        "refused": [{"option": option, "reason": reason} for option, reason in found.refused],
    }
