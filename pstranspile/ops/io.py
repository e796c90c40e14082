"""Feeding, fetching, readers and files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pstranspile.ir.model import Op
from pstranspile.ir.types import VarKind
from pstranspile.ops import codes
from pstranspile.ops.context import ExecutionContext
from pstranspile.ops.kernel import Run, kernel
from pstranspile.ops.numeric import flag, text
from pstranspile.ops.schema import INT, INTS, STRING, declare, long, longs
from pstranspile.ops.shapes import int_attr, ints_attr
from pstranspile.ops.tensor_bytes import (
    as_float16,
    decode_part,
    decode_selected_rows,
    decode_tensor,
    encode,
    end,
    opened,
    refuse,
    require_encodable,
    write_file,
)
from pstranspile.ops.values import Array, LoDTensor, SelectedRows

declare("feed", "X -> Out", {"col": INT}, doc="Out = item `col` of what is fed")
declare("fetch", "X -> Out", {"col": INT}, doc="item `col` of what is fetched = X")
declare(
    "create_py_reader",
    "blocking_queue -> Out*",
    {
        "shape_concat": INTS,
        "ranks": INTS,
        "lod_levels": INTS,
        "dtypes": INTS,
        "need_check_feed": INTS,
        "use_data_config": True,
        "device_index": 0,
        "device_count": 1,
    },
    doc="Out = a reader of what Python puts into blocking_queue",
)
declare(
    "create_double_buffer_reader",
    "UnderlyingReader -> Out",
    {"place": "AUTO"},
    doc="Out = a reader that reads UnderlyingReader ahead",
)
declare(
    "read",
    "Reader -> Out*",
    {"throw_eof_exp": True, "infer_out": True, "drop_last": True},
    doc="Out = the next batch of Reader",
)
declare(
    "save",
    "X -> kLookupTablePath?",
    {"overwrite": True, "save_as_fp16": False, "file_path": STRING},
    doc="writes X to file_path",
)
declare(
    "load",
    "-> Out",
    {"load_as_fp16": False, "file_path": STRING, "seek": long(-1), "shape": longs()},
    doc="Out = what file_path holds",
)
declare(
    "save_combine",
    "X* -> Y?",
    {"overwrite": True, "save_as_fp16": False, "file_path": STRING, "save_to_memory": False},
    doc="writes all X to file_path, one after another",
)
declare(
    "load_combine",
    "-> Out*",
    {"load_as_fp16": False, "file_path": STRING, "model_from_memory": False},
    doc="Out = what file_path holds, one after another",
)


# Kernels of files. How variables are laid out in them: pstranspile.ops.tensor_bytes.


def _write(op: Op, path: Path, values: Iterable[tuple[str, Array | LoDTensor | SelectedRows]]) -> None:
    if not flag(op, "overwrite") and path.exists():
        refuse(codes.FILE_EXISTS, str(path), "the file is there already, and overwrite is not set")
    pieces: list[bytes | memoryview] = []
    for name, value in values:
        require_encodable(value, name, str(path))
        pieces += encode(value, flag(op, "save_as_fp16"))
    write_file(path, pieces)


@kernel("save", "", lod="own")
def _save(op: Op) -> Run:
    name = op.inputs["X"][0]

    def run(X: Array | LoDTensor | SelectedRows, context: ExecutionContext) -> tuple[()]:
        file_path = text(op, "file_path")
        if isinstance(X, SelectedRows):  # this variable tells a server where to save its part of a table
            told = context.find(op.output("kLookupTablePath") or "")
            file_path = told if isinstance(told, str) and told else file_path
        _write(op, context.path(file_path), [(name, X)])
        return ()

    return run


@kernel("load", lod="new")
def _load(op: Op) -> Run:
    name, start, half = op.outputs["Out"][0], int_attr(op, "seek", -1), flag(op, "load_as_fp16")

    def run(context: ExecutionContext) -> Array | LoDTensor | SelectedRows:
        var = context.declared(name)
        with opened(context.path(text(op, "file_path"))) as reader:
            reader.subject = name
            if start >= 0:
                value = decode_part(reader, start, ints_attr(op, "shape"))
            elif var is not None and var.kind is VarKind.SELECTED_ROWS:
                value = decode_selected_rows(reader)
                end(reader)
            else:
                value = decode_tensor(reader)
                end(reader)
        return as_float16(value) if half else value

    return run


@kernel("save_combine", "Y", lod="own")
def _save_combine(op: Op) -> Run:
    def run(X: list[Array | LoDTensor], context: ExecutionContext) -> bytes | None:
        values = list(zip(op.inputs["X"], X, strict=True))
        for name, value in values:
            if isinstance(value, SelectedRows):
                refuse(codes.NOT_WRITABLE, text(op, "file_path"), f"{name} holds sparse rows, combined files do not")
        if flag(op, "save_to_memory"):
            return b"".join(piece for _, value in values for piece in encode(value, flag(op, "save_as_fp16")))
        _write(op, context.path(text(op, "file_path")), values)
        return None

    return run


@kernel("load_combine", lod="new")
def _load_combine(op: Op) -> Run:
    half = flag(op, "load_as_fp16")
    if flag(op, "model_from_memory"):
        raise ValueError("variables are loaded from files only, not from memory (model_from_memory)")

    def run(context: ExecutionContext) -> list[Array | LoDTensor]:
        loaded: list[Array | LoDTensor] = []
        with opened(context.path(text(op, "file_path"))) as reader:
            for name in op.outputs["Out"]:
                reader.subject = name
                value = decode_tensor(reader)
                loaded.append(as_float16(value) if half else value)
            end(reader)
        return loaded

    return run
