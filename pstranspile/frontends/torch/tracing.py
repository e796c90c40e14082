"""A program under construction, made from the nodes of a graph of ATen operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from pstranspile.frontends.layers.draft import Refused
from pstranspile.frontends.onnx.reading import Dim, GraphReading, Held, number_made
from pstranspile.frontends.torch.capture import Captured
from pstranspile.frontends.torch.refusals import user_line
from pstranspile.ir.attributes import Double, float32
from pstranspile.ir.model import Origin, ParameterInfo, TensorType, Var
from pstranspile.ir.types import DType
from pstranspile.runtime.values import Array

_T = TypeVar("_T")

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
"""The element types of programs, by torch's names."""

_NUMPY = {DType.FP32: "float32", DType.FP64: "float64", DType.INT64: "int64", DType.INT32: "int32", DType.BOOL: "bool"}
"""Numpy's names of the element types that constants of a program may have."""

FLOATS = (DType.FP32, DType.FP64)
"""The floating-point element types."""


def dtype_of(kind: Any) -> DType:
    """The element type for torch's dtype `kind`. Raises Refused if programs have no such type."""
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
"""The operations in expressions of sizes, by the names of the classes of sympy and torch."""


class OwnCall(NamedTuple):
    """A call of a function with a backward of the user's own: what it takes and gives in the forward, and the variables
    of what its backward takes and gives.
    """

    arguments: int
    results: int
    upstream: tuple[str, ...]
    gradients: tuple[str, ...]


class Tracing(GraphReading):
    """A program under construction, and the variables with the values of a graph's nodes.

    Parameters, buffers and tensors of the batch keep the user's names. A size is a number, or a code: an integer that
    stands for a size known at run time only (`is_code`).
    """

    def __init__(self, captured: Captured, arrays: Mapping[str, Array]):
        super().__init__(_Empty(), {}, {}, version=0, size=sum(array.nbytes for array in arrays.values()))
        self.captured = captured
        self.arrays = arrays
        self.names: dict[str, str] = {}
        """The variable of each node whose value is one tensor."""
        self.parts: dict[str, list[str | None]] = {}
        """The variables of each node whose value is several tensors; None for tensors that are not computed."""
        self.integers: dict[str, int] = {}
        """The integer of each node whose value is one, or its code."""
        self.fractions: dict[str, str] = {}
        """The variable f64[1] of each node whose value is a fraction that is computed of sizes."""
        self.upstream: set[str] = set()
        """The variables that stand for gradients, of which backwards of the user's own compute others."""
        self.own_backwards: list[OwnCall] = []
        """The calls of functions with a backward of the user's own, in order."""
        self._shapes: dict[str, tuple[Any, ...]] = {}
        self._dims: dict[str, int] = {}
        self._constants: dict[tuple[DType, str], str] = {}
        self._taken = self.draft.names.reserved_names
        self._taken.update((*arrays, *captured.inputs.values()))

    # Nodes

    def begin(self, node: Any) -> str:
        """Makes the variable for a node's value; the ops added next have the node's line as origin."""
        self.come_from(node)
        name = node.name if node.name not in self._taken else self.draft.names.mint(node.name)
        self._taken.add(name)
        self.names[node.name] = name
        self.note(name, node.meta.get("val"))
        return name

    def come_from(self, node: Any) -> None:
        """Sets the origin of the ops added next to the user's line of a node; None for no origin."""
        location = user_line(node.meta.get("stack_trace")) if node is not None else None
        self.draft.origin = Origin("main", 0, -1, location) if location is not None else None

    def note(self, name: str, value: Any) -> None:
        """Records the dims of a variable, from torch's tensor `value`."""
        if hasattr(value, "shape"):
            self._shapes[name] = tuple(value.shape)
            if not value.shape:
                self.scalars.add(name)

    def declare(self, name: str, value: Any, *, fed: bool = False) -> None:
        """Declares a variable with the shape and element type of a tensor; with `fed`, as an input of the program."""
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
        """The variable of an argument that is a tensor. Raises Refused if it was not translated."""
        return _entry_of_node(arg, self.names)

    def has_gradient(self, node: Any) -> bool:
        """Whether a node of the graph is computed from parameters, other than detached ones."""
        waiting, seen = [node], set[Any]()
        while waiting:
            one = waiting.pop()
            if one.name in self.captured.parameters:
                return True
            if one not in seen and not str(one.target).startswith("aten.detach"):
                waiting += one.all_input_nodes
            seen.add(one)
        return False

    def size(self, value: str, axis: int) -> int:
        """The size of a variable along an axis, or its code."""
        shape = self._shapes.get(value)
        if shape is None or axis >= len(shape):
            return super().size(value, axis)
        dim = shape[axis]
        if not _is_symbol(dim):
            return int(dim)
        return self.code_of(dim.node.expr, value, axis)

    def code_of(self, expr: Any, value: str, axis: int) -> int:
        """The number or code for torch's expression of a size, which is that of a variable along an axis.

        Raises Refused if the variable does not exist yet and the size does not follow from known ones.
        """
        text = str(expr)
        if text not in self._dims:
            made = None if expr.is_Symbol else self._evaluate_size(expr)
            if made is None:
                if self.draft.find(self.resolve_alias(value)) is None:
                    raise Refused(f"it has a dim of {text} elements, which is not known before it runs")
                made = self.sizes.code(Dim(self.name(value), axis))
            self._dims[text] = made
        return self._dims[text]

    def know(self, number: Any, code: int) -> None:
        """Records the code of a number of torch, which may be a size."""
        expr = getattr(getattr(number, "node", None), "expr", None)
        if expr is not None:
            self._dims.setdefault(str(expr), code)

    def _evaluate_size(self, expr: Any) -> int | None:
        """The number or code of an expression of known sizes; None if it contains an unknown one."""
        if expr.is_Integer:
            return int(expr)
        if expr.is_Symbol or str(expr) in self._dims:
            return self._dims.get(str(expr))
        kind = _EXPRESSIONS.get(type(expr).__name__)
        parts = [self._evaluate_size(part) for part in expr.args]
        if kind is None or None in parts:
            return None
        first, *rest = [part for part in parts if part is not None]
        if kind == "Pow":
            kind, rest = "Mul", [first] * (rest[0] - 1)
        for part in rest:
            first = self.integer(kind, first, part)
        return first

    def integer(self, kind: str, left: int, right: int) -> int:
        """The result of an operation such as `Mul` on two numbers or codes."""
        return number_made(kind, left, right, self.sizes)

    def shape_of(self, value: Any, name: str) -> list[int]:
        """The dims of a tensor of the graph: numbers, or codes for dims that are known at run time only."""
        return [
            int(d) if not _is_symbol(d) else self.code_of(d.node.expr, name, at) for at, d in enumerate(value.shape)
        ]

    def number_of(self, arg: Any) -> int:
        """An integer argument, or its code. Raises Refused if it is computed in a way that is not translated."""
        if hasattr(arg, "name"):
            return _entry_of_node(arg, self.integers)
        if arg != int(arg):
            raise Refused(f"it takes {arg}, where a whole number is computed of sizes")
        return int(arg)

    def count(self, node: Any, code: int) -> None:
        """Records the code of a node whose value is a number that a run computes, and of dims with as many elements."""
        self.integers[node.name] = self._dims[str(node.meta["val"].node.expr)] = code

    def numbers_of(self, args: Sequence[Any]) -> list[int]:
        """Integer arguments, or their codes. Raises Refused as `number_of`."""
        return [self.number_of(arg) for arg in args]

    # Values

    def dtype(self, value: str) -> DType:
        """The element type of a value."""
        return self.tensor(value).dtype

    def op(self, op_type: str, inputs: dict[str, Any], outputs: dict[str, Any], **attrs: object) -> None:
        """Adds an op. If an input is f64, attributes that f32 can't represent keep double precision."""
        if any(isinstance(attr, float) and float32(attr) != attr for attr in attrs.values()):
            names = [name for held in inputs.values() for name in ([held] if isinstance(held, str) else held)]
            if any(self.dtype(name) is DType.FP64 for name in names):
                attrs = {name: Double(attr) if isinstance(attr, float) else attr for name, attr in attrs.items()}
        super().op(op_type, inputs, outputs, **attrs)

    def temp(self, of: str) -> str:
        """A new name for an intermediate value."""
        return self.draft.names.mint(f"{of}.part")

    def constant_of(self, number: float, kind: DType, of: str) -> str:
        """A variable of one element with this number, named after `of`. Raises Refused for other element types."""
        if kind not in _NUMPY:
            raise Refused(f"it has a number of type {kind.name.lower()}, which constants of a program have not")
        key = (kind, repr(number))
        if key not in self._constants:
            name = self._constants[key] = self.temp(of)
            if kind not in FLOATS and float32(float(number)) != number:
                self.known_values[name] = np.array(number, _NUMPY[kind])
            else:
                value = Double(number) if kind is DType.FP64 else float(number)
                self.op("fill_constant", {}, {"Out": name}, shape=[1], dtype=kind.value, value=value)
                self.draft.stop_gradient.add(name)
                self.scalars.add(name)
        return self._constants[key]

    def scaled(self, value: str, factor: float, bias: float = 0.0) -> str:
        """A new variable with `value * factor + bias`."""
        self.scale(value, out := self.temp(value), factor, bias)
        return out

    def scale(self, value: str, out: str, factor: float, bias: float = 0.0) -> None:
        """`out` is `value * factor + bias`."""
        self.op("scale", {"X": value}, {"Out": out}, scale=factor, bias=bias)

    def finish_loss(self, name: str) -> str:
        """The variable of the loss. Raises Refused unless it has one element."""
        dims = self.dims(name)
        if dims not in ((), (1,)):
            raise Refused(f"the loss has the dims {list(dims)}; it must be one element")
        return self.finish(name)


def _is_symbol(dim: Any) -> bool:
    return not isinstance(dim, int)


def _entry_of_node(node: Any, known: Mapping[str, _T]) -> _T:
    """The entry of a node in `known`. Raises Refused for a node whose number was not translated."""
    if node.name not in known:
        raise Refused(f"it takes {node.name}, a number that is computed in a way that is not translated")
    return known[node.name]


class _Empty:
    """A graph without inputs."""

    input = ()


Reader: TypeAlias = Callable[[Any, Tracing, str], None]
"""A function that adds the ops of a node to the program; the variable of the given name gets the node's value.

Raises Refused if the node can't be translated.
"""

READERS: dict[str, Reader] = {}
"""The reader of each ATen operator."""


def aten(*operators: str) -> Callable[[Reader], Reader]:
    """Registers the reader of operators such as `add.Tensor`; a name without overload is for all overloads."""

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
    """The argument of a node at position `at` or by keyword; `default` if it is not given."""
    if len(node.args) > at:
        return node.args[at]
    return node.kwargs.get(name, default)


# Numbers of Python that a step computes of the sizes of its tensors, such as `0.5 * len(x)`.

_WHOLE = {
    "mul": "Mul",
    "add": "Add",
    "sub": "Sub",
    "floordiv": "Div",
    "mod": "Mod",
    "sym_max": "Max",
    "sym_min": "Min",
}
"""Operations on whole numbers whose result is one, by function name."""

_FRACTIONS = {
    "mul": "elementwise_mul",
    "add": "elementwise_add",
    "sub": "elementwise_sub",
    "truediv": "elementwise_div",
    "pow": "elementwise_pow",
    "sym_max": "elementwise_max",
    "sym_min": "elementwise_min",
}
"""The op of each operation on numbers whose result is a fraction, by function name."""

_ROUNDED = {"trunc": "", "sym_int": "", "ceil": "ceil", "floor": "floor"}
"""The op of each function that makes a whole number of a fraction; "" where a cast makes the same."""

_OF_ONE = {"_sym_sqrt": "sqrt", "sym_sqrt": "sqrt"}
"""The op of each function of one number, by function name."""


def read_number(node: Any, name: str, tracing: Tracing) -> bool:
    """Computes the number of a node, which calls a function with this name on numbers; whether that is translated."""
    operands = node.args
    if not all(_is_number(arg, tracing) for arg in operands):
        return False
    whole = all(_is_whole(arg, tracing) for arg in operands)
    if name == "sym_float":
        return _rename(node, operands[0], tracing)
    if name == "neg":
        name, operands = "mul", (operands[0], -1)
    if name == "pow" and whole and isinstance(operands[1], int) and operands[1] > 0:
        made = tracing.number_of(operands[0])
        for _ in range(operands[1] - 1):
            made = tracing.integer("Mul", made, tracing.number_of(operands[0]))
        tracing.integers[node.name] = made
    elif name in _WHOLE and whole:
        tracing.integers[node.name] = tracing.integer(_WHOLE[name], *map(tracing.number_of, operands))
    elif name in _FRACTIONS:
        x, y = (_fraction(arg, node.name, tracing) for arg in operands)
        _keep(node, tracing.op_result(_FRACTIONS[name], node.name, X=x, Y=y), tracing)
    elif name in _OF_ONE:
        _keep(node, tracing.op_result(_OF_ONE[name], node.name, X=_fraction(operands[0], node.name, tracing)), tracing)
    elif name in _ROUNDED:
        x = _fraction(operands[0], node.name, tracing)
        _round(node, tracing.op_result(_ROUNDED[name], node.name, X=x) if _ROUNDED[name] else x, tracing)
    else:
        return False
    return True


def _is_number(arg: Any, tracing: Tracing) -> bool:
    if hasattr(arg, "name"):
        return arg.name in tracing.integers or arg.name in tracing.fractions
    return isinstance(arg, int | float)


def _is_whole(arg: Any, tracing: Tracing) -> bool:
    return arg.name in tracing.integers if hasattr(arg, "name") else isinstance(arg, int)


def _rename(node: Any, arg: Any, tracing: Tracing) -> bool:
    """Has a node be the number that it makes a fraction of."""
    _keep(node, _fraction(arg, node.name, tracing), tracing)
    return True


def _fraction(arg: Any, of: str, tracing: Tracing) -> str:
    """A variable f64[1] with a number, which is one of Python."""
    if not hasattr(arg, "name"):
        return tracing.constant_of(float(arg), DType.FP64, of)
    if arg.name in tracing.fractions:
        return tracing.fractions[arg.name]
    return tracing.as_type(tracing.size_variable(tracing.integers[arg.name]), DType.FP64)


def _keep(node: Any, made: str, tracing: Tracing) -> None:
    tracing.draft.stop_gradient.add(made)
    tracing.scalars.add(made)
    tracing.fractions[node.name] = made


def _round(node: Any, made: str, tracing: Tracing) -> None:
    """Keeps the whole number in a variable f64[1], which may be the size of a tensor."""
    tracing.draft.stop_gradient.add(made)
    held = tracing.as_type(made, DType.INT32)
    tracing.draft.stop_gradient.add(held)
    tracing.integers[node.name] = tracing.sizes.code(Held(held))
    tracing.know(node.meta.get("val"), tracing.integers[node.name])


def fraction_of(node: Any, kind: DType, tracing: Tracing) -> str | None:
    """The variable of an element type with the fraction of a node; None for a node that is none."""
    made = tracing.fractions.get(node.name)
    if made is None:
        return None
    if kind not in (DType.FP32, DType.FP64):
        raise Refused("it makes whole numbers of a fraction that is computed of sizes")
    return tracing.as_type(made, kind)
