"""Texts that describe variables and their types in messages."""

from __future__ import annotations

from pstranspile.ir.diagnostics import Note
from pstranspile.ir.model import Var
from pstranspile.ir.text.literals import KIND_TEXT
from pstranspile.ir.text.literals import name as name_text
from pstranspile.ir.types import VarKind


def var_text(name: str) -> str:
    """The name of a variable as the textual IR writes it: `%w`."""
    return f"%{name_text(name)}"


def type_text(var: Var) -> str:
    """The type of a variable as the textual IR writes it, without LoD level: `rows f32[1000, 16]`, `raw`."""
    kind = KIND_TEXT[var.kind]
    if var.tensor is None:
        return kind
    dims = f"{var.tensor.dtype.text}[{', '.join(map(str, var.tensor.shape))}]"
    return dims if var.kind is VarKind.LOD_TENSOR else f"{kind} {dims}"


def declared_here(var: Var) -> tuple[Note, ...]:
    """A note that points at a declaration; empty if it has no place in a text."""
    if var.location is None:
        return ()
    return (Note(f"{var_text(var.name)} is declared here", var.location, var_text(var.name)),)
