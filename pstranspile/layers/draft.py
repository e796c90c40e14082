"""A training program while it is being made: the one place where programs change."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from pstranspile.ir.attributes import AttrKind, AttrValue, Ints, float32
from pstranspile.ir.frozen import EMPTY, FrozenMap
from pstranspile.ir.model import MAIN, STARTUP, Block, Module, Op, Origin, Program, TensorType, Var
from pstranspile.ir.roles import OpRole
from pstranspile.ir.types import DType, VarKind
from pstranspile.layers.names import Names, Scopes, names_in_use
from pstranspile.layers.value import Value
from pstranspile.ops import schema_of
from pstranspile.ops.build import make_op
from pstranspile.ops.schema import AttrSpec
from pstranspile.ops.shapes import infer_types

Names_: TypeAlias = "Value | str | Sequence[Value | str]"
"""What may stand in a slot: a variable or several, as values or by name."""

FLUID_VERSION = 1008005
"""The version number that programs of Fluid 1.8.5 carry."""


class BlockDraft:
    """A block while it is being made; ops put in front stand before all others, the last one first."""

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


class Draft:
    """A main and a startup program while they are being made; `module()` gives them as values.

    `stop_gradient` holds the names of variables that get no gradient. Which ops are made where is said by the
    context managers `block`, `scope` and `roles`.
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
        self.current = 0
        self.role = OpRole.FORWARD
        self.role_vars: tuple[str, ...] = ()
        self.origin: Origin | None = None

    @property
    def seed(self) -> int:
        """The random seed of the startup program, which initialisers without a seed of their own take."""
        return self._startup.random_seed

    @property
    def main_seed(self) -> int:
        """The random seed of the main program, which dropout without a seed of its own takes."""
        return self._main.random_seed

    @property
    def block(self) -> BlockDraft:
        """The block that ops are made in."""
        return self.blocks[self.current]

    def module(self) -> Module:
        """The programs `@main` and `@startup` as they stand now."""
        startup_blocks = (self.startup.freeze(), *self._startup.blocks[1:])
        return Module(
            FrozenMap({MAIN: self.main(), STARTUP: self._startup._replace(blocks=startup_blocks)}),
        )

    def main(self) -> Program:
        """The main program as it stands now."""
        return self._main._replace(blocks=tuple(block.freeze() for block in self.blocks))

    def beside(self) -> Draft:
        """A draft of another, empty main program with the same startup program, names and scopes."""
        other = Draft(seed=self._main.random_seed)
        other.names, other.scopes, other.startup = self.names, self.scopes, self.startup
        return other

    def parameters(self) -> list[Var]:
        """The parameters, in order of declaration."""
        return [var for var in self.blocks[0].vars.values() if var.parameter is not None]

    # Where ops are made, and for what

    @contextmanager
    def scope(self, name: str) -> Generator[None]:
        """Ops made in the block carry the name scope `name`."""
        with self.scopes.inside(name):
            yield

    @contextmanager
    def roles(self, role: OpRole, *role_vars: str) -> Generator[None]:
        """Ops made in the block have this role and these role variables."""
        before = self.role, self.role_vars
        self.role, self.role_vars = role, role_vars
        try:
            yield
        finally:
            self.role, self.role_vars = before

    @contextmanager
    def inside(self, block: int) -> Generator[BlockDraft]:
        """Ops are made in the block of this index."""
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
        """The declaration that `name` means in a block (default: the current one), None without one."""
        waiting, seen = [self.current if block is None else block], set[int]()
        for number in waiting:
            if number < 0 or number in seen:
                continue
            found = self.blocks[number].vars.get(name)
            if found is not None:
                return found
            seen.add(number)
            waiting += (self.blocks[number].forward_block, self.blocks[number].parent)
        return None

    def type_of(self, name: str) -> TensorType | None:
        """The declared type of a variable seen from the current block, None where nothing is known."""
        found = self.find(name)
        return found.tensor if found else None

    def declare(self, var: Var, block: int | None = None) -> Value:
        """Declares a variable in a block (default: the current one), in place of one of the same name there."""
        self.blocks[self.current if block is None else block].vars[var.name] = var
        return Value(self, var.name)

    def temporary(self, layer: str, dtype: DType | None = None, *, stop_gradient: bool = False) -> Value:
        """A new variable `<layer>.tmp_<n>` of the current block; the op that writes it gives its shape."""
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
        """Makes an op at the end of the current block, or in `front` of it, and types what it writes.

        `inputs` None means that the op has no input slots at all. Raises ShapeError when inputs don't fit.
        """
        made = self.make(op_type, inputs, outputs, attrs)
        (self.block.front if front else self.block.ops).append(made)
        self._type_outputs(made)
        return made

    def make(
        self,
        op_type: str,
        inputs: Mapping[str, Names_] | None,
        outputs: Mapping[str, Names_],
        attrs: Mapping[str, object] | None = None,
    ) -> Op:
        """An op with the current role and scope that stands nowhere yet."""
        given = {slot: names_of(held) for slot, held in (inputs or {}).items()}
        written = {slot: names_of(held) for slot, held in outputs.items()}
        typed = attributes(op_type, {"op_namescope": self.scopes.path, **(attrs or {})})
        made = make_op(op_type, given, written, typed, role=self.role, role_vars=self.role_vars, origin=self.origin)
        return made if inputs is not None else made._replace(inputs=EMPTY)

    def startup_op(self, op_type: str, inputs: Mapping[str, Names_] | None, output: str, **attrs: object) -> None:
        """Puts an op in front of the startup program, which writes `output`."""
        with self.roles(OpRole.FORWARD):
            self.startup.front.append(self.make(op_type, inputs, {"Out": output}, attrs))

    def _type_outputs(self, op: Op) -> None:
        for slot, types in infer_types(op, self.type_of).items():
            for name, inferred in zip(op.outputs.get(slot, ()), types, strict=False):
                declared = self.block.vars.get(name)
                if inferred is None or declared is None or declared.kind is not VarKind.LOD_TENSOR:
                    continue
                if declared.tensor is None:
                    self.declare(declared._replace(tensor=inferred))
                elif not declared.tensor.shape:
                    self.declare(declared._replace(tensor=inferred._replace(dtype=declared.tensor.dtype)))


def names_of(held: Names_) -> tuple[str, ...]:
    """The names in a slot."""
    items: Iterable[Value | str] = (held,) if isinstance(held, Value | str) else held
    return tuple(item.name if isinstance(item, Value) else item for item in items)


def attributes(op_type: str, attrs: Mapping[str, object]) -> dict[str, AttrValue]:
    """Plain Python values as attributes of the kinds that the op type's schema declares.

    Raises KeyError for an attribute that is not declared, TypeError for a value of another kind.
    """
    schema = schema_of(op_type)
    if schema is None:
        raise KeyError(f"op type {op_type} is not declared")
    return {name: _typed(op_type, name, value, schema.attrs.get(name)) for name, value in attrs.items()}


def _typed(op_type: str, name: str, value: object, spec: AttrSpec | None) -> AttrValue:
    from pstranspile.ir.attributes import PYTHON_TYPES

    if isinstance(value, DType):
        return value.value
    if spec is None:
        if name in ("op_namescope", "op_device") and isinstance(value, str):
            return value
        raise KeyError(f"{op_type} has no attribute {name}")
    if spec.kind is AttrKind.FLOAT and isinstance(value, int | float):
        return float32(float(value))
    if spec.kind is AttrKind.FLOATS and isinstance(value, Sequence):
        return PYTHON_TYPES[spec.kind](float32(float(item)) for item in value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    python = PYTHON_TYPES[spec.kind]
    scalar = isinstance(value, bool | int | float | str)
    if scalar and spec.kind in (AttrKind.INTS, AttrKind.LONGS) and isinstance(value, int):
        return Ints((value,)) if spec.kind is AttrKind.INTS else python((value,))
    if spec.kind in (AttrKind.INT, AttrKind.LONG) and not isinstance(value, int):
        raise TypeError(f"{op_type}: attribute {name} is an integer, got {value!r}")
    if spec.kind is AttrKind.STRING and not isinstance(value, str):
        raise TypeError(f"{op_type}: attribute {name} is a string, got {value!r}")
    return python(value)
