"""Values of variables as bytes and files, in the layout of Fluid's `save` and `load` (little endian)."""

from __future__ import annotations

import errno
import math
import os
import struct
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedIOBase, BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from pstranspile.ir.codes import Code
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import Location
from pstranspile.ir.reading import misspelt, open_regular
from pstranspile.ir.table_rules import takes_any_id
from pstranspile.ir.types import DType
from pstranspile.runtime.values import NUMPY_TYPES, Array, LoDTensor, SelectedRows

# Values of variables as bytes, in the layout of Fluid's `save` and `load` ops (little endian throughout).
#
# A tensor with LoD is: uint32 version 0; uint64 number of LoD levels; per level uint64 size in bytes and the offsets as
# uint64; the tensor. A tensor is: uint32 version 0; int32 size of its descriptor; the descriptor, a protobuf message
# (field 1 element type, field 2 dims, not packed); the elements, row by row.
#
# Sparse rows: uint32 version 0; uint64 number of rows; the rows as int64; int64 height; then the tensor of values.
#
# A combined file holds tensors one after another, without names.

_MAX_DESCRIPTOR = 1 << 16
_MAX_RANK = 64


def refuse(code: Code, file: str, message: str) -> NoReturn:
    """Raises the DiagnosticError about a file."""
    raise DiagnosticError([error(code, message, Location(file))])


# Reading


class FieldReader:
    """Reads fields of a file in turn; every failure is a DiagnosticError naming file, field and byte offset."""

    def __init__(self, stream: BufferedIOBase, file: str) -> None:
        self.stream, self.file = stream, file
        self.subject = ""
        """The variable that is being read, for messages."""
        self.position = 0
        self.max_field_bytes: int | None = None
        """The most bytes that a single field may have; None: as many as the file."""
        self.size = stream.seek(0, os.SEEK_END)
        stream.seek(0)

    def begin(self, subject: str = "", max_field_bytes: int | None = None) -> None:
        """Sets the name, in messages, of the value that is read next, and the most bytes of each of its fields."""
        self.subject, self.max_field_bytes = subject, max_field_bytes

    def go_back(self, at: int) -> None:
        """Moves back to byte `at`: the bytes after it were only examined."""
        self.position = at

    @property
    def bytes_left(self) -> int:
        """The number of bytes not yet read."""
        return self.size - self.position

    def raise_damaged(self, field: str, reason: str, at: int | None = None) -> NoReturn:
        """Raises the DiagnosticError about a field that starts at byte `at` (default: where reading stands)."""
        self.refuse("values-damaged", f"{field}, byte {self.position if at is None else at}: {reason}")

    def refuse(self, code: Code, message: str) -> NoReturn:
        """Raises the DiagnosticError about what is being read."""
        refuse(code, self.file, f"{self.subject}: {message}" if self.subject else message)

    def require(self, size: int, field: str) -> None:
        """Raises DiagnosticError unless `size` more bytes are left."""
        if size > self.bytes_left:
            self.raise_damaged(field, f"{size} bytes are needed, {self.bytes_left} are left")
        if self.max_field_bytes is not None and size > self.max_field_bytes:
            self.raise_damaged(field, f"{size} bytes are more than what is to be read has ({self.max_field_bytes})")

    def take(self, size: int, field: str) -> bytes:
        """The next `size` bytes."""
        self.require(size, field)
        data = self.stream.read(size)
        self.position += len(data)
        return data

    def number(self, form: str, field: str) -> int:
        """The next number, in the notation of `struct`."""
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form), field))[0]

    def array(self, dtype: str, shape: tuple[int, ...], field: str) -> Array:
        """The next elements as an array of these dims."""
        kind = np.dtype(dtype).newbyteorder("<")
        size = math.prod(shape) * kind.itemsize
        self.require(size, field)
        try:
            out = np.empty(shape, kind)
        except (ValueError, OverflowError) as problem:  # too many dims, or huge dims beside a dim of 0
            self.raise_damaged(field, f"there can't be a tensor of dims {list(shape)}: {problem}")
        if size:
            self.stream.readinto(memoryview(out).cast("B"))
        if dtype == "bool" and size and out.view("uint8").max() > 1:  # numpy would count such an element as its byte
            self.raise_damaged(field, "a boolean is neither 0 nor 1")
        self.position += size
        return out.astype(dtype, copy=False)

    def version(self, field: str) -> None:
        """Reads a version number, which must be 0."""
        at, version = self.position, self.number("I", field)
        if version:
            self.refuse("values-version", f"{field}, byte {at}: version {version} is not known, only 0 is")


def _descriptor_numbers(data: bytes, reader: FieldReader, at: int) -> Iterator[tuple[int, int, int]]:
    """Field number, value and position of each number in a descriptor."""
    position = 0

    def varint() -> int:
        nonlocal position
        start, value = position, 0
        while position < len(data) and position - start < 10:
            byte = data[position]
            value |= (byte & 0x7F) << 7 * (position - start)
            position += 1
            if byte < 0x80:
                return value
        reader.raise_damaged("tensor descriptor", "a number does not end", at + start)

    while position < len(data):
        start = position
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint(), at + start
        elif key & 7 == 2 and key >> 3 == 2:  # packed dims, as other protobuf writers may give them
            end = varint() + position
            if end > len(data):
                reader.raise_damaged("tensor descriptor", "the dims do not end", at + start)
            while position < end:
                yield 2, varint(), at + start
        else:
            reader.raise_damaged("tensor descriptor", f"{key} does not start a field", at + start)


def _descriptor(reader: FieldReader) -> tuple[str, tuple[int, ...]]:
    """(numpy's name of the element type, dims) from the next descriptor."""
    reader.version("tensor version")
    size_at, size = reader.position, reader.number("i", "size of the tensor descriptor")
    if not 0 <= size <= _MAX_DESCRIPTOR:
        reader.raise_damaged("size of the tensor descriptor", f"{size} bytes is not a size", size_at)
    at, number, dims = reader.position, None, list[int]()
    for field, value, position in _descriptor_numbers(reader.take(size, "tensor descriptor"), reader, at):
        if field == 1:
            number = value
        elif field == 2:
            if value >= 1 << 63:
                reader.raise_damaged("dims", f"dim {len(dims)} is negative", position)
            dims.append(value)
        else:
            reader.raise_damaged("tensor descriptor", f"field {field} is not known", position)
    if number is None:
        reader.raise_damaged("element type", "the descriptor has none", at)
    if len(dims) > _MAX_RANK:
        reader.raise_damaged("dims", f"{len(dims)} dims are more than a tensor can have ({_MAX_RANK})", at)
    try:
        return NUMPY_TYPES[DType(number)], tuple(dims)
    except ValueError:
        reader.refuse("values-type", f"element type, byte {at}: {number} stands for none")


def _lod(reader: FieldReader) -> list[list[int]]:
    at, levels = reader.position, reader.number("Q", "number of LoD levels")
    if levels > reader.bytes_left // 8:
        reader.raise_damaged("number of LoD levels", f"{levels} levels do not fit into {reader.bytes_left} bytes", at)
    lod: list[list[int]] = []
    for level in range(levels):
        field = f"LoD level {level}"
        at, size = reader.position, reader.number("Q", f"size of {field}")
        if size % 8:
            reader.raise_damaged(f"size of {field}", f"offsets of 8 bytes do not make up {size} bytes", at)
        at = reader.position
        reader.require(size, field)
        offsets: list[int] = reader.array("uint64", (size // 8,), field).tolist()
        if offsets[:1] != [0] or any(a > b for a, b in pairwise(offsets)):
            reader.raise_damaged(field, "the offsets do not ascend from 0", at)
        if lod and lod[-1][-1] != len(offsets) - 1:
            message = f"{len(offsets) - 1} sequences, but the level above ends at {lod[-1][-1]}"
            reader.raise_damaged(field, message, at)
        lod.append(offsets)
    return lod


def decode_tensor(reader: FieldReader) -> Array | LoDTensor:
    """The next tensor; without LoD a plain array."""
    reader.version("version")
    lod_at = reader.position
    lod = _lod(reader)
    dtype, dims = _descriptor(reader)
    if lod and lod[-1][-1] != (dims[0] if dims else 1):
        reader.raise_damaged("LoD", f"the last level ends at {lod[-1][-1]}, but the dims are {list(dims)}", lod_at)
    data = reader.array(dtype, dims, "elements")
    return LoDTensor(data, lod) if lod else data


def decode_part(reader: FieldReader, first: int, shape: tuple[int, ...]) -> Array:
    """Elements of the next tensor from number `first` on, as many as `shape` has. The rest is not read."""
    reader.version("version")
    _lod(reader)
    dtype, dims = _descriptor(reader)
    stored, asked = math.prod(dims), math.prod(shape)
    if first + asked > stored:
        message = f"elements {first} to {first + asked} are asked for, but the dims are {list(dims)}: {stored} elements"
        reader.refuse("values-range", message)
    width = np.dtype(dtype).itemsize
    reader.require(stored * width, "elements")
    reader.position = reader.stream.seek(reader.position + first * width)
    return reader.array(dtype, shape, "elements")


def decode_selected_rows(reader: FieldReader) -> SelectedRows:
    """The next sparse rows."""
    reader.version("version")
    at, count = reader.position, reader.number("Q", "number of rows")
    if count > reader.bytes_left // 8:
        reader.raise_damaged("number of rows", f"{count} rows do not fit into {reader.bytes_left} bytes", at)
    rows_at, rows = reader.position, reader.array("int64", (count,), "rows")
    at, height = reader.position, reader.number("q", "height")
    if height < 0:
        reader.raise_damaged("height", f"{height} is negative", at)
    at = reader.position
    dtype, dims = _descriptor(reader)
    if count and int(rows.min()) < 0 and not takes_any_id((height, *dims[1:])):
        reader.raise_damaged("rows", f"row {int(rows.min())} is negative", rows_at)
    if not dims or dims[0] < count:
        reader.raise_damaged("dims", f"{list(dims)} do not hold the values of {count} rows", at)
    return SelectedRows(rows, reader.array(dtype, dims, "elements"), height)


def end(reader: FieldReader) -> None:
    """Raises DiagnosticError unless everything has been read."""
    if reader.bytes_left:
        message = f"byte {reader.position}: {reader.bytes_left} bytes follow after all that is to be read"
        reader.refuse("values-rest", message)


def end_of_copies(reader: FieldReader, value: Array | LoDTensor) -> None:
    """Raises DiagnosticError unless everything has been read, or `value` is a single number and the rest has the size
    of further ones.

    Fluid's `recv_save` writes a number that several servers hold, such as a power of beta, once for each server. The
    first one is used.
    """
    held = value.data if isinstance(value, LoDTensor) else value
    if held.size != 1 or reader.bytes_left % held.nbytes:
        end(reader)


@contextmanager
def open_reader(path: Path) -> Generator[FieldReader]:
    """A Reader of the file at `path`. Raises DiagnosticError when it can't be read."""
    try:
        stream = open_regular(path)
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else str(problem)
        refuse("values-unreadable", str(path), f"can't be read: {reason}{misspelt(path)}")
    with stream:
        try:
            yield FieldReader(stream, str(path))
        except OSError as problem:
            refuse("values-unreadable", str(path), f"can't be read: {problem.strerror}")
        except MemoryError:
            refuse("values-unreadable", str(path), "can't be read: there is no memory for what it says it holds")


def most_bytes(size: int) -> int:
    """The largest size of a field in a file whose values take `size` bytes; LoD may take more."""
    return 16 * size + (1 << 20)


# Values of variables written as bytes, in the layout that `pstranspile.runtime.values.encoding` describes.

_NUMBERS = {name: dtype.value for dtype, name in NUMPY_TYPES.items()}

_LARGEST_FLOAT16 = 65504.0

# Writing


def to_float16(value: Array) -> Array:
    """`value` as float16, rounded toward zero as in Fluid. Values beyond the largest float16 become infinite."""
    exact = value.astype("float32")
    with np.errstate(over="ignore"):
        half = exact.astype("float16")
    half = np.where(np.abs(exact) > _LARGEST_FLOAT16, np.copysign(half.dtype.type(np.inf), half), half)
    away = np.abs(half.astype("float32")) > np.abs(exact)
    bits = half.view("uint16")
    return (bits - (away & np.isfinite(half))).astype("uint16").view("float16").reshape(value.shape)


def as_float16(value: Any) -> Any:
    """The same value (array, LoDTensor or SelectedRows) with its elements as float16."""
    if isinstance(value, LoDTensor):
        return value._replace(data=as_float16(value.data))
    if isinstance(value, SelectedRows):
        return value._replace(value=as_float16(value.value))
    return value if value.dtype == "float16" else to_float16(value)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _tensor(value: Array, as_fp16: bool) -> Iterator[bytes | memoryview]:
    """The bytes of a tensor without LoD. A number without dims is written as a tensor of one element."""
    if as_fp16:
        value = as_float16(value)
    value = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
    yield _descriptor_bytes(value.dtype.name, value.shape)
    if value.size:
        yield memoryview(value).cast("B")


def _descriptor_bytes(kind: str, shape: tuple[int, ...]) -> bytes:
    """The descriptor of a tensor: dtype and dims."""
    descriptor = b"\x08" + _varint(_NUMBERS[kind]) + b"".join(b"\x10" + _varint(dim) for dim in shape)
    return struct.pack("<Ii", 0, len(descriptor)) + descriptor


def encode_pieces(kind: str, shape: tuple[int, ...], pieces: Iterable[Array]) -> Iterator[bytes | memoryview]:
    """The bytes of a tensor of this dtype and dims, whose rows come in pieces."""
    yield struct.pack("<IQ", 0, 0) + _descriptor_bytes(kind, shape)
    for piece in pieces:
        if piece.size:
            yield memoryview(np.ascontiguousarray(piece, np.dtype(kind).newbyteorder("<"))).cast("B")


def encode(value: Array | LoDTensor | SelectedRows, as_fp16: bool = False) -> Iterator[bytes | memoryview]:
    """The bytes of a variable's value, in pieces to be written one after another."""
    if isinstance(value, SelectedRows):
        rows = np.ascontiguousarray(value.rows, "<i8")
        yield struct.pack("<IQ", 0, len(rows)) + rows.tobytes() + struct.pack("<q", value.height)
        yield from _tensor(value.value, as_fp16)
        return
    data, lod = value if isinstance(value, LoDTensor) else (value, [])
    head = struct.pack("<IQ", 0, len(lod))
    for level in lod:
        offsets = np.asarray(level, "<u8").tobytes()
        head += struct.pack("<Q", len(offsets)) + offsets
    yield head
    yield from _tensor(data, as_fp16)


def require_encodable(value: Any, name: str, file: str) -> None:
    """Raises DiagnosticError unless `value`, the value of the variable `name`, can be written in this layout."""
    data: Array = (
        value.value if isinstance(value, SelectedRows) else value.data if isinstance(value, LoDTensor) else value
    )
    if not isinstance(data, np.ndarray):
        refuse("values-kind", file, f"{name} holds no tensor and no sparse rows, it can't be saved")
    if data.dtype.name not in _NUMBERS:
        refuse("values-kind", file, f"{name} has elements of type {data.dtype}, which Fluid does not know")


def write_file(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Writes a file whole or not at all, and the folders it is in. Raises DiagnosticError."""
    write_files({path: pieces})


def write_files(files: Mapping[Path, Iterable[bytes | memoryview]]) -> None:
    """Writes files and makes their folders; files are replaced only after all are written. Raises DiagnosticError."""
    parts: dict[Path, Path] = {}
    now = Path()
    try:
        for path, pieces in files.items():
            now = path
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            path.parent.mkdir(parents=True, exist_ok=True)
            part = parts[path] = path.with_name(f".{path.name}.{os.getpid()}.part")
            part.unlink(missing_ok=True)
            with open(part, "xb") as file:  # does not follow a link that somebody has put there
                file.writelines(pieces)
        for path, part in parts.items():
            now = path
            os.replace(part, path)
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else str(problem)
        refuse("values-unwritable", str(now), f"can't be written: {reason}")
    finally:
        for part in parts.values():
            if part.exists():
                part.unlink()


# Files of variables as Fluid's `save`, `save_combine` and `save_persistables` write them.
#
#     from pstranspile.runtime.values.encoding import read_tensor, write_values
#     write_values("model/fc_0.w_0", weights)
#     weights = read_tensor("model/fc_0.w_0")
#
# Values are numpy arrays, LoDTensors and SelectedRows. All functions raise DiagnosticError, naming the file and, where
# its content is at fault, the field and its byte offset.


def read_tensor(path: str | os.PathLike[str]) -> Array | LoDTensor:
    """The tensor that a file holds; a plain array if it has no LoD."""
    with open_reader(Path(path)) as reader:
        value = decode_tensor(reader)
        end_of_copies(reader, value)
    return value


def read_selected_rows(path: str | os.PathLike[str]) -> SelectedRows:
    """The sparse rows in a file. (The reader must know that it holds rows: the format does not show it.)"""
    with open_reader(Path(path)) as reader:
        value = decode_selected_rows(reader)
        end(reader)
    return value


def read_combined(path: str | os.PathLike[str], names: Iterable[str]) -> dict[str, Array | LoDTensor]:
    """The tensors of a combined file, which holds no names: `names` in the order they were saved."""
    values: dict[str, Array | LoDTensor] = {}
    with open_reader(Path(path)) as reader:
        for name in names:
            reader.subject = name
            values[name] = decode_tensor(reader)
        reader.subject = ""
        end(reader)
    return values


def write_values(
    path: str | os.PathLike[str], value: Array | LoDTensor | SelectedRows, *, as_fp16: bool = False
) -> None:
    """Writes a tensor or sparse rows to a file of their own, whole or not at all."""
    require_encodable(value, Path(path).name, str(path))
    write_file(Path(path), encode(value, as_fp16))


def write_combined(
    path: str | os.PathLike[str], values: Mapping[str, Array | LoDTensor], *, as_fp16: bool = False
) -> None:
    """Writes tensors one after another to one file, in the order of `values`; the names are not written."""
    pieces: list[bytes | memoryview] = []
    for name, value in values.items():
        if isinstance(value, SelectedRows):
            refuse("values-kind", str(path), f"{name} holds sparse rows, which a combined file does not take")
        require_encodable(value, name, str(path))
        pieces += encode(value, as_fp16)
    write_file(Path(path), pieces)


def to_bytes(value: Array | LoDTensor | SelectedRows, *, as_fp16: bool = False) -> bytes:
    """The bytes of a tensor or of sparse rows, as a file would hold them."""
    require_encodable(value, "the value", "bytes")
    return b"".join(encode(value, as_fp16))


def tensor_from_bytes(data: bytes, source: str = "bytes") -> Array | LoDTensor:
    """The tensor in `data`; `source` names it in messages."""
    reader = FieldReader(BytesIO(data), source)
    value = decode_tensor(reader)
    end(reader)
    return value


def selected_rows_from_bytes(data: bytes, source: str = "bytes") -> SelectedRows:
    """The sparse rows in `data`; `source` names them in messages."""
    reader = FieldReader(BytesIO(data), source)
    value = decode_selected_rows(reader)
    end(reader)
    return value
