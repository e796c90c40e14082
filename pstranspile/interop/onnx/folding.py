"""What is known of a model before it runs: computed while it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pstranspile.interop.onnx.graph import Refused
from pstranspile.interop.onnx.library import library
from pstranspile.interop.onnx.reading import Reading, attribute
from pstranspile.interop.onnx.sizes import combined, equal, has_codes
from pstranspile.values import Array

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

_LARGEST = 1 << 28
"""The most elements that are computed while a model is read. What has more is computed when it runs, if at all."""

_NEVER = frozenset(
    [
        *("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"),
        *("If", "Loop", "Scan", "SequenceMap", "DynamicQuantizeLinear", "QuantizeLinear"),
    ]
)
"""Nodes that are not computed while a model is read."""


def fold(node: Any, reading: Reading) -> bool:
    """Whether a node's results are known: they are computed now. Raises Refused for nodes that can't be computed."""
    if node.op_type in ("Shape", "Size"):
        return _measure(node, reading)
    names: list[str] = [name for name in node.input if name]
    given = [reading.resolved(name) for name in names]
    if node.op_type in _NEVER or any(name not in reading.known for name in given):
        return False
    arrays = {name: reading.known[held] for name, held in zip(names, given, strict=True)}
    if any(has_codes(array) for array in arrays.values()) and not _passes(node, arrays):
        made = _with_codes(node, [arrays[name] for name in names], reading)
        if made is not None:
            reading.learn(node.output[0], made, names)
        return made is not None
    if not _is_small(node, arrays):
        return False
    for name, result in zip(node.output, _computed(node, arrays), strict=False):
        if not isinstance(result, np.ndarray | np.generic):
            raise Refused("it makes no tensor")
        reading.learn(name, np.asarray(result), names)
    return True


def _computed(node: Any, arrays: Mapping[str, Array]) -> Sequence[Any]:
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
        return equal(left, right) if node.op_type == "Equal" else combined(node.op_type, left, right, reading.sizes)
    if node.op_type in ("ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin") and arrays[0].ndim == 1:
        pair = {"ReduceProd": "Mul", "ReduceSum": "Add", "ReduceMax": "Max", "ReduceMin": "Min"}[node.op_type]
        made: Array | None = arrays[0][:1]
        for at in range(1, arrays[0].size):
            assert made is not None
            made = combined(pair, made, arrays[0][at : at + 1], reading.sizes)
        return made if made is None or attribute(node, "keepdims", 1) else made.reshape(())
    if node.op_type == "Neg":
        return combined("Mul", arrays[0], np.array(-1), reading.sizes)
    return None


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


def _is_small(node: Any, arrays: Mapping[str, Array]) -> bool:
    """Whether what a node makes of known values is small enough to be computed while the model is read."""
    held = sum(array.size for array in arrays.values())
    if node.op_type in ("Constant", "Reshape", "Transpose", "Slice", "Identity", "Cast", "Unsqueeze", "Squeeze"):
        return True
    dims = _dims_made(node, arrays)
    return all(size <= max(_LARGEST, 4 * held) for size in dims)


def _dims_made(node: Any, arrays: Mapping[str, Array]) -> list[int]:
    """The number of elements of each result of a node, as ONNX infers them; none for results that it can't infer."""
    onnx = library()
    types = {name: onnx.helper.make_tensor_type_proto(_number(array), array.shape) for name, array in arrays.items()}
    small = {
        name: onnx.numpy_helper.from_array(array)
        for name, array in arrays.items()
        if array.size <= 4096 and array.dtype.kind in "iufb"
    }
    try:
        schema = onnx.defs.get_schema(node.op_type, _VERSION)
        inferred = onnx.shape_inference.infer_node_outputs(schema, node, types, small)
    except (onnx.defs.SchemaError, onnx.shape_inference.InferenceError, RuntimeError):
        return []
    counts: list[int] = []
    for made in inferred.values():
        dims = [dim.dim_value for dim in made.tensor_type.shape.dim]
        counts.append(int(np.prod([float(dim) for dim in dims], dtype="float64")) if dims else 1)
    return counts


_VERSION = 23


def _number(array: Array) -> int:
    return library("onnx.helper").np_dtype_to_tensor_dtype(array.dtype)
