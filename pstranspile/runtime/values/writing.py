"""Values of variables written as bytes, in the layout that `pstranspile.runtime.values.reading` describes."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pstranspile.runtime.values import NUMPY_TYPES, Array, LoDTensor, SelectedRows
from pstranspile.runtime.values.reading import refuse

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
    yield _descriptor(value.dtype.name, value.shape)
    if value.size:
        yield memoryview(value).cast("B")


def _descriptor(kind: str, shape: tuple[int, ...]) -> bytes:
    """The descriptor of a tensor: dtype and dims."""
    descriptor = b"\x08" + _varint(_NUMBERS[kind]) + b"".join(b"\x10" + _varint(dim) for dim in shape)
    return struct.pack("<Ii", 0, len(descriptor)) + descriptor


def encode_pieces(kind: str, shape: tuple[int, ...], pieces: Iterable[Array]) -> Iterator[bytes | memoryview]:
    """The bytes of a tensor of this dtype and these dims, whose rows are given in pieces."""
    yield struct.pack("<IQ", 0, 0) + _descriptor(kind, shape)
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
    """Raises DiagnosticError unless `value`, of the variable `name`, can be written in this layout."""
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
    """Writes files, and the folders they are in; none is replaced before all are written. Raises DiagnosticError."""
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
            with open(part, "xb") as file:  # which follows no link that somebody has put there
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
