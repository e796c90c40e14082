"""What every part of the link check uses: the programs of a machine, findings, types compared."""

from __future__ import annotations

from collections.abc import Sequence

from pstranspile.ir.codes import Code
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, at_op
from pstranspile.ir.model import Op, Role, Var


class LinkError(DiagnosticError):
    """The programs of a job do not fit together."""


def finding(code: Code, role: Role, op: Op, message: str, name: str = "") -> Diagnostic:
    """A finding about `op` in the programs of `role`; `name` is the variable in question, if it is one."""
    return at_op(code, f"in {role.name}: {message}", op, focus=f"%{name}" if name else "")


def same_type(a: Var | None, b: Var | None) -> bool:
    """Both are declared, with the same kind, element type and dims (LoD levels may differ)."""
    if a is None or b is None or a.kind is not b.kind:
        return False
    return a.tensor == b.tensor or (a.dtype is b.dtype and a.shape == b.shape)


def is_slice_type(part: Var, rows: int, whole: Var) -> bool:
    """`part` is declared as these rows of `whole`: same kind and element type, same dims but the first."""
    return part.kind is whole.kind and part.dtype is whole.dtype and part.shape == (rows, *whole.shape[1:])


def described(var: Var | None) -> str:
    """The type of a variable in a message."""
    if var is None:
        return "not declared"
    if var.tensor is None:
        return var.kind.name
    return f"{var.kind.name} {var.tensor.dtype.text}{list(var.tensor.shape)}"


def names_text(names: Sequence[str]) -> str:
    """Names in a message, `%a, %b`; `nothing` for none."""
    return ", ".join([f"%{name}" for name in names]) or "nothing"
