"""The statements that describe how a program is distributed. They precede its blocks and look like ops.

    distribution {endpoints=["a:6174", "b:6174"], is_chief=true, is_distributed=true}
    placed(Param=%w) -> Slice=%w.block1 {block_id=1, endpoint="b:6174", is_slice=true, offset=7, shape=[6, 1], ...}

Fields at their default are left out, as is `origin_shape` if it equals the slice's shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pstranspile.ir.attributes import AttrValue, Ints, Long, Longs, Strings
from pstranspile.ir.diagnostics import Diagnostic, error
from pstranspile.ir.model import DistributedVar, Distribution, FrozenMap, Location, Op
from pstranspile.ir.text.literals import INT_MAX, INT_MIN, Language
from pstranspile.ir.text.statement import OpParts, did_you_mean, one_of
from pstranspile.ir.types import OpRole

DISTRIBUTION, PLACED = "distribution", "placed"
STATEMENTS = (DISTRIBUTION, PLACED)
"""The statements that stand in a program before its blocks."""

SLICE = "Slice"
_DEFAULTS = Distribution()
_FIELDS: Mapping[str, str] = {
    "is_distributed": "bool",
    "is_chief": "bool",
    "endpoints": "strings",
    "ps_endpoint": "string",
    "distributed_lookup_table": "string",
    "trainers_endpoints": "strings",
    "nccl_comm_num": "int",
    "use_hierarchical_allreduce": "bool",
    "hierarchical_allreduce_inter_nranks": "int",
}
_PLACED: Mapping[str, str] = {
    "origin_shape": "dims",
    "shape": "dims",
    "is_slice": "bool",
    "block_id": "int",
    "offset": "int",
    "endpoint": "string",
}
_WORDS = {
    "bool": "true or false",
    "strings": "a list of strings",
    "string": "a string",
    "int": "a whole number",
    "dims": "a list of whole numbers",
}


class Statement(NamedTuple):
    """The value of a printed statement about a distribution: its index among those of its program."""

    number: int


def statements(distribution: Distribution, language: Language) -> tuple[Op, ...]:
    """The statements of a distribution, as ops to print. Raises ValueError for numbers beyond 64 bits when printed."""
    fields = distribution._asdict()
    given: dict[str, AttrValue] = {
        name: _attribute(fields[name]) for name in _FIELDS if fields[name] != getattr(_DEFAULTS, name)
    }
    generic = language.generic_defaults
    head = Op(DISTRIBUTION, attrs=FrozenMap({**generic, **given}))
    return (head, *(_placed_op(var, generic) for var in distribution.variables))


def _placed_op(var: DistributedVar, generic: Mapping[str, AttrValue]) -> Op:
    attributes: dict[str, AttrValue] = {"endpoint": var.endpoint, "shape": _attribute(var.slice_shape)}
    if var.origin_shape != var.slice_shape:
        attributes["origin_shape"] = _attribute(var.origin_shape)
    if var.is_slice:
        attributes["is_slice"] = True
    if var.block_id:
        attributes["block_id"] = _attribute(var.block_id)
    if var.offset:
        attributes["offset"] = _attribute(var.offset)
    inputs, outputs = FrozenMap({var.vtype: (var.origin,)}), FrozenMap({SLICE: (var.slice,)})
    return Op(PLACED, inputs, outputs, FrozenMap({**generic, **attributes}))


def _attribute(value: Any) -> AttrValue:
    if isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if INT_MIN <= value <= INT_MAX else Long(value)
    if value and isinstance(value[0], str):
        return Strings(value)
    small = bool(value) and all(INT_MIN <= dim <= INT_MAX for dim in value)
    return Ints(value) if small else Longs(value)


def read_distribution(given: Sequence[OpParts], file: str, language: Language) -> tuple[Distribution, list[Diagnostic]]:
    """(distribution, findings) for the statements of a distribution, the first of which is `distribution`."""
    reader = _DistributionReader(file, language)
    fields: dict[str, Any] = {}
    variables: list[DistributedVar] = []
    for position, parts in enumerate(given):
        if parts.type != (PLACED if position else DISTRIBUTION):
            reader.wrong(parts, "`distribution` stands once, before all `placed`", parts.type)
        if parts.type == DISTRIBUTION:
            if parts.inputs or parts.outputs:
                reader.wrong(parts, "`distribution` has no variables, only settings in braces", parts.type)
            fields = reader.fields(parts, _FIELDS)
        else:
            variables += reader.variable(parts)
    return Distribution(**fields, variables=tuple(variables)), reader.findings


class _DistributionReader:
    """Reads the values of statements and collects errors in them."""

    def __init__(self, file: str, language: Language):
        self.file = file
        self.generic = language.generic_defaults
        self.findings: list[Diagnostic] = []

    def wrong(self, parts: OpParts, message: str, focus: str = "") -> None:
        """Adds a finding."""
        self.findings.append(error("distribution", message, Location(self.file, parts.line, parts.column), focus=focus))

    def fields(self, parts: OpParts, known: Mapping[str, str]) -> dict[str, Any]:
        """The settings in the braces of a statement."""
        if parts.role is not OpRole.FORWARD or parts.role_vars or parts.is_target:
            self.wrong(parts, f"`{parts.type}` has no role: it is not an op", parts.type)
        values: dict[str, Any] = {}
        for name, value in parts.attrs.items():
            if name in self.generic and value == self.generic[name]:
                continue
            if name not in known:
                hint = did_you_mean(name, known) or f"; {one_of(sorted(known))} can stand here"
                self.wrong(parts, f"`{parts.type}` has no setting `{name}`{hint}", name)
            elif not _fits(value, known[name]):
                self.wrong(parts, f"`{name}` takes {_WORDS[known[name]]}", name)
            else:
                values[name] = _plain(value)
        return values

    def variable(self, parts: OpParts) -> Iterable[DistributedVar]:
        """The variable of a `placed` statement; nothing if it is incomplete."""
        values = self.fields(parts, _PLACED)
        names = [name for slots in (parts.inputs, parts.outputs) for name in slots.values()]
        if len(parts.inputs) != 1 or [*parts.outputs] != [SLICE] or any(len(name) != 1 for name in names):
            self.wrong(
                parts, "`placed` has one variable on each side: `placed(Param=%w) -> Slice=%w.block0`", parts.type
            )
        elif "endpoint" not in values or "shape" not in values:
            self.wrong(parts, "`placed` says at least `endpoint` and `shape`", parts.type)
        else:
            ((vtype, (origin,)),) = parts.inputs.items()
            shape = values["shape"]
            yield DistributedVar(
                origin,
                values.get("origin_shape", shape),
                names[1][0],
                shape,
                values.get("is_slice", False),
                values.get("block_id", 0),
                values.get("offset", 0),
                values["endpoint"],
                vtype,
            )


def _fits(value: AttrValue, kind: str) -> bool:
    if kind == "bool":
        return isinstance(value, bool)
    if kind == "int":
        return isinstance(value, int) and type(value) in (int, Long)
    if kind == "string":
        return isinstance(value, str)
    return isinstance(value, Strings if kind == "strings" else Ints | Longs)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return int(value) if isinstance(value, Long) else value
