"""What is known of a model before it runs: computed while it is read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pstranspile.frontends.onnx.budget import NUMBER_BYTES
from pstranspile.frontends.onnx.costs import cost_of
from pstranspile.frontends.onnx.graph import Refused
from pstranspile.frontends.onnx.library import library
from pstranspile.frontends.onnx.reading import Reading, attribute
from pstranspile.frontends.onnx.sizes import combined, equal, has_codes
from pstranspile.runtime.values import Array

_PASSING = {
    "Gather": (0,),
    "Unsqueeze": (0,),
    "Squeeze": (0,),
    "Slice": (0,),
    "Reshape": (0,),
    "Expand": (0,),
    "Transpose": (0,),
    "Flatten": (0,),
    "Split": (0,),
    "Where": (1, 2),
}
"""Nodes that leave numbers in these inputs as they are, so that codes may be among these."""


def fold(node: Any, reading: Reading) -> bool:
    """Whether a node's results are known: they are computed now. Raises Refused for nodes that can't be computed."""
    if node.op_type in ("Shape", "Size"):
        return _measure(node, reading)
    names: list[str] = [name for name in node.input if name]
    given = [reading.resolved(name) for name in names]
    if any(name not in reading.known for name in given):
        return False
    arrays = {name: reading.known[held] for name, held in zip(names, given, strict=True)}
    if any(has_codes(array) for array in arrays.values()) and not _passes(node, arrays):
        made = _with_codes(node, [arrays[name] for name in names], reading)
        if made is not None:
            reading.learn(node.output[0], made, names)
        return made is not None
    cost = cost_of(node, arrays, reading.version)
    if cost is None or not reading.budget.affords(*cost):
        reading.postpone(node)
        return False
    for name, result in zip(node.output, computed(node, arrays), strict=False):
        if not isinstance(result, np.ndarray | np.generic):
            raise Refused("it makes no tensor")
        reading.learn(name, np.asarray(result), names)
    return True


def computed(node: Any, arrays: Mapping[str, Array]) -> Sequence[Any]:
    """What a node makes of arrays, as ONNX's reference computes it. Raises Refused if it can't."""
    evaluator = library("onnx.reference").ReferenceEvaluator(node)
    try:
        with np.errstate(all="ignore"):
            return evaluator.run(None, arrays)
    except Exception as problem:  # whatever numpy makes of damaged nodes
        raise Refused(f"what it computes of constants can't be computed: {problem}") from None


def _passes(node: Any, arrays: Mapping[str, Array]) -> bool:
    if node.op_type in ("Concat", "Identity"):
        return True
    if node.op_type == "Cast":
        return attribute(node, "to") == 7
    places = _PASSING.get(node.op_type, ())
    return not any(has_codes(arrays[name]) for at, name in enumerate(node.input) if name and at not in places)


def _with_codes(node: Any, arrays: list[Array], reading: Reading) -> Array | None:
    """The result of a node on whole numbers of which some are codes; None if it must be computed at run time."""
    if len(arrays) == 2 and all(array.dtype.kind == "i" for array in arrays):
        left, right = arrays
        _take_numbers(np.broadcast_shapes(left.shape, right.shape), reading)
        return equal(left, right) if node.op_type == "Equal" else combined(node.op_type, left, right, reading.sizes)
    if node.op_type in ("ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin") and arrays[0].ndim == 1:
        pair = {"ReduceProd": "Mul", "ReduceSum": "Add", "ReduceMax": "Max", "ReduceMin": "Min"}[node.op_type]
        _take_numbers(arrays[0].shape, reading)
        made: Array | None = arrays[0][:1]
        for at in range(1, arrays[0].size):
            assert made is not None
            made = combined(pair, made, arrays[0][at : at + 1], reading.sizes)
        return made if made is None or attribute(node, "keepdims", 1) else made.reshape(())
    if node.op_type == "Neg":
        _take_numbers(arrays[0].shape, reading)
        return combined("Mul", arrays[0], np.array(-1), reading.sizes)
    return None


def _take_numbers(dims: Sequence[int], reading: Reading) -> None:
    """Takes from the budget what whole numbers cost that are computed one by one."""
    count = math.prod(dims)
    reading.budget.take(NUMBER_BYTES * count, _ONE_BY_ONE * count)


_ONE_BY_ONE = 1 << 10
"""The work of computing with a number that may be a code, beside that of an element of an array."""


def _measure(node: Any, reading: Reading) -> bool:
    source, out = node.input[0], node.output[0]
    dims = [reading.size(source, axis) for axis in range(len(reading.dims(source)))]
    if node.op_type == "Shape":
        start, end = attribute(node, "start", 0), attribute(node, "end", len(dims))
        reading.known[out] = np.array(dims[start:end], "int64")
        return True
    made = np.array(1, "int64")
    for dim in dims:
        product = combined("Mul", made, np.array(dim, "int64"), reading.sizes)
        assert product is not None
        made = product
    reading.known[out] = made
    return True
