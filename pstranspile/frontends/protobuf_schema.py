"""The messages of a Fluid 1.8 ProgramDesc, as a protobuf schema built at run time.

`MESSAGES` is the whole description: message -> field -> (number, type, repeated). Enumerations are declared as int32
and strings as bytes, which have the same encoding. Nothing is declared required. So protobuf neither refuses nor sets
aside unknown numbers, text that is not UTF-8 and missing fields: the decoder sees them, and can say where they stand.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple


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
