"""Nodes that stand for other nodes: functions of the model, those that ONNX defines ops by, and branches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from pstranspile.frontends.onnx.graph import Refused
from pstranspile.frontends.onnx.library import ELEMENT_TYPES, library
from pstranspile.frontends.onnx.reading import Reading, attribute

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
