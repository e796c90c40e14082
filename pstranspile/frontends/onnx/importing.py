"""An ONNX model as a module: a forward network, whose parameters start from nothing until they are given values."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from pstranspile.frontends.layers.draft import OutOfRange
from pstranspile.frontends.onnx.folding import fold
from pstranspile.frontends.onnx.graph import Refused
from pstranspile.frontends.onnx.library import ELEMENT_TYPES, library
from pstranspile.frontends.onnx.models import opened, symbols_of, values_of, version_of, weights_of
from pstranspile.frontends.onnx.reading import READERS, Reader, Reading, attribute
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Note, error, first_findings, raise_errors
from pstranspile.ir.model import Location, Module
from pstranspile.ops.shapes import ShapeError
from pstranspile.runtime.values import Array

# Nodes that stand for other nodes: functions of the model, those that ONNX defines ops by, and branches.

Read: TypeAlias = Callable[[Any, Reading], None]


class Bodies:
    """The functions of a model, and those that nodes are being read in."""

    def __init__(self, model: Any, version: int):
        self._functions = {(made.domain, made.name): made for made in model.functions}
        self._version = version
        self._inside: list[tuple[str, str]] = []

    def read(self, node: Any, reading: Reading, read: Read) -> bool:
        """Whether a node stands for others, which are read then. Raises Refused if one of these can't be."""
        key = (node.domain, node.op_type)
        body = self._functions.get(key) or (self._of_schema(node, reading) if key[0] in ("", "ai.onnx") else None)
        if body is None:
            return False
        if key in self._inside:
            raise Refused("it is a function that stands for itself")
        self._inside.append(key)
        try:
            self._inline(node, body, reading, read)
        finally:
            self._inside.pop()
        return True

    def _defaults(self, node: Any) -> dict[str, Any]:
        """What the attributes of an op of ONNX are that a node does not give."""
        if (node.domain, node.op_type) in self._functions:
            return {}
        held = library().defs.get_schema(node.op_type, self._version).attributes
        return {name: spec.default_value for name, spec in held.items() if spec.default_value.name}

    def _of_schema(self, node: Any, reading: Reading) -> Any:
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

    def _inline(self, node: Any, body: Any, reading: Reading, read: Read) -> None:
        names: dict[str, str] = {"": ""}
        for inner, outer in zip(body.input, [*node.input, *[""] * len(body.input)], strict=False):
            names[inner] = outer
        for inner, outer in zip(body.output, node.output, strict=False):
            if outer:
                names[inner] = outer
        given = {held.name: held for held in node.attribute}
        defaults = {**self._defaults(node), **{held.name: held for held in body.attribute_proto}}
        for held in body.node:
            made = _renamed(held, names, node, reading)
            _fill(made, {**defaults, **given})
            _read_within(made, reading, read)


def _read_within(node: Any, reading: Reading, read: Read) -> None:
    try:
        read(node, reading)
    except Refused as reason:
        if str(reason).startswith("of what it stands for"):
            raise
        raise Refused(f"of what it stands for, {node.op_type}: {reason}") from None


def _renamed(node: Any, names: dict[str, str], outer: Any, reading: Reading) -> Any:
    made = library().NodeProto.FromString(node.SerializeToString())
    for at, name in enumerate(node.input):
        made.input[at] = names.get(name, name)
    for at, name in enumerate(node.output):
        if name and name not in names:
            names[name] = reading.temp(next(iter(outer.output)))
        made.output[at] = names.get(name, "")
    return made


def _fill(node: Any, given: Mapping[str, Any]) -> None:
    """Gives attributes that refer to those of the function what these are, and drops those that it is not given."""
    kept: list[Any] = []
    for held in node.attribute:
        if held.ref_attr_name:
            if held.ref_attr_name not in given:
                continue
            copy = library().AttributeProto()
            copy.CopyFrom(given[held.ref_attr_name])
            copy.name = held.name
            kept.append(copy)
        else:
            kept.append(held)
    made = library().NodeProto(attribute=kept)
    del node.attribute[:]
    node.attribute.extend(made.attribute)


def _type_of(value: str, reading: Reading) -> Any:
    onnx = library()
    if not value:
        return onnx.TypeProto()
    name = reading.resolved(value)
    if name in reading.known:
        array = reading.known[name]
        return onnx.helper.make_tensor_type_proto(onnx.helper.np_dtype_to_tensor_dtype(array.dtype), list(array.shape))
    dims = [dim if dim >= 0 else None for dim in reading.dims(value)]
    return onnx.helper.make_tensor_type_proto(ELEMENT_TYPES[reading.tensor(value).dtype], dims)


def branch_of(node: Any, reading: Reading) -> Sequence[Any]:
    """The nodes of the branch that an If takes. Raises Refused if a run decides it."""
    condition = reading.known.get(reading.resolved(node.input[0]))
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


# Nodes that are refused whatever they compute, each with the reason.

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
"""What readers raise for attributes that ONNX's own checks let pass, such as a mode that there is not."""


class Imported(NamedTuple):
    """A module, the values of its persistable variables, and the variables that the model's outputs are."""

    module: Module
    values: Mapping[str, Array]
    outputs: tuple[str, ...]


def from_onnx(data: bytes, file: str = "<onnx>", folder: str = "") -> Imported:
    """The network in an ONNX model. Variables have the names that values have there.

    Weights become parameters, other constants variables that are kept (`weights_of` gives the two). The startup program
    sets whole numbers; all other values are NaN there, so that a result without the values given here (`--init`) shows.
    Weights in separate files are read from `folder`. Raises DiagnosticError: `onnx-model` for a damaged file, `onnx-op`
    for every node that Fluid's ops can't express.
    """
    model = opened(data, file, folder)
    findings: list[Diagnostic] = []
    try:
        held = values_of(model)
        weights, version = weights_of(model, held), version_of(model)
        reading = Reading(model.graph, held, symbols_of(model), weights, version=version, size=len(data))
    except Refused as reason:
        raise DiagnosticError([error("onnx-op", str(reason), Location(file))]) from None
    except ValueError as problem:  # names that are no text
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
    return Imported(reading.module(), reading.values, outputs)


def readers() -> Mapping[str, Reader]:
    """The reader of each node type that Fluid's ops can express."""
    for name in ("math", "tensors", "images", "recurrent"):
        importlib.import_module(f"pstranspile.frontends.onnx.read_{name}")
    return READERS


_RESHAPING = frozenset(
    [*("Unsqueeze", "Reshape", "Expand", "Range", "ConstantOfShape", "Tile", "OneHot", "Gather", "Flatten", "TopK")]
)
"""Nodes that make values with dims of values without."""


def _read(node: Any, reading: Reading, bodies: Bodies) -> None:
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


def _read_inside(node: Any, reading: Reading, bodies: Bodies) -> None:
    """Reads a node of a function or branch."""
    reading.budget.enter()
    try:
        _read(node, reading, bodies)
    finally:
        reading.budget.leave()
