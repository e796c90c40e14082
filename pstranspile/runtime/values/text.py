"""Tensors as the text that Fluid prints of them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from pstranspile.runtime.values import Array, LoDTensor, SelectedRows

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
"""The names that C++ has for element types: in a source, and mangled."""


def data_of(value: Any) -> Array:
    """The elements of a value; of sparse rows, those that there are."""
    if isinstance(value, LoDTensor):
        return value.data
    return value.value if isinstance(value, SelectedRows) else value


def lod_of(value: Any) -> list[list[int]]:
    """The offsets of a value's LoD levels."""
    return [list(level) for level in value.lod] if isinstance(value, LoDTensor) else []


def numbers(data: Array) -> list[str]:
    """The elements one after another, floats with six digits."""
    kind = data.dtype.kind
    return [f"{value:g}" if kind == "f" else str(int(value)) for value in data.ravel().tolist()]


def mangled(dtype: Any) -> str:
    """The letter that C++ has for an element type."""
    return _TYPES.get(str(dtype), ("", str(dtype)))[1]


def tensor_text(value: Any) -> str:
    """A tensor as Fluid shows it as a text: LoD, dims, layout, element type and all elements, a line for each."""
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
    """What Fluid prints of a variable that a data set's training fetches."""
    return f"{info}\t{name}\t{tensor_text(value)}\t"


def fetched_line(seconds: float, batch: int, fetched: Iterable[tuple[str, Any]]) -> str:
    """What Paddle 2.x prints of the variables that a data set's training fetches: the time, the number of the batch,
    and of each variable its text, how many elements it has, and these.
    """
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    parts = [f"time: [{moment}]", f"batch: [{batch}]"]
    for info, value in fetched:
        data = data_of(value)
        parts.append(f"{info}[{data.size}]:[{' '.join(numbers(data))}]")
    return ", ".join(parts)


def printed_text(head: str, value: Any, shown: Iterable[str], limit: int) -> str:
    """What Fluid's op `print` prints: a head, what of `shape`, `dtype` and `lod` is `shown`, at most `limit` elements.

    A `limit` below 0 is none.
    """
    data, lod, asked = data_of(value), lod_of(value), {*shown}
    lines = [head]
    if "shape" in asked:
        lines.append(f"\tshape: [{''.join(f'{dim},' for dim in data.shape)}]")
    if "dtype" in asked:
        lines.append(f"\tdtype: {mangled(data.dtype)}")
    if "lod" in asked and lod:
        levels = "".join(f"[ {''.join(f'{offset},' for offset in level)} ]" for level in lod)
        lines.append(f"\tLoD: [{levels}]")
    listed = data.ravel() if limit < 0 else data.ravel()[:limit]
    return "\n".join([*lines, f"\tdata: {''.join(f'{number},' for number in numbers(listed))}"])
