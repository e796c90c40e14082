"""The properties of op types that the text depends on: attribute kinds and defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from pstranspile.ir.attributes import AttrKind
from pstranspile.ir.model import Attrs, Slots


class AttrView(Protocol):
    """The kind of a declared attribute."""

    @property
    def kind(self) -> AttrKind:
        """The kind its values have."""
        ...


class SchemaView(Protocol):
    """The part of an op type's declaration that the text depends on (`pstranspile.ops.schema.OpSchema`)."""

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The input slots, in the order to print them."""
        ...

    @property
    def outputs(self) -> Mapping[str, Any]:
        """The output slots, in the order to print them."""
        ...

    @property
    def attrs(self) -> Mapping[str, AttrView]:
        """The declared attributes."""
        ...

    @property
    def defaults(self) -> Attrs:
        """The attributes that an op carries when its text does not mention them."""
        ...

    @property
    def empty_inputs(self) -> Slots:
        """The inputs that are present and empty when the text of an op does not mention them."""
        ...


class Language(NamedTuple):
    """How op types are looked up, and what ops carry whatever their type.

    `generic_defaults` are the attributes of an op without a schema whose text mentions none; `generic_kinds`
    are the kinds of the attributes that any op may carry.
    """

    schema_of: Callable[[str], SchemaView | None]
    generic_defaults: Attrs
    generic_kinds: Mapping[str, AttrKind]

    def defaults(self, schema: SchemaView | None) -> Attrs:
        """The attributes an op of this schema carries when its text does not mention them."""
        return self.generic_defaults if schema is None else schema.defaults

    def kind(self, schema: SchemaView | None, attribute: str) -> AttrKind | None:
        """The kind an attribute has by the schema or for every op; None when neither knows it."""
        if schema is not None:
            spec = schema.attrs.get(attribute)
            if spec is not None:
                return spec.kind
        return self.generic_kinds.get(attribute)

    def attribute_names(self, schema: SchemaView) -> Iterable[str]:
        """Every attribute name known for a schema, for suggestions."""
        return [*schema.attrs, *self.generic_kinds, "op_role_var"]
