"""Kernels. Feeding, fetching, readers, files and printing.

A run is fed by variable name, so the ops that feed only check that the values are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from os import cpu_count
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ir.types import VarKind
from pstranspile.ops.attributes import flag, int_attr, ints_attr, text
from pstranspile.runtime.kernels.kernel import ExecutionContext, Run, Value, kernel, plain_kernel
from pstranspile.runtime.values import Array, LoDTensor, SelectedRows, listed_text, printed_text
from pstranspile.runtime.values.encoding import (
    as_float16,
    decode_part,
    decode_selected_rows,
    decode_tensor,
    encode,
    end,
    end_of_copies,
    open_reader,
    refuse,
    require_encodable,
    write_file,
)


def _write(op: Op, path: Path, values: Iterable[tuple[str, Array | LoDTensor | SelectedRows]]) -> None:
    if not flag(op, "overwrite") and path.exists():
        refuse("values-exist", str(path), "the file is there already, and overwrite is not set")
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
        if isinstance(X, SelectedRows):  # this variable holds the path where a server saves its part of a table
            path = context.find(op.output("kLookupTablePath") or "")
            file_path = path if isinstance(path, str) and path else file_path
        _write(op, context.path(file_path), [(name, X)])
        return ()

    return run


@kernel("load", lod="new")
def _load(op: Op) -> Run:
    name, start, half = op.outputs["Out"][0], int_attr(op, "seek", -1), flag(op, "load_as_fp16")

    def run(context: ExecutionContext) -> Array | LoDTensor | SelectedRows:
        var = context.declaration(name)
        with open_reader(context.path(text(op, "file_path"))) as reader:
            reader.subject = name
            if start >= 0:
                value = decode_part(reader, start, ints_attr(op, "shape"))
            elif var is not None and var.kind is VarKind.SELECTED_ROWS:
                value = decode_selected_rows(reader)
                end(reader)
            else:
                value = decode_tensor(reader)
                end_of_copies(reader, value)
        return as_float16(value) if half else value

    return run


@plain_kernel("save_combine", "Y", lod="own")
def _save_combine(X: list[Array | LoDTensor], context: ExecutionContext, *, op: Op) -> bytes | None:
    values = list(zip(op.inputs["X"], X, strict=True))
    for name, value in values:
        if isinstance(value, SelectedRows):
            refuse("values-kind", text(op, "file_path"), f"{name} holds sparse rows, combined files do not")
    if flag(op, "save_to_memory"):
        return b"".join(piece for _, value in values for piece in encode(value, flag(op, "save_as_fp16")))
    _write(op, context.path(text(op, "file_path")), values)
    return None


@kernel("load_combine", lod="new")
def _load_combine(op: Op) -> Run:
    half = flag(op, "load_as_fp16")
    if flag(op, "model_from_memory"):
        raise ValueError("variables are loaded from files only, not from memory (model_from_memory)")

    def run(context: ExecutionContext) -> list[Array | LoDTensor]:
        loaded: list[Array | LoDTensor] = []
        with open_reader(context.path(text(op, "file_path"))) as reader:
            for name in op.outputs["Out"]:
                reader.subject = name
                value = decode_tensor(reader)
                loaded.append(as_float16(value) if half else value)
            end(reader)
        return loaded

    return run


@kernel("get_places", "")
def _get_places(op: Op) -> Run:
    if text(op, "device_type") == "CUDA":
        raise ValueError("there are no GPUs (device_type is CUDA)")
    count = int_attr(op, "device_count") or cpu_count() or 1
    return lambda: np.arange(count)


class ReaderValue(NamedTuple):
    """The value of a reader variable. It holds no data, because runs are fed by variable name."""

    name: str


FEEDING = ("feed", "read")
"""Ops whose outputs are fed by name. An op of this kind has nothing to do if all its outputs are fed."""


@kernel(" ".join(FEEDING), "", lod="own")
def _run_feed(op: Op) -> Run:
    names = op.outputs.get("Out", ())

    def run(context: ExecutionContext) -> tuple[()]:
        absent = [name for name in names if context.find(name) is None]
        if absent:
            raise ValueError(f"{', '.join(absent)} must be fed: a run takes by name what readers would give")
        return ()

    return run


@plain_kernel("fetch", "", lod="own")
def _run_fetch(X: Value) -> tuple[()]:
    return ()


@kernel("create_py_reader create_double_buffer_reader", lod="own")
def _run_create_reader(op: Op) -> Run:
    reader = ReaderValue(op.outputs["Out"][0])
    made: Value = [reader] if op.type == "create_py_reader" else reader  # only the first one's slot is duplicable

    def run() -> Value:
        return made

    return run


@plain_kernel("delete_var", "", lod="own")
def _run_delete(context: ExecutionContext, *, op: Op) -> tuple[()]:
    for name in op.input_names:
        context.forget(name)
    return ()


_LAYOUT = "print_tensor_layout"

_FACTS = {
    "shape": "print_tensor_shape",
    "dtype": "print_tensor_type",
    "lod": "print_tensor_lod",
    "layout": _LAYOUT,
}
"""The attribute of the op `print` that switches each property of the printed tensor."""


PrintCounts = dict[tuple[str | None, str | None], int]
"""How often each op `print` has run, by the names of its input and output."""


class Printing(NamedTuple):
    """Settings of ops `print` from the caller of the run."""

    clock: Callable[[], int] = int
    """Returns the seconds that an op prints first. The default is 0, so that equal runs print equal text."""
    counts: PrintCounts | None = None
    """How often each op has run so far; None: each op counts its own runs from the start of a program."""


PRINTING: ContextVar[Printing] = ContextVar("printing", default=Printing())  # noqa: B039
"""The settings of ops `print` in the current context."""


@kernel("print", lod="own")
def _run_print(op: Op) -> Run:
    first, limit, message = op.attrs["first_n"], op.attrs["summarize"], op.attrs["message"]
    name, forward = op.input("In"), op.attrs["is_forward"]
    shown = op.attrs["print_phase"] in (("FORWARD", "BOTH") if forward else ("BACKWARD", "BOTH"))
    assert isinstance(first, int)
    assert isinstance(limit, int)
    asked = [fact for fact, attr in _FACTS.items() if op.attrs.get(attr) is True]
    titled, listed = op.attrs.get("print_tensor_name") is True, _LAYOUT in op.attrs
    key, own = (name, op.output("Out")), PrintCounts()

    def run(In: Value) -> Value:
        clock, counts = PRINTING.get()
        counted = own if counts is None else counts
        times = counted[key] = counted.get(key, 0) + 1
        if shown and (first < 0 or times <= first):
            if listed:
                text = listed_text(str(message), str(name) if titled else "", In, asked, limit)
            else:
                head = f"{clock()}\t{message}\tThe place is:CPUPlace" + (f"\nTensor[{name}]" if titled else "")
                text = printed_text(head, In, asked, limit)
            print(text, flush=True)
        return In

    return run


# Kernels. Calls of Python functions of the process that made a program.

HostFunction: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]
"""A function from the values of X to those of Out; None stands for an output without a value."""

_FUNCTIONS: list[HostFunction] = []


def register(function: HostFunction) -> int:
    """Stores a function for ops of this process and returns its number, which the ops have as an attribute."""
    _FUNCTIONS.append(function)
    return len(_FUNCTIONS) - 1


@kernel("py_func", lod="own")
def _py_func(op: Op) -> Run:
    number, wanted = int_attr(op, "forward_callable_id"), len(op.outputs.get("Out", ()))
    if not 0 <= number < len(_FUNCTIONS):
        raise ValueError(f"function {number} is not known here: it is one of the process that made the program")
    function = _FUNCTIONS[number]

    def run(X: Sequence[Any]) -> list[Any]:
        made = list(function(X or ()))
        if wanted and len(made) != wanted:
            raise ValueError(f"the function gives {len(made)} values, the op writes {wanted}")
        return made[:wanted]

    return run
