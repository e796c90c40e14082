"""Values that a run starts from, or that a model is served with: of a checkpoint, of results, or of Fluid's files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from pstranspile.cluster.checkpoint.manifest import MANIFEST
from pstranspile.cluster.checkpoint.runs import Source, newest, numbered
from pstranspile.cluster.checkpoint.state import State
from pstranspile.cluster.checkpoint.store import read_checkpoint
from pstranspile.cluster.checkpoint.table_files import dense, merged
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, error, raise_errors, warning
from pstranspile.ir.model import Location, Program, Var
from pstranspile.runtime.large.forms import selected, together
from pstranspile.runtime.run.files import fitting, read_initial
from pstranspile.runtime.values import SelectedRows


class Starting(NamedTuple):
    """Values of variables by name, and what is to be told of them."""

    values: dict[str, Any]
    warnings: tuple[Diagnostic, ...] = ()


def is_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a checkpoint, or a folder of numbered ones."""
    place = Path(path)
    try:
        return place.is_dir() and ((place / MANIFEST).is_file() or bool(numbered(place)))
    except (OSError, ValueError):
        return False


def settled(path: str) -> str:
    """A path for several processes, all of which are to read the same: the newest checkpoint, where it is a folder of
    some. Raises DiagnosticError.
    """
    return str(newest(path)) if is_checkpoint(path) else path


def starting_values(path: str | None, program: Program, startup: Program | None = None) -> Starting:
    """The persistable variables that a run of a program starts from; none without a path.

    The path is a checkpoint, or a folder of some, of which it is the newest; a file of results, of which these are the
    parameters (`param/<name>`); arrays by name; or what Fluid's `save_persistables` wrote. A checkpoint may have more
    variables than the program; a parameter that it has not keeps the value of the start-up program, which is told.
    Raises DiagnosticError for what can't be read or does not fit, and for large tables, of which only rows exist.
    """
    if not path:
        return Starting({})
    there, checkpoint = _read(path, program)
    findings = [
        error("run-file-unusable", f"{name} is a large table, of which it has only rows: --resume takes them", here)
        for name, value in there.items()
        if isinstance(value, SelectedRows)
        for here in [Location(checkpoint or path)]
    ]
    raise_errors(findings)
    values = fitting(there, checkpoint or path, program, startup)
    missing = [var.name for var in program.parameters() if var.name not in values] if checkpoint else []
    if checkpoint and not values:
        message = "it has no variable of the program"
        raise DiagnosticError([error("checkpoint-variable", message, Location(checkpoint))])
    told = (
        warning("checkpoint-variable", f"it has no {name}, which begins as the start-up program says", here)
        for name in missing
        for here in [Location(checkpoint)]
    )
    return Starting(values, tuple(told))


def served_values(path: str, program: Program, names: Iterable[str]) -> dict[str, Any]:
    """The values of the variables `names` that a model of a program is served with, of a path as above.

    Of tables, rows that do not exist are zeros, as Fluid looks them up in tests. Raises DiagnosticError for what is
    not there, too.
    """
    there, checkpoint = _read(path, program)
    place = checkpoint or path
    wanted = dict.fromkeys(names)
    held = {name: _whole(value) for name, value in there.items() if name in wanted}
    lacking = [name for name in wanted if name not in held]
    raise_errors(
        error("checkpoint-variable", f"it has no {name}, which the model needs", Location(place)) for name in lacking
    )
    return fitting(held, place, program)


def _whole(value: Any) -> Any:
    return dense(value, int(value.height)) if isinstance(value, SelectedRows) else value


def _read(path: str, program: Program) -> tuple[dict[str, Any], str]:
    """Values by name, large tables as rows, and the checkpoint that they are from ("": from none)."""
    if not is_checkpoint(path):
        return read_initial(path, program), ""
    with closing(Source(path)) as source:
        _, state = read_checkpoint(source.place)
    declared = {name: var for name, var in program.main_block.vars.items() if var.persistable}
    return dict(_values(state, declared)), str(source.place)


def _values(state: State, declared: Mapping[str, Var]) -> Iterator[tuple[str, Any]]:
    """What a checkpoint holds of the variables that are declared."""
    for name, var in declared.items():
        if name in state.large:
            yield name, selected(together(state.large[name]), var.shape[0])
        elif name in state.tables:
            table = merged(name, state.tables[name])
            yield name, dense(table, var.shape[0] if var.shape and var.shape[0] > 0 else int(table.height))
        elif name in state.values:
            yield name, state.values[name]
