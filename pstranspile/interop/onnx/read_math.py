"""Nodes of arithmetic as Fluid's ops: functions element by element, products, reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pstranspile.interop.onnx.graph import Refused
from pstranspile.interop.onnx.reading import Reading, attribute, axes_of, dtype_of, onnx_reader, positive

_SAME = {
    "Relu": "relu",
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "Exp": "exp",
    "Log": "log",
    "Sqrt": "sqrt",
    "Abs": "abs",
    "Ceil": "ceil",
    "Floor": "floor",
    "Cos": "cos",
    "Sin": "sin",
    "Acos": "acos",
    "Asin": "asin",
    "Atan": "atan",
    "Erf": "erf",
    "Reciprocal": "reciprocal",
    "Sign": "sign",
    "Softplus": "softplus",
    "Softsign": "softsign",
    "HardSwish": "hard_swish",
    "Mish": "mish",
    "Not": "logical_not",
}


@onnx_reader(*_SAME)
def _same(node: Any, reading: Reading) -> None:
    reading.op(_SAME[node.op_type], {"X": node.input[0]}, {"Out": node.output[0]})


_WITH_ATTRIBUTES: dict[str, Callable[[Any], tuple[str, dict[str, object]]]] = {
    "LeakyRelu": lambda node: ("leaky_relu", {"alpha": attribute(node, "alpha", 0.01)}),
    "Elu": lambda node: ("elu", {"alpha": attribute(node, "alpha", 1.0)}),
    "Selu": lambda node: (
        "selu",
        {"alpha": attribute(node, "alpha", 1.6732632), "scale": attribute(node, "gamma", 1.050701)},
    ),
    "HardSigmoid": lambda node: (
        "hard_sigmoid",
        {"slope": attribute(node, "alpha", 0.2), "offset": attribute(node, "beta", 0.5)},
    ),
    "ThresholdedRelu": lambda node: ("thresholded_relu", {"threshold": attribute(node, "alpha", 1.0)}),
    "Gelu": lambda node: ("gelu", {"approximate": attribute(node, "approximate", "none") == "tanh"}),
    "Neg": lambda _: ("scale", {"scale": -1.0}),
}


@onnx_reader(*_WITH_ATTRIBUTES)
def _with_attributes(node: Any, reading: Reading) -> None:
    op_type, attrs = _WITH_ATTRIBUTES[node.op_type](node)
    reading.op(op_type, {"X": node.input[0]}, {"Out": node.output[0]}, **attrs)


@onnx_reader("Clip")
def _clip(node: Any, reading: Reading) -> None:
    bounds = [float("-inf"), float("inf")]
    for at, name in enumerate(node.input[1:3]):
        if name:
            bounds[at] = float(reading.constant(name, "a bound").reshape(()))
    reading.op("clip", {"X": node.input[0]}, {"Out": node.output[0]}, min=bounds[0], max=bounds[1])


# Of two and more

_BINARY = {
    "Add": "elementwise_add",
    "Sub": "elementwise_sub",
    "Mul": "elementwise_mul",
    "Div": "elementwise_div",
    "Max": "elementwise_max",
    "Min": "elementwise_min",
    "Pow": "elementwise_pow",
    "Equal": "equal",
    "Less": "less_than",
    "LessOrEqual": "less_equal",
    "Greater": "greater_than",
    "GreaterOrEqual": "greater_equal",
    "And": "logical_and",
    "Or": "logical_or",
    "Xor": "logical_xor",
}


@onnx_reader(*_BINARY)
def _binary(node: Any, reading: Reading) -> None:
    (first, *others), out = node.input, node.output[0]
    if len(others) == 1 and _by_number(node.op_type, first, others[0], out, reading):
        return
    if not others:
        reading.op("assign", {"X": first}, {"Out": out})
    for number, other in enumerate(others):
        made = out if number == len(others) - 1 else reading.temp(out)
        reading.op(_BINARY[node.op_type], {"X": first, "Y": other}, {"Out": made})
        first = made


def _by_number(kind: str, x: str, y: str, out: str, reading: Reading) -> bool:
    """Whether one of the two is a number of the program itself: an attribute then, as in Fluid's own programs."""
    left, right = (None if reading.is_weight(name) else reading.number(name) for name in (x, y))
    if (right is None and left is None) or (left is not None and kind not in ("Add", "Sub", "Mul")):
        return False
    number, other = (right, x) if right is not None else (left, y)
    assert number is not None
    if reading.tensor(other).dtype.text not in ("f32", "f64"):
        return False
    if kind == "Pow":
        reading.op("pow", {"X": other}, {"Out": out}, factor=number)
        return True
    attrs = {
        "Add": {"bias": number},
        "Mul": {"scale": number},
        "Div": {"scale": 1 / number if number else float("inf")},
        "Sub": {"bias": -number} if right is not None else {"scale": -1.0, "bias": number},
    }.get(kind)
    if attrs is None:
        return False
    reading.op("scale", {"X": other}, {"Out": out}, **attrs)
    return True


@onnx_reader("Sum")
def _sum(node: Any, reading: Reading) -> None:
    if len({reading.dims(name) for name in node.input}) > 1:
        raise Refused("its inputs have different dims")
    reading.op("sum", {"X": list(node.input)}, {"Out": node.output[0]})


@onnx_reader("Where")
def _where(node: Any, reading: Reading) -> None:
    condition, x, y = node.input
    if len({reading.dims(name) for name in node.input}) > 1:
        raise Refused("its inputs have different dims")
    reading.op("where", {"Condition": condition, "X": x, "Y": y}, {"Out": node.output[0]})


# Products


@onnx_reader("MatMul")
def _matmul(node: Any, reading: Reading) -> None:
    x, y = node.input
    ranks = [len(reading.dims(name)) for name in (x, y)]
    if min(ranks) < 2:
        raise Refused("one of its inputs is a vector")
    if ranks[1] == 2:
        reading.op("mul", {"X": x, "Y": y}, {"Out": node.output[0]}, x_num_col_dims=ranks[0] - 1, y_num_col_dims=1)
    else:
        reading.op("matmul", {"X": x, "Y": y}, {"Out": node.output[0]})


@onnx_reader("Gemm")
def _gemm(node: Any, reading: Reading) -> None:
    out, (x, y, *bias) = node.output[0], node.input
    attrs = {
        "transpose_X": bool(attribute(node, "transA", 0)),
        "transpose_Y": bool(attribute(node, "transB", 0)),
        "alpha": float(attribute(node, "alpha", 1.0)),
    }
    product = reading.temp(out) if bias and bias[0] else out
    reading.op("matmul", {"X": x, "Y": y}, {"Out": product}, **attrs)
    if product == out:
        return
    added, beta = bias[0], float(attribute(node, "beta", 1.0))
    if beta != 1:
        scaled = reading.temp(out)
        reading.op("scale", {"X": added}, {"Out": scaled}, scale=beta)
        added = scaled
    reading.op("elementwise_add", {"X": product, "Y": added}, {"Out": out})


# Reductions

_REDUCTIONS = {
    "ReduceSum": "reduce_sum",
    "ReduceMean": "reduce_mean",
    "ReduceMax": "reduce_max",
    "ReduceMin": "reduce_min",
    "ReduceProd": "reduce_prod",
}


@onnx_reader(*_REDUCTIONS)
def _reduce(node: Any, reading: Reading) -> None:
    rank, axes = len(reading.dims(node.input[0])), axes_of(node, reading)
    if not axes and attribute(node, "noop_with_empty_axes", 0):
        reading.alias(node.output[0], node.input[0])
        return
    chosen = positive(axes, rank) if axes else [*range(rank)]
    attrs = {"keep_dim": bool(attribute(node, "keepdims", 1)), "reduce_all": len(chosen) == rank, "dim": chosen}
    reading.op(_REDUCTIONS[node.op_type], {"X": node.input[0]}, {"Out": node.output[0]}, **attrs)


@onnx_reader("Softmax", "LogSoftmax")
def _softmax(node: Any, reading: Reading) -> None:
    out, axis = node.output[0], attribute(node, "axis", -1)
    made = out if node.op_type == "Softmax" else reading.temp(out)
    reading.op("softmax", {"X": node.input[0]}, {"Out": made}, axis=axis)
    if made != out:
        reading.op("log", {"X": made}, {"Out": out})


@onnx_reader("Cast")
def _cast(node: Any, reading: Reading) -> None:
    source, kind = reading.tensor(node.input[0]).dtype, dtype_of(attribute(node, "to"), node.output[0])
    attrs = {"in_dtype": source.value, "out_dtype": kind.value}
    reading.op("cast", {"X": node.input[0]}, {"Out": node.output[0]}, **attrs)
