"""The trainer's main program: the source without its updates, with sends, barriers and recvs."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from functools import lru_cache, partial

from pstranspile.compiler.analysis import Facts
from pstranspile.compiler.analysis.uses import deep_blocks, effects_of
from pstranspile.compiler.emit.rules import (
    JOIN_SLICES,
    KEEP_CLIP,
    NO_MEMORY,
    RECEIVE_FIRST,
    RECEIVE_PARAMETER,
    SEND_GRADIENT,
    SPLIT_GRADIENT,
    START_BARRIER,
    Timing,
    derived_origin,
    made_of_program,
    rename_vars,
)
from pstranspile.compiler.emit.table import Insertion, insert_lookups, lookup_vars, send_table_gradient, table_vars
from pstranspile.compiler.plan.plan import Plan, PlannedParameter
from pstranspile.ir.attributes import AttrValue, Ints, Longs, Strings
from pstranspile.ir.model import STARTUP, Block, FrozenMap, Op, Origin, Program, Slots, TensorType, Var
from pstranspile.ir.types import OpRole
from pstranspile.ops.build import OpMaker, make_op

# The trainer's start-up program: local initialisers, then every parameter from the servers.

_AT_ONCE: Slots = FrozenMap({"X": ()})
"""The inputs of a recv that waits for nothing."""


class StartupTemplate:
    """The common part of the start-up programs of all trainers of a job: all but the recvs and the closing barrier.

    `kept_ops` are the source's ops that stay, `closing_ops` those after the barrier, `variables` all declarations.
    `first_receives` has, for each parameter that is fetched, the servers, the outputs and the origin of its recv.
    """

    def __init__(self, plan: Plan, dropped: frozenset[str], declared: Mapping[str, Var], startup: Program):
        """`dropped` are the variables that left with the updates, `declared` those of the main program."""
        block = startup.main_block
        self.plan = plan
        self.startup = startup
        tables = {parameter.name: parameter.shape for parameter in plan.parameters if parameter.prefetched}
        if plan.table is not None:
            tables[plan.table.name] = plan.table.tensor.shape
        gone = dropped.union(tables) if tables else dropped
        self.kept_ops, makers = _kept_ops_and_origins(
            block, gone, {**dict.fromkeys([p.name for p in plan.parameters]), **tables}
        )
        variables = remaining_variables(block.vars, dropped)
        fetched = [parameter for parameter in plan.parameters if not parameter.prefetched]
        self.first_receives: list[tuple[tuple[str, ...], Slots, Origin]] = []
        for parameter in fetched:
            _declare_slices(parameter, declared, variables)
            outputs: Slots = FrozenMap({"Out": tuple([s.name for s in parameter.slices])})
            origin = derived_origin(makers.get(parameter.name), RECEIVE_FIRST)
            self.first_receives.append((tuple([s.endpoint for s in parameter.slices]), outputs, origin))
        variables[plan.startup_control] = Var(plan.startup_control)
        self.closing_ops: list[Op] = []
        for parameter in fetched:
            if parameter.is_cut:
                variables.setdefault(parameter.name, declared[parameter.name])
                self.closing_ops.append(join_slices(parameter, OpRole.FORWARD, makers.get(parameter.name)))
        self.closing_ops += (
            _without_memory(name, shape, derived_origin(makers.get(name), NO_MEMORY)) for name, shape in tables.items()
        )
        self.variables = FrozenMap(variables)


def emit_trainer_startup(template: StartupTemplate, trainer: int) -> Program:
    """The start-up program of one trainer.

    Initialisers of variables that left with the updates are dropped; those of parameters stay and are overwritten by
    the received values. Tables that stay on the servers get their dims only. The closing fetch_barrier is the first one
    the synchronous servers wait for.
    """
    startup, plan = template.startup, template.plan
    ops = list(template.kept_ops)
    for endpoints, outputs, origin in template.first_receives:
        ops.append(receiver(endpoints, trainer)(_AT_ONCE, outputs, origin=origin))
    barrier = make_op(
        "fetch_barrier",
        {"X": []},
        {"Out": [plan.startup_control]},
        {"endpoints": Strings(plan.pservers), "trainer_id": trainer},
        role=OpRole.RPC,
        origin=made_of_program(startup, START_BARRIER, STARTUP),
    )
    ops.append(barrier)
    ops += template.closing_ops
    main = startup.main_block._replace(vars=template.variables, ops=tuple(ops))
    return startup.with_main_block(main)


def _declare_slices(parameter: PlannedParameter, declared: Mapping[str, Var], variables: dict[str, Var]) -> None:
    """Declares the received slices of a parameter, unless the start-up program declares them."""
    for s in parameter.slices:
        if s.name not in variables:
            if parameter.is_cut:
                variables[s.name] = Var(s.name, tensor=TensorType(parameter.dtype, s.shape))
            else:
                variables[s.name] = declared[parameter.name]._replace(location=None)


def _kept_ops_and_origins(
    block: Block, gone: Container[str], received: Container[str]
) -> tuple[list[Op], dict[str, Origin | None]]:
    """The ops that make none of the variables in `gone`; and for each variable in `received`, the origin of its
    initialiser.
    """
    kept_ops: list[Op] = []
    origin_of: dict[str, Origin | None] = {}
    for op in block.ops:
        lost = False
        for names in op.outputs.values():
            for name in names:
                if name in received:
                    origin_of[name] = op.origin
                if name in gone:
                    lost = True
        if not lost:
            kept_ops.append(op)
    return kept_ops, origin_of


def _without_memory(table: str, shape: tuple[int, ...], origin: Origin) -> Op:
    """An op that gives a table that stays on the servers its dims, without memory."""
    return make_op("fake_init", {}, {"Out": [table]}, {"shape": Longs(shape)}, origin=origin)


class TrainerTemplate:
    """The parts that the main programs of all trainers share, computed once: the ops and variables that stay, and the
    targets of sends.

    `layout` has the ops of the main block up to the last send; ops that differ from trainer to trainer are functions of
    the trainer's number. `mentions` are the places in it whose op uses, or names in its role variables, a gradient that
    is sent whole. `receive_origins` and `program_origin` are origins, made once and shared by ops: of each parameter's
    recv, and of what is about the program as a whole. `arrivals` are the servers and the outputs of each parameter's
    recv.
    """

    def __init__(self, facts: Facts, plan: Plan, timing: Timing, job_plan: Plan | None = None):
        """`plan` is this program's share of `job_plan`, which is the same if the job has but one program."""
        self.facts = facts
        self.plan = plan
        self.timing = timing
        self.job_plan = job_plan or plan
        self.dropped_vars = dropped_vars(facts, plan)
        self.layout = _layout(facts, plan, timing, self.job_plan)
        own = own_gradient_names(plan, 0)
        self.mentions = _mentions(self.layout, own)
        ops = facts.program.main_block.ops
        after = (index for group in facts.groups for index in group.after)
        self.emptied_blocks = frozenset(b for index in after for b in deep_blocks(facts.program, ops[index]))
        self.base_vars = remaining_variables(facts.program.main_block.vars, self.dropped_vars)
        self.receive_origins = {
            u.parameter: derived_origin(ops[u.optimizer[0]].origin, RECEIVE_PARAMETER) for u in facts.updates
        }
        self.program_origin = made_of_program(facts.program, "")
        self.arrivals = {p.name: _arrivals(p, plan) for p in plan.parameters if not p.prefetched}


def remaining_variables(variables: Mapping[str, Var], dropped: frozenset[str]) -> dict[str, Var]:
    """The variables that are not dropped."""
    return {name: var for name, var in variables.items() if name not in dropped}


Layout = list[Op | Insertion]


def _layout(facts: Facts, plan: Plan, timing: Timing, job_plan: Plan) -> Layout:
    """The ops that stay, the sends, and the lookups on servers in place of local ones.

    A send comes right after the last writer of its gradient. Fluid inserts at the writer in send order, so of several
    gradients with one writer the last assigned comes first; likewise with lookups of several tables. Clips that stay
    become part of the backward pass.
    """
    ops = facts.program.main_block.ops
    inserted: dict[int, list[Insertion]] = {}
    for index in plan.send_order:
        parameter = plan.parameters[index]
        writer = facts.uses.last_writer(parameter.gradient)
        origin = ops[writer].origin
        origins = (
            derived_origin(origin, SPLIT_GRADIENT) if parameter.is_cut else None,
            derived_origin(origin, SEND_GRADIENT),
        )
        send = partial(send_gradient, plan, parameter, origins=origins)
        inserted.setdefault(writer, []).insert(0, send)
    if plan.table is not None:
        writer = facts.uses.last_writer(plan.table.gradient)
        send = partial(send_table_gradient, plan, timing, plan.table, origin=ops[writer].origin)
        inserted.setdefault(writer, []).append(send)
    fused = insert_lookups(inserted, ops, facts.tables, job_plan, facts.moved)
    gone = facts.moved.union(fused) if fused else facts.moved
    clips = frozenset(facts.roles.trainer_clips)
    layout: Layout = [*inserted.get(-1, ())]
    for index, op in enumerate(ops):
        if index not in gone:
            layout.append(
                op._replace(role=OpRole.BACKWARD, origin=derived_origin(op.origin, KEEP_CLIP)) if index in clips else op
            )
        if index in inserted:
            layout += inserted[index]
    return layout


def _mentions(layout: Layout, gradients: Collection[str]) -> list[int]:
    """Places of ops that use one of these gradients or name it in their role variables."""
    result: list[int] = []
    if not gradients:
        return result
    unmentioned = frozenset(gradients).isdisjoint
    for place, op in enumerate(layout):
        if isinstance(op, Op) and not (
            unmentioned(op.role_vars or ())
            and all(map(unmentioned, op.outputs.values()))
            and all(map(unmentioned, op.inputs.values()))
        ):
            result.append(place)
    return result


def dropped_vars(facts: Facts, plan: Plan) -> frozenset[str]:
    """Variables that leave the trainer with the updates.

    These are the inputs of optimize ops other than parameters and gradients, and the variables that only ops following
    an update mention; variables that an op on the trainer still uses stay.
    """
    ops = facts.program.main_block.ops
    updating = list(map(ops.__getitem__, facts.roles.optimize))
    result = [
        name
        for op in updating
        for pair in (op.role_vars or (),)
        for names in op.inputs.values()
        for name in names
        if name not in pair
    ]
    for group in facts.groups:
        for index in group.after:
            effects = effects_of(facts.program, ops[index])
            result += (*effects.reads, *effects.writes)
    dropped = set(result).difference(facts.uses.kept_reader, facts.uses.kept_writer)
    for update in facts.updates:
        if len(update.ops) > 1:  # one op of an update may only read the pair that another names
            dropped.difference_update(name for index in update.ops for name in ops[index].role_vars or ())
    dropped.difference_update([p.name for p in plan.parameters])
    return frozenset(dropped)


def emit_trainer(template: TrainerTemplate, trainer: int) -> Program:
    """The main program of one trainer."""
    facts, plan, timing = template.facts, template.plan, template.timing
    renames = own_gradient_names(plan, trainer)
    layout = list(template.layout)
    if renames:
        for place in template.mentions:
            op = layout[place]
            if isinstance(op, Op):
                layout[place] = rename_vars(op, renames)
    ops: list[Op] = []
    for item in layout:
        if isinstance(item, Op):
            ops.append(item)
        else:
            ops += item(trainer)
    ops += timing.after_sends(plan, trainer, template.program_origin)
    received: list[str] = []
    fetched = [parameter for parameter in plan.parameters if not parameter.prefetched]
    waits: dict[str, Slots] = {}
    for parameter in fetched:
        control = timing.recv_after(plan, parameter)
        after = waits.get(control) or waits.setdefault(control, FrozenMap({"X": (control,)}))
        ops.append(receive_parameter(template, parameter, trainer, renames, after))
        received += ops[-1].outputs["Out"]
    ops += timing.after_recvs(plan, trainer, received, template.program_origin)
    if not plan.runtime_split:
        ops += (join_slices(p, OpRole.DIST, template.receive_origins[p.name]) for p in fetched if p.is_cut)
    variables = trainer_vars(template, trainer, renames)
    main = facts.program.main_block._replace(vars=FrozenMap(variables), ops=tuple(ops))
    return facts.program._replace(blocks=(main, *_other_blocks(template)))


def _other_blocks(template: TrainerTemplate) -> Sequence[Block]:
    """The sub-blocks under their old numbers; those of ops that moved with an update are empty."""
    blocks = template.facts.program.blocks
    return [
        block._replace(vars=FrozenMap(), ops=()) if index in template.emptied_blocks else block
        for index, block in enumerate(blocks)
        if index > 0
    ]


def own_gradient_names(plan: Plan, trainer: int) -> dict[str, str]:
    """The names under which a trainer sends gradients that are sent whole, by gradient.

    A communicator chooses the names itself when it sends.
    """
    if not plan.per_trainer or plan.runtime_split:
        return {}
    return {p.gradient: plan.sent_name(p.slices[0], trainer) for p in plan.parameters if not p.is_cut}


def send_gradient(
    plan: Plan, parameter: PlannedParameter, trainer: int, *, origins: tuple[Origin | None, Origin]
) -> list[Op]:
    """Ops that split a gradient if its parameter is cut, and send it; `origins` are of split and send."""
    sent = [plan.sent_name(s, trainer) for s in parameter.slices]
    endpoints = tuple([s.endpoint for s in parameter.slices])
    role_vars = (parameter.name, parameter.gradient if parameter.is_cut or plan.runtime_split else sent[0])
    outputs = {"Out": (parameter.send_control,)}
    if plan.runtime_split:
        attrs: dict[str, AttrValue] = {
            "epmap": Strings(endpoints),
            "sections": Longs(s.stop - s.start for s in parameter.slices),
            "send_varnames": Strings(sent),
        }
        make = OpMaker("send", attrs, role=OpRole.RPC)
        return [make({"X": (parameter.gradient,)}, outputs, role_vars, origins[1])]
    send = _sender(endpoints)({"X": tuple(sent)}, outputs, role_vars, origins[1])
    return [_split(parameter, sent, origins[0]), send] if parameter.is_cut else [send]


@lru_cache(maxsize=256)
def _sender(endpoints: tuple[str, ...]) -> OpMaker:
    """A function that makes the sends to some servers."""
    return OpMaker("send", {"epmap": Strings(endpoints)}, role=OpRole.RPC)


@lru_cache(maxsize=256)
def receiver(endpoints: tuple[str, ...], trainer: int) -> OpMaker:
    """A function that makes the recvs of a trainer from some servers."""
    return OpMaker("recv", {"epmap": Strings(endpoints), "trainer_id": trainer}, role=OpRole.RPC)


def _split(parameter: PlannedParameter, parts: Sequence[str], origin: Origin | None) -> Op:
    """An op that cuts a gradient like its parameter; a sparse gradient is split by the numbers of its rows."""
    rows = [s.stop - s.start for s in parameter.slices]
    op_type = "split_selected_rows" if parameter.sparse else "split_byref"
    attrs: dict[str, AttrValue] = {"height_sections": Longs(rows)} if parameter.sparse else {"sections": Ints(rows)}
    return make_op(op_type, {"X": [parameter.gradient]}, {"Out": parts}, attrs, role=OpRole.DIST, origin=origin)


def _arrivals(parameter: PlannedParameter, plan: Plan) -> tuple[tuple[str, ...], Slots]:
    """The servers from which a parameter is fetched, and the outputs of its recv: a communicator joins slices
    itself.
    """
    names = (parameter.name,) if plan.runtime_split else tuple([s.name for s in parameter.slices])
    return tuple([s.endpoint for s in parameter.slices]), FrozenMap({"Out": names})


def receive_parameter(
    template: TrainerTemplate, parameter: PlannedParameter, trainer: int, renames: Mapping[str, str], after: Slots
) -> Op:
    """An op that fetches every slice of a parameter from its server; `after` are its inputs."""
    endpoints, outputs = template.arrivals[parameter.name]
    role_vars = (parameter.name, renames.get(parameter.gradient, parameter.gradient))
    if template.plan.runtime_split:
        attrs: dict[str, AttrValue] = {
            "epmap": Strings(endpoints),
            "trainer_id": trainer,
            "recv_varnames": Strings([s.name for s in parameter.slices]),
        }
        make = OpMaker("recv", attrs, role=OpRole.RPC)
    else:
        make = receiver(endpoints, trainer)
    return make(after, outputs, role_vars, template.receive_origins[parameter.name])


def join_slices(parameter: PlannedParameter, role: OpRole, origin: Origin | None) -> Op:
    """An op that concatenates the received slices of a parameter along dim 0; `origin` is that of its source op."""
    slices = [s.name for s in parameter.slices]
    made_by = derived_origin(origin, JOIN_SLICES)
    return make_op("concat", {"X": slices}, {"Out": [parameter.name]}, {"axis": 0}, role=role, origin=made_by)


def _rename_variables(variables: Mapping[str, Var], renames: Mapping[str, str]) -> dict[str, Var]:
    """The variables in the same order, under the names that a trainer gives them."""
    named: dict[str, Var] = {}
    for name, var in variables.items():
        if name in renames:
            name = renames[name]
            var = var._replace(name=name)
        named[name] = var
    return named


def trainer_vars(template: TrainerTemplate, trainer: int, renames: Mapping[str, str]) -> dict[str, Var]:
    """The variables of block 0: those of the source that stay, slices of cut parameters and gradients, control
    variables.
    """
    plan = template.plan
    variables = _rename_variables(template.base_vars, renames) if renames else dict(template.base_vars)
    for parameter in plan.parameters:
        if parameter.is_cut:
            gradient = template.facts.program.main_block.vars[parameter.gradient]
            for s in parameter.slices:
                variables[s.name] = Var(s.name, tensor=TensorType(parameter.dtype, s.shape))
                sent = s.gradient if plan.runtime_split else plan.sent_name(s, trainer)
                dtype = gradient.dtype or parameter.dtype
                variables[sent] = Var(sent, gradient.kind, TensorType(dtype, s.shape))
        variables[parameter.send_control] = Var(parameter.send_control)
    variables.update(lookup_vars(template.facts.program, template.job_plan, template.facts.moved))
    if plan.table is not None:
        variables.update(table_vars(plan, plan.table, trainer))
    variables.update((counter.control, Var(counter.control)) for counter in plan.counters)
    variables[plan.barrier_control] = Var(plan.barrier_control)
    return variables
