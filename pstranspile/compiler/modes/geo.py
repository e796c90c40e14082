"""Mode geo: trainers update their own parameters and exchange what changed every few steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from pstranspile.compiler.analysis.facts import Facts
from pstranspile.compiler.analysis.tables import is_sparse, made_large
from pstranspile.compiler.emit.pserver import Initialisers, emit_pserver_startup
from pstranspile.compiler.emit.several import together, training_names
from pstranspile.compiler.job import Job
from pstranspile.compiler.job.modes import ModeSettings, Promise, off
from pstranspile.compiler.modes.shared.base import Prepared
from pstranspile.compiler.modes.shared.geo import (
    BEGIN,
    GeoStartupTemplate,
    SentRows,
    cut_for_geo,
    delta_name,
    emit_geo_server,
    emit_geo_trainer,
    emit_geo_trainer_startup,
    find_local_updates,
    find_sent_rows,
)
from pstranspile.compiler.plan.make import assemble, overview, place
from pstranspile.compiler.plan.plan import (
    CONTROL,
    DistributedVar,
    GeoPlan,
    NameMint,
    Plan,
    PlannedParameter,
    Slice,
)
from pstranspile.ir.diagnostics import Diagnostic, at_op, error, raise_errors, warning
from pstranspile.ir.frozen import EMPTY, FrozenMap
from pstranspile.ir.model import MAIN, STARTUP, Module, Origin, Program, Role
from pstranspile.ir.passes import Steps

if TYPE_CHECKING:
    from pstranspile.compiler.plan.edited import PlanFile


class Part(NamedTuple):
    """One training program: its facts, and the rows that its steps report to the communicator."""

    facts: Facts
    sent_rows: tuple[SentRows, ...]


@dataclass(frozen=True)
class GeoJob:
    """The emitter of mode geo. `facts` is what all training programs have together, `parts` each, main first."""

    module: Module
    facts: Facts
    plan: Plan
    parts: dict[str, Part]
    steps: Steps

    @cached_property
    def _mains(self) -> dict[str, Program]:
        """The training programs as every trainer has them."""
        geo = self.plan.geo
        assert geo is not None
        return {
            name: emit_geo_trainer(facts, sent_rows, self.plan.parameters if name == MAIN else self._own(facts), geo)
            for name, (facts, sent_rows) in self.parts.items()
        }

    def _own(self, facts: Facts) -> list[PlannedParameter]:
        return [self.plan.by_name[update.parameter] for update in facts.updates]

    @cached_property
    def _received(self) -> Plan:
        """The plan with just the parameters that trainers fetch at the start: as in Fluid, all but looked-up tables."""
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
        return GeoStartupTemplate(self.plan, self._received, declared, self.module[STARTUP])

    @cached_property
    def _owned(self) -> dict[str, list[tuple[PlannedParameter, Slice]]]:
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
        owned, source = self._owned[endpoint], self.facts.program
        run = self.steps.run
        server = run("emit-pservers", emit_geo_server, self.plan, source, owned, self._updated_by, endpoint)
        startup = run("emit-pserver-startups", emit_pserver_startup, server, self._initialisers)
        return Role(f"pserver_{self.plan.pservers.index(endpoint)}", server.program, startup)

    def distributed_vars(self) -> tuple[DistributedVar, ...]:
        """The parameters; the state of their optimizers never leaves the trainers."""
        return overview(self.plan, ())


class GeoFacts(NamedTuple):
    """What is known of a module in mode geo: each training program, main first, and what they have together."""

    module: Module
    parts: dict[str, Part]
    whole: Facts


class Geo:
    """Trainers update their own parameters, and exchange with the servers what changed every few steps."""

    settings = ModeSettings(
        "trainers update locally and exchange the differences of their parameters every few steps",
        "geo_sgd_mode = true",
        {"sync_mode": False, "geo_sgd_mode": True, **off("half_async", "completely_not_async")},
        {"runtime_split_send_recv": True},
        options=("geo_sgd_need_push_nums", "split_method", "min_block_size"),
        promise=Promise.NEVER,
    )

    def analyze(self, module: Module, job: Job, steps: Steps) -> GeoFacts:
        """The facts of all training programs. Raises DiagnosticError."""
        del job
        message = "it is a large table, of which geo-SGD would have every trainer hold all rows"
        large = made_large(module[STARTUP]).items()
        raise_errors(at_op("table-large", f"%{name}: {message}", op, focus=f"%{name}") for name, op in large)
        parts: dict[str, Part] = {}
        for name in training_names(module):
            facts = find_local_updates(module[name], steps)
            parts[name] = Part(facts, steps.run("find-tables", find_sent_rows, facts))
        return GeoFacts(module, parts, together([part.facts for part in parts.values()]))

    def prepare(self, facts: GeoFacts, job: Job, given: Plan | PlanFile | None, steps: Steps) -> Prepared:
        """The plan of a job in mode geo, and its emitter. Raises DiagnosticError."""
        module, parts, whole = facts
        plan, warnings = given, list[Diagnostic]()
        if not isinstance(plan, Plan):
            sparse = _sparse(whole, parts)
            pieces, warnings = steps.run("slice-variables", cut_for_geo, whole, sparse, module.startup, job)
            raise_errors(warnings)
            if plan is None:
                order = tuple(range(len(pieces)))
                placed = steps.run("place-slices", place, whole, job, pieces, order)
                plan = steps.run("mint-names", assemble, whole, job, pieces, order, placed, False)
            else:
                from pstranspile.compiler.plan.edited import apply_plan

                plan = apply_plan(plan, whole, job, pieces, False)
        geo, order = _geo(module, job, parts.values()), tuple(range(len(plan.parameters)))
        plan = replace(plan, geo=geo, send_order=order, made_for=module)
        raise_errors(_taken(module, plan))
        warnings += [*_name_warnings(plan), *(finding for part in parts.values() for finding in part.facts.findings)]
        return Prepared(plan, GeoJob(module, whole, plan, parts, steps), tuple(warnings))


def _sparse(facts: Facts, parts: dict[str, Part]) -> frozenset[str]:
    """The parameters whose gradients are sparse in every program that updates them."""
    dense = {
        update.parameter
        for part in parts.values()
        for update in part.facts.updates
        if not is_sparse(part.facts.program, update.gradient)
    }
    return frozenset(update.parameter for update in facts.updates if update.parameter not in dense)


def _geo(module: Module, job: Job, parts: Iterable[Part]) -> GeoPlan:
    mint = NameMint(name for program in module.programs.values() for block in program.blocks for name in block.vars)
    step, begin = mint.mint(f"{CONTROL}step"), mint.mint(f"{CONTROL}{BEGIN}")
    token = mint.mint("geo_step")
    padded = dict.fromkeys(rows.ids for part in parts for rows in part.sent_rows if rows.padded)
    names = FrozenMap({ids: mint.mint(f"{ids}.rows") for ids in padded})
    return GeoPlan(job.geo_sgd_need_push_nums, step, begin, token, names)


def _taken(module: Module, plan: Plan) -> list[Diagnostic]:
    """Errors for variables of the program that have names which the communicator gives a meaning."""
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
    """Warnings for names that hold what separates them in the text that Fluid's communicator reads."""
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
