"""Kernels of the ops through which values come in and go out: feed, fetch, readers, print, delete_var.

A run takes what it is fed by variable name, so these ops only make sure that it is there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pstranspile.ir.model import Op
from pstranspile.lazy import lazy_import
from pstranspile.ops.context import ExecutionContext, Value
from pstranspile.ops.kernel import Run, kernel
from pstranspile.ops.values import LoDTensor, SelectedRows

np = lazy_import("numpy")


class Reader(NamedTuple):
    """What a variable of a reader holds: nothing to read from, since a run is fed what readers would give."""

    name: str


FEEDING = ("feed", "read")
"""Ops whose outputs a run is fed by name: one whose outputs are all there has nothing left to do."""


@kernel(" ".join(FEEDING), "", lod="own")
def _run_feed(op: Op) -> Run:
    names = op.outputs.get("Out", ())

    def run(context: ExecutionContext) -> tuple[()]:
        absent = [name for name in names if context.find(name) is None]
        if absent:
            raise ValueError(f"{', '.join(absent)} must be fed: a run takes by name what readers would give")
        return ()

    return run


@kernel("fetch", "", lod="own")
def _run_fetch(_op: Op) -> Run:
    def run(X: Value) -> tuple[()]:
        return ()

    return run


@kernel("create_py_reader create_double_buffer_reader", lod="own")
def _run_create_reader(op: Op) -> Run:
    reader = Reader(op.outputs["Out"][0])
    made: Value = [reader] if op.type == "create_py_reader" else reader  # the one slot is duplicable, the other is not

    def run() -> Value:
        return made

    return run


@kernel("delete_var", "", lod="own")
def _run_delete(op: Op) -> Run:
    def run(context: ExecutionContext) -> tuple[()]:
        for name in op.input_names:
            context.forget(name)
        return ()

    return run


@kernel("print", lod="own")
def _run_print(op: Op) -> Run:
    first, limit, message = op.attrs["first_n"], op.attrs["summarize"], op.attrs["message"]
    name, forward = op.input("In"), op.attrs["is_forward"]
    shown = op.attrs["print_phase"] in (("FORWARD", "BOTH") if forward else ("BACKWARD", "BOTH"))
    assert isinstance(first, int)
    assert isinstance(limit, int)
    times = 0

    def run(In: Value) -> Value:
        nonlocal times
        times += 1
        if shown and (first < 0 or times <= first):
            lines = [str(message)] if message else []
            lines += [f"{label}: {told}" for label, told in _facts(op, str(name), In)]
            data = _numbers(In)
            listed = data.ravel() if limit < 0 else data.ravel()[:limit]
            print("\n".join([*lines, f"data: [{' '.join(map(str, listed.tolist()))}]"]), flush=True)
        return In

    return run


def _numbers(value: Value) -> Any:
    if isinstance(value, LoDTensor):
        return value.data
    return value.value if isinstance(value, SelectedRows) else value


def _facts(op: Op, name: str, value: Value) -> list[tuple[str, str]]:
    data = _numbers(value)
    facts = [
        ("print_tensor_name", "variable", name),
        ("print_tensor_type", "dtype", str(data.dtype)),
        ("print_tensor_shape", "shape", str(list(data.shape))),
        ("print_tensor_lod", "lod", str(value.lod if isinstance(value, LoDTensor) else [])),
    ]
    return [(label, told) for attr, label, told in facts if op.attrs.get(attr) is True]
