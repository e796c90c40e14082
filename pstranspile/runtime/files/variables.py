"""Saving and loading the persistable variables of a program: its parameters, and what optimizers keep of them.

    save_variables(module.main, scope, "checkpoint")                                 # one file for each variable
    save_variables(module.main, scope, "checkpoint.pdparams", layout="combined")     # one file, in Fluid's layout
    save_variables(module.main, scope, "checkpoint.safetensors", layout="safetensors")
    load_variables(module.main, scope, "checkpoint")

The first two layouts are those of Fluid's `save_persistables` and `load_persistables`, so files go both ways.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Mapping, MutableMapping
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeAlias

import numpy as np

from pstranspile.ir.codes import Code
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, error, raise_errors
from pstranspile.ir.expect import expect, expect_program, names_of, path_of
from pstranspile.ir.model import Location, Program, Var
from pstranspile.ir.types import VarKind
from pstranspile.runtime.files.outputs import write_variables
from pstranspile.runtime.files.safetensors import read_safetensors, write_safetensors
from pstranspile.runtime.files.tensor_files import read_combined, read_selected_rows, read_tensor, write_combined
from pstranspile.runtime.large.forms import rows_alone
from pstranspile.runtime.values import NUMPY_TYPES, Array, LoDTensor, SelectedRows
from pstranspile.runtime.values.encoding import encode, require_encodable

Layout: TypeAlias = Literal["files", "combined", "safetensors"]
"""A folder with a file for each variable; one file in the order of the names; one safetensors file."""

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

    `target` is a folder for the layout "files" and a file for the others. Nothing is replaced before all is written.
    `as_fp16` stores all elements as float16, rounded toward zero (not for safetensors). Raises DiagnosticError if a
    variable has no value, or one that the layout can't carry, or if a file can't be written; ValueError for an unknown
    layout.
    """
    expect(scope, Mapping, "save_variables", "a scope")
    path_of(target, "save_variables")
    chosen = _chosen(program, names, layout, "save_variables")
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

    Nothing is set before all is read and fits the declarations; variables in `any_dims` may have other dims than
    declared. Raises DiagnosticError if a file is missing, damaged, or holds another element type or other dims than the
    program declares; ValueError for an unknown layout.
    """
    expect(scope, MutableMapping, "load_variables", "a scope")
    path_of(source, "load_variables")
    chosen = _chosen(program, names, layout, "load_variables")
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


def _chosen(program: Program, names: Iterable[str] | None, layout: str, caller: str) -> tuple[str, ...]:
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
    """Values as arrays by name: sparse rows and LoD are taken apart. Raises DiagnosticError if names then meet."""
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
    """A finding if a value read is not what the program declares. The dims of sparse rows are free but the width."""
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
