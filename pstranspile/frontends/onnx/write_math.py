"""Ops of arithmetic in ONNX: functions element by element, products, reductions, comparisons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pstranspile.frontends.onnx.graph import Graph, Refused, onnx_writer, refuse_given
from pstranspile.frontends.onnx.library import FUNCTIONS, OPERATORS
from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr, ints_attr, real

_SAME = {**FUNCTIONS, "assign": "Identity"}


@onnx_writer(*_SAME)
def _same(op: Op, graph: Graph) -> None:
    graph.node(_SAME[op.type], [graph.input(op, "X")], op.outputs["Out"])


# With attributes

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


# Made of several nodes


class _Formula:
    """The values that a formula of X is made of."""

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
    if real(f.op, "threshold") < 15:  # beyond it softplus(x) is taken for x, which it is to single precision from there
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


# Of two

_BINARY = {**OPERATORS, "minus": "Sub"}


def aligned(op: Op, graph: Graph) -> tuple[str, str]:
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
    graph.node(_BINARY[op.type], aligned(op, graph), op.outputs["Out"])


@onnx_writer("not_equal")
def _not_equal(op: Op, graph: Graph) -> None:
    graph.node("Not", [graph.node("Equal", aligned(op, graph))], op.outputs["Out"])


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
