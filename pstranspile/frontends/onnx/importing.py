"""Imports an ONNX model as a module: a forward network, whose parameters have no usable values until the returned ones
are set.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from pstranspile.frontends.layers.draft import OutOfRange, Refused
from pstranspile.frontends.onnx.graph import ELEMENT_TYPES, library
from pstranspile.frontends.onnx.models import open_model, symbols_of, values_of, version_of, weights_of
from pstranspile.frontends.onnx.reading import (
    NUMBER_BYTES,
    READERS,
    GraphReading,
    Reader,
    attribute,
    combine_arrays,
    equal,
    has_codes,
)
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Note, error, first_findings, raise_errors
from pstranspile.ir.model import Location, Module
from pstranspile.ops.shapes import ShapeError
from pstranspile.runtime.values import Array

# Constant folding: values that are known before the model runs are computed while it is read.


# The cost of computing a node of known values, estimated before it is computed: bytes of results, and work on elements.


class Cost(NamedTuple):
    """A cost: the bytes of results, and the work as a number of elements that are read, written or multiplied."""

    size: int
    work: int


class _ResultSize(NamedTuple):
    """A result of a node: its dims, and the bytes of an element."""

    dims: tuple[int, ...]
    width: int


Work: TypeAlias = "Callable[[Any, Sequence[Array], int], int]"
"""A function for the work of a node, from the node, its inputs, and the number of elements of inputs and results
together.
"""

_EACH = (
    *("Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitwiseAnd", "BitwiseNot", "BitwiseOr"),
    *("BitwiseXor", "BitShift", "Cast", "CastLike", "Ceil", "Celu", "Clip", "Concat", "ConstantOfShape", "Cos", "Cosh"),
    *("CumSum", "DepthToSpace", "DequantizeLinear", "Div", "Dropout", "Elu", "Equal", "Erf", "Exp", "Expand"),
    *("EyeLike", "Flatten", "Floor", "Gather", "GatherElements", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid"),
    *(
        "HardSwish",
        "Identity",
        "IsInf",
        "IsNaN",
        "LeakyRelu",
        "Less",
        "LessOrEqual",
        "Log",
        "LogSoftmax",
        "Max",
        "Mean",
    ),
    *("Min", "Mish", "Mod", "Mul", "Neg", "Not", "OneHot", "Or", "Pad", "Pow", "Range", "Reciprocal", "ReduceL1"),
    *("ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"),
    *("ReduceSumSquare", "Relu", "Reshape", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Slice"),
    *("Softmax", "Softplus", "Softsign", "SpaceToDepth", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tan", "Tanh"),
    *("ThresholdedRelu", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where", "Xor"),
)
"""Types of nodes that process each element of their inputs and results a few times."""

_SLOW = {
    "ArgMax": 8,
    "ArgMin": 8,
    "TopK": 64,
    "GatherND": 1 << 10,
    "ScatterElements": 1 << 10,
    "ScatterND": 1 << 10,
    "Resize": 1 << 15,
}
"""The number of times that each element is processed, for nodes whose reference implementation sorts, or loops over
elements in Python.
"""


def _product(_: Any, arrays: Sequence[Array], handled: int) -> int:
    """The work of a matrix product: the handled elements, plus a multiplication for each element of the result and of a
    row of the first factor.
    """
    first, second = arrays[0], arrays[1]
    width = first.shape[-1] if first.ndim else 1
    batch = math.prod(_spread(first.shape[:-2], second.shape[:-2]))
    rows = first.shape[-2] if first.ndim > 1 else 1
    columns = second.shape[-1] if second.ndim > 1 else 1
    return handled + _as_slow(arrays) * batch * rows * width * columns


def _gemm(node: Any, arrays: Sequence[Array], handled: int) -> int:
    turned = [bool(attribute(node, name, 0)) for name in ("transA", "transB")]
    first, second = (array.T if way else array for array, way in zip(arrays, turned, strict=False))
    return _product(node, [first, second], handled)


def _einsum(node: Any, arrays: Sequence[Array], handled: int) -> int:
    """The work of an Einsum: a product for each combination of all letters; each dim of an ellipsis
    counts as a letter.
    """
    terms = attribute(node, "equation").replace(" ", "").partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, array in zip(terms, arrays, strict=False):
        before, dots, after = term.partition("...")
        spread = array.ndim - len(before) - len(after) if dots else 0
        letters = [*before, *(f"...{spread - at}" for at in range(spread)), *after]
        for letter, dim in zip(letters, array.shape, strict=False):
            sizes[letter] = max(sizes.get(letter, 1), dim)
    return handled + _as_slow(arrays) * len(arrays) * math.prod(sizes.values())


def _as_slow(arrays: Sequence[Array]) -> int:
    """The factor by which numpy is slower for types of numbers for which BLAS libraries have no products."""
    return 1 if all(array.dtype.name in ("float32", "float64") for array in arrays) else 16


def _spread(left: Sequence[int], right: Sequence[int]) -> list[int]:
    rank = max(len(left), len(right))
    wide = [[*[1] * (rank - len(dims)), *dims] for dims in (left, right)]
    return [max(pair) for pair in zip(*wide, strict=True)]


_WORK: dict[str, Work] = {
    **dict.fromkeys(_EACH, lambda _, __, handled: handled),
    **{kind: (lambda _, __, handled, times=times: times * handled) for kind, times in _SLOW.items()},
    "MatMul": _product,
    "Gemm": _gemm,
    "Einsum": _einsum,
}


def cost_of(node: Any, arrays: Mapping[str, Array], version: int) -> Cost | None:
    """The cost of computing a node; None if it can't be determined before, or for nodes that are never computed."""
    inputs = [arrays[name] for name in node.input if name]
    if node.op_type == "Constant":
        return _of_constant(node)
    if node.op_type not in _WORK:
        return None
    made = _results(node, arrays, version)
    if made is None:
        return None
    counts = [math.prod(held.dims) for held in made]
    size = sum(count * held.width for count, held in zip(counts, made, strict=True))
    handled = sum(array.size for array in inputs) + sum(counts)
    return Cost(size, _WORK[node.op_type](node, inputs, handled))


def _of_constant(node: Any) -> Cost:
    """The cost of a constant: that of its size in the model, times 8 since numbers may be packed there."""
    for held in node.attribute:
        if held.name == "sparse_value":
            raise Refused("its value is a sparse tensor; Fluid's are dense")
    size = 8 * node.ByteSize()
    return Cost(size, size)


_INFERRED_OF = 4096
"""The most elements of an input whose values, such as dims, are given to ONNX for inferring the dims of results."""


def _results(node: Any, arrays: Mapping[str, Array], version: int) -> list[_ResultSize] | None:
    """The results of a node as ONNX infers them; None if it can't infer them."""
    onnx = library()
    types = {name: onnx.helper.make_tensor_type_proto(_number(array), array.shape) for name, array in arrays.items()}
    small = {
        name: onnx.numpy_helper.from_array(array)
        for name, array in arrays.items()
        if array.size <= _INFERRED_OF and array.dtype.kind in "iufb"
    }
    sets = [onnx.helper.make_opsetid("", version)]
    try:
        schema = onnx.defs.get_schema(node.op_type, version)
        inferred = onnx.shape_inference.infer_node_outputs(schema, node, types, small, opset_imports=sets)
    except (onnx.defs.SchemaError, onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError):
        return None
    results: list[_ResultSize] = []
    for name in filter(None, node.output):
        tensor = inferred[name].tensor_type if name in inferred else None
        if tensor is None or not tensor.HasField("shape"):
            return None
        if any(not dim.HasField("dim_value") or dim.dim_value < 0 for dim in tensor.shape.dim):
            return None
        results.append(_ResultSize(tuple(dim.dim_value for dim in tensor.shape.dim), _width(tensor.elem_type)))
    return results


def _width(kind: int) -> int:
    if kind == library().TensorProto.STRING:
        return 64  # a text by itself
    return library("onnx.helper").tensor_dtype_to_np_dtype(kind).itemsize


def _number(array: Array) -> int:
    return library("onnx.helper").np_dtype_to_tensor_dtype(array.dtype)


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
"""Types of nodes that copy numbers of these inputs unchanged, so that these may contain codes."""


def fold(node: Any, reading: GraphReading) -> bool:
    """Computes a node if its inputs are known, and returns whether its results are known. Raises Refused for nodes that
    can't be computed.
    """
    if node.op_type in ("Shape", "Size"):
        return _measure(node, reading)
    names: list[str] = [name for name in node.input if name]
    given = [reading.resolve_alias(name) for name in names]
    if any(name not in reading.known_values for name in given):
        return False
    arrays = {name: reading.known_values[held] for name, held in zip(names, given, strict=True)}
    if any(has_codes(array) for array in arrays.values()) and not _passes(node, arrays):
        made = _with_codes(node, [arrays[name] for name in names], reading)
        if made is not None:
            reading.learn(node.output[0], made, names)
        return made is not None
    cost = cost_of(node, arrays, reading.version)
    if cost is None or not reading.budget.affords(*cost):
        reading.postpone(node)
        return False
    for name, result in zip(node.output, compute_node(node, arrays), strict=False):
        if not isinstance(result, np.ndarray | np.generic):
            raise Refused("it makes no tensor")
        reading.learn(name, np.asarray(result), names)
    return True


def compute_node(node: Any, arrays: Mapping[str, Array]) -> Sequence[Any]:
    """The results of a node for these inputs, as ONNX's reference implementation computes them. Raises Refused if it
    fails.
    """
    evaluator = library("onnx.reference").ReferenceEvaluator(node)
    try:
        with np.errstate(all="ignore"):
            return evaluator.run(None, arrays)
    except Exception as problem:  # numpy may raise anything for damaged nodes
        raise Refused(f"what it computes of constants can't be computed: {problem}") from None


def _passes(node: Any, arrays: Mapping[str, Array]) -> bool:
    if node.op_type in ("Concat", "Identity"):
        return True
    if node.op_type == "Cast":
        return attribute(node, "to") == 7
    places = _PASSING.get(node.op_type, ())
    return not any(has_codes(arrays[name]) for at, name in enumerate(node.input) if name and at not in places)


def _with_codes(node: Any, arrays: list[Array], reading: GraphReading) -> Array | None:
    """The result of a node on whole numbers, some of which are codes; None if it must be computed at run time."""
    if len(arrays) == 2 and all(array.dtype.kind == "i" for array in arrays):
        left, right = arrays
        _take_numbers(np.broadcast_shapes(left.shape, right.shape), reading)
        return (
            equal(left, right) if node.op_type == "Equal" else combine_arrays(node.op_type, left, right, reading.sizes)
        )
    if node.op_type in ("ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin") and arrays[0].ndim == 1:
        pair = {"ReduceProd": "Mul", "ReduceSum": "Add", "ReduceMax": "Max", "ReduceMin": "Min"}[node.op_type]
        _take_numbers(arrays[0].shape, reading)
        made: Array | None = arrays[0][:1]
        for at in range(1, arrays[0].size):
            assert made is not None
            made = combine_arrays(pair, made, arrays[0][at : at + 1], reading.sizes)
        return made if made is None or attribute(node, "keepdims", 1) else made.reshape(())
    if node.op_type == "Neg":
        _take_numbers(arrays[0].shape, reading)
        return combine_arrays("Mul", arrays[0], np.array(-1), reading.sizes)
    return None


def _take_numbers(dims: Sequence[int], reading: GraphReading) -> None:
    """Charges the budget for whole numbers that are computed one by one."""
    count = math.prod(dims)
    reading.budget.take(NUMBER_BYTES * count, _ONE_BY_ONE * count)


_ONE_BY_ONE = 1 << 10
"""The work of a computation with a number that may be a code, relative to an element of an array."""


def _measure(node: Any, reading: GraphReading) -> bool:
    source, out = node.input[0], node.output[0]
    dims = [reading.size(source, axis) for axis in range(len(reading.dims(source)))]
    if node.op_type == "Shape":
        start, end = attribute(node, "start", 0), attribute(node, "end", len(dims))
        reading.known_values[out] = np.array(dims[start:end], "int64")
        return True
    made = np.array(1, "int64")
    for dim in dims:
        product = combine_arrays("Mul", made, np.array(dim, "int64"), reading.sizes)
        assert product is not None
        made = product
    reading.known_values[out] = made
    return True


# Nodes that are expanded into other nodes: functions of the model, functions by which ONNX defines ops, and branches.

Read: TypeAlias = Callable[[Any, GraphReading], None]


class Bodies:
    """The functions of a model, and the functions that are currently being expanded."""

    def __init__(self, model: Any, version: int):
        self._functions = {(made.domain, made.name): made for made in model.functions}
        self._version = version
        self._open_functions: list[tuple[str, str]] = []

    def read(self, node: Any, reading: GraphReading, read: Read) -> bool:
        """Expands a node that is a function into the nodes of the function's body, and reads these. Returns False for
        other nodes. Raises Refused if one of the nodes can't be read.
        """
        key = (node.domain, node.op_type)
        body = self._functions.get(key) or (self._of_schema(node, reading) if key[0] in ("", "ai.onnx") else None)
        if body is None:
            return False
        if key in self._open_functions:
            raise Refused("it is a function that stands for itself")
        self._open_functions.append(key)
        try:
            self._inline(node, body, reading, read)
        finally:
            self._open_functions.pop()
        return True

    def _defaults(self, node: Any) -> dict[str, Any]:
        """The default values of an op's attributes in ONNX."""
        if (node.domain, node.op_type) in self._functions:
            return {}
        held = library().defs.get_schema(node.op_type, self._version).attributes
        return {name: spec.default_value for name, spec in held.items() if spec.default_value.name}

    def _of_schema(self, node: Any, reading: GraphReading) -> Any:
        onnx = library()
        try:
            schema = onnx.defs.get_schema(node.op_type, self._version)
        except onnx.defs.SchemaError:
            return None
        if schema.has_function:
            return schema.function_body
        if not schema.has_context_dependent_function:
            return None
        types = [_type_of(name, reading).SerializeToString() for name in node.input]
        made = schema.get_context_dependent_function(node.SerializeToString(), types)
        return onnx.FunctionProto.FromString(made)

    def _inline(self, node: Any, body: Any, reading: GraphReading, read: Read) -> None:
        names: dict[str, str] = {"": ""}
        for inner, outer in zip(body.input, [*node.input, *[""] * len(body.input)], strict=False):
            names[inner] = outer
        for inner, outer in zip(body.output, node.output, strict=False):
            if outer:
                names[inner] = outer
        given = {held.name: held for held in node.attribute}
        defaults = {**self._defaults(node), **{held.name: held for held in body.attribute_proto}}
        for held in body.node:
            made = _rename_node(held, names, node, reading)
            _fill(made, {**defaults, **given})
            _read_within(made, reading, read)


def _read_within(node: Any, reading: GraphReading, read: Read) -> None:
    try:
        read(node, reading)
    except Refused as reason:
        if str(reason).startswith("of what it stands for"):
            raise
        raise Refused(f"of what it stands for, {node.op_type}: {reason}") from None


def _rename_node(node: Any, names: dict[str, str], outer: Any, reading: GraphReading) -> Any:
    made = library().NodeProto.FromString(node.SerializeToString())
    for at, name in enumerate(node.input):
        made.input[at] = names.get(name, name)
    for at, name in enumerate(node.output):
        if name and name not in names:
            names[name] = reading.temp(next(iter(outer.output)))
        made.output[at] = names.get(name, "")
    return made


def _fill(node: Any, given: Mapping[str, Any]) -> None:
    """Replaces attributes that refer to attributes of the function by their values, and removes those
    without a value.
    """
    attributes: list[Any] = []
    for node_attribute in node.attribute:
        if node_attribute.ref_attr_name:
            if node_attribute.ref_attr_name not in given:
                continue
            copy = library().AttributeProto()
            copy.CopyFrom(given[node_attribute.ref_attr_name])
            copy.name = node_attribute.name
            attributes.append(copy)
        else:
            attributes.append(node_attribute)
    made = library().NodeProto(attribute=attributes)
    del node.attribute[:]
    node.attribute.extend(made.attribute)


def _type_of(value: str, reading: GraphReading) -> Any:
    onnx = library()
    if not value:
        return onnx.TypeProto()
    name = reading.resolve_alias(value)
    if name in reading.known_values:
        array = reading.known_values[name]
        return onnx.helper.make_tensor_type_proto(onnx.helper.np_dtype_to_tensor_dtype(array.dtype), list(array.shape))
    dims = [dim if dim >= 0 else None for dim in reading.dims(value)]
    return onnx.helper.make_tensor_type_proto(ELEMENT_TYPES[reading.tensor(value).dtype], dims)


def branch_of(node: Any, reading: GraphReading) -> Sequence[Any]:
    """The nodes of the branch that an If takes. Raises Refused if a run decides it."""
    condition = reading.known_values.get(reading.resolve_alias(node.input[0]))
    if condition is None or condition.size != 1:
        raise Refused("a run decides which branch it takes; export the model with one of them")
    graph = attribute(node, "then_branch" if bool(condition.reshape(())) else "else_branch")
    to_array = library("onnx.numpy_helper").to_array
    for held in graph.initializer:
        reading.budget.take(8 * held.ByteSize())
        reading.learn(held.name, to_array(held), [])
    return [*graph.node, *_outputs(node, graph)]


def _outputs(node: Any, graph: Any) -> list[Any]:
    make = library("onnx.helper").make_node
    return [make("Identity", [made.name], [name]) for made, name in zip(graph.output, node.output, strict=True) if name]


# Nodes that are always refused, each with the reason.

_REASONS: dict[str, tuple[str, ...]] = {
    "its numbers are quantised; import the model as it was before": (
        *("QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul"),
        *("ConvInteger", "MatMulInteger"),
    ),
    "it repeats a graph of its own; Fluid's loops are made another way": ("Loop", "Scan", "SequenceMap"),
    "it handles a sequence of tensors or a value that may be missing; the values of a program are tensors": (
        *("SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength"),
        *("SplitToSequence", "ConcatFromSequence", "Optional", "OptionalGetElement", "OptionalHasElement"),
    ),
    "it handles text; the values of a program are numbers": (
        *("StringConcat", "StringNormalizer", "StringSplit", "RegexFullMatch", "TfIdfVectorizer"),
    ),
    "its result has as many elements as a run finds, which Fluid tells by sequences of rows": (
        *("NonZero", "Compress", "Unique", "NonMaxSuppression"),
    ),
    "it draws numbers at random": (
        *("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"),
    ),
}
_OF_TYPE = {kind: reason for reason, kinds in _REASONS.items() for kind in kinds}


def reason_against(node: Any) -> str:
    """Why a node is refused; "" if it may be read."""
    return _OF_TYPE.get(node.op_type, "") if node.domain in ("", "ai.onnx") else ""


_MALFORMED = (ArithmeticError, LookupError, TypeError, ValueError)
"""The exceptions that readers raise for attributes that ONNX's own checks accept, such as an unknown mode."""


class ImportedModel(NamedTuple):
    """A module, the values of its persistable variables, and the variables of the model's outputs."""

    module: Module
    values: Mapping[str, Array]
    outputs: tuple[str, ...]


def from_onnx(data: bytes, file: str = "<onnx>", folder: str = "") -> ImportedModel:
    """The network in an ONNX model. Variables have the names of the model's values.

    Weights become parameters, other constants become persistable variables (`weights_of` separates the two). The
    startup program sets only whole numbers; all other values are NaN there, so that a result computed without the
    returned values (`--init`) is recognisable. Weights in separate files are read from `folder`. Raises
    DiagnosticError: `onnx-model` for a damaged file, `onnx-op` for every node that Fluid's ops can't express.
    """
    model = open_model(data, file, folder)
    findings: list[Diagnostic] = []
    try:
        held = values_of(model)
        weights, version = weights_of(model, held), version_of(model)
        reading = GraphReading(model.graph, held, symbols_of(model), weights, version=version, size=len(data))
    except Refused as reason:
        raise DiagnosticError([error("onnx-op", str(reason), Location(file))]) from None
    except ValueError as problem:  # names that are not UTF-8
        raise DiagnosticError([error("onnx-model", f"a damaged model: {problem}", Location(file))]) from None
    bodies = Bodies(model, version)
    for number, node in enumerate(model.graph.node):
        if reading.is_lost(node):
            continue
        try:
            _read(node, reading, bodies)
        except (Refused, ShapeError, *_MALFORMED) as reason:
            name = f" {node.name}" if node.name else ""
            if isinstance(reason, _MALFORMED) and not isinstance(reason, OutOfRange | ShapeError):
                reason = f"it is not as ONNX defines it: {reason}"
            notes = [Note(f"it makes {', '.join(filter(None, node.output))}")]
            message = f"node {number} {node.op_type}{name}: {reason}"
            findings.append(error("onnx-op", message, Location(file), notes=notes))
            reading.lose(node)
    raise_errors(first_findings(findings))
    try:
        outputs = tuple(reading.finish(value.name) for value in model.graph.output)
    except Refused as reason:
        raise DiagnosticError([error("onnx-op", f"an output: {reason}", Location(file))]) from None
    return ImportedModel(reading.module(), reading.values, outputs)


def readers() -> Mapping[str, Reader]:
    """The reader of each node type that Fluid's ops can express."""
    for name in ("math", "tensors", "images", "recurrent"):
        importlib.import_module(f"pstranspile.frontends.onnx.read_{name}")
    return READERS


_RESHAPING = frozenset(
    [*("Unsqueeze", "Reshape", "Expand", "Range", "ConstantOfShape", "Tile", "OneHot", "Gather", "Flatten", "TopK")]
)
"""Types of nodes whose results may have dims although their inputs are scalars."""


def _read(node: Any, reading: GraphReading, bodies: Bodies) -> None:
    if reason := reason_against(node):
        raise Refused(reason)
    if node.op_type == "If" and not node.domain:
        for held in branch_of(node, reading):
            _read_inside(held, reading, bodies)
        return
    own = node.domain in ("", "ai.onnx")
    if own and fold(node, reading):
        return
    reader = readers().get(node.op_type if own else f"{node.domain}.{node.op_type}")
    if reader is not None:
        reader(node, reading)
    elif not bodies.read(node, reading, lambda held, to: _read_inside(held, to, bodies)):
        raise Refused("no op of Fluid computes this here" if own else f"it is an operator of {node.domain}")
    given = [name for name in node.input if name]
    if given and node.op_type not in _RESHAPING and all(map(reading.is_scalar, given)):
        reading.scalars.update(node.output)


def _read_inside(node: Any, reading: GraphReading, bodies: Bodies) -> None:
    """Reads a node of a function or branch."""
    reading.budget.enter()
    try:
        _read(node, reading, bodies)
    finally:
        reading.budget.leave()
