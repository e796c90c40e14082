"""Making ops: the one place that fills in what an op carries by default."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pstranspile.ir.attributes import AttrValue
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Op, Origin
from pstranspile.ir.roles import OpRole
from pstranspile.ops import schema_of
from pstranspile.ops.schema import GENERIC_ATTRS

_GENERIC = {name: spec.default for name, spec in GENERIC_ATTRS.items() if spec.default is not None}


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
    for slot, names in (*inputs.items(), *outputs.items()):
        if isinstance(names, str):
            raise TypeError(f"{op_type}: slot {slot} takes a list of names, got the string {names!r}")
    schema = schema_of(op_type)
    given_inputs = {slot: tuple(names) for slot, names in inputs.items()}
    given_outputs = {slot: tuple(names) for slot, names in outputs.items()}
    base = schema.defaults if schema else _GENERIC
    empty: Mapping[str, tuple[str, ...]] = schema.empty_inputs if schema else {}
    return Op(
        op_type,
        FrozenMap({**empty, **given_inputs}),
        FrozenMap(given_outputs),
        FrozenMap({**base, **(attrs or {})}),
        role,
        role_vars,
        False,
        origin,
    )
