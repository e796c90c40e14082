"""The programs of a job whose servers store and update the parameters: the parts of the source, and the emitter of all
programs.

Several programs may share one cluster: training programs that share parameters, and programs that only read them. Every
program of a module other than the start-up program is a part of the job. A program that updates parameters is compiled
like the main one, against the same placement; the servers hold the blocks of all. Another one stays as it is, but for
lookups in tables that the servers keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from pstranspile.compiler.analysis import Facts, analyze
from pstranspile.compiler.analysis.tables import RemoteTable, find_remote_tables, sparse_parameters
from pstranspile.compiler.analysis.updates import UpdateGroup, find_roles
from pstranspile.compiler.analysis.uses import names_in
from pstranspile.compiler.emit.pserver import Initialisers, ServerTemplate, emit_pserver, emit_pserver_startup
from pstranspile.compiler.emit.rules import Timing, rename_vars
from pstranspile.compiler.emit.table import Insertion, insert_lookups, lookup_vars
from pstranspile.compiler.emit.trainer import StartupTemplate, TrainerTemplate, emit_trainer, emit_trainer_startup
from pstranspile.compiler.job import Job
from pstranspile.compiler.plan.make import overview
from pstranspile.compiler.plan.plan import DistributedVar, Plan, SharedCounter
from pstranspile.ir.diagnostics import Diagnostic, at_op, error
from pstranspile.ir.model import EMPTY, MAIN, STARTUP, FrozenMap, Module, Op, Program, Role, Var
from pstranspile.ir.passes import Steps

# The parts of a job: training programs that share parameters, and programs that only read them.


class Parts(NamedTuple):
    """The programs of a job: the facts of those that train, by name, main first, and the others with their remote
    tables.
    """

    training: dict[str, Facts]
    reading: dict[str, tuple[Program, tuple[RemoteTable, ...]]]


def training_names(module: Module) -> list[str]:
    """The names of the programs that update parameters, main first."""
    others = sorted(name for name in module.programs if name not in (MAIN, STARTUP))
    return [MAIN, *(name for name in others if find_roles(module[name].main_block).optimize)]


def separate(module: Module) -> Module:
    """The module in which temporaries that several training programs send to the servers have unique names.

    A server runs the updates of all programs in one scope. So a variable that is not persistable, in the moved ops of a
    later program, gets that program's name appended if an earlier program has a variable of its name.
    """
    names = training_names(module)
    programs = dict(module.programs)
    seen = set(module.main.main_block.vars)
    for name in names[1:]:
        program = programs[name]
        block = program.main_block
        moved = find_roles(block).moved_by_role
        used = {n for i in sorted(moved) for n in (*block.ops[i].input_names, *block.ops[i].output_names)}
        clashing = [n for n in block.vars if n in used and n in seen and not block.vars[n].persistable]
        programs[name] = _rename_program_variables(program, {n: f"{n}@{name}" for n in clashing})
        seen.update(programs[name].main_block.vars)
    return module.with_programs(programs)


def _rename_program_variables(program: Program, names: dict[str, str]) -> Program:
    """The program with new names of variables of its main block, everywhere."""
    if not names:
        return program
    blocks = [block._replace(ops=tuple(rename_vars(op, names) for op in block.ops)) for block in program.blocks]
    variables: dict[str, Var] = {}
    for name, var in program.main_block.vars.items():
        new = names.get(name, name)
        variables[new] = var._replace(name=new)
    blocks[0] = blocks[0]._replace(vars=FrozenMap(variables))
    return program._replace(blocks=tuple(blocks))


def find_parts(module: Module, job: Job, steps: Steps) -> Parts:
    """The facts of every program; a table is remote only if no program reads it otherwise. Raises DiagnosticError."""
    by_rows = job.distributed_table == "rows"
    training = {name: analyze(module[name], steps, tables_by_rows=by_rows) for name in training_names(module)}
    rest = [name for name in module.programs if name not in training and name != STARTUP]
    if not rest and len(training) == 1:
        return Parts(training, {})
    sparse = list(
        dict.fromkeys(n for facts in training.values() for n in sparse_parameters(facts.program, facts.updates))
    )
    moved = {name: facts.moved for name, facts in training.items()}
    remote = {
        name: find_remote_tables(module[name], sparse, moved.get(name, frozenset[int]()), distributed=by_rows)
        for name in (*training, *rest)
    }
    local = {name for result in remote.values() for name in result.local}

    def remote_tables(name: str) -> tuple[RemoteTable, ...]:
        return tuple(table for table in remote[name].tables if table.parameter not in local)

    return Parts(
        {name: replace(facts, tables=remote_tables(name)) for name, facts in training.items()},
        {name: (module[name], remote_tables(name)) for name in rest},
    )


def combine_facts(parts: Sequence[Facts]) -> Facts:
    """The facts of all training programs combined: every variable, every update once, groups joined."""
    if len(parts) == 1:
        return parts[0]
    variables = {name: var for facts in reversed(parts) for name, var in facts.program.main_block.vars.items()}
    main = parts[0].program
    block = main.main_block._replace(vars=FrozenMap(variables))
    updates = {update.parameter: update for facts in reversed(parts) for update in facts.updates}
    order = dict.fromkeys(update.parameter for facts in parts for update in facts.updates)
    table = next((facts.lookup_table for facts in parts if facts.lookup_table), None)
    return replace(
        parts[0],
        program=main.with_main_block(block),
        updates=tuple(updates[name] for name in order),
        groups=_merge_groups(group for facts in parts for group in facts.groups),
        tables=tuple({t.parameter: t for facts in parts for t in facts.tables}.values()),
        lookup_table=table,
    )


def _merge_groups(groups: Iterable[UpdateGroup]) -> tuple[UpdateGroup, ...]:
    """The groups of several programs; groups with a parameter in common are joined (without the ops that follow their
    updates).
    """
    joined: list[tuple[str, ...]] = []
    for group in groups:
        near = [names for names in joined if set(names) & set(group.parameters)]
        joined = [names for names in joined if names not in near]
        joined.append(tuple(dict.fromkeys(name for names in (*near, group.parameters) for name in names)))
    return tuple(UpdateGroup(names) for names in joined)


def problems_of(parts: Parts, job: Job, counters: Mapping[str, Sequence[SharedCounter]] = EMPTY) -> list[Diagnostic]:
    """Errors for combinations of training programs that are not possible; `counters` are the step counters of each."""
    findings: list[Diagnostic] = []
    training = parts.training
    if len(training) < 2:
        return findings
    tables = [(name, facts.lookup_table) for name, facts in training.items() if facts.lookup_table]
    for name, table in tables[1:]:
        op = training[name].program.main_block.ops[table.lookups[0]]
        message = f"@{tables[0][0]} and @{name} both train a distributed lookup table; use distributed_table=rows"
        findings.append(at_op("programs-table", message, op, focus=f"%{table.parameter}"))
    counted: dict[str, str] = {}
    for name, counter in ((name, counter) for name, rows in counters.items() for counter in rows):
        other = counted.setdefault(counter.name, name)
        if other != name:
            message = (
                f"@{other} and @{name} both count steps in %{counter.name} for their learning rates; give it another "
                f"name in one of them (and in @{STARTUP})"
            )
            where = counter.origin.location if counter.origin else None
            findings.append(error("programs-counter", message, where, focus=f"%{counter.name}"))
    for name, facts in training.items():
        counter = next(
            (
                op
                for op in [facts.program.main_block.ops[i] for i in facts.roles.learning_rate]
                if set(op.input_names) & set(op.output_names)
            ),
            None,
        )
        if counter is not None and not counters.get(name):
            message = (
                f"@{name} counts steps for its learning rate, and servers count those of all training programs in "
                f"mode {job.mode}; modes async, half-async and fleet-sync count them apart"
            )
            findings.append(at_op("programs-schedule", message, counter))
    return findings


# Programs of a job that update nothing, such as an evaluation: unchanged, except for lookups in tables on the servers.


def emit_reader(program: Program, tables: Sequence[RemoteTable], plan: Plan, trainer: int) -> Program:
    """The program in which lookups in tables that the trainer does not have are done on the servers.

    It reads the parameters that the trainer received last.
    """
    block = program.main_block
    inserted: dict[int, list[Insertion]] = {}
    fused = insert_lookups(inserted, block.ops, tables, plan, ())
    if not fused:
        return program
    ops: list[Op] = [op for insertion in inserted.get(-1, ()) for op in insertion(trainer)]
    for index, op in enumerate(block.ops):
        if index not in fused:
            ops.append(op)
        for insertion in inserted.get(index, ()):
            ops += insertion(trainer)
    variables = FrozenMap({**block.vars, **lookup_vars(program, plan, ())})
    return program.with_main_block(block._replace(vars=variables, ops=tuple(ops)))


def variables_used(program: Program) -> set[str]:
    """All variables that an op of the program reads or writes."""
    return {name for block in program.blocks for op in block.ops for name in op.names}


class ProgramShare(NamedTuple):
    """One training program of a job: its name, its facts, and its share of the plan."""

    name: str
    facts: Facts
    plan: Plan


@dataclass(frozen=True)
class ServerJob:
    """The emitter of the modes with servers: `module` is the source as the mode has rewritten it, `timing` the mode.

    `parts` are the training programs, main first, `reading` the others; `facts` are those of all parts together.
    """

    module: Module
    facts: Facts
    plan: Plan
    parts: tuple[ProgramShare, ...]
    reading: Mapping[str, tuple[Program, tuple[RemoteTable, ...]]]
    timing: Timing
    steps: Steps

    @cached_property
    def _trainer_templates(self) -> list[TrainerTemplate]:
        return [TrainerTemplate(part.facts, part.plan, self.timing, self.plan) for part in self.parts]

    @cached_property
    def _startup_template(self) -> StartupTemplate:
        return StartupTemplate(
            self.plan, self._dropped_variables, self.facts.program.main_block.vars, self.module[STARTUP]
        )

    @cached_property
    def _server_templates(self) -> list[ServerTemplate]:
        return [ServerTemplate(part.facts, part.plan, self.timing) for part in self.parts]

    @cached_property
    def _initialisers(self) -> Initialisers:
        return Initialisers(self.module[STARTUP], self.facts.program.main_block.vars)

    @cached_property
    def _dropped_variables(self) -> frozenset[str]:
        """The variables that have left the trainers: dropped by one program, and used by no other."""
        templates = self._trainer_templates
        dropped = templates[0].dropped_vars.union(*(template.dropped_vars for template in templates[1:]))
        if len(templates) == 1 and not self.reading:
            return dropped
        kept: set[str] = set()
        for template in templates:
            block, moved = template.facts.program.main_block, template.facts.moved
            kept |= names_in(block, (i for i in range(len(block.ops)) if i not in moved))
        kept.update(name for program, _ in self.reading.values() for name in variables_used(program))
        return dropped - kept

    def trainer(self, index: int) -> Role:
        """The programs of trainer `index`."""
        main, *others = [self.steps.run("emit-trainers", emit_trainer, t, index) for t in self._trainer_templates]
        named = dict(zip((part.name for part in self.parts[1:]), others, strict=True))
        for name, (program, tables) in self.reading.items():
            named[name] = self.steps.run("emit-trainers", emit_reader, program, tables, self.plan, index)
        startup = self.steps.run("emit-trainer-startups", lambda: emit_trainer_startup(self._startup_template, index))
        return Role(f"trainer_{index}", main, startup, FrozenMap(named) if named else EMPTY)

    def pserver(self, endpoint: str) -> Role:
        """The programs of the server at `endpoint`."""
        templates, source = self._server_templates, self.facts.program
        server = self.steps.run("emit-pservers", emit_pserver, templates, self.plan, source, endpoint)
        startup = self.steps.run("emit-pserver-startups", emit_pserver_startup, server, self._initialisers)
        return Role(f"pserver_{self.plan.pservers.index(endpoint)}", server.program, startup)

    def distributed_vars(self) -> tuple[DistributedVar, ...]:
        """Every variable on the servers: parameters, then the state of their optimizers."""
        return overview(self.plan, [part.facts for part in self.parts])
