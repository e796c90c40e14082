"""Construction of ops. No other module fills in default attributes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from pstranspile.ir.argument_checks import expect, names_of
from pstranspile.ir.attributes import KINDS, PYTHON_TYPES, AttrKind, AttrValue, BlockRef, Floats, Strings, float32
from pstranspile.ir.model import (
    EMPTY,
    Attrs,
    Block,
    FrozenMap,
    Module,
    Op,
    Origin,
    ParameterInfo,
    Program,
    TensorType,
    Var,
)
from pstranspile.ir.types import DType, OpRole, VarKind, element_type
from pstranspile.ops import schema_of
from pstranspile.ops.schema import GENERIC_ATTRS

__all__ = ["BlockBuilder", "ProgramBuilder", "as_attribute", "build_module"]

# Writing programs in Python, op by op: for tests, and for programs that embed pstranspile.
#
#     main = ProgramBuilder(seed=1)
#     block = main.block
#     block.param("w", "f32", [13, 1])
#     block.temp("x", "f32", [-1, 13], feed=True)
#     block.temp("y", "f32", [-1, 1])
#     block.op("mul", {"X": "x", "Y": "w"}, {"Out": "y"}, x_num_col_dims=1)
#     module = build_module(main=main)
#
# Names of slots may hold one variable or a list; attributes take plain Python values, which get the kind that the op's
# schema gives them. Builders change; the values that `build` returns do not.

Names: TypeAlias = str | Iterable[str]
"""One variable, or several in order."""

_ELEMENTS: dict[type[Any], AttrKind] = {bool: AttrKind.BOOLEANS, int: AttrKind.INTS, float: AttrKind.FLOATS}
_FLOAT_KINDS = (AttrKind.FLOAT, AttrKind.FLOATS, AttrKind.FLOAT64)
_PLAIN = (bool, int, float, str, list, tuple)


def as_attribute(value: Any, kind: AttrKind | None = None) -> AttrValue:
    """A plain Python value as an attribute of `kind`, or of the kind that the value implies (None).

    A value that is of an attribute kind already (`Long(1)`, `Ints([1])`, a block) stays as it is. Raises TypeError for
    a value that implies no kind, such as an empty list without `kind` or a list of mixed types.
    """
    if isinstance(value, BlockBuilder):
        value = BlockRef(value.index)
    if type(value) not in _PLAIN:
        if type(value) not in KINDS:
            raise TypeError(f"{value!r} is no attribute value")
        return Floats([float32(part) for part in value]) if isinstance(value, Floats) else value
    if kind is not None:
        return _of_kind(value, kind)
    if isinstance(value, list | tuple):
        parts: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
        kinds: set[type[Any]] = {type(part) for part in parts}
        if kinds == {str}:
            return Strings(parts)
        if len(kinds) != 1 or kinds <= {list, tuple} or not kinds <= set(_ELEMENTS):
            raise TypeError(f"{value!r} has no attribute kind by itself; give it one, such as Ints({value!r})")
        return _of_kind(parts, _ELEMENTS[kinds.pop()])
    return float32(value) if isinstance(value, float) else value


def _of_kind(value: Any, kind: AttrKind) -> AttrValue:
    is_list = isinstance(value, list | tuple)
    if is_list != issubclass(PYTHON_TYPES[kind], tuple):
        raise TypeError(f"{value!r} is no value of kind {kind.name}")
    parts: list[Any] = list(value) if is_list else [value]  # pyright: ignore[reportUnknownArgumentType]
    for part in parts:
        if not _suits(part, kind):
            raise TypeError(f"{part!r} is no value of kind {kind.name}")
    if kind in (AttrKind.FLOAT, AttrKind.FLOATS):
        parts = [float32(float(part)) for part in parts]
    return PYTHON_TYPES[kind](parts) if is_list else PYTHON_TYPES[kind](parts[0])


def _suits(part: Any, kind: AttrKind) -> bool:
    if kind in (AttrKind.STRING, AttrKind.STRINGS):
        return isinstance(part, str)
    if kind in (AttrKind.BOOLEAN, AttrKind.BOOLEANS):
        return isinstance(part, bool)
    if isinstance(part, bool):
        return False
    return isinstance(part, int | float) if kind in _FLOAT_KINDS else isinstance(part, int)


def _as_names(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


class BlockBuilder:
    """A block under construction; `ProgramBuilder` creates it."""

    def __init__(self, program: ProgramBuilder, index: int, parent: int, forward: int):
        self.program = program
        self.index = index
        self.parent = parent
        self.forward = forward
        self._vars: dict[str, Var] = {}
        self._ops: list[Op] = []

    def var(self, variable: Var) -> str:
        """Declares a complete variable; returns its name. Raises ValueError if the name is taken."""
        if variable.name in self._vars:
            raise ValueError(f"variable {variable.name!r} is declared twice")
        self._vars[variable.name] = variable
        return variable.name

    def temp(
        self,
        name: str,
        dtype: DType | str = DType.FP32,
        shape: Iterable[int] = (),
        *,
        kind: VarKind = VarKind.LOD_TENSOR,
        lod_level: int = 0,
        feed: bool = False,
    ) -> str:
        """Declares a variable that lives for one step; returns its name. A dim of -1 in `shape` is
        known at run time.
        """
        tensor = TensorType(element_type(dtype), tuple(shape), lod_level)
        return self.var(Var(name, kind, tensor, need_check_feed=feed))

    def state(self, name: str, dtype: DType | str = DType.FP32, shape: Iterable[int] = (1,)) -> str:
        """Declares a persistable variable that is no parameter; returns its name."""
        return self.var(Var(name, VarKind.LOD_TENSOR, TensorType(element_type(dtype), tuple(shape)), persistable=True))

    def param(
        self,
        name: str,
        dtype: DType | str = DType.FP32,
        shape: Iterable[int] = (),
        info: ParameterInfo | None = None,
    ) -> str:
        """Declares a parameter; returns its name."""
        tensor = TensorType(element_type(dtype), tuple(shape))
        return self.var(Var(name, tensor=tensor, persistable=True, parameter=info or ParameterInfo()))

    def op(
        self,
        op_type: str,
        inputs: Mapping[str, Names] | None = None,
        outputs: Mapping[str, Names] | None = None,
        attrs: Mapping[str, Any] | None = None,
        *,
        role: OpRole = OpRole.FORWARD,
        role_vars: Iterable[str] = (),
        **more: Any,
    ) -> Op:
        """Appends an op with the defaults of its schema, and returns it; `more` are attributes as keywords.

        Raises TypeError for an attribute whose value is not of the kind its schema gives.
        """
        schema = schema_of(op_type)
        attributes: dict[str, AttrValue] = {}
        for attribute, value in {**(attrs or {}), **more}.items():
            spec = schema.attrs.get(attribute) if schema is not None else None
            try:
                attributes[attribute] = as_attribute(value, spec.kind if spec is not None else None)
            except TypeError as problem:
                raise TypeError(f"{op_type}, attribute {attribute}: {problem}") from None
        op = make_op(
            op_type,
            {slot: _as_names(names) for slot, names in (inputs or {}).items()},
            {slot: _as_names(names) for slot, names in (outputs or {}).items()},
            attributes,
            role=role,
            role_vars=tuple(role_vars),
        )
        self._ops.append(op)
        return op

    def append(self, op: Op) -> Op:
        """Appends a complete op."""
        self._ops.append(op)
        return op

    def build(self) -> Block:
        """The block in its current state."""
        variables = FrozenMap(self._vars) if self._vars else EMPTY
        return Block(variables, tuple(self._ops), self.parent, self.forward)


class ProgramBuilder:
    """A program under construction. `block` is its block 0."""

    def __init__(self, seed: int = 0, version: int | None = 0):
        self.seed = seed
        self.version = version
        self._blocks: list[BlockBuilder] = []
        self.block = self.new_block(parent=-1)

    def new_block(self, parent: BlockBuilder | int = 0, forward: BlockBuilder | int = -1) -> BlockBuilder:
        """Adds a block and returns its builder, which is the attribute of the op that runs the block. `forward` is the
        block whose gradients it computes.
        """
        above = parent.index if isinstance(parent, BlockBuilder) else parent
        of = forward.index if isinstance(forward, BlockBuilder) else forward
        made = BlockBuilder(self, len(self._blocks), above, of)
        self._blocks.append(made)
        return made

    def build(self) -> Program:
        """The program in its current state."""
        return Program(tuple([block.build() for block in self._blocks]), self.seed, self.version)


def build_module(**programs: ProgramBuilder | Program) -> Module:
    """A module of the programs, by name: `build_module(main=main, startup=startup)`."""
    built = {name: one.build() if isinstance(one, ProgramBuilder) else one for name, one in programs.items()}
    return Module(FrozenMap(built))


_GENERIC: Attrs = FrozenMap({name: spec.default for name, spec in GENERIC_ATTRS.items() if spec.default is not None})


_MAPPINGS = (dict, FrozenMap)
"""The usual classes of mappings, which are quickly told."""


def make_op(
    op_type: str,
    inputs: Mapping[str, Iterable[str]],
    outputs: Mapping[str, Iterable[str]],
    attrs: Mapping[str, AttrValue] | None = None,
    *,
    role: OpRole = OpRole.FORWARD,
    role_vars: tuple[str, ...] = (),
    origin: Origin | None = None,
) -> Op:
    """An op as Fluid's Python layer makes it, with the schema's defaults and empty dispensable inputs.

    Raises TypeError when a slot is given as a bare string instead of a list of names, and for arguments of other types.
    """
    if not (op_type.__class__ is str and role.__class__ is OpRole and role_vars.__class__ is tuple):
        expect(op_type, str, "make_op", "text")
        expect(role, OpRole, "make_op", "an OpRole as role")
        role_vars = names_of(role_vars, "make_op")
    if not (inputs.__class__ in _MAPPINGS and outputs.__class__ in _MAPPINGS):
        expect(inputs, Mapping, "make_op", "names of variables by slot as inputs")
        expect(outputs, Mapping, "make_op", "names of variables by slot as outputs")
    if attrs is not None:
        expect(attrs, Mapping, "make_op", "values by name as attrs")
    if origin is not None and origin.__class__ is not Origin:
        expect(origin, Origin, "make_op", "an Origin as origin")
    schema = schema_of(op_type)
    given_inputs = {slot: _names(op_type, slot, names) for slot, names in inputs.items()}
    given_outputs = {slot: _names(op_type, slot, names) for slot, names in outputs.items()}
    empty = schema.empty_inputs if schema else EMPTY
    return Op(
        op_type,
        FrozenMap({**empty, **given_inputs}) if empty else FrozenMap(given_inputs),
        FrozenMap(given_outputs),
        complete_attrs(op_type, attrs),
        role,
        role_vars,
        False,
        origin,
    )


class OpMaker:
    """A factory of ops of one type, role and set of attributes, like `make_op`. All its ops share one attribute
    mapping.

    It is for ops that a program has thousands of, where memory dominates the compile time.
    """

    def __init__(
        self, op_type: str, attrs: Mapping[str, AttrValue] | None = None, *, role: OpRole = OpRole.FORWARD
    ) -> None:
        schema = schema_of(op_type)
        self._type = op_type
        self._role = role
        self._attrs = complete_attrs(op_type, attrs)
        self._empty = schema.empty_inputs if schema else EMPTY

    def __call__(
        self,
        inputs: Mapping[str, tuple[str, ...]],
        outputs: Mapping[str, tuple[str, ...]],
        role_vars: tuple[str, ...] = (),
        origin: Origin | None = None,
    ) -> Op:
        """An op with these variables. Frozen `outputs`, and `inputs` that are frozen and complete, are not copied."""
        if self._empty and not self._empty.keys() <= inputs.keys():
            inputs = {**self._empty, **inputs}
        if not isinstance(inputs, FrozenMap):
            inputs = FrozenMap(inputs)
        if not isinstance(outputs, FrozenMap):
            outputs = FrozenMap(outputs)
        return Op(self._type, inputs, outputs, self._attrs, self._role, role_vars, False, origin)


def complete_attrs(op_type: str, attrs: Mapping[str, AttrValue] | None) -> Attrs:
    """The attributes with the schema's defaults filled in; ops that carry only defaults share one mapping."""
    schema = schema_of(op_type)
    base = schema.defaults if schema else _GENERIC
    return FrozenMap({**base, **attrs}) if attrs else base


def _names(op_type: str, slot: str, names: Iterable[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise TypeError(f"{op_type}: slot {slot} takes a list of names, got the string {names!r}")
    if not isinstance(names, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{op_type}: slot {slot} takes a list of names, not a value of type {type(names).__name__}")
    result = tuple(names)
    for name in result:
        if name.__class__ is not str:
            expect(name, str, f"slot {slot} of {op_type}", "a list of names")
    return result


def typed_slots(op_type: str) -> tuple[str, str]:
    """The input slot whose element type Fluid gives to an output slot as it appends the op, and that output slot.

    Such an op declares what it writes with the element type of what it reads, whatever was declared before. Both are ""
    for op types without such slots.
    """
    schema = schema_of(op_type)
    if schema is None or schema.facts.typed_by not in schema.inputs:
        return "", ""
    return schema.facts.typed_by, next(iter(schema.outputs))
