"""Declarations of ops as Fluid's messages, and single ops that are run outside of programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from pstranspile.fluid import proto
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.fluid.running.single_op import Operator as RunOperator
from pstranspile.ir.attributes import AttrKind
from pstranspile.ops import all_schemas, schema_of
from pstranspile.ops.schema import OpSchema

_OF_ALL = {
    "op_role": AttrKind.INT,
    "op_role_var": AttrKind.STRINGS,
    "op_namescope": AttrKind.STRING,
    "op_callstack": AttrKind.STRINGS,
    "op_device": AttrKind.STRING,
}
_VALUES = {
    proto.INT: "i",
    proto.FLOAT: "f",
    proto.LONG: "l",
    proto.STRING: "s",
    proto.BOOLEAN: "b",
    proto.INTS: "ints",
    proto.FLOATS: "floats",
    proto.STRINGS: "strings",
    proto.BOOLEANS: "bools",
    proto.LONGS: "longs",
}
"""For each kind of attribute, the field of its value; attributes that are blocks can't be set on a single op."""


def is_str(s: object) -> bool:
    """Whether a value is text."""
    return isinstance(s, str)


def _proto(schema: OpSchema) -> Any:
    op_proto = proto.OpProto(type=schema.type, comment=schema.doc)
    for side, slots in ((op_proto.inputs, schema.inputs), (op_proto.outputs, schema.outputs)):
        for slot in slots.values():
            side.add(
                name=slot.name,
                duplicable=slot.duplicable,
                dispensable=slot.dispensable,
                intermediate=slot.intermediate,
                comment="",
            )
    kinds = {**{name: spec.kind for name, spec in schema.attrs.items()}, **_OF_ALL}
    for name, kind in kinds.items():
        op_proto.attrs.add(name=name, type=kind.value, generated=False, comment="")
    return op_proto


@cache
def op_proto(op_type: str) -> Any:
    """The declaration of an op type as a message, None if there is no such type."""
    schema = schema_of(op_type)
    return None if schema is None else _proto(schema)


def get_all_op_protos() -> list[Any]:
    """The declarations of all op types except gradients, as messages."""
    return [op_proto(schema.type) for schema in all_schemas().values() if not schema.forward]


class OpDescCreationMethod:
    """Makes descriptions of ops of a declared type."""

    def __init__(self, op_proto: Any):
        if not isinstance(op_proto, proto.OpProto):
            raise TypeError(f"ops are made as an OpProto says, not as a {type(op_proto).__name__}")
        self._proto = op_proto

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The description of an op with the given variables by slot and attributes by name.

        Raises ValueError for several variables in a slot that takes one, NotImplementedError for a kind of attribute
        that a single op can't have.
        """
        if args:
            raise ValueError("slots and attributes are given by name")
        op_desc = proto.OpDesc(type=self._proto.type)
        for side, slots in ((op_desc.inputs, self._proto.inputs), (op_desc.outputs, self._proto.outputs)):
            for slot in slots:
                given = kwargs.get(slot.name, [])
                names: list[str] = [given] if isinstance(given, str) else [*given]
                if len(names) > 1 and not slot.duplicable:
                    raise ValueError(f"{slot.name} takes one variable, not {len(names)}")
                side.add(parameter=slot.name, arguments=names)
        for attr in self._proto.attrs:
            if kwargs.get(attr.name) is not None and not attr.generated:
                self._add(op_desc, attr, kwargs[attr.name])
        return op_desc

    @staticmethod
    def any_is_true(generator: Any) -> bool:
        """Whether one of several values is true."""
        return any(generator)

    @staticmethod
    def _add(description: Any, attr: Any, value: Any) -> None:
        if attr.type not in _VALUES:
            raise NotImplementedError(f"{attr.name} is an attribute of a kind that an op alone can't have")
        value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        held, field = description.attrs.add(name=attr.name, type=attr.type), _VALUES[attr.type]
        if field.endswith("s") and field != "s":
            getattr(held, field).extend(value)
        else:
            setattr(held, field, value)


class OpInfo(NamedTuple):
    """An op type: its name, the function that makes its ops, its slots with whether they take several variables, and
    the names of its attributes.
    """

    name: str
    method: Callable[..., RunOperator]
    inputs: Sequence[tuple[str, bool]]
    outputs: Sequence[tuple[str, bool]]
    attrs: Sequence[str]


def create_op_creation_method(op_proto: Any) -> OpInfo:
    """An OpInfo for a declaration."""
    describe = OpDescCreationMethod(op_proto)

    def make(*args: Any, **kwargs: Any) -> RunOperator:
        return RunOperator.create(describe(*args, **kwargs).SerializeToString())

    return OpInfo(
        op_proto.type,
        make,
        [(slot.name, slot.duplicable) for slot in op_proto.inputs],
        [(slot.name, slot.duplicable) for slot in op_proto.outputs],
        [attr.name for attr in op_proto.attrs],
    )


class OperatorFactory:
    """Makes single ops: `Operator("scale", X="x", Out="y", scale=2.0).run(scope, place)`."""

    def __init__(self) -> None:
        self._op_infos: dict[str, OpInfo] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> RunOperator:
        """An op of a type, which is the first argument, or `type`. Raises ValueError without a type, and for an unknown
        one.
        """
        named = (kwargs.pop("type"),) if "type" in kwargs else ()
        given = (*named, *args)
        if len(given) != 1:
            raise ValueError("the type of the op is given, and everything else by name")
        return self.get_op_info(given[0]).method(**kwargs)

    def types(self) -> list[str]:
        """All op types."""
        return [proto.type for proto in get_all_op_protos()]

    def get_op_info(self, t: str) -> OpInfo:
        """The facts about an op type. Raises ValueError for an unknown type."""
        if t not in self._op_infos:
            proto = op_proto(t)
            if proto is None:
                raise ValueError(f"The operator: {t} is not registered.")
            self._op_infos[t] = create_op_creation_method(proto)
        return self._op_infos[t]

    def get_op_input_names(self, type: str) -> list[str]:
        """The names of the input slots of an op type."""
        return [name for name, _ in self.get_op_info(type).inputs]

    def get_op_inputs(self, type: str) -> Sequence[tuple[str, bool]]:
        """The input slots of an op type, with whether they take several variables."""
        return self.get_op_info(type).inputs

    def get_op_output_names(self, type: str) -> list[str]:
        """The names of the output slots of an op type."""
        return [name for name, _ in self.get_op_info(type).outputs]

    def get_op_outputs(self, type: str) -> Sequence[tuple[str, bool]]:
        """The output slots of an op type, with whether they take several variables."""
        return self.get_op_info(type).outputs

    def get_op_attr_names(self, type: str) -> Sequence[str]:
        """The names of the attributes of an op type."""
        return self.get_op_info(type).attrs


Operator = OperatorFactory()


class OpProtoHolder:
    """The declarations of all op types; a process has a single holder."""

    _instance: OpProtoHolder | None = None

    @classmethod
    def instance(cls) -> OpProtoHolder:
        """The only holder of this process."""
        if cls._instance is None:
            cls._instance = cls()
        return cls._instance

    def get_op_proto(self, type: str) -> Any:
        """The declaration of an op type. Raises ValueError if there is no such type."""
        found = op_proto(type)
        if found is None:
            raise ValueError(f'Operator "{type}" has not been registered.')
        return found

    def has_op_proto(self, type: str) -> bool:
        """Whether an op type exists."""
        return op_proto(type) is not None

    @staticmethod
    def generated_op_attr_names() -> set[str]:
        """The names of the attributes that every op has."""
        return set(_OF_ALL)


__getattr__ = names_of_fluid(__name__, globals())
