"""Arrays of tensors."""

from __future__ import annotations

from typing import Any, cast

from pstranspile.ir.model import Op
from pstranspile.lazy import lazy_import
from pstranspile.ops.context import ExecutionContext, Value
from pstranspile.ops.gradient import SUFFIX, Wanted, gradient, like_forward, output_gradients
from pstranspile.ops.kernel import Run, kernel
from pstranspile.ops.schema import declare
from pstranspile.ops.shapes import outputs_like, shape_rule
from pstranspile.ops.values import LoDTensor

np = lazy_import("numpy")

declare("lod_tensor_to_array", "X RankTable -> Out", doc="Out = an array of the steps of X, ordered by RankTable")
declare("array_to_lod_tensor", "X RankTable -> Out", doc="Out = the tensor that lod_tensor_to_array came from")
declare("write_to_array", "X I -> Out", doc="Out[I] = X")
declare("read_from_array", "X I X_W? -> Out", doc="Out = X[I]")


shape_rule("write_to_array", "read_from_array")(outputs_like(Out="X"))


@gradient("lod_tensor_to_array")
def _lod_tensor_to_array_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    inputs = {"X": output_gradients(op, "Out"), "RankTable": op.inputs["RankTable"]}
    return (like_forward(op, "array_to_lod_tensor", inputs, {"Out": wanted.kept(op, "X")}),)


@gradient("array_to_lod_tensor")
def _array_to_lod_tensor_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    inputs = {"X": output_gradients(op, "Out"), "RankTable": op.inputs["RankTable"]}
    return (like_forward(op, "lod_tensor_to_array", inputs, {"Out": wanted.kept(op, "X")}),)


@gradient("write_to_array")
def _write_to_array_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    inputs = {"X": output_gradients(op, "Out"), "I": op.inputs["I"], "X_W": op.inputs["X"]}
    return (like_forward(op, "read_from_array", inputs, {"Out": wanted.kept(op, "X")}),)


@gradient("read_from_array")
def _read_from_array_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    inputs = {"X": output_gradients(op, "Out"), "I": op.inputs["I"]}
    return (like_forward(op, "write_to_array", inputs, {"Out": wanted.kept(op, "X")}),)


def _index(value: Any) -> int:
    if not isinstance(value, np.ndarray) or value.size != 1:
        raise ValueError("I must hold one index")
    index = int(value.ravel()[0])
    if index < 0:
        raise ValueError(f"I is {index}, an index must not be negative")
    return index


def _copy(value: Value) -> Value:
    return LoDTensor(value.data.copy(), value.lod) if isinstance(value, LoDTensor) else value.copy()


def _plus(held: Any, more: Any) -> Value:
    if isinstance(held, LoDTensor):
        return LoDTensor(held.data + (more.data if isinstance(more, LoDTensor) else more), held.lod)
    return held + (more.data if isinstance(more, LoDTensor) else more)


@kernel("write_to_array", lod="own")
def _run_write_to_array(op: Op) -> Run:
    array = op.outputs["Out"][0]
    adds = SUFFIX in array  # the gradient of an element is that of all who read it

    def run(X: Value, I: Any, context: ExecutionContext) -> list[Value]:  # noqa: E741 (Fluid's name of the slot)
        index = _index(I)
        found = context.find(array)
        items = cast("list[Value]", found) if isinstance(found, list) else []
        items += [None] * (index + 1 - len(items))
        held = items[index]
        items[index] = _copy(X) if held is None or not adds else _plus(held, X)
        return items

    return run


@kernel("read_from_array", lod="own", may_lack="X X_W")
def _run_read_from_array(op: Op) -> Run:
    like = op.input("X_W")
    takes = SUFFIX in (op.input("X") or "")  # what was in the element before it was written has another gradient

    def run(I: Any, X: Value | None, X_W: Value | None) -> Value:  # noqa: E741
        index = _index(I)
        if X is not None and not isinstance(X, list):
            raise ValueError("X must be an array of tensors")
        items = cast("list[Value]", X or [])  # a gradient that no step has written yet is an empty array
        if index < len(items) and items[index] is not None:
            found = items[index]
            if not takes:
                return _copy(found)
            items[index] = None
            return found
        if like is None:
            raise ValueError(f"X has no element {index}; it has {len(items)} elements")
        # a gradient that nothing has asked for: zeros like what was written
        data = np.zeros_like(X_W.data if isinstance(X_W, LoDTensor) else X_W)
        return LoDTensor(data, X_W.lod) if isinstance(X_W, LoDTensor) else data

    return run


@kernel("lod_array_length", lod="own")
def _run_array_length(_op: Op) -> Run:
    def run(X: list[Value]) -> Any:
        return np.array([len(X)], "int64")

    return run
