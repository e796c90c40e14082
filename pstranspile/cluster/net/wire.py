"""The bytes on the wire: frames, the units in which two processes of a job communicate, and the values in them.

The numbers of values are copied once when a frame is written, and not at all when it is read.

A frame is a header and a body, each with a check sum: for the header a CRC, for the body, which may be large, the CRC
of the sums of its blocks. A body that travels under TLS has none (0), because TLS authenticates every byte. The first
frames of a connection are greetings; later ones carry messages between machines, numbered from 1 in each direction, or
are mere signs of life.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from pstranspile.cluster.machines.message import KINDS, Message
from pstranspile.cluster.machines.rings import Key, Piece, RingContribution, Statement, Total
from pstranspile.ir.table_rules import takes_any_id
from pstranspile.runtime.arithmetic import loops
from pstranspile.runtime.kernels.numeric import all_ids
from pstranspile.runtime.values import LoDTensor, SelectedRows

Buffers: TypeAlias = "list[Any]"
"""Pieces of a frame, in order: bytes and views of arrays."""

Bytes: TypeAlias = "bytes | bytearray | memoryview"
"""Received bytes."""

ALIGNMENT = 16
"""Alignment of the elements of an array, in bytes from the start of a frame."""

_NOTHING, _FALSE, _TRUE, _INTEGER, _REAL, _TEXT, _ARRAY, _LOD, _ROWS = range(9)
_PART, _PIECE, _TOTAL, _STATEMENT = range(10, 14)

_DTYPES: tuple[Any, ...] = tuple(
    np.dtype(name) for name in ("bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64")
)
_DTYPE_NUMBERS = {dtype: number for number, dtype in enumerate(_DTYPES)}

_U32, _I64, _F64 = struct.Struct("<I"), struct.Struct("<q"), struct.Struct("<d")
_ROWS_HEAD = struct.Struct("<Bq")
"""The mark of rows of a table, and the number of all rows that it has."""
_ARRAY_MARK = bytes([_ARRAY])
"""The mark of an array."""
_SEGMENT = struct.Struct("<Iqqqq")
"""The number of a segment of a collective operation, and two keys of operations."""
MOST_DIMS = 16
"""The most dims of an array."""

_ARRAY_HEAD = struct.Struct("<BBBxI")
"""Element type, number of dims, bytes of padding, -, bytes of text that follow (0)."""

_DIMS = tuple(struct.Struct(f"<{count}q") for count in range(MOST_DIMS + 1))
"""The dims of an array, by their number."""

_HEAD_AND_DIMS = tuple(struct.Struct(f"{_ARRAY_HEAD.format}{count}q") for count in range(MOST_DIMS + 1))
"""The head of an array followed by its dims, by their number."""

_PADDING = tuple(bytes(count) for count in range(ALIGNMENT))
"""The bytes before the numbers of an array, by their number."""

MOST_TEXT = 1 << 16
"""The most bytes of a text: a name, a path or the form of a value."""

MOST_OFFSETS = 1 << 20
"""The most offsets of all ragged tensors of a frame, or of a call of Fluid: each takes several times its bytes in
memory.
"""

MOST_SUMS = 1 << 16
"""The most sums that the statements of a frame may have."""

MOST_TRAINERS = 1 << 20
"""The most numbers of trainers that the sums of a frame may name, where those that name the same trainers count once.
"""


class WireError(Exception):
    """Bytes that are no frame, or no value, of this protocol, for the reason in the message."""


class Writer:
    """Collects the pieces of a frame."""

    def __init__(self) -> None:
        self.buffers: Buffers = []
        self.size = 0

    def add(self, data: bytes) -> None:
        """Appends bytes."""
        self.buffers.append(data)
        self.size += len(data)

    def text(self, text: str) -> None:
        """Appends a text with its length."""
        data = text.encode()
        self.add(_U32.pack(len(data)))
        self.add(data)

    def array(self, value: Any, before: bytes = b"") -> None:
        """Appends the bytes `before`, and an array: element type, dims, then its numbers, aligned."""
        number, shape = _DTYPE_NUMBERS.get(value.dtype), value.shape
        count = len(shape)
        if number is None or count > MOST_DIMS:
            raise WireError(f"an array of {value.dtype}, {count} dims, can't be sent")
        if not value.flags.c_contiguous:
            value = np.ascontiguousarray(value)
        form = _HEAD_AND_DIMS[count]
        start = self.size + len(before) + form.size
        padding = -start % ALIGNMENT
        self.buffers.append(before + form.pack(number, count, padding, 0, *shape) + _PADDING[padding])
        self.size = start + padding
        if size := value.nbytes:
            self.buffers.append(value)
            self.size += size

    def value(self, value: Any) -> None:
        """Appends the value of a message. Raises WireError for values that can't be sent."""
        write = _WRITERS.get(value.__class__)
        if write is None and isinstance(value, np.generic):
            write, value = _write_array, np.asarray(value)
        if write is None:
            raise WireError(f"a {value.__class__.__name__} can't be sent")
        write(self, value)


def can_be_sent(value: Any) -> bool:
    """Whether a variable's value can be sent."""
    if isinstance(value, LoDTensor):
        return can_be_sent(value.data) and _offsets(value) <= MOST_OFFSETS
    if isinstance(value, SelectedRows):
        return can_be_sent(value.value)
    return isinstance(value, np.ndarray) and value.dtype in _DTYPE_NUMBERS and value.ndim <= MOST_DIMS


def bytes_of(value: Any) -> int:
    """The bytes of the numbers in a value, which may be fewer than it takes in a message."""
    size = _SIZES.get(value.__class__)
    if size is not None:
        return size(value)
    return int(value.nbytes) if isinstance(value, np.generic) else 0


_SIZES: dict[type, Callable[[Any], int]] = {
    type(None): lambda _: 0,
    np.ndarray: lambda value: value.nbytes,
    LoDTensor: lambda value: bytes_of(value.data),
    SelectedRows: lambda value: value.value.nbytes + value.rows.nbytes,
    RingContribution: lambda value: bytes_of(value.value),
    Piece: lambda value: bytes_of(value.part.value),
    Total: lambda value: bytes_of(value.value),
    Statement: lambda value: sum(bytes_of(total.value) for total in value.retained_sums),
}
"""The bytes of the numbers in a value, by its class; a value of another class has none, or is a scalar of numpy."""


def _offsets(value: LoDTensor) -> int:
    return sum(map(len, value.lod))


def require_few_offsets(count: int) -> None:
    """Raises WireError for more offsets of ragged tensors than may be sent together."""
    if count > MOST_OFFSETS:
        raise WireError(f"ragged tensors have more than {MOST_OFFSETS} offsets")


def _write_lod(writer: Writer, value: LoDTensor) -> None:
    require_few_offsets(_offsets(value))
    writer.add(bytes([_LOD, len(value.lod)]))
    for level in value.lod:
        writer.array(np.asarray(level, "int64"))
    writer.array(value.data)


def _write_rows(writer: Writer, value: SelectedRows) -> None:
    writer.array(value.rows, _ROWS_HEAD.pack(_ROWS, value.height))
    writer.array(value.value)


def _write_part(writer: Writer, part: RingContribution) -> None:
    writer.add(bytes([_PART, part.averages]) + _I64.pack(part.root))
    writer.text(part.kind)
    writer.text(part.form)
    writer.value(part.value)


def _write_piece(writer: Writer, piece: Piece) -> None:
    writer.add(bytes([_PIECE]) + _SEGMENT.pack(piece.segment, *piece.key, *piece.last_key))
    writer.text(piece.variable)
    _write_part(writer, piece.part)


def _write_total(writer: Writer, total: Total) -> None:
    writer.add(bytes([_TOTAL]) + _SEGMENT.pack(total.segment, *total.key, *total.floor))
    writer.text(total.variable)
    writer.add(struct.pack(f"<I{len(total.trainers)}I", len(total.trainers), *total.trainers))
    writer.value(total.value)


def _write_statement(writer: Writer, statement: Statement) -> None:
    writer.add(
        bytes([_STATEMENT]) + _SEGMENT.pack(statement.segment, *statement.last_key, 0, len(statement.retained_sums))
    )
    for total in statement.retained_sums:
        _write_total(writer, total)


def _write_array(writer: Writer, value: Any) -> None:
    writer.array(value, _ARRAY_MARK)


def _write_text(writer: Writer, value: str) -> None:
    writer.add(bytes([_TEXT]))
    writer.text(value)


_WRITERS: dict[type, Callable[[Writer, Any], None]] = {
    type(None): lambda writer, _: writer.add(bytes([_NOTHING])),
    bool: lambda writer, value: writer.add(bytes([_TRUE if value else _FALSE])),
    int: lambda writer, value: writer.add(bytes([_INTEGER]) + _I64.pack(value)),
    float: lambda writer, value: writer.add(bytes([_REAL]) + _F64.pack(value)),
    str: _write_text,
    np.ndarray: _write_array,
    LoDTensor: _write_lod,
    SelectedRows: _write_rows,
    RingContribution: _write_part,
    Piece: _write_piece,
    Total: _write_total,
    Statement: _write_statement,
}


class FrameReader:
    """Reads a frame's pieces one after the other; every length is checked before it is used.

    Values don't nest, and what takes more memory than its bytes in the frame is counted: a frame takes at most a few
    times as much memory as it has bytes.
    """

    def __init__(self, data: Bytes, at: int = 0):
        self.data = memoryview(data).toreadonly()
        self.size = len(data)
        self.position = at
        self._offsets = self._sums = self._trainers = 0
        self._trainers_by_bytes: dict[bytes, tuple[int, ...]] = {}
        """The trainers that sums name, by their bytes, as most sums name the same."""

    def count_offsets(self, count: int) -> None:
        """Counts the offsets of a ragged tensor. Raises WireError for too many."""
        self._offsets += count
        require_few_offsets(self._offsets)

    def count_sums(self, count: int) -> None:
        """Counts the sums of a statement. Raises WireError for too many."""
        self._sums += count
        if count < 0 or self._sums > MOST_SUMS:
            raise WireError(f"statements have more than {MOST_SUMS} sums")

    def trainers(self) -> tuple[int, ...]:
        """The trainers whose parts a sum contains. Raises WireError for too many."""
        (count,) = self.unpack(_U32)
        start = self.take(4 * count)
        data = bytes(self.data[start : self.position])
        known = self._trainers_by_bytes.get(data)
        if known is None:
            self._trainers += count
            if self._trainers > MOST_TRAINERS:
                raise WireError(f"sums name trainers more than {MOST_TRAINERS} times")
            known = self._trainers_by_bytes[data] = struct.unpack(f"<{count}I", data)
        return known

    def take(self, size: int) -> int:
        """Takes the next `size` bytes and gives the offset of the first. Raises WireError if fewer are left."""
        start = self.position
        end = self.position = start + size
        if size < 0 or end > self.size:
            raise WireError(f"{size} bytes are announced at byte {start}, {self.size - start} are left")
        return start

    def unpack(self, form: struct.Struct) -> tuple[Any, ...]:
        """Reads numbers of a fixed form."""
        start = self.position
        end = self.position = start + form.size
        if end > self.size:
            raise WireError(f"{form.size} bytes are announced at byte {start}, {self.size - start} are left")
        return form.unpack_from(self.data, start)

    def text(self) -> str:
        """Reads a text with its length."""
        return self.text_of(self.unpack(_U32)[0])

    def text_of(self, size: int) -> str:
        """Reads a text of so many bytes."""
        start = self.take(size)
        if size > MOST_TEXT:
            raise WireError(f"a text of {size} bytes is too long")
        try:
            return str(self.data[start : self.position], "utf-8")
        except UnicodeDecodeError:
            raise WireError(f"the text at byte {start} is no UTF-8") from None

    def byte(self) -> int:
        """Reads one byte."""
        return self.data[self.take(1)]

    def array(self) -> Any:
        """Reads an array, which shares the frame's memory and is read-only."""
        head: tuple[int, ...] = self.unpack(_ARRAY_HEAD)
        number, ndim, padding, zero = head
        if number >= len(_DTYPES) or ndim > MOST_DIMS or padding >= ALIGNMENT or zero:
            raise WireError(f"no array begins at byte {self.position - _ARRAY_HEAD.size}")
        dims = self.unpack(_DIMS[ndim])
        if ndim and min(dims) < 0:
            raise WireError(f"an array has dims {list(dims)}")
        dtype, count = _DTYPES[number], prod(dims)
        start = padding + self.take(padding + count * dtype.itemsize)
        if not count:
            try:
                return np.empty(dims, dtype)
            except ValueError:  # the product of the dims is too large for numpy
                raise WireError(f"an array has dims {list(dims)}") from None
        return np.ndarray(dims, dtype, self.data, start)

    def value(self) -> Any:
        """Reads the value of a message. Raises WireError."""
        return self._read(_READERS)

    def numbers(self) -> Any:
        """Reads the value of a part or a sum of a collective operation. Raises WireError."""
        return self._read(_OF_SUMS)

    def _read(self, readers: Mapping[int, Callable[[FrameReader], Any]]) -> Any:
        start = self.position
        read = readers.get(self.data[start]) if start < self.size else None
        if read is None:
            raise WireError(f"no value begins at byte {self.take(1)}")
        self.position = start + 1
        return read(self)


def _read_lod(reader: FrameReader) -> LoDTensor:
    levels = [reader.array() for _ in range(reader.byte())]
    data = reader.array()
    reader.count_offsets(sum(level.size for level in levels))
    size = len(data) if data.ndim else -1
    for level in reversed(levels):
        rising = level.ndim == 1 and len(level) and not level[0] and bool((level[1:] >= level[:-1]).all())
        if level.dtype != np.int64 or not rising or level[-1] != size:
            raise WireError("the offsets of a ragged tensor don't fit its rows")
        size = len(level) - 1
    return LoDTensor(data, [level.tolist() for level in levels])


def _read_rows(reader: FrameReader) -> SelectedRows:
    height = reader.unpack(_I64)[0]
    rows, value = reader.array(), reader.array()
    if rows.ndim != 1 or rows.dtype != np.int64 or not value.ndim or len(value) < len(rows) or height < 0:
        raise WireError("rows and row numbers don't fit each other")
    if takes_any_id((height, *value.shape[1:])):
        return SelectedRows(rows, value, height)
    if not all_ids(rows, height):
        raise WireError(f"a row number is outside of {height} rows")
    return SelectedRows(rows, value, height)


def _read_part(reader: FrameReader) -> RingContribution:
    averages = reader.byte()
    (root,) = reader.unpack(_I64)
    return RingContribution(reader.text(), root, bool(averages), reader.text(), reader.numbers())


def _read_segment(reader: FrameReader) -> tuple[int, Key, Key]:
    segment, step, place, other_step, other_place = reader.unpack(_SEGMENT)
    return segment, (step, place), (other_step, other_place)


def _read_piece(reader: FrameReader) -> Piece:
    segment, key, had = _read_segment(reader)
    variable = reader.text()
    if reader.byte() != _PART:
        raise WireError(f"no part begins at byte {reader.position - 1}")
    return Piece(segment, key, variable, had, _read_part(reader))


def _read_total(reader: FrameReader) -> Total:
    segment, key, floor = _read_segment(reader)
    variable = reader.text()
    return Total(segment, key, variable, floor, reader.trainers(), reader.numbers())


def _read_statement(reader: FrameReader) -> Statement:
    segment, had, (_, count) = _read_segment(reader)
    reader.count_sums(count)
    kept: list[Total] = []
    for _ in range(count):
        if reader.byte() != _TOTAL:
            raise WireError(f"no sum begins at byte {reader.position - 1}")
        kept.append(_read_total(reader))
    return Statement(segment, had, tuple(kept))


_OF_SUMS: dict[int, Callable[[FrameReader], Any]] = {
    _NOTHING: lambda reader: None,
    _ARRAY: FrameReader.array,
    _ROWS: _read_rows,
}

_READERS: dict[int, Callable[[FrameReader], Any]] = {
    **_OF_SUMS,
    _FALSE: lambda reader: False,
    _TRUE: lambda reader: True,
    _INTEGER: lambda reader: cast("int", reader.unpack(_I64)[0]),
    _REAL: lambda reader: cast("float", reader.unpack(_F64)[0]),
    _TEXT: FrameReader.text,
    _LOD: _read_lod,
    _PART: _read_part,
    _PIECE: _read_piece,
    _TOTAL: _read_total,
    _STATEMENT: _read_statement,
}


# Frames: the units in which two processes of a job communicate.


PROTOCOL = 5
"""The version of this protocol; machines of different versions don't talk."""

HELLO = 1
"""The kind of a frame with the greeting of a process that connects (JSON)."""

WELCOME = 2
"""The kind of a frame with the answer to a greeting that was accepted (JSON)."""

REFUSED = 3
"""The kind of a frame with the answer to a greeting that was refused (JSON)."""

MESSAGES = 4
"""The kind of a frame with messages of machines."""

ALIVE = 5
"""The kind of a frame that is a sign of life."""

ASK = 6
"""The kind of a frame with a question (JSON)."""

ANSWER = 7
"""The kind of a frame with the answer to a question, or with news (JSON)."""

BYE = 8
"""The kind of the last frame of a connection."""

MAGIC = b"PSTW"
"""The first bytes of a frame."""
_HEADER = struct.Struct("<4sBBHQQQQII")
"""Magic, protocol, kind, 0, number, received, durable, size of the body, check sum of the body, of the header."""
HEADER_SIZE = _HEADER.size
_BLOCK = 256
"""The number of 64-bit words that are added for the check sum of a body."""

_MESSAGE = struct.Struct("<BxxxIIiiqQI")
"""Kind, source, target, trainer, slot, step, sequence, bytes of the variable's name, which follows."""

_MADE_OF = (np.ndarray, _DTYPES, SelectedRows, Message)
"""What the compiled reader makes messages of."""

_KIND_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}

MOST_GREETING = 1 << 20
"""The most bytes of a frame with JSON."""

MOST_BODY = 1 << 36
"""The most bytes of a frame's body."""

MOST_MESSAGES = 1 << 10
"""The most messages of a frame. More messages of one turn are sent in several frames, so that others have their turn
between them.
"""


class Header(NamedTuple):
    """The header of a frame.

    `number` counts the frames with messages in one direction; other frames have 0. `received_number` is the last such
    frame that the sender has taken from the other side; `durable_number` is the last one that would survive the end of
    the sender's process.
    """

    kind: int
    number: int
    received_number: int
    durable_number: int


def check_sum(data: Bytes) -> int:
    """A check sum of data: the CRC of the sums of the words of each block, followed by the bytes that fill no block.

    A CRC of all bytes would take longer than everything else that is done with a frame.
    """
    whole = len(data) - len(data) % (8 * _BLOCK)
    words: Any = np.frombuffer(data, "<u8", whole // 8).reshape(-1, _BLOCK)
    sums: Any = np.add.reduce(words, axis=1).astype("<u8") if whole else b""
    return zlib.crc32(memoryview(data)[whole:], zlib.crc32(sums))


def frame(
    header: Header, body: bytes, guarded: bool = False, body_sum: Callable[[], int] | None = None
) -> tuple[bytes, bytes]:
    """The bytes of a frame: those of the header, and the body's. `guarded`: it travels under TLS. `body_sum` returns
    the check sum of the body, if it is stored.
    """
    own = 0 if guarded else check_sum(body) if body_sum is None else body_sum()
    fields = _HEADER.pack(
        MAGIC, PROTOCOL, header.kind, 0, header.number, header.received_number, header.durable_number, len(body), own,
        0,
    )[:-4]  # fmt: skip
    return fields + struct.pack("<I", zlib.crc32(fields)), body


def read_size(head: Bytes) -> int:
    """The size of a frame, from its undamaged header. Raises WireError."""
    magic, protocol, _, zero, _, _, _, size, _, own = _HEADER.unpack_from(head)
    if magic != MAGIC or zero:
        raise WireError("the bytes are no frame of this protocol")
    if protocol != PROTOCOL:
        raise WireError(f"the frame is of version {protocol} of the protocol, this is version {PROTOCOL}")
    if zlib.crc32(memoryview(head)[: HEADER_SIZE - 4]) != own:
        raise WireError("the header of a frame is damaged: its check sum is another")
    if size > MOST_BODY:
        raise WireError(f"a frame of {size} bytes is too long")
    return HEADER_SIZE + size


def kind_of(head: Bytes) -> int:
    """The kind of a frame, from its header."""
    return head[5]


def read_header(data: Bytes, guarded: bool = False) -> Header:
    """The header of a frame whose bytes are whole and undamaged. `guarded`: it came under TLS, where the body
    has no check sum. Raises WireError.
    """
    if len(data) < HEADER_SIZE:
        raise WireError(f"a frame of {len(data)} bytes is shorter than a header")
    size = read_size(data) - HEADER_SIZE
    _, _, kind, _, number, received, durable, _, sent, _ = _HEADER.unpack_from(data)
    if size != len(data) - HEADER_SIZE:
        raise WireError(f"a frame has {len(data) - HEADER_SIZE} bytes where {size} are announced")
    if sent != (0 if guarded else check_sum(memoryview(data)[HEADER_SIZE:])):
        raise WireError("a frame is damaged: its check sum is another")
    if kind not in range(HELLO, BYE + 1):
        raise WireError(f"there is no kind {kind} of frames")
    return Header(kind, number, received, durable)


def json_body(fields: Mapping[str, Any]) -> bytes:
    """A body of JSON, for a greeting, a question or an answer."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def read_json(data: Bytes) -> dict[str, Any]:
    """The fields of a frame whose body is JSON. Raises WireError."""
    if len(data) > MOST_GREETING:
        raise WireError(f"a greeting of {len(data)} bytes is too long")
    try:
        fields = json.loads(bytes(data[HEADER_SIZE:]))
    except (ValueError, RecursionError):
        raise WireError("a greeting is no JSON") from None
    if not isinstance(fields, dict):
        raise WireError("a greeting is no mapping")
    return cast("dict[str, Any]", fields)


def messages_body(messages: Sequence[Message], machines: Mapping[str, int]) -> bytes:
    """A body of messages, in order. `machines` numbers the job's machines. Raises WireError for what can't be sent."""
    packed = loops.pack_messages([*messages], {**machines}, _KIND_NUMBERS, HEADER_SIZE, SelectedRows)
    if packed is not None:
        return packed
    writer = Writer()
    writer.size = HEADER_SIZE  # arrays are aligned relative to the whole frame
    writer.add(struct.pack("<I", len(messages)))
    for kind, source, target, trainer, step, sequence, variable, payload, slot in messages:
        name = variable.encode()
        numbers = _KIND_NUMBERS[kind], machines[source], machines[target], trainer, slot, step, sequence, len(name)
        writer.add(_MESSAGE.pack(*numbers) + name)
        writer.value(payload)
    return b"".join(writer.buffers)


def read_messages(data: Bytes, machines: Sequence[str]) -> list[Message]:
    """The messages of a frame. Raises WireError if one is not well-formed; then no message is taken."""
    reader = FrameReader(data, HEADER_SIZE)
    known = loops.unpack_messages(reader.data, HEADER_SIZE, [*machines], KINDS, MOST_MESSAGES, _MADE_OF)
    if known is not None:
        return known
    (count,) = reader.unpack(_U32)
    if count > MOST_MESSAGES:
        raise WireError(f"{count} messages are announced in a frame, which has {MOST_MESSAGES} at most")
    if count * _MESSAGE.size > len(data):
        raise WireError(f"{count} messages are announced in a frame of {len(data)} bytes")
    messages: list[Message] = []
    for _ in range(count):
        numbers: tuple[int, ...] = reader.unpack(_MESSAGE)
        kind, source, target, trainer, slot, step, sequence, size = numbers
        if kind >= len(KINDS) or source >= len(machines) or target >= len(machines) or not sequence:
            raise WireError("a message is of no known kind, or of machines that the job does not have")
        variable = reader.text_of(size)
        payload = reader.value()
        fields = (KINDS[kind], machines[source], machines[target], trainer, step, sequence, variable, payload, slot)
        messages.append(Message(*fields))
    if reader.position != len(data):
        raise WireError(f"{len(data) - reader.position} bytes are left behind the messages of a frame")
    return messages
