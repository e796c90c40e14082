"""Saving and loading the persistable variables of a program: its parameters, and what optimizers keep of them.

    save_variables(module.main, scope, "checkpoint")                                 # one file for each variable
    save_variables(module.main, scope, "checkpoint.pdparams", layout="combined")     # one file, in Fluid's layout
    save_variables(module.main, scope, "checkpoint.safetensors", layout="safetensors")
    load_variables(module.main, scope, "checkpoint")

The first two layouts are those of Fluid's `save_persistables` and `load_persistables`, so files go both ways.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Container, Iterable, Mapping, MutableMapping
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np

from pstranspile.ir.argument_checks import check_arguments, expect, expect_program, names_of, path_of
from pstranspile.ir.codes import Code
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, error, raise_errors
from pstranspile.ir.json_text import describe_json_error
from pstranspile.ir.model import Location, Program, Var
from pstranspile.ir.types import VarKind
from pstranspile.runtime.files.outputs import write_variables
from pstranspile.runtime.large.forms import rows_alone
from pstranspile.runtime.values import NUMPY_TYPES, Array, LoDTensor, SelectedRows
from pstranspile.runtime.values.encoding import (
    FieldReader,
    encode,
    open_reader,
    read_combined,
    read_selected_rows,
    read_tensor,
    refuse,
    require_encodable,
    write_combined,
    write_file,
)

# Files of the safetensors format: named tensors behind a JSON header, without pickle and without a library.
#
# Layout: uint64 size of the header; the header, a JSON object of `name: {"dtype", "shape", "data_offsets"}` and perhaps
# `__metadata__` (strings by name), padded with spaces; the elements of all tensors, little endian, without gaps.


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
"""numpy's name of each element type (for BF16: of the type that its bits are read as), in the order of tensors in a
file.
"""
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
    """The bytes of a safetensors file with these arrays, in pieces; `file` is its name in messages. Raises
    DiagnosticError.

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
    with open_reader(Path(path)) as reader:
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
    reader = FieldReader(BytesIO(data), source)
    entries, start = _header(reader)
    return {entry.name: _read(reader, entry, start) for entry in entries}


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The `__metadata__` of a file, empty if it has none. Raises DiagnosticError."""
    with open_reader(Path(path)) as reader:
        header = _json(reader)
    return _metadata(reader, header)


def _read(reader: FieldReader, entry: _Entry, start: int) -> Array:
    reader.position = reader.stream.seek(start + entry.start)
    value = reader.array(_NUMPY[entry.kind], entry.shape, f"elements of {entry.name}")
    if entry.kind == "BF16":
        return (value.astype("uint32") << 16).view("float32").reshape(entry.shape)
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name occurs twice")
    return result


def _json(reader: FieldReader) -> dict[str, Any]:
    size = reader.number("Q", "size of the header")
    if size > min(reader.bytes_left, _MAX_HEADER):
        reader.raise_damaged("size of the header", f"{size} bytes are announced, {reader.bytes_left} are left", 0)
    at = reader.position
    try:
        header: Any = json.loads(reader.take(size, "header").decode("utf-8"), object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as problem:
        reader.raise_damaged("header", f"it is not the JSON it should be: {describe_json_error(problem)}", at)
    if not isinstance(header, dict):
        reader.raise_damaged("header", "it is not a JSON object", at)
    return cast("dict[str, Any]", header)


def _metadata(reader: FieldReader, header: dict[str, Any]) -> dict[str, str]:
    result: Any = header.pop(METADATA, {})
    if not isinstance(result, dict) or not all(isinstance(v, str) for v in cast("dict[str, Any]", result).values()):
        reader.raise_damaged(METADATA, "it does not hold strings by name", 8)
    return cast("dict[str, str]", result)


def _header(reader: FieldReader) -> tuple[list[_Entry], int]:
    """The tensors in the order they lie in the file, and the byte at which the first starts."""
    header = _json(reader)
    _metadata(reader, header)
    entries = sorted((_entry(reader, name, held) for name, held in header.items()), key=lambda entry: entry[3:])
    at = 0
    for entry in entries:
        if entry.start != at:
            reader.raise_damaged(
                f"data_offsets of {entry.name}", f"its elements start at {entry.start}, not at {at}", 8
            )
        at = entry.end
    if at != reader.bytes_left:
        reader.raise_damaged("elements", f"{at} bytes are described, {reader.bytes_left} are there")
    return entries, reader.position


def _naturals(value: Any) -> tuple[int, ...] | None:
    """A list of non-negative integers as a tuple; None for any other value."""
    if not isinstance(value, list) or len(cast("list[Any]", value)) > 64:
        return None
    items = cast("list[Any]", value)
    return tuple(items) if all(type(item) is int and item >= 0 for item in items) else None


def _entry(reader: FieldReader, name: str, held: Any) -> _Entry:
    if not isinstance(held, dict):
        reader.raise_damaged(name, "its entry in the header is not an object", 8)
    fields = cast("dict[str, Any]", held)
    kind, shape, place = fields.get("dtype"), _naturals(fields.get("shape")), _naturals(fields.get("data_offsets"))
    if not isinstance(kind, str) or kind not in _NUMPY:
        refuse("values-type", reader.file, f"dtype of {name}, byte 8: {kind!r} is not a known element type")
    if shape is None:
        reader.raise_damaged(f"shape of {name}", f"{fields.get('shape')!r} is not a list of dims", 8)
    if place is None or len(place) != 2 or place[0] > place[1]:
        reader.raise_damaged(f"data_offsets of {name}", f"{fields.get('data_offsets')!r} is not a start and an end", 8)
    size = math.prod(shape) * np.dtype(_NUMPY[kind]).itemsize
    if place[1] - place[0] != size:
        reader.raise_damaged(f"data_offsets of {name}", f"{kind}{list(shape)} takes {size} bytes, not {list(place)}", 8)
    return _Entry(name, kind, shape, place[0], place[1])


Layout: TypeAlias = Literal["files", "combined", "safetensors"]
"""How variables are stored: "files", a folder with a file for each variable; "combined", one file in alphabetical order
of the names; "safetensors", one safetensors file.
"""

ROWS = "@ROWS"
"""The suffix of the name of the ids of sparse rows in safetensors."""

HEIGHT = "@HEIGHT"
"""The suffix of the name of the height of sparse rows in safetensors."""

LOD = "@LOD"
"""The suffix of the name of the offsets of a LoD level in safetensors."""


def persistable_names(program: Program) -> tuple[str, ...]:
    """The variables of block 0 that are kept between steps and hold tensors or sparse rows, in the order of names."""
    kept = (VarKind.LOD_TENSOR, VarKind.SELECTED_ROWS)
    return tuple(sorted(name for name, var in program.blocks[0].vars.items() if var.persistable and var.kind in kept))


@check_arguments
def save_variables(
    program: Program,
    scope: Mapping[str, Any],
    target: str | os.PathLike[str],
    *,
    layout: Layout = "files",
    names: Iterable[str] | None = None,
    as_fp16: bool = False,
) -> None:
    """Writes the persistable variables of `program` (or those in `names`) from `scope` to `target`.

    `target` is a folder for the layout "files" and a file for the others. Old files are replaced only after all new
    ones are written. `as_fp16` stores all elements as float16, rounded toward zero (not for safetensors). Raises
    DiagnosticError if a variable has no value, or one that the layout can't carry, or if a file can't be written;
    ValueError for an unknown layout.
    """
    expect(scope, Mapping, "save_variables", "a scope")
    path_of(target, "save_variables")
    chosen = _selected_names(program, names, layout, "save_variables")
    missing = [name for name in chosen if scope.get(name) is None]
    if missing:
        raise DiagnosticError([_finding("values-none", target, f"{name} has no value yet") for name in missing])
    values = {name: rows_alone(scope[name], scope) for name in chosen}
    if layout == "combined":
        write_combined(target, values, as_fp16=as_fp16)
    elif layout == "safetensors":
        if as_fp16:
            raise ValueError("the layout safetensors stores elements as they are, not as float16")
        write_safetensors(target, _plain(values, target))
    else:
        for name, value in values.items():
            require_encodable(value, name, str(target))
        files = {str(_file_of(target, name).relative_to(target)): value for name, value in values.items()}
        write_variables(target, {file: list(encode(value, as_fp16)) for file, value in files.items()})


@check_arguments
def load_variables(
    program: Program,
    scope: MutableMapping[str, Any],
    source: str | os.PathLike[str],
    *,
    layout: Layout = "files",
    names: Iterable[str] | None = None,
    any_dims: Container[str] = (),
) -> None:
    """Reads the persistable variables of `program` (or those in `names`) from `source` into `scope`.

    Variables are set only after all values are read and fit the declarations; variables in `any_dims` may have other
    dims than declared. Raises DiagnosticError if a file is missing, damaged, or holds another element type or other
    dims than the program declares; ValueError for an unknown layout.
    """
    expect(scope, MutableMapping, "load_variables", "a scope")
    path_of(source, "load_variables")
    chosen = _selected_names(program, names, layout, "load_variables")
    if layout == "combined":
        values: dict[str, Any] = dict(read_combined(source, chosen))
    elif layout == "safetensors":
        values = _from_plain(program, read_safetensors(source), chosen, source)
    else:
        values = _read_files(program, chosen, source)
    result = [
        problem
        for name, value in values.items()
        if (problem := _mismatch(program.blocks[0].vars.get(name), name, value, source, any_dims)) is not None
    ]
    raise_errors(result)
    scope.update(values)


def _selected_names(program: Program, names: Iterable[str] | None, layout: str, caller: str) -> tuple[str, ...]:
    expect_program(program, caller)
    if layout not in ("files", "combined", "safetensors"):
        raise ValueError(f"the layouts are files, combined and safetensors, not {layout!r}")
    return persistable_names(program) if names is None else tuple(sorted(set(names_of(names, caller))))


def _finding(code: Code, place: str | os.PathLike[str], message: str) -> Diagnostic:
    return error(code, message, Location(str(place)))


def _file_of(folder: str | os.PathLike[str], name: str) -> Path:
    """The file of a variable; as in Fluid, a `/` in its name makes folders. Raises DiagnosticError for `..`."""
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or PurePosixPath(name).is_absolute() or "\0" in name:
        raise DiagnosticError([_finding("values-name", folder, f"{name!r} can't be the name of a file in this folder")])
    return Path(folder, *parts)


def _read_files(program: Program, names: Iterable[str], folder: str | os.PathLike[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    problems: list[Diagnostic] = []
    for name in names:
        var = program.blocks[0].vars.get(name)
        sparse = var is not None and var.kind is VarKind.SELECTED_ROWS
        try:
            values[name] = (read_selected_rows if sparse else read_tensor)(_file_of(folder, name))
        except DiagnosticError as problem:
            problems += problem.diagnostics
    raise_errors(problems)
    return values


def _plain(values: Mapping[str, Any], target: str | os.PathLike[str]) -> dict[str, Array]:
    """Values as arrays by name; sparse rows and LoD are split into several arrays. Raises DiagnosticError if two arrays
    then have the same name.
    """
    parts: list[tuple[str, Array]] = []
    for name, value in values.items():
        if isinstance(value, SelectedRows):
            height = np.array([value.height], "int64")
            parts += [(name, value.value), (name + ROWS, value.rows), (name + HEIGHT, height)]
        elif isinstance(value, LoDTensor):
            parts.append((name, value.data))
            parts += [(f"{name}{LOD}{at}", np.array(offsets, "int64")) for at, offsets in enumerate(value.lod)]
        else:
            parts.append((name, value))
    plain: dict[str, Array] = {}
    for name, part in parts:
        if name in plain:
            raise DiagnosticError([_finding("values-kind", target, f"two variables need the name {name}")])
        plain[name] = part
    return plain


def _from_plain(
    program: Program, plain: Mapping[str, Array], names: Iterable[str], source: str | os.PathLike[str]
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    missing: list[Diagnostic] = []
    for name in names:
        var = program.blocks[0].vars.get(name)
        sparse = var is not None and var.kind is VarKind.SELECTED_ROWS
        absent = [part for part in (name, *((name + ROWS, name + HEIGHT) if sparse else ())) if part not in plain]
        if absent:
            missing.append(_finding("values-missing", source, f"the file has no tensor {absent[0]}"))
        elif sparse:
            values[name] = SelectedRows(plain[name + ROWS], plain[name], int(plain[name + HEIGHT].reshape(-1)[0]))
        else:
            lod: list[list[int]] = []
            while (level := f"{name}{LOD}{len(lod)}") in plain:
                lod.append(plain[level].tolist())
            values[name] = LoDTensor(plain[name], lod) if lod else plain[name]
    raise_errors(missing)
    return values


def _mismatch(
    var: Var | None, name: str, value: Any, source: str | os.PathLike[str], any_dims: Container[str]
) -> Diagnostic | None:
    """A finding if a value that was read does not fit its declaration in the program. Of the dims of sparse rows, only
    the width must fit.
    """
    if var is None or var.tensor is None:
        return None
    declared, sparse = var.tensor, isinstance(value, SelectedRows)
    data = value.value if sparse else value.data if isinstance(value, LoDTensor) else value
    dims = tuple(data.shape)
    skipped = 1 if sparse else 0
    fit = len(dims) == len(declared.shape) and all(
        want < 0 or have == want for have, want in zip(dims[skipped:], declared.shape[skipped:], strict=True)
    )
    fit = fit or name in any_dims
    if data.dtype.name == NUMPY_TYPES[declared.dtype] and (fit or not declared.shape):
        return None
    message = f"{name} is {data.dtype.name}{list(dims)} there, the program declares {declared.dtype.text}"
    return _finding("values-shape", source, f"{message}{list(declared.shape)}")
