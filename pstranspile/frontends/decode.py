"""From a parsed ProgramDesc message to a Program, checking what protobuf does not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NoReturn

from pstranspile.frontends.call_stacks import CALL_STACK, user_frame
from pstranspile.frontends.decode_types import Findings, TypeDecoder, default_written
from pstranspile.ir.attributes import PYTHON_TYPES, AttrKind, AttrValue, Strings
from pstranspile.ir.frozen import EMPTY, FrozenMap
from pstranspile.ir.model import (
    Attrs,
    Block,
    Location,
    Op,
    Origin,
    Program,
    Slots,
    Var,
)
from pstranspile.ir.roles import OpRole

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
