"""The server's main program: listen_and_serv, the learning-rate block, and one block per update."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from pstranspile.compiler.analysis import Facts
from pstranspile.compiler.analysis.updates import Update, UpdateGroup
from pstranspile.compiler.analysis.uses import sub_blocks
from pstranspile.compiler.emit.rules import (
    AFTER_UPDATE,
    COMPENSATE,
    FILL_BACKUP,
    INITIALISE,
    SCHEDULE,
    SERVE,
    SHARE_COUNTER,
    UPDATE,
    Timing,
    derived_origin,
    made_of_program,
    rename_vars,
)
from pstranspile.compiler.emit.server_block import ServerMain, ServerProgram, SliceView
from pstranspile.compiler.emit.table import merged_gradient, serve_table
from pstranspile.compiler.emit.trainer import own_gradient_names
from pstranspile.compiler.plan.make import TRAINER_ID, backup_name, slice_initialiser
from pstranspile.compiler.plan.plan import NameMint, Plan, PlannedParameter, Slice
from pstranspile.ir.attributes import AttrValue, BlockRef, BlockRefs, Strings
from pstranspile.ir.model import Block, FrozenMap, Op, Origin, Program, TensorType, Var
from pstranspile.ir.types import DType, VarKind
from pstranspile.ops import facts_of
from pstranspile.ops.build import make_op

# Delay-compensated ASGD: a gradient is corrected for the change of its parameter since the trainer fetched it.
#
# g' = g + g * g * (w - w_backup), elementwise, with the backup of the trainer that sent g.


class Compensation:
    """Compensates the gradients of one server; keeps the backups it declares, for the start-up program."""

    def __init__(self, server: ServerProgram, trainers: int):
        self.server = server
        self.trainers = trainers
        self.backups: list[tuple[str, str]] = []
        self._mint = NameMint(server.source.main_block.vars)
        self._temporaries = 0

    def append(self, block: int, parameter: PlannedParameter, s: Slice, gradient: str, origin: Origin | None) -> str:
        """Adds the ops that compensate the gradient of a slice to a block; returns the name of the result.

        `gradient` is the input of the optimizer, with weight decay or clipped; `origin` is that of the optimizer op.
        """
        tensor = TensorType(parameter.dtype, s.shape)
        copies = [backup_name(s, i) for i in range(self.trainers)]
        for name in copies:
            self.server.blocks[0].vars[name] = Var(name, tensor=tensor)
        self.backups += ((s.name, name) for name in copies)
        own_copy_name = self._mint.mint(f"{s.name}.local_bak")
        names = [self._mint.mint(f"tmp_dc_output_{self._temporaries + number}") for number in range(4)]
        self._temporaries += len(names)
        local = self.server.blocks[block].vars
        local[TRAINER_ID] = Var(TRAINER_ID, tensor=TensorType(DType.INT64, (1,)))
        local.update((name, Var(name, tensor=tensor)) for name in (own_copy_name, *names))
        moved, once, twice, result = names
        origin = derived_origin(origin, COMPENSATE)
        self.server.blocks[block].ops += [
            make_op(
                "ref_by_trainer_id", {"X": copies, "TrainerId": [TRAINER_ID]}, {"Out": [own_copy_name]}, origin=origin
            ),
            make_op("elementwise_sub", {"X": [s.name], "Y": [own_copy_name]}, {"Out": [moved]}, origin=origin),
            make_op("elementwise_mul", {"X": [moved], "Y": [gradient]}, {"Out": [once]}, origin=origin),
            make_op("elementwise_mul", {"X": [once], "Y": [gradient]}, {"Out": [twice]}, origin=origin),
            make_op("elementwise_add", {"X": [gradient], "Y": [twice]}, {"Out": [result]}, origin=origin),
        ]
        return result


def first_backups(backups: Iterable[tuple[str, str]], makers: Mapping[str, Origin | None]) -> list[Op]:
    """Start-up ops that initialise every trainer's backup with the initial value of the parameter.

    `makers` gives the source op that initialises each parameter.
    """
    return [
        make_op(
            "assign", {"X": [parameter]}, {"Out": [copy]}, origin=derived_origin(makers.get(parameter), FILL_BACKUP)
        )
        for parameter, copy in backups
    ]


RPC_THREADS = 12
"""The number of threads in each of a server's pools: Fluid's default for send, get and prefetch."""


class ServerTemplate:
    """The parts that all servers of a job share: updates, owners of slices, and copied ops."""

    def __init__(self, facts: Facts, plan: Plan, timing: Timing):
        self.facts = facts
        self.plan = plan
        self.timing = timing
        self.updates = {update.parameter: update for update in facts.updates}
        self.group_of = {name: group for group in facts.groups for name in group.parameters}
        self.owned_slices: dict[str, list[tuple[PlannedParameter, Slice]]] = {
            endpoint: [] for endpoint in plan.pservers
        }
        for index in plan.send_order:
            for s in plan.parameters[index].slices:
                self.owned_slices[s.endpoint].append((plan.parameters[index], s))
        counts = {endpoint: Counter(p.name for p, _ in rows) for endpoint, rows in self.owned_slices.items()}
        self.several = {endpoint: {n for n, count in names.items() if count > 1} for endpoint, names in counts.items()}
        """Names of the parameters of which a server has more than one slice, by the server's endpoint."""
        ops = facts.program.main_block.ops
        # Copied ops keep the role variables that trainer 0 has, as Fluid's do.
        names = own_gradient_names(plan, 0)
        rules = dict.fromkeys(facts.roles.learning_rate, SCHEDULE)
        rules.update((i, AFTER_UPDATE) for group in facts.groups for i in group.after)
        self.copied = {i: _copy_for_server(ops[i], names, rules.get(i, UPDATE)) for i in sorted(facts.moved)}
        self.finished = {p.name: ops[facts.uses.last_writer(p.gradient)].origin for p in plan.parameters}
        first = {update.parameter: update.optimizer[0] for update in facts.updates}
        self.update_order = sorted(first, key=first.__getitem__)
        """Parameters in the order of their optimizer ops, which is the order of the blocks on a server."""
        self.row_updates = frozenset(p.name for p in plan.parameters if p.sparse and self._reads_rows(p))

    def _reads_rows(self, parameter: PlannedParameter) -> bool:
        """Whether the sparse gradient reaches the optimizer unchanged (weight decay makes it dense)."""
        ops = self.facts.program.main_block.ops
        return any(parameter.gradient in ops[i].inputs["Grad"] for i in self.updates[parameter.name].optimizer)


def _copy_for_server(op: Op, names: dict[str, str], rule: str) -> Op:
    """A source op for servers: its role variables have a trainer's names, and its origin is `rule`."""
    role_vars, origin = op.role_vars, op.origin
    if names and role_vars and any(name in names for name in role_vars):
        role_vars = tuple([names.get(name, name) for name in role_vars])
    if origin is None or origin.rule != SHARE_COUNTER:
        origin = derived_origin(origin, rule)
    return Op(op.type, op.inputs, op.outputs, op.attrs, op.role, role_vars, op.is_target, origin)


class _Served:
    """The attributes of listen_and_serv of one server, collected block by block."""

    def __init__(self, server: ServerProgram, plan: Plan, endpoint: str):
        self.server = server
        self.endpoint = endpoint
        self.compensation = Compensation(server, plan.trainers) if plan.dc_asgd else None
        self.inputs: list[str] = []
        self.blocks: list[int] = []
        self.rate_block = -1
        self.gradient_blocks: list[str] = []
        self.sparse_pairs: list[str] = []

    def add_rates(self, templates: Sequence[ServerTemplate]) -> None:
        """Adds one block with the learning-rate ops of all programs, if there are any."""
        with_rates = [template for template in templates if template.facts.roles.learning_rate]
        if with_rates:
            self.rate_block = self.server.new_block(0)
            self.blocks.append(self.rate_block)
        for template in with_rates:
            _copy_rates(self.server, template, self.rate_block)

    def add_updates(self, template: ServerTemplate, parent: int) -> None:
        """Adds a block for each slice or group that a program updates on this server."""
        for unit, after in _units(template, self.endpoint):
            block = self.server.new_block(parent)
            self.blocks.append(block)
            _emit_unit(self.server, template, block, unit, after, self.compensation)
            self.gradient_blocks += (f"{s.gradient}:{block}" for _, s in unit)
            self.sparse_pairs += (f"{s.gradient}:{s.name}" for p, s in unit if p.name in template.row_updates)

    def add_table(self, plan: Plan, parent: int) -> dict[str, AttrValue]:
        """Adds the blocks of the distributed lookup table, if there is one; returns the additional attributes."""
        if plan.table is None:
            return {}
        number = plan.pservers.index(self.endpoint)
        self.blocks.append(len(self.server.blocks))
        self.gradient_blocks.append(f"{merged_gradient(plan, plan.table, number)}:{len(self.server.blocks)}")
        return serve_table(self.server, plan, number, parent)


def emit_pserver(templates: Sequence[ServerTemplate], plan: Plan, source: Program, endpoint: str) -> ServerMain:
    """The main program of the server at `endpoint`.

    There is a template per training program, each with its share of the job's `plan`; `source` declares the variables
    of them all.
    """
    server = ServerProgram(source)
    served = _Served(server, plan, endpoint)
    for template in templates:
        for parameter, s in template.owned_slices[endpoint]:
            server.declare_parameter(parameter, s)
    for template in templates:
        for parameter, s in template.owned_slices[endpoint]:
            served.inputs += _declare_gradients(server, template, parameter, s)
    served.add_rates(templates)
    parent = len(server.blocks) - 1
    for template in templates:
        served.add_updates(template, parent)
    serving = served.add_table(plan, parent)
    if not served.blocks:
        served.blocks.append(server.new_block(parent))
    attrs: dict[str, AttrValue] = {
        "endpoint": endpoint,
        "pserver_id": plan.pservers.index(endpoint),
        "optimize_blocks": BlockRefs(served.blocks),
        "lr_decay_block_id": served.rate_block,
        "grad_to_block_id": Strings(served.gradient_blocks),
        "rpc_get_thread_num": RPC_THREADS,
        "rpc_send_thread_num": RPC_THREADS,
        "rpc_prefetch_thread_num": RPC_THREADS,
        "dc_asgd": plan.dc_asgd,
        "sparse_grad_to_param": Strings(served.sparse_pairs),
        **serving,
        **templates[0].timing.server_attrs(plan),
    }
    origin = made_of_program(source, SERVE)
    server.blocks[0].ops.append(make_op("listen_and_serv", {"X": served.inputs}, {}, attrs, origin=origin))
    return server.finish(_in_placed_order(served.compensation, templates, endpoint) if served.compensation else ())


def _in_placed_order(
    compensation: Compensation, templates: Sequence[ServerTemplate], endpoint: str
) -> list[tuple[str, str]]:
    """The backups in the order in which the slices were assigned to servers; the blocks are in the order of the
    optimizer ops.

    Programs that share a parameter share its backups.
    """
    placed = [s.name for template in templates for _, s in template.owned_slices[endpoint]]
    place = {name: number for number, name in enumerate(placed)}
    return sorted(dict.fromkeys(compensation.backups), key=lambda backup: place[backup[0]])


def _declare_gradients(
    server: ServerProgram, template: ServerTemplate, parameter: PlannedParameter, s: Slice
) -> Sequence[str]:
    """Declares the merged gradient and the variables received for it; returns the latter's names."""
    gradient = template.facts.program.main_block.vars[parameter.gradient]
    received = template.timing.server_inputs(template.plan, s)
    tensor = TensorType(gradient.dtype or parameter.dtype, s.shape)
    server.declare_tensor(s.gradient, tensor, gradient.kind, persistable=True)
    for name in received:
        if name != s.gradient:
            server.declare_tensor(name, tensor, gradient.kind, persistable=False)
    return received


def _copy_rates(server: ServerProgram, template: ServerTemplate, block: int) -> None:
    """Copies the learning-rate ops with their sub-blocks to a block, in program order."""
    for index in template.facts.roles.learning_rate:
        op = template.copied[index]
        for name in op.names:
            server.declare_copy(name)
        server.blocks[block].ops.append(_with_sub_blocks(server, template, op, block))


def _written_state(template: ServerTemplate, update: Update) -> frozenset[str]:
    """The variables that an update writes and that persist, without its parameter."""
    program = template.facts.program.main_block
    written = {name for index in update.ops for name in program.ops[index].output_names}
    written -= {update.parameter, update.gradient}
    return frozenset(name for name in written if name in program.vars and program.vars[name].persistable)


def _with_sub_blocks(server: ServerProgram, template: ServerTemplate, op: Op, block: int) -> Op:
    """The op whose sub-blocks are cloned into children of `block`, with references to the clones."""
    attrs: dict[str, AttrValue] = {}
    for name, value in op.attrs.items():
        if type(value) is BlockRef:
            attrs[name] = BlockRef(_clone_block(server, template, int(value), block, op))
        elif type(value) is BlockRefs:
            attrs[name] = BlockRefs(_clone_block(server, template, b, block, op) for b in value)
    return op._replace(attrs=type(op.attrs)({**op.attrs, **attrs})) if attrs else op


def _clone_block(server: ServerProgram, template: ServerTemplate, source: int, parent: int, owner: Op) -> int:
    """Clones a sub-block: its own variables and, as Fluid does, the outer ones that its ops mention. Returns its index.

    The outer ones are persistable there, which in Fluid's executor makes them the outer variable itself.
    """
    program = template.facts.program
    index = server.new_block(parent)
    own = program.blocks[source].vars
    for var in own.values():
        server.blocks[index].vars[var.name] = var._replace(location=None)
    for op in program.blocks[source].ops:
        for name in op.names:
            if name not in own:
                server.declare_copy(name)
                server.blocks[index].vars[name] = server.blocks[0].vars[name]
        copy = op._replace(origin=derived_origin(op.origin, owner.origin.rule)) if owner.origin else op
        server.blocks[index].ops.append(_with_sub_blocks(server, template, copy, index))
    return index


Unit = list[tuple[PlannedParameter, Slice]]


def _units(template: ServerTemplate, endpoint: str) -> list[tuple[Unit, UpdateGroup | None]]:
    """The content of each optimize block of a server: one slice, or all parameters of a group."""
    here: dict[str, Unit] = {}
    for parameter, s in template.owned_slices[endpoint]:
        here.setdefault(parameter.name, []).append((parameter, s))
    units: list[tuple[Unit, UpdateGroup | None]] = []
    done: set[str] = set()
    for name in template.update_order:
        if name not in here or name in done:
            continue
        group = template.group_of.get(name)
        if group is None:
            units += (([row], None) for row in here[name])
        else:
            done.update(group.parameters)
            units.append(([row for member in group.parameters for row in here[member]], group))
    return units


def _emit_unit(
    server: ServerProgram,
    template: ServerTemplate,
    block: int,
    unit: Unit,
    group: UpdateGroup | None,
    compensation: Compensation | None,
) -> None:
    """Fills one optimize block: it merges the gradients, then runs the optimize ops in program order, then the ops that
    follow them.
    """
    ops = server.blocks[block].ops
    views: dict[int, SliceView] = {}
    shared = {p.name for p, _ in unit}
    several = template.several[unit[0][1].endpoint]
    for parameter, s in unit:
        ops += template.timing.merge(template.plan, s, template.finished[parameter.name])
        update: Update = template.updates[parameter.name]
        only_slice = parameter.name not in several
        view = SliceView(parameter, s, only_slice, frozenset() if only_slice else _written_state(template, update))
        views.update((index, view) for index in update.ops)
    for index in sorted(views):
        op, view = server.on_slice(template.copied[index], views[index]), views[index]
        gradient = op.input("Grad") if compensation is not None and not view.parameter.sparse else None
        if compensation is not None and gradient is not None:
            compensated = compensation.append(block, view.parameter, view.slice, gradient, op.origin)
            op = op._replace(inputs=FrozenMap({**op.inputs, "Grad": (compensated,)}))
        ops.append(op)
    if group is not None:
        for index in group.after:
            op = template.copied[index]
            for name in op.names:
                if name not in shared:
                    server.declare_copy(name)
            names = {p.gradient: s.gradient for p, s in unit}
            ops.append(_with_sub_blocks(server, template, rename_vars(op, names), block))


# The server's start-up program: the source's initialisers of the variables on the server.

_DTYPES = {dtype.value: dtype for dtype in DType}


class Target(NamedTuple):
    """A server variable to initialise: the part of the source variable from `offset` on, or (-1) all of it."""

    name: str
    shape: tuple[int, ...]
    offset: int


class Initialisers:
    """The source's start-up ops by the variables that they make, computed once for all servers of a job."""

    def __init__(self, startup: Program, declared: Mapping[str, Var]):
        """`declared` are the variables of the main program. `misdeclared` says whether some have another element type
        there.
        """
        self.startup = startup
        self.writers: dict[str, tuple[int, ...]] = {}
        self.misdeclared = False
        writers = self.writers
        for index, op in enumerate(startup.main_block.ops):
            this, dtype = (index,), _made_as(op)
            for names in op.outputs.values():
                for name in names:
                    writers[name] = (*writers[name], index) if name in writers else this
                    if dtype is not None and not self.misdeclared:
                        var = declared.get(name)
                        self.misdeclared = var is not None and var.tensor is not None and var.tensor.dtype is not dtype
        self._partial_ops: dict[int, Op] = {}

    def to_cut(self, index: int) -> Op:
        """A start-up op of which servers run parts, with an origin that says so."""
        op = self._partial_ops.get(index)
        if op is None:
            source = self.startup.main_block.ops[index]
            op = self._partial_ops[index] = source._replace(origin=derived_origin(source.origin, INITIALISE))
        return op


def emit_pserver_startup(server: ServerMain, initialisers: Initialisers) -> Program:
    """The start-up program that goes with a server's main program.

    It declares all of the main program's block-0 variables as persistable, and runs the source's initialisers of
    those in source order, each making just the slice that the server holds, with all that they need.
    """
    startup, source = initialisers.startup, initialisers.startup.main_block
    variables = {name: _persistable(var) for name, var in server.program.main_block.vars.items()}
    server_vars, cuts = server.program.main_block.vars, server.cuts
    targets = _targets(server)
    chosen: set[int] = set()
    todo = [cuts[name].source if name in cuts else name for name in server_vars] if cuts else list(server_vars)
    for name in todo:  # the list grows by the inputs of the ops found
        for index in initialisers.writers.get(name, ()):
            if index not in chosen:
                chosen.add(index)
                inputs = source.ops[index].inputs
                for needed in chain.from_iterable(inputs.values()) if inputs else ():
                    if needed not in targets and (needed not in server_vars or needed in cuts):
                        todo.append(needed)
                        if needed in source.vars:  # else a reader's queue, made by the process that feeds it
                            variables.setdefault(needed, source.vars[needed]._replace(location=None))
    ops: list[Op] = []
    for index in sorted(chosen):
        ops += _on_server(initialisers, index, targets) if targets else (source.ops[index],)
    if server.backups:
        makers = {name: op.origin for op in ops for name in op.output_names}
        ops += first_backups(server.backups, makers)
    if initialisers.misdeclared:
        for op in ops:
            _declare_as_made(op, variables)
    main = Block(FrozenMap(variables), tuple(ops))
    uses_blocks = len(startup.blocks) > 1 and any(sub_blocks(op) for op in ops)
    return Program((main, *(startup.blocks[1:] if uses_blocks else ())), startup.random_seed, startup.version)


def _made_as(op: Op) -> DType | None:
    """The element type that Fluid infers from an initialiser; None: it infers none."""
    number = op.attrs.get("dtype") if facts_of(op.type).typed_by == "dtype" else None
    return _DTYPES.get(number) if isinstance(number, int) else None


def _declare_as_made(op: Op, variables: dict[str, Var]) -> None:
    """Changes the declared type of an initialiser's output to the element type that it makes.

    Fluid infers it as it appends the op: the decay of an `ExponentialMovingAverage` is declared i64 and made f32.
    """
    dtype = _made_as(op)
    for name in op.outputs["Out"] if dtype is not None else ():
        var = variables.get(name)
        if var is not None and var.tensor is not None and var.tensor.dtype is not dtype:
            variables[name] = var._replace(tensor=var.tensor._replace(dtype=dtype))


def _persistable(var: Var) -> Var:
    if var.persistable or var.kind in (VarKind.STEP_SCOPES, VarKind.RAW):
        return var
    return var._replace(persistable=True)


def _targets(server: ServerMain) -> dict[str, list[Target]]:
    """The parts or copies of each source variable that the server has. Variables that it has unchanged are left out."""
    targets: dict[str, list[Target]] = {cut.source: [] for cut in server.cuts.values()}
    for name, var in server.program.main_block.vars.items() if targets else ():
        cut = server.cuts.get(name)
        source, offset = (cut.source, cut.offset) if cut else (name, -1)
        if source in targets:
            targets[source].append(Target(name, var.shape, offset))
    return targets


def _on_server(initialisers: Initialisers, index: int, targets: Mapping[str, list[Target]]) -> list[Op]:
    """The op once for each server variable that it initialises; once and unchanged if it has several outputs or makes
    an input.
    """
    op = initialisers.startup.main_block.ops[index]
    outputs = list(op.output_names)
    ops: list[Op] = []
    for target in targets.get(outputs[0], ()) if len(outputs) == 1 else ():
        if target.offset < 0:
            ops.append(op if target.name == outputs[0] else rename_vars(op, {outputs[0]: target.name}))
        else:
            part = slice_initialiser(initialisers.to_cut(index), target.shape, target.offset)
            inputs = [(name, other) for name in op.input_names for other in targets.get(name, ())]
            needed = {name: other.name for name, other in inputs if other.offset == target.offset}
            ops.append(rename_vars(part, {outputs[0]: target.name, **needed}))
    return ops or [op]
