"""Distributions of programs in a `--meta` file: the key `distribution`, an object by program name.

Its values have the fields of `Distribution` under the same names; those at their default may be left out. The list
`variables` holds objects with the fields of `DistributedVar`, all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from pstranspile.ir.distribution import DistributedVar, Distribution
from pstranspile.ir.frozen import FrozenMap

Wrong = Callable[[str, str, object], None]
"""Takes the key of a wrong value, what it must be, and the value."""

_INT64 = range(-(1 << 63), 1 << 63)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value in _INT64


def _is_list(value: Any, holds: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(holds(item) for item in cast("list[Any]", value))


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


_TRUTH: tuple[str, Callable[[Any], bool]] = ("true or false", lambda value: isinstance(value, bool))
_INTEGER: tuple[str, Callable[[Any], bool]] = ("an integer of 64 bits", _is_integer)
_STRING: tuple[str, Callable[[Any], bool]] = ("a string", _is_string)
_STRING_OR_NULL: tuple[str, Callable[[Any], bool]] = (
    "a string or null",
    lambda value: value is None or isinstance(value, str),
)
_STRINGS: tuple[str, Callable[[Any], bool]] = ("a list of strings", lambda value: _is_list(value, _is_string))
_DIMS: tuple[str, Callable[[Any], bool]] = ("a list of integers", lambda value: _is_list(value, _is_integer))

_FIELDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "is_distributed": _TRUTH,
    "is_chief": _TRUTH,
    "endpoints": _STRINGS,
    "ps_endpoint": _STRING_OR_NULL,
    "distributed_lookup_table": _STRING_OR_NULL,
    "trainers_endpoints": _STRINGS,
    "nccl_comm_num": _INTEGER,
    "use_hierarchical_allreduce": _TRUTH,
    "hierarchical_allreduce_inter_nranks": _INTEGER,
}
_VARIABLE: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "origin": _STRING,
    "origin_shape": _DIMS,
    "slice": _STRING,
    "slice_shape": _DIMS,
    "is_slice": _TRUTH,
    "block_id": _INTEGER,
    "offset": _INTEGER,
    "endpoint": _STRING,
    "vtype": _STRING,
}


def distribution_json(distribution: Distribution) -> dict[str, Any]:
    """A distribution as a `--meta` file has it, every field filled in."""
    fields = distribution._asdict()
    fields["variables"] = [variable_json(variable) for variable in distribution.variables]
    return _with_lists(fields)


def variable_json(variable: DistributedVar) -> dict[str, Any]:
    """A variable on a server, as `--meta` files and `plan.json` have it."""
    return _with_lists(variable._asdict())


def _with_lists(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: [*value] if isinstance(value, tuple) else value for key, value in fields.items()}  # pyright: ignore


def read_distributions(value: object, wrong: Wrong) -> FrozenMap[str, Distribution]:
    """The distributions under the key `distribution`, by program; faulty ones are reported to `wrong` and left out."""
    if value is None:
        return FrozenMap()
    if not isinstance(value, dict):
        wrong("distribution", "an object by program name", value)
        return FrozenMap()
    given = cast("dict[str, Any]", value)
    return FrozenMap(
        {program: _distribution(f"distribution.{program}", content, wrong) for program, content in given.items()}
    )


def _distribution(key: str, value: object, wrong: Wrong) -> Distribution:
    if not isinstance(value, dict):
        wrong(key, "an object", value)
        return Distribution()
    given = cast("dict[str, Any]", value)
    fields = _checked(key, given, _FIELDS, wrong)
    variables = given.get("variables", [])
    if not isinstance(variables, list):
        wrong(f"{key}.variables", "a list", variables)
        variables = []
    return Distribution(**fields, variables=tuple(_variables(f"{key}.variables", cast("list[Any]", variables), wrong)))


def _variables(key: str, given: list[Any], wrong: Wrong) -> Iterable[DistributedVar]:
    for position, item in enumerate(given):
        place = f"{key}[{position}]"
        if not isinstance(item, dict):
            wrong(place, "an object", item)
            continue
        entry = cast("dict[str, Any]", item)
        missing = next((name for name in _VARIABLE if name not in entry), None)
        if missing is not None:
            wrong(f"{place}.{missing}", _VARIABLE[missing][0], None)
            continue
        fields = _checked(place, entry, _VARIABLE, wrong)
        if len(fields) == len(_VARIABLE):
            yield DistributedVar(**fields)


def _checked(
    key: str, given: Mapping[str, Any], known: Mapping[str, tuple[str, Callable[[Any], bool]]], wrong: Wrong
) -> dict[str, Any]:
    """The known fields that hold what they must; other keys are ignored, as everywhere in the file."""
    fields: dict[str, Any] = {}
    for name, (expected, holds) in known.items():
        if name not in given:
            continue
        value = given[name]
        if holds(value):
            fields[name] = tuple(cast("list[Any]", value)) if isinstance(value, list) else value
        else:
            wrong(f"{key}.{name}", expected, value)
    return fields
