"""A program while it is made of the nodes of a graph of ATen operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from pstranspile.frontends.onnx.graph import Refused
from pstranspile.frontends.onnx.reading import Dim, Reading, number_made
from pstranspile.frontends.torch.capture import Captured, user_line
from pstranspile.ir.attributes import Double, float32
from pstranspile.ir.model import Origin, ParameterInfo, TensorType, Var
from pstranspile.ir.types import DType
from pstranspile.runtime.values import Array

_DTYPES = {
    "float32": DType.FP32,
    "float64": DType.FP64,
    "float16": DType.FP16,
    "int64": DType.INT64,
    "int32": DType.INT32,
    "int16": DType.INT16,
    "int8": DType.INT8,
    "uint8": DType.UINT8,
    "bool": DType.BOOL,
}
"""Element types of programs by torch's names."""

_NUMPY = {DType.FP32: "float32", DType.FP64: "float64", DType.INT64: "int64", DType.INT32: "int32", DType.BOOL: "bool"}
"""numpy's names of the element types that constants of a program have."""

FLOATS = (DType.FP32, DType.FP64)
"""The element types that are computed with."""


def dtype_of(kind: Any) -> DType:
    """The element type that torch calls `kind`. Raises Refused for one that programs have not."""
    name = str(kind).removeprefix("torch.")
    if name not in _DTYPES:
        raise Refused(f"its elements are {name}; the values of a program are f32, f64, whole numbers or flags")
    return _DTYPES[name]


_EXPRESSIONS = {
    "Add": "Add",
    "Mul": "Mul",
    "Pow": "Pow",
    "FloorDiv": "Div",
    "CleanDiv": "Div",
    "Mod": "Mod",
    "PythonMod": "Mod",
    "Max": "Max",
    "Min": "Min",
}
"""The operations of expressions of sizes, by the names of sympy's and torch's classes."""


class Tracing(Reading):
    """The variables that the values of a graph are in. Parameters, buffers and the batch have the user's names."""

    def __init__(self, captured: Captured, arrays: Mapping[str, Array]):
        super().__init__(_Empty(), {}, {}, version=0, size=sum(array.nbytes for array in arrays.values()))
        self.captured = captured
        self.arrays = arrays
        self.names: dict[str, str] = {}
        """The variable of each node of one tensor."""
        self.parts: dict[str, list[str | None]] = {}
        """The variables of each node of several tensors; None for those that are not made."""
        self.integers: dict[str, int] = {}
        """The whole number of each node of one, or the code of it."""
        self._shapes: dict[str, tuple[Any, ...]] = {}
        self._dims: dict[str, int] = {}
        self._constants: dict[tuple[DType, str], str] = {}
        self._taken: set[str] = {*captured.parameters.values(), *captured.buffers.values(), *captured.inputs.values()}

    # Nodes

    def begin(self, node: Any) -> str:
        """The variable that the value of a node goes to; ops made from now on come from the node's line."""
        self.come_from(node)
        name = node.name if node.name not in self._taken else self.draft.names.mint(node.name)
        self._taken.add(name)
        self.names[node.name] = name
        self.note(name, node.meta.get("val"))
        return name

    def come_from(self, node: Any) -> None:
        """Has ops that are made from now on come from the line of a node; from none of None."""
        location = user_line(node.meta.get("stack_trace")) if node is not None else None
        self.draft.origin = Origin("main", 0, -1, location) if location is not None else None

    def note(self, name: str, value: Any) -> None:
        """Keeps the dims that torch has found for a value."""
        if hasattr(value, "shape"):
            self._shapes[name] = tuple(value.shape)
            if not value.shape:
                self.scalars.add(name)

    def declare(self, name: str, value: Any, *, fed: bool = False) -> None:
        """Declares a variable of the dims and the element type of a tensor."""
        shape = tuple(-1 if _is_symbol(dim) else int(dim) for dim in value.shape) or (1,)
        tensor = TensorType(dtype_of(value.dtype), shape)
        if fed:
            self.draft.stop_gradient.add(name)
        self.draft.declare(Var(name, tensor=tensor, need_check_feed=fed), 0)
        self.note(name, value)

    def keep(self, name: str, array: Array, value: Any, *, trained: bool, frozen: bool = False) -> None:
        """Declares a parameter or a buffer, which keeps its value from step to step."""
        self.keep_array(name, array, trained=trained)
        if frozen:
            var = self.draft.blocks[0].vars[name]
            self.draft.declare(var._replace(parameter=ParameterInfo(trainable=False)), 0)
        if not trained or frozen:
            self.draft.stop_gradient.add(name)
        self.note(name, value)

    def value(self, arg: Any) -> str:
        """The variable of an argument that is a tensor."""
        if arg.name not in self.names:
            raise Refused(f"it takes {arg.name}, a number that is computed in a way that is not translated")
        return self.names[arg.name]

    def size(self, value: str, axis: int) -> int:
        """The size of a value along an axis, or the code of it."""
        shape = self._shapes.get(value)
        if shape is None or axis >= len(shape):
            return super().size(value, axis)
        dim = shape[axis]
        if not _is_symbol(dim):
            return int(dim)
        return self.code_of(dim.node.expr, value, axis)

    def code_of(self, expr: Any, value: str, axis: int) -> int:
        """The code of a number that torch has as an expression of sizes: that of a value along an axis.

        Raises Refused for one that neither that value has, which is still to be made, nor others give.
        """
        text = str(expr)
        if text not in self._dims:
            made = None if expr.is_Symbol else self._computed(expr)
            if made is None:
                if self.draft.find(self.resolved(value)) is None:
                    raise Refused(f"it has a dim of {text} elements, which is not known before it runs")
                made = self.sizes.code(Dim(self.name(value), axis))
            self._dims[text] = made
        return self._dims[text]

    def _computed(self, expr: Any) -> int | None:
        """The number or code of an expression of sizes that are known by now; None if it has others."""
        if expr.is_Integer:
            return int(expr)
        if expr.is_Symbol:
            return self._dims.get(str(expr))
        kind = _EXPRESSIONS.get(type(expr).__name__)
        parts = [self._computed(part) for part in expr.args]
        if kind is None or None in parts:
            return None
        first, *rest = [part for part in parts if part is not None]
        if kind == "Pow":
            kind, rest = "Mul", [first] * (rest[0] - 1)
        for part in rest:
            first = self.integer(kind, first, part)
        return first

    def integer(self, kind: str, left: int, right: int) -> int:
        """What an operation such as `Mul` makes of two numbers or codes."""
        return number_made(kind, left, right, self.sizes)

    def shape_of(self, value: Any, name: str) -> list[int]:
        """The dims of a tensor of the graph: numbers, and codes of those that are known at run time only."""
        return [
            int(d) if not _is_symbol(d) else self.code_of(d.node.expr, name, at) for at, d in enumerate(value.shape)
        ]

    def number_of(self, arg: Any) -> int:
        """A whole number, or the code of one that is known at run time only."""
        if hasattr(arg, "name"):
            if arg.name not in self.integers:
                raise Refused(f"it takes {arg.name}, a number that is computed in a way that is not translated")
            return self.integers[arg.name]
        return int(arg)

    def numbers_of(self, args: Sequence[Any]) -> list[int]:
        """Whole numbers, or codes."""
        return [self.number_of(arg) for arg in args]

    # Values

    def dtype(self, value: str) -> DType:
        """The element type of a value."""
        return self.tensor(value).dtype

    def op(self, op_type: str, inputs: dict[str, Any], outputs: dict[str, Any], **attrs: object) -> None:
        """An op from values to values, by name. Numbers that f32 can't hold stay what they are beside f64."""
        if any(isinstance(attr, float) and float32(attr) != attr for attr in attrs.values()):
            names = [name for held in inputs.values() for name in ([held] if isinstance(held, str) else held)]
            if any(self.dtype(name) is DType.FP64 for name in names):
                attrs = {name: Double(attr) if isinstance(attr, float) else attr for name, attr in attrs.items()}
        super().op(op_type, inputs, outputs, **attrs)

    def temp(self, of: str) -> str:
        """A name for a value in between."""
        return self.draft.names.mint(f"{of}.part")

    def constant_of(self, number: float, kind: DType, of: str) -> str:
        """A variable of one element with this number; `of` is what it is for."""
        if kind not in _NUMPY:
            raise Refused(f"it has a number of type {kind.name.lower()}, which constants of a program have not")
        key = (kind, repr(number))
        if key not in self._constants:
            name = self._constants[key] = self.temp(of)
            if kind is DType.INT64 and float32(float(number)) != number:
                self.known[name] = np.array(number, _NUMPY[kind])
            else:
                value = Double(number) if kind is DType.FP64 else float(number)
                self.op("fill_constant", {}, {"Out": name}, shape=[1], dtype=kind.value, value=value)
                self.draft.stop_gradient.add(name)
                self.scalars.add(name)
        return self._constants[key]

    def scaled(self, value: str, factor: float, bias: float = 0.0) -> str:
        """A value that is another one times a number, plus a number."""
        self.scale(value, out := self.temp(value), factor, bias)
        return out

    def scale(self, value: str, out: str, factor: float, bias: float = 0.0) -> None:
        """`out` is a value times a number, plus a number."""
        self.op("scale", {"X": value}, {"Out": out}, scale=factor, bias=bias)

    def finish_loss(self, name: str) -> str:
        """The variable that the loss is, of one element."""
        dims = self.dims(name)
        if dims not in ((), (1,)):
            raise Refused(f"the loss has the dims {list(dims)}; it must be one element")
        return self.finish(name)


def _is_symbol(dim: Any) -> bool:
    return not isinstance(dim, int)


class _Empty:
    """A graph without inputs."""

    input = ()


Reader: TypeAlias = Callable[[Any, Tracing, str], None]
"""Adds the ops of a node to the program, which writes its value to the variable of this name. Raises Refused."""

READERS: dict[str, Reader] = {}
"""The reader of each ATen operator."""


def aten(*operators: str) -> Callable[[Reader], Reader]:
    """Registers the reader of operators: `add.Tensor`; without an overload it is that of all of them."""

    def register(reader: Reader) -> Reader:
        for name in operators:
            READERS[name] = reader
        return reader

    return register


def reader_of(operator: str) -> Reader | None:
    """The reader of an operator such as `add.Tensor`; None if it is not translated."""
    return READERS.get(operator) or READERS.get(operator.split(".")[0])


def is_known(operator: str) -> bool:
    """Whether an operator is translated."""
    return reader_of(operator) is not None


def argument(node: Any, at: int, name: str, default: Any = None) -> Any:
    """An argument of a node, by place or by name; `default` where it is not given."""
    if len(node.args) > at:
        return node.args[at]
    return node.kwargs.get(name, default)
