"""A server's state between two messages: copied, restored, and saved as a file."""

from __future__ import annotations

import json
import os
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from itertools import chain
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from pstranspile.cluster.machines.message import Message
from pstranspile.cluster.machines.server import Server
from pstranspile.cluster.machines.synchronous import Round, new_round
from pstranspile.cluster.machines.trainer import StepResult
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import Location
from pstranspile.ir.reading import open_regular, too_large
from pstranspile.runtime.files.outputs import write_output
from pstranspile.runtime.kernels.kernel import Value
from pstranspile.runtime.large.forms import Stream, TablePart, rows_from, streams_of, table_with
from pstranspile.runtime.large.table import LargeTable, TableRows, TableState
from pstranspile.runtime.run.scope import Scope, own_copy
from pstranspile.runtime.values import LoDTensor, SelectedRows

# A server's state between two messages, to which it returns at a restart.
#
# The state is the effect of all messages taken so far: variables, the gradients of the step under way, and the list of
# trainers that reported. It includes the position of each link. Messages that came later are taken again.


class Snapshot(NamedTuple):
    """The state of a server. `received_numbers`: the number of the last message taken from each source;
    `sent_numbers`: the number of the last message sent, by link.
    """

    values: dict[str, Value]
    state: dict[str, Any]
    steps: dict[int, int]
    received_numbers: dict[str, int]
    sent_numbers: dict[str, int]


def take_snapshot(server: Server, taken: dict[str, int], *, tables: bool = True) -> Snapshot:
    """A snapshot of the server's state now. Nothing is shared with the server but values that never change.

    Without `tables`, large tables are shared as well, because memory may not be large enough for a copy: such a
    snapshot is written before the server continues.
    """
    values = server.scope.values_here
    return Snapshot(
        {name: value if has_table([value]) and not tables else kept_copy(value) for name, value in values.items()},
        {name: _copy(getattr(server, name)) for name in server.STATE},
        {place: block.execution.step for place, block in enumerate(server.prepared_blocks())},
        dict(taken),
        {name: link.sequence for name, link in server.links.items()},
    )


def restore(server: Server, snapshot: Snapshot) -> None:
    """Restores the server's state, after its start-up program has run. The links into it are restored elsewhere, by the
    network.
    """
    put_back(server.scope, snapshot.values)
    server.take_state({name: _copy(value) for name, value in snapshot.state.items()}, snapshot.steps)
    for name, link in server.links.items():
        link.number_after(snapshot.sent_numbers.get(name, 0))


def has_table(values: Iterable[Value]) -> bool:
    """Whether a large table is among values."""
    return any(isinstance(value, LargeTable) for value in values)


def kept_copy(value: Value) -> Value:
    """A copy of a value for a snapshot; of a large table, its rows."""
    return value.rows() if isinstance(value, LargeTable) else own_copy(value)


def put_back(scope: Scope, kept: Mapping[str, Value]) -> None:
    """Replaces the variables of a scope with copies of saved values. The saved rows of a large table are used without a
    copy.
    """
    values = dict(scope.values_here)
    scope.values_here.clear()
    for name, value in kept.items():
        table = values.get(name)
        if isinstance(value, TableRows) and isinstance(table, LargeTable):
            scope.values_here[name] = table_with(value, table)
        else:
            scope.values_here[name] = own_copy(value)


def lose_state(server: Server) -> None:
    """Empties the server, as the end of its process does: its variables and messages are lost, except those saved to a
    file. (The scenario keeps the list of machines and their progress.)
    """
    values = server.scope.values_here
    empty = {name: value.like() for name, value in values.items() if isinstance(value, LargeTable)}
    values.clear()
    values.update(empty)  # the tables as after the start-up program
    lost: dict[str, Any] = {}
    for name in server.STATE:
        value = getattr(server, name)
        if isinstance(value, Round):
            lost[name] = new_round()
        elif name not in Server.STATE and isinstance(value, dict | set | list | deque):
            lost[name] = type(cast("Any", value))()
    server.take_state(lost)


def _copy(value: Any) -> Any:
    """A copy of containers. Their elements (numbers, names, messages, values that never change) are shared."""
    if isinstance(value, Round):
        return Round(*map(_copy, value))
    if isinstance(value, dict):
        held = cast("dict[Any, Any]", value)
        return {key: _copy(item) for key, item in held.items()}
    if isinstance(value, set | list | deque):
        held = cast("Any", value)
        return type(held)(_copy(item) if isinstance(item, dict | set | list) else item for item in held)
    return value


# Snapshots of servers as files: written whole or not at all, and checked against their hash when they are read.
#
# The first line names the form and the SHA-256 of all that follows: a line of JSON, then the elements of all arrays,
# one after another. Nothing is pickled.

MOST = 1 << 36
"""Bytes that the state of a server may have."""

_AT_ONCE = 1 << 20

FORM = "pstranspile-kept-state-2"

_RECORDS: dict[str, Callable[..., Any]] = {
    "message": Message,
    "lod": LoDTensor,
    "rows": SelectedRows,
    "round": Round,
    "result": StepResult,
    "snapshot": Snapshot,
    "table-state": TableState,
}
_SEQUENCES: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
}


def write_snapshot(path: Path, server: str, snapshot: Snapshot) -> None:
    """Writes the state of a server to a file. Raises DiagnosticError if it can't be written, or if the existing file is
    no state; an existing file then stays.

    Large tables are written in pieces, with the rows that they have at that moment.
    """
    _require_own(path)
    arrays: list[Any] = []
    tree = json.dumps(_plain((server, snapshot), arrays), separators=(",", ":")).encode()
    if any(isinstance(array, Stream) for array in arrays):
        _write_pieces(path, chain([tree, b"\n"], (piece for array in arrays for piece in _bytes_of(array))))
        return
    body = b"".join([tree, b"\n", *(array.tobytes() for array in arrays)])
    write_output(path, _head(sha256(body).hexdigest()) + body)


def _require_own(path: Path) -> None:
    """Raises DiagnosticError unless a file is missing, empty, or a state.

    Writing to a link would overwrite another file, and writing to a pipe would wait.
    """
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            message = "is a link, a pipe or a folder; a state is written to a file"
            raise DiagnosticError([error("output-foreign", message, Location(str(path)))])
        with open_regular(path) as file:
            held = file.read(len(FORM))
    except (FileNotFoundError, NotADirectoryError):  # the error is reported when the file is written
        return
    except OSError as problem:
        raise DiagnosticError(
            [error("output-unwritable", f"can't be written: {problem.strerror}", Location(str(path)))]
        ) from None
    if held and held != FORM.encode():
        message = "it is there, and is no state of a server; name another folder, or move it away"
        raise DiagnosticError([error("output-foreign", message, Location(str(path)))])


def _head(digest: str) -> bytes:
    return f"{FORM} {digest}\n".encode()


def _bytes_of(array: Any) -> Iterator[bytes]:
    for piece in array.pieces() if isinstance(array, Stream) else (array,):
        yield np.ascontiguousarray(piece).tobytes()


def _write_pieces(path: Path, pieces: Iterable[bytes]) -> None:
    """Writes a file in pieces, completely or not at all; the hash, which is at the beginning, is written last."""
    part, digest = path.with_name(f".{path.name}.part"), sha256()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)  # left by a killed process; or a link, which would be followed
        with open(part, "xb") as file:
            file.write(_head("0" * 64))
            for piece in pieces:
                digest.update(piece)
                file.write(piece)
            file.seek(0)
            file.write(_head(digest.hexdigest()))
        os.replace(part, path)
    except OSError as problem:
        part.unlink(missing_ok=True)
        raise DiagnosticError([error("output-unwritable", str(problem.strerror), Location(str(path)))]) from None


def read_snapshot(path: Path, server: str) -> Snapshot:
    """Reads the state of a server. Raises DiagnosticError (`cluster-kept`) if the file is damaged or is no state."""
    try:
        data = _map_file(path)
    except OSError as problem:
        raise _snapshot_error(path, f"can't be read: {problem.strerror}") from None
    start = data.find(b"\n", 0, len(_head("0" * 64))) + 1
    form, _, digest = data[: max(start - 1, 0)].partition(b" ")
    if form != FORM.encode():
        raise _snapshot_error(path, "is no state that a server kept")
    if _digest(data, start).encode() != digest:
        raise _snapshot_error(path, "is damaged: its hash (sha256) is another")
    stop = data.find(b"\n", start)
    stop = len(data) if stop < 0 else stop
    try:
        whose, snapshot = _Elements(data, stop + 1).value(json.loads(data[start:stop]))
        if not isinstance(snapshot, Snapshot):
            raise TypeError("it holds something else")
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as problem:
        raise _snapshot_error(path, f"is no state that a server kept: {problem}") from None
    if whose != server:
        raise _snapshot_error(path, f"is the state of {whose}, not of {server}")
    return snapshot


def _map_file(path: Path) -> bytes | mmap:
    """The content of a file, mapped so that only the parts in use are in memory. Raises OSError."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST:
            raise too_large(MOST)
        return mmap(file.fileno(), size, access=ACCESS_READ) if size else b""


def _digest(data: bytes | mmap, start: int) -> str:
    """The SHA-256 of the data from `start` on."""
    digest = sha256()
    for at in range(start, len(data), _AT_ONCE):
        digest.update(data[at : at + _AT_ONCE])
    return digest.hexdigest()


def _snapshot_error(path: Path, reason: str) -> DiagnosticError:
    return DiagnosticError([error("cluster-kept", reason, Location(str(path)))])


def _plain(value: Any, arrays: list[Any]) -> Any:
    """A value as JSON; arrays are appended to `arrays`, and replaced by their element type and dims."""
    if value is None or value.__class__ in (bool, int, float, str):
        return value
    if isinstance(value, np.ndarray | np.generic):
        array: Any = np.asarray(value)
        arrays.append(np.ascontiguousarray(array))
        return {"array": [array.dtype.str, list(array.shape)]}
    if isinstance(value, LargeTable | TableRows):
        return {"large-table": [_plain(streams_of([TablePart(0, value)]), arrays)]}
    if isinstance(value, Stream):
        arrays.append(value)
        return {"array": [value.dtype.str, list(value.shape)]}
    for name, record in _RECORDS.items():
        if value.__class__ is record:
            return {name: [_plain(item, arrays) for item in value]}
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {"dict": [[_plain(key, arrays), _plain(item, arrays)] for key, item in items]}
    for name, sequence in _SEQUENCES.items():
        if value.__class__ is sequence:
            ordered = sorted(value) if name in ("set", "frozenset") else value
            return {name: [_plain(item, arrays) for item in ordered]}
    raise TypeError(f"a server keeps {value.__class__.__name__}, which has no form in a file")


class _Elements:
    """Makes values from JSON and from the elements of arrays, which follow in the same order."""

    def __init__(self, data: bytes | mmap, at: int):
        self.data, self.position = data, at
        self._views = False

    def value(self, tree: Any) -> Any:
        if not isinstance(tree, dict):
            return tree
        ((name, given),) = cast("dict[str, Any]", tree).items()
        if name == "array":
            return self._array(np.dtype(given[0]), tuple(given[1]))
        if name == "dict":
            return {self.value(key): self.value(item) for key, item in given}
        if name == "large-table":
            return self._table(given)
        items = [self.value(item) for item in given]
        return _SEQUENCES[name](items) if name in _SEQUENCES else _RECORDS[name](*items)

    def _table(self, given: list[Any]) -> TableRows:
        """The rows of a large table, whose arrays are views of the mapped file."""
        self._views = True
        (arrays,) = map(self.value, given)
        self._views = False
        return rows_from(arrays)

    def _array(self, dtype: Any, shape: tuple[int, ...]) -> Any:
        count = prod(shape)
        array = np.frombuffer(self.data, dtype, count, self.position) if count else np.empty(0, dtype)
        self.position += count * dtype.itemsize
        return array.reshape(shape) if self._views else array.reshape(shape).copy()
