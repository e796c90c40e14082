"""Files of variables as Fluid's `save`, `save_combine` and `save_persistables` write them.

    from pstranspile.runtime.files.tensor_files import read_tensor, write_values
    write_values("model/fc_0.w_0", weights)
    weights = read_tensor("model/fc_0.w_0")

Values are numpy arrays, LoDTensors and SelectedRows. All functions raise DiagnosticError, naming the file and, where
its content is at fault, the field and its byte offset.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path

from pstranspile.runtime.values import Array, LoDTensor, SelectedRows
from pstranspile.runtime.values.encoding import (
    Reader,
    decode_selected_rows,
    decode_tensor,
    encode,
    end,
    end_of_copies,
    opened,
    refuse,
    require_encodable,
    write_file,
)


def read_tensor(path: str | os.PathLike[str]) -> Array | LoDTensor:
    """The tensor that a file holds; a plain array if it has no LoD."""
    with opened(Path(path)) as reader:
        value = decode_tensor(reader)
        end_of_copies(reader, value)
    return value


def read_selected_rows(path: str | os.PathLike[str]) -> SelectedRows:
    """The sparse rows in a file. (The reader must know that it holds rows: the format does not show it.)"""
    with opened(Path(path)) as reader:
        value = decode_selected_rows(reader)
        end(reader)
    return value


def read_combined(path: str | os.PathLike[str], names: Iterable[str]) -> dict[str, Array | LoDTensor]:
    """The tensors of a combined file, which holds no names: `names` in the order they were saved."""
    values: dict[str, Array | LoDTensor] = {}
    with opened(Path(path)) as reader:
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
    reader = Reader(BytesIO(data), source)
    value = decode_tensor(reader)
    end(reader)
    return value


def selected_rows_from_bytes(data: bytes, source: str = "bytes") -> SelectedRows:
    """The sparse rows in `data`; `source` names them in messages."""
    reader = Reader(BytesIO(data), source)
    value = decode_selected_rows(reader)
    end(reader)
    return value
