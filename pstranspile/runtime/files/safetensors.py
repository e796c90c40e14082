"""Files of the safetensors format: named tensors behind a JSON header, without pickle and without a library.

Layout: uint64 size of the header; the header, a JSON object of `name: {"dtype", "shape", "data_offsets"}` and
perhaps `__metadata__` (strings by name), padded with spaces; the elements of all tensors, little endian, without gaps.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from pstranspile.ir.json_faults import told
from pstranspile.runtime.values import Array
from pstranspile.runtime.values.encoding import Reader, opened, refuse, write_file

METADATA = "__metadata__"
_MAX_HEADER = 100_000_000
_NUMPY = {
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
    "F32": "float32",
    "U32": "uint32",
    "I32": "int32",
    "BF16": "uint16",
    "F16": "float16",
    "U16": "uint16",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
"""numpy's name of each element type (BF16: of the bits it is read as), in the order of tensors in a file."""
_RANKS = {kind: rank for rank, (name, kind) in enumerate(_NUMPY.items()) if name != "BF16"}
_NAMES = {kind: name for name, kind in _NUMPY.items() if name != "BF16"}


class _Entry(NamedTuple):
    name: str
    kind: str
    shape: tuple[int, ...]
    start: int
    end: int


def write_safetensors(
    path: str | os.PathLike[str], tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None
) -> None:
    """Writes named arrays, whole or not at all. Raises DiagnosticError."""
    write_file(Path(path), safetensors_pieces(tensors, str(path), metadata))


def safetensors_pieces(
    tensors: Mapping[str, Array], file: str, metadata: Mapping[str, str] | None = None
) -> list[bytes | memoryview]:
    """The bytes of a file with these arrays, in pieces; `file` is its name in messages. Raises DiagnosticError.

    Tensors are ordered by element type, wide ones first so that all are aligned, and by name, as the format's own
    library does: the bytes do not depend on the order of `tensors`.
    """
    for name, value in tensors.items():
        if not isinstance(value, np.ndarray) or value.dtype.name not in _NAMES or name == METADATA:
            refuse("values-kind", file, f"{name} holds nothing that safetensors can carry")
    header: dict[str, Any] = {METADATA: dict(sorted(metadata.items()))} if metadata else {}
    pieces: list[bytes | memoryview] = []
    at = 0
    for name in sorted(tensors, key=lambda name: (_RANKS[tensors[name].dtype.name], name)):
        value = tensors[name]
        value = np.ascontiguousarray(value, value.dtype.newbyteorder("<")).reshape(value.shape)
        header[name] = {
            "dtype": _NAMES[value.dtype.name],
            "shape": list(value.shape),
            "data_offsets": [at, at + value.nbytes],
        }
        at += value.nbytes
        pieces.append(value.tobytes() if value.ndim == 0 or not value.size else memoryview(value).cast("B"))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return [struct.pack("<Q", len(text)), text, *pieces]


def read_safetensors(path: str | os.PathLike[str], names: Iterable[str] | None = None) -> dict[str, Array]:
    """The arrays of a file by name, in the order they lie in it; only those in `names`, if given.

    Elements of type BF16, which numpy does not have, become float32. Raises DiagnosticError for a file that can't be
    read, is damaged, or lacks one of `names`.
    """
    with opened(Path(path)) as reader:
        entries, start = _header(reader)
        if names is not None:
            wanted = dict.fromkeys(names)
            held = {entry.name for entry in entries}
            missing = [name for name in wanted if name not in held]
            if missing:
                refuse("values-missing", str(path), f"the file has no tensor {', '.join(missing)}")
            entries = [entry for entry in entries if entry.name in wanted]
        return {entry.name: _read(reader, entry, start) for entry in entries}


def tensors_from_bytes(data: bytes, source: str = "bytes") -> dict[str, Array]:
    """The arrays in the bytes of a file, by name; `source` names them in messages. Raises DiagnosticError."""
    reader = Reader(BytesIO(data), source)
    entries, start = _header(reader)
    return {entry.name: _read(reader, entry, start) for entry in entries}


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The `__metadata__` of a file, empty if it has none. Raises DiagnosticError."""
    with opened(Path(path)) as reader:
        header = _json(reader)
    return _metadata(reader, header)


def _read(reader: Reader, entry: _Entry, start: int) -> Array:
    reader.at = reader.stream.seek(start + entry.start)
    value = reader.array(_NUMPY[entry.kind], entry.shape, f"elements of {entry.name}")
    if entry.kind == "BF16":
        return (value.astype("uint32") << 16).view("float32").reshape(entry.shape)
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name occurs twice")
    return result


def _json(reader: Reader) -> dict[str, Any]:
    size = reader.number("Q", "size of the header")
    if size > min(reader.left, _MAX_HEADER):
        reader.damaged("size of the header", f"{size} bytes are announced, {reader.left} are left", 0)
    at = reader.at
    try:
        header: Any = json.loads(reader.take(size, "header").decode("utf-8"), object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as problem:
        reader.damaged("header", f"it is not the JSON it should be: {told(problem)}", at)
    if not isinstance(header, dict):
        reader.damaged("header", "it is not a JSON object", at)
    return cast("dict[str, Any]", header)


def _metadata(reader: Reader, header: dict[str, Any]) -> dict[str, str]:
    result: Any = header.pop(METADATA, {})
    if not isinstance(result, dict) or not all(isinstance(v, str) for v in cast("dict[str, Any]", result).values()):
        reader.damaged(METADATA, "it does not hold strings by name", 8)
    return cast("dict[str, str]", result)


def _header(reader: Reader) -> tuple[list[_Entry], int]:
    """The tensors in the order they lie in the file, and the byte at which the first starts."""
    header = _json(reader)
    _metadata(reader, header)
    entries = sorted((_entry(reader, name, held) for name, held in header.items()), key=lambda entry: entry[3:])
    at = 0
    for entry in entries:
        if entry.start != at:
            reader.damaged(f"data_offsets of {entry.name}", f"its elements start at {entry.start}, not at {at}", 8)
        at = entry.end
    if at != reader.left:
        reader.damaged("elements", f"{at} bytes are described, {reader.left} are there")
    return entries, reader.at


def _naturals(value: Any) -> tuple[int, ...] | None:
    """A list of numbers from 0 on, None if it is anything else."""
    if not isinstance(value, list) or len(cast("list[Any]", value)) > 64:
        return None
    items = cast("list[Any]", value)
    return tuple(items) if all(type(item) is int and item >= 0 for item in items) else None


def _entry(reader: Reader, name: str, held: Any) -> _Entry:
    if not isinstance(held, dict):
        reader.damaged(name, "its entry in the header is not an object", 8)
    fields = cast("dict[str, Any]", held)
    kind, shape, place = fields.get("dtype"), _naturals(fields.get("shape")), _naturals(fields.get("data_offsets"))
    if not isinstance(kind, str) or kind not in _NUMPY:
        refuse("values-type", reader.file, f"dtype of {name}, byte 8: {kind!r} is not a known element type")
    if shape is None:
        reader.damaged(f"shape of {name}", f"{fields.get('shape')!r} is not a list of dims", 8)
    if place is None or len(place) != 2 or place[0] > place[1]:
        reader.damaged(f"data_offsets of {name}", f"{fields.get('data_offsets')!r} is not a start and an end", 8)
    size = math.prod(shape) * np.dtype(_NUMPY[kind]).itemsize
    if place[1] - place[0] != size:
        reader.damaged(f"data_offsets of {name}", f"{kind}{list(shape)} takes {size} bytes, not {list(place)}", 8)
    return _Entry(name, kind, shape, place[0], place[1])
