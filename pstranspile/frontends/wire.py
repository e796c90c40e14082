"""The damage of a serialized ProgramDesc: a walk over the wire format, used once something is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pstranspile.frontends.protobuf_schema import MESSAGES, Field
from pstranspile.ir.diagnostics import Diagnostic, error, warning
from pstranspile.ir.model import Location

_VARINT, _FIXED64, _LENGTH, _GROUP, _END_GROUP, _FIXED32 = range(6)
_WIRE_NAMES = {
    _VARINT: "a varint",
    _FIXED64: "8 bytes",
    _LENGTH: "a length and bytes",
    _GROUP: "a group",
    _FIXED32: "4 bytes",
}
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}
_SCALAR_WIRES = {"int32": _VARINT, "int64": _VARINT, "bool": _VARINT, "float": _FIXED32}
_NAMES = {message: {f.number: name for name, f in fields.items()} for message, fields in MESSAGES.items()}
_MAX_GROUP_DEPTH = 64


class _Damage(Exception):
    """The bytes can't be read on from here."""

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
    """A finding for every field of `data` that the schema does not know or knows otherwise.

    At most 20, then one that gives the number of the others.
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
    """The start and the end of the value of a field."""
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
    """The end of an (unknown) group that starts at `at`; groups inside are counted, not recursed into."""
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
