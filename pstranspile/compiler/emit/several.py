"""Several programs on one cluster: training programs that share parameters, and programs that only read them.

Every program of a module other than the start-up program is a part of the job. A program that updates parameters is
compiled like the main one, against the same placement; the servers hold the blocks of all. Another one stays as it is,
but for lookups in tables that the servers keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from pstranspile.compiler.analysis.facts import Facts, analyze
from pstranspile.compiler.analysis.tables import RemoteTable, find_remote_tables, sparse_parameters
from pstranspile.compiler.analysis.updates import UpdateGroup, find_roles
from pstranspile.compiler.emit.rules import rename_vars
from pstranspile.compiler.job import Job
from pstranspile.compiler.plan.plan import SharedCounter
from pstranspile.ir.diagnostics import Diagnostic, at_op, error
from pstranspile.ir.frozen import EMPTY, FrozenMap
from pstranspile.ir.model import MAIN, STARTUP, Module, Program, Var
from pstranspile.ir.passes import Steps


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
        moved = find_roles(block).moved
        used = {n for i in sorted(moved) for n in (*block.ops[i].input_names, *block.ops[i].output_names)}
        clashing = [n for n in block.vars if n in used and n in seen and not block.vars[n].persistable]
        programs[name] = _renamed(program, {n: f"{n}@{name}" for n in clashing})
        seen.update(programs[name].main_block.vars)
    return module.with_programs(programs)


def _renamed(program: Program, names: dict[str, str]) -> Program:
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

    def kept(name: str) -> tuple[RemoteTable, ...]:
        return tuple(table for table in remote[name].tables if table.parameter not in local)

    return Parts(
        {name: replace(facts, tables=kept(name)) for name, facts in training.items()},
        {name: (module[name], kept(name)) for name in rest},
    )


def together(parts: Sequence[Facts]) -> Facts:
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
        groups=_joined(group for facts in parts for group in facts.groups),
        tables=tuple({t.parameter: t for facts in parts for t in facts.tables}.values()),
        lookup_table=table,
    )


def _joined(groups: Iterable[UpdateGroup]) -> tuple[UpdateGroup, ...]:
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
