"""Reads and writes Fluid's message on the wire, `VariableMessage` of its gRPC service, without generated code.

The elements of tensors are not copied when a message is read or written. Every field is checked before a value is made
of the message; a value that a Fluid machine can't receive is not written.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np

from pstranspile.cluster.machines.server import Server, pairs
from pstranspile.cluster.net.http2 import LARGE_CALL, CallRefused
from pstranspile.cluster.net.wire import MOST_DIMS, MOST_OFFSETS, MOST_TEXT, Bytes, WireError, require_few_offsets
from pstranspile.ir.model import Program, Var
from pstranspile.ir.types import VarKind
from pstranspile.runtime.values import LoDTensor, SelectedRows

# The calls of Fluid's gRPC service by name, and the checks of whether a server's program accepts them.
#
# Both sides make these checks: a server of this package, to refuse a call that does not fit before it does harm, and a
# trainer, because a server of Fluid would end on receiving it.

SERVICE = "sendrecv.SendRecvService"
BATCH_BARRIER_NAME, FETCH_BARRIER_NAME, COMPLETE_NAME = "BATCH_BARRIER@RECV", "FETCH_BARRIER@RECV", "COMPLETE@RECV"
NO_BARRIER = "@WITHOUT_BARRIER@RECV"
"""The variable's name in a call by which a trainer fetches without a barrier."""

SAVE_NAME = "SAVE@CHECKPOINTNOTIFY"
"""The variable's name in a call by which a trainer makes a server save."""

PIECE = "@PIECE@"
"""The mark in the name of a variable that is a piece of another one."""

MOST_FIELDS = 1 << 16
"""The most bytes of a message besides the elements of its tensor: names, dims, offsets."""

INVALID = "INVALID_ARGUMENT"
"""The gRPC status of a call whose content is wrong."""

UNKNOWN = "NOT_FOUND"
"""The gRPC status of a call that asks for something the server does not have."""

LATER = "FAILED_PRECONDITION"
"""The gRPC status of a call that comes at the wrong time."""


def require_gradient(server: Server, message: VariableMessage) -> None:
    """Raises CallRefused if the server does not accept the variable that a message sends."""
    name = message.varname
    declared = server.main.main_block.vars.get(name)
    if not _serves(server, name):
        raise CallRefused(UNKNOWN, f"{server.name} takes no variable {name}")
    if not message.dims and not message.numbers:
        raise CallRefused(INVALID, f"{name} brings no numbers")
    if declared is None or declared.dtype is None:
        return
    if message.data_type != declared.dtype.value:
        given = message.data_type
        raise CallRefused(INVALID, f"{name} has element type {given}, where the server has {declared.dtype.text}")
    if message.kind == SELECTED_ROWS:
        _require_rows(declared, message)
    size, dims = prod(declared.shape), list(message.dims)
    if message.kind == LOD_TENSOR and size > 0 and prod(dims) != size:
        raise CallRefused(INVALID, f"{name} has dims {dims}, where the server has {list(declared.shape)}")


def as_declared(value: Any, declared: Var | None) -> Any:
    """A received value, with as many elements as the variable, in the variable's dims and without LoD."""
    value = value.data if isinstance(value, LoDTensor) else value
    if declared is None or not declared.shape or min(declared.shape) < 0:
        return value
    if isinstance(value, SelectedRows):
        return SelectedRows(value.rows, value.value.reshape(len(value.value), *declared.shape[1:]), declared.shape[0])
    return value.reshape(declared.shape) if value.size else value


def _serves(server: Server, name: str) -> bool:
    """Whether the server accepts a gradient of this name."""
    return name in (pairs(server.op, "grad_to_block_id") if server.mode else server.main.main_block.vars)


def most_brought(server: Server, method: str, name: str) -> int:
    """The most bytes that a call about a variable may have: as many as its value needs, `LARGE_CALL` where the program
    does not say, 0 where the server accepts no value.
    """
    if method == "PrefetchVariable":
        return LARGE_CALL
    name = name.partition(PIECE)[0]
    if method != "SendVariable" or not _serves(server, name):
        return 0
    declared = server.main.main_block.vars.get(name)
    held = 0 if declared is None or declared.kind is VarKind.SELECTED_ROWS else _size(declared)
    return held + MOST_FIELDS if held else LARGE_CALL


def most_held(server: Server) -> int:
    """The size in bytes of the largest variable of a server among those with known dims."""
    return max(map(_size, server.main.main_block.vars.values()), default=0)


def _size(var: Var) -> int:
    """The size of a variable in bytes; 0 where its dims or element type are unknown."""
    dtype = None if var.dtype is None else DTYPES.get(var.dtype.value)
    return 0 if dtype is None or not var.shape or min(var.shape) < 0 else prod(var.shape) * dtype.itemsize


def _require_rows(declared: Var, message: VariableMessage) -> None:
    """Raises CallRefused if the rows of a message have another width than the variable, or a greater height."""
    name, dims, shape = message.varname, message.dims, declared.shape
    if declared.kind is VarKind.LOD_TENSOR:
        raise CallRefused(INVALID, f"{name} brings rows, where the server has a tensor")
    if shape and min(shape) > 0 and (prod(dims[1:]) != prod(shape[1:]) or message.height > shape[0]):
        given = [message.height, *dims[1:]]
        raise CallRefused(INVALID, f"{name} brings rows of {given}, where the server has {list(shape)}")


def require_ids(server: str, name: str, ids: Any, rows: int) -> None:
    """Raises CallRefused unless `ids` is an int64 tensor of ids from 0 up to the number of rows of a table."""
    if ids.__class__ is not np.ndarray or ids.dtype != np.int64:
        raise CallRefused(INVALID, f"ids of {name} are no tensor of int64")
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < rows:
        raise CallRefused(INVALID, f"an id is outside of the {rows} rows of {name} on {server}")


def require_room(server: str, name: str, ids: Any, table: SelectedRows) -> None:
    """Raises CallRefused unless `ids` is an int64 tensor of ids that a growing table has, or has room for."""
    require_ids(server, name, ids, table.height or 1 << 63)
    known: Any = np.isin(ids, table.rows)
    if len(np.unique(ids[~known])) > len(table.value) - len(table.rows):
        raise CallRefused(INVALID, f"there is no room for new ids in the table that {name} asks on {server}")


def require_saving(server: Server) -> None:
    """Raises CallRefused if the server has no block that saves."""
    if server.save_block < 0:
        raise CallRefused(LATER, f"{server.name} has no block that saves")


def output_of_prefetch(main: Program, block: int) -> str:
    """The name of the variable that a block which looks ids up writes."""
    (output,) = main.blocks[block].ops[-1].output_names
    return output


LOD_TENSOR = 0
"""The value of the field `type` for a tensor."""

SELECTED_ROWS = 1
"""The value of the field `type` for sparse rows."""

(
    _VARNAME, _TYPE, _DATA_TYPE, _DIMS, _LOD_LEVEL, _LOD, _HEIGHT, _SERIALIZED, _ROWS, _OUT_VARNAME, _PROFILE,
    _TRAINER_ID, _TABLE_NAME,
) = range(1, 14)  # fmt: skip
_VARINT, _LENGTH = 0, 2
_LOD_DATA = 1
"""The number of the only field in a level of LoD."""

DTYPES: dict[int, Any] = {
    0: np.dtype("bool"),
    2: np.dtype("int32"),
    3: np.dtype("int64"),
    5: np.dtype("float32"),
    6: np.dtype("float64"),
}
"""The element types that a Fluid machine can receive, by Fluid's numbers."""
_DTYPE_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}

MOST_NUMBERS = (1 << 31) - 1
"""The greatest size in bytes of a tensor that Fluid can send."""

MOST_DIM = (1 << 31) - 1
"""The greatest dim that Fluid can send."""

SHORT_NAMES = 256
"""The most characters of the names in a message whose beginning is remembered."""

MOST_REMEMBERED = 1 << 10
"""The most messages without numbers, and the most beginnings of messages, that are remembered."""

_NOTHING = memoryview(b"")

MOST_OF_MESSAGE = 256
"""The most fields of a message; the dims and the levels of LoD are fields that may be repeated."""


class VariableMessage(NamedTuple):
    """A message of Fluid. `numbers` and `rows` are views of the bytes that it was read from."""

    varname: str = ""
    kind: int = LOD_TENSOR
    data_type: int = 0
    dims: tuple[int, ...] = ()
    lod_level: int = 0
    lod: tuple[tuple[int, ...], ...] = ()
    height: int = 0
    numbers: memoryview = memoryview(b"")
    rows: memoryview = memoryview(b"")
    out_varname: str = ""
    profile: int = 0
    trainer_id: int = 0
    table_name: str = ""


# reading


class _MessageReader:
    """Reads the fields of a message, from a position in its bytes on."""

    def __init__(self, data: memoryview):
        self.data = data
        self.position = 0

    def go_to(self, at: int) -> None:
        """Goes on at another byte."""
        self.position = at

    def varint(self) -> int:
        """Reads a number of variable length, as signed 64 bits. Raises WireError."""
        at, data = self.position, self.data
        if at < len(data) and (byte := data[at]) < 0x80:  # as most are
            self.position = at + 1
            return byte
        value = shift = 0
        while True:
            if self.position >= len(self.data) or shift > 63:
                raise WireError(f"no number ends after byte {self.position} of a Fluid message")
            byte = self.data[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                value &= (1 << 64) - 1
                return value - (1 << 64) if value >> 63 else value

    def piece(self) -> memoryview:
        """Reads bytes that come after their length. Raises WireError."""
        size = self.varint()
        if not 0 <= size <= len(self.data) - self.position:
            raise WireError(
                f"{size} bytes are announced at byte {self.position} of a Fluid message of {len(self.data)}"
            )
        start, self.position = self.position, self.position + size
        return self.data[start : self.position]

    def text(self) -> str:
        """Reads a text. Raises WireError."""
        piece = self.piece()
        if len(piece) > MOST_TEXT:
            raise WireError(f"a name in a Fluid message has {len(piece)} bytes")
        try:
            return str(piece, "utf-8")
        except UnicodeDecodeError:
            raise WireError("a name in a Fluid message is no UTF-8") from None

    def numbers(self, wire: int, most: int) -> list[int]:
        """Reads a repeated number: one element, or several packed ones. Raises WireError for more than `most`."""
        if wire == _VARINT:
            return [self.varint()]
        packed = _MessageReader(self.piece())
        found: list[int] = []
        while packed.position < len(packed.data):
            if len(found) >= most:
                raise WireError(f"more than {most} numbers are repeated in a Fluid message")
            found.append(packed.varint())
        return found


_FIELDS: dict[int, tuple[str, int, Callable[[_MessageReader], Any]]] = {
    _VARNAME: ("varname", _LENGTH, _MessageReader.text),
    _TYPE: ("kind", _VARINT, _MessageReader.varint),
    _DATA_TYPE: ("data_type", _VARINT, _MessageReader.varint),
    _LOD_LEVEL: ("lod_level", _VARINT, _MessageReader.varint),
    _HEIGHT: ("height", _VARINT, _MessageReader.varint),
    _SERIALIZED: ("numbers", _LENGTH, _MessageReader.piece),
    _ROWS: ("rows", _LENGTH, _MessageReader.piece),
    _OUT_VARNAME: ("out_varname", _LENGTH, _MessageReader.text),
    _PROFILE: ("profile", _VARINT, _MessageReader.varint),
    _TRAINER_ID: ("trainer_id", _VARINT, _MessageReader.varint),
    _TABLE_NAME: ("table_name", _LENGTH, _MessageReader.text),
}
_BY_TAG = {number << 3 | wire: (name, read) for number, (name, wire, read) in _FIELDS.items() if number < 16}
"""The fields by the byte with which each of them begins, as their numbers are small."""


def read_variable(data: Bytes) -> VariableMessage:
    """The fields of a message. Raises WireError if the bytes are not one; `value_of` checks the
    elements of its tensor.
    """
    view, size = memoryview(data).toreadonly(), len(data)
    reader = _MessageReader(view)
    fields: dict[str, Any] = {}
    dims: list[int] = []
    lod: list[tuple[int, ...]] = []
    offsets = came = 0
    while reader.position < size:
        came += 1
        if came > MOST_OF_MESSAGE:
            raise WireError(f"a Fluid message has more than {MOST_OF_MESSAGE} fields")
        known = _BY_TAG.get(view[reader.position])
        if known is not None:
            reader.go_to(reader.position + 1)
            fields[known[0]] = known[1](reader)
            continue
        number, wire = divmod(reader.varint(), 8)
        if number == _DIMS and wire in (_VARINT, _LENGTH):
            dims += reader.numbers(wire, MOST_DIMS)
        elif number == _LOD and wire == _LENGTH:
            lod.append(_read_level(reader.piece(), MOST_OFFSETS - offsets))
            offsets += len(lod[-1])
        else:
            name, expected, read = _FIELDS.get(number, ("", -1, _MessageReader.varint))
            if wire != expected:
                raise WireError(f"a Fluid message has no field {number} of wire type {wire}")
            fields[name] = read(reader)
    if len(dims) > MOST_DIMS:
        raise WireError(f"a Fluid message has {len(dims)} dims")
    return VariableMessage(**fields, dims=tuple(dims), lod=tuple(lod))


def read_request(data: Bytes) -> VariableMessage:
    """The fields of a message that asks for a variable. It has no numbers, and comes again in every step, so that short
    ones are remembered. Raises WireError.
    """
    return read_variable(data) if len(data) > SHORT_NAMES else _short_request(bytes(data))


_short_request = lru_cache(MOST_REMEMBERED)(read_variable)


def read_name(begin: Bytes) -> str:
    """The name of the variable at the beginning of a message; "" if the message begins with another field."""
    reader = _MessageReader(memoryview(begin))
    try:
        return reader.text() if reader.varint() == _VARNAME * 8 + _LENGTH else ""
    except WireError:
        return ""


def _read_level(data: memoryview, most: int) -> tuple[int, ...]:
    reader = _MessageReader(data)
    found: list[int] = []
    came = 0
    while reader.position < len(data):
        came += 1
        if came > most or len(found) > most:
            raise WireError(f"the levels of LoD in a Fluid message have more than {MOST_OFFSETS} offsets")
        number, wire = divmod(reader.varint(), 8)
        if number != _LOD_DATA or wire not in (_VARINT, _LENGTH):
            raise WireError(f"a level of LoD in a Fluid message has no field {number} of wire type {wire}")
        found += reader.numbers(wire, most - len(found))
    return tuple(found)


def value_of(message: VariableMessage) -> Any:
    """The tensor, ragged tensor or rows in a message, without a copy. Raises WireError."""
    dtype = DTYPES.get(message.data_type)
    if dtype is None:
        raise WireError(f"{message.varname} has element type {message.data_type}, which Fluid does not send")
    if any(not 0 <= dim <= MOST_DIM for dim in message.dims):
        raise WireError(f"{message.varname} has dims {list(message.dims)}")
    size = prod(message.dims) * dtype.itemsize
    if len(message.numbers) != size:
        given = len(message.numbers)
        raise WireError(f"{message.varname} has {given} bytes where dims {list(message.dims)} of {dtype} take {size}")
    array: Any
    try:
        array = np.frombuffer(message.numbers, dtype).reshape(message.dims) if size else np.empty(message.dims, dtype)
    except ValueError:  # an empty tensor, the product of whose dims is too large for numpy
        raise WireError(f"{message.varname} has dims {list(message.dims)}") from None
    if message.kind == LOD_TENSOR:
        return LoDTensor(array, _checked_lod(message)) if message.lod else array
    if message.kind == SELECTED_ROWS:
        return _rows_of(message, array)
    raise WireError(f"{message.varname} is of kind {message.kind}, neither a tensor nor rows")


def _checked_lod(message: VariableMessage) -> list[list[int]]:
    size = message.dims[0] if message.dims else -1
    for level in reversed(message.lod):
        if not level or level[0] or level[-1] != size or any(b < a for a, b in pairwise(level)):
            raise WireError(f"the offsets of {message.varname} don't fit its rows")
        size = len(level) - 1
    return [list(level) for level in message.lod]


def _rows_of(message: VariableMessage, array: Any) -> SelectedRows:
    if not array.ndim or len(message.rows) != 8 * len(array) or message.height < 0:
        raise WireError(f"{message.varname} has {len(message.rows)} bytes of row numbers for dims {list(array.shape)}")
    rows: Any = np.frombuffer(message.rows, "int64") if len(array) else np.empty(0, "int64")
    if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= message.height):
        raise WireError(f"a row number of {message.varname} is outside of {message.height} rows")
    return SelectedRows(rows, array, message.height)


# writing


def with_value(message: VariableMessage, value: Any) -> VariableMessage:
    """The message with another value. Raises WireError for a value that Fluid can't receive."""
    rows: Any = None
    lod: tuple[tuple[int, ...], ...] = ()
    kind = height = 0
    if isinstance(value, SelectedRows):
        kind, height = SELECTED_ROWS, value.height
        rows = np.ascontiguousarray(value.rows, "int64")
        value = value.value[: len(rows)]
    elif isinstance(value, LoDTensor):
        lod, value = tuple(tuple(level) for level in value.lod), value.data
        require_few_offsets(sum(map(len, lod)))
    array: Any = np.ascontiguousarray(value) if np.ndim(value) else np.asarray(value)
    number = _DTYPE_NUMBERS.get(array.dtype)
    if number is None:
        raise WireError(f"Fluid can't receive {message.varname} of {array.dtype}")
    if array.nbytes > MOST_NUMBERS or any(dim > MOST_DIM for dim in array.shape):
        raise WireError(f"Fluid can't receive {message.varname} of {array.nbytes} bytes, dims {list(array.shape)}")
    return message._replace(
        kind=kind, data_type=number, dims=array.shape, lod_level=len(lod), lod=lod, height=height,
        numbers=_bytes(array), rows=memoryview(b"") if rows is None else _bytes(rows),
    )  # fmt: skip


def pieces_of(message: VariableMessage) -> list[Bytes]:
    """The bytes of a message in pieces, one of which is the elements of its tensor. Fields before the elements come
    first, because Fluid's reader expects this order.
    """
    head = _head_of(message)
    pieces: list[Bytes] = [head]
    if message.dims or message.numbers:
        pieces = [head + _tag(_SERIALIZED, _LENGTH) + _varint(len(message.numbers)), message.numbers]
    if message.kind == SELECTED_ROWS:
        pieces += [_tag(_ROWS, _LENGTH) + _varint(len(message.rows)), message.rows]
    return pieces


def write_variable(message: VariableMessage) -> bytes:
    """The bytes of a message."""
    return b"".join(pieces_of(message))


def write_value(message: VariableMessage, value: Any) -> bytes:
    """The bytes of a message with a value. Raises WireError for a value that Fluid can't receive."""
    return write_variable(with_value(message, value))


def _head_of(message: VariableMessage) -> bytes:
    """The fields before the elements. Those of a variable are the same in every step, and most of them are short."""
    if message.lod or len(message.varname) + len(message.out_varname) + len(message.table_name) > SHORT_NAMES:
        return b"".join(_head(message))
    return _short_head(message._replace(numbers=_NOTHING, rows=_NOTHING))


@lru_cache(MOST_REMEMBERED)
def _short_head(message: VariableMessage) -> bytes:
    return b"".join(_head(message))


def _head(message: VariableMessage) -> Iterable[bytes]:
    yield _text(_VARNAME, message.varname)
    yield _number(_TYPE, message.kind)
    yield _number(_DATA_TYPE, message.data_type)
    if message.dims:
        yield _piece(_DIMS, b"".join(map(_varint, message.dims)))
    yield _number(_LOD_LEVEL, message.lod_level)
    for level in message.lod:
        yield _piece(_LOD, _piece(_LOD_DATA, b"".join(map(_varint, level))))
    yield _number(_HEIGHT, message.height)
    yield _text(_OUT_VARNAME, message.out_varname)
    yield _number(_PROFILE, message.profile)
    yield _number(_TRAINER_ID, message.trainer_id)
    yield _text(_TABLE_NAME, message.table_name)


def _bytes(array: Any) -> memoryview:
    return memoryview(array.reshape(-1).view("uint8").data if array.nbytes else b"")


def _tag(number: int, wire: int) -> bytes:
    return struct.pack("B", number << 3 | wire)


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _tag(field, _VARINT) + _varint(value) if value else b""


def _piece(field: int, data: bytes) -> bytes:
    return _tag(field, _LENGTH) + _varint(len(data)) + data


def _text(field: int, text: str) -> bytes:
    return _piece(field, text.encode()) if text else b""
