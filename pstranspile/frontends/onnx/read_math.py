"""Nodes of arithmetic as Fluid's ops: functions element by element, products, reductions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from pstranspile.frontends.onnx.graph import Refused
from pstranspile.frontends.onnx.library import FUNCTIONS, OPERATORS, library
from pstranspile.frontends.onnx.reading import Reading, attribute, onnx_reader
from pstranspile.frontends.onnx.reshaping import common, expand, reshape, sizes_of

_SAME = {kind: name for name, kind in FUNCTIONS.items()} | {"HardSwish": "hard_swish", "Mish": "mish"}


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


@onnx_reader("IsNaN")
def _is_nan(node: Any, reading: Reading) -> None:
    """True for elements that do not equal themselves; Fluid's isnan is about all elements together."""
    reading.op("not_equal", {"X": node.input[0], "Y": node.input[0]}, {"Out": node.output[0]})


@onnx_reader("Round")
def _round(node: Any, reading: Reading) -> None:
    """Halves go to even numbers in ONNX, away from 0 in Fluid; that of a half of them, doubled, is even."""
    x, out = node.input[0], node.output[0]
    away, half = reading.made("round", out, X=x), reading.made("round", out, X=reading.scaled(x, 0.5))
    distance = reading.made("abs", out, X=reading.made("elementwise_sub", out, X=x, Y=away))
    is_half = reading.made("equal", out, X=distance, Y=reading.made("fill_any_like", out, {"value": 0.5}, X=x))
    reading.op("where", {"Condition": is_half, "X": reading.scaled(half, 2.0), "Y": away}, {"Out": out})


@onnx_reader("Clip")
def _clip(node: Any, reading: Reading) -> None:
    source, out = node.input[0], node.output[0]
    low, high = [*node.input[1:], "", ""][:2]
    numbers = [reading.number(name) if name else at for at, name in ((-math.inf, low), (math.inf, high))]
    if None not in numbers and reading.tensor(source).dtype.text in ("f32", "f64"):
        reading.op("clip", {"X": source}, {"Out": out}, min=numbers[0], max=numbers[1])
        return
    bounds = [(name, op) for name, op in ((low, "elementwise_max"), (high, "elementwise_min")) if name]
    for at, (name, op_type) in enumerate(bounds, 1):
        made = out if at == len(bounds) else reading.temp(out)
        reading.op(op_type, {"X": source, "Y": name}, {"Out": made})
        source = made
    if not bounds:
        reading.alias(out, source)


# Of two and more

_BINARY = {kind: name for name, kind in OPERATORS.items()}
_COMPARISONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
"""Nodes whose ops give the dims of the first operand."""


@onnx_reader(*_BINARY)
def _binary(node: Any, reading: Reading) -> None:
    (first, *others), out = list(node.input), node.output[0]
    if node.op_type == "Pow" and reading.number(others[0]) is None:  # the one node of these whose types may differ
        others = [reading.as_type(others[0], reading.tensor(first).dtype)]
    if len(others) == 1 and _by_number(node.op_type, first, others[0], out, reading):
        return
    if not others:
        reading.op("assign", {"X": first}, {"Out": out})
    for number, other in enumerate(others):
        if node.op_type in _COMPARISONS and sizes_of(first, reading) != (dims := common([first, other], reading)):
            expand(first, wide := reading.temp(first), dims, reading)
            first = wide
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
    of_number = y if right is not None else x
    if reading.tensor(other).dtype.text not in ("f32", "f64") or len(reading.dims(of_number)) > len(
        reading.dims(other)
    ):
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


@onnx_reader("Sum", "Mean")
def _sum(node: Any, reading: Reading) -> None:
    out, names = node.output[0], list(node.input)
    made = out if node.op_type == "Sum" else reading.temp(out)
    if len({reading.dims(name) for name in names}) == 1:
        reading.op("sum", {"X": names}, {"Out": made})
    else:
        first, *others = names
        for number, other in enumerate(others, 1):
            result = made if number == len(others) else reading.temp(out)
            reading.op("elementwise_add", {"X": first, "Y": other}, {"Out": result})
            first = result
    if made != out:
        reading.op("scale", {"X": made}, {"Out": out}, scale=1 / len(names))


@onnx_reader("Mod")
def _mod(node: Any, reading: Reading) -> None:
    """A remainder of floats has the sign of Y in Fluid, that of whole numbers the sign of X; ONNX has the other one."""
    (x, y), out = node.input, node.output[0]
    whole = reading.tensor(x).dtype.text not in ("f16", "f32", "f64")
    if whole == bool(attribute(node, "fmod", 0)):
        reading.op("elementwise_mod", {"X": x, "Y": y}, {"Out": out})
        return
    if not whole:
        raise Refused("it is a remainder of floats with the sign of the first; Fluid's has the sign of the second")
    more = reading.made("elementwise_add", out, X=reading.made("elementwise_mod", out, X=x, Y=y), Y=y)
    reading.op("elementwise_mod", {"X": more, "Y": y}, {"Out": out})


# Products


@onnx_reader("MatMul")
def _matmul(node: Any, reading: Reading) -> None:
    (x, y), out = node.input, node.output[0]
    dims = [sizes_of(name, reading) for name in (x, y)]
    if min(map(len, dims)) < 2:
        _with_vector(x, y, out, reading)
    elif len(dims[1]) == 2:
        reading.op("mul", {"X": x, "Y": y}, {"Out": out}, x_num_col_dims=len(dims[0]) - 1, y_num_col_dims=1)
    elif dims[0][:-2] == dims[1][:-2]:
        reading.op("matmul", {"X": x, "Y": y}, {"Out": out})
    else:
        batch = common([x, y], reading, but=2)
        for at, name in enumerate((x, y)):
            expand(name, made := reading.temp(name), [*batch, *dims[at][-2:]], reading)
            x, y = (made, y) if at == 0 else (x, made)
        reading.op("matmul", {"X": x, "Y": y}, {"Out": out})


def _with_vector(x: str, y: str, out: str, reading: Reading) -> None:
    """A product with a vector: this is a matrix of one row on the left, of one column on the right."""
    left, right = sizes_of(x, reading), sizes_of(y, reading)
    if len(left) == 1:
        reshape(x, row := reading.temp(x), [1, *left], reading)
        x = row
    if len(right) == 1:
        reshape(y, column := reading.temp(y), [*right, 1], reading)
        y = column
    product = reading.temp(out)
    node = library("onnx.helper").make_node("MatMul", [x, y], [product])
    _matmul(node, reading)
    batch = left[:-2] if len(right) == 1 else right[:-2]
    kept = [*batch, *left[-2:-1], *(right[-1:] if len(right) > 1 else [])]
    reshape(product, out, kept, reading)


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
    beta = float(attribute(node, "beta", 1.0))
    added = reading.scaled(bias[0], beta) if beta != 1 else bias[0]
    reading.op("elementwise_add", {"X": product, "Y": added}, {"Out": out})
