"""The values of variables at run time: arrays, ragged tensors and sparse rows; the names of dtypes; and tensors as
Fluid prints them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

from pstranspile.ir.types import DType

Array: TypeAlias = Any
"""A numpy array. (numpy is imported late, and its own types describe dims and dtypes too loosely to be checked.)"""


def array_of(value: Any) -> Array:
    """A tensor of PyTorch, or any other value that numpy accepts, as an array of at least one dim."""
    import numpy as np

    made = value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)
    return made.reshape(made.shape or (1,))


class LoDTensor(NamedTuple):
    """A ragged tensor: rows grouped into sequences. `lod` holds one offset table per level.

    `LoDTensor(data, [[0, 2, 5]])`: the first sequence is rows 0 and 1, the second rows 2 to 4.
    """

    data: Array
    lod: list[list[int]]


class SelectedRows(NamedTuple):
    """Sparse rows of a tall matrix: `value[i]` belongs to row `rows[i]`. Rows may repeat.

    `rows` is int64 [n], `value` [n, ...], `height` the number of rows of the whole matrix. The `value` of a growing
    table may have spare capacity: more than n rows, of which the first n are in use.
    """

    rows: Array
    value: Array
    height: int


NUMPY_TYPES: dict[DType, str] = {
    DType.BOOL: "bool",
    DType.INT16: "int16",
    DType.INT32: "int32",
    DType.INT64: "int64",
    DType.FP16: "float16",
    DType.FP32: "float32",
    DType.FP64: "float64",
    DType.SIZE_T: "uint64",
    DType.UINT8: "uint8",
    DType.INT8: "int8",
}
"""numpy's name of every element type."""


# Tensors as Fluid prints them.


_TYPES = {
    "float32": ("float", "f"),
    "float64": ("double", "d"),
    "float16": ("::paddle::platform::float16", "N6paddle8platform7float16E"),
    "int64": ("int64_t", "l"),
    "int32": ("int", "i"),
    "int16": ("int16_t", "s"),
    "int8": ("int8_t", "a"),
    "uint8": ("uint8_t", "h"),
    "bool": ("bool", "b"),
}
"""The name of each element type in C++: in source text, and mangled."""


def data_of(value: Any) -> Array:
    """The elements of a value; for sparse rows, those of the rows that exist."""
    if isinstance(value, LoDTensor):
        return value.data
    return value.value if isinstance(value, SelectedRows) else value


def lod_of(value: Any) -> list[list[int]]:
    """The offsets of a value's LoD levels."""
    return [list(level) for level in value.lod] if isinstance(value, LoDTensor) else []


def numbers(data: Array) -> list[str]:
    """The text of each element; floats have six digits."""
    kind = data.dtype.kind
    return [f"{value:g}" if kind == "f" else str(int(value)) for value in data.ravel().tolist()]


def mangled_type(dtype: Any) -> str:
    """The letter of an element type in mangled names of C++."""
    return _TYPES.get(str(dtype), ("", str(dtype)))[1]


def tensor_text(value: Any) -> str:
    """A tensor in the form in which Fluid prints it: lines for LoD, dims, layout, element type and all elements."""
    data = data_of(value)
    lod = "".join("{" + ", ".join(map(str, level)) + "}" for level in lod_of(value))
    facts = [
        ("lod", "{" + lod + "}"),
        ("dim", ", ".join(map(str, data.shape))),
        ("layout", "NCHW"),
        ("dtype", _TYPES.get(str(data.dtype), (str(data.dtype),))[0]),
        ("data", "[" + " ".join(numbers(data)) + "]"),
    ]
    return "".join(f"\t{name}: {text}\n" for name, text in facts)


def fetched_text(info: str, name: str, value: Any) -> str:
    """The text that Fluid prints for a fetched variable when it trains on a data set."""
    return f"{info}\t{name}\t{tensor_text(value)}\t"


def fetched_line(seconds: float, batch: int, fetched: Iterable[tuple[str, Any]]) -> str:
    """The line that Paddle 2.x prints for fetched variables when it trains on a data set: the time, the number of the
    batch, and for each variable its text, its number of elements, and the elements.
    """
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    parts = [f"time: [{moment}]", f"batch: [{batch}]"]
    for info, value in fetched:
        data = data_of(value)
        parts.append(f"{info}[{data.size}]:[{' '.join(numbers(data))}]")
    return ", ".join(parts)


def listed_text(message: str, name: str, value: Any, shown: Iterable[str], limit: int) -> str:
    """The text that the op `print` of Paddle 2.x prints: lines for the message, those of `lod`, `shape`, `layout` and
    `dtype` that are in `shown`, and at most `limit` elements; below the name, where there is one.

    A negative `limit` means all elements.
    """
    data, asked = data_of(value), {*shown}
    lod = "".join("{" + ", ".join(map(str, level)) + "}" for level in lod_of(value))
    listed = data.ravel() if limit < 0 else data.ravel()[:limit]
    facts = [
        ("message", message, bool(message)),
        ("lod", "{" + lod + "}", "lod" in asked),
        ("place", "Place(cpu)", True),
        ("shape", "[" + ", ".join(map(str, data.shape)) + "]", "shape" in asked),
        ("layout", "NCHW", "layout" in asked),
        ("dtype", str(data.dtype), "dtype" in asked),
        ("data", "[" + " ".join(numbers(listed)) + "]", True),
    ]
    lines = [f"  - {fact}: {text}" for fact, text, told in facts if told]
    return "\n".join([f"Variable: {name}", *lines] if name else lines)


def printed_text(head: str, value: Any, shown: Iterable[str], limit: int) -> str:
    """The text that Fluid's op `print` prints: a head, those of `shape`, `dtype` and `lod` that are in `shown`, and at
    most `limit` elements.

    A negative `limit` means all elements.
    """
    data, lod, asked = data_of(value), lod_of(value), {*shown}
    lines = [head]
    if "shape" in asked:
        lines.append(f"\tshape: [{''.join(f'{dim},' for dim in data.shape)}]")
    if "dtype" in asked:
        lines.append(f"\tdtype: {mangled_type(data.dtype)}")
    if "lod" in asked and lod:
        levels = "".join(f"[ {''.join(f'{offset},' for offset in level)} ]" for level in lod)
        lines.append(f"\tLoD: [{levels}]")
    listed = data.ravel() if limit < 0 else data.ravel()[:limit]
    return "\n".join([*lines, f"\tdata: {''.join(f'{number},' for number in numbers(listed))}"])
