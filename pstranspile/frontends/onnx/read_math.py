"""Reads nodes of arithmetic as Fluid's ops: functions element by element, products, reductions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pstranspile.frontends.layers.draft import Refused
from pstranspile.frontends.onnx.graph import FUNCTIONS, OPERATORS, library
from pstranspile.frontends.onnx.read_tensors import common, expand, reshape, sizes_of, transpose, with_x_shape
from pstranspile.frontends.onnx.reading import GraphReading, attribute, axes_of, is_code, onnx_reader, positive
from pstranspile.ir.types import DType

# Nodes that reduce many numbers to one, as Fluid's ops: sums, means, norms, and softmax.

_REDUCTIONS = {
    "ReduceSum": "reduce_sum",
    "ReduceMean": "reduce_mean",
    "ReduceMax": "reduce_max",
    "ReduceMin": "reduce_min",
    "ReduceProd": "reduce_prod",
    "ReduceL1": "reduce_sum",
    "ReduceL2": "reduce_sum",
    "ReduceSumSquare": "reduce_sum",
    "ReduceLogSum": "reduce_sum",
    "ReduceLogSumExp": "reduce_sum",
}
_BEFORE = {"ReduceL1": "abs", "ReduceL2": "square", "ReduceSumSquare": "square"}
_AFTER = {"ReduceL2": "sqrt", "ReduceLogSum": "log"}


@onnx_reader(*_REDUCTIONS)
def _reduce(node: Any, reading: GraphReading) -> None:
    kind, source, out = node.op_type, node.input[0], node.output[0]
    rank, axes = len(reading.dims(source)), axes_of(node, reading)
    chosen = positive(axes, rank) if axes else [*range(rank)]
    if (not axes and attribute(node, "noop_with_empty_axes", 0)) or not rank:
        chosen = []
    keep = bool(attribute(node, "keepdims", 1))
    if not keep and len(chosen) == rank:
        reading.scalars.add(out)
    if kind == "ReduceLogSumExp" and chosen:
        _log_sum_exp(source, out, chosen, keep, reading)
        return
    given = _function(_BEFORE.get(kind), source, reading)
    last = _AFTER.get(kind)
    if not chosen:
        reading.alias(out, _function(last, given, reading))
        return
    made = reading.temp(out) if last else out
    _append_reduction(_REDUCTIONS[kind], given, made, chosen, keep, reading)
    if last:
        reading.op(last, {"X": made}, {"Out": out})


def _function(op_type: str | None, value: str, reading: GraphReading) -> str:
    if op_type is None:
        return value
    return reading.op_result(op_type, value, X=value)


def _append_reduction(op_type: str, source: str, out: str, axes: list[int], keep: bool, reading: GraphReading) -> None:
    whole = len(axes) == len(reading.dims(source))
    reading.op(op_type, {"X": source}, {"Out": out}, keep_dim=keep, reduce_all=whole, dim=axes)


def _log_sum_exp(source: str, out: str, axes: list[int], keep: bool, reading: GraphReading) -> None:
    """LogSumExp: largest + log(sum(exp(x - largest))), in which no power overflows."""
    largest, rest = _less_largest(source, axes, reading)
    summed = reading.temp(out)
    _append_reduction("reduce_sum", _function("exp", rest, reading), summed, axes, True, reading)
    wide = out if keep else reading.temp(out)
    reading.op("elementwise_add", {"X": _function("log", summed, reading), "Y": largest}, {"Out": wide})
    if not keep:  # removes the reduced dims, which have one element
        _append_reduction("reduce_sum", wide, out, axes, False, reading)


def _less_largest(source: str, axes: list[int], reading: GraphReading) -> tuple[str, str]:
    """(the largest elements along axes, the source minus these)."""
    _append_reduction("reduce_max", source, largest := reading.temp(source), axes, True, reading)
    return largest, reading.op_result("elementwise_sub", source, X=source, Y=largest)


@onnx_reader("Softmax", "LogSoftmax")
def _softmax(node: Any, reading: GraphReading) -> None:
    source, out, axis = node.input[0], node.output[0], attribute(node, "axis", -1)
    if node.op_type == "Softmax":
        reading.op("softmax", {"X": source}, {"Out": out}, axis=axis)
        return
    axes = positive([axis], len(reading.dims(source)))
    rest, summed = _less_largest(source, axes, reading)[1], reading.temp(out)
    _append_reduction("reduce_sum", _function("exp", rest, reading), summed, axes, True, reading)
    reading.op("elementwise_sub", {"X": rest, "Y": _function("log", summed, reading)}, {"Out": out})


@onnx_reader("LpNormalization")
def _lp_normalization(node: Any, reading: GraphReading) -> None:
    source, out = node.input[0], node.output[0]
    axes = positive([attribute(node, "axis", -1)], len(reading.dims(source)))
    first = attribute(node, "p", 2) == 1
    powers = _function("abs" if first else "square", source, reading)
    _append_reduction("reduce_sum", powers, norm := reading.temp(out), axes, True, reading)
    norm = norm if first else _function("sqrt", norm, reading)
    bound = reading.op_result("clip", out, {"min": _TINY, "max": math.inf}, X=norm)
    reading.op("elementwise_div", {"X": source, "Y": bound}, {"Out": out})


_TINY = 1e-30
"""The least divisor of a row; a row of zeros stays zero."""


@onnx_reader("Hardmax")
def _hardmax(node: Any, reading: GraphReading) -> None:
    source, out = node.input[0], node.output[0]
    rank = len(reading.dims(source))
    axis: int = attribute(node, "axis", -1) % rank
    width = reading.dims(source)[axis]
    at = reading.op_result("arg_max", out, {"axis": axis, "keepdims": False}, X=source)
    hot = reading.op_result("one_hot_v2", out, {"depth": width}, X=at)
    if axis == rank - 1:
        reading.alias(out, hot)
    else:
        transpose(hot, out, [*range(axis), rank - 1, *range(axis, rank - 1)], reading)


# Einsum as products of matrices: dims that both terms have are contracted or belong to the batch, others stay.


class _Term(NamedTuple):
    """A value, with a letter for each of its dims."""

    value: str
    letters: str


@onnx_reader("Einsum")
def _einsum(node: Any, reading: GraphReading) -> None:
    einsum(attribute(node, "equation"), list(node.input), node.output[0], reading)


def einsum(equation: str, values: list[str], out: str, reading: GraphReading) -> None:
    """Sets `out` to the result of an equation such as `bi,ij->bj` for these values."""
    terms, wanted = _parse_equation(equation, values, reading)
    while len(terms) > 1:
        first, second, *others = terms
        later = {*wanted, *(letter for term in others for letter in term.letters)}
        kept = [letter for letter in dict.fromkeys(first.letters + second.letters) if letter in later]
        terms = [_product(first, second, "".join(kept), reading), *others]
    (term,) = terms
    term = _sum_over_letters(term, [letter for letter in term.letters if letter not in wanted], reading)
    if not wanted:
        reading.scalars.add(out)
    reading.alias(out, _transpose_term(term, wanted, reading).value)


def _parse_equation(equation: str, values: list[str], reading: GraphReading) -> tuple[list[_Term], str]:
    """(terms of an equation, letters of its result). An ellipsis is written as capital Greek letters."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    spread = 0
    terms: list[_Term] = []
    for letters, value in zip(left.split(","), values, strict=True):
        rank = len(reading.dims(value))
        more = rank - len(letters.replace("...", ""))
        spread = max(spread, more if "..." in letters else 0)
        letters = letters.replace("...", _ELLIPSIS[len(_ELLIPSIS) - more :] if more > 0 else "")
        if len({*letters}) != len(letters) or len(letters) != rank:
            raise Refused(f"its equation {equation} takes a diagonal, or does not fit its inputs")
        terms.append(_Term(value, letters))
    if arrow:
        return terms, right.replace("...", _ELLIPSIS[len(_ELLIPSIS) - spread :] if spread else "")
    every = "".join(term.letters for term in terms)
    once = sorted(letter for letter in {*every} if every.count(letter) == 1 and letter not in _ELLIPSIS)
    return terms, (_ELLIPSIS[len(_ELLIPSIS) - spread :] if spread else "") + "".join(once)


_ELLIPSIS = "ΑΒΓΔΕΖΗΘ"


def _sum_over_letters(term: _Term, letters: Sequence[str], reading: GraphReading) -> _Term:
    if not letters:
        return term
    made, dims = reading.temp(term.value), [term.letters.index(letter) for letter in letters]
    whole = len(letters) == len(term.letters)
    if whole:
        reading.scalars.add(made)
    reading.op("reduce_sum", {"X": term.value}, {"Out": made}, dim=dims, keep_dim=False, reduce_all=whole)
    return _Term(made, "".join(letter for letter in term.letters if letter not in letters))


def _transpose_term(term: _Term, letters: str, reading: GraphReading) -> _Term:
    if term.letters == letters:
        return term
    order = [term.letters.index(letter) for letter in letters]
    transpose(term.value, made := reading.temp(term.value), order, reading)
    return _Term(made, letters)


def _product(first: _Term, second: _Term, wanted: str, reading: GraphReading) -> _Term:
    """The product of two terms, summed over the letters that are not in `wanted`."""
    first, second = (
        _sum_over_letters(term, [letter for letter in term.letters if letter not in wanted + other.letters], reading)
        for term, other in ((first, second), (second, first))
    )
    shared = [letter for letter in first.letters if letter in second.letters]
    sizes = dict(zip(second.letters, sizes_of(second.value, reading), strict=True))
    first_sizes = dict(zip(first.letters, sizes_of(first.value, reading), strict=True))
    for letter in shared:
        if first_sizes[letter] != sizes[letter] and not is_code(first_sizes[letter]) and not is_code(sizes[letter]):
            raise Refused(f"a dim of it has {first_sizes[letter]} elements in one input and {sizes[letter]} in another")
    summed = [letter for letter in shared if letter not in wanted]
    if not summed:
        return _spread(first, second, wanted, reading)
    batch = "".join(letter for letter in shared if letter in wanted)
    rows = "".join(letter for letter in first.letters if letter not in shared)
    columns = "".join(letter for letter in second.letters if letter not in shared)
    inner = "".join(summed)
    left = _matrices(_transpose_term(first, batch + rows + inner, reading), len(batch), len(rows), reading)
    right = _matrices(_transpose_term(second, batch + inner + columns, reading), len(batch), len(inner), reading)
    product = reading.op_result("matmul", left, X=left, Y=right)
    sizes |= first_sizes
    made = _Term(reading.temp(product), batch + rows + columns)
    if len(rows) == len(columns) == 1:
        made = made._replace(value=product)
    else:
        reshape(product, made.value, [sizes[letter] for letter in made.letters], reading)
        if not made.letters:
            reading.scalars.add(made.value)
    return made


def _matrices(term: _Term, batch: int, rows: int, reading: GraphReading) -> str:
    """A value reshaped to matrices: the first `batch` dims, the next `rows` dims as one, the rest as one."""
    sizes = sizes_of(term.value, reading)
    parts = [sizes[batch : batch + rows], sizes[batch + rows :]]
    if [len(part) for part in parts] == [1, 1]:
        return term.value
    dims = sizes[:batch]
    for part in parts:
        size = 1
        for dim in part:
            size = reading.sizes.binary_result("Mul", size, dim) if is_code(size) or is_code(dim) else size * dim
        dims.append(size)
    reshape(term.value, made := reading.temp(term.value), dims, reading)
    return made


def _spread(first: _Term, second: _Term, wanted: str, reading: GraphReading) -> _Term:
    """The product element by element; a term gets a dim of size 1 for each letter that only the other term has."""
    values: list[str] = []
    for term in (first, second):
        value = _transpose_term(term, "".join(letter for letter in wanted if letter in term.letters), reading).value
        axes = [at for at, letter in enumerate(wanted) if letter not in term.letters]
        if axes and term.letters:
            with_x_shape("unsqueeze2", value, made := reading.temp(value), reading, axes=axes)
            value = made
        values.append(value)
    return _Term(reading.op_result("elementwise_mul", first.value, X=values[0], Y=values[1]), wanted)


# Operators of `ai.onnx.ml`, which models of classical machine learning use: linear models and their scaling.


def _attribute_parameter(
    node: Any, name: str, out: str, reading: GraphReading, *, dims: tuple[int, ...] | None = None
) -> str:
    """A parameter that holds the numbers in an attribute."""
    array = np.array(attribute(node, name, ()), "float32")
    return reading.weight(f"{out}.{name}", array if dims is None else array.reshape(dims))


def _as_floats(value: str, reading: GraphReading) -> str:
    return reading.as_type(value, DType.FP32)


def _linear(node: Any, targets: int, out: str, reading: GraphReading) -> None:
    width = len(attribute(node, "coefficients")) // max(targets, 1)
    weight = _attribute_parameter(node, "coefficients", node.output[-1], reading, dims=(targets, width))
    product = reading.op_result("matmul", out, {"transpose_Y": True}, X=_as_floats(node.input[0], reading), Y=weight)
    if len(attribute(node, "intercepts", ())) == 0:
        reading.alias(out, product)
        return
    bias = _attribute_parameter(node, "intercepts", node.output[-1], reading)
    reading.op("elementwise_add", {"X": product, "Y": bias}, {"Out": out})


def _apply_post_transform(kind: str, source: str, out: str, reading: GraphReading) -> None:
    ops = {"SOFTMAX": "softmax", "LOGISTIC": "sigmoid"}
    if kind == "NONE":
        reading.alias(out, source)
    elif kind in ops:
        reading.op(ops[kind], {"X": source}, {"Out": out})
    else:
        raise Refused(f"its post_transform is {kind}")


@onnx_reader("ai.onnx.ml.LinearRegressor")
def _regressor(node: Any, reading: GraphReading) -> None:
    out = node.output[0]
    _linear(node, attribute(node, "targets", 1), made := reading.temp(out), reading)
    _apply_post_transform(attribute(node, "post_transform", "NONE"), made, out, reading)


@onnx_reader("ai.onnx.ml.LinearClassifier")
def _classifier(node: Any, reading: GraphReading) -> None:
    label, scores = node.output
    labels = list(attribute(node, "classlabels_ints", ()))
    if not labels:
        raise Refused("its classes are texts; give the classifier numbers for them")
    rows = len(attribute(node, "intercepts", ())) or len(labels)
    _linear(node, rows, made := reading.temp(scores), reading)
    kind = attribute(node, "post_transform", "NONE")
    _apply_post_transform(kind, made, wide := reading.temp(scores), reading)
    if rows == 1:  # with one column, the two classes are decided by its sign
        one = 1.0 if kind in ("LOGISTIC", "SOFTMAX") else 0.0
        other = reading.scaled(wide, -1.0, one)
        reading.op("concat", {"X": [other, wide]}, {"Out": scores}, axis=1)
    else:
        reading.alias(scores, wide)
    at = reading.op_result("arg_max", label, {"axis": 1, "keepdims": False}, X=scores)
    if labels == [*range(len(labels))]:
        reading.alias(label, at)
    else:
        reading.known_values[table := reading.temp(label)] = np.array(labels, "int64")
        reading.op("gather", {"X": table, "Index": at}, {"Out": label})


@onnx_reader("ai.onnx.ml.Scaler")
def _scaler(node: Any, reading: GraphReading) -> None:
    source, out = _as_floats(node.input[0], reading), node.output[0]
    shift = np.array(attribute(node, "offset", (0,)), "float32")
    factor = np.array(attribute(node, "scale", (1,)), "float32")
    reading.known_values[offset := reading.temp(out)] = shift
    reading.known_values[scale := reading.temp(out)] = factor
    made = reading.op_result("elementwise_sub", out, X=source, Y=offset)
    reading.op("elementwise_mul", {"X": made, "Y": scale}, {"Out": out})


@onnx_reader("ai.onnx.ml.ArrayFeatureExtractor")
def _columns(node: Any, reading: GraphReading) -> None:
    (source, index), out = node.input, node.output[0]
    rank = len(reading.dims(source))
    flat = [int(number) for number in reading.constant(index, "its columns").reshape(-1)]
    reading.known_values[chosen := reading.temp(index)] = np.array(flat, "int64")
    if rank == 1:
        row = reading.op_result("gather", out, {"overwrite": False}, X=source, Index=chosen)
        with_x_shape("unsqueeze2", row, out, reading, axes=[0])
    else:
        reading.op("index_select", {"X": source, "Index": chosen}, {"Out": out}, dim=rank - 1)


@onnx_reader("ai.onnx.ml.FeatureVectorizer")
def _vectorizer(node: Any, reading: GraphReading) -> None:
    parts = [_as_floats(name, reading) for name in node.input]
    reading.op("concat", {"X": parts}, {"Out": node.output[0]}, axis=1)


@onnx_reader("ai.onnx.ml.ZipMap")
def _refuse_zip_map(node: Any, reading: GraphReading) -> None:
    raise Refused("it makes a map of classes; export the model with zipmap=False")


_SAME = {kind: name for name, kind in FUNCTIONS.items()} | {"HardSwish": "hard_swish", "Mish": "mish"}


@onnx_reader(*_SAME)
def _equivalent_op(node: Any, reading: GraphReading) -> None:
    reading.op(_SAME[node.op_type], {"X": node.input[0]}, {"Out": node.output[0]})


_WITH_ATTRIBUTES: dict[str, Callable[[Any], tuple[str, dict[str, object]]]] = {
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


@onnx_reader("LeakyRelu")
def _leaky_relu(node: Any, reading: GraphReading) -> None:
    """The gradient of the op goes by the sign of Out, which is not that of X where the slope is negative; that of
    relu(X) - alpha * relu(-X) goes by X.
    """
    x, out, alpha = node.input[0], node.output[0], attribute(node, "alpha", 0.01)
    if alpha >= 0:
        reading.op("leaky_relu", {"X": x}, {"Out": out}, alpha=alpha)
        return
    below = reading.op_result("relu", out, X=reading.op_result("scale", out, {"scale": -1.0}, X=x))
    parts = {"X": reading.op_result("relu", out, X=x), "Y": reading.op_result("scale", out, {"scale": alpha}, X=below)}
    reading.op("elementwise_sub", parts, {"Out": out})


@onnx_reader(*_WITH_ATTRIBUTES)
def _with_attributes(node: Any, reading: GraphReading) -> None:
    op_type, attrs = _WITH_ATTRIBUTES[node.op_type](node)
    reading.op(op_type, {"X": node.input[0]}, {"Out": node.output[0]}, **attrs)


@onnx_reader("IsNaN")
def _is_nan(node: Any, reading: GraphReading) -> None:
    """IsNaN as x != x, element by element; Fluid's isnan tests all elements together."""
    reading.op("not_equal", {"X": node.input[0], "Y": node.input[0]}, {"Out": node.output[0]})


@onnx_reader("Round")
def _round(node: Any, reading: GraphReading) -> None:
    """Round. In ONNX halves are rounded to even numbers, in Fluid away from 0; so for halves the result is 2 * round(x
    / 2).
    """
    x, out = node.input[0], node.output[0]
    away, half = reading.op_result("round", out, X=x), reading.op_result("round", out, X=reading.scaled(x, 0.5))
    distance = reading.op_result("abs", out, X=reading.op_result("elementwise_sub", out, X=x, Y=away))
    is_half = reading.op_result(
        "equal", out, X=distance, Y=reading.op_result("fill_any_like", out, {"value": 0.5}, X=x)
    )
    reading.op("where", {"Condition": is_half, "X": reading.scaled(half, 2.0), "Y": away}, {"Out": out})


@onnx_reader("Clip")
def _clip(node: Any, reading: GraphReading) -> None:
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


# Functions of two and more values

_BINARY = {kind: name for name, kind in OPERATORS.items()}
_COMPARISONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
"""Types of nodes for which Fluid's ops declare the result with the dims of the first operand."""


@onnx_reader(*_BINARY)
def _binary(node: Any, reading: GraphReading) -> None:
    (first, *others), out = list(node.input), node.output[0]
    if node.op_type == "Pow" and reading.number(others[0]) is None:  # the only node whose types may differ
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


def _by_number(kind: str, x: str, y: str, out: str, reading: GraphReading) -> bool:
    """Appends the op with an attribute if one of the two is a constant number, as in Fluid's own programs. Returns
    whether it did.
    """
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
def _sum(node: Any, reading: GraphReading) -> None:
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
def _mod(node: Any, reading: GraphReading) -> None:
    """Mod. In Fluid a remainder of floats has the sign of Y, that of whole numbers the sign of X; ONNX also has the
    other ones.
    """
    (x, y), out = node.input, node.output[0]
    whole = reading.tensor(x).dtype.text not in ("f16", "f32", "f64")
    if whole == bool(attribute(node, "fmod", 0)):
        reading.op("elementwise_mod", {"X": x, "Y": y}, {"Out": out})
        return
    if not whole:
        raise Refused("it is a remainder of floats with the sign of the first; Fluid's has the sign of the second")
    more = reading.op_result("elementwise_add", out, X=reading.op_result("elementwise_mod", out, X=x, Y=y), Y=y)
    reading.op("elementwise_mod", {"X": more, "Y": y}, {"Out": out})


# Products


@onnx_reader("MatMul")
def _matmul(node: Any, reading: GraphReading) -> None:
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


def _with_vector(x: str, y: str, out: str, reading: GraphReading) -> None:
    """MatMul with a vector, which is a matrix of one row on the left, of one column on the right."""
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
def _gemm(node: Any, reading: GraphReading) -> None:
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
