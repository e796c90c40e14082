"""A program while it is made of the nodes of a graph of ATen operators."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from pstranspile.frontends.onnx.graph import Refused
from pstranspile.frontends.onnx.reading import Reading
from pstranspile.frontends.onnx.reading import Dim
from pstranspile.frontends.torch.capture import Captured
from pstranspile.ir.frozen import EMPTY
from pstranspile.ir.model import Location, Origin, ParameterInfo, TensorType, Var
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


_FRAME = re.compile(r'\s*File "([^"]+)", line (\d+), in ')

_LIBRARY = re.compile(r"(?:.*[/\\])?(?:torch|site-packages)[/\\]|<")
"""How the names of files begin that are not the user's."""


def user_line(stack: str | None) -> Location | None:
    """The innermost line of the user's own files in a stack that torch keeps with a node."""
    frames = [(made[1], int(made[2])) for line in (stack or "").splitlines() if (made := _FRAME.match(line))]
    own = [frame for frame in frames if not _LIBRARY.match(frame[0])]
    return Location(*(own or frames)[-1]) if frames else None


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
        self._taken: set[str] = {*captured.parameters.values(), *captured.buffers.values(), *captured.inputs.values()}
        self.taken_types: dict[str, DType] = {}

    # Nodes

    def begin(self, node: Any) -> str:
        """The variable that the value of a node goes to; ops made from now on come from the node's line."""
        location = user_line(node.meta.get("stack_trace"))
        self.draft.origin = Origin("main", 0, -1, location) if location is not None else None
        name = node.name if node.name not in self._taken else self.draft.names.mint(node.name)
        self._taken.add(name)
        self.names[node.name] = name
        self.note(name, node.meta.get("val"))
        return name

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
        self._keep(name, array, trained=trained)
        if frozen:
            var = self.draft.blocks[0].vars[name]
            self.draft.declare(var._replace(parameter=ParameterInfo(trainable=False)), 0)
        if not trained or frozen:
            self.draft.stop_gradient.add(name)
        self.note(name, value)

    def value(self, arg: Any) -> str:
        """The variable of an argument that is a tensor."""
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
        """The code of a number that torch has as an expression of sizes."""
        text = str(expr)
        if text not in self._dims:
            if expr.is_Symbol:
                self._dims[text] = self.sizes.code(Dim(self.name(value), axis))
            else:
                made = self._computed(expr)
                self._dims[text] = self.sizes.code(Dim(self.name(value), axis)) if made is None else made
        return self._dims[text]

    def _computed(self, expr: Any) -> int | None:
        """The number or code of an expression of sizes that are known by now; None if it has others."""
        if expr.is_Integer:
            return int(expr)
        if expr.is_Symbol:
            return self._dims.get(str(expr))
        kind = {"Add": "Add", "Mul": "Mul", "FloorDiv": "Div", "Max": "Max", "Min": "Min"}.get(type(expr).__name__)
        parts = [self._computed(part) for part in expr.args]
        if kind is None or None in parts:
            return None
        first, *rest = parts
        for part in rest:
            first = self.integer(kind, first or 0, part or 0)
        return first

    def integer(self, kind: str, left: int, right: int) -> int:
        """What an operation such as `Mul` makes of two numbers or codes."""
        from pstranspile.frontends.onnx.reading import _NUMBERS, is_code

        if is_code(left) or is_code(right):
            return self.sizes.combined(kind, left, right)
        return _NUMBERS[kind](left, right)

    def shape_of(self, value: Any, name: str) -> list[int]:
        """The dims of a tensor of the graph: numbers, and codes of those that are known at run time only."""
        return [int(d) if not _is_symbol(d) else self.code_of(d.node.expr, name, at) for at, d in enumerate(value.shape)]

    def number_of(self, arg: Any) -> int:
        """A whole number, or the code of one that is known at run time only."""
        if hasattr(arg, "name"):
            return self.integers[arg.name]
        return int(arg)

    def numbers_of(self, args: Sequence[Any]) -> list[int]:
        """Whole numbers, or codes."""
        return [self.number_of(arg) for arg in args]

    # Values

    def dtype(self, value: str) -> DType:
        """The element type of a value."""
        return self.tensor(value).dtype

    def made(self, op_type: str, of: str, attrs: Mapping[str, object] = EMPTY, **inputs: Any) -> str:
        """The result `Out` of an op, as a value in between with a name like that of another one."""
        return super().made(op_type, of, attrs, **inputs)

    def temp(self, of: str) -> str:
        """A name for a value in between."""
        return self.draft.names.mint(f"{of}.part")

    def constant_of(self, number: float, kind: DType, of: str) -> str:
        """A variable of one element with this number."""
        name = self.temp(of)
        self.known[name] = np.array(number, _NUMPY[kind])
        return name

    def scaled(self, value: str, factor: float, bias: float = 0.0) -> str:
        """A value that is another one times a number, plus a number; exact in f64."""
        self.scale(value, out := self.temp(value), factor, bias)
        return out

    def scale(self, value: str, out: str, factor: float, bias: float = 0.0) -> None:
        """`out` is a value times a number, plus a number. Numbers that f32 can't hold are variables for f64."""
        kind = self.dtype(value)
        if kind is not DType.FP64 or (_fits(factor) and _fits(bias)):
            self.op("scale", {"X": value}, {"Out": out}, scale=factor, bias=bias)
            return
        if factor != 1.0:
            target = self.temp(value) if bias else out
            self.op("elementwise_mul", {"X": value, "Y": self.constant_of(factor, kind, value)}, {"Out": target})
            value = target
        if bias:
            self.op("elementwise_add", {"X": value, "Y": self.constant_of(bias, kind, value)}, {"Out": out})

    def finish_loss(self, name: str) -> str:
        """The variable that the loss is, of one element."""
        dims = self.dims(name)
        if dims not in ((), (1,)):
            raise Refused(f"the loss has the dims {list(dims)}; it must be one element")
        return self.finish(name)


def _fits(number: float) -> bool:
    return float(np.float32(number)) == number


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
