"""Reading and writing serialized ProgramDescs (`framework.proto` of Fluid 1.8)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NoReturn

from pstranspile.frontends import wire
from pstranspile.frontends.call_stacks import CALL_STACK, stack_of, user_frame
from pstranspile.frontends.protobuf_schema import program_desc_class
from pstranspile.ir.attributes import KINDS, PYTHON_TYPES, AttrKind, AttrValue, Strings
from pstranspile.ir.codes import Code
from pstranspile.ir.collector import collector_paused
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, error, raise_errors, warning
from pstranspile.ir.frozen import EMPTY, FrozenMap
from pstranspile.ir.model import (
    Attrs,
    Block,
    Location,
    Op,
    Origin,
    Program,
    Slots,
    TensorType,
    Var,
)
from pstranspile.ir.types import DType, OpRole, VarKind
from pstranspile.ir.warned import warn

# From the VarType message of a variable to its kind and description.

TENSOR_FIELDS: dict[VarKind, str] = {
    VarKind.LOD_TENSOR: "lod_tensor",
    VarKind.SELECTED_ROWS: "selected_rows",
    VarKind.LOD_TENSOR_ARRAY: "tensor_array",
    VarKind.READER: "reader",
    VarKind.TUPLE: "tuple",
}
"""The field of a VarType message that describes a variable of each kind; the other kinds have none."""

_DTYPES = {dtype.value: dtype for dtype in DType}
_VAR_KINDS = {kind.value: kind for kind in VarKind}


class Findings:
    """What reading one file has to say: errors end it, left-out parts are collected."""

    def __init__(self, file: str) -> None:
        self.location = Location(file)
        self.left_out: list[Diagnostic] = []

    def fail(self, code: Code, path: str, message: str) -> NoReturn:
        """Raises DiagnosticError about the field at `path`."""
        raise DiagnosticError([error(code, f"{path}: {message}", self.location)])

    def leave_out(self, path: str, message: str) -> None:
        """Notes that the field at `path` is not kept."""
        self.left_out.append(warning("desc-not-kept", f"{path}: {message}", self.location))

    def required(self, message: Any, field: str, path: str) -> Any:
        """The value of a field that must be there. Raises DiagnosticError if it is not."""
        if not message.HasField(field):
            self.fail("desc-missing", f"{path}.{field}", "the field is missing")
        return getattr(message, field)


class VarTypeValue(NamedTuple):
    """A decoded VarType: the fields of Var it fills, and whether it writes out a LoD level of 0."""

    kind: VarKind
    tensor: TensorType | None = None
    readers: tuple[TensorType, ...] = ()
    elements: tuple[VarKind | DType, ...] = ()
    writes_level: bool = False


class TypeDecoder:
    """Decodes VarType messages; those with equal bytes become one value."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._cache: dict[bytes, VarTypeValue] = {}

    def decode(self, message: Any, path: str) -> VarTypeValue:
        """The value of the VarType at `path`. Raises DiagnosticError naming a field that is wrong."""
        key = message.SerializeToString()
        value = self._cache.get(key)
        if value is None:
            left_out = len(self._findings.left_out)
            value = self._decode(message, path)
            if len(self._findings.left_out) == left_out:  # one warning for all variables
                self._cache[key] = value
        return value

    def _decode(self, message: Any, path: str) -> VarTypeValue:
        number = self._findings.required(message, "type", path)
        kind = _VAR_KINDS.get(number)
        if kind is None:
            self._findings.fail("desc-enum", f"{path}.type", f"{number} is not a kind of variable")
        field = TENSOR_FIELDS.get(kind)
        described = False
        for descriptor, _ in message.ListFields():
            if descriptor.name == field:
                described = True
            elif descriptor.name != "type":
                text = f"it does not describe a variable of kind {kind.name} and is left out"
                self._findings.leave_out(f"{path}.{descriptor.name}", text)
        if field is None or not described:
            return VarTypeValue(kind)
        inner, where = getattr(message, field), f"{path}.{field}"
        if kind is VarKind.READER:
            items = enumerate(inner.lod_tensor)
            readers = tuple(self._lod_tensor(item, f"{where}.lod_tensor[{i}]") for i, item in items)
            return VarTypeValue(kind, readers=readers)
        if kind is VarKind.TUPLE:
            numbers = enumerate(inner.element_type)
            return VarTypeValue(
                kind, elements=tuple(self._element(n, f"{where}.element_type[{i}]") for i, n in numbers)
            )
        if kind is VarKind.SELECTED_ROWS:
            return VarTypeValue(kind, self._tensor(inner, 0, where))
        tensor = self._lod_tensor(inner, where)
        return VarTypeValue(kind, tensor, writes_level=not tensor.lod_level and inner.HasField("lod_level"))

    def _element(self, number: int, path: str) -> VarKind | DType:
        element = _DTYPES.get(number) or _VAR_KINDS.get(number)
        if element is None:
            self._findings.fail("desc-enum", path, f"{number} is not an element type or a kind of variable")
        return element

    def _lod_tensor(self, message: Any, path: str) -> TensorType:
        tensor = self._findings.required(message, "tensor", path)
        return self._tensor(tensor, message.lod_level, f"{path}.tensor")

    def _tensor(self, message: Any, lod_level: int, path: str) -> TensorType:
        number = self._findings.required(message, "data_type", path)
        dtype = _DTYPES.get(number)
        if dtype is None:
            if number not in _VAR_KINDS:
                self._findings.fail("desc-enum", f"{path}.data_type", f"{number} is not an element type")
            # sampled_softmax_with_cross_entropy makes a variable of this sort; no op asks for its element type
            text = f"{number} is the kind {_VAR_KINDS[number].name}, not an element type; it counts as not set"
            self._findings.leave_out(f"{path}.data_type", text)
            dtype = DType.BOOL
        return TensorType(dtype, tuple(message.dims), lod_level)


def default_written(name: str, kind: VarKind, tensor: TensorType | None, persistable: bool) -> tuple[str, ...]:
    """The optional fields at their default that Fluid usually writes for such a variable.

    Its Python layer writes `persistable` of the variables it makes; gradients, and what has no description,
    are made below it. The LoD level is written of what ops compute, not of parameters and other state.
    """
    if persistable or tensor is None or kind is VarKind.SELECTED_ROWS:
        return ()
    made_by_python = kind is VarKind.LOD_TENSOR and "@GRAD" not in name
    level = () if tensor.lod_level else ("lod_level",)
    return ("persistable", *level) if made_by_python else level


# From a parsed ProgramDesc message to a Program, checking what protobuf does not.

ROLE = "op_role"
ROLE_VARS = "op_role_var"

VALUE_FIELDS: dict[AttrKind, str] = {
    AttrKind.INT: "i",
    AttrKind.FLOAT: "f",
    AttrKind.STRING: "s",
    AttrKind.INTS: "ints",
    AttrKind.FLOATS: "floats",
    AttrKind.STRINGS: "strings",
    AttrKind.BOOLEAN: "b",
    AttrKind.BOOLEANS: "bools",
    AttrKind.BLOCK: "block_idx",
    AttrKind.LONG: "l",
    AttrKind.BLOCKS: "blocks_idx",
    AttrKind.LONGS: "longs",
}
"""The field of an attribute message that holds the value of each kind."""

SCALARS = frozenset({AttrKind.INT, AttrKind.FLOAT, AttrKind.STRING, AttrKind.BOOLEAN, AttrKind.BLOCK, AttrKind.LONG})
"""The kinds whose value is one value rather than a list."""

_KINDS = {kind.value: kind for kind in AttrKind}


class _Attr(NamedTuple):
    """A decoded attribute, with its name."""

    name: str
    value: AttrValue


class _Decoded(NamedTuple):
    """What the attributes of an op are: those that stay attributes, the role, its variables, where the op was made."""

    attrs: Attrs
    role: OpRole | None
    role_vars: tuple[str, ...] | None
    location: Location


class Decoder:
    """Decodes one ProgramDesc; keeps the caches that make equal parts one value.

    `findings.left_out` holds a warning for every part that the program model can't hold. Of the call stack of an op,
    the user's own frame is kept as the location's script; with `call_stacks` the whole stack is an attribute as well.
    """

    def __init__(self, file: str, program: str, call_stacks: bool = False) -> None:
        self.program = program
        self._call_stacks = call_stacks
        self._scripts: dict[bytes, Location | None] = {}
        self.findings = Findings(file)
        self._location = self.findings.location
        self._types = TypeDecoder(self.findings)
        self._text: dict[bytes, str] = {}
        self._attr_cache: dict[bytes, _Attr] = {}
        self._attrs_cache: dict[tuple[bytes, ...], Attrs] = {}
        self._slot_cache: dict[bytes, tuple[str, tuple[str, ...]]] = {}
        self._roles: dict[int, OpRole] = {}

    def decode(self, message: Any) -> Program:
        """The program. Raises DiagnosticError naming the field that can't be understood."""
        if not message.blocks:
            self.findings.fail("desc-missing", "blocks", "a program has at least one block, this one has none")
        version: int | None = message.version.version if message.HasField("version") else None
        if message.HasField("op_compatible_map"):
            self.findings.leave_out("op_compatible_map", "the versions of ops it asks for are left out")
        blocks = tuple(self._block(block, index) for index, block in enumerate(message.blocks))
        return Program(blocks, 0, version)

    def _decoded(self, raw: bytes) -> str:
        """Text of a string field; bytes that are not UTF-8 survive as lone surrogates."""
        text = self._text.get(raw)
        if text is None:
            text = self._text[raw] = raw.decode("utf-8", "surrogateescape")
        return text

    def _name(self, message: Any, field: str, path: Callable[[], str]) -> str:
        raw = getattr(message, field)
        if not raw and not message.HasField(field):
            self.findings.fail("desc-missing", f"{path()}.{field}", "the field is missing")
        return self._decoded(raw)

    def _block(self, message: Any, index: int) -> Block:
        path = f"blocks[{index}]"
        stated = self.findings.required(message, "idx", path)
        if stated != index:
            self.findings.fail("desc-block-index", f"{path}.idx", f"the block says it is block {stated}, not {index}")
        parent = self.findings.required(message, "parent_idx", path)
        variables: dict[str, Var] = {}
        for position, item in enumerate(message.vars):
            var = self._var(item, f"{path}.vars[{position}]")
            if var.name in variables:
                self.findings.fail(
                    "desc-duplicate", f"{path}.vars[{position}].name", f"variable {var.name!r} is there twice"
                )
            variables[var.name] = var
        ops = tuple(self._op(item, index, position) for position, item in enumerate(message.ops))
        forward = message.forward_block_idx if message.HasField("forward_block_idx") else -1
        return Block(FrozenMap(variables) if variables else EMPTY, ops, parent, forward)

    def _var(self, message: Any, path: str) -> Var:
        name = self._name(message, "name", lambda: path)
        spec = self._types.decode(self.findings.required(message, "type", path), f"{path}.type")
        persistable: bool = message.persistable
        need_check_feed: bool = message.need_check_feed
        written: tuple[str, ...] = ()
        if not persistable and message.HasField("persistable"):
            written = ("persistable",)
        if not need_check_feed and message.HasField("need_check_feed"):
            written += ("need_check_feed",)
        if spec.writes_level:
            written += ("lod_level",)
        return Var(
            name,
            spec.kind,
            spec.tensor,
            persistable,
            need_check_feed,
            None,
            spec.readers,
            spec.elements,
            None,
            None if written == default_written(name, spec.kind, spec.tensor, persistable) else written,
        )

    def _op(self, message: Any, block: int, index: int) -> Op:
        def path() -> str:
            return f"blocks[{block}].ops[{index}]"

        attrs, role, role_vars, location = self._attrs(message.attrs, path)
        return Op(
            self._name(message, "type", path),
            self._slots(message.inputs, "inputs", path),
            self._slots(message.outputs, "outputs", path),
            attrs,
            role,
            role_vars,
            message.is_target,
            Origin(self.program, block, index, location),
        )

    def _slots(self, messages: Any, side: str, path: Callable[[], str]) -> Slots:
        cache = self._slot_cache
        slots: dict[str, tuple[str, ...]] = {}
        count = 0
        for message in messages:
            key = message.SerializeToString()
            slot = cache.get(key)
            if slot is None:
                where = count
                name = self._name(message, "parameter", lambda where=where: f"{path()}.{side}[{where}]")
                slot = cache[key] = (name, tuple(map(self._decoded, message.arguments)))
            slots[slot[0]] = slot[1]
            count += 1
        if len(slots) != count:
            names = [cache[message.SerializeToString()][0] for message in messages]
            self._twice(names, f"{path()}.{side}", "parameter", "slot")
        return FrozenMap(slots) if slots else EMPTY

    def _twice(self, names: Iterable[str], path: str, field: str, what: str) -> NoReturn:
        seen: set[str] = set()
        for position, name in enumerate(names):
            if name in seen:
                self.findings.fail("desc-duplicate", f"{path}[{position}].{field}", f"{what} {name!r} is there twice")
            seen.add(name)
        raise AssertionError("called for names that are all different")

    def _attrs(self, messages: Any, path: Callable[[], str]) -> _Decoded:
        """The attributes of an op. Equal attributes are decoded once."""
        cache = self._attr_cache
        role: OpRole | None = None
        role_vars: tuple[str, ...] | None = None
        keys: list[bytes] = []
        attrs: list[_Attr] = []
        roles = stacks = 0
        location = self._location
        for position, message in enumerate(messages):
            key = message.SerializeToString()
            attr = cache.get(key)
            if attr is None:
                attr = cache[key] = self._attr(message, f"{path()}.attrs[{position}]")
            name = attr[0]
            if name == ROLE:
                role, roles = self._role(attr[1], f"{path()}.attrs[{position}]"), roles + 1
            elif name == ROLE_VARS:
                role_vars = self._role_vars(attr[1], f"{path()}.attrs[{position}]")
                roles += 1
            elif name == CALL_STACK and (placed := self._placed(key, attr[1])) is not None:
                location, stacks = placed, stacks + 1
                if self._call_stacks:
                    keys.append(key)
                    attrs.append(attr)
            else:
                keys.append(key)
                attrs.append(attr)
        chosen = tuple(keys)
        values = self._attrs_cache.get(chosen)
        if values is None:
            values = self._attrs_cache[chosen] = FrozenMap(attrs) if attrs else EMPTY
        if len(values) != len(attrs) or roles != (role is not None) + (role_vars is not None) or stacks > 1:
            names = [cache[message.SerializeToString()].name for message in messages]
            self._twice(names, f"{path()}.attrs", "name", "attribute")
        return _Decoded(values, role, role_vars, location)

    def _placed(self, key: bytes, stack: AttrValue) -> Location | None:
        """The location of an op with this call stack; None if that holds no frames, and is to be kept as it is."""
        if key not in self._scripts:
            script = user_frame(stack) if type(stack) is Strings else None
            self._scripts[key] = script and self._location._replace(script=script)
        return self._scripts[key]

    def _role(self, value: AttrValue, path: str) -> OpRole:
        if type(value) is not int:
            self.findings.fail("desc-role", f"{path}.type", f"{ROLE} must be an INT")
        role = self._roles.get(value)
        if role is None:
            if value < 0:
                self.findings.fail("desc-role", f"{path}.i", f"{ROLE} must not be negative, it is {value}")
            role = self._roles[value] = OpRole(value)
        return role

    def _role_vars(self, value: AttrValue, path: str) -> tuple[str, ...]:
        if type(value) is not Strings:
            self.findings.fail("desc-role", f"{path}.type", f"{ROLE_VARS} must be STRINGS")
        return tuple(value)

    def _attr(self, message: Any, path: str) -> _Attr:
        name = self._name(message, "name", lambda: path)
        number = self.findings.required(message, "type", path)
        kind = _KINDS.get(number)
        if kind is None:
            self.findings.fail("desc-enum", f"{path}.type", f"{number} is not a kind of attribute (attribute {name!r})")
        field = VALUE_FIELDS[kind]
        for descriptor, _ in message.ListFields():
            if descriptor.name not in ("name", "type", field):
                self.findings.leave_out(
                    f"{path}.{descriptor.name}",
                    f"attribute {name!r} is of kind {kind.name}; this other value is left out",
                )
        if kind in SCALARS and not message.HasField(field):
            self.findings.fail(
                "desc-no-value", f"{path}.{field}", f"attribute {name!r} of kind {kind.name} has no value"
            )
        raw = getattr(message, field)
        if kind is AttrKind.STRING:
            return _Attr(name, self._decoded(raw))
        if kind is AttrKind.STRINGS:
            raw = map(self._decoded, raw)
        return _Attr(name, PYTHON_TYPES[kind](raw))


# From a Program to a ProgramDesc message.


def fill_program(message: Any, program: Program) -> None:
    """Writes a program into an empty ProgramDesc message.

    Raises DiagnosticError, with the path of the field, for a value the format can't carry: a number outside
    its range, a name with lone surrogates that do not stand for bytes.
    """
    for index, block in enumerate(program.blocks):
        _fill_block(message.blocks.add(), block, index)
    if program.version is not None:
        message.version.version = _checked(program.version, 64, "version.version")


def _refuse(path: str, reason: str) -> DiagnosticError:
    return DiagnosticError([error("desc-unwritable", f"{path}: {reason}")])


def _checked(value: int, bits: int, path: str) -> int:
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise _refuse(path, f"{value} does not fit into {bits} bits")
    return value


def _raw(text: str, path: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise _refuse(path, f"{text!r} can't be written as UTF-8") from None


def _fill_block(message: Any, block: Block, index: int) -> None:
    path = f"blocks[{index}]"
    message.idx = index
    message.parent_idx = _checked(block.parent, 32, f"{path}.parent_idx")
    if block.forward_block != -1:
        message.forward_block_idx = _checked(block.forward_block, 32, f"{path}.forward_block_idx")
    for position, var in enumerate(block.vars.values()):
        _fill_var(message.vars.add(), var, f"{path}.vars[{position}]")
    for position, op in enumerate(block.ops):
        _fill_op(message.ops.add(), op, f"{path}.ops[{position}]")


def _fill_var(message: Any, var: Var, path: str) -> None:
    message.name = _raw(var.name, f"{path}.name")
    message.type.type = var.kind.value
    written = var.written_defaults
    if written is None:
        written = default_written(var.name, var.kind, var.tensor, var.persistable)
    if var.persistable or "persistable" in written:
        message.persistable = var.persistable
    if var.need_check_feed or "need_check_feed" in written:
        message.need_check_feed = var.need_check_feed
    field = TENSOR_FIELDS.get(var.kind)
    _check_description(var, path)
    if field is None:
        return
    spec = getattr(message.type, field)
    if var.kind is VarKind.READER:
        spec.SetInParent()
        for position, item in enumerate(var.readers):
            _fill_lod_tensor(spec.lod_tensor.add(), item, True, f"{path}.type.reader.lod_tensor[{position}]")
    elif var.kind is VarKind.TUPLE:
        spec.SetInParent()
        spec.element_type.extend(element.value for element in var.elements)
    elif var.tensor is None:
        return
    elif var.kind is VarKind.SELECTED_ROWS:
        _fill_tensor(spec, var.tensor, f"{path}.type.selected_rows")
    else:
        _fill_lod_tensor(spec, var.tensor, "lod_level" in written, f"{path}.type.{field}")


def _check_description(var: Var, path: str) -> None:
    """Refuses a description for which a variable of this kind has no field."""
    kind, tensor = var.kind, var.tensor
    if tensor is not None and kind is not VarKind.LOD_TENSOR and kind is not VarKind.LOD_TENSOR_ARRAY:
        if kind is not VarKind.SELECTED_ROWS:
            raise _refuse(f"{path}.type", f"a variable of kind {kind.name} has no element type and dims")
        if tensor.lod_level:
            raise _refuse(f"{path}.type.selected_rows", "SELECTED_ROWS have no LoD level")
    if (var.readers and kind is not VarKind.READER) or (var.elements and kind is not VarKind.TUPLE):
        raise _refuse(f"{path}.type", f"a variable of kind {kind.name} has no list of types")


def _fill_lod_tensor(message: Any, tensor: TensorType, write_level: bool, path: str) -> None:
    _fill_tensor(message.tensor, tensor, f"{path}.tensor")
    if tensor.lod_level or write_level:
        message.lod_level = _checked(tensor.lod_level, 32, f"{path}.lod_level")


def _fill_tensor(message: Any, tensor: TensorType, path: str) -> None:
    message.data_type = tensor.dtype.value
    try:
        message.dims.extend(tensor.shape)
    except ValueError:
        for position, dim in enumerate(tensor.shape):
            _checked(dim, 64, f"{path}.dims[{position}]")
        raise


def _fill_op(message: Any, op: Op, path: str) -> None:
    message.type = _raw(op.type, f"{path}.type")
    _fill_slots(message.inputs, op.inputs, f"{path}.inputs")
    _fill_slots(message.outputs, op.outputs, f"{path}.outputs")
    attrs: dict[str, AttrValue] = dict(op.attrs)
    if op.role is not None:
        attrs[ROLE] = int(op.role)
    if op.role_vars is not None:
        attrs[ROLE_VARS] = Strings(op.role_vars)
    script = op.origin.location.script if op.origin and op.origin.location else None
    if script is not None and CALL_STACK not in attrs:
        attrs[CALL_STACK] = stack_of(script)
    for name in sorted(attrs):
        _fill_attr(message.attrs.add(), name, attrs[name], path)
    if op.is_target:
        message.is_target = True


def _fill_slots(messages: Any, slots: Slots, path: str) -> None:
    for name in sorted(slots):
        message = messages.add()
        message.parameter = _raw(name, path)
        if slots[name]:
            message.arguments.extend(_raw_list(slots[name], path))


def _raw_list(names: Iterable[str], path: str) -> list[bytes]:
    return [_raw(name, path) for name in names]


def _fill_attr(message: Any, name: str, value: Any, path: str) -> None:
    where = f"{path}.attrs[{name}]"
    message.name = _raw(name, f"{path}.attrs")
    kind = KINDS[type(value)]
    message.type = kind.value
    field = VALUE_FIELDS[kind]
    if kind is AttrKind.STRING:
        value = _raw(value, where)
    elif kind is AttrKind.STRINGS:
        value = _raw_list(value, where)
    try:
        if kind in SCALARS:
            setattr(message, field, value)
        elif value:
            getattr(message, field).extend(value)
    except ValueError:
        bits = 64 if kind in (AttrKind.LONG, AttrKind.LONGS) else 32
        for number in value if isinstance(value, tuple) else (value,):  # pyright: ignore[reportUnknownVariableType]
            _checked(number, bits, where)  # pyright: ignore[reportUnknownArgumentType]
        raise


__all__ = ["program_from_bytes", "program_to_bytes", "read_program"]


def read_program(
    data: bytes, file: str, program: str, call_stacks: bool = False
) -> tuple[Program, tuple[Diagnostic, ...]]:
    """The program in a serialized ProgramDesc, and a warning for every part of it that is left out.

    `file` is the name messages give the data, `program` the name the program will have in its module (it is
    part of the origin of each op). Of the call stack of an op, the place in the user's script is kept; the stack itself
    with `call_stacks`. Raises DiagnosticError, with the byte offset or the path of the field, for data that is not a
    complete and consistent ProgramDesc.
    """
    from google.protobuf.message import DecodeError

    message, raw_size = program_desc_class()(), 0
    try:
        message.ParseFromString(data)
        raw_size = message.ByteSize()
        message.ParseFromString(data)
    except DecodeError as refusal:
        damage = wire.find_damage(data, file)
        reason = damage or error("desc-damaged", f"protobuf can't read the data: {refusal}", Location(file))
        raise DiagnosticError([reason]) from None
    message.DiscardUnknownFields()
    # Cheaper than looking at every message: without what protobuf did not know, is there less? (Parsed twice,
    # because protobuf without its C part does not count again after the discarding.)
    left_out = () if message.ByteSize() == raw_size else wire.unknown_fields(data, file)
    raise_errors(left_out)
    decoder = Decoder(file, program, call_stacks)
    with collector_paused():
        result = decoder.decode(message)
    return result, (*left_out, *decoder.findings.left_out)


def program_from_bytes(data: bytes, file: str, program: str) -> Program:
    """The program in a serialized ProgramDesc, as `read_program` gives it.

    What is left out is reported through Python's `warnings`. Raises DiagnosticError.
    """
    result, left_out = read_program(data, file, program)
    if left_out:
        for finding in left_out:
            warn(str(DiagnosticError([finding])))
    return result


def program_to_bytes(program: Program) -> bytes:
    """The serialized ProgramDesc of a program: the same bytes for equal programs, on every machine.

    Slots and attributes stand in alphabetical order (as Fluid writes slots), variables and ops in their own.
    Raises DiagnosticError for a value that the format can't carry.
    """
    message: Any = program_desc_class()()
    with collector_paused():
        fill_program(message, program)
    return message.SerializeToString(deterministic=True)
