"""One pass over the ops of a program in the order they run: names, roles, types, and the slots and attributes of each
op against its schema.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from itertools import chain, compress
from typing import Any, NamedTuple

from pstranspile.compiler.verify.places import Findings, slot_text, suggestion
from pstranspile.compiler.verify.references import references
from pstranspile.ir.attributes import KINDS, AttrKind, Strings
from pstranspile.ir.diagnostics import Note, Severity
from pstranspile.ir.model import EMPTY, Attrs, Block, Op, TensorType, Var
from pstranspile.ir.text.literals import ATTR_KIND_TEXT, KIND_TEXT, declared_here, role_text, var_text, word
from pstranspile.ir.types import RUN_BY_FLUID, DType, VarKind
from pstranspile.ops import all_schemas, schema_of, with_defaults
from pstranspile.ops.attributes import refusals
from pstranspile.ops.schema import CARRIED_ATTRS, GENERIC_ATTRS, AttrSpec, OpSchema, Slot
from pstranspile.ops.shapes import ShapeError, ShapeProblem, Types, fits, infer_types, output_problems, rule_of

UNDECLARED_SLOTS = frozenset({("create_py_reader", "blocking_queue"), ("rnn_memory_helper_grad", "Out@GRAD")})
"""Pairs (op type, slot) whose variables need no declaration: the queue of a reader is made by the process that feeds
it, and the gradient of a memory that nobody needs after the last step counts as zero.
"""

_CONVERTED = frozenset((AttrKind[a], AttrKind[b]) for a in ("INT", "LONG") for b in ("FLOAT", "BOOLEAN"))
"""Pairs (given kind, kind in the schema) between which Fluid converts the value: whole numbers to others, and to
booleans.
"""

_ALIKE = frozenset({(AttrKind.FLOAT64, AttrKind.FLOAT)})
"""Pairs (given kind, kind in the schema) of which the first is as good as the second."""

ANY_OP: Mapping[str, AttrKind] = {name: spec.kind for name, spec in {**GENERIC_ATTRS, **CARRIED_ATTRS}.items()}
"""Attributes that ops of every type may carry."""


def missing_slots(op: Op, schema: OpSchema) -> list[tuple[Slot, bool]]:
    """(slot, whether it is an output) of every slot that must hold a variable and does not.

    A gradient op may leave out any gradient that nobody needs.
    """
    may_be_empty = schema.facts.lists_may_be_empty
    result: list[tuple[Slot, bool]] = []
    for is_output, slots, held in ((False, schema.inputs, op.inputs), (True, schema.outputs, op.outputs)):
        for name, slot in slots.items():
            if held.get(name) or slot.dispensable or (slot.duplicable and may_be_empty):
                continue
            if not (is_output and schema.forward):
                result.append((slot, is_output))
    return result


def needed_variables(op: Op, reading: bool) -> set[str]:
    """The variables that an op requires: without those of slots that may be empty, unless the slots are lists.

    A gradient op with several gradients makes only the requested ones, and a dropout in a test makes no mask.
    """
    schema = schema_of(op.type)
    held = op.inputs if reading else op.outputs
    slots = schema.inputs if schema is not None and reading else EMPTY
    optional = {slot.name for slot in slots.values() if slot.dispensable and not slot.duplicable}
    if schema is not None and not reading and schema.forward and len(schema.outputs) > 1:
        optional = {slot.name for slot in schema.outputs.values() if not slot.duplicable}
    elif not reading and op.type == "dropout" and op.attrs.get("is_test") is True:
        optional = {"Mask"}
    return {name for slot, names in held.items() if slot not in optional for name in names}


def slots_fit(op: Op, schema: OpSchema) -> bool:
    """Whether `check_slots` has nothing to report."""
    for slots, held in ((schema.inputs, op.inputs), (schema.outputs, op.outputs)):
        for name, names in held.items():
            slot = slots.get(name)
            if slot is None or (len(names) > 1 and not slot.duplicable):
                return False
    return not missing_slots(op, schema)


def check_slots(op: Op, schema: OpSchema, place: tuple[int, int], findings: Findings) -> None:
    """Reports unknown slots, missing ones, and lists where one variable belongs."""
    for side, slots, held in (("input", schema.inputs, op.inputs), ("output", schema.outputs, op.outputs)):
        for name, names in held.items():
            slot = slots.get(name)
            if slot is None:
                others = [other for other in slots if other not in held]
                hint = suggestion(name, others) or f"; it has {_list_names(slots) or 'none'}"
                message = f"there is no {side} slot {word(name)}, so it has no effect{hint}"
                findings.op("unknown-slot", message, place, focus=slot_text(name), severity=Severity.WARNING)
            elif len(names) > 1 and not slot.duplicable:
                message = f"the {side} slot {word(name)} takes one variable, here are {len(names)}"
                findings.op("slot-not-list", message, place, focus=slot_text(name))
    for slot, is_output in missing_slots(op, schema):
        side = "output" if is_output else "input"
        message = f"the {side} slot {word(slot.name)} needs a variable"
        findings.op("missing-slot", message, place, focus=op.type)


def _list_names(names: Mapping[str, object]) -> str:
    return ", ".join(word(name) for name in names)


def attributes_fit(attrs: Attrs, schema: OpSchema) -> bool:
    """Whether `check_attributes` has nothing to report."""
    known = schema.attrs
    for name, value in attrs.items():
        spec = known.get(name)
        kind = spec.kind if spec is not None else ANY_OP.get(name)
        if kind is not (given := KINDS.get(type(value))) and (given, kind) not in _ALIKE:
            return False
    if next(refusals(attrs, known), None) is not None:
        return False
    return all(name in attrs or spec.default is not None or spec.optional for name, spec in known.items())


def generic_attributes_fit(attrs: Attrs) -> bool:
    """Whether attributes that ops of every type may carry have the right kinds, for an op without a schema."""
    return all(ANY_OP.get(name) in (None, KINDS.get(type(value))) for name, value in attrs.items())


def check_attributes(op: Op, schema: OpSchema | None, place: tuple[int, int], findings: Findings) -> None:
    """Reports attributes of a wrong kind, those with a value that no op can have, unknown ones, and required ones that
    the op lacks.
    """
    known: Mapping[str, AttrSpec] = schema.attrs if schema is not None else EMPTY
    for name, value in op.attrs.items():
        spec = known.get(name)
        kind = spec.kind if spec is not None else ANY_OP.get(name)
        value_kind = KINDS.get(type(value))
        if kind is None and schema is not None:
            hint = suggestion(name, [other for other in known if other not in op.attrs])
            message = f"the schema has no attribute {word(name)}, so it has no effect{hint}"
            focus = findings.attribute_focus(op, name)
            findings.op("extra-attribute", message, place, focus=focus, severity=Severity.WARNING)
        elif kind is not None and kind is not value_kind and (value_kind, kind) not in _ALIKE:
            is_kind = f"of kind {ATTR_KIND_TEXT[value_kind]}" if value_kind is not None else f"a {type(value).__name__}"
            message = f"the attribute {word(name)} is {is_kind}, it must be of kind {ATTR_KIND_TEXT[kind]}"
            converted = (value_kind, kind) in _CONVERTED
            severity = Severity.WARNING if converted else Severity.ERROR
            focus = findings.attribute_focus(op, name)
            findings.op("attribute-kind", message, place, focus=focus, severity=severity)
    for name, spec in known.items():
        if name not in op.attrs and spec.default is None and not spec.optional:
            message = f"the attribute {word(name)} ({ATTR_KIND_TEXT[spec.kind]}) must be given"
            findings.op("missing-attribute", message, place, focus=op.type)
    for name, reason in refusals(op.attrs, known):
        findings.op("attribute-value", reason, place, focus=findings.attribute_focus(op, name))


def report_unknown_op(op: Op, count: int, place: tuple[int, int], findings: Findings) -> None:
    """Reports an op type without a schema, once for all its ops in a program."""
    assert schema_of(op.type) is None
    times = "" if count == 1 else f", which {count} ops have"
    message = f"neither Fluid nor a plug-in has this op type{times}{suggestion(op.type, all_schemas())}"
    findings.op("unknown-op", message, place, focus=word(op.type))


def unwritten(op: Op, name: str, writer: Op | None) -> tuple[str, tuple[Note, ...]]:
    """The message, and notes, about a variable that an op reads, but that only `writer` writes, later or at the same
    time.
    """
    what, notes = "nothing has written it before, and nothing brings it into this block", ()
    if writer is op:
        what = "this op itself is the first to write it"
    elif writer is not None:
        what = "this op runs before any op that writes it"
        location = writer.location
        notes = (Note(f"it is first written here, by {writer.type}", location, var_text(name)),)
    return f"{var_text(name)} is read, but {what}", notes


# The variable that a name refers to in a block, and the ops that write it.


class Names:
    """The names of a program's blocks. Each answer is computed once."""

    def __init__(self, blocks: Sequence[Block]):
        self.blocks = blocks
        self._written_in: dict[int, frozenset[str]] = {}
        self._owners: dict[int, dict[str, int | None]] = {}

    def find(self, name: str, index: int) -> Var | None:
        """The declaration of a name in a block: its own, or that of an enclosing or forward block."""
        owner = self.owner(name, index)
        return None if owner is None else self.blocks[owner].vars[name]

    def owner(self, name: str, index: int) -> int | None:
        """The block that declares a name as seen from a block: this one, its forward block, its parent, and so on
        outwards.
        """
        if name in self.blocks[index].vars:
            return index
        if index == 0:
            return None
        known = self._owners.setdefault(index, {})
        if name not in known:
            known[name] = self._search(name, index)
        return known[name]

    def _search(self, name: str, index: int) -> int | None:
        todo, seen = [index], {index}
        for at in todo:
            block = self.blocks[at]
            if name in block.vars:
                return at
            for outer in (block.forward_block, block.parent):
                if outer >= 0 and outer not in seen:
                    seen.add(outer)
                    todo.append(outer)
        return None

    def written(self, index: int) -> frozenset[str]:
        """Names that the ops of a block write."""
        result = self._written_in.get(index)
        if result is None:
            names = chain.from_iterable(chain.from_iterable(op.outputs.values() for op in self.blocks[index].ops))
            result = self._written_in[index] = frozenset(names)
        return result

    @cached_property
    def written_globals(self) -> AbstractSet[str]:
        """Names of variables of block 0 that ops of any block write."""
        if len(self.blocks) == 1:
            return self.written(0)
        names = set(self.written(0))
        for other in range(1, len(self.blocks)):
            names.update(name for name in self.written(other) if self.owner(name, other) == 0)
        return names

    def first_writer(self, name: str, owner: int) -> Op | None:
        """The first op that writes the variable of this name in block `owner`."""
        for index in (owner, *range(owner + 1, len(self.blocks))):
            if name in self.written(index) and self.owner(name, index) == owner:
                return next(op for op in self.blocks[index].ops if name in op.output_names)
        return None

    def visible(self, index: int) -> Iterator[str]:
        """The names that a block and those around it declare."""
        while index >= 0:
            yield from self.blocks[index].vars
            index = self.blocks[index].parent


# The types that variables have while a program runs: those that ops give them, whatever the declarations.
#
# Fluid's ops look at what their inputs hold. A declaration counts where nothing has written the variable: for inputs,
# and for what an op without a shape rule gives.

TypeOf = Callable[[str], "int | None"]
"""From a name to the number of its type, None for a name without a declaration."""


class VarType(NamedTuple):
    """The type of a variable's value: `known_type` follows from inputs and ops, `assumed_type` takes unknown dims from
    declarations.
    """

    known_type: TensorType | None
    assumed_type: TensorType | None


class ResultTypes(NamedTuple):
    """The numbers of the types that an op gives the variables it writes, in order.

    `certain_error` and `likely_error` are reasons why its inputs don't fit together: by their known types, or only by
    declared ones. `declaration_problems` are the outputs that are declared otherwise.
    """

    numbers: tuple[int, ...]
    certain_error: ShapeError | None = None
    likely_error: ShapeError | None = None
    declaration_problems: tuple[ShapeProblem, ...] = ()


def reliable(var: Var) -> TensorType | None:
    """The type that a declaration states, None where it states none.

    A SelectedRows may hold any number of rows. Fluid declares variables without an element type as bool, and does so
    with parameters, so a persistable bool has no meaning.
    """
    tensor = var.tensor
    if tensor is None or (tensor.dtype is DType.BOOL and var.persistable):
        return None
    if var.kind is VarKind.SELECTED_ROWS and tensor.shape:
        return tensor._replace(shape=(-1, *tensor.shape[1:]))
    return tensor


class TypeTable:
    """Types as numbers, equal ones as equal numbers: 0 stands for an unknown type."""

    def __init__(self) -> None:
        self._numbers: dict[VarType, int] = {VarType(None, None): 0}
        self._types: list[VarType] = [VarType(None, None)]
        self._declared_numbers: dict[object, int] = {}

    def number(self, held: VarType) -> int:
        """The number of a type."""
        result = self._numbers.setdefault(held, len(self._types))
        if result == len(self._types):
            self._types.append(held)
        return result

    def __getitem__(self, number: int | None) -> VarType:
        return self._types[number or 0]

    def declared_type_number(self, var: Var | None) -> int | None:
        """The number of the type a variable is declared with, None without a variable."""
        if var is None:
            return None
        assumed = var[1:4]
        number = self._declared_numbers.get(assumed)
        if number is None:
            tensor = reliable(var)
            number = self._declared_numbers[assumed] = self.number(VarType(tensor, tensor))
        return number

    def unsure(self, number: int | None) -> int:
        """The number of the same type, as one that only a declaration supports."""
        return self.number(self[number]._replace(known_type=None))

    def either(self, one: int | None, other: int) -> int:
        """The type of a variable that has one of two, as after a block that may not have run."""
        if one is None or one == other:
            return other
        a, b = self[one], self[other]
        return self.number(VarType(_common(a.known_type, b.known_type), _common(a.assumed_type, b.assumed_type)))

    def output_types(self, op: Op, reads: Mapping[str, int | None], declared: TypeOf) -> ResultTypes:
        """The types that an op gives its outputs, from the types of the variables it reads."""
        names = list(chain.from_iterable(op.outputs.values()))
        schema = schema_of(op.type)
        if schema is not None and not schema.defaults.keys() <= op.attrs.keys():
            op = with_defaults(op)
        if rule_of(op.type) is None:
            return ResultTypes(tuple([self.unsure(declared(name)) for name in names]))
        known: Types = {}
        assumed: Types = {}
        certain: ShapeError | None = None
        likely: ShapeError | None = None
        try:
            known = infer_types(op, lambda name: self[reads.get(name)].known_type)
        except ShapeError as problem:
            certain, likely = (problem, None) if problem.gives is None else (None, problem)
            known = assumed = problem.gives or {}
        if certain is None and likely is None:
            assumed = known
            if any(self[reads.get(name)].assumed_type != self[reads.get(name)].known_type for name in op.input_names):
                try:
                    assumed = infer_types(op, lambda name: self[reads.get(name)].assumed_type)
                except ShapeError as problem:
                    likely = problem
        differs = output_problems(op, assumed or known, lambda name: self[declared(name)].assumed_type)
        pairs = zip(_types_by_output(op, known), _types_by_output(op, assumed), map(declared, names), strict=True)
        numbers = [self.number(VarType(a, _fill_unknown_dims(b, self[c].assumed_type))) for a, b, c in pairs]
        return ResultTypes(tuple(numbers), certain, likely, tuple(differs))


def _types_by_output(op: Op, types: Types) -> Iterator[TensorType | None]:
    """The types of an op's outputs, one for each of its variables."""
    for slot, names in op.outputs.items():
        result: Sequence[TensorType | None] = types.get(slot, ())
        for at in range(len(names)):
            yield result[at] if at < len(result) else None


def _fill_unknown_dims(given: TensorType | None, declared: TensorType | None) -> TensorType | None:
    """A type that an op gives, with unknown dims taken from the declaration where they agree."""
    if given is None or declared is None:
        return given or declared
    if not given.shape:
        return given._replace(shape=declared.shape)
    if not fits(given.shape, declared.shape):
        return given
    return given._replace(shape=tuple([d if g < 0 else g for g, d in zip(given.shape, declared.shape, strict=True)]))


def _common(a: TensorType | None, b: TensorType | None) -> TensorType | None:
    """The common part of two types; None if their element types differ."""
    if a is None or b is None or a.dtype is not b.dtype:
        return None
    if len(a.shape) != len(b.shape):
        return a._replace(shape=())
    return a._replace(shape=tuple([x if x == y else -1 for x, y in zip(a.shape, b.shape, strict=True)]))


# Kinds of variables: what an op makes of tensors is a tensor, and must be declared as one.
#
# Fluid makes a variable of the declared kind before its ops run, and an op can't make another kind of it.

_EITHER = frozenset({"fill_constant", "uniform_random"})
"""Ops that make sparse rows as well as tensors."""

_SPARSE = {"lookup_table_grad": "W@GRAD", "lookup_table_v2_grad": "W@GRAD"}
"""The slots with rows of ops that may be sparse, by op type."""

_ARRAYS = frozenset({"write_to_array", "lod_tensor_to_array"})


def check_kinds(walk: Walk) -> None:
    """Reports what ops write to variables that are declared to hold something of another kind."""
    other = {name for block in walk.blocks for name, var in block.vars.items() if var.kind is not VarKind.LOD_TENSOR}
    for index in sorted(walk.visited):
        for position, op in enumerate(walk.blocks[index].ops):
            if op.type not in _SPARSE and op.type not in _ARRAYS and (not other or other.isdisjoint(op.output_names)):
                continue
            for slot, names in op.outputs.items():
                made = _kind(walk, index, op, slot)
                for name in names if made is not None else ():
                    _check(walk, (index, position), name, made)


def _kind(walk: Walk, index: int, op: Op, slot: str) -> VarKind | None:
    """The kind of the value in a slot; None if it is not known or not the same everywhere."""
    if rule_of(op.type) is None or schema_of(op.type) is None or op.type in _EITHER:
        return None
    read = [walk.names.find(name, index) for name in op.input_names]
    if any(var is None or var.kind is not VarKind.LOD_TENSOR for var in read):
        return None
    if op.type in _ARRAYS:
        return VarKind.LOD_TENSOR_ARRAY if slot == "Out" else None
    if op.attrs.get("is_sparse") is True:
        return VarKind.SELECTED_ROWS if _SPARSE.get(op.type) == slot else None
    return VarKind.LOD_TENSOR


def _check(walk: Walk, place: tuple[int, int], name: str, made: VarKind | None) -> None:
    var = walk.names.find(name, place[0])
    if made is None or var is None or var.kind is made:
        return
    message = f"{var_text(name)} is declared as {KIND_TEXT[var.kind]}, but the op makes {KIND_TEXT[made]} of it"
    walk.findings.op("type-mismatch", message, place, focus=var_text(name), notes=declared_here(var))


# The state of a block during the walk.

VALUES = frozenset({VarKind.LOD_TENSOR, VarKind.SELECTED_ROWS})
"""Kinds of variables that have no value before they are written; variables of other kinds exist empty."""


class BlockState:
    """The state of a block during the walk.

    `known_values` are the names known to hold a value, with the numbers of the types they hold; `type_of` gives the
    number of the type that any name is declared with, None for those without a declaration. `injected` are names that
    the op which runs the block brings in; `carried` what its loop body writes.
    """

    def __init__(
        self,
        index: int,
        block: Block,
        ready: dict[str, int | None],
        type_of: Callable[[str], int | None],
        injected: frozenset[str],
    ):
        self.index = index
        self.block = block
        self.known_values = ready
        self.type_of = type_of
        self.injected = injected
        self.carried: frozenset[str] = frozenset()


class SubBlockTypes(dict[str, "int | None"]):
    """Numbers of the declared types of the names a sub-block uses, each looked up at its first use."""

    def __init__(self, types: TypeTable, names: Names, index: int):
        self._types, self._names, self._index = types, names, index

    def __missing__(self, name: str) -> int | None:
        number = self[name] = self._types.declared_type_number(self._names.find(name, self._index))
        return number


# The role variables of ops: pairs of a parameter and its gradient.


def check_roles(ops: Sequence[Op], block: int, findings: Findings) -> None:
    """Reports roles that Fluid does not know: it refuses to run such an op."""
    held = {id(op.role): op.role for op in ops}  # by id, as members are few and unique, and hashing one costs more
    unknown = {number for number, role in held.items() if role is not None and role not in RUN_BY_FLUID}
    for position, op in enumerate(ops) if unknown else ():
        if id(op.role) in unknown:
            message = f"{role_text(op.role)} is no role of an op; Fluid refuses to run it"
            findings.op("role-unknown", message, (block, position), focus=role_text(op.role))


def is_sound_pair(names: tuple[str, ...], variables: Mapping[str, Var]) -> bool:
    """Whether role variables are one pair of variables of a block, as they nearly always are."""
    if len(names) != 2:
        return False
    parameter = variables.get(names[0])
    return parameter is not None and parameter.persistable and names[1] in variables


def check_number(op: Op, place: tuple[int, int], findings: Findings) -> bool:
    """Reports an odd number of role variables; True for an even one."""
    names = op.role_vars or ()
    if len(names) % 2:
        message = f"the number of role variables is {len(names)}; they are pairs of parameter and gradient"
        findings.op("role-variable-pair", message, place, focus=_pairs(op), severity=Severity.WARNING)
    return not len(names) % 2


def check_role_vars(
    op: Op, place: tuple[int, int], findings: Findings, find: Callable[[str], Var | None], visible: Iterable[str]
) -> None:
    """Reports role variables without a declaration, and parameters that are not persistable.

    `find` gives the declaration of a name, `visible` the declared names.
    """
    for at, name in enumerate(op.role_vars or ()):
        var = find(name)
        if var is None:
            what = "parameter" if at % 2 == 0 else "gradient"
            hint = findings.suggest(name, visible, "%")
            message = f"the role variables name the {what} {var_text(name)}, which is not declared{hint}"
            findings.op("role-variable", message, place, focus=var_text(name), severity=Severity.WARNING)
        elif at % 2 == 0 and not var.persistable:
            message = (
                f"the role variables are pairs of parameter and gradient, but {var_text(name)} "
                "is not persistable, so it is no parameter"
            )
            notes = declared_here(var)
            findings.op("role-variable-pair", message, place, focus=_pairs(op), severity=Severity.WARNING, notes=notes)


def _pairs(op: Op) -> str:
    """The role variables as the text writes them."""
    return f"({', '.join(map(var_text, op.role_vars or ()))})"


EMPTY_NAME = "@EMPTY@"
"""The name that Fluid's gradient makers write where there is no variable."""


class Walk:
    """Walks a program whose blocks are sound; `findings` collects the findings. `visited` are the blocks that run,
    `referring` the places of the ops that run others. `persistent_types` are the types of persistable variables that
    another program has made; they take precedence over declarations.
    """

    def __init__(self, findings: Findings, persistent_types: Mapping[str, TensorType] = EMPTY):
        self.findings = findings
        self.persistent_types = persistent_types
        self.types = TypeTable()
        self.blocks = findings.blocks
        self.names = Names(self.blocks)
        self.visited: set[int] = set()
        self.unknown_ops: dict[str, list[tuple[int, int]]] = {}
        self.referring: list[tuple[int, int]] = []
        self.is_server = False
        self._known_values: dict[int, dict[str, int | None]] = {}
        # keys of ops (see `_scan`) with nothing wrong -> do they run blocks, and the types of their outputs
        self._sound: dict[Any, tuple[bool, tuple[int, ...]]] = {}
        self._attr_numbers: dict[Any, int] = {}
        self._attrs_by_id: dict[int, int] = {}
        self._reported_findings: set[tuple[str, int | None, str]] = set()
        self._frames: list[BlockState] = []

    def run(self) -> None:
        """Walks block 0 and every block that its ops run, directly or through other blocks."""
        self.is_server = any(op.type == "listen_and_serv" for op in self.blocks[0].ops)
        self._frames = [self._open(0, frozenset())]
        running = [self._scan(self._frames[0])]
        while running:
            sub_block = next(running[-1], None)
            if sub_block is None:
                running.pop()
                self._frames.pop()
            else:
                self._frames.append(sub_block)
                running.append(self._scan(sub_block))

    def persistable_types(self) -> dict[str, TensorType]:
        """The types that ops have given the persistable variables of block 0, as far as they are known."""
        result: dict[str, TensorType] = {}
        for name, number in self._known_values.get(0, EMPTY).items():
            var = self.blocks[0].vars.get(name)
            if var is not None and var.persistable and name in self.names.written_globals:
                known = self.types[number].known_type
                if known is not None:
                    result[name] = known
        return result

    # Blocks

    def _open(self, index: int, injected: frozenset[str]) -> BlockState:
        """A frame for a block about to run."""
        self.visited.add(index)
        block = self.blocks[index]
        ready: dict[str, int | None] = {EMPTY_NAME: None}
        if index == 0:
            types = dict(zip(block.vars, map(self.types.declared_type_number, block.vars.values()), strict=True))
            held = [var.persistable or var.kind not in VALUES for var in block.vars.values()]
            ready.update(compress(types.items(), held))
            for name in self.persistent_types.keys() & ready.keys():
                ready[name] = self.types.number(VarType(self.persistent_types[name], self.persistent_types[name]))
            type_of = types.get
        else:
            type_of = SubBlockTypes(self.types, self.names, index).__getitem__
            for name, var in block.vars.items():
                if var.persistable or var.kind not in VALUES or name in injected:
                    ready[name] = type_of(name)
        self._known_values[index] = ready
        return BlockState(index, block, ready if index == 0 else dict(ready), type_of, injected)

    def _enter(self, op: Op, frame: BlockState, place: tuple[int, int]) -> Iterator[BlockState]:
        """Frames of the blocks that an op runs."""
        injected: frozenset[str] | None = None
        for _, index in references(op):
            if not 0 <= index < len(self.blocks) or index in self.visited:
                continue
            if injected is None:
                texts = chain.from_iterable(value for value in op.attrs.values() if isinstance(value, Strings))
                names = [text.partition(":")[0] if op.type == "listen_and_serv" else text for text in texts]
                injected = frozenset([*op.input_names, *names])
            if op.type == "listen_and_serv":  # received variables are visible in all of its blocks
                unwritten = self.blocks[index].vars.keys() - self.names.written(index)
                sub_block = self._open(index, injected | unwritten)
            else:
                sub_block = self._open(index, injected)
            if op.type == "while":
                sub_block.carried = self.names.written(index)
            yield sub_block

    # Ops

    def _scan(self, frame: BlockState) -> Generator[BlockState]:
        """Checks the ops of a block in order; yields the blocks they run, to be walked before going on."""
        index, block, ready, type_of = frame.index, frame.block, frame.known_values, frame.type_of
        sound, ids, flat = self._sound, self._attrs_by_id, chain.from_iterable
        variables = block.vars
        check_roles(block.ops, index, self.findings)
        for position, op in enumerate(block.ops):
            inputs, outputs, role_vars = op.inputs, op.outputs, op.role_vars
            reads, writes = tuple(flat(inputs.values())), tuple(flat(outputs.values()))
            read_types, written_types = tuple(map(ready.get, reads)), tuple(map(type_of, writes))
            if None in read_types:  # a name that is not declared, or not known to have a value
                if not all(map(ready.__contains__, reads)):
                    self._check_reads(op, frame, position)
                read_types = tuple(map(ready.get, reads))
            missing: set[str] = set()
            if None in written_types:
                missing = {name for name in writes if name != EMPTY_NAME and type_of(name) is None}
                self._report_undeclared(op, False, missing, (index, position))
            key = (
                op.type,
                ids.get(id(op.attrs)) or self._attr_number(op),
                tuple(inputs),
                tuple(map(len, inputs.values())),
                tuple(outputs),
                tuple(map(len, outputs.values())),
                read_types,
                written_types,
            )
            runs_blocks, given = sound.get(key) or self._check_form(op, key, frame, position)
            ready.update(zip(writes, given, strict=True))
            for name in missing:  # missing variables count as left out
                ready.pop(name, None)
            if index:
                for name, number in zip(writes, given, strict=True):
                    owner = self.names.owner(name, index)
                    if owner is not None:
                        outer = self._known_values.setdefault(owner, {})
                        outer[name] = number if owner == index else self.types.either(outer.get(name), number)
            if role_vars and not is_sound_pair(role_vars, variables):
                self._check_role_vars(op, (index, position))
            if runs_blocks:
                self.referring.append((index, position))
                yield from self._enter(op, frame, (index, position))

    def _attr_number(self, op: Op) -> int:
        """A number that is the same for attributes of an op type that are equal in name, kind and value."""
        attrs = op.attrs
        key: Any = (op.type, tuple(attrs), tuple(map(type, attrs.values())), tuple(attrs.values()))
        try:
            number = self._attr_numbers.setdefault(key, len(self._attr_numbers) + 1)
        except TypeError:  # a value without a kind, such as a list, is equal to no other
            number = self._attr_numbers[id(attrs)] = len(self._attr_numbers) + 1
        self._attrs_by_id[id(attrs)] = number
        return number

    def _check_form(self, op: Op, key: Any, frame: BlockState, position: int) -> tuple[bool, tuple[int, ...]]:
        """Slots, attributes and types of an op of a form not seen before; remembers the form if it is sound.

        Returns whether the op runs blocks, and the numbers of the types of its outputs.
        """
        place = (frame.index, position)
        before = len(self.findings.diagnostics)
        schema = schema_of(op.type)
        runs_blocks = bool(references(op))
        if schema is None:
            self.unknown_ops.setdefault(op.type, []).append(place)
            if not generic_attributes_fit(op.attrs):
                check_attributes(op, None, place, self.findings)
        else:
            if not slots_fit(op, schema):
                check_slots(op, schema, place, self.findings)
            if not attributes_fit(op.attrs, schema):
                check_attributes(op, schema, place, self.findings)
        if len(self.findings.diagnostics) > before:
            return runs_blocks, tuple([self.types.unsure(frame.type_of(name)) for name in op.output_names])
        given = self.types.output_types(op, frame.known_values, frame.type_of)
        if given.certain_error or given.likely_error or given.declaration_problems:
            self._report_types(op, given, place)
        elif schema is not None:
            self._sound[key] = runs_blocks, given.numbers
        return runs_blocks, given.numbers

    def _report_types(self, op: Op, given: ResultTypes, place: tuple[int, int]) -> None:
        """Reports wrong types: an error if the op can't be computed, a warning if only declarations differ, which Fluid
        ignores.
        """
        wrong = given.certain_error or given.likely_error
        problems = list(given.declaration_problems)
        if wrong is not None:
            problems.insert(0, ShapeProblem(wrong.message, wrong.slot, op.input(wrong.slot) or ""))
        for problem in problems:
            var = self.names.find(problem.variable, place[0]) if problem.variable else None
            focus = var_text(problem.variable) if problem.variable else ""
            focus = focus or (slot_text(problem.slot) if problem.slot else op.type)
            notes = declared_here(var) if var is not None else ()
            error = given.certain_error is not None and problem is problems[0]
            severity = Severity.ERROR if error else Severity.WARNING
            self.findings.op("type-mismatch", problem.message, place, focus=focus, severity=severity, notes=notes)

    # Inputs

    def _check_reads(self, op: Op, frame: BlockState, position: int) -> None:
        """Checks every name that an op reads and that is not known to have a value, and remembers the outcome."""
        place = (frame.index, position)
        missing: set[str] = set()
        for slot, names in op.inputs.items():
            for name in names:
                if name in frame.known_values:
                    continue
                owner = self.names.owner(name, frame.index)
                if owner is not None and not self._holds_value(name, owner, frame, op):
                    if self._does_without(op, slot, frame):
                        self._report_unwritten(op, name, owner, place, "it is left out")
                        continue
                    fed = (
                        owner == place[0] == 0
                        and name in op.output_names
                        and self.names.first_writer(name, owner) is op
                    )
                    self._report_unwritten(op, name, owner, place, "it has a value only if it is fed" if fed else "")
                elif owner is None and not self._needs_no_declaration(op, slot, frame.index):
                    missing.add(name)
                if owner is not None:
                    held = self._known_values.get(owner, EMPTY).get(name)
                    frame.known_values[name] = self._type_before(name, owner, frame) if held is None else held
        if missing:
            self._report_undeclared(op, True, missing, place)

    def _type_before(self, name: str, owner: int, frame: BlockState) -> int | None:
        """The type of a variable that no op has written yet; an input that ops overwrite has the declaration of its
        last value.
        """
        overwritten = owner == 0 and name in self.names.written_globals and not self.blocks[0].vars[name].persistable
        return self.types.unsure(frame.type_of(name)) if overwritten else frame.type_of(name)

    def _needs_no_declaration(self, op: Op, slot: str, block: int) -> bool:
        """Whether a variable of a slot counts as zero, or comes from outside, when it is not declared.

        Besides UNDECLARED_SLOTS these are gradients of outputs that nothing uses, where the gradient op runs blocks
        and another output has a gradient: Fluid names them all, and declares those that something computes.
        """
        if (op.type, slot) in UNDECLARED_SLOTS:
            return True
        if not slot.endswith("@GRAD") or not references(op):
            return False
        return any(self.names.owner(name, block) is not None for name in op.inputs[slot])

    def _does_without(self, op: Op, slot: str, frame: BlockState) -> bool:
        """Whether Fluid runs the op although a variable of a slot has no value.

        Ops that run blocks only name what their blocks read; others leave it out, if any other has a value.
        """
        if references(op) or (op.type, slot) == ("select_input", "X"):
            return True
        schema = schema_of(op.type)
        if schema is None or slot not in schema.may_lack:
            return False
        owners = {
            name: self.names.owner(name, frame.index) for slot in schema.may_lack for name in op.inputs.get(slot, ())
        }
        return any(
            name in frame.known_values or (owner is not None and self._holds_value(name, owner, frame, op))
            for name, owner in owners.items()
        )

    def _holds_value(self, name: str, owner: int, frame: BlockState, op: Op) -> bool:
        known = self._known_values.get(owner)
        if known is None or name in known:  # None: a block outside those that are running (a forward block)
            return True
        if owner == 0 and (name not in self.names.written_globals or self.blocks[0].vars[name].need_check_feed):
            return True  # a variable that no op writes, or that is declared as an input, is an input of the program
        if owner != frame.index and any(name in outer.carried for outer in self._frames):
            return True  # written by an earlier turn of the loop
        return any(0 <= i < len(self.blocks) and name in self.names.written(i) for _, i in references(op))

    def _report_unwritten(self, op: Op, name: str, owner: int, place: tuple[int, int], runs: str) -> None:
        """Reports a variable that is read too early: a warning if Fluid runs the op, with `runs` for what it does."""
        severity = Severity.WARNING if runs else Severity.ERROR
        if self._is_reported(f"unwritten {severity.value}", owner, name):
            return
        message, notes = unwritten(op, name, self.names.first_writer(name, owner))
        message += f"; {runs}" if runs else ""
        self.findings.op("read-before-write", message, place, focus=var_text(name), severity=severity, notes=notes)

    def _is_reported(self, what: str, owner: int | None, name: str) -> bool:
        """Whether this finding has been reported before; it counts as reported from now on."""
        count = len(self._reported_findings)
        self._reported_findings.add((what, owner, name))
        return len(self._reported_findings) == count

    def _report_undeclared(self, op: Op, reading: bool, names: set[str], place: tuple[int, int]) -> None:
        """Reports names without a declaration, each where it is first used.

        In a slot that may be empty, an undeclared name counts as left out, but not in a list.
        """
        needed = needed_variables(op, reading)
        for name in dict.fromkeys(op.input_names if reading else op.output_names):
            severity = Severity.ERROR if name in needed else Severity.WARNING
            if name not in names or self._is_reported(f"undeclared {severity.value}", None, name):
                continue
            elsewhere = next((i for i, other in enumerate(self.blocks) if name in other.vars), None)
            if elsewhere is not None:
                hint = f"; block ^{elsewhere} declares one, but it does not enclose this block"
            else:
                hint = self.findings.suggest(name, self.names.visible(place[0]), "%")
            what = "" if severity is Severity.ERROR else "; it counts as no variable"
            message = f"{var_text(name)} is not declared{what}{hint}"
            self.findings.op("undeclared-variable", message, place, focus=var_text(name), severity=severity)

    def _check_role_vars(self, op: Op, place: tuple[int, int]) -> None:
        """Checks that role variables are pairs of declared names. On a server they name variables of the trainers."""
        if not check_number(op, place, self.findings) or self.is_server:
            return
        if any(("undeclared error", None, name) in self._reported_findings for name in op.role_vars or ()):
            return
        visible = self.names.visible(place[0])
        check_role_vars(op, place, self.findings, lambda name: self.names.find(name, place[0]), visible)
