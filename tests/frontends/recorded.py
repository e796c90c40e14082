"""The recorded ProgramDescs of `tests/data`, and a view of serialized bytes that hides nothing but order."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "data" / "program_desc"
FILES = sorted(FOLDER.glob("*.pb"))
every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)

NESTED = {
    "program": {1: "block", 4: "leaf"},
    "block": {3: "var", 4: "op"},
    "var": {2: "var_type"},
    "var_type": {2: "leaf", 3: "lod_tensor", 4: "lod_tensor", 5: "reader", 7: "leaf"},
    "lod_tensor": {1: "leaf"},
    "reader": {1: "lod_tensor"},
    "op": {1: "leaf", 2: "leaf", 4: "leaf"},
    "leaf": {},
}
"""Which fields hold messages: message -> field number -> message; written down apart from the schema."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def wire_view(data: bytes, message: str = "program"):
    """Every field that is present, by number, its values in order; slots and attributes in sorted order."""
    fields: dict[int, list] = {}
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = varint(data, at)
        else:
            size, at = varint(data, at) if wire == 2 else ({1: 8, 5: 4}[wire], at)
            value, at = data[at : at + size], at + size
        inner = NESTED[message].get(number)
        fields.setdefault(number, []).append((wire, wire_view(value, inner) if inner else value))
    if message == "op":
        for number in (1, 2, 4):
            fields.get(number, []).sort(key=repr)
    return sorted(fields.items())
