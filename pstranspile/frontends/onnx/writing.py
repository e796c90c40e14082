"""Writes an inference program as an ONNX model: each op becomes nodes of ONNX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pstranspile.frontends.layers.draft import Refused
from pstranspile.frontends.onnx.graph import (
    ELEMENT_TYPES,
    FUNCTIONS,
    IR_VERSION,
    OPERATORS,
    OPSET,
    WRITERS,
    Graph,
    library,
    onnx_writer,
    refuse_given,
)
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, at_op, error, first_findings, raise_errors
from pstranspile.ir.model import Op, Program
from pstranspile.ir.types import DType
from pstranspile.ops.attributes import flag, int_attr, ints_attr, real, text
from pstranspile.ops.images.conv import dilations_of, padding_of, transposed_dims, window_counts
from pstranspile.runtime.values import Array

# Ops of arithmetic in ONNX: functions element by element, products, reductions, comparisons.

_SAME = {**FUNCTIONS, "assign": "Identity"}


@onnx_writer(*_SAME)
def _equivalent_node(op: Op, graph: Graph) -> None:
    graph.node(_SAME[op.type], [graph.input(op, "X")], op.outputs["Out"])


# Functions with attributes

_WITH_ATTRIBUTES: dict[str, Callable[[Op], tuple[str, dict[str, float]]]] = {
    "leaky_relu": lambda op: ("LeakyRelu", {"alpha": real(op, "alpha")}),
    "elu": lambda op: ("Elu", {"alpha": real(op, "alpha")}),
    "selu": lambda op: ("Selu", {"alpha": real(op, "alpha"), "gamma": real(op, "scale")}),
    "hard_sigmoid": lambda op: ("HardSigmoid", {"alpha": real(op, "slope"), "beta": real(op, "offset")}),
    "thresholded_relu": lambda op: ("ThresholdedRelu", {"alpha": real(op, "threshold")}),
    "hard_shrink": lambda op: ("Shrink", {"lambd": real(op, "threshold"), "bias": 0.0}),
    "softshrink": lambda op: ("Shrink", {"lambd": real(op, "lambda"), "bias": real(op, "lambda")}),
}


@onnx_writer(*_WITH_ATTRIBUTES)
def _with_attributes(op: Op, graph: Graph) -> None:
    kind, attrs = _WITH_ATTRIBUTES[op.type](op)
    graph.node(kind, [graph.input(op, "X")], op.outputs["Out"], **attrs)


# Functions made of several nodes


class _Formula:
    """The values of ONNX from which a formula of X is built."""

    def __init__(self, op: Op, graph: Graph):
        self.op, self.graph = op, graph
        self.name = op.inputs["X"][0]
        self.x = graph.input(op, "X")

    def number(self, value: float) -> str:
        return self.graph.like(value, self.name)

    def attr(self, name: str) -> str:
        return self.number(real(self.op, name))

    def __call__(self, kind: str, *inputs: str) -> str:
        return self.graph.node(kind, inputs)


def _gelu(f: _Formula) -> tuple[str, ...]:
    if flag(f.op, "approximate"):
        cube = f("Mul", f.x, f("Mul", f.x, f.x))
        inner = f("Mul", f("Add", f.x, f("Mul", cube, f.number(0.044715))), f.number(0.7978845608028654))
        normal = f("Tanh", inner)
    else:
        normal = f("Erf", f("Mul", f.x, f.number(0.7071067811865476)))
    return "Mul", f("Mul", f.x, f.number(0.5)), f("Add", normal, f.number(1.0))


def _hard_swish(f: _Formula) -> tuple[str, ...]:
    part = f("Clip", f("Add", f.x, f.attr("offset")), f.number(0.0), f.attr("threshold"))
    return "Div", f("Mul", f.x, part), f.attr("scale")


def _round(f: _Formula) -> tuple[str, ...]:
    return "Mul", f("Sign", f.x), f("Floor", f("Add", f("Abs", f.x), f.number(0.5)))


def _mish(f: _Formula) -> tuple[str, ...]:
    if real(f.op, "threshold") < 15:  # from 15 on, softplus(x) is x in f32
        raise Refused(f"its threshold is {real(f.op, 'threshold'):g}; ONNX has none")
    return "Mul", f.x, f("Tanh", f("Softplus", f.x))


def _soft_relu(f: _Formula) -> tuple[str, ...]:
    limit = real(f.op, "threshold")
    return "Softplus", f("Clip", f.x, f.number(-limit), f.number(limit))


_FORMULAS: dict[str, Callable[[_Formula], tuple[str, ...]]] = {
    "square": lambda f: ("Mul", f.x, f.x),
    "rsqrt": lambda f: ("Reciprocal", f("Sqrt", f.x)),
    "log1p": lambda f: ("Log", f("Add", f.x, f.number(1.0))),
    "logsigmoid": lambda f: ("Neg", f("Softplus", f("Neg", f.x))),
    "relu6": lambda f: ("Clip", f.x, f.number(0.0), f.attr("threshold")),
    "brelu": lambda f: ("Clip", f.x, f.attr("t_min"), f.attr("t_max")),
    "swish": lambda f: ("Mul", f.x, f("Sigmoid", f("Mul", f.x, f.attr("beta")))),
    "stanh": lambda f: ("Mul", f("Tanh", f("Mul", f.x, f.attr("scale_a"))), f.attr("scale_b")),
    "tanh_shrink": lambda f: ("Sub", f.x, f("Tanh", f.x)),
    "mish": _mish,
    "gelu": _gelu,
    "hard_swish": _hard_swish,
    "round": _round,
    "soft_relu": _soft_relu,
    "pow": lambda f: ("Pow", f.x, f.attr("factor")),
    "clip": lambda f: ("Clip", f.x, f.attr("min"), f.attr("max")),
}


@onnx_writer(*_FORMULAS)
def _formula(op: Op, graph: Graph) -> None:
    refuse_given(op, "FactorTensor", "Min", "Max")
    kind, *inputs = _FORMULAS[op.type](_Formula(op, graph))
    graph.node(kind, inputs, op.outputs["Out"])


@onnx_writer("scale")
def _scale(op: Op, graph: Graph) -> None:
    refuse_given(op, "ScaleTensor")
    f = _Formula(op, graph)
    scale, bias = real(op, "scale"), real(op, "bias")
    steps = [("Mul", scale)] if scale != 1 else []
    if bias:
        steps.insert(len(steps) if flag(op, "bias_after_scale") else 0, ("Add", bias))
    value = f.x
    for kind, number in steps[:-1]:
        value = f(kind, value, f.number(number))
    if steps:
        graph.node(steps[-1][0], [value, f.number(steps[-1][1])], op.outputs["Out"])
    else:
        graph.node("Identity", [value], op.outputs["Out"])


# Functions of two values

_BINARY = {**OPERATORS, "minus": "Sub"}


def align_operands(op: Op, graph: Graph) -> tuple[str, str]:
    """X and Y with dims of size 1 inserted, so that the dims of the narrower one are aligned at `axis`."""
    names = op.inputs["X"][0], op.inputs["Y"][0]
    x, y = (graph.read(name) for name in names)
    wide, narrow = sorted(names, key=graph.rank, reverse=True)
    axis, rank, given = int_attr(op, "axis", -1), graph.rank(wide), graph.rank(narrow)
    missing = 0 if axis < 0 else rank - axis - given
    if missing > 0:
        turned = graph.node("Unsqueeze", [graph.read(narrow), graph.constant([*range(given, given + missing)])])
    elif missing < 0:
        turned = graph.node("Squeeze", [graph.read(narrow), graph.constant([*range(given + missing, given)])])
    else:
        return x, y
    return (x, turned) if narrow == names[1] else (turned, y)


@onnx_writer(*_BINARY)
def _binary(op: Op, graph: Graph) -> None:
    graph.node(_BINARY[op.type], align_operands(op, graph), op.outputs["Out"])


@onnx_writer("not_equal")
def _not_equal(op: Op, graph: Graph) -> None:
    graph.node("Not", [graph.node("Equal", align_operands(op, graph))], op.outputs["Out"])


@onnx_writer("where")
def _where(op: Op, graph: Graph) -> None:
    inputs = [graph.input(op, slot) for slot in ("Condition", "X", "Y")]
    graph.node("Where", inputs, op.outputs["Out"])


# Products


@onnx_writer("mul")
def _mul(op: Op, graph: Graph) -> None:
    x, y = graph.input(op, "X"), graph.input(op, "Y")
    x_rank, y_rank = graph.rank(op.inputs["X"][0]), graph.rank(op.inputs["Y"][0])
    x_split, y_split = int_attr(op, "x_num_col_dims"), int_attr(op, "y_num_col_dims")
    if y_rank == 2 and y_split == 1 and x_split == x_rank - 1:
        graph.node("MatMul", [x, y], op.outputs["Out"])
        return
    rows, columns = graph.node("Flatten", [x], axis=x_split), graph.node("Flatten", [y], axis=y_split)
    if x_split == 1 and y_rank - y_split == 1:
        graph.node("MatMul", [rows, columns], op.outputs["Out"])
        return
    product = graph.node("MatMul", [rows, columns])
    dims = [graph.node("Shape", [x], start=0, end=x_split), graph.node("Shape", [y], start=y_split)]
    graph.node("Reshape", [product, graph.node("Concat", dims, axis=0)], op.outputs["Out"])


@onnx_writer("matmul")
def _matmul(op: Op, graph: Graph) -> None:
    if int_attr(op, "head_number", 1) != 1:
        raise Refused("it has several heads")

    def operand(slot: str) -> str:
        value, rank = graph.input(op, slot), graph.rank(op.inputs[slot][0])
        if rank < 2:
            raise Refused(f"its {slot} is a vector", op.inputs[slot][0])
        if not flag(op, f"transpose_{slot}"):
            return value
        return graph.node("Transpose", [value], perm=[*range(rank - 2), rank - 1, rank - 2])

    x, y, alpha = operand("X"), operand("Y"), real(op, "alpha")
    if alpha == 1:
        graph.node("MatMul", [x, y], op.outputs["Out"])
    else:
        product = graph.node("MatMul", [x, y])
        graph.node("Mul", [product, graph.like(alpha, op.inputs["X"][0])], op.outputs["Out"])


# Sums

_REDUCTIONS = {
    "reduce_sum": "ReduceSum",
    "reduce_mean": "ReduceMean",
    "reduce_max": "ReduceMax",
    "reduce_min": "ReduceMin",
    "reduce_prod": "ReduceProd",
    "mean": "ReduceMean",
}


@onnx_writer(*_REDUCTIONS)
def _reduce(op: Op, graph: Graph) -> None:
    x, rank = graph.input(op, "X"), graph.rank(op.inputs["X"][0])
    whole = op.type == "mean" or flag(op, "reduce_all")
    axes = [*range(rank)] if whole else sorted(axis % rank for axis in ints_attr(op, "dim"))
    keep, kind = flag(op, "keep_dim"), _REDUCTIONS[op.type]
    as_one = len(axes) == rank and not keep  # a number is a tensor of one element in Fluid, and has no dims in ONNX
    by_input = kind == "ReduceSum"
    inputs, attrs = [x, graph.constant(axes)] if by_input else [x], dict[str, Any]({} if by_input else {"axes": axes})
    if as_one:
        whole_value = graph.node(kind, inputs, keepdims=0, **attrs)
        graph.node("Reshape", [whole_value, graph.constant([1])], op.outputs["Out"])
    else:
        graph.node(kind, inputs, op.outputs["Out"], keepdims=int(keep), **attrs)


@onnx_writer("sum")
def _sum(op: Op, graph: Graph) -> None:
    graph.node("Sum", [graph.read(name) for name in op.inputs["X"]], op.outputs["Out"])


@onnx_writer("cumsum")
def _cumsum(op: Op, graph: Graph) -> None:
    axis = graph.constant(int_attr(op, "axis", -1))
    flags = {"exclusive": int(flag(op, "exclusive")), "reverse": int(flag(op, "reverse"))}
    graph.node("CumSum", [graph.input(op, "X"), axis], op.outputs["Out"], **flags)


@onnx_writer("softmax")
def _softmax(op: Op, graph: Graph) -> None:
    graph.node("Softmax", [graph.input(op, "X")], op.outputs["Out"], axis=int_attr(op, "axis", -1))


@onnx_writer("norm")
def _norm(op: Op, graph: Graph) -> None:
    f = _Formula(op, graph)
    squares = f("Mul", f.x, f.x)
    total = graph.node("ReduceSum", [squares, graph.constant([int_attr(op, "axis")])], keepdims=1)
    length = f("Sqrt", f("Add", total, f.attr("epsilon")))
    graph.node("Div", [f.x, length], op.outputs["Out"])


# Ops about shapes and elements in ONNX: other dims with the same elements, parts, tables, constants.

# Other dims


@onnx_writer("reshape", "reshape2")
def _reshape(op: Op, graph: Graph) -> None:
    refuse_given(op, "Shape", "ShapeTensor")
    dims = graph.constant([*ints_attr(op, "shape")])
    graph.node("Reshape", [graph.input(op, "X"), dims], op.outputs["Out"])


@onnx_writer("transpose", "transpose2")
def _transpose(op: Op, graph: Graph) -> None:
    graph.node("Transpose", [graph.input(op, "X")], op.outputs["Out"], perm=[*ints_attr(op, "axis")])


@onnx_writer("squeeze", "squeeze2")
def _squeeze(op: Op, graph: Graph) -> None:
    axes, dims = ints_attr(op, "axes"), graph.dims(op.inputs["X"][0])
    chosen = [at for at in axes or range(len(dims)) if dims[at] == 1 or (axes and dims[at] == -1)]
    if (not axes and -1 in dims) or (flag(op, "ones_only") and any(dims[at] == -1 for at in axes)):
        raise Refused("which of its dims are of size 1 is known at run time only", op.inputs["X"][0])
    if axes and not chosen:  # without axes, ONNX removes all dims of size 1
        graph.node("Identity", [graph.input(op, "X")], op.outputs["Out"])
        return
    graph.node("Squeeze", [graph.input(op, "X"), graph.constant(chosen)], op.outputs["Out"])


@onnx_writer("unsqueeze", "unsqueeze2")
def _unsqueeze(op: Op, graph: Graph) -> None:
    refuse_given(op, "AxesTensor", "AxesTensorList")
    value, rank, axes = graph.input(op, "X"), graph.rank(op.inputs["X"][0]), ints_attr(op, "axes")
    for number, axis in enumerate(axes):  # one after another, because an axis counts the dims inserted before it
        at = axis if axis >= 0 else axis + rank + number + 1
        to = op.outputs["Out"] if number == len(axes) - 1 else ()
        value = graph.node("Unsqueeze", [value, graph.constant([at])], to)


@onnx_writer("flatten", "flatten2")
def _flatten(op: Op, graph: Graph) -> None:
    graph.node("Flatten", [graph.input(op, "X")], op.outputs["Out"], axis=int_attr(op, "axis", 1))


@onnx_writer("shape")
def _shape(op: Op, graph: Graph) -> None:
    dims = graph.node("Shape", [graph.input(op, "Input")])
    graph.node("Cast", [dims], op.outputs["Out"], to=ELEMENT_TYPES[DType.INT32])


# Parts of a value, and several values joined


@onnx_writer("concat")
def _concat(op: Op, graph: Graph) -> None:
    refuse_given(op, "AxisTensor")
    graph.node("Concat", [graph.read(name) for name in op.inputs["X"]], op.outputs["Out"], axis=int_attr(op, "axis"))


@onnx_writer("stack")
def _stack(op: Op, graph: Graph) -> None:
    axis = graph.constant([int_attr(op, "axis")])
    parts = [graph.node("Unsqueeze", [graph.read(name), axis]) for name in op.inputs["X"]]
    graph.node("Concat", parts, op.outputs["Y"], axis=int_attr(op, "axis"))


@onnx_writer("split")
def _split(op: Op, graph: Graph) -> None:
    refuse_given(op, "AxisTensor", "SectionsTensorList")
    sections, axis = [*ints_attr(op, "sections")], int_attr(op, "axis")
    if -1 in sections:
        whole = graph.dims(op.inputs["X"][0])[axis]
        if whole < 0:
            raise Refused("the size of one of its sections is known at run time only", op.inputs["X"][0])
        sections[sections.index(-1)] = whole - sum(sections) - 1
    sizes = [graph.constant(sections)] if sections else []
    graph.node("Split", [graph.input(op, "X"), *sizes], op.outputs["Out"], axis=axis)


@onnx_writer("slice", "strided_slice")
def _slice(op: Op, graph: Graph) -> None:
    lists = ("StartsTensor", "EndsTensor", "StridesTensor", "StartsTensorList", "EndsTensorList", "StridesTensorList")
    refuse_given(op, *lists)
    bounds = [ints_attr(op, name) for name in ("starts", "ends", "axes")]
    if op.type == "strided_slice":
        bounds.append(ints_attr(op, "strides"))
        if min(bounds[-1], default=1) < 0:
            raise Refused("it has a stride below 0, from which Fluid counts from the far end")
    cut = [graph.input(op, "Input"), *(graph.constant([*numbers]) for numbers in bounds)]
    gone = [*ints_attr(op, "decrease_axis")]
    if not gone:
        graph.node("Slice", cut, op.outputs["Out"])
    elif len(gone) == graph.rank(op.inputs["Input"][0]):
        graph.node("Reshape", [graph.node("Slice", cut), graph.constant([1])], op.outputs["Out"])
    else:
        graph.node("Squeeze", [graph.node("Slice", cut), graph.constant(gone)], op.outputs["Out"])


@onnx_writer("expand")
def _expand(op: Op, graph: Graph) -> None:
    refuse_given(op, "ExpandTimes", "expand_times_tensor")
    times = graph.constant([*ints_attr(op, "expand_times")])
    graph.node("Tile", [graph.input(op, "X"), times], op.outputs["Out"])


@onnx_writer("pad")
def _pad(op: Op, graph: Graph) -> None:
    sizes = ints_attr(op, "paddings")
    pads, value = graph.constant([*sizes[::2], *sizes[1::2]]), graph.like(real(op, "pad_value"), op.inputs["X"][0])
    graph.node("Pad", [graph.input(op, "X"), pads, value], op.outputs["Out"], mode="constant")


@onnx_writer("pad2d")
def _pad2d(op: Op, graph: Graph) -> None:
    refuse_given(op, "Paddings")
    top, bottom, left, right = ints_attr(op, "paddings")
    last = text(op, "data_format") == "NHWC"
    pads = [0, top, left, 0, 0, bottom, right, 0] if last else [0, 0, top, left, 0, 0, bottom, right]
    inputs = [graph.input(op, "X"), graph.constant(pads), graph.like(real(op, "pad_value"), op.inputs["X"][0])]
    graph.node("Pad", inputs, op.outputs["Out"], mode=text(op, "mode"))


# Elements by index


@onnx_writer("lookup_table", "lookup_table_v2")
def _lookup(op: Op, graph: Graph) -> None:
    ids, table = graph.input(op, "Ids"), graph.input(op, "W")
    if op.type == "lookup_table":
        ids = graph.node("Squeeze", [ids, graph.constant([-1])])
    padding = int_attr(op, "padding_idx", -1)
    if padding == -1:
        graph.node("Gather", [table, ids], op.outputs["Out"], axis=0)
        return
    rows = graph.node("Gather", [table, ids], axis=0)
    empty = graph.node("Equal", [ids, graph.like(padding, op.inputs["Ids"][0])])
    empty = graph.node("Unsqueeze", [empty, graph.constant([-1])])
    graph.node("Where", [empty, graph.like(0.0, op.inputs["W"][0]), rows], op.outputs["Out"])


@onnx_writer("gather")
def _gather(op: Op, graph: Graph) -> None:
    index = graph.input(op, "Index")
    if graph.rank(op.inputs["Index"][0]) == 2:
        index = graph.node("Squeeze", [index, graph.constant([1])])
    graph.node("Gather", [graph.input(op, "X"), index], op.outputs["Out"], axis=0)


@onnx_writer("gather_nd")
def _gather_nd(op: Op, graph: Graph) -> None:
    index = graph.node("Cast", [graph.input(op, "Index")], to=ELEMENT_TYPES[DType.INT64])
    graph.node("GatherND", [graph.input(op, "X"), index], op.outputs["Out"])


@onnx_writer("one_hot", "one_hot_v2")
def _one_hot(op: Op, graph: Graph) -> None:
    refuse_given(op, "depth_tensor")
    ids, made = graph.input(op, "X"), op.outputs["Out"][0]
    if op.type == "one_hot":
        ids = graph.node("Squeeze", [ids, graph.constant([-1])])
    if graph.dtype(op.inputs["X"][0]) is not DType.INT64:
        ids = graph.node("Cast", [ids], to=ELEMENT_TYPES[DType.INT64])
    depth, off_on = graph.constant(int_attr(op, "depth")), graph.constant([0, 1], graph.dtype(made))
    graph.node("OneHot", [ids, depth, off_on], [made])


@onnx_writer("top_k")
def _top_k(op: Op, graph: Graph) -> None:
    refuse_given(op, "K")
    count = graph.constant([int_attr(op, "k", 1)])
    graph.node("TopK", [graph.input(op, "X"), count], [*op.outputs["Out"], *op.outputs["Indices"]])


@onnx_writer("arg_max", "arg_min")
def _arg_max(op: Op, graph: Graph) -> None:
    kind, keep, axis = "ArgMax" if op.type == "arg_max" else "ArgMin", flag(op, "keepdims"), int_attr(op, "axis")
    attrs: dict[str, Any] = {"axis": axis, "keepdims": int(keep or graph.rank(op.inputs["X"][0]) == 1)}
    made = op.outputs["Out"][0]
    if graph.dtype(made) is DType.INT64:
        graph.node(kind, [graph.input(op, "X")], [made], **attrs)
    else:
        graph.node(
            "Cast", [graph.node(kind, [graph.input(op, "X")], **attrs)], [made], to=ELEMENT_TYPES[graph.dtype(made)]
        )


# Constants and other element types


@onnx_writer("cast")
def _cast(op: Op, graph: Graph) -> None:
    made, source = op.outputs["Out"], op.inputs["X"][0]
    if graph.dtype(made[0]) is DType.FP16 and graph.dtype(source) in (DType.FP32, DType.FP64):
        raise Refused("it rounds to f16 toward zero, ONNX to the nearest", source)
    graph.node("Cast", [graph.input(op, "X")], made, to=ELEMENT_TYPES[graph.dtype(made[0])])


@onnx_writer("fill_constant", "assign_value")
def _constant(op: Op, graph: Graph) -> None:
    refuse_given(op, "ValueTensor", "ShapeTensor", "ShapeTensorList")
    made, dims = op.outputs["Out"][0], [*ints_attr(op, "shape")]
    if op.type == "assign_value":
        lists = (op.attrs.get(f"{kind}_values") for kind in ("fp32", "int32", "int64", "bool"))
        values = np.array(next(values for values in lists if values)).reshape(dims)
    else:
        number = text(op, "str_value")
        values = np.full(dims, float(number) if number else real(op, "value"))
    graph.node("Identity", [graph.constant(values, graph.dtype(made))], [made])


@onnx_writer("fill_constant_batch_size_like")
def _constant_like(op: Op, graph: Graph) -> None:
    source, made = graph.input(op, "Input"), op.outputs["Out"][0]
    dims, at, of = ints_attr(op, "shape"), int_attr(op, "output_dim_idx"), int_attr(op, "input_dim_idx")
    parts = [graph.constant([dim]) for dim in dims]
    parts[at] = graph.node("Shape", [source], start=of, end=of + 1)
    whole = graph.node("Concat", parts, axis=0)
    number = text(op, "str_value")
    value = graph.constant(float(number) if number else real(op, "value"), graph.dtype(made))
    graph.node("Expand", [value, whole], [made])


@onnx_writer("fill_zeros_like")
def _zeros_like(op: Op, graph: Graph) -> None:
    dims = graph.node("Shape", [graph.input(op, "X")])
    graph.node("Expand", [graph.like(0.0, op.inputs["X"][0]), dims], op.outputs["Out"])


@onnx_writer("dropout")
def _dropout(op: Op, graph: Graph) -> None:
    if not flag(op, "is_test"):
        raise Refused("it drops elements at random; a program cut down for inference (--fetch) does not")
    x, rate = graph.input(op, "X"), real(op, "dropout_prob")
    if text(op, "dropout_implementation") == "upscale_in_train":
        graph.node("Identity", [x], op.outputs["Out"])
    else:
        graph.node("Mul", [x, graph.like(1.0 - rate, op.inputs["X"][0])], op.outputs["Out"])


# Ops of images and norms in ONNX: convolutions, pooling, scaling, normalisation.


def _channels_first(op: Op, name: str = "data_format") -> None:
    if text(op, name) not in ("NCHW", "NCDHW", "AnyLayout", ""):
        raise Refused(f"{name} is {text(op, name)}; ONNX has channels before the dims of the image")


def _padding(op: Op, spatial: int) -> dict[str, Any]:
    """The attributes of ONNX for the padding of images."""
    algorithm, listed = op.attrs.get("padding_algorithm"), ints_attr(op, "paddings")
    if algorithm == "SAME":
        return {"auto_pad": "SAME_UPPER"}
    if algorithm == "VALID":
        return {"pads": [0] * (2 * spatial)}
    if len(listed) == spatial:
        return {"pads": [*listed, *listed]}
    return {"pads": [*listed[::2], *listed[1::2]]}


# Convolutions


@onnx_writer("conv2d", "depthwise_conv2d", "conv3d")
def _conv(op: Op, graph: Graph) -> None:
    _channels_first(op)
    refuse_given(op, "ResidualData")
    inputs = [graph.input(op, "Input"), graph.input(op, "Filter")]
    if bias := graph.optional(op, "Bias"):
        inputs.append(bias)
    graph.node(
        "Conv",
        inputs,
        op.outputs["Output"],
        strides=[*ints_attr(op, "strides")],
        dilations=[*dilations_of(op)],
        group=int_attr(op, "groups", 1),
        **_padding(op, 3 if op.type == "conv3d" else 2),
    )


@onnx_writer("conv2d_transpose", "depthwise_conv2d_transpose", "conv3d_transpose")
def _conv_transpose(op: Op, graph: Graph) -> None:
    _channels_first(op)
    if op.attrs.get("padding_algorithm") == "SAME":
        raise Refused("its padding_algorithm is SAME, which ONNX counts from the other side")
    inputs = [graph.input(op, "Input"), graph.input(op, "Filter")]
    if bias := graph.optional(op, "Bias"):
        inputs.append(bias)
    more: dict[str, Any] = {}
    if asked := ints_attr(op, "output_size"):
        dims, size = graph.dims(op.inputs["Input"][0])[2:], graph.dims(op.inputs["Filter"][0])[2:]
        if -1 in dims:
            raise Refused("it has an output_size, and the dims of its input are known at run time only")
        least = transposed_dims(op._replace(attrs=op.attrs | {"output_size": ()}), dims, size)
        more["output_padding"] = [want - dim for want, dim in zip(asked, least, strict=True)]
    graph.node(
        "ConvTranspose",
        inputs,
        op.outputs["Output"],
        strides=[*ints_attr(op, "strides")],
        dilations=[*dilations_of(op)],
        group=int_attr(op, "groups", 1),
        **_padding(op, 3 if op.type == "conv3d_transpose" else 2),
        **more,
    )


# Pooling


@onnx_writer("pool2d", "pool3d")
def _pool(op: Op, graph: Graph) -> None:
    _channels_first(op)
    x, source, average = graph.input(op, "X"), op.inputs["X"][0], text(op, "pooling_type") == "avg"
    spatial, size = 3 if op.type == "pool3d" else 2, ints_attr(op, "ksize")
    adaptive = flag(op, "adaptive")
    if (flag(op, "global_pooling") and not adaptive) or (adaptive and set(size) == {1}):
        graph.node("GlobalAveragePool" if average else "GlobalMaxPool", [x], op.outputs["Out"])
        return
    attrs: dict[str, Any]
    if adaptive:
        dims = graph.dims(source)[2:]
        if any(dim < 0 or dim % count for dim, count in zip(dims, size, strict=True)):
            raise Refused("it is adaptive, with windows that differ in size; those of ONNX are alike", source)
        windows = [dim // count for dim, count in zip(dims, size, strict=True)]
        attrs = {"kernel_shape": windows, "strides": windows}
    else:
        if flag(op, "ceil_mode"):
            _refuse_past_the_end(op, graph)
        attrs = {"kernel_shape": [*size], "strides": [*ints_attr(op, "strides")], **_padding(op, spatial)}
        attrs["ceil_mode"] = int(flag(op, "ceil_mode"))
        if average:
            attrs["count_include_pad"] = int(not flag(op, "exclusive"))
    graph.node("AveragePool" if average else "MaxPool", [x], op.outputs["Out"], **attrs)


def _refuse_past_the_end(op: Op, graph: Graph) -> None:
    """Raises Refused if ceil_mode may make a window that begins in the padding at the end, which ONNX leaves out."""
    if text(op, "pooling_type") == "avg":
        raise Refused("it is an average with ceil_mode, whose windows past the end ONNX divides otherwise")
    source, size = op.inputs["X"][0], ints_attr(op, "ksize")
    dims = graph.dims(source)[2:]
    if -1 in dims:
        raise Refused("it has ceil_mode, and dims of its input are known at run time only", source)
    counts = window_counts(op, dims, size, (1,) * len(dims))
    before = (first for first, _ in padding_of(op, dims, size))
    for dim, count, stride, padding in zip(dims, counts, ints_attr(op, "strides"), before, strict=True):
        if (count - 1) * stride >= dim + padding:
            raise Refused("its ceil_mode makes a window of padding alone, which ONNX leaves out", source)


# Scaling


@onnx_writer("bilinear_interp", "nearest_interp")
def _resize(op: Op, graph: Graph) -> None:
    _channels_first(op, "data_layout")
    refuse_given(op, "OutSize", "SizeTensor", "Scale")
    x, result = graph.input(op, "X"), op.outputs["Out"][0]
    dims, corners = graph.dims(result)[2:], flag(op, "align_corners")
    if -1 in dims:
        raise Refused("the dims of its result are known at run time only", result)
    leading = graph.node("Shape", [x], start=0, end=2)
    sizes = graph.node("Concat", [leading, graph.constant([*dims])], axis=0)
    half = op.type == "bilinear_interp" and int_attr(op, "align_mode", 1) == 0
    attrs: dict[str, Any] = {
        "coordinate_transformation_mode": "align_corners" if corners else "half_pixel" if half else "asymmetric",
        "mode": "linear" if op.type == "bilinear_interp" else "nearest",
    }
    if op.type == "nearest_interp":
        attrs["nearest_mode"] = "round_prefer_ceil" if corners else "floor"
    graph.node("Resize", [x, "", "", sizes], [result], **attrs)


@onnx_writer("pixel_shuffle")
def _pixel_shuffle(op: Op, graph: Graph) -> None:
    _channels_first(op)
    size = int_attr(op, "upscale_factor")
    graph.node("DepthToSpace", [graph.input(op, "X")], op.outputs["Out"], blocksize=size, mode="CRD")


# Norms and slopes


@onnx_writer("batch_norm")
def _batch_norm(op: Op, graph: Graph) -> None:
    _channels_first(op, "data_layout")
    if not (flag(op, "use_global_stats") or (flag(op, "is_test") and not flag(op, "trainable_statistics"))):
        raise Refused("it takes the statistics of the batch; a program cut down for inference (--fetch) does not")
    inputs = [graph.input(op, slot) for slot in ("X", "Scale", "Bias", "Mean", "Variance")]
    graph.node("BatchNormalization", inputs, op.outputs["Y"], epsilon=real(op, "epsilon"))


@onnx_writer("layer_norm")
def _layer_norm(op: Op, graph: Graph) -> None:
    source, begin = op.inputs["X"][0], int_attr(op, "begin_norm_axis", 1)
    dims = graph.dims(source)[begin:]
    if -1 in dims:
        raise Refused("dims that it normalises over are known at run time only", source)

    def parameter_or_constant(slot: str, missing: float) -> str:
        given = graph.optional(op, slot)
        if not given:
            return graph.constant([missing], graph.dtype(source))
        return graph.node("Reshape", [given, graph.constant([*dims])]) if len(dims) > 1 else given

    value, epsilon = graph.input(op, "X"), real(op, "epsilon")
    if graph.optional(op, "Scale"):
        inputs = [value, parameter_or_constant("Scale", 1.0), parameter_or_constant("Bias", 0.0)]
        graph.node("LayerNormalization", inputs, op.outputs["Y"], axis=begin, epsilon=epsilon)
        return
    ones = graph.constant([1.0] * dims[-1], graph.dtype(source))
    plain = graph.node("LayerNormalization", [value, ones], axis=begin, epsilon=epsilon)
    graph.node("Add", [plain, parameter_or_constant("Bias", 0.0)], op.outputs["Y"])


def _affine(op: Op, graph: Graph, value: str, to: str) -> None:
    """Sets `to` to value * Scale + Bias; each of the two has a number for each channel, or may be missing."""
    rank = graph.rank(op.inputs["X"][0])
    dims = graph.constant([-1, *[1] * (rank - 2)])
    steps = [(kind, graph.optional(op, slot)) for kind, slot in (("Mul", "Scale"), ("Add", "Bias"))]
    steps = [(kind, graph.node("Reshape", [given, dims])) for kind, given in steps if given]
    for kind, given in steps[:-1]:
        value = graph.node(kind, [value, given])
    if steps:
        graph.node(steps[-1][0], [value, steps[-1][1]], [to])
    else:
        graph.node("Identity", [value], [to])


@onnx_writer("affine_channel")
def _affine_channel(op: Op, graph: Graph) -> None:
    if text(op, "data_layout") != "NCHW":  # any other layout means channels last to this op
        raise Refused(f"data_layout is {text(op, 'data_layout')}; ONNX has channels before the dims of the image")
    _affine(op, graph, graph.input(op, "X"), op.outputs["Out"][0])


@onnx_writer("instance_norm", "group_norm")
def _instance_norm(op: Op, graph: Graph) -> None:
    x, source, dtype = graph.input(op, "X"), op.inputs["X"][0], graph.dtype(op.inputs["X"][0])
    if op.type == "group_norm":
        _channels_first(op, "data_layout")
        groups = int_attr(op, "groups", 1)
        parts = graph.node("Reshape", [x, graph.constant([0, groups, -1])])
    else:
        groups, parts = graph.dims(source)[1], x
    numbers = [graph.constant([number] * groups, dtype) for number in (1.0, 0.0)]
    normal = graph.node("InstanceNormalization", [parts, *numbers], epsilon=real(op, "epsilon"))
    if op.type == "group_norm":
        normal = graph.node("Reshape", [normal, graph.node("Shape", [x])])
    _affine(op, graph, normal, op.outputs["Y"][0])


@onnx_writer("prelu")
def _prelu(op: Op, graph: Graph) -> None:
    x, slope, mode = graph.input(op, "X"), graph.input(op, "Alpha"), text(op, "mode")
    rank = graph.rank(op.inputs["X"][0])
    if mode == "channel":
        slope = graph.node("Reshape", [slope, graph.constant([-1, *[1] * (rank - 2)])])
    elif mode == "all":
        slope = graph.node("Reshape", [slope, graph.constant([1])])
    graph.node("PRelu", [x, slope], op.outputs["Out"])


# Losses of classes in ONNX, from scores and labels of rows.


def _at_label(op: Op, graph: Graph, scores: str, axis: int) -> tuple[str, str]:
    """(scores at the labels, with a dim of size 1 in their place; a mask of the labels to ignore)."""
    (name,) = op.inputs["Label"]
    if graph.dtype(name) not in (DType.INT64, DType.INT32):
        raise Refused("its labels are no whole numbers", name)
    label = graph.input(op, "Label")
    ignored = graph.node("Equal", [label, graph.like(int_attr(op, "ignore_index", -100), name)])
    safe = graph.node("Where", [ignored, graph.like(0, name), label])
    return graph.node("GatherElements", [scores, safe], axis=axis), ignored


@onnx_writer("softmax_with_cross_entropy")
def _softmax_with_cross_entropy(op: Op, graph: Graph) -> None:
    (source,) = op.inputs["Logits"]
    axis, logits = int_attr(op, "axis", -1) % graph.rank(source), graph.input(op, "Logits")
    logarithms = graph.node("LogSoftmax", [logits], axis=axis)
    if flag(op, "soft_label"):
        weighted = graph.node("Mul", [graph.input(op, "Label"), logarithms])
        total = graph.node("ReduceSum", [weighted, graph.constant([axis])], keepdims=1)
        graph.node("Neg", [total], op.outputs["Loss"])
    else:
        picked, ignored = _at_label(op, graph, logarithms, axis)
        loss = graph.node("Neg", [picked])
        graph.node("Where", [ignored, graph.like(0.0, source), loss], op.outputs["Loss"])
    if op.outputs.get("Softmax"):
        graph.node("Softmax", [logits], op.outputs["Softmax"], axis=axis)


# An inference program as an ONNX model.


def onnx_bytes(
    program: Program, feeds: Sequence[str], targets: Sequence[str], values: Mapping[str, Array], name: str = "main"
) -> bytes:
    """The ONNX model that computes `targets` from `feeds` as block 0 of the program does.

    `values` are the persistable variables that it reads. Ops that no target needs are left out. Raises DiagnosticError:
    `onnx-op` for every op that ONNX can't express, `onnx-library` if onnx is not installed.
    """
    graph = Graph(program, values)
    findings: list[Diagnostic] = []
    for variable in feeds:
        try:
            graph.feed(variable)
        except Refused as reason:
            var = program.find_var(variable)
            findings.append(error("onnx-op", str(reason), var.location if var else None, focus=f"%{variable}"))
    raise_errors(findings)
    for op in _needed_ops(program.main_block.ops, feeds, targets):
        try:
            _write(op, graph)
        except Refused as reason:
            findings.append(at_op("onnx-op", str(reason), op, focus=f"%{reason.variable}" if reason.variable else ""))
    if findings:
        raise DiagnosticError(first_findings(_causes(findings)))
    return _model(graph, program, feeds, targets, name)


def _needed_ops(ops: Sequence[Op], feeds: Sequence[str], targets: Sequence[str]) -> list[Op]:
    """The ops that the targets depend on, without those that feed and fetch."""
    wanted, result = set(targets), list[Op]()
    for op in reversed(ops):
        if op.type in ("feed", "fetch") or wanted.isdisjoint(op.output_names):
            continue
        result.append(op)
        wanted |= {name for name in op.input_names if name not in feeds}
    return result[::-1]


def _write(op: Op, graph: Graph) -> None:
    writer = WRITERS.get(op.type)
    if writer is None:
        raise Refused("ONNX has no counterpart of this op here")
    writer(op, graph)


_FOLLOWS = "no op that ONNX can express makes it"


def _causes(findings: Sequence[Diagnostic]) -> Sequence[Diagnostic]:
    """The findings without those that are only consequences of others."""
    return [finding for finding in findings if _FOLLOWS not in finding.message] or findings


def _model(graph: Graph, program: Program, feeds: Sequence[str], targets: Sequence[str], name: str) -> bytes:
    helper = library("onnx.helper")

    def info(value: str, variable: str) -> Any:
        dims = [None if dim < 0 else dim for dim in graph.dims(variable)]
        return helper.make_tensor_value_info(value, ELEMENT_TYPES[graph.dtype(variable)], dims)

    outputs: list[str] = []
    for target in targets:
        value = graph.read(target)
        if value in (*feeds, *outputs):  # an output of a graph must be the result of a node, and occur once
            value = graph.node("Identity", [value])
        outputs.append(value)
    inner = [info(value, variable) for value, variable in graph.variable_names.items() if value not in outputs]
    graph_proto = helper.make_graph(
        graph.nodes,
        name,
        [info(feed, feed) for feed in feeds],
        [info(value, target) for value, target in zip(outputs, targets, strict=True)],
        graph.initializers,
        value_info=inner,
    )
    model = helper.make_model(
        graph_proto, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="pstranspile"
    )
    _check(model)
    return model.SerializeToString(deterministic=True)


def _check(model: Any) -> None:
    """Raises DiagnosticError if ONNX rejects the model, or infers other dims for it than are declared."""
    checker = library("onnx.checker")
    try:
        checker.check_model(model, full_check=True)
    except (checker.ValidationError, library("onnx.shape_inference").InferenceError) as problem:
        message = f"ONNX would compute something else than the program declares: {problem}"
        raise DiagnosticError([error("onnx-op", message)]) from None
