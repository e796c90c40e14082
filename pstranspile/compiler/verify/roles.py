"""The role variables of ops: pairs of a parameter and its gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from pstranspile.compiler.verify.places import Findings, declared_here
from pstranspile.ir.describe import var_text
from pstranspile.ir.diagnostics import Severity
from pstranspile.ir.model import Op, Var
from pstranspile.ir.roles import RUN_BY_FLUID
from pstranspile.ir.text.literals import role_text


def check_roles(ops: Sequence[Op], block: int, findings: Findings) -> None:
    """Reports roles that Fluid does not know: it refuses to run such an op."""
    held = {id(op.role): op.role for op in ops}  # members are few, and made once; hashing one costs more
    unknown = {number for number, role in held.items() if role is not None and role not in RUN_BY_FLUID}
    for position, op in enumerate(ops) if unknown else ():
        if id(op.role) in unknown:
            message = f"{role_text(op.role)} is no role of an op; Fluid refuses to run it"
            findings.op("role-unknown", message, (block, position), focus=role_text(op.role))


def is_sound_pair(names: tuple[str, ...], variables: Mapping[str, Var]) -> bool:
    """Whether role variables are one pair of variables of a block, as they nearly always are."""
    if len(names) != 2:
        return False
    parameter = variables.get(names[0])
    return parameter is not None and parameter.persistable and names[1] in variables


def check_number(op: Op, place: tuple[int, int], findings: Findings) -> bool:
    """Reports an odd number of role variables; True for an even one."""
    names = op.role_vars or ()
    if len(names) % 2:
        message = f"the number of role variables is {len(names)}; they are pairs of parameter and gradient"
        findings.op("role-variable-pair", message, place, focus=_pairs(op), severity=Severity.WARNING)
    return not len(names) % 2


def check_role_vars(
    op: Op, place: tuple[int, int], findings: Findings, find: Callable[[str], Var | None], visible: Iterable[str]
) -> None:
    """Reports role variables without a declaration, and parameters that are not persistable.

    `find` gives the declaration of a name, `visible` the declared names.
    """
    for at, name in enumerate(op.role_vars or ()):
        var = find(name)
        if var is None:
            what = "parameter" if at % 2 == 0 else "gradient"
            hint = findings.suggest(name, visible, "%")
            message = f"the role variables name the {what} {var_text(name)}, which is not declared{hint}"
            findings.op("role-variable", message, place, focus=var_text(name), severity=Severity.WARNING)
        elif at % 2 == 0 and not var.persistable:
            message = (
                f"the role variables are pairs of parameter and gradient, but {var_text(name)} "
                "is not persistable, so it is no parameter"
            )
            notes = declared_here(var)
            findings.op("role-variable-pair", message, place, focus=_pairs(op), severity=Severity.WARNING, notes=notes)


def _pairs(op: Op) -> str:
    """The role variables as the text writes them."""
    return f"({', '.join(map(var_text, op.role_vars or ()))})"
