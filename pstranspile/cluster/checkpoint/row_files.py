"""Rows of large tables as files of numpy's: all, those that were changed, or what serving needs.

    save_rows(cluster, job, "words", "words.rows")                      # all that training needs
    save_rows(cluster, job, "words", "words.more", rows="changed")      # what has changed since rows were saved last
    save_rows(cluster, job, "words", "words.serving", rows="serving")   # values alone
    load_rows(other, job, "words", "words.rows")                        # into any number of servers
    export_rows("kept", "words", "words.serving", rows="serving")       # of a checkpoint

A folder holds `ids.npy` int64 [n], in ascending order, and `numbers.npy` [n, 1 + states, width] with `seen.npy`, or
`values.npy` [n, width] for serving; of changed rows also `left.npy`, the ids of rows that left. They are written and
read in pieces, so no more memory is needed than for the order of the ids.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from pstranspile.cluster.checkpoint.api import scopes_of
from pstranspile.cluster.checkpoint.layout import layout_of
from pstranspile.cluster.checkpoint.manifest import MANIFEST
from pstranspile.cluster.checkpoint.runs import Source
from pstranspile.cluster.checkpoint.store import read_checkpoint, write_folder
from pstranspile.compiler.compile import Compiled
from pstranspile.ir.diagnostics import DiagnosticError, did_you_mean, error, name_list
from pstranspile.ir.model import Location, Module
from pstranspile.ir.reading import open_regular
from pstranspile.runtime.large.forms import AT_ONCE, combine_parts, merge_by_id
from pstranspile.runtime.large.table import LargeTable, TableRows, lie_within
from pstranspile.runtime.run.files import DAMAGE
from pstranspile.runtime.values import Array

Rows: TypeAlias = Literal["all", "changed", "serving"]
"""The rows to save: all, those changed since an earlier save, or all with their values alone (for serving)."""

Tables: TypeAlias = "list[tuple[int, LargeTable]]"
"""The parts of a table, each with the first row that it has of the whole, in order."""


def save_rows(
    machines: Any, job: Compiled | Module, table: str, folder: str | os.PathLike[str], *, rows: Rows = "all"
) -> int:
    """Writes rows of a large table to a new folder; returns how many.

    `machines` and `job` are those of `save_checkpoint`. With "all" and "changed", the record of changed rows is
    emptied. Raises DiagnosticError; ValueError for other `rows`.
    """
    if rows not in ("all", "changed", "serving"):
        raise ValueError(f"the rows to save are all, changed or serving, not {rows!r}")
    parts = tables_of(machines, job, table)
    orders = [part.changed_places() if rows == "changed" else part.order() for _, part in parts]
    count = sum(map(len, orders))
    left = np.concatenate([part.dropped_ids() + (0 if part.any_id else start) for start, part in parts])
    left.sort()
    like = parts[0][1].without_rows().numbers
    _write(Path(folder), rows, like, count, lambda name: _pieces(parts, orders, name), left)
    for _, part in parts if rows != "serving" else ():
        part.mark_saved()
    return count


def export_rows(
    checkpoint: str | os.PathLike[str],
    table: str,
    folder: str | os.PathLike[str],
    *,
    rows: Rows = "all",
    since: str | os.PathLike[str] | None = None,
) -> int:
    """Writes rows of a large table in a checkpoint, the newest of its folder, to a new folder; returns how many.

    "changed" are those that differ from the earlier checkpoint `since`. Raises DiagnosticError; ValueError if only one
    of these two is given.
    """
    if (rows == "changed") != (since is not None):
        raise ValueError("rows are 'changed' since a checkpoint")
    table_rows = _rows_in(checkpoint, table)
    chosen, left = np.arange(len(table_rows.ids)), table_rows.dropped
    if since is not None:
        earlier = _rows_in(since, table)
        _, known, before = np.intersect1d(table_rows.ids, earlier.ids, assume_unique=True, return_indices=True)
        chosen = np.delete(chosen, known[table_rows.seen[known] == earlier.seen[before]])
        left = np.setdiff1d(earlier.ids, table_rows.ids, assume_unique=True)
    pieces = [chosen[at : at + AT_ONCE] for at in range(0, len(chosen), AT_ONCE)]
    _write(
        Path(folder),
        rows,
        table_rows.numbers,
        len(chosen),
        lambda name: (getattr(table_rows, name)[p] for p in pieces),
        left,
    )
    return len(chosen)


def _rows_in(checkpoint: str | os.PathLike[str], table: str) -> TableRows:
    """The rows of a large table in a checkpoint. Raises DiagnosticError."""
    with closing(Source(checkpoint)) as source:
        _, state = read_checkpoint(source.place)
    if table not in state.large:
        tables = f"; its large tables: {name_list(sorted(state.large), 8) or 'none'}"
        hint = did_you_mean(table, sorted(state.large)) or tables
        raise _table_error(source.place, f"it has no large table {table}{hint}")
    return combine_parts(state.large[table])


def _write(
    folder: Path, rows: Rows, like: Array, count: int, pieces: Callable[[str], Iterable[Array]], left: Array
) -> None:
    """Writes `count` rows to a folder, whose fields come in pieces; their numbers have the dtype and dims of `like`.
    Raises DiagnosticError.
    """
    files = {"ids.npy": _file(np.dtype(np.int64), (count,), pieces("ids"))}
    if rows == "serving":
        values = (numbers[:, 0] for numbers in pieces("numbers"))
        files["values.npy"] = _file(like.dtype, (count, *like.shape[2:]), values)
    else:
        files["numbers.npy"] = _file(like.dtype, (count, *like.shape[1:]), pieces("numbers"))
        files["seen.npy"] = _file(np.dtype(np.uint32), (count,), pieces("seen"))
    if rows == "changed":
        files["left.npy"] = _file(left.dtype, left.shape, [left])
    if (folder / MANIFEST).exists():
        raise _table_error(folder, "it is a checkpoint; name another folder for rows")
    try:
        write_folder(folder, files)
    except OSError as problem:
        raise _table_error(folder, f"can't be written: {problem.strerror}") from None


def load_rows(machines: Any, job: Compiled | Module, table: str, folder: str | os.PathLike[str]) -> int:
    """Writes saved rows into a large table, replacing those with the same ids; returns how many.

    Rows that were saved for serving begin with the first values of their states. Raises DiagnosticError.
    """
    place, parts = Path(folder), tables_of(machines, job, table)
    ids, serving = _read_ids(place, "ids"), (place / "values.npy").exists()
    numbers = _read(place, "values" if serving else "numbers")
    seen = None if serving else _read(place, "seen")
    if numbers.dtype != parts[0][1].dtype or (seen is not None and seen.dtype != np.uint32):
        raise _table_error(place, f"rows there are {numbers.dtype}, those of {table} {parts[0][1].dtype}")
    want = (parts[0][1].width,) if serving else parts[0][1].dims
    if numbers.shape != (len(ids), *want) or (seen is not None and seen.shape != ids.shape):
        raise _table_error(place, f"rows there are {list(numbers.shape[1:])}, those of {table} {list(want)}")
    ends = [start + part.height for start, part in parts]
    if parts[0][1].any_id:
        return _load_any(parts, place, ids, numbers, seen)
    if len(ids) and (int(ids[0]) < 0 or int(ids[-1]) >= ends[-1]):
        raise _table_error(place, f"it has ids beyond the {ends[-1]} of {table}")
    left = _read_left_ids(place)
    for (start, part), end in zip(parts, ends, strict=True):
        part.remove(left[(left >= start) & (left < end)] - start)
        begin, stop = (int(at) for at in np.searchsorted(ids, (start, end)))
        for at in range(begin, stop, AT_ONCE):
            here = slice(at, min(at + AT_ONCE, stop))
            part.set_rows(ids[here] - start, numbers[here], None if seen is None else seen[here])
        part.mark_saved()
    return len(ids)


def _load_any(parts: Tables, place: Path, ids: Array, numbers: Array, seen: Array | None) -> int:
    """Writes rows into the parts of a table that has a row for every id; returns how many."""
    left = _read_left_ids(place)
    for start, part in parts:
        part.remove(left[lie_within(left, part.width, start, part.height)])
        for at in range(0, len(ids), AT_ONCE):
            piece = np.asarray(ids[at : at + AT_ONCE])
            here = at + lie_within(piece, part.width, start, part.height).nonzero()[0]
            part.set_rows(np.asarray(ids[here]), numbers[here], None if seen is None else seen[here])
        part.mark_saved()
    return len(ids)


def _read_left_ids(folder: Path) -> Array:
    return np.asarray(_read_ids(folder, "left")) if (folder / "left.npy").exists() else np.empty(0, np.int64)


def tables_of(machines: Any, job: Compiled | Module, table: str) -> Tables:
    """The parts of a large table, as machines hold it. Raises DiagnosticError if there is none of this name."""
    scopes, placed = scopes_of(machines), layout_of(job).variables.get(table)
    parts: Tables = []
    for part in placed.parts if placed is not None else ():
        held = scopes[part.machine].get(part.name)
        if isinstance(held, LargeTable):
            parts.append((part.offset // held.width, held))
    if not parts:
        raise DiagnosticError([error("checkpoint-table", f"the job has no large table {table}")])
    return sorted(parts, key=lambda part: part[0])


def _pieces(parts: Tables, orders: list[Array], name: str) -> Iterator[Array]:
    if parts[0][1].any_id:
        yield from merge_by_id([table for _, table in parts], orders, name)
        return
    for (start, table), order in zip(parts, orders, strict=True):
        for at in range(0, len(order), AT_ONCE):
            piece = table.field(name, order[at : at + AT_ONCE])
            yield piece + start if name == "ids" else piece


def _file(dtype: Any, shape: tuple[int, ...], pieces: Iterable[Array]) -> Iterator[bytes | memoryview]:
    """The bytes of a .npy file with these elements."""
    head = BytesIO()
    described: Any = {"descr": np.dtype(dtype).newbyteorder("<").str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(head, described)
    yield head.getvalue()
    for piece in pieces:
        if piece.size:
            yield memoryview(np.ascontiguousarray(piece, np.dtype(dtype).newbyteorder("<"))).cast("B")


def _read_ids(folder: Path, name: str) -> Array:
    """The ids in a file of numpy's; those of rows are in order. Raises DiagnosticError."""
    ids = _read(folder, name)
    if ids.ndim != 1 or ids.dtype != np.int64 or (name == "ids" and bool((ids[1:] <= ids[:-1]).any())):
        raise _table_error(folder / f"{name}.npy", "it does not hold ids of 64 bits, each greater than the one before")
    return ids


def _read(folder: Path, name: str) -> Array:
    """A .npy file, mapped so that only the parts in use are read. Raises DiagnosticError."""
    path = folder / f"{name}.npy"
    try:
        open_regular(path).close()  # numpy would wait for a pipe
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, *DAMAGE) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else str(problem)
        raise _table_error(path, f"can't be read: {reason}") from None


def _table_error(path: Path, reason: str) -> DiagnosticError:
    return DiagnosticError([error("checkpoint-table", reason, Location(str(path)))])
