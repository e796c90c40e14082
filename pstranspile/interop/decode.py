"""From a parsed ProgramDesc message to a Program, checking what protobuf does not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

from pstranspile.interop import codes
from pstranspile.ir.attributes import PYTHON_TYPES, AttrKind, AttrValue
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, error, warning
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
from pstranspile.ir.roles import OpRole
from pstranspile.ir.types import DType, VarKind

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

SCALARS = frozenset(
    {AttrKind.INT, AttrKind.FLOAT, AttrKind.STRING, AttrKind.BOOLEAN, AttrKind.BLOCK, AttrKind.LONG}
)
"""The kinds whose value is one value rather than a list."""

TENSOR_FIELDS: dict[VarKind, str] = {
    VarKind.LOD_TENSOR: "lod_tensor",
    VarKind.SELECTED_ROWS: "selected_rows",
    VarKind.LOD_TENSOR_ARRAY: "tensor_array",
    VarKind.READER: "reader",
    VarKind.TUPLE: "tuple",
}
"""The field of a VarType message that describes a variable of each kind; the other kinds have none."""

_KINDS = {kind.value: kind for kind in AttrKind}
_DTYPES = {dtype.value: dtype for dtype in DType}
_VAR_KINDS = {kind.value: kind for kind in VarKind}


def default_written(persistable: bool, kind: VarKind, tensor: TensorType | None) -> tuple[str, ...]:
    """The optional fields at their default that Fluid's Python layer writes for such a variable.

    It writes `persistable` of every variable it makes, and the LoD level of everything that is not a
    parameter or the state of an optimizer.
    """
    if persistable:
        return ()
    leveled = tensor is not None and tensor.lod_level == 0 and kind is not VarKind.SELECTED_ROWS
    return ("persistable", "lod_level") if leveled else ("persistable",)


class _Attr(NamedTuple):
    """A decoded attribute, with its name."""

    name: str
    value: AttrValue


class Decoder:
    """Decodes one ProgramDesc; keeps the caches that make equal parts one value, and what was left out."""

    def __init__(self, file: str, program: str) -> None:
        self.program = program
        self.location = Location(file)
        self.left_out: list[Diagnostic] = []
        self._text: dict[bytes, str] = {}
        self._attr_cache: dict[bytes, _Attr] = {}
        self._attrs_cache: dict[tuple[bytes, ...], Attrs] = {}
        self._slot_cache: dict[bytes, tuple[str, tuple[str, ...]]] = {}
        self._tensors: dict[tuple[DType, tuple[int, ...], int], TensorType] = {}
        self._roles: dict[int, OpRole] = {}

    def decode(self, message: Any) -> Program:
        """The program. Raises DiagnosticError naming the field that can't be understood."""
        if not message.blocks:
            self._fail(codes.MISSING, "blocks", "a program has at least one block, this one has none")
        version: int | None = message.version.version if message.HasField("version") else None
        if message.HasField("op_compatible_map"):
            self._leave_out("op_compatible_map", "the versions of ops it asks for are left out")
        blocks = tuple(self._block(block, index) for index, block in enumerate(message.blocks))
        return Program(blocks, 0, version)

    def _fail(self, code: str, path: str, message: str) -> NoReturn:
        raise DiagnosticError([error(code, f"{path}: {message}", self.location)])

    def _leave_out(self, path: str, message: str) -> None:
        self.left_out.append(warning(codes.NOT_KEPT, f"{path}: {message}", self.location))

    def _decoded(self, raw: bytes) -> str:
        """Text of a string field; bytes that are not UTF-8 survive as lone surrogates."""
        text = self._text.get(raw)
        if text is None:
            text = self._text[raw] = raw.decode("utf-8", "surrogateescape")
        return text

    def _name(self, message: Any, field: str, path: Callable[[], str]) -> str:
        raw = getattr(message, field)
        if not raw and not message.HasField(field):
            self._fail(codes.MISSING, f"{path()}.{field}", "the field is missing")
        return self._decoded(raw)

    def _required(self, message: Any, field: str, path: str) -> Any:
        if not message.HasField(field):
            self._fail(codes.MISSING, f"{path}.{field}", "the field is missing")
        return getattr(message, field)

    def _block(self, message: Any, index: int) -> Block:
        path = f"blocks[{index}]"
        stated = self._required(message, "idx", path)
        if stated != index:
            self._fail(codes.BLOCK_INDEX, f"{path}.idx", f"the block says it is block {stated}, not {index}")
        parent = self._required(message, "parent_idx", path)
        variables: dict[str, Var] = {}
        for position, item in enumerate(message.vars):
            var = self._var(item, f"{path}.vars[{position}]")
            if var.name in variables:
                self._fail(
                    codes.DUPLICATE, f"{path}.vars[{position}].name", f"variable {var.name!r} is there twice"
                )
            variables[var.name] = var
        ops = tuple(self._op(item, index, position) for position, item in enumerate(message.ops))
        forward = message.forward_block_idx if message.HasField("forward_block_idx") else -1
        return Block(FrozenMap(variables) if variables else EMPTY, ops, parent, forward)

    def _var(self, message: Any, path: str) -> Var:
        name = self._name(message, "name", lambda: path)
        spec = self._required(message, "type", path)
        number = self._required(spec, "type", f"{path}.type")
        kind = _VAR_KINDS.get(number)
        if kind is None:
            self._fail(codes.ENUM, f"{path}.type.type", f"{number} is not a kind of variable")
        described_by = TENSOR_FIELDS.get(kind)
        present = False
        for descriptor, _ in spec.ListFields():
            if descriptor.name == described_by:
                present = True
            elif descriptor.name != "type":
                self._leave_out(
                    f"{path}.type.{descriptor.name}",
                    f"it does not describe a variable of kind {kind.name} and is left out",
                )
        tensor: TensorType | None = None
        readers: tuple[TensorType, ...] = ()
        elements: tuple[VarKind | DType, ...] = ()
        written: list[str] = []
        persistable: bool = message.persistable
        need_check_feed: bool = message.need_check_feed
        if not persistable and message.HasField("persistable"):
            written.append("persistable")
        if not need_check_feed and message.HasField("need_check_feed"):
            written.append("need_check_feed")
        if present and described_by is not None:
            inner, where = getattr(spec, described_by), f"{path}.type.{described_by}"
            if kind is VarKind.READER:
                readers = tuple(
                    self._lod_tensor(item, f"{where}.lod_tensor[{i}]")
                    for i, item in enumerate(inner.lod_tensor)
                )
            elif kind is VarKind.TUPLE:
                elements = tuple(
                    self._element(n, f"{where}.element_type[{i}]") for i, n in enumerate(inner.element_type)
                )
            elif kind is VarKind.SELECTED_ROWS:
                tensor = self._tensor(inner, 0, where)
            else:
                tensor = self._lod_tensor(inner, where)
                if tensor.lod_level == 0 and inner.HasField("lod_level"):
                    written.append("lod_level")
        found = tuple(written)
        return Var(
            name,
            kind,
            tensor,
            persistable,
            need_check_feed,
            None,
            readers,
            elements,
            None,
            None if found == default_written(persistable, kind, tensor) else found,
        )

    def _element(self, number: int, path: str) -> VarKind | DType:
        element = _DTYPES.get(number) or _VAR_KINDS.get(number)
        if element is None:
            self._fail(codes.ENUM, path, f"{number} is not an element type or a kind of variable")
        return element

    def _lod_tensor(self, message: Any, path: str) -> TensorType:
        tensor = self._required(message, "tensor", path)
        return self._tensor(tensor, message.lod_level, f"{path}.tensor")

    def _tensor(self, message: Any, lod_level: int, path: str) -> TensorType:
        number = self._required(message, "data_type", path)
        dtype = _DTYPES.get(number)
        if dtype is None:
            self._fail(codes.ENUM, f"{path}.data_type", f"{number} is not an element type")
        key = (dtype, tuple(message.dims), lod_level)
        found = self._tensors.get(key)
        if found is None:
            found = self._tensors[key] = TensorType(*key)
        return found

    def _op(self, message: Any, block: int, index: int) -> Op:
        def path() -> str:
            return f"blocks[{block}].ops[{index}]"

        attrs, role, role_vars = self._attrs(message.attrs, path)
        return Op(
            self._name(message, "type", path),
            self._slots(message.inputs, "inputs", path),
            self._slots(message.outputs, "outputs", path),
            attrs,
            role,
            role_vars,
            message.is_target,
            Origin(self.program, block, index, self.location),
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
                self._fail(codes.DUPLICATE, f"{path}[{position}].{field}", f"{what} {name!r} is there twice")
            seen.add(name)
        raise AssertionError("called for names that are all different")

    def _attrs(
        self, messages: Any, path: Callable[[], str]
    ) -> tuple[Attrs, OpRole | None, tuple[str, ...] | None]:
        """Attributes without the role; the role; its variables. Equal attributes are decoded once."""
        cache = self._attr_cache
        role: OpRole | None = None
        role_vars: tuple[str, ...] | None = None
        keys: list[bytes] = []
        attrs: list[_Attr] = []
        roles = 0
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
            else:
                keys.append(key)
                attrs.append(attr)
        chosen = tuple(keys)
        values = self._attrs_cache.get(chosen)
        if values is None:
            values = self._attrs_cache[chosen] = FrozenMap(attrs) if attrs else EMPTY
        if len(values) != len(attrs) or roles != (role is not None) + (role_vars is not None):
            names = [cache[message.SerializeToString()].name for message in messages]
            self._twice(names, f"{path()}.attrs", "name", "attribute")
        return values, role, role_vars

    def _role(self, value: AttrValue, path: str) -> OpRole:
        if type(value) is not int:
            self._fail(codes.ROLE, f"{path}.type", f"{ROLE} must be an INT")
        role = self._roles.get(value)
        if role is None:
            if value < 0:
                self._fail(codes.ROLE, f"{path}.i", f"{ROLE} must not be negative, it is {value}")
            role = self._roles[value] = OpRole(value)
        return role

    def _role_vars(self, value: AttrValue, path: str) -> tuple[str, ...]:
        if type(value) is not PYTHON_TYPES[AttrKind.STRINGS]:
            self._fail(codes.ROLE, f"{path}.type", f"{ROLE_VARS} must be STRINGS")
        return tuple(value)  # pyright: ignore[reportArgumentType]

    def _attr(self, message: Any, path: str) -> _Attr:
        name = self._name(message, "name", lambda: path)
        number = self._required(message, "type", path)
        kind = _KINDS.get(number)
        if kind is None:
            self._fail(
                codes.ENUM, f"{path}.type", f"{number} is not a kind of attribute (attribute {name!r})"
            )
        field = VALUE_FIELDS[kind]
        for descriptor, _ in message.ListFields():
            if descriptor.name not in ("name", "type", field):
                self._leave_out(
                    f"{path}.{descriptor.name}",
                    f"attribute {name!r} is of kind {kind.name}; this other value is left out",
                )
        if kind in SCALARS and not message.HasField(field):
            self._fail(
                codes.NO_VALUE, f"{path}.{field}", f"attribute {name!r} of kind {kind.name} has no value"
            )
        raw = getattr(message, field)
        if kind is AttrKind.STRING:
            return _Attr(name, self._decoded(raw))
        if kind is AttrKind.STRINGS:
            raw = map(self._decoded, raw)
        return _Attr(name, PYTHON_TYPES[kind](raw))


@contextmanager
def collector_paused() -> Iterator[None]:
    """No cyclic garbage collection inside: building many values that all stay alive would set it off often."""
    import gc

    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
