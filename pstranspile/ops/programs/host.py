"""Calls of Python functions of the process that made a program; the program does not contain them."""

from __future__ import annotations

from pstranspile.ir.attributes import Strings
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Op
from pstranspile.ops.attributes import int_attr
from pstranspile.ops.gradient import Wanted, bare_op, gradient, output_gradients
from pstranspile.ops.schema import declare, strings

declare(
    "py_func",
    "X* -> Out*",
    {"forward_callable_id": 0, "backward_callable_id": -1, "backward_skip_vars": strings()},
    doc="Out = what a Python function of the process that made the program gives for X",
)


@gradient("py_func")
def _py_func_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    backward = int_attr(op, "backward_callable_id", -1)
    if backward < 0:
        return ()
    skipped = op.attrs.get("backward_skip_vars")
    left_out = set(skipped) if isinstance(skipped, Strings) else set[str]()
    read = [name for name in (*op.inputs.get("X", ()), *op.outputs.get("Out", ())) if name not in left_out]
    inputs = {"X": (*read, *output_gradients(op, "Out"))}
    attrs = FrozenMap({"forward_callable_id": backward, "backward_callable_id": -1})
    return (bare_op("py_func", inputs, {"Out": wanted.placed(op, "X")}, attrs),)
