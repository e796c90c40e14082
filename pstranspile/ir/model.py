"""The model of programs: frozen values, from Module down to Var and Op.

A Module holds named Programs; a Program is a tuple of Blocks (block 0 is the global one); a Block holds
variables by name and ops in execution order. Values never change: passes build new ones and share the
parts they keep, so the identity of an op (`is`) survives every pass that does not touch it.

Mappings in these values are FrozenMaps. A program's Distribution says how it takes part in a cluster: the data that
Fluid's transpiler attaches to its Python object of the program. Python's cyclic garbage collector is paused while many
values are created that all stay alive.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

from pstranspile.ir.attributes import AttrValue
from pstranspile.ir.types import DType, OpRole, VarKind


class DistributedVar(NamedTuple):
    """A variable on a parameter server, as an entry of Fluid's overview of variables on pservers. `offset` counts
    elements.
    """

    origin: str
    origin_shape: tuple[int, ...]
    slice: str
    slice_shape: tuple[int, ...]
    is_slice: bool
    block_id: int
    offset: int
    endpoint: str
    vtype: str


class Distribution(NamedTuple):
    """The part that a program takes in a cluster, in fields with Fluid's names and defaults.

    `endpoints` are the parameter servers; `ps_endpoint` is the one that runs this program, or that it loads from.
    `is_chief` is true for trainer 0. `variables` are the variables on servers that a trainer fetches, or that a server
    holds. The other fields are for a multi-process executor in mode nccl2.
    """

    is_distributed: bool = False
    is_chief: bool = False
    endpoints: tuple[str, ...] = ()
    ps_endpoint: str | None = None
    distributed_lookup_table: str | None = None
    trainers_endpoints: tuple[str, ...] = ()
    nccl_comm_num: int = 1
    use_hierarchical_allreduce: bool = False
    hierarchical_allreduce_inter_nranks: int = 0
    variables: tuple[DistributedVar, ...] = ()


K = TypeVar("K")
V = TypeVar("V")


class FrozenMap(dict[K, V]):
    """A dict that refuses changes after construction; hashable if its values are.

    Program values hold their slots, attributes and variables in these, so that programs can share them. Equality is
    that of dict; the order of keys does not count.
    """

    __slots__ = ()

    def _refuse(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise TypeError("a FrozenMap does not change; build a new one from {**old, key: value}")

    __setitem__ = _refuse
    __delitem__ = _refuse
    __ior__ = _refuse  # pyright: ignore[reportAssignmentType]
    clear = _refuse
    pop = _refuse  # pyright: ignore[reportAssignmentType]
    popitem = _refuse  # pyright: ignore[reportAssignmentType]
    setdefault = _refuse  # pyright: ignore[reportAssignmentType]
    update = _refuse  # pyright: ignore[reportAssignmentType]

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return frozenset.__hash__(frozenset(self.items()))  # pyright: ignore[reportUnknownMemberType]

    def __copy__(self) -> FrozenMap[K, V]:
        return self

    def __deepcopy__(self, _memo: object) -> FrozenMap[K, V]:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrozenMap, (dict(self),))


EMPTY: FrozenMap[Any, Any] = FrozenMap()
"""The empty mapping, shared."""


MAIN = "main"
STARTUP = "startup"


class Texts:
    """How programs and their parts are written for a person who prints them.

    The text depends on the op types, so their wing provides the function; without it a text is the value's `repr`.
    """

    def __init__(self) -> None:
        self._text: Callable[[Any], str] = repr

    def written_by(self, text: Callable[[Any], str]) -> None:
        """Provides the function; it raises ValueError for what has no text."""
        self._text = text

    def of(self, value: Module | Program | Block | Op | Var) -> str:
        """The text of a value."""
        try:
            return self._text(value)
        except ValueError:
            return repr(value)


TEXTS = Texts()


class Location(NamedTuple):
    """A place in a text file; lines and columns count from 1. For other inputs the line is 0.

    `script` is the place, without a column, in the Python script that created the op or variable, if the input records
    it.
    """

    file: str
    line: int = 0
    column: int = 0
    script: Location | None = None

    def __str__(self) -> str:
        """`net.ir:12:5`, `net.ir:12:5 (train.py:20)`; the file alone for other inputs."""
        place = ":".join([self.file, *[str(number) for number in (self.line, self.column) if number]])
        return f"{place} ({self.script})" if self.script else place


class Origin(NamedTuple):
    """The source op of an op, and the rule that made the op from it.

    `rule` is empty for an op of the source itself, or for one that is unchanged. `op` is -1 for the program as a whole;
    `location` is then that of its main block.
    """

    program: str
    block: int
    op: int
    location: Location | None = None
    rule: str = ""

    def __str__(self) -> str:
        """`@main^0#17`: op 17 of block 0 of the program @main; `@main^0`: the program as a whole."""
        return f"@{self.program}^{self.block}#{self.op}" if self.op >= 0 else f"@{self.program}^{self.block}"


class ParameterInfo(NamedTuple):
    """The properties of a parameter in Fluid that its ProgramDesc entry does not hold."""

    trainable: bool = True
    learning_rate: float = 1.0
    is_distributed: bool = False
    regularizer: str | None = None


class TensorType(NamedTuple):
    """Dtype, dims (-1: known only at run time) and LoD level of a tensor."""

    dtype: DType
    shape: tuple[int, ...]
    lod_level: int = 0


class Var(NamedTuple):
    """A declared variable.

    `tensor` describes LOD_TENSOR, LOD_TENSOR_ARRAY and SELECTED_ROWS variables (None where the ProgramDesc carries no
    description). `readers` describes what a READER yields, `elements` what a TUPLE holds. `parameter` is set on
    parameters. `location` is where the text declares it. `written_defaults` names the optional ProgramDesc fields
    (`persistable`, `need_check_feed`, `lod_level`) that the file writes out although they are at their default; None:
    those that Fluid usually writes. `location` and `written_defaults` take no part in equality.
    """

    name: str
    kind: VarKind = VarKind.LOD_TENSOR
    tensor: TensorType | None = None
    persistable: bool = False
    need_check_feed: bool = False
    parameter: ParameterInfo | None = None
    readers: tuple[TensorType, ...] = ()
    elements: tuple[VarKind | DType, ...] = ()
    location: Location | None = None
    written_defaults: tuple[str, ...] | None = None

    def __str__(self) -> str:
        """The declaration, as the textual IR writes it."""
        return TEXTS.of(self)

    @property
    def shape(self) -> tuple[int, ...]:
        """Declared dims, `()` when the variable has no tensor description."""
        return self.tensor.shape if self.tensor else ()

    @property
    def dtype(self) -> DType | None:
        """Declared element type, None when the variable has no tensor description."""
        return self.tensor.dtype if self.tensor else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Var) and self[:-2] == other[:-2]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return tuple.__hash__(self[:-2])  # pyright: ignore[reportUnknownMemberType]


Slots = FrozenMap[str, tuple[str, ...]]
Attrs = FrozenMap[str, AttrValue]


class Op(NamedTuple):
    """One operator.

    `inputs` and `outputs` map slot names to variable names. A slot mapped to `()` is present and empty. `attrs` holds
    every attribute of the op, including defaults, except `op_role` and `op_role_var`. These are `role` and `role_vars`
    (parameter, gradient, parameter, gradient, ...); None means that the ProgramDesc does not have the attribute.
    `origin` does not count for equality.
    """

    type: str
    inputs: Slots = EMPTY
    outputs: Slots = EMPTY
    attrs: Attrs = EMPTY
    role: OpRole | None = OpRole.FORWARD
    role_vars: tuple[str, ...] | None = ()
    is_target: bool = False
    origin: Origin | None = None

    def __str__(self) -> str:
        """The op in one line, as the textual IR writes it."""
        return TEXTS.of(self)

    @property
    def role_pairs(self) -> tuple[tuple[str, str], ...]:
        """The (parameter, gradient) pairs of `role_vars`; an unpaired last name is left out."""
        names = self.role_vars or ()
        return tuple(zip(names[::2], names[1::2], strict=False))

    @property
    def location(self) -> Location | None:
        """The place in the source of the op, or of the op it was made from; None if it is not known."""
        return self.origin.location if self.origin else None

    @property
    def input_names(self) -> Iterator[str]:
        """Names of all variables read, slot by slot."""
        return (name for names in self.inputs.values() for name in names)

    @property
    def output_names(self) -> Iterator[str]:
        """Names of all variables written, slot by slot."""
        return (name for names in self.outputs.values() for name in names)

    @property
    def names(self) -> Iterator[str]:
        """Names of all variables read, then of those written, slot by slot."""
        return chain(self.input_names, self.output_names)

    def input(self, slot: str) -> str | None:
        """The first variable of an input slot, None if the slot is missing or empty."""
        try:
            names = self.inputs.get(slot)
        except TypeError:
            raise TypeError(f"input takes the name of a slot, not {slot!r}") from None
        return names[0] if names else None

    def output(self, slot: str) -> str | None:
        """The first variable of an output slot, None if the slot is missing or empty."""
        try:
            names = self.outputs.get(slot)
        except TypeError:
            raise TypeError(f"output takes the name of a slot, not {slot!r}") from None
        return names[0] if names else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Op) and self[:-1] == other[:-1]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return tuple.__hash__(self[:-1])  # pyright: ignore[reportUnknownMemberType]


class Block(NamedTuple):
    """Variables by name and ops in order. `parent`: index of the enclosing block, -1 for none."""

    vars: FrozenMap[str, Var] = EMPTY
    ops: tuple[Op, ...] = ()
    parent: int = -1
    forward_block: int = -1
    location: Location | None = None

    def __str__(self) -> str:
        """The declarations and ops, as the textual IR writes them."""
        return TEXTS.of(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Block) and self[:-1] == other[:-1]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return tuple.__hash__(self[:-1])  # pyright: ignore[reportUnknownMemberType]


MAX_DEPTH = 100
"""The largest depth to which blocks may be nested or run each other, so that functions over blocks can recurse."""


class Program(NamedTuple):
    """Blocks, of which the first is the global one, and further properties of Fluid's programs.

    With `random_seed` 0 random numbers differ from run to run. `version` is the ProgramDesc's version number (None: it
    has none). `distribution` describes the program's part in a cluster.
    """

    blocks: tuple[Block, ...] = (Block(),)
    random_seed: int = 0
    version: int | None = 0
    distribution: Distribution | None = None

    def __str__(self) -> str:
        """The program, as the textual IR writes it."""
        return TEXTS.of(self)

    @property
    def main_block(self) -> Block:
        """Block 0."""
        return self.blocks[0]

    def with_main_block(self, block: Block) -> Program:
        """The program with block 0 replaced."""
        return self._replace(blocks=(block, *self.blocks[1:]))

    def find_var(self, name: str, block: int = 0) -> Var | None:
        """The declaration that `name` refers to in `block`: its own, else its forward block's, else the enclosing
        one's.

        As in Fluid, a block that computes gradients sees the variables of its forward block first.
        """
        waiting, seen = [block], set[int]()
        try:
            for number in waiting:
                if not 0 <= number < len(self.blocks) or number in seen:
                    continue
                result = self.blocks[number].vars.get(name)
                if result is not None:
                    return result
                seen.add(number)
                waiting += (self.blocks[number].forward_block, self.blocks[number].parent)
        except (TypeError, ValueError):
            raise TypeError(f"find_var takes a name and the number of a block, not {name!r} and {block!r}") from None
        return None

    def parameters(self) -> tuple[Var, ...]:
        """The parameters of block 0, in order of declaration."""
        return tuple(var for block in self.blocks[:1] for var in block.vars.values() if var.parameter is not None)


class SourceText(NamedTuple):
    """The text that a module was read from, for quoting it in diagnostics."""

    file: str
    text: str


@dataclass(frozen=True)
class Module:
    """Named programs; `main` and `startup` are the usual two. Equality compares only the programs.

    `source` is the text that they were read from. `start` maps persistable variables to the arrays that they start with
    in place of the start-up program's values, if the module came with values, as a model of another framework does.
    `example` maps inputs to the arrays of one batch, as the author of the model gave them.
    """

    programs: FrozenMap[str, Program] = field(default_factory=FrozenMap[str, Program])
    source: SourceText | None = field(default=None, compare=False)
    start: FrozenMap[str, Any] = field(default_factory=lambda: EMPTY, compare=False)
    example: FrozenMap[str, Any] = field(default_factory=lambda: EMPTY, compare=False)

    def __post_init__(self) -> None:
        """Raises TypeError unless the programs are Programs by name; another mapping than a FrozenMap is copied."""
        given = cast("object", self.programs)
        if not isinstance(given, Mapping):
            kind = type(given).__name__
            raise TypeError(f"Module takes Programs by name, such as FrozenMap(main=program), not {kind}")
        if not isinstance(given, FrozenMap):
            object.__setattr__(self, "programs", FrozenMap(cast("Mapping[str, Program]", given)))
        for name, program in self.programs.items():
            if not isinstance(program, Program):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"Module takes a Program for each name; {name!r} is of type {type(program).__name__}")

    def __repr__(self) -> str:
        """`<Module net.ir: @main 87 ops, 120 variables; @startup 12 ops, 12 variables>`."""
        parts: list[str] = []
        for name, program in self.programs.items():
            ops = sum(len(block.ops) for block in program.blocks)
            parts.append(f"@{name} {ops} ops, {sum(len(block.vars) for block in program.blocks)} variables")
        file = f" {self.source.file}" if self.source is not None else ""
        return f"<Module{file}: {'; '.join(parts) or 'no programs'}>"

    def __str__(self) -> str:
        """The text of all programs, which `loads` reads."""
        return TEXTS.of(self)

    def __getitem__(self, name: str) -> Program:
        """The program called `name`; raises KeyError."""
        try:
            return self.programs[name]
        except (KeyError, TypeError):  # TypeError: what can't be a key
            known = ", ".join(self.programs) or "none"
            raise KeyError(f"the module has no program {name!r}; its programs are {known}") from None

    def with_programs(self, programs: Mapping[str, Program]) -> Module:
        """The module with these programs added, or replacing those of the same names.

        Raises TypeError for anything but Programs by name.
        """
        if not isinstance(programs, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"with_programs takes Programs by name, not a value of type {type(programs).__name__}")
        return replace(self, programs=FrozenMap({**self.programs, **programs}))

    @property
    def main(self) -> Program:
        """The program `@main`; raises KeyError when the module has none."""
        return self[MAIN]

    @property
    def startup(self) -> Program | None:
        """The program `@startup`, None when the module has none."""
        return self.programs.get(STARTUP)


class Role(NamedTuple):
    """The programs of one machine, `trainer_<i>` or `pserver_<j>`; on trainers also other programs, by name."""

    name: str
    main: Program
    startup: Program
    others: FrozenMap[str, Program] = EMPTY

    def __repr__(self) -> str:
        """`<Role trainer_0: @main 87 ops, 120 variables; @startup 12 ops, 12 variables>`."""
        return repr(self.module).replace("<Module", f"<Role {self.name}", 1)

    def __str__(self) -> str:
        """The text of all programs, as it is written to `<role>.ir`."""
        return str(self.module)

    @property
    def module(self) -> Module:
        """The programs as a module, as it is written to `<role>.ir`."""
        return Module(FrozenMap({MAIN: self.main, STARTUP: self.startup, **self.others}))


@contextmanager
def collector_paused() -> Generator[None]:
    """Pauses the collector for the context, and restores its state, also after an exception.

    Program values hold no cycles, and scanning them repeatedly costs more than creating them. Values created in the
    context belong to the collector's youngest generation afterwards, so a process that runs for weeks still has its old
    objects scanned as often as any other process.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
