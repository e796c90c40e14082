"""Construction of ops. No other module fills in default attributes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pstranspile.ir.attributes import AttrValue
from pstranspile.ir.frozen import EMPTY, FrozenMap
from pstranspile.ir.model import Attrs, Op, Origin
from pstranspile.ir.roles import OpRole
from pstranspile.ops import schema_of
from pstranspile.ops.schema import GENERIC_ATTRS

_GENERIC: Attrs = FrozenMap({name: spec.default for name, spec in GENERIC_ATTRS.items() if spec.default is not None})


def make_op(
    op_type: str,
    inputs: Mapping[str, Iterable[str]],
    outputs: Mapping[str, Iterable[str]],
    attrs: Mapping[str, AttrValue] | None = None,
    *,
    role: OpRole = OpRole.FORWARD,
    role_vars: tuple[str, ...] = (),
    origin: Origin | None = None,
) -> Op:
    """An op as Fluid's Python layer makes it: schema defaults and empty dispensable inputs filled in.

    Raises TypeError when a slot is given as a bare string instead of a list of names.
    """
    schema = schema_of(op_type)
    given_inputs = {slot: _names(op_type, slot, names) for slot, names in inputs.items()}
    given_outputs = {slot: _names(op_type, slot, names) for slot, names in outputs.items()}
    empty = schema.empty_inputs if schema else EMPTY
    return Op(
        op_type,
        FrozenMap({**empty, **given_inputs}) if empty else FrozenMap(given_inputs),
        FrozenMap(given_outputs),
        complete_attrs(op_type, attrs),
        role,
        role_vars,
        False,
        origin,
    )


class OpMaker:
    """A factory of ops of one type, role and set of attributes, like `make_op`. All its ops share one attribute
    mapping.

    It is for ops that a program has thousands of, where memory dominates the compile time.
    """

    def __init__(
        self, op_type: str, attrs: Mapping[str, AttrValue] | None = None, *, role: OpRole = OpRole.FORWARD
    ) -> None:
        schema = schema_of(op_type)
        self._type = op_type
        self._role = role
        self._attrs = complete_attrs(op_type, attrs)
        self._empty = schema.empty_inputs if schema else EMPTY

    def __call__(
        self,
        inputs: Mapping[str, tuple[str, ...]],
        outputs: Mapping[str, tuple[str, ...]],
        role_vars: tuple[str, ...] = (),
        origin: Origin | None = None,
    ) -> Op:
        """An op with these variables. Frozen `outputs`, and `inputs` that are frozen and complete, are shared too."""
        if self._empty and not self._empty.keys() <= inputs.keys():
            inputs = {**self._empty, **inputs}
        if not isinstance(inputs, FrozenMap):
            inputs = FrozenMap(inputs)
        if not isinstance(outputs, FrozenMap):
            outputs = FrozenMap(outputs)
        return Op(self._type, inputs, outputs, self._attrs, self._role, role_vars, False, origin)


def complete_attrs(op_type: str, attrs: Mapping[str, AttrValue] | None) -> Attrs:
    """The attributes with the schema's defaults filled in; ops that carry only defaults share one mapping."""
    schema = schema_of(op_type)
    base = schema.defaults if schema else _GENERIC
    return FrozenMap({**base, **attrs}) if attrs else base


def _names(op_type: str, slot: str, names: Iterable[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise TypeError(f"{op_type}: slot {slot} takes a list of names, got the string {names!r}")
    return tuple(names)
