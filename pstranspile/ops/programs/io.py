"""Feeding, fetching, readers, files and printing."""

from __future__ import annotations

from pstranspile.ir.attributes import Strings
from pstranspile.ir.model import FrozenMap, Op
from pstranspile.ops.attributes import int_attr
from pstranspile.ops.gradient import WantedGradients, bare_op, gradient, like_forward, output_gradients
from pstranspile.ops.schema import BOOL, INT, INTS, STRING, declare, later, long, longs, strings, words
from pstranspile.ops.shapes import outputs_like, shape_rule

declare("delete_var", "X* ->", doc="frees X")
declare("get_places", "-> Out", {"device_count": 0, "device_type": "AUTO"}, doc="Out = a list of devices; 0: of all")
declare(
    "print",
    "In -> Out",
    {
        "first_n": INT,
        "message": STRING,
        "summarize": INT,
        "print_tensor_name": BOOL,
        "print_tensor_type": BOOL,
        "print_tensor_shape": BOOL,
        "print_tensor_layout": later("bool"),
        "print_tensor_lod": BOOL,
        "print_phase": words("BOTH", "FORWARD", "BACKWARD"),
        "is_forward": True,
    },
    doc="Out = In, printed; with print_tensor_layout in the form of Paddle 2.x",
)

shape_rule("print")(outputs_like(Out="In"))


@gradient("print")
def _print_gradient(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
    made = like_forward(op, "print", {"In": output_gradients(op, "Out")}, {"Out": wanted.gradient_names(op, "In")})
    return (made._replace(attrs=FrozenMap({**op.attrs, "is_forward": False})),)


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
    reader=True,
    doc="Out = a reader of what Python puts into blocking_queue",
)
declare(
    "create_double_buffer_reader",
    "UnderlyingReader -> Out",
    {"place": "AUTO"},
    reader=True,
    doc="Out = a reader that reads UnderlyingReader ahead",
)
declare(
    "read",
    "Reader -> Out*",
    {"throw_eof_exp": True, "infer_out": True, "drop_last": True},
    reader=True,
    constant=True,
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


# Calls of Python functions of the process that made a program; the program does not contain them.

declare(
    "py_func",
    "X* -> Out*",
    {"forward_callable_id": 0, "backward_callable_id": -1, "backward_skip_vars": strings()},
    doc="Out = what a Python function of the process that made the program gives for X",
)


@gradient("py_func")
def _py_func_gradient(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
    backward = int_attr(op, "backward_callable_id", -1)
    if backward < 0:
        return ()
    skipped = op.attrs.get("backward_skip_vars")
    left_out = set(skipped) if isinstance(skipped, Strings) else set[str]()
    read = [name for name in (*op.inputs.get("X", ()), *op.outputs.get("Out", ())) if name not in left_out]
    inputs = {"X": (*read, *output_gradients(op, "Out"))}
    attrs = FrozenMap({"forward_callable_id": backward, "backward_callable_id": -1})
    return (bare_op("py_func", inputs, {"Out": wanted.gradients_or_empty(op, "X")}, attrs),)
