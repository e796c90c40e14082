"""Programs under construction, and their variables. Programs are changed only here."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from operator import index, is_
from typing import Any, NamedTuple, TypeAlias, TypeGuard

from pstranspile.frontends.python_places import calling_place
from pstranspile.ir.attributes import (
    PYTHON_TYPES,
    AttrKind,
    AttrValue,
    BlockRef,
    BlockRefs,
    Ints,
    Long,
    float32,
    kind_of,
    round_to_float32,
)
from pstranspile.ir.diagnostics import did_you_mean
from pstranspile.ir.model import EMPTY, MAIN, STARTUP, Block, FrozenMap, Module, Op, Origin, Program, TensorType, Var
from pstranspile.ir.patterns import Pattern
from pstranspile.ir.types import DType, OpRole, VarKind
from pstranspile.ops import schema_of
from pstranspile.ops.build import make_op, typed_slots
from pstranspile.ops.schema import AttrSpec
from pstranspile.ops.shapes import Types, infer_types

# Fluid's generated names: counters for variables, and a tree of scopes for ops.

_NUMBERED = Pattern(r"(.*)_(\d+)\Z", re.DOTALL)


class Names:
    """Generates the names `key_0`, `key_1`, ... for each key."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}
        self.reserved_names: set[str] = set()
        """Names of others, which are not given."""

    def mint(self, key: str) -> str:
        """The next name of `key` that is not in `reserved_names`: `fc` gives fc_0, fc_1, ..."""
        number = self._next.get(key, 0)
        while f"{key}_{number}" in self.reserved_names:
            number += 1
        self._next[key] = number + 1
        return f"{key}_{number}"

    def copy(self) -> dict[str, int]:
        """The state of the counters, for `restore`."""
        return dict(self._next)

    def restore(self, counters: dict[str, int]) -> None:
        """Sets the counters back to an earlier state."""
        self._next = dict(counters)

    def skip(self, name: str) -> None:
        """Marks a name as used, and the layer's name before its first dot.

        `fc_0.w_1` uses up `fc_0` and `fc_0.w_0`, so that the next ones are `fc_1` and `fc_0.w_2`.
        """
        numbered = _NUMBERED.match(name)
        if numbered:
            key, number = numbered[1], int(numbered[2])
            self._next[key] = max(self._next.get(key, 0), number + 1)
        layer, dot, _ = name.partition(".")
        if dot:
            self.skip(layer)


class Scopes:
    """The names of nested scopes: a scope entered again at the same place is `name_1`, `name_2`, ..."""

    def __init__(self) -> None:
        self._children: dict[str, int] = {}
        self.path = "/"
        self.device: str | None = None

    @contextmanager
    def enter_scope(self, name: str) -> Generator[None]:
        """Enters a scope for the context; ops created in it have `/name/` as `op_namescope`."""
        before, key = self.path, self.path + name
        count = self._children.get(key, 0)
        self._children[key] = count + 1
        self.path = f"{key}_{count}/" if count else f"{key}/"
        try:
            yield
        finally:
            self.path = before

    @contextmanager
    def on(self, device: str | None) -> Generator[None]:
        """Ops created in the context, except those with a sub-block, carry the device as `op_device`; None: the default
        device.
        """
        before, self.device = self.device, device
        try:
            yield
        finally:
            self.device = before

    def skip(self, path: str) -> None:
        """Marks a scope's path as used."""
        parts = path.strip("/").split("/")
        for depth, part in enumerate(parts):
            if not part:
                continue
            inner = "".join(f"{outer}/" for outer in parts[:depth])
            numbered = _NUMBERED.match(part)
            for name, number in ((numbered[1], int(numbered[2]) + 1) if numbered else (part, 1), (part, 1)):
                key = f"/{inner}{name}"
                self._children[key] = max(self._children.get(key, 0), number)


def names_in_use(programs: Iterable[Program]) -> tuple[Names, Scopes]:
    """Counters that continue after the names and scopes of these programs."""
    names, scopes = Names(), Scopes()
    for program in programs:
        for block in program.blocks:
            for name in block.vars:
                names.skip(name)
            paths = {op.attrs.get("op_namescope") for op in block.ops}
            for path in sorted(path for path in paths if isinstance(path, str)):
                scopes.skip(path)
    return names, scopes


# Conversion of attributes given as plain Python values.

_LISTS = {
    AttrKind.BOOLEAN: AttrKind.BOOLEANS,
    AttrKind.INT: AttrKind.INTS,
    AttrKind.LONG: AttrKind.LONGS,
    AttrKind.FLOAT: AttrKind.FLOATS,
    AttrKind.STRING: AttrKind.STRINGS,
}


def attributes(op_type: str, attrs: Mapping[str, object]) -> dict[str, AttrValue]:
    """Plain Python values converted to the attribute kinds in the op type's schema.

    Raises KeyError for an attribute that is not declared, TypeError for a value of another kind, OutOfRange for an
    integer of too many bits.
    """
    schema = schema_of(op_type)
    if schema is None:
        raise KeyError(f"op type {op_type} is not declared")
    return {name: _attr_value(op_type, name, value, schema.attrs.get(name)) for name, value in attrs.items()}


class Refused(Exception):
    """Raised for what a format can't express or a program can't have, with the reason and the variable ("": the op)."""

    def __init__(self, message: str, variable: str = ""):
        super().__init__(message)
        self.variable = variable


class OutOfRange(ValueError):
    """Raised for an integer that has more bits than its attribute can hold."""


_BITS = {AttrKind.INT: 32, AttrKind.INTS: 32, AttrKind.LONG: 64, AttrKind.LONGS: 64}


def _require_range(op_type: str, name: str, value: object, kind: AttrKind) -> None:
    bits = _BITS.get(kind, 0)
    if not bits:
        return
    for number in value if isinstance(value, Sequence) else (value,):  # pyright: ignore[reportUnknownVariableType]
        if isinstance(number, int) and not -(1 << bits - 1) <= number < 1 << bits - 1:
            raise OutOfRange(f"the attribute {name} of {op_type} would be {number}; it is an integer of {bits} bits")


_WORDS = {
    **dict.fromkeys((AttrKind.INT, AttrKind.LONG), "an integer"),
    **dict.fromkeys((AttrKind.INTS, AttrKind.LONGS), "a list of integers"),
    **dict.fromkeys((AttrKind.FLOAT, AttrKind.FLOAT64), "a number"),
    AttrKind.FLOATS: "a list of numbers",
    AttrKind.BOOLEAN: "True or False",
    AttrKind.BOOLEANS: "a list of True and False",
    AttrKind.STRING: "a text",
    AttrKind.STRINGS: "a list of texts",
}
"""What messages call the values of a kind."""

_SINGLE, _SEVERAL = frozenset(_LISTS), frozenset(_LISTS.values())
_INTEGER_KINDS = (AttrKind.INT, AttrKind.INTS, AttrKind.LONG, AttrKind.LONGS)
_LONG_KINDS = (AttrKind.LONG, AttrKind.LONGS)
_NUMBER_KINDS = (AttrKind.FLOAT, AttrKind.FLOATS, AttrKind.FLOAT64)


def _require_kind(op_type: str, name: str, value: Any, kind: AttrKind) -> None:
    """Raises TypeError for a value of another kind, which Python would convert, such as a text to the number in it."""
    if kind not in _WORDS:
        return
    for item in value if isinstance(value, list | tuple) else (value,):  # pyright: ignore[reportUnknownVariableType]
        if kind in (AttrKind.STRING, AttrKind.STRINGS):
            suits = isinstance(item, str)
        elif kind in _INTEGER_KINDS:
            suits = _whole(item, truncated=kind in _LONG_KINDS) is not None
        elif kind in _NUMBER_KINDS:
            suits = hasattr(item, "__float__") or hasattr(item, "__index__")  # pyright: ignore[reportUnknownArgumentType]
        else:
            suits = not isinstance(item, str | bytes)
        if not suits:
            raise TypeError(f"{op_type}: the attribute {name} is {_WORDS[kind]}, not {_describe_value(item)}")  # pyright: ignore[reportUnknownArgumentType]


def _describe_value(value: object) -> str:
    return f"the text {value!r}" if isinstance(value, str) else repr(value)


def _whole(value: Any, *, truncated: bool = False) -> int | None:
    """A whole number that a script gives, None for what is none. As in Fluid, a float (NumPy's float64 is one) is a
    whole number only where it is `truncated`, and any other object with `__int__` is: a number of NumPy, or an array
    of one element. Other floats of NumPy are none either where they have a fraction, which Fluid drops in silence.
    """
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return int(value) if truncated and isfinite(value) else None
    if getattr(value, "size", 0) == 1 and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return int(value) if isfinite(value) and (truncated or value.is_integer()) else None
    for convert in (index, int):
        if hasattr(value, f"__{convert.__name__}__"):
            try:
                return convert(value)
            except (TypeError, ValueError, OverflowError):
                return None
    return None


def _of_integers(value: Any, *, truncated: bool) -> Any:
    """The value of an attribute with numbers of Python in the place of those of NumPy."""
    if isinstance(value, list | tuple):
        return [_whole(item, truncated=truncated) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return value if isinstance(value, int) or getattr(value, "size", 1) != 1 else _whole(value, truncated=truncated)


def whole_dim(dim: Any, *, truncated: bool = False) -> int:
    """A dim that a script gives; `truncated` if Fluid takes a float there, and drops its fraction. Raises TypeError
    for what is no whole number, such as a text.
    """
    number = _whole(dim, truncated=truncated)
    if number is None:
        raise TypeError(f"a dim is a whole number, not {_describe_value(dim)}")
    return number


def whole_dims(tensor: TensorType, name: str) -> TensorType:
    """The type with dims that are numbers of Python. Raises TypeError for dims that are no whole numbers."""
    if all(dim.__class__ is int for dim in tensor.shape):
        return tensor
    numbers = [_whole(dim) for dim in tensor.shape]
    for dim, number in zip(tensor.shape, numbers, strict=True):
        if number is None:
            raise TypeError(
                f"%{name} would be of dims {[*tensor.shape]}: each is a whole number, not {_describe_value(dim)}"
            )
    return tensor._replace(shape=tuple(number for number in numbers if number is not None))


def _attr_value(op_type: str, name: str, value: object, spec: AttrSpec | None) -> AttrValue:
    if isinstance(value, DType):
        return value.value
    if spec is None:
        if name in ("op_namescope", "op_device") and isinstance(value, str):
            return value
        raise KeyError(f"{op_type} has no attribute {name}")
    _require_kind(op_type, name, value, spec.kind)
    if spec.among and isinstance(value, str) and value not in spec.among:
        hint = did_you_mean(value, spec.among) or f", it must be one of {', '.join(spec.among)}"
        raise ValueError(f"{op_type}: the attribute {name} is {value!r}{hint}")
    if spec.kind in _INTEGER_KINDS:
        value = _of_integers(value, truncated=spec.kind in _LONG_KINDS)
    if spec.kind is AttrKind.FLOAT and isinstance(value, int | float):
        return round_to_float32(value if isinstance(value, float) else float(value))
    if spec.kind is AttrKind.FLOATS and isinstance(value, Sequence):
        return PYTHON_TYPES[spec.kind](float32(float(item)) for item in value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    python = PYTHON_TYPES[spec.kind]
    if isinstance(value, int):
        _require_range(op_type, name, value, spec.kind)
    scalar = isinstance(value, bool | int | float | str)
    if scalar and spec.kind in (AttrKind.INTS, AttrKind.LONGS) and isinstance(value, int):
        return Ints((value,)) if spec.kind is AttrKind.INTS else python((value,))
    if (scalar and spec.kind in _SEVERAL) or (isinstance(value, list | tuple) and spec.kind in _SINGLE):
        raise TypeError(f"{op_type}: the attribute {name} is {_WORDS[spec.kind]}, not {_describe_value(value)}")  # pyright: ignore[reportUnknownArgumentType]
    _require_range(op_type, name, value, spec.kind)  # pyright: ignore[reportUnknownArgumentType]
    return python(value)


def infer_attr(value: object) -> AttrValue:
    """A plain Python value as an attribute that no schema declares; booleans become integers, as in Fluid. Raises
    TypeError for values that no attribute can hold.
    """
    if isinstance(value, str | BlockRef | BlockRefs):
        return value
    if isinstance(value, int):
        return int(value) if -(2**31) <= value < 2**31 else Long(value)
    if isinstance(value, float):
        return round_to_float32(value)
    if isinstance(value, Sequence):
        items: list[AttrValue] = [infer_attr(item) for item in value]  # pyright: ignore
        kind = kind_of(items[0]) if items else AttrKind.INT
        if kind is AttrKind.INT and any(isinstance(item, Long) for item in items):
            kind = AttrKind.LONG
        if kind in _LISTS:
            return PYTHON_TYPES[_LISTS[kind]](items)
    raise TypeError(f"no attribute holds {value!r}")


Names_: TypeAlias = "Value | str | Sequence[Value | str]"
"""The variables of a slot: one or several, as values or by name."""

FLUID_VERSION = 1008005
"""The version number that programs of Fluid 1.8.5 carry."""

_TYPED = (VarKind.LOD_TENSOR, VarKind.LOD_TENSOR_ARRAY)
"""Kinds of variables whose dims follow from the ops that write them. An array has the dims of its tensors."""


class Draft:
    """A main and a startup program under construction; `module()` returns them as values.

    `stop_gradient` holds the names of variables that get no gradient. The context managers `block`, `scope` and `roles`
    determine where ops are appended, and their roles.
    """

    def __init__(self, main: Program | None = None, startup: Program | None = None, *, seed: int = 0):
        fresh = Program(random_seed=seed, version=FLUID_VERSION)
        self._main, self._startup = main or fresh, startup or fresh
        self.blocks = [BlockDraft(block) for block in self._main.blocks]
        self.startup = BlockDraft(self._startup.main_block)
        self.names: Names
        self.scopes: Scopes
        self.names, self.scopes = names_in_use(program for program in (main, startup) if program)
        self.stop_gradient: set[str] = set()
        self.clips: dict[str, object] = {}
        self.regularizers: dict[str, object] = {}
        self.unaveraged: set[str] = set()
        self.current = 0
        self.role = OpRole.FORWARD
        self.role_vars: tuple[str, ...] = ()
        self.gradient_calls = 0
        """How often gradients with respect to other variables than a loss's parameters were appended to the main
        program.
        """

    @property
    def seed(self) -> int:
        """The random seed of the startup program, the default seed of initialisers."""
        return self._startup.random_seed

    @property
    def main_seed(self) -> int:
        """The random seed of the main program, the default seed of dropout."""
        return self._main.random_seed

    @property
    def origin(self) -> Origin | None:
        """The origin of ops made now: the line of the user's Python that is being run, which diagnostics about these
        ops name.
        """
        return calling_place(self.current)

    @property
    def block(self) -> BlockDraft:
        """The block that ops are appended to."""
        return self.blocks[self.current]

    def module(self) -> Module:
        """The programs `@main` and `@startup` as they stand now."""
        startup_blocks = (self.startup.freeze(), *self._startup.blocks[1:])
        return Module(FrozenMap({MAIN: self.main(), STARTUP: self._startup._replace(blocks=startup_blocks)}))

    def main(self) -> Program:
        """The main program as it stands now."""
        return self._main._replace(blocks=tuple(block.freeze() for block in self.blocks))

    def copy(self) -> DraftState:
        """The state of the main program, for `restore`."""
        return DraftState(
            tuple(block.freeze() for block in self.blocks), self.names.copy(), frozenset(self.stop_gradient)
        )

    def restore(self, state: DraftState) -> None:
        """Sets the main program back to an earlier state."""
        self.blocks[:] = [BlockDraft(block) for block in state.blocks]
        self.names.restore(state.names)
        self.stop_gradient = set(state.stopped_names)

    def sibling(self) -> Draft:
        """A draft of another, empty main program with the same startup program, names and scopes."""
        other = type(self)(seed=self._main.random_seed)
        other.names, other.scopes, other.startup = self.names, self.scopes, self.startup
        return other

    def parameters(self) -> list[Var]:
        """The parameters, in order of declaration."""
        return [var for var in self.blocks[0].vars.values() if var.parameter is not None]

    # The place where ops are appended, and their roles

    @contextmanager
    def scope(self, name: str) -> Generator[None]:
        """Ops created in the context carry the name scope `name`."""
        with self.scopes.enter_scope(name):
            yield

    @contextmanager
    def roles(self, role: OpRole, *role_vars: str) -> Generator[None]:
        """Ops created in the context have this role and these role variables."""
        before = self.role, self.role_vars
        self.role, self.role_vars = role, role_vars
        try:
            yield
        finally:
            self.role, self.role_vars = before

    @contextmanager
    def enter_block(self, block: int) -> Generator[BlockDraft]:
        """Appends ops created in the context to the block of this index."""
        before, self.current = self.current, block
        try:
            yield self.blocks[block]
        finally:
            self.current = before

    def new_block(self, forward_block: int = -1) -> int:
        """Adds an empty block inside the current one and returns its index."""
        self.blocks.append(BlockDraft(Block(parent=self.current, forward_block=forward_block)))
        return len(self.blocks) - 1

    # Variables

    def find(self, name: str, block: int | None = None) -> Var | None:
        """The declaration to which `name` resolves in a block (default: the current one), None if there is none."""
        waiting, seen = [self.current if block is None else block], set[int]()
        for number in waiting:
            if number < 0 or number in seen:
                continue
            var = self.blocks[number].vars.get(name)
            if var is not None:
                return var
            seen.add(number)
            waiting += (self.blocks[number].forward_block, self.blocks[number].parent)
        return None

    def type_of(self, name: str) -> TensorType | None:
        """The declared type of a variable seen from the current block, None if it is not known."""
        var = self.find(name)
        return var.tensor if var else None

    def declare(self, var: Var, block: int | None = None) -> Value:
        """Declares a variable in a block (default: the current one), replacing one of the same name there. Raises
        TypeError for dims that are no numbers.
        """
        if var.tensor is not None:
            tensor = whole_dims(var.tensor, var.name)
            var = var if tensor is var.tensor else var._replace(tensor=tensor)
        self.blocks[self.current if block is None else block].vars[var.name] = var
        return Value(self, var.name)

    def temporary(self, layer: str, dtype: DType | None = None, *, stop_gradient: bool = False) -> Value:
        """A new variable `<layer>.tmp_<n>` of the current block. The op that writes it determines its shape."""
        return self.fresh(f"{layer}.tmp", dtype, stop_gradient=stop_gradient)

    def fresh(self, key: str, dtype: DType | None = None, *, stop_gradient: bool = False) -> Value:
        """A new variable of the current block with the next name of `key`."""
        name = self.names.mint(key)
        if stop_gradient:
            self.stop_gradient.add(name)
        return self.declare(Var(name, tensor=TensorType(dtype, ()) if dtype else None))

    # Ops

    def op(
        self,
        op_type: str,
        inputs: Mapping[str, Names_] | None,
        outputs: Mapping[str, Names_],
        attrs: Mapping[str, object] | None = None,
        *,
        front: bool = False,
    ) -> Op:
        """Appends an op to the current block, or inserts it in `front` of the block, and sets the types of its outputs.

        `inputs` None means that the op has no input slots at all. Raises ShapeError when inputs don't fit.
        """
        made = self.make(op_type, inputs, outputs, attrs)
        (self.block.front if front else self.block.ops).append(made)
        self.type_outputs(made)
        return made

    def make(
        self,
        op_type: str,
        inputs: Mapping[str, Names_] | None,
        outputs: Mapping[str, Names_],
        attrs: Mapping[str, object] | None = None,
    ) -> Op:
        """A new op with the current role and scope that is not part of a block yet."""
        given = {slot: names_of(held) for slot, held in (inputs or {}).items()}
        written = {slot: names_of(held) for slot, held in outputs.items()}
        typed = attributes(op_type, {"op_namescope": self.scopes.path, **(attrs or {})})
        if self.scopes.device is not None and "sub_block" not in typed:
            typed["op_device"] = self.scopes.device
        made = make_op(op_type, given, written, typed, role=self.role, role_vars=self.role_vars, origin=self.origin)
        return made if inputs is not None else made._replace(inputs=EMPTY)

    def startup_op(
        self, op_type: str, inputs: Mapping[str, Names_] | None, output: str, *, front: bool = True, **attrs: object
    ) -> None:
        """Adds an op that writes `output` in `front` of the startup program, or at its end."""
        with self.roles(OpRole.FORWARD):
            made = self.make(op_type, inputs, {"Out": output}, attrs)
            (self.startup.front if front else self.startup.ops).append(made)

    def type_outputs(self, op: Op) -> None:
        """Declares the inferred dims of an op's outputs, whatever was declared, and the dtypes where Fluid infers
        these.
        """
        _, followed = typed_slots(op.type)
        for slot, types in self.infer_output_types(op).items():
            for name, inferred in zip(op.outputs.get(slot, ()), types, strict=False):
                at = self._home(name)
                declared = self.blocks[at].vars.get(name)
                if inferred is None or declared is None or declared.kind not in _TYPED:
                    continue
                if declared.tensor is None or slot == followed:
                    self.declare(declared._replace(tensor=inferred), at)
                elif inferred.shape:
                    self.declare(declared._replace(tensor=inferred._replace(dtype=declared.tensor.dtype)), at)

    def infer_output_types(self, op: Op) -> Types:
        """The types of an op's outputs by its shape rule. Raises ShapeError when inputs don't fit."""
        return infer_types(op, self.type_for_shape_rules)

    def type_for_shape_rules(self, name: str) -> TensorType | None:
        """The type of a variable as the shape rules of ops see it."""
        return self.type_of(name)

    def _home(self, name: str) -> int:
        """The block that declares the variable to which a name resolves in the current block; the current block if none
        does.
        """
        at = self.current
        while at >= 0 and name not in self.blocks[at].vars:
            at = self.blocks[at].parent
        return self.current if at < 0 else at


class TranslatedDraft(Draft):
    """A draft of programs that are translated from another form. Their ops have the origin that the translation sets,
    whoever calls it.
    """

    origin: Origin | None = None  # pyright: ignore[reportIncompatibleVariableOverride, reportIncompatibleMethodOverride]


def names_of(slot: Names_) -> tuple[str, ...]:
    """The names in a slot."""
    items: Iterable[Value | str] = (slot,) if isinstance(slot, Value | str) else slot
    return tuple(item.name if isinstance(item, Value) else item for item in items)


Number = int | float
_INTEGERS = (DType.INT16, DType.INT32, DType.INT64, DType.UINT8, DType.INT8)


def _operator(
    op_type: str, dtype: DType | None = None, *, swapped: bool = False
) -> Callable[[Value, Value | Number], Value]:
    """A method of `Value`: the op with the value as X and the operand as Y, or vice versa if `swapped`."""

    def method(self: Value, other: Value | Number) -> Value:
        return _binary(op_type, other, self, dtype) if swapped else _binary(op_type, self, other, dtype)

    return method


class Value:
    """A variable by name, and the draft that it belongs to.

    `x + y`, `x * 2.0`, `x < y`, ... create the ops that Fluid's Python layer creates for them. With a number on one
    side this is a `scale` if possible, else a `fill_constant` and an elementwise op.
    """

    __slots__ = ("draft", "name")

    def __init__(self, draft: Draft, name: str):
        self.draft = draft
        self.name = name

    def __repr__(self) -> str:
        return f"%{self.name}"

    @property
    def var(self) -> Var:
        """The declaration. Raises KeyError if the variable is not declared in the current block or around it."""
        result = self.draft.find(self.name)
        if result is None:
            raise KeyError(f"%{self.name} is not declared")
        return result

    @property
    def tensor(self) -> TensorType:
        """Dtype, dims and LoD level. Raises ValueError if they are not known."""
        tensor = self.var.tensor
        if tensor is None:
            raise ValueError(f"the type of %{self.name} is not known")
        return tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The dims; -1 for dims that are known only at run time."""
        return self.tensor.shape

    @property
    def dtype(self) -> DType:
        """The dtype."""
        return self.tensor.dtype

    @property
    def lod_level(self) -> int:
        """The nesting depth of the sequences; 0 for plain tensors."""
        return self.tensor.lod_level

    def redeclare_dims(self, shape: Sequence[int]) -> Value:
        """The same variable, redeclared with these dims for the ops after it, where Fluid's dims differ from the
        inferred ones.
        """
        self.draft.declare(self.var._replace(tensor=self.tensor._replace(shape=tuple(shape))))
        return self

    def stopped(self) -> Value:
        """The same variable, marked to get no gradient."""
        self.draft.stop_gradient.add(self.name)
        return self

    def __neg__(self) -> Value:
        return _append_scale(self, -1.0, 0.0)

    def __add__(self, other: Value | Number) -> Value:
        return _append_scale(self, 1.0, float(other)) if _number(other) else _binary("elementwise_add", self, other)

    __radd__ = __add__

    def __sub__(self, other: Value | Number) -> Value:
        return _append_scale(self, 1.0, -float(other)) if _number(other) else _binary("elementwise_sub", self, other)

    def __rsub__(self, other: Value | Number) -> Value:
        return _append_scale(self, -1.0, float(other)) if _number(other) else _binary("elementwise_sub", other, self)

    def __mul__(self, other: Value | Number) -> Value:
        return _append_scale(self, float(other), 0.0) if _number(other) else _binary("elementwise_mul", self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Value | Number) -> Value:
        if _number(other) and self.dtype not in _INTEGERS:
            return _append_scale(self, 1.0 / other, 0.0)
        return _binary("elementwise_div", self, other)

    __pow__ = _operator("elementwise_pow")
    __rpow__ = _operator("elementwise_pow", swapped=True)
    __rtruediv__ = _operator("elementwise_div", swapped=True)
    __floordiv__ = _operator("elementwise_floordiv")
    __mod__ = _operator("elementwise_mod")
    equal = _operator("equal", DType.BOOL)
    """Element by element, whether both are equal (Fluid writes `==`)."""
    not_equal = _operator("not_equal", DType.BOOL)
    """Element by element, whether they differ (Fluid writes `!=`)."""
    __lt__ = _operator("less_than", DType.BOOL)
    __le__ = _operator("less_equal", DType.BOOL)
    __gt__ = _operator("greater_than", DType.BOOL)
    __ge__ = _operator("greater_equal", DType.BOOL)


def _number(value: object) -> TypeGuard[Number]:
    return isinstance(value, int | float)


def _append_scale(x: Value, factor: float, bias: float) -> Value:
    out = x.draft.fresh("tmp", x.dtype)
    x.draft.op("scale", {"X": x}, {"Out": out}, {"scale": factor, "bias": bias})
    return out


def _constant_like(like: Value, number: Number, *, left: bool) -> Value:
    """A number as a variable: with one element, or, as the left operand, with the dims of `like`."""
    draft = like.draft
    out = draft.fresh("tmp", like.dtype, stop_gradient=True)
    shape = like.shape if left else (1,)
    if min(shape) >= 0:
        draft.op("fill_constant", None, {"Out": out}, {"dtype": like.dtype, "shape": shape, "value": number})
        return out
    batch = shape.index(-1)
    dims = [1 if dim < 0 and at != batch else dim for at, dim in enumerate(shape)]
    attrs = {"shape": dims, "value": number, "input_dim_idx": batch, "output_dim_idx": batch}
    draft.op("fill_constant_batch_size_like", {"Input": like}, {"Out": out}, attrs)
    return out


def _binary(op_type: str, x: Value | Number, y: Value | Number, dtype: DType | None = None) -> Value:
    known = x if isinstance(x, Value) else y
    assert isinstance(known, Value)
    left = x if isinstance(x, Value) else _constant_like(known, x, left=True)
    right = y if isinstance(y, Value) else _constant_like(known, y, left=False)
    if left.dtype is not right.dtype:
        cast = known.draft.fresh("tmp", left.dtype)
        known.draft.op("cast", {"X": right}, {"Out": cast}, {"in_dtype": right.dtype, "out_dtype": left.dtype})
        right = cast
    draft = known.draft
    out = draft.fresh("tmp", dtype or left.dtype)
    draft.op(op_type, {"X": left, "Y": right}, {"Out": out}, {"axis": 0 if right.shape[:1] == (-1,) else -1})
    return out


# A block of a training program under construction.


class BlockDraft:
    """A block under construction. Ops in `front` precede all others, the last one first."""

    def __init__(self, block: Block):
        self.vars: dict[str, Var] = dict(block.vars)
        self.ops: list[Op] = list(block.ops)
        self.front: list[Op] = []
        self.parent = block.parent
        self.forward_block = block.forward_block

    def all_ops(self) -> Iterator[Op]:
        """The ops in execution order."""
        yield from reversed(self.front)
        yield from self.ops

    def freeze(self) -> Block:
        """The block as a value."""
        return Block(FrozenMap(self.vars), tuple(self.all_ops()), self.parent, self.forward_block)

    def gives(self, block: Block) -> bool:
        """Whether `freeze` would return this block, compared object by object, which is faster than
        comparing values.
        """
        return (
            len(self.ops) + len(self.front) == len(block.ops)
            and len(self.vars) == len(block.vars)
            and self.parent == block.parent
            and self.forward_block == block.forward_block
            and _same_objects(self.all_ops() if self.front else self.ops, block.ops)
            and _same_objects(self.vars.values(), block.vars.values())
        )


def gradient_block(blocks: Sequence[BlockDraft], of: int) -> int | None:
    """The block with the gradient ops of block `of`, which trains; None if it has none."""
    return next((number for number, block in enumerate(blocks) if block.forward_block == of), None)


def train_in(blocks: Sequence[BlockDraft], number: int) -> None:
    """Moves the gradient ops of a block that trains to its end, so that each iteration of a loop trains."""
    apart = gradient_block(blocks, number)
    if apart is not None:
        source, target = blocks[apart], blocks[number]
        target.ops += source.ops
        target.vars.update(source.vars)
        source.ops.clear()
        source.vars.clear()


def _same_objects(objects: Iterable[object], others: Iterable[object]) -> bool:
    return all(map(is_, objects, others))


class DraftState(NamedTuple):
    """The state of a draft's main program, and the names that were taken."""

    blocks: tuple[Block, ...]
    names: dict[str, int]
    stopped_names: frozenset[str]
