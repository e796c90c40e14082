"""What mode geo needs to know of a training program: its parameters, and the ids of the table rows that a step changes.

In geo every update stays on the trainers, so the compiler needs to know nothing of an optimizer but what it updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pstranspile.compiler.analysis.facts import Facts
from pstranspile.compiler.analysis.roles import Roles, find_roles
from pstranspile.compiler.analysis.self_updates import ATTRIBUTE, updated_by_itself
from pstranspile.compiler.analysis.sparse_tables import is_sparse
from pstranspile.compiler.analysis.updates import Update, no_updates
from pstranspile.compiler.analysis.uses import uses_of
from pstranspile.ir.diagnostics import Diagnostic, at_op, raise_errors
from pstranspile.ir.model import Op, Program
from pstranspile.ir.passes import Steps
from pstranspile.ops import is_optimizer, schema_of

DENSE_REMEDY = "is_sparse=False makes the gradient dense, and all rows are exchanged"


class SentRows(NamedTuple):
    """A variable that holds numbers of rows, and the table whose rows they are.

    `padded`: some of the numbers are -1, which stands for none.
    """

    ids: str
    table: str
    padded: bool = False


def find_local_updates(program: Program, steps: Steps) -> Facts:
    """The facts of a training program whose updates stay where they are. Raises DiagnosticError.

    The pair of a parameter is that of the first optimize op that names it; parameters that are not trainable, and
    optimize ops that name none, are left to the trainers. Parameters that an op updates by itself follow.
    """
    roles = steps.run("find-roles", find_roles, program.main_block)
    uses = steps.run("find-uses", uses_of, program.main_block, frozenset[int]())
    updates = steps.run("find-updates", _trained, program, roles)
    findings = () if updates else (no_updates(program),)
    return Facts(program, uses, roles, updates, (), frozenset(), findings=findings)


def _trained(program: Program, roles: Roles) -> tuple[Update, ...]:
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
    """The rows of sparse tables that an op uses: those it looks up, or the classes that its loss is about."""
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
    """Errors for ops of sub-blocks that change rows: what they use in one round is gone in the next."""
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
