"""Mode geo: trainers update their own parameters and send the changes every few steps; servers add them up."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from pstranspile.compiler.analysis import Facts
from pstranspile.compiler.analysis.tables import is_sparse, made_large
from pstranspile.compiler.analysis.updates import ATTRIBUTE, Roles, Update, find_roles, no_updates, updated_by_itself
from pstranspile.compiler.analysis.uses import uses_of
from pstranspile.compiler.emit.pserver import RPC_THREADS, Initialisers, emit_pserver_startup
from pstranspile.compiler.emit.rules import (
    ADD_CHANGE,
    BEGIN_EXCHANGE,
    KEEP_CLIP,
    LOCAL_LOOKUP,
    REPORT_ROWS,
    REPORT_STEP,
    SERVE,
    derived_origin,
    made_of_program,
)
from pstranspile.compiler.emit.server_block import ServerMain, ServerProgram
from pstranspile.compiler.emit.servers import combine_facts, training_names
from pstranspile.compiler.emit.trainer import StartupTemplate, emit_trainer_startup
from pstranspile.compiler.job import Job
from pstranspile.compiler.job.modes import COSTS, ModeSettings, Promise, off
from pstranspile.compiler.modes import PreparedJob
from pstranspile.compiler.plan.make import Piece, assemble, can_slice, overview, place
from pstranspile.compiler.plan.plan import (
    CONTROL,
    DistributedVar,
    GeoPlan,
    NameMint,
    Plan,
    PlannedParameter,
    RowRange,
    Slice,
    cut_rows,
)
from pstranspile.ir.attributes import BlockRefs, Longs, Strings
from pstranspile.ir.diagnostics import Diagnostic, Severity, at_op, error, raise_errors, warning
from pstranspile.ir.model import EMPTY, MAIN, STARTUP, FrozenMap, Module, Op, Origin, Program, Role, TensorType, Var
from pstranspile.ir.passes import Steps
from pstranspile.ir.types import DType, OpRole, VarKind
from pstranspile.ops import is_optimizer, schema_of
from pstranspile.ops.build import make_op

if TYPE_CHECKING:
    from pstranspile.compiler.plan.plan_file import PlanFile

# The facts of a training program for mode geo: its parameters, and the ids of the table rows that a step changes.
#
# In geo every update stays on the trainers, so the compiler needs to know nothing of an optimizer but what it updates.

DENSE_REMEDY = "is_sparse=False makes the gradient dense, and all rows are exchanged"


class SentRows(NamedTuple):
    """A variable with numbers of rows, and the table of these rows.

    `padded`: some of the numbers are -1, which stands for no row.
    """

    ids: str
    table: str
    padded: bool = False


def find_local_updates(program: Program, steps: Steps) -> Facts:
    """The facts of a training program whose updates stay where they are. Raises DiagnosticError.

    The pair of a parameter is that of the first optimize op that names it; parameters that are not trainable, and
    optimize ops that name none, are left to the trainers. Parameters that an op updates itself come last.
    """
    roles = steps.run("find-roles", find_roles, program.main_block)
    uses = steps.run("find-uses", uses_of, program.main_block, frozenset[int]())
    updates = steps.run("find-updates", _find_updates, program, roles)
    findings = () if updates else (no_updates(program),)
    return Facts(program, uses, roles, updates, (), frozenset(), findings=findings)


def _find_updates(program: Program, roles: Roles) -> tuple[Update, ...]:
    ops, variables = program.main_block.ops, program.main_block.vars
    result: dict[str, Update] = {}
    for index in roles.optimize:
        op = ops[index]
        pair = op.role_pairs[0] if op.role_pairs else (op.input("Param") or "", op.input("Grad") or "")
        if not pair[0] or pair[0] in result or not (op.role_pairs or is_optimizer(op)):
            continue
        var = variables.get(pair[0])
        if var is None or var.parameter is None or var.parameter.trainable:
            result[pair[0]] = Update(*pair, (index,), (index,))
    for index, op in enumerate(ops):
        for name in updated_by_itself(op) if ATTRIBUTE in op.attrs else ():
            result.setdefault(name, Update(name, name, (index,), (index,)))
    return tuple(result.values())


def find_sent_rows(facts: Facts) -> tuple[SentRows, ...]:
    """The ids of the rows of sparse tables that a step changes, in the order of the ops that use them.

    As in Fluid, ids are sent once more if another table is looked up at them in between. Raises DiagnosticError
    (`geo-rows`) when an op changes rows whose numbers no variable holds.
    """
    sparse = {update.parameter: update for update in facts.updates if is_sparse(facts.program, update.gradient)}
    if not sparse:
        return ()
    sent_rows: list[SentRows] = []
    last: dict[str, str] = {}
    problems: list[Diagnostic] = []
    for op in facts.program.main_block.ops:
        if "is_sparse" not in op.attrs:
            continue
        tables = [name for name in op.input_names if name in sparse]
        rows = _rows_of(op, sparse) if tables else ()
        if tables and not rows and not _is_gradient(op):
            message = f"the op changes rows of %{tables[0]}, and no variable holds their numbers; {DENSE_REMEDY}"
            problems.append(at_op("geo-rows", message, op, focus=f"%{tables[0]}"))
        for row in rows:
            if last.get(row.ids) != row.table:
                sent_rows.append(row)
            last[row.ids] = row.table
    problems += _in_sub_blocks(facts.program, sparse)
    raise_errors(problems)
    known = {rows.table for rows in sent_rows}
    raise_errors(
        at_op(
            "geo-rows",
            f"the gradient of %{name} is sparse, and no op that is known looks it up; {DENSE_REMEDY}",
            facts.program.main_block.ops[update.optimizer[0]],
            focus=f"%{name}",
        )
        for name, update in sparse.items()
        if name not in known
    )
    return tuple(sent_rows)


def _rows_of(op: Op, sparse: dict[str, Update]) -> Sequence[SentRows]:
    """The rows of sparse tables that an op uses: those it looks up, or those of the classes in its loss."""
    if "Ids" in op.inputs and "W" in op.inputs:
        pairs = zip(op.inputs["Ids"], op.inputs["W"], strict=False)
        return [SentRows(ids, table) for ids, table in pairs if table in sparse]
    ids, table, padded = None, None, False
    if op.type == "nce":
        ids, table = op.output("SampleLabels"), op.input("Weight")
    elif op.type == "hierarchical_sigmoid":
        ids, table, padded = op.input("PathTable"), op.input("W"), True
    return [SentRows(ids, table, padded)] if ids and table and table in sparse else ()


def _is_gradient(op: Op) -> bool:
    schema = schema_of(op.type)
    return schema is not None and bool(schema.forward)


def _in_sub_blocks(program: Program, sparse: dict[str, Update]) -> list[Diagnostic]:
    """Errors for ops of sub-blocks that change rows, as the ids of one iteration are lost in the next."""
    findings: list[Diagnostic] = []
    for block in program.blocks[1:]:
        for op in block.ops:
            name = next((n for n in op.input_names if n in sparse), None)
            if name is not None and op.attrs.get("is_sparse") is True and not _is_gradient(op):
                message = (
                    f"%{name} is looked up in a sub-block, where the ids are not those of the whole step; "
                    f"{DENSE_REMEDY}"
                )
                findings.append(at_op("geo-rows", message, op, focus=f"%{name}"))
    return findings


# The slices of parameters in mode geo: by size only, since no server updates them.


def cut_for_geo(
    facts: Facts, sparse: Container[str], startup: Program | None, job: Job
) -> tuple[list[Piece], list[Diagnostic]]:
    """Cuts every parameter, whatever its optimizer, and as in Fluid also if `slice_var_up` is off.

    One whose initialiser can't make a slice stays whole. Findings: errors for parameters without a static shape,
    warnings for those.
    """
    findings: list[Diagnostic] = []
    pieces: list[Piece] = []
    makers = startup.main_block.ops if startup else ()
    whole = {name: op for op in makers if not can_slice(op) for name in op.output_names}
    variables = facts.program.main_block.vars
    for update in facts.updates:
        name, focus = update.parameter, f"%{update.parameter}"
        var = variables.get(name)
        if var is None or var.tensor is None or min(var.shape, default=-1) < 0:
            shown = "no declaration" if var is None else "no static shape"
            op = facts.program.main_block.ops[update.optimizer[0]]
            findings.append(at_op("parameter-shape", f"{focus} has {shown}", op, focus=focus))
            continue
        tensor = var.tensor
        cuts = cut_rows(tensor.shape, len(job.pservers), job.min_block_size)
        if name in whole:
            update = update._replace(uncut_reason=f"{whole[name].type} can't make a slice of it")
        if len(cuts) > 1 and name in whole:
            message = f"{focus} is kept whole: {update.uncut_reason}"
            findings.append(at_op("whole-initialiser", message, whole[name], focus=focus, severity=Severity.WARNING))
            cuts = (RowRange(0, tensor.shape[0]),)
        pieces.append(Piece(update, tensor, cuts, name in sparse, divisible=name not in whole))
    return pieces, findings


# Mode geo on a server: it adds the changes that trainers send to its slices.

GEO = 3
"""The value of `distributed_mode` for servers in mode geo."""


def emit_geo_server(
    plan: Plan,
    source: Program,
    owned: Sequence[tuple[PlannedParameter, Slice]],
    updated_by: dict[str, Origin | None],
    endpoint: str,
) -> ServerMain:
    """The main program of the server at `endpoint`, which owns these slices: a block for each.

    `source` declares the parameters; `updated_by` gives the source op that updates each. A server that owns no slice
    has one empty block, without which Fluid's server does not start.
    """
    server = ServerProgram(source)
    blocks: list[int] = []
    entries: list[str] = []
    sparse_pairs: list[str] = []
    for parameter, s in owned:
        server.declare_parameter(parameter, s)
    for parameter, s in owned:
        change = change_of(s.name, parameter.dtype, s.shape, sparse=parameter.sparse)
        server.blocks[0].vars[change.name] = change
        block = server.new_block(0)
        blocks.append(block)
        entries.append(f"{change.name}:{block}")
        if parameter.sparse:
            sparse_pairs.append(f"{change.name}:{s.name}")
        origin = derived_origin(updated_by[parameter.name], ADD_CHANGE)
        add = make_op("sum", {"X": [s.name, change.name]}, {"Out": [s.name]}, origin=origin)
        server.blocks[block].ops.append(add)
    if not blocks:
        blocks.append(server.new_block(0))
    attrs = {
        "endpoint": endpoint,
        "optimize_blocks": BlockRefs(blocks),
        "Fanin": plan.trainers,
        "distributed_mode": GEO,
        "grad_to_block_id": Strings(entries),
        "sparse_grad_to_param": Strings(sparse_pairs),
        "rpc_get_thread_num": RPC_THREADS,
        "rpc_send_thread_num": RPC_THREADS,
        "rpc_prefetch_thread_num": RPC_THREADS,
    }
    serve = make_op("listen_and_serv", {"X": []}, {}, attrs, origin=made_of_program(source, SERVE))
    server.blocks[0].ops.append(serve)
    return server.finish()


# Mode geo on a trainer: it keeps its updates, and reports every step to its communicator.

BEGIN = "param_init"
"""The variable whose send starts Fluid's communicator, once the parameters are complete."""


def delta_name(variable: str) -> str:
    """The name under which the change of a parameter or slice is sent; Fluid's communicators and servers use it."""
    return f"{variable}.delta"


def change_of(name: str, dtype: DType, shape: tuple[int, ...], *, sparse: bool) -> Var:
    """The variable for the change of a parameter or slice; for a sparse one it has rows."""
    kind = VarKind.SELECTED_ROWS if sparse else VarKind.LOD_TENSOR
    return Var(delta_name(name), kind, TensorType(dtype, shape))


def emit_geo_trainer(
    facts: Facts, sent_rows: Sequence[SentRows], parameters: Sequence[PlannedParameter], geo: GeoPlan
) -> Program:
    """The main program of every trainer: the source's, and a `send` that ends the step.

    `sent_rows` are the ids of changed rows that the send names, `parameters` those whose changes the program
    declares. If no table is sparse, the send has a token, because Fluid's communicator ignores a send without
    inputs. The token is sent for a parameter that the program updates, or, if it updates none, for one that others
    update.
    """
    program, block = facts.program, facts.program.main_block
    variables = dict(block.vars)
    for parameter in parameters:
        whole = change_of(parameter.name, parameter.dtype, parameter.shape, sparse=parameter.sparse)
        variables[whole.name] = whole
        for s in parameter.slices if parameter.is_cut else ():
            change = change_of(s.name, parameter.dtype, s.shape, sparse=parameter.sparse)
            variables[s.name] = Var(s.name, tensor=TensorType(parameter.dtype, s.shape))
            variables[change.name] = change
    clips = frozenset(facts.roles.trainer_clips)
    ops = [_on_trainer(op, is_clip=index in clips) for index, op in enumerate(block.ops)]
    origin = made_of_program(program, REPORT_ROWS if sent_rows else REPORT_STEP)
    trained = (*(update.parameter for update in facts.updates), *(p.name for p in parameters if p.name in block.vars))
    dense = () if sent_rows else trained[:1]
    if dense or any(rows.padded for rows in sent_rows):
        variables[geo.token] = Var(geo.token, tensor=TensorType(DType.INT64, (1,)))
        attrs = {"shape": Longs([1]), "dtype": DType.INT64.value, "value": 0.0}
        ops.append(make_op("fill_constant", {}, {"Out": [geo.token]}, attrs, origin=origin))
    ids: list[str] = []
    for rows in sent_rows:
        name = rows.ids
        if rows.padded:  # -1 becomes row 0, which is sent whether it changed or not
            name = geo.row_names[rows.ids]
            variables[name] = block.vars[rows.ids]._replace(name=name, need_check_feed=False, location=None)
            inputs = {"X": [rows.ids], "Y": [geo.token]}
            ops.append(make_op("elementwise_max", inputs, {"Out": [name]}, origin=origin))
        ids.append(name)
    tables = [rows.table for rows in sent_rows]
    if dense:
        ids, tables = [geo.token], [*dense]
    variables[geo.step] = Var(geo.step)
    ops.append(make_op("send", {"X": ids}, {"Out": [geo.step]}, {"send_varnames": Strings(tables)}, origin=origin))
    main = block._replace(vars=FrozenMap(variables), ops=tuple(ops))
    return program.with_main_block(main)


def _on_trainer(op: Op, *, is_clip: bool) -> Op:
    """The op in the form for trainers: clips belong to the backward pass, lookups are local."""
    if is_clip:
        return op._replace(role=OpRole.BACKWARD, origin=derived_origin(op.origin, KEEP_CLIP))
    if op.type == "lookup_table" and op.attrs.get("remote_prefetch") is True:
        attrs = FrozenMap({**op.attrs, "remote_prefetch": False})
        return op._replace(attrs=attrs, origin=derived_origin(op.origin, LOCAL_LOOKUP))
    return op


class GeoStartupTemplate:
    """The parts that the start-up programs of all trainers of a geo job share: `variables`, and `begin`, their last op.

    In addition to the source's ops they receive the parameters from the servers, and end with the send of `param_init`.
    `received` is the plan restricted to the parameters that are received. In Fluid each trainer initialises looked-up
    tables; their initialisers make the same values here as on the servers.
    """

    def __init__(self, plan: Plan, received: Plan, declared: Mapping[str, Var], startup: Program):
        """`declared` are the variables of the main program."""
        geo = plan.geo
        assert geo is not None
        self.startup = StartupTemplate(received, frozenset(), declared, startup)
        variables = dict(self.startup.variables)
        for parameter in plan.parameters:
            change = change_of(parameter.name, parameter.dtype, parameter.shape, sparse=parameter.sparse)
            variables[change.name] = change
        variables[BEGIN] = Var(BEGIN)
        variables[geo.begin] = Var(geo.begin)
        self.variables = FrozenMap(variables)
        origin = made_of_program(startup, BEGIN_EXCHANGE, STARTUP)
        attrs = {"send_varnames": Strings([BEGIN])}
        self.begin = make_op("send", {"X": [BEGIN]}, {"Out": [geo.begin]}, attrs, origin=origin)


def emit_geo_trainer_startup(template: GeoStartupTemplate, trainer: int) -> Program:
    """The start-up program of one trainer."""
    program = emit_trainer_startup(template.startup, trainer)
    block = program.main_block
    main = block._replace(vars=template.variables, ops=(*block.ops, template.begin))
    return program.with_main_block(main)


class GeoProgram(NamedTuple):
    """One training program: its facts, and the rows that its steps report to the communicator."""

    facts: Facts
    sent_rows: tuple[SentRows, ...]


@dataclass(frozen=True)
class GeoJob:
    """The emitter of mode geo. `facts` are those of all training programs together, `parts` each, main first."""

    module: Module
    facts: Facts
    plan: Plan
    parts: dict[str, GeoProgram]
    steps: Steps

    @cached_property
    def _mains(self) -> dict[str, Program]:
        """The main programs of every trainer, by name."""
        geo = self.plan.geo
        assert geo is not None
        return {
            name: emit_geo_trainer(facts, sent_rows, self.plan.parameters if name == MAIN else self._own(facts), geo)
            for name, (facts, sent_rows) in self.parts.items()
        }

    def _own(self, facts: Facts) -> list[PlannedParameter]:
        return [self.plan.by_name[update.parameter] for update in facts.updates]

    @cached_property
    def _startup_fetch_plan(self) -> Plan:
        """The plan restricted to the parameters that trainers fetch at the start: as in Fluid, all but looked-up
        tables.
        """
        local = {
            op.inputs["W"][0]
            for part in self.parts.values()
            for op in part.facts.program.main_block.ops
            if op.type == "lookup_table" and op.attrs.get("is_sparse") is True
        }
        fetched = tuple(p for p in self.plan.parameters if p.name not in local)
        return replace(self.plan, parameters=fetched, send_order=())

    @cached_property
    def _startup_template(self) -> GeoStartupTemplate:
        declared = self.facts.program.main_block.vars
        return GeoStartupTemplate(self.plan, self._startup_fetch_plan, declared, self.module[STARTUP])

    @cached_property
    def _slices_by_server(self) -> dict[str, list[tuple[PlannedParameter, Slice]]]:
        owned: dict[str, list[tuple[PlannedParameter, Slice]]] = {endpoint: [] for endpoint in self.plan.pservers}
        for parameter in self.plan.parameters:
            for s in parameter.slices:
                owned[s.endpoint].append((parameter, s))
        return owned

    @cached_property
    def _initialisers(self) -> Initialisers:
        return Initialisers(self.module[STARTUP], self.facts.program.main_block.vars)

    @cached_property
    def _updated_by(self) -> dict[str, Origin | None]:
        return {
            update.parameter: part.facts.program.main_block.ops[update.optimizer[0]].origin
            for part in reversed(self.parts.values())
            for update in part.facts.updates
        }

    def trainer(self, index: int) -> Role:
        """The programs of trainer `index`. Programs that update nothing are as they were."""
        mains = self.steps.run("emit-trainers", lambda: self._mains)
        others = {name: mains.get(name, program) for name, program in self.module.programs.items()}
        del others[MAIN], others[STARTUP]
        startup = self.steps.run(
            "emit-trainer-startups", lambda: emit_geo_trainer_startup(self._startup_template, index)
        )
        return Role(f"trainer_{index}", mains[MAIN], startup, FrozenMap(others) if others else EMPTY)

    def pserver(self, endpoint: str) -> Role:
        """The programs of the server at `endpoint`."""
        owned, source = self._slices_by_server[endpoint], self.facts.program
        run = self.steps.run
        server = run("emit-pservers", emit_geo_server, self.plan, source, owned, self._updated_by, endpoint)
        startup = run("emit-pserver-startups", emit_pserver_startup, server, self._initialisers)
        return Role(f"pserver_{self.plan.pservers.index(endpoint)}", server.program, startup)

    def distributed_vars(self) -> tuple[DistributedVar, ...]:
        """The parameters; the state of their optimizers never leaves the trainers."""
        return overview(self.plan, ())


class GeoFacts(NamedTuple):
    """The facts of a module in mode geo: those of each training program, main first, and of all together."""

    module: Module
    parts: dict[str, GeoProgram]
    combined_facts: Facts


class Geo:
    """Trainers update their own parameters, and exchange the changes with the servers every few steps."""

    settings = ModeSettings(
        "trainers update locally and exchange the differences of their parameters every few steps",
        "geo_sgd_mode = true",
        {"sync_mode": False, "geo_sgd_mode": True, **off("half_async", "completely_not_async")},
        {"runtime_split_send_recv": True},
        options=("geo_sgd_need_push_nums", "split_method", "min_block_size", *COSTS),
        promise=Promise.NEVER,
    )

    def analyze(self, module: Module, job: Job, steps: Steps) -> GeoFacts:
        """The facts of all training programs. Raises DiagnosticError."""
        del job
        message = "it is a large table, of which geo-SGD would have every trainer hold all rows"
        large = made_large(module[STARTUP]).items()
        raise_errors(at_op("table-large", f"%{name}: {message}", op, focus=f"%{name}") for name, op in large)
        parts: dict[str, GeoProgram] = {}
        for name in training_names(module):
            facts = find_local_updates(module[name], steps)
            parts[name] = GeoProgram(facts, steps.run("find-tables", find_sent_rows, facts))
        return GeoFacts(module, parts, combine_facts([part.facts for part in parts.values()]))

    def prepare(self, facts: GeoFacts, job: Job, given: Plan | PlanFile | None, steps: Steps) -> PreparedJob:
        """The plan of a job in mode geo, and its emitter. Raises DiagnosticError."""
        module, parts, whole = facts
        plan, warnings = given, list[Diagnostic]()
        if not isinstance(plan, Plan):
            sparse = _sparse(whole, parts)
            pieces, warnings = steps.run("slice-variables", cut_for_geo, whole, sparse, module.startup, job)
            raise_errors(warnings)
            if plan is None:
                order = tuple(range(len(pieces)))
                pieces, placed = steps.run("place-slices", place, whole, job, pieces, order)
                plan = steps.run("mint-names", assemble, whole, job, pieces, order, placed, False)
            else:
                from pstranspile.compiler.plan.plan_file import apply_plan

                plan = apply_plan(plan, whole, job, pieces, False)
        geo, order = _geo(module, job, parts.values()), tuple(range(len(plan.parameters)))
        plan = replace(plan, geo=geo, send_order=order, made_for=module)
        raise_errors(_reserved_name_errors(module, plan))
        warnings += [*_name_warnings(plan), *(finding for part in parts.values() for finding in part.facts.findings)]
        return PreparedJob(plan, GeoJob(module, whole, plan, parts, steps), tuple(warnings))


def _sparse(facts: Facts, parts: dict[str, GeoProgram]) -> frozenset[str]:
    """The parameters whose gradients are sparse in every program that updates them."""
    dense = {
        update.parameter
        for part in parts.values()
        for update in part.facts.updates
        if not is_sparse(part.facts.program, update.gradient)
    }
    return frozenset(update.parameter for update in facts.updates if update.parameter not in dense)


def _geo(module: Module, job: Job, parts: Iterable[GeoProgram]) -> GeoPlan:
    mint = NameMint(name for program in module.programs.values() for block in program.blocks for name in block.vars)
    step, begin = mint.mint(f"{CONTROL}step"), mint.mint(f"{CONTROL}{BEGIN}")
    token = mint.mint("geo_step")
    padded = dict.fromkeys(rows.ids for part in parts for rows in part.sent_rows if rows.padded)
    names = FrozenMap({ids: mint.mint(f"{ids}.rows") for ids in padded})
    return GeoPlan(job.geo_sgd_need_push_nums, step, begin, token, names)


def _reserved_name_errors(module: Module, plan: Plan) -> list[Diagnostic]:
    """Errors for variables of the program whose names are reserved by the communicator."""
    needed = {BEGIN: "tells the communicator that the parameters are there"}
    for parameter in plan.parameters:
        for name in (parameter.name, *(s.name for s in parameter.slices)):
            needed[delta_name(name)] = f"is the change of %{name}"
    findings: dict[str, Diagnostic] = {}
    for program in module.programs.values():
        for name, var in program.main_block.vars.items():
            if name in needed:
                message = f"%{name} {needed[name]} in mode geo; the program uses it for something else: rename it"
                findings.setdefault(name, error("geo-name", message, var.location, focus=f"%{name}"))
    return list(findings.values())


def _name_warnings(plan: Plan) -> Sequence[Diagnostic]:
    """Warnings for names that contain a separator of the text that Fluid's communicator reads."""
    return [
        warning(
            "geo-name",
            f"Fluid's communicator can't be told of %{p.name}: its name has # or & in it",
            focus=f"%{p.name}",
        )
        for p in plan.parameters
        if "#" in p.name or "&" in p.name
    ]


MODE = Geo()
