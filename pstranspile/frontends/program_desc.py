"""Reading and writing serialized ProgramDescs (`framework.proto` of Fluid 1.8), by a protobuf schema built at run time.

`MESSAGES` is the whole description: message -> field -> (number, type, repeated). Enumerations are declared as int32
and strings as bytes, which have the same encoding. Nothing is declared required. So protobuf neither refuses nor sets
aside unknown numbers, text that is not UTF-8 and missing fields: the decoder sees them, and can say where they stand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import takewhile
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple, NoReturn

from pstranspile.ir.attributes import KINDS, PYTHON_TYPES, AttrKind, AttrValue, Strings
from pstranspile.ir.codes import Code
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, error, raise_errors, warning
from pstranspile.ir.model import (
    EMPTY,
    Attrs,
    Block,
    FrozenMap,
    Location,
    Module,
    Op,
    Origin,
    Program,
    Slots,
    TensorType,
    Var,
    collector_paused,
)
from pstranspile.ir.patterns import Pattern
from pstranspile.ir.types import DType, OpRole, VarKind
from pstranspile.ir.user_warnings import warn

# The messages of a Fluid 1.8 ProgramDesc, as a protobuf schema built at run time.


class Field(NamedTuple):
    """A field of a message. `type` is a scalar (`bytes`, `int32`, ...) or the name of a message or enumeration.

    `default` is the value of a message without this field, as text; empty for the zero of the type.
    """

    number: int
    type: str
    repeated: bool = False
    default: str = ""


MESSAGES: dict[str, dict[str, Field]] = {
    "ProgramDesc": {
        "blocks": Field(1, "BlockDesc", True),
        "op_compatible_map": Field(3, "OpCompatibleMap"),
        "version": Field(4, "Version"),
    },
    "Version": {"version": Field(1, "int64")},
    "OpCompatibleMap": {
        "pair": Field(1, "OpCompatiblePair", True),
        "default_required_version": Field(2, "bytes"),
    },
    "OpCompatiblePair": {"op_name": Field(1, "bytes"), "compatible_info": Field(2, "CompatibleInfo")},
    "CompatibleInfo": {"version": Field(1, "bytes"), "type": Field(2, "int32")},
    "BlockDesc": {
        "idx": Field(1, "int32"),
        "parent_idx": Field(2, "int32"),
        "vars": Field(3, "VarDesc", True),
        "ops": Field(4, "OpDesc", True),
        "forward_block_idx": Field(5, "int32"),
    },
    "VarDesc": {
        "name": Field(1, "bytes"),
        "type": Field(2, "VarType"),
        "persistable": Field(3, "bool"),
        "need_check_feed": Field(4, "bool"),
    },
    "VarType": {
        "type": Field(1, "int32"),
        "selected_rows": Field(2, "TensorDesc"),
        "lod_tensor": Field(3, "LoDTensorDesc"),
        "tensor_array": Field(4, "LoDTensorDesc"),
        "reader": Field(5, "ReaderDesc"),
        "tuple": Field(7, "Tuple"),
    },
    "TensorDesc": {"data_type": Field(1, "int32"), "dims": Field(2, "int64", True)},
    "LoDTensorDesc": {"tensor": Field(1, "TensorDesc"), "lod_level": Field(2, "int32")},
    "ReaderDesc": {"lod_tensor": Field(1, "LoDTensorDesc", True)},
    "Tuple": {"element_type": Field(1, "int32", True)},
    "OpDesc": {
        "inputs": Field(1, "OpVar", True),
        "outputs": Field(2, "OpVar", True),
        "type": Field(3, "bytes"),
        "attrs": Field(4, "OpAttr", True),
        "is_target": Field(5, "bool"),
    },
    "OpVar": {"parameter": Field(1, "bytes"), "arguments": Field(2, "bytes", True)},
    "OpAttr": {
        "name": Field(1, "bytes"),
        "type": Field(2, "int32"),
        "i": Field(3, "int32"),
        "f": Field(4, "float"),
        "s": Field(5, "bytes"),
        "ints": Field(6, "int32", True),
        "floats": Field(7, "float", True),
        "strings": Field(8, "bytes", True),
        "b": Field(10, "bool"),
        "bools": Field(11, "bool", True),
        "block_idx": Field(12, "int32"),
        "l": Field(13, "int64"),
        "blocks_idx": Field(14, "int32", True),
        "longs": Field(15, "int64", True),
        "float64": Field(19, "double"),
    },
}
"""Every message of the format with its fields; LoDTensorArrayDesc is encoded as LoDTensorDesc is."""

_PACKAGE = "pstranspile.frontends"
_SCALARS = ("bytes", "string", "int32", "int64", "uint64", "bool", "float", "double")


@cache
def program_desc_class() -> Any:
    """The protobuf message class of a ProgramDesc."""
    return message_classes(MESSAGES)["ProgramDesc"]


def message_classes(
    messages: Mapping[str, Mapping[str, Field]], enums: Mapping[str, Mapping[str, int]] | None = None
) -> dict[str, Any]:
    """The protobuf message classes of a table like `MESSAGES`, by name. Enumerations have names and their numbers.

    They live in a descriptor pool of their own, so that they don't clash with Paddle's registration of the same
    messages in a process that has both.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    proto: Any = descriptor_pb2.FieldDescriptorProto
    file: Any = descriptor_pb2.FileDescriptorProto(
        name="pstranspile/frontends/program_desc.proto", package=_PACKAGE, syntax="proto2"
    )
    for enum_name, numbers in (enums or {}).items():
        enum = file.enum_type.add(name=enum_name)
        for name, number in numbers.items():
            enum.value.add(name=name, number=number)
    for message_name, fields in messages.items():
        message = file.message_type.add(name=message_name)
        for field_name, field in fields.items():
            label = proto.LABEL_REPEATED if field.repeated else proto.LABEL_OPTIONAL
            place = {"name": field_name, "number": field.number, "label": label}
            if field.type in _SCALARS:
                added = message.field.add(**place, type=getattr(proto, f"TYPE_{field.type.upper()}"))
                if field.default:
                    added.default_value = field.default
            else:
                kind = proto.TYPE_ENUM if enums and field.type in enums else proto.TYPE_MESSAGE
                message.field.add(**place, type=kind, type_name=f".{_PACKAGE}.{field.type}")
    pool: Any = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in messages
    }


# Call stacks, which Fluid keeps with every op: finding the user's own frame in a stack, and making a stack of a frame.


CALL_STACK = "op_callstack"
"""The attribute that holds the frames of a stack, each as Python's `traceback` writes it."""

_FRAME = Pattern(r'\s*File "([^\n]+)", line ([0-9]{1,9})(?:, in [^\n]*)?(?:\n|$)').match
_PADDLE = Pattern(r"(.*[/\\]paddle[/\\])fluid[/\\]framework\.pyc?").fullmatch
_INSTALLED = Pattern(r".*[/\\](?:site|dist)-packages[/\\]").match
_LIBRARY = Pattern(
    r".*[/\\]lib[/\\]python[0-9.]+[/\\](?!(?:site|dist)-packages[/\\])"
    r"|.*[/\\](?:site|dist)-packages[/\\]decorator\.py$"
).match
_GENERATED = ("<decorator-gen-", "<string>", "<frozen ")
"""The beginnings of names of generated files. (`<stdin>` and a notebook's cells are the user's own.)"""


def user_frame(stack: Strings) -> Location | None:
    """The frame of a call stack that is the user's own: the innermost one outside of Paddle and Python's own library.

    If there is none, it is the outermost frame in a file. None for a value that holds no frames. Frames may be in
    either order: Fluid 1.8 writes the innermost first.
    """
    frames = [(result[1], int(result[2])) for text in stack if (result := _FRAME(text))]
    frames = [frame for frame in frames if not frame[0].startswith(_GENERATED) and frame[1] > 0]
    if not frames:
        return None
    roots = [result[1] for file, _ in frames if (result := _PADDLE(file))]
    if not roots:
        roots = [result[0] + "paddle" for file, _ in frames if (result := _INSTALLED(file))]

    def is_paddle(file: str) -> bool:
        return any(file.startswith(root) for root in roots)

    if not is_paddle(frames[0][0]):
        frames.reverse()  # from here on, the innermost frame is first
    own = [frame for frame in frames if not is_paddle(frame[0]) and not _LIBRARY(frame[0])]
    return Location(*(own[0] if own else frames[-1]))


def stack_of(script: Location) -> Strings:
    """The call stack of one frame, without a function name: all that an op's place in a script tells."""
    return Strings([f'  File "{script.file}", line {script.line}\n'])


def with_short_scripts(module: Module) -> Module:
    """The module with absolute names of scripts shortened: relative to their common folder, or to the folder of
    packages.

    Only ops of serialized programs are changed; places that a text states stay.
    """
    files = {s.file for s in _scripts(module)}
    absolute = sorted(file for file in files if PurePosixPath(file).is_absolute() or PureWindowsPath(file).drive)
    short = _short_file_names(absolute)
    if not short:
        return module
    known: dict[Location, Location] = {}

    def shorten_script(op: Op) -> Op:
        origin = op.origin
        location = origin.location if origin is not None else None
        script = location.script if location is not None and not location.line else None
        if origin is None or location is None or script is None:
            return op
        made = known.get(location)
        if made is None:
            made = known[location] = location._replace(script=script._replace(file=short.get(script.file, script.file)))
        return op._replace(origin=origin._replace(location=made))

    def of_block(block: Block) -> Block:
        return block._replace(ops=tuple(map(shorten_script, block.ops)))

    programs = module.programs.items()
    return module.with_programs({name: p._replace(blocks=tuple(map(of_block, p.blocks))) for name, p in programs})


def _scripts(module: Module) -> Iterable[Location]:
    for program in module.programs.values():
        for block in program.blocks:
            for op in block.ops:
                location = op.location
                if location is not None and location.script is not None and not location.line:
                    yield location.script


def _short_file_names(files: list[str]) -> dict[str, str]:
    """Shorter names for files with absolute names, as long as no two files get the same name."""
    short = {file: file[len(result[0]) :] for file in files if (result := _INSTALLED(file))}
    rest = [file for file in files if file not in short]
    folders = [file.replace("\\", "/").split("/")[:-1] for file in rest]
    alike = takewhile(lambda parts: len(set(parts)) == 1, zip(*folders, strict=False))
    common = sum(1 for _ in alike)
    if common > 1:
        short.update({file: file.replace("\\", "/").split("/", common)[-1] for file in rest})
    return short if len(set(short.values())) == len(short) else {}


# Damage of a serialized ProgramDesc: a walk over the wire format, used after parsing has failed.


_VARINT, _FIXED64, _LENGTH, _GROUP, _END_GROUP, _FIXED32 = range(6)
_WIRE_NAMES = {
    _VARINT: "a varint",
    _FIXED64: "8 bytes",
    _LENGTH: "a length and bytes",
    _GROUP: "a group",
    _FIXED32: "4 bytes",
}
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}
_SCALAR_WIRES = {"int32": _VARINT, "int64": _VARINT, "bool": _VARINT, "float": _FIXED32, "double": _FIXED64}
_NAMES = {message: {f.number: name for name, f in fields.items()} for message, fields in MESSAGES.items()}
_MAX_GROUP_DEPTH = 64


class _Damage(Exception):
    """Raised where the bytes can't be read any further."""

    def __init__(self, offset: int, path: str, reason: str) -> None:
        super().__init__(reason)
        self.offset, self.path, self.reason = offset, path, reason


class _UnknownField(NamedTuple):
    """A field that the schema does not know (`expected` None), or one in another encoding than the schema's."""

    offset: int
    path: str
    wire: int
    expected: int | None


def find_damage(data: bytes, file: str) -> Diagnostic | None:
    """The first place at which `data` is not a well-formed ProgramDesc, None if every field can be read."""
    try:
        for entry in _walk(data, 0, len(data), "ProgramDesc", ""):
            if entry.expected is not None:
                return _field_finding(entry, file)
    except _Damage as damage:
        return _damage_finding(damage, file)
    return None


def unknown_fields(data: bytes, file: str) -> tuple[Diagnostic, ...]:
    """A finding for every field of `data` that the schema does not have, or has in another encoding.

    At most 20 findings, followed by one with the number of the others.
    """
    try:
        result = list(_walk(data, 0, len(data), "ProgramDesc", ""))
    except _Damage as damage:
        return (_damage_finding(damage, file),)
    result.sort(key=lambda entry: entry.expected is None)  # errors first
    shown = tuple(_field_finding(entry, file) for entry in result[:20])
    if len(result) > 20:
        rest = warning("desc-not-kept", f"{len(result) - 20} more unknown fields", Location(file))
        return (*shown, rest)
    return shown


def _damage_finding(damage: _Damage, file: str) -> Diagnostic:
    place = f"{damage.path}, byte {damage.offset}" if damage.path else f"byte {damage.offset}"
    return error("desc-damaged", f"{place}: {damage.reason}", Location(file))


def _field_finding(entry: _UnknownField, file: str) -> Diagnostic:
    place = f"{entry.path}, byte {entry.offset}"
    if entry.expected is None:
        message = f"{place}: the field is not known in a ProgramDesc of Fluid 1.8 and is left out"
        return warning("desc-not-kept", message, Location(file))
    message = f"{place}: the field is encoded as {_WIRE_NAMES[entry.wire]}, it must be {_WIRE_NAMES[entry.expected]}"
    return error("desc-wire-type", message, Location(file))


def _varint(data: bytes, at: int, end: int, path: str) -> tuple[int, int]:
    value = shift = 0
    start = at
    while True:
        if at >= end:
            raise _Damage(start, path, "the data ends inside a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift >= 70:
            raise _Damage(start, path, "a number is longer than 10 bytes")


def _walk(data: bytes, at: int, end: int, message: str, path: str) -> Iterator[_UnknownField]:
    """Checks the fields of the message in data[at:end]; the depth of calls is that of the schema."""
    names, fields = _NAMES[message], MESSAGES[message]
    counts: dict[int, int] = {}
    while at < end:
        start = at
        key, at = _varint(data, at, end, path)
        number, wire = key >> 3, key & 7
        name = names.get(number)
        field = fields[name] if name is not None else None
        where = _where(path, name or f"field {number}", field, counts, number)
        if number == 0 or number >= 1 << 29 or wire == _END_GROUP or wire > _FIXED32:
            raise _Damage(start, path, f"{key} does not start a field")
        value_at, at = _value(data, at, end, number, wire, where)
        if field is None:
            yield _UnknownField(start, where, wire, None)
        elif field.type in MESSAGES and wire == _LENGTH:
            yield from _walk(data, value_at, at, field.type, where)
        elif not _fits(field, wire):
            yield _UnknownField(start, where, wire, _SCALAR_WIRES.get(field.type, _LENGTH))
        elif field.repeated and wire == _LENGTH and field.type in _SCALAR_WIRES:
            _check_packed(data, value_at, at, field, where)


def _where(path: str, name: str, field: Field | None, counts: dict[int, int], number: int) -> str:
    if field is not None and field.repeated:
        position = counts.get(number, 0)
        counts[number] = position + 1
        name = f"{name}[{position}]"
    return f"{path}.{name}" if path else name


def _fits(field: Field, wire: int) -> bool:
    if field.type in _SCALAR_WIRES:
        return wire == _SCALAR_WIRES[field.type] or (field.repeated and wire == _LENGTH)
    return wire == _LENGTH


def _check_packed(data: bytes, at: int, end: int, field: Field, path: str) -> None:
    if field.type == "float":
        if (end - at) % 4:
            raise _Damage(at, path, f"a list of float32 takes a multiple of 4 bytes, not {end - at}")
        return
    while at < end:
        _, at = _varint(data, at, end, path)


def _value(data: bytes, at: int, end: int, number: int, wire: int, path: str) -> tuple[int, int]:
    """(start, end) of the value of a field."""
    if wire == _VARINT:
        return at, _varint(data, at, end, path)[1]
    if wire == _LENGTH:
        start = at
        size, at = _varint(data, at, end, path)
        if size > end - at:
            raise _Damage(start, path, f"{size} bytes are announced, {end - at} are left")
        return at, at + size
    if wire == _GROUP:
        return at, _skip_group(data, at, end, number, path)
    if _FIXED_SIZES[wire] > end - at:
        raise _Damage(at, path, f"{_FIXED_SIZES[wire]} bytes are needed, {end - at} are left")
    return at, at + _FIXED_SIZES[wire]


def _skip_group(data: bytes, at: int, end: int, number: int, path: str) -> int:
    """The end of an (unknown) group that starts at `at`. Nested groups are counted, without recursion."""
    opened = [number]
    while opened:
        start = at
        key, at = _varint(data, at, end, path)
        inner, wire = key >> 3, key & 7
        if wire == _GROUP:
            opened.append(inner)
            if len(opened) > _MAX_GROUP_DEPTH:
                raise _Damage(start, path, f"groups are nested more than {_MAX_GROUP_DEPTH} deep")
        elif wire == _END_GROUP:
            if opened.pop() != inner:
                raise _Damage(start, path, f"a group that was not opened ends here (field {inner})")
        elif wire > _FIXED32 or inner == 0:
            raise _Damage(start, path, f"{key} does not start a field")
        else:
            at = _value(data, at, end, inner, wire, path)[1]
    return at


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
    """The findings of reading one file: errors end the reading, parts that are left out are collected."""

    def __init__(self, file: str) -> None:
        self.location = Location(file)
        self.left_out: list[Diagnostic] = []

    def fail(self, code: Code, path: str, message: str) -> NoReturn:
        """Raises DiagnosticError about the field at `path`."""
        raise DiagnosticError([error(code, f"{path}: {message}", self.location)])

    def leave_out(self, path: str, message: str) -> None:
        """Notes that the field at `path` is not kept."""
        self.left_out.append(warning("desc-not-kept", f"{path}: {message}", self.location))

    def require_field(self, message: Any, field: str, path: str) -> Any:
        """The value of a field that must be there. Raises DiagnosticError if it is not."""
        if not message.HasField(field):
            self.fail("desc-missing", f"{path}.{field}", "the field is missing")
        return getattr(message, field)


class VarTypeValue(NamedTuple):
    """A decoded VarType: the fields of Var that it determines, and whether it writes out a LoD level of 0."""

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
        number = self._findings.require_field(message, "type", path)
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
        tensor = self._findings.require_field(message, "tensor", path)
        return self._tensor(tensor, message.lod_level, f"{path}.tensor")

    def _tensor(self, message: Any, lod_level: int, path: str) -> TensorType:
        number = self._findings.require_field(message, "data_type", path)
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

    Fluid's Python layer writes `persistable` for the variables that it makes; gradients, and variables without a
    description, are made below this layer. The LoD level is written for results of ops, not for parameters and other
    state.
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
    AttrKind.FLOAT64: "float64",
}
"""The field of an attribute message that holds the value of each kind."""

SCALARS = frozenset(AttrKind[name] for name in ("INT", "FLOAT", "STRING", "BOOLEAN", "BLOCK", "LONG", "FLOAT64"))
"""The kinds whose value is one value rather than a list."""

_KINDS = {kind.value: kind for kind in AttrKind}


class _Attr(NamedTuple):
    """A decoded attribute, with its name."""

    name: str
    value: AttrValue


class _DecodedAttributes(NamedTuple):
    """The decoded attributes of an op: the ordinary ones, the role, the role variables, and the place where the op was
    made.
    """

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

    def _decode_text(self, raw: bytes) -> str:
        """The text of a string field; bytes that are not UTF-8 become lone surrogates."""
        text = self._text.get(raw)
        if text is None:
            text = self._text[raw] = raw.decode("utf-8", "surrogateescape")
        return text

    def _name(self, message: Any, field: str, path: Callable[[], str]) -> str:
        raw = getattr(message, field)
        if not raw and not message.HasField(field):
            self.findings.fail("desc-missing", f"{path()}.{field}", "the field is missing")
        return self._decode_text(raw)

    def _block(self, message: Any, index: int) -> Block:
        path = f"blocks[{index}]"
        stated = self.findings.require_field(message, "idx", path)
        if stated != index:
            self.findings.fail("desc-block-index", f"{path}.idx", f"the block says it is block {stated}, not {index}")
        parent = self.findings.require_field(message, "parent_idx", path)
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
        spec = self._types.decode(self.findings.require_field(message, "type", path), f"{path}.type")
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
                slot = cache[key] = (name, tuple(map(self._decode_text, message.arguments)))
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

    def _attrs(self, messages: Any, path: Callable[[], str]) -> _DecodedAttributes:
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
            elif name == CALL_STACK and (placed := self._script_location(key, attr[1])) is not None:
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
        return _DecodedAttributes(values, role, role_vars, location)

    def _script_location(self, key: bytes, stack: AttrValue) -> Location | None:
        """The location of an op with this call stack; None if it has no frames, and must be kept unchanged."""
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
        number = self.findings.require_field(message, "type", path)
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
            return _Attr(name, self._decode_text(raw))
        if kind is AttrKind.STRINGS:
            raw = map(self._decode_text, raw)
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
        message.version.version = _require_bits(program.version, 64, "version.version")


def _refuse(path: str, reason: str) -> DiagnosticError:
    return DiagnosticError([error("desc-unwritable", f"{path}: {reason}")])


def _require_bits(value: int, bits: int, path: str) -> int:
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
    message.parent_idx = _require_bits(block.parent, 32, f"{path}.parent_idx")
    if block.forward_block != -1:
        message.forward_block_idx = _require_bits(block.forward_block, 32, f"{path}.forward_block_idx")
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
    """Raises DiagnosticError for a description for which a variable of this kind has no field."""
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
        message.lod_level = _require_bits(tensor.lod_level, 32, f"{path}.lod_level")


def _fill_tensor(message: Any, tensor: TensorType, path: str) -> None:
    message.data_type = tensor.dtype.value
    try:
        message.dims.extend(tensor.shape)
    except ValueError:
        for position, dim in enumerate(tensor.shape):
            _require_bits(dim, 64, f"{path}.dims[{position}]")
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
            _require_bits(number, bits, where)  # pyright: ignore[reportUnknownArgumentType]
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
        damage = find_damage(data, file)
        reason = damage or error("desc-damaged", f"protobuf can't read the data: {refusal}", Location(file))
        raise DiagnosticError([reason]) from None
    message.DiscardUnknownFields()
    # Cheaper than looking at every message: without what protobuf did not know, is there less? (Parsed twice,
    # because protobuf without its C part does not count again after the discarding.)
    left_out = () if message.ByteSize() == raw_size else unknown_fields(data, file)
    raise_errors(left_out)
    decoder = Decoder(file, program, call_stacks)
    with collector_paused():
        result = decoder.decode(message)
    return result, (*left_out, *decoder.findings.left_out)


def program_from_bytes(data: bytes, file: str, program: str) -> Program:
    """The program in a serialized ProgramDesc, as `read_program` gives it.

    Parts that are left out are reported through Python's `warnings`. Raises DiagnosticError.
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
