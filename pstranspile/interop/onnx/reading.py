"""A program while it is being made of the nodes of an ONNX graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from pstranspile.interop.onnx.graph import Refused
from pstranspile.interop.onnx.library import ELEMENT_TYPES, library
from pstranspile.ir.model import Module, ParameterInfo, TensorType, Var
from pstranspile.ir.types import DType
from pstranspile.layers.draft import Draft
from pstranspile.values import NUMPY_TYPES, Array

_DTYPES = {number: dtype for dtype, number in ELEMENT_TYPES.items()}
_OF_NUMPY = {name: dtype for dtype, name in NUMPY_TYPES.items()}

_CODES = -(1 << 40)
"""From this number down stand dims that are known at run time only, in what is computed from shapes."""

_PASSING = frozenset(["Gather", "Unsqueeze", "Squeeze", "Concat", "Slice", "Identity"])
"""Nodes that leave the numbers they are given as they are, so that an unknown dim may be among these."""

_DRAWING = frozenset(["RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli"])


class Reading:
    """Which variable each value of the graph is in, and which values are known already."""

    def __init__(self, graph: Any):
        to_array = library("onnx.numpy_helper").to_array
        self.draft = Draft()
        self.known: dict[str, Array] = {held.name: to_array(held) for held in graph.initializer}
        self._weights = {*self.known}
        self._aliases: dict[str, str] = {}
        self._lost: set[str] = set()
        self._unknown: list[tuple[str, int]] = []
        self.values: dict[str, Array] = {}
        for given in graph.input:
            if given.name not in self.known:
                self._declare_input(given)

    def _declare_input(self, given: Any) -> None:
        tensor = given.type.tensor_type
        dims = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim]
        self.draft.stop_gradient.add(given.name)
        held = TensorType(dtype_of(tensor.elem_type, given.name), tuple(dims))
        self.draft.declare(Var(given.name, tensor=held, need_check_feed=True), 0)

    # Values

    def name(self, value: str) -> str:
        """The variable that holds a value. One that is known by now becomes a parameter, or a constant that is kept."""
        value = self._aliases.get(value, value)
        if value in self.known and self.draft.find(value) is None:
            self._keep(value, self.known[value])
        return value

    def _keep(self, name: str, array: Array, *, trained: bool | None = None) -> None:
        array = np.ascontiguousarray(self.plain(name)).reshape(array.shape or (1,))
        kind = _OF_NUMPY.get(array.dtype.name)
        if kind is None:
            raise Refused(f"{name} has elements of type {array.dtype.name}, which Fluid has not")
        is_float = array.dtype.kind == "f"
        is_weight = name in self._weights and is_float if trained is None else trained
        info = ParameterInfo() if is_weight else None
        var = Var(name, tensor=TensorType(kind, array.shape), persistable=True, parameter=info)
        self.draft.declare(var, 0)
        self.draft.startup.vars[name] = var
        dims = [*array.shape]
        if is_float:
            self.values[name] = array
            self.draft.startup_op("fill_constant", None, name, shape=dims, value=float("nan"), dtype=kind.value)
        else:
            wide = "int64_values" if kind is DType.INT64 else "bool_values" if kind is DType.BOOL else "int32_values"
            attrs: dict[str, Any] = {wide: [int(number) for number in array.ravel()]}
            self.draft.startup_op("assign_value", None, name, shape=dims, dtype=kind.value, **attrs)

    def statistic(self, value: str) -> str:
        """A variable that holds a known value and is not trained."""
        array = self.constant(value, "a statistic")
        name = self._aliases.get(value, value)
        if self.draft.find(name) is None:
            self._keep(name, array, trained=False)
        return name

    def constant(self, value: str, what: str) -> Array:
        """A known value. Raises Refused if it is computed at run time."""
        if value not in self.known:
            raise Refused(f"{what} is {value}, which is computed at run time; Fluid's op has it as an attribute")
        return self.known[value]

    def plain(self, value: str) -> Array:
        """A known value. Raises Refused if one of its numbers is a dim that is known at run time only."""
        array = self.known[value]
        if self.has_unknown(array):
            raise Refused(f"{value} is computed from dims that are known at run time only")
        return array

    def ints(self, value: str, what: str) -> list[int]:
        """Known whole numbers. Raises Refused if they are computed at run time."""
        self.constant(value, what)
        return [int(number) for number in np.ravel(self.plain(value))]

    def number(self, value: str) -> float | None:
        """A known value of one element, else None."""
        array = self.known.get(self._aliases.get(value, value))
        if array is None or array.size != 1 or array.dtype.kind not in "fiu" or self.has_unknown(array):
            return None
        return float(array.reshape(()))

    def is_weight(self, value: str) -> bool:
        """Whether a value is one of the model's weights, or made of them."""
        return self._aliases.get(value, value) in self._weights

    def has_unknown(self, array: Array) -> bool:
        """Whether a number of the array stands for a dim that is known at run time only."""
        return array.dtype.kind == "i" and array.dtype.itemsize == 8 and bool((array <= _CODES).any())

    def unknown_dim(self, number: int) -> tuple[str, int] | None:
        """The variable and its dim that a number stands for, None for an ordinary number."""
        return self._unknown[_CODES - number] if number <= _CODES else None

    def tensor(self, value: str) -> TensorType:
        """Element type and dims of a value. Raises Refused if they are not known."""
        found = self.draft.type_of(self.name(value))
        if found is None:
            raise Refused(f"the dims of {value} are not known")
        return found

    def dims(self, value: str) -> tuple[int, ...]:
        """Dims of a value, -1 where they are known at run time."""
        return self.tensor(value).shape

    def flat(self, value: str) -> str:
        """A known value with all of its elements along one dim."""
        array, name = self.constant(value, "a weight"), self.temp(value)
        self.known[name] = array.reshape(-1)
        if self.is_weight(value):
            self._weights.add(name)
        return name

    # Making

    def op(self, op_type: str, inputs: dict[str, Any], outputs: dict[str, Any], **attrs: object) -> None:
        """An op from values to values, by name."""
        made = {slot: [names] if isinstance(names, str) else list(names) for slot, names in outputs.items()}
        for name in (name for names in made.values() for name in names):
            if self.draft.find(name) is None:
                self.draft.declare(Var(name), 0)
        given = {slot: self._given(names) for slot, names in inputs.items()}
        self.draft.op(op_type, given, made, attrs)

    def _given(self, names: Any) -> list[str]:
        return [self.name(name) for name in ([names] if isinstance(names, str) else names) if name]

    def temp(self, of: str) -> str:
        """A name for a value in between."""
        return self.draft.names.mint(f"{of}@ONNX")

    def alias(self, value: str, source: str) -> None:
        """A value that is another one."""
        self._aliases[value] = self._aliases.get(source, source)
        if source in self.known:
            self.known[value] = self.known[source]

    def finish(self, value: str) -> str:
        """The variable of an output of the graph, under its own name."""
        if value in self._aliases or value in self.known:
            source = self._aliases.pop(value, None)
            if source is None:
                return self.name(value)
            self.known.pop(value, None)
            self.op("assign", {"X": source}, {"Out": value})
        return value

    def module(self) -> Module:
        """The program that computes the graph, and the one that sets what it keeps."""
        return self.draft.module()

    # What is known before it runs

    def fold(self, node: Any) -> bool:
        """Whether a node's results are known: they are computed now."""
        if node.op_type == "Shape":
            self._fold_shape(node)
            return True
        names: list[str] = [name for name in node.input if name]
        given = [self._aliases.get(name, name) for name in names]
        if node.op_type in _DRAWING or any(name not in self.known for name in given):
            return False
        if any(self.has_unknown(self.known[name]) for name in given) and node.op_type not in _PASSING:
            return False
        arrays = {name: self.known[held] for name, held in zip(names, given, strict=True)}
        results = library("onnx.reference").ReferenceEvaluator(node).run(None, arrays)
        for name, result in zip(node.output, results, strict=True):
            self.known[name] = np.asarray(result)
            if any(value in self._weights for value in given):
                self._weights.add(name)
        return True

    def _fold_shape(self, node: Any) -> None:
        source = self.name(node.input[0]) if node.input[0] not in self.known else ""
        dims = self.dims(node.input[0]) if source else self.known[node.input[0]].shape
        numbers: list[int] = []
        for axis, dim in enumerate(dims):
            if dim < 0:
                self._unknown.append((source, axis))
                dim = _CODES - (len(self._unknown) - 1)
            numbers.append(dim)
        start, end = attribute(node, "start", 0), attribute(node, "end", len(numbers))
        self.known[node.output[0]] = np.array(numbers[start:end], "int64")

    # What could not be read

    def lose(self, node: Any) -> None:
        """The results of a node are not there."""
        self._lost.update(node.output)

    def is_lost(self, node: Any) -> bool:
        """Whether a node depends on one that could not be read; then its results are lost as well."""
        if self._lost.isdisjoint(node.input):
            return False
        self.lose(node)
        return True


def attribute(node: Any, name: str, default: Any = None) -> Any:
    """An attribute of a node as a plain value, `default` where it has none."""
    for held in node.attribute:
        if held.name == name:
            value = library("onnx.helper").get_attribute_value(held)
            return value.decode() if isinstance(value, bytes) else value
    return default


def axes_of(node: Any, reading: Reading, at: int = 1) -> list[int] | None:
    """The axes of a node, which stand in an attribute or in the input `at`; None if it has none."""
    if len(node.input) > at and node.input[at]:
        return reading.ints(node.input[at], "its axes")
    axes = attribute(node, "axes")
    return None if axes is None else list(axes)


def dtype_of(number: int, name: str) -> DType:
    """The element type that ONNX has this number for. Raises Refused if Fluid has none."""
    if number not in _DTYPES:
        raise Refused(f"{name} has elements of ONNX's type {number}, which Fluid has not")
    return _DTYPES[number]


Reader: TypeAlias = Callable[[Any, Reading], None]
"""Adds the ops of a node to a program. Raises Refused."""

READERS: dict[str, Reader] = {}
"""The reader of each node type that Fluid's ops can express."""


def onnx_reader(*node_types: str) -> Callable[[Reader], Reader]:
    """Registers the reader of node types."""

    def register(reader: Reader) -> Reader:
        for node_type in node_types:
            READERS[node_type] = reader
        return reader

    return register


def positive(axes: Sequence[int], rank: int) -> list[int]:
    """Axes counted from 0."""
    return [axis % rank for axis in axes]
