"""The file columns for each input of a program: those that the user names, else the one of the input's name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from pstranspile.cluster.data.columns import Input
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Note, error
from pstranspile.ir.model import Location, Program
from pstranspile.ir.types import VarKind
from pstranspile.runtime.run.feeds import declared, near
from pstranspile.runtime.run.seeds import divided
from pstranspile.runtime.run.turns import inputs_of
from pstranspile.runtime.values import NUMPY_TYPES


class Mapped(NamedTuple):
    """An input, and the names of the columns that it takes, which come one beside another."""

    input: Input
    columns: Sequence[str]


def inputs(program: Program) -> list[Input]:
    """The inputs of a program that rows are fed to, in the order in which they are declared. Raises DiagnosticError."""
    known = inputs_of(program)
    read = {name for block in program.blocks for op in block.ops for name in op.input_names}
    result: list[Input] = []
    findings: list[Diagnostic] = []
    for name, var in program.main_block.vars.items():
        if name not in known or name not in read or var.kind is not VarKind.LOD_TENSOR or var.tensor is None:
            continue
        dims = tuple(var.shape[1:])
        if not divided(program, name) or not var.shape or any(size < 0 for size in dims):
            message = (
                f"{name} is declared {declared(var)}; rows are fed to [-1, ...], where the first dim alone is open"
            )
            findings.append(error("data-column", message, var.location))
        else:
            result.append(Input(name, dims, NUMPY_TYPES[var.tensor.dtype], var.tensor.lod_level))
    if findings:
        raise DiagnosticError(findings)
    return result


def _hint(name: str, given: Mapping[str, Sequence[str]]) -> list[Note]:
    """How to say which column an input takes, where nobody has said it."""
    if name in given:
        return []
    return [Note(f"another column is named with --columns {name}=COLUMN (in Python: columns={{{name!r}: 'COLUMN'}})")]


def map_columns(
    wanted: Sequence[Input], given: Mapping[str, Sequence[str]], there: Sequence[str], file: str
) -> list[Mapped]:
    """The columns of each input; `there` are those of the file. A name may be a pattern: `f*`, in the file's order.

    Raises DiagnosticError for inputs and columns that are not there.
    """
    findings: list[Diagnostic] = []
    place = Location(file)
    names = [one.name for one in wanted]
    times = Counter(there)
    for name in given:
        if name not in names:
            hint = near(name, names) or f"; inputs are {', '.join(names)}"
            findings.append(error("data-column", f"columns are given for {name}, which is no input{hint}"))
    result: list[Mapped] = []
    for one in wanted:
        columns: list[str] = []
        for name in given.get(one.name, (one.name,)):
            matching = [name] if name in times else [other for other in there if fnmatchcase(other, name)]
            columns += matching
            findings += [
                error("data-column", f"{one.name} takes the column {taken}, which is there several times", place)
                for taken in matching
                if times[taken] > 1
            ]
            if not matching:
                shown = ", ".join(there[:12]) + (", ..." if len(there) > 12 else "")
                other = next((input for input in names if name.startswith(f"{input}=")), None)
                hint = (
                    near(name, there) if other is None else f"; each input has an option of its own: --columns {name}"
                )
                message = f"{one.name} takes the column {name}, which is not among {shown}{hint}"
                findings.append(error("data-column", message, place, notes=_hint(one.name, given)))
        result.append(Mapped(one, tuple(columns)))
    if findings:
        raise DiagnosticError(findings)
    return result
