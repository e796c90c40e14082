"""Access to the package onnx, and an ONNX graph while it is built from a program's ops."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, TypeAlias

import numpy as np

from pstranspile.frontends.layers.draft import Refused
from pstranspile.ir.diagnostics import DiagnosticError, error, installing
from pstranspile.ir.model import Op, Program, Var
from pstranspile.ir.types import DType, VarKind
from pstranspile.runtime.values import NUMPY_TYPES, Array

OPSET = 17
"""The version of ONNX's operators that models are written in: the first with LayerNormalization."""

IR_VERSION = 8
"""The version of the file format that belongs to `OPSET`."""

ELEMENT_TYPES: dict[DType, int] = {
    DType.FP32: 1,
    DType.UINT8: 2,
    DType.INT8: 3,
    DType.INT16: 5,
    DType.INT32: 6,
    DType.INT64: 7,
    DType.BOOL: 9,
    DType.FP16: 10,
    DType.FP64: 11,
}
"""ONNX's number of each element type (`TensorProto.DataType`)."""


FUNCTIONS = {
    "relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "abs": "Abs",
    "ceil": "Ceil", "floor": "Floor", "cos": "Cos", "sin": "Sin", "acos": "Acos", "asin": "Asin", "atan": "Atan",
    "erf": "Erf", "reciprocal": "Reciprocal", "sign": "Sign", "softplus": "Softplus", "softsign": "Softsign",
    "logical_not": "Not",
}  # fmt: skip
"""Fluid's functions of one input X without attributes, and their names in ONNX."""

OPERATORS = {
    "elementwise_add": "Add", "elementwise_sub": "Sub", "elementwise_mul": "Mul", "elementwise_div": "Div",
    "elementwise_max": "Max", "elementwise_min": "Min", "elementwise_pow": "Pow", "equal": "Equal",
    "less_than": "Less", "less_equal": "LessOrEqual", "greater_than": "Greater", "greater_equal": "GreaterOrEqual",
    "logical_and": "And", "logical_or": "Or", "logical_xor": "Xor",
}  # fmt: skip
"""Fluid's functions of X and Y, and their names in ONNX."""


def library(part: str = "onnx") -> Any:
    """The package, or a part of it such as `onnx.helper`. Raises DiagnosticError if it is not installed."""
    try:
        return importlib.import_module(part)
    except ImportError:
        message = f"ONNX models need the package onnx: {installing('onnx')}"
        raise DiagnosticError([error("onnx-library", message)]) from None


class Graph:
    """The nodes and constants of an ONNX graph, and the ONNX value that each variable currently has.

    In ONNX a value is defined once, so a variable that ops write again gets another value.
    """

    def __init__(self, program: Program, values: Mapping[str, Array]):
        self._program = program
        self._values = values
        self._current: dict[str, str] = {}
        self._used_names: set[str] = set(program.main_block.vars)
        self._numbers = count()
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.variable_names: dict[str, str] = {}
        """A mapping from the name of each value to the variable that it belongs to."""

    # Variables

    def var(self, name: str) -> Var:
        """The declaration of a variable. Raises Refused for a variable that holds no tensor, or sequences of rows."""
        var = self._program.find_var(name)
        if var is None or var.tensor is None or var.kind is not VarKind.LOD_TENSOR:
            what = "is not declared" if var is None else "holds no tensor"
            raise Refused(f"%{name} {what}, and values of ONNX are tensors", name)
        if var.tensor.lod_level:
            raise Refused(f"%{name} holds sequences of rows (lod_level={var.tensor.lod_level}), ONNX has none", name)
        if var.tensor.dtype not in ELEMENT_TYPES:
            raise Refused(f"%{name} has elements of type {var.tensor.dtype.text}, ONNX has none", name)
        return var

    def dims(self, name: str) -> tuple[int, ...]:
        """The declared dims of a variable; -1 for dims known only at run time."""
        return tuple(max(dim, -1) for dim in self.var(name).shape)

    def rank(self, name: str) -> int:
        """The number of dims of a variable."""
        return len(self.dims(name))

    def dtype(self, name: str) -> DType:
        """The element type of a variable."""
        tensor = self.var(name).tensor
        assert tensor is not None
        return tensor.dtype

    def feed(self, name: str) -> None:
        """Records that a variable is an input of the graph."""
        self.var(name)
        self._current[name] = name

    def read(self, name: str) -> str:
        """The name of a variable's current value. Raises Refused if nothing has defined one."""
        var = self.var(name)
        if name not in self._current:
            if name not in self._values:
                why = "no value of it is given" if var.persistable else "no op that ONNX can express makes it"
                raise Refused(f"it reads %{name}, and {why}", name)
            array = np.ascontiguousarray(self._values[name], NUMPY_TYPES[self.dtype(name)])
            self.initializers.append(library("onnx.numpy_helper").from_array(array, name))
            self._current[name] = name
        return self._current[name]

    def input(self, op: Op, slot: str) -> str:
        """The name of the current value of the variable in a slot. Raises Refused if the slot is empty."""
        name = op.input(slot)
        if name is None:
            raise Refused(f"it has no variable in its slot {slot}")
        return self.read(name)

    def optional(self, op: Op, slot: str) -> str:
        """The name of the current value of the variable in a slot, "" if the slot is empty."""
        return self.input(op, slot) if op.inputs.get(slot) else ""

    # Nodes

    def node(self, kind: str, inputs: Sequence[str], outputs: Sequence[str] = (), **attrs: Any) -> str:
        """Adds a node, whose results become the values of the variables `outputs`. Returns the name of the first
        result.
        """
        results = [self._define(name) for name in outputs] or [self.fresh()]
        given = {name: value for name, value in attrs.items() if value is not None}
        self.nodes.append(library("onnx.helper").make_node(kind, list(inputs), results, **given))
        return results[0]

    def fresh(self) -> str:
        """A new name for a value."""
        name = next(name for number in self._numbers if (name := f"onnx_{number}") not in self._used_names)
        self._used_names.add(name)
        return name

    def _define(self, variable: str) -> str:
        self.var(variable)
        name = self.fresh() if variable in self._current else variable
        self._current[variable] = name
        self.variable_names[name] = variable
        return name

    def constant(self, value: Any, dtype: DType | str = DType.INT64) -> str:
        """The name of a constant, given as a number or nested lists of numbers. Equal constants of one dtype share a
        name.
        """
        kind = dtype if isinstance(dtype, str) else NUMPY_TYPES[dtype]
        array = np.array(value, kind)
        key = (kind, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.fresh()
            self.initializers.append(library("onnx.numpy_helper").from_array(array, self._constants[key]))
        return self._constants[key]

    def like(self, value: float, variable: str) -> str:
        """The name of a constant with the element type of a variable."""
        return self.constant(value, self.dtype(variable))


Writer: TypeAlias = Callable[[Op, Graph], None]
"""A function that adds the nodes of an op to a graph. Raises Refused."""

WRITERS: dict[str, Writer] = {}
"""The writer of each op type that ONNX can express."""


def onnx_writer(*op_types: str) -> Callable[[Writer], Writer]:
    """Registers the writer of op types."""

    def register(writer: Writer) -> Writer:
        for op_type in op_types:
            WRITERS[op_type] = writer
        return writer

    return register


def refuse_given(op: Op, *slots: str) -> None:
    """Raises Refused if one of these slots has a variable: ONNX needs to know sizes before the run."""
    for slot in slots:
        for name in op.inputs.get(slot, ()):
            raise Refused(f"its {slot} comes as the variable %{name}; ONNX is given what the attributes say", name)
