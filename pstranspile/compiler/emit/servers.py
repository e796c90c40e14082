"""Emits all programs of a job whose servers store and update the parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pstranspile.compiler.analysis.facts import Facts
from pstranspile.compiler.analysis.tables import RemoteTable
from pstranspile.compiler.analysis.uses import names_in
from pstranspile.compiler.emit.pserver import Initialisers, ServerTemplate, emit_pserver, emit_pserver_startup
from pstranspile.compiler.emit.rules import Timing
from pstranspile.compiler.emit.table import Insertion, insert_lookups, lookup_vars
from pstranspile.compiler.emit.trainer import StartupTemplate, TrainerTemplate, emit_trainer, emit_trainer_startup
from pstranspile.compiler.plan.make import overview
from pstranspile.compiler.plan.plan import DistributedVar, Plan
from pstranspile.ir.frozen import EMPTY, FrozenMap
from pstranspile.ir.model import STARTUP, Module, Op, Program, Role
from pstranspile.ir.passes import Steps

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


class Part(NamedTuple):
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
    parts: tuple[Part, ...]
    reading: Mapping[str, tuple[Program, tuple[RemoteTable, ...]]]
    timing: Timing
    steps: Steps

    @cached_property
    def _trainer_templates(self) -> list[TrainerTemplate]:
        return [TrainerTemplate(part.facts, part.plan, self.timing, self.plan) for part in self.parts]

    @cached_property
    def _startup_template(self) -> StartupTemplate:
        return StartupTemplate(self.plan, self._dropped, self.facts.program.main_block.vars, self.module[STARTUP])

    @cached_property
    def _server_templates(self) -> list[ServerTemplate]:
        return [ServerTemplate(part.facts, part.plan, self.timing) for part in self.parts]

    @cached_property
    def _initialisers(self) -> Initialisers:
        return Initialisers(self.module[STARTUP], self.facts.program.main_block.vars)

    @cached_property
    def _dropped(self) -> frozenset[str]:
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
