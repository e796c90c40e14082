"""A program while it is built from the nodes of an ONNX graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from pstranspile.frontends.layers.draft import Refused, TranslatedDraft
from pstranspile.frontends.onnx.graph import ELEMENT_TYPES, library
from pstranspile.ir.model import EMPTY, Module, ParameterInfo, TensorType, Var
from pstranspile.ir.types import DType
from pstranspile.runtime.values import NUMPY_TYPES, Array

# Limits of the resources for reading a model, relative to its file: one budget for all that is computed or expanded.


MOST_NODES = 100_000
"""The most nodes to which functions, branches and definitions of a model may be expanded, counted with nesting."""

DEEPEST = 100
"""The largest depth to which functions and branches may be nested."""

FREE_BYTES = 64 << 20
"""The bytes of results that may be computed while any model is read, however small its file is."""

BYTES_A_BYTE = 8
"""The further bytes of results that may be computed for each byte of the model's file: weights may be transposed, cast
and cut there.
"""

FREE_WORK = 1 << 31
"""The elements that may be processed while any model is read, however small its file is; some seconds
of a processor.
"""

WORK_A_BYTE = 64
"""The further elements that may be processed for each byte of the model's file."""

NUMBER_BYTES = 64
"""The bytes of a whole number that is stored separately, in an attribute of the program."""


class Budget:
    """The memory, the work and the nodes that reading a model may still use."""

    def __init__(self, held_bytes: int):
        self._bytes = FREE_BYTES + BYTES_A_BYTE * held_bytes
        self._work = FREE_WORK + WORK_A_BYTE * held_bytes
        self._nodes = MOST_NODES
        self.depth = 0
        """The number of functions and branches around the node that is being read."""

    def affords(self, size: int, work: int) -> bool:
        """Whether one node may use this many bytes, and work on this many elements; if so, they are deducted.

        A node may use half of the remaining budget, so that enough remains for the small numbers from which dims are
        computed.
        """
        if 2 * size > self._bytes or 2 * work > self._work:
            return False
        self._bytes -= size
        self._work -= work
        return True

    def take(self, size: int, work: int = 0) -> None:
        """Deducts this many bytes, and work on this many elements. Raises Refused if the remaining
        budget is smaller.
        """
        if size > self._bytes:
            raise Refused(f"it takes {size} bytes while the model is read, and {self._bytes} are left for all of it")
        if work > self._work:
            raise Refused(
                f"it works on {work} elements while the model is read, and {self._work} are left for all of it"
            )
        self._bytes -= size
        self._work -= work

    def enter(self) -> None:
        """Begins a node in a function or branch. Raises Refused for too many nodes, or too deep nesting."""
        self._nodes -= 1
        if self._nodes < 0:
            raise Refused(f"functions and branches of the model stand for more than {MOST_NODES} nodes")
        if self.depth >= DEEPEST:
            raise Refused(f"functions and branches are nested more than {DEEPEST} deep")
        self.depth += 1

    def leave(self) -> None:
        """Ends a node in a function or branch."""
        self.depth -= 1


# Codes: numbers that stand for whole numbers computed from dims which are known only at run time.


_CODES = -(1 << 40)
"""The first code. In shapes, codes stand for numbers that are known only at run time."""

_LAST = -(1 << 41)
"""The limit of codes, which descend from `_CODES`."""


_MOST_FACTORS = 63
"""The most unknown factors of a product: a product of more factors above 1 exceeds 63 bits."""


class Dim(NamedTuple):
    """The size of a variable along an axis."""

    variable: str
    axis: int


class Product(NamedTuple):
    """A known number times other numbers that are known only at run time."""

    factor: int
    codes: tuple[int, ...]


class Pair(NamedTuple):
    """An op of Fluid applied to two numbers, at least one of which is known only at run time."""

    op_type: str
    left: int
    right: int


class Held(NamedTuple):
    """The whole number that a variable i32[1] holds."""

    held_by: str


Size: TypeAlias = Dim | Product | Pair | Held

_OPS = {
    "Add": "elementwise_add",
    "Sub": "elementwise_sub",
    "Mul": "elementwise_mul",
    "Div": "elementwise_floordiv",
    "Mod": "elementwise_mod",
    "Max": "elementwise_max",
    "Min": "elementwise_min",
}


class Sizes:
    """The meanings of codes. Equal numbers have one code if their equality is recognised."""

    def __init__(self) -> None:
        self._sizes: list[Size] = []
        self._codes: dict[Size, int] = {}

    def code(self, size: Size) -> int:
        """The code of a number that is known only at run time."""
        if size not in self._codes:
            self._codes[size] = _CODES - len(self._sizes)
            self._sizes.append(size)
        return self._codes[size]

    def of(self, code: int) -> Size:
        """The meaning of a code."""
        return self._sizes[_CODES - code]

    def binary_result(self, node_type: str, left: int, right: int) -> int:
        """The number or code of the result of a node such as `Mul` on two numbers or codes."""
        if node_type == "Mul":
            return self._product(left, right)
        if node_type == "Div":
            return self._quotient(left, right)
        if right == 0 and node_type in ("Add", "Sub"):
            return left
        if left == 0 and node_type == "Add":
            return right
        if left == right and node_type in ("Max", "Min", "Sub"):
            return 0 if node_type == "Sub" else left
        return self.code(Pair(_OPS[node_type], left, right))

    def _factors(self, number: int) -> Product:
        if not is_code(number):
            return Product(number, ())
        size = self.of(number)
        return size if isinstance(size, Product) else Product(1, (number,))

    def _code_of_product(self, factor: int, codes: Sequence[int]) -> int:
        if abs(factor) >= 1 << 63 or len(codes) > _MOST_FACTORS:
            raise Refused("it multiplies dims that are known at run time only to more than a whole number can be")
        if not codes or factor == 0:
            return factor
        return codes[0] if factor == 1 and len(codes) == 1 else self.code(Product(factor, tuple(sorted(codes))))

    def _product(self, left: int, right: int) -> int:
        first, second = self._factors(left), self._factors(right)
        return self._code_of_product(first.factor * second.factor, (*first.codes, *second.codes))

    def _quotient(self, left: int, right: int) -> int:
        first, second = self._factors(left), self._factors(right)
        rest = [*first.codes]
        for code in second.codes:
            if code not in rest:
                break
            rest.remove(code)
        else:
            if second.factor and first.factor % second.factor == 0:
                return self._code_of_product(first.factor // second.factor, rest)
        return self.code(Pair(_OPS["Div"], left, right))


def is_code(number: int) -> bool:
    """Whether a number is a code."""
    return _LAST < number <= _CODES


def has_codes(array: Array) -> bool:
    """Whether an array contains codes."""
    return array.dtype.kind == "i" and array.dtype.itemsize == 8 and bool(((array <= _CODES) & (array > _LAST)).any())


def combine_arrays(node_type: str, left: Array, right: Array, sizes: Sizes) -> Array | None:
    """The result of a node on two arrays of whole numbers, some of which are codes; None if it has no code."""
    if node_type not in _OPS:
        return None
    first, second = np.broadcast_arrays(left, right)
    made = [
        number_made(node_type, int(x), int(y), sizes)
        for x, y in zip(first.reshape(-1), second.reshape(-1), strict=True)
    ]
    return np.array(made, "int64").reshape(first.shape)


def _quotient(left: int, right: int) -> int:
    """A quotient rounded toward zero, as ONNX rounds it."""
    return 0 if right == 0 else abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


_NUMBERS: dict[str, Callable[[int, int], int]] = {
    "Add": lambda left, right: left + right,
    "Sub": lambda left, right: left - right,
    "Mul": lambda left, right: left * right,
    "Div": _quotient,
    "Mod": lambda left, right: left % right if right else 0,
    "Max": max,
    "Min": min,
}


def number_made(node_type: str, left: int, right: int, sizes: Sizes) -> int:
    """The result of a node such as `Mul` on two whole numbers or codes."""
    plain = not (is_code(left) or is_code(right))
    return _NUMBERS[node_type](left, right) if plain else sizes.binary_result(node_type, left, right)


def equal(left: Array, right: Array) -> Array | None:
    """The elements that are equal, of arrays that may hold codes; None if this is known only at run time. Dims are not
    negative.
    """
    first, second = np.broadcast_arrays(left, right)
    for x, y in zip(first.reshape(-1), second.reshape(-1), strict=True):
        if x != y and (is_code(int(x)) or is_code(int(y))) and max(int(x), int(y)) >= 0:
            return None
        if x != y and is_code(int(x)) and is_code(int(y)):
            return None
    return np.asarray(first == second)


Symbols: TypeAlias = "tuple[int | str | None, ...]"
"""The dims of a value: each a number, a name that equal dims share, or None if nothing is known."""

_DTYPES = {number: dtype for dtype, number in ELEMENT_TYPES.items()}
_OF_NUMPY = {name: dtype for dtype, name in NUMPY_TYPES.items()}


class GraphReading:
    """The variables that hold the values of a graph, and the values that are known before the run.

    `symbols` are the dims of values as ONNX infers them: a number, or a name that equal dims share, or None. `weights`
    are the known values that become parameters. `size` is that of the model's file.
    """

    def __init__(
        self,
        graph: Any,
        known_values: dict[str, Array],
        symbols: Mapping[str, Symbols],
        weights: Iterable[str] = (),
        *,
        version: int,
        size: int = 0,
    ):
        self.draft = TranslatedDraft()
        self.known_values = known_values
        self.version = version
        """The version of ONNX's own operators."""
        self.budget = Budget(max(size, sum(array.nbytes for array in known_values.values())))
        self._original = {*known_values}
        self._postponed: set[str] = set()
        self.sizes = Sizes()
        self.scalars = {name for name, dims in symbols.items() if not dims}
        self._symbols = symbols
        self._sources: dict[str, Dim] = {}
        self._made_sizes: dict[int, str] = {}
        self._weights = {*weights}
        self._aliases: dict[str, str] = {}
        self._lost: set[str] = set()
        self.values: dict[str, Array] = {}
        for given in graph.input:
            if given.name not in self.known_values:
                self._declare_input(given)

    def _declare_input(self, given: Any) -> None:
        tensor = given.type.tensor_type
        dims = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim]
        self.draft.stop_gradient.add(given.name)
        held = TensorType(dtype_of(tensor.elem_type, given.name), tuple(dims))
        self.draft.declare(Var(given.name, tensor=held, need_check_feed=True), 0)

    # Values

    def name(self, value: str) -> str:
        """The variable that holds a value. A value that is known becomes a parameter, or a persistable constant."""
        value = self._aliases.get(value, value)
        if value in self.known_values and self.draft.find(value, 0) is None:
            array = self.known_values[value]
            if has_codes(array):
                self._measure(value, array)
            else:
                self.keep_array(value, array)
        return value

    def keep_array(self, name: str, array: Array, *, trained: bool | None = None) -> None:
        """Declares a variable that holds an array; a parameter if `trained` (None: if it is one of the weights)."""
        array = np.ascontiguousarray(array).reshape(array.shape or (1,))
        kind = _OF_NUMPY.get(array.dtype.name)
        if kind is None or (array.dtype.kind in "iu" and array.dtype.name not in ("int32", "int64")):
            raise Refused(f"{name} has elements of type {array.dtype.name}, which Fluid's constants have not")
        is_float = array.dtype.kind == "f"
        if name not in self._original and not is_float:
            self.budget.take(NUMBER_BYTES * array.size, array.size)
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
        """A persistable variable that holds a known value and is not trained, such as a running mean."""
        array = self.constant(value, "a statistic")
        name = self._aliases.get(value, value)
        if self.draft.find(name) is None:
            self.keep_array(name, array, trained=False)
        return name

    def constant(self, value: str, what: str) -> Array:
        """The array of a known value. Raises Refused if it is computed at run time."""
        value = self._aliases.get(value, value)
        if value in self._postponed:
            raise Refused(f"{what} is {value}, which is too large to be computed while the model is read")
        if value not in self.known_values:
            raise Refused(f"{what} is {value}, which is computed at run time; Fluid's op has it as an attribute")
        return self.known_values[value]

    def ints(self, value: str, what: str) -> list[int]:
        """The numbers of a known value. Raises Refused if they are computed at run time."""
        numbers = self.numbers(value, what)
        if any(map(is_code, numbers)):
            raise Refused(f"{what} is {value}, which is computed from dims that are known at run time only")
        return numbers

    def numbers(self, value: str, what: str) -> list[int]:
        """The numbers of a value, some of which may be codes. Raises Refused if they are computed at run time."""
        array = self.constant(value, what)
        if array.dtype.kind not in "iu":
            raise Refused(f"{what} is {value}, which holds no whole numbers")
        return [int(number) for number in np.ravel(array)]

    def number(self, value: str) -> float | None:
        """The number in a known value of one element, else None."""
        array = self.known_values.get(self._aliases.get(value, value))
        if array is None or array.size != 1 or array.dtype.kind not in "fiu" or has_codes(array):
            return None
        return float(array.reshape(()))

    def is_computed(self, value: str) -> bool:
        """Whether a value is known except for codes in it."""
        array = self.known_values.get(self._aliases.get(value, value))
        return array is not None and has_codes(array)

    def kind(self, number: int, name: str) -> DType:
        """The element type with ONNX's number `number`. Raises Refused if Fluid does not have it."""
        return dtype_of(number, name)

    def kind_of_array(self, array: Array) -> DType:
        """The element type of an array. Raises Refused if Fluid does not have it."""
        if array.dtype.name not in _OF_NUMPY:
            raise Refused(f"it has elements of type {array.dtype.name}, which Fluid has not")
        return _OF_NUMPY[array.dtype.name]

    # Dims that are known at run time only

    def size(self, value: str, axis: int) -> int:
        """The size of a value along an axis: a number or a code."""
        if value in self.known_values:
            return self.known_values[value].shape[axis]
        dim = self.dims(value)[axis]
        if dim >= 0:
            return dim
        name = self.name(value)
        symbols = self._symbols.get(name, ())
        symbol = symbols[axis] if axis < len(symbols) else None
        if isinstance(symbol, str):
            return self.sizes.code(self._sources.setdefault(symbol, Dim(name, axis)))
        return self.sizes.code(Dim(name, axis))

    def size_variable(self, number: int) -> str:
        """A variable i32[1] that holds a number or the meaning of a code."""
        waiting = [number]
        while waiting:
            top = waiting[-1]
            missing = [part for part in self._parts(top) if part not in self._made_sizes]
            if top in self._made_sizes or not missing:
                waiting.pop()
                if top not in self._made_sizes:
                    out = self._made_sizes[top] = self.temp("size")
                    self._make_size(top, out)
                    self.draft.stop_gradient.add(out)
            waiting += missing
        return self._made_sizes[number]

    def _parts(self, number: int) -> Sequence[int]:
        """The numbers and codes from which a code's number is computed."""
        size = self.sizes.of(number) if is_code(number) else None
        if isinstance(size, Pair):
            return (size.left, size.right)
        if isinstance(size, Product):
            return (*size.codes, *((size.factor,) if size.factor != 1 else ()))
        return ()

    def _make_size(self, number: int, out: str) -> None:
        size = self.sizes.of(number) if is_code(number) else None
        parts = [self._made_sizes[part] for part in self._parts(number)]
        if size is None:
            self.op("fill_constant", {}, {"Out": out}, shape=[1], dtype=DType.INT32.value, value=float(number))
        elif isinstance(size, Dim):
            dims, at = self.temp("dims"), size.axis
            self.op("shape", {"Input": size.variable}, {"Out": dims})
            self.op("slice", {"Input": dims}, {"Out": out}, axes=[0], starts=[at], ends=[at + 1])
        elif isinstance(size, Held):
            self.op("assign", {"X": size.held_by}, {"Out": out})
        elif isinstance(size, Pair):
            self.op(size.op_type, {"X": parts[0], "Y": parts[1]}, {"Out": out})
        else:
            made = parts[0]
            for at, part in enumerate(parts[1:], 2):
                result = out if at == len(parts) else self.temp("size")
                self.op("elementwise_mul", {"X": made, "Y": part}, {"Out": result})
                made = result

    def _measure(self, value: str, array: Array) -> None:
        """Computes the variable (int64) of a value some of whose numbers are codes."""
        self.draft.stop_gradient.add(value)
        parts = [self.size_variable(int(number)) for number in array.reshape(-1)]
        whole = parts[0] if len(parts) == 1 else self.temp(value)
        if len(parts) > 1:
            self.op("concat", {"X": parts}, {"Out": whole}, axis=0)
        wide = value if array.ndim < 2 else self.temp(value)
        kinds = {"in_dtype": DType.INT32.value, "out_dtype": DType.INT64.value}
        self.op("cast", {"X": whole}, {"Out": wide}, **kinds)
        if wide != value:
            self.op("reshape2", {"X": wide}, {"Out": value, "XShape": self.temp(value)}, shape=[*array.shape])

    def is_weight(self, value: str) -> bool:
        """Whether a value is one of the model's weights, or computed from them."""
        return self._aliases.get(value, value) in self._weights

    def tensor(self, value: str) -> TensorType:
        """The element type and dims of a value. Raises Refused if they are not known."""
        tensor = self.draft.type_of(self.name(value))
        if tensor is None:
            raise Refused(f"the dims of {value} are not known before it runs")
        return tensor

    def dims(self, value: str) -> tuple[int, ...]:
        """The dims of a value, -1 if known only at run time. In Fluid, a scalar has one dim of size 1."""
        if self.is_scalar(value):
            return ()
        value = self._aliases.get(value, value)
        return self.known_values[value].shape if value in self.known_values else self.tensor(value).shape

    def is_scalar(self, value: str) -> bool:
        """Whether a value has no dims in ONNX."""
        if value in self.scalars:
            return True
        value = self._aliases.get(value, value)
        return self.known_values[value].ndim == 0 if value in self.known_values else value in self.scalars

    def flat(self, value: str) -> str:
        """A known value with all of its elements along one dim."""
        self.learn(name := self.temp(value), self.constant(value, "a weight").reshape(-1), [value])
        return name

    # Making

    def op(self, op_type: str, inputs: dict[str, Any], outputs: dict[str, Any], **attrs: object) -> None:
        """Appends an op, whose inputs and outputs are names of values."""
        made = {slot: [names] if isinstance(names, str) else list(names) for slot, names in outputs.items()}
        for name in (name for names in made.values() for name in names):
            if self.draft.find(name) is None:
                self.draft.declare(Var(name))
        given = {slot: self._variable_names(names) for slot, names in inputs.items()}
        self.draft.op(op_type, given, made, attrs)

    def op_result(self, op_type: str, of: str, attrs: Mapping[str, object] = EMPTY, **inputs: Any) -> str:
        """Appends an op and returns its result `Out`, a new intermediate value, whose name is derived from `of`."""
        out = self.temp(of)
        self.op(op_type, inputs, {"Out": out}, **attrs)
        return out

    def _variable_names(self, names: Any) -> list[str]:
        return [self.name(name) for name in ([names] if isinstance(names, str) else names) if name]

    def cast(self, source: str, out: str, kind: DType) -> None:
        """Sets `out` to `source` converted to this element type."""
        attrs = {"in_dtype": self.tensor(source).dtype.value, "out_dtype": kind.value}
        self.op("cast", {"X": source}, {"Out": out}, **attrs)

    def as_type(self, value: str, kind: DType) -> str:
        """A value converted to this element type; the value itself if it has this type."""
        if self.tensor(value).dtype is kind:
            return value
        self.cast(value, made := self.temp(value), kind)
        return made

    def scaled(self, value: str, factor: float, bias: float = 0.0) -> str:
        """A new value: `value` * factor + bias."""
        return self.op_result("scale", value, {"scale": factor, "bias": bias}, X=value)

    def temp(self, of: str) -> str:
        """A new name for an intermediate value, derived from `of`."""
        return self.draft.names.mint(f"{of}@ONNX")

    def alias(self, value: str, source: str) -> None:
        """Makes `value` another name of the value `source`."""
        source = self._aliases[value] = self._aliases.get(source, source)
        if source in self.known_values:
            self.known_values[value] = self.known_values[source]

    def learn(self, value: str, array: Array, sources: Sequence[str]) -> None:
        """Records a value that was computed while reading. It is a weight if one of its sources is."""
        self.known_values[value] = array
        if any(self.is_weight(name) for name in sources):
            self._weights.add(value)

    def postpone(self, node: Any) -> None:
        """Records that the results of a node are computed at run time, although all of its inputs are known."""
        self._postponed.update(node.output)

    def weight(self, name: str, array: Array) -> str:
        """Adds a weight that the model holds in an attribute of a node. Returns its name, which is new if necessary."""
        name = self.draft.names.mint(name) if name in self.known_values or self.draft.find(name) else name
        self.known_values[name] = array
        self._weights.add(name)
        return name

    def resolve_alias(self, value: str) -> str:
        """The value of which `value` is another name, or `value` itself."""
        return self._aliases.get(value, value)

    def finish(self, value: str) -> str:
        """The variable of an output of the graph, which has the output's name."""
        if value in self._aliases or value in self.known_values:
            source = self._aliases.pop(value, None)
            if source is None:
                return self.name(value)
            self.known_values.pop(value, None)
            self.op("assign", {"X": source}, {"Out": value})
        return value

    def module(self) -> Module:
        """The module: a program that computes the graph, and one that sets its persistable variables."""
        return self.draft.module()

    # Nodes that could not be read

    def lose(self, node: Any) -> None:
        """Records that the results of a node are missing."""
        self._lost.update(node.output)

    def is_lost(self, node: Any) -> bool:
        """Whether a node depends on one that could not be read; if so, its own results are recorded as missing."""
        if self._lost.isdisjoint(node.input):
            return False
        self.lose(node)
        return True


def attribute(node: Any, name: str, default: Any = None) -> Any:
    """An attribute of a node as a plain value, `default` if the node does not have it."""
    for held in node.attribute:
        if held.name == name:
            value = library("onnx.helper").get_attribute_value(held)
            return value.decode() if isinstance(value, bytes) else value
    return default


def axes_of(node: Any, reading: GraphReading, at: int = 1) -> list[int] | None:
    """The axes of a node, from an attribute or from the input `at`; None if it has none."""
    if len(node.input) > at and node.input[at]:
        return reading.ints(node.input[at], "its axes")
    axes = attribute(node, "axes")
    return None if axes is None else list(axes)


def dtype_of(number: int, name: str) -> DType:
    """The element type with ONNX's number `number`. Raises Refused if Fluid does not have it."""
    if number not in _DTYPES:
        raise Refused(f"{name} has elements of ONNX's type {number}, which Fluid has not")
    return _DTYPES[number]


Reader: TypeAlias = Callable[[Any, GraphReading], None]
"""A function that adds the ops of a node to a program. Raises Refused."""

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
    """Axes counted from 0. Raises Refused for an axis that a value of this rank does not have."""
    for axis in axes:
        if not -rank <= axis < rank:
            raise Refused(f"its axis {axis} is not one of {rank}")
    return [axis % rank for axis in axes]
