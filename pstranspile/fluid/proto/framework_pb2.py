"""Fluid's messages of programs and of op declarations, as protobuf's classes."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.graph.vartype import VarType as VarType
from pstranspile.frontends.protobuf_schema import MESSAGES, Field, message_classes
from pstranspile.ir.attributes import AttrKind

_OF_OPS = {
    "OpProto": {
        "type": Field(1, "string"),
        "inputs": Field(2, "OpProtoVar", True),
        "outputs": Field(3, "OpProtoVar", True),
        "attrs": Field(4, "OpProtoAttr", True),
        "comment": Field(5, "string"),
    },
    "OpProtoVar": {
        "name": Field(1, "string"),
        "comment": Field(2, "string"),
        "duplicable": Field(3, "bool"),
        "intermediate": Field(4, "bool"),
        "dispensable": Field(5, "bool"),
    },
    "OpProtoAttr": {
        "name": Field(1, "string"),
        "type": Field(2, "AttrType"),
        "comment": Field(3, "string"),
        "generated": Field(4, "bool"),
    },
}


_ENUMS = {
    "Type": {kind.name: kind.value for kind in VarType},
    "AttrType": {kind.name: kind.value for kind in AttrKind},
    "Compatibility": {"COMPATIBLE": 0, "DEFINITELY_NOT": 1, "POSSIBLE": 2, "BUG_FIX": 3, "PRECISION_CHANGE": 4},
}
_NUMBERED = {
    ("VarType", "type"): "Type",
    ("TensorDesc", "data_type"): "Type",
    ("Tuple", "element_type"): "Type",
    ("OpAttr", "type"): "AttrType",
    ("CompatibleInfo", "type"): "Compatibility",
}
"""The fields whose numbers have names in a message's text."""


def _with_text(message: str, fields: dict[str, Field]) -> dict[str, Field]:
    texts = {name: "string" for name, field in fields.items() if field.type == "bytes"}
    return {
        name: field._replace(type=_NUMBERED.get((message, name), texts.get(name, field.type)))
        for name, field in fields.items()
    }


_CLASSES = message_classes({**{name: _with_text(name, fields) for name, fields in MESSAGES.items()}, **_OF_OPS}, _ENUMS)
OpProto: Any = _CLASSES["OpProto"]
OpDesc: Any = _CLASSES["OpDesc"]
VarDesc: Any = _CLASSES["VarDesc"]
BlockDesc: Any = _CLASSES["BlockDesc"]
ProgramDesc: Any = _CLASSES["ProgramDesc"]
Version: Any = _CLASSES["Version"]
INT, FLOAT, STRING, INTS, FLOATS, STRINGS, BOOLEAN, BOOLEANS, BLOCK, LONG, BLOCKS, LONGS = (k.value for k in AttrKind)
