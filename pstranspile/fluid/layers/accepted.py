"""What layers take: the checks of arguments that Fluid's layers make, from the table in `accepted.txt`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache, wraps
from importlib.resources import files
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np

from pstranspile.fluid.graph.plain import several
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.graph.vartype import dtype_of, numpy_name

_KINDS: dict[str, type] = {
    "Variable": Variable,
    "Variables": Variable,
    "list": list,
    "tuple": tuple,
    "int": Integral,
    "float": Real,
    "floating": float,
    "str": str,
    "bool": bool,
    "ndarray": np.ndarray,
    "NoneType": type(None),
}


class _Accepted(NamedTuple):
    """What a parameter of a layer may be; nothing said means anything."""

    kinds: tuple[str, ...]
    dtypes: tuple[str, ...]


@cache
def _table() -> dict[str, dict[str, _Accepted]]:
    text = files(__name__.rpartition(".")[0]).joinpath("accepted.txt").read_text(encoding="utf-8")
    result: dict[str, dict[str, _Accepted]] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            layer, parameter, kinds, dtypes = line.split()
            result.setdefault(layer, {})[parameter] = _Accepted(_listed(kinds), _listed(dtypes))
    return result


def _listed(text: str) -> tuple[str, ...]:
    return () if text == "-" else tuple(text.split(","))


def check_kind(layer: str, parameter: str, value: Any, kinds: Sequence[str]) -> None:
    """Raises TypeError unless the value is of one of these kinds."""
    if "Variables" in kinds and several(value):
        for item in value:
            check_kind(layer, f"each of {parameter}", item, ("Variable",))
        return
    if not isinstance(value, tuple(_KINDS[kind] for kind in kinds)):
        wanted = " or ".join("None" if kind == "NoneType" else kind for kind in kinds)
        raise TypeError(f"{layer}: {parameter} must be {wanted}, not {type(value).__name__}")


def check_variable(layer: str, parameter: str, value: Any, dtypes: Sequence[str]) -> None:
    """Raises TypeError unless the value is a variable of one of these element types."""
    check_kind(layer, parameter, value, ("Variable",))
    check_element_type(layer, parameter, value.dtype, dtypes)


def check_element_type(layer: str, parameter: str, given: Any, dtypes: Sequence[str]) -> None:
    """Raises TypeError unless it is one of these element types, NoElementType for what is none at all."""
    name = numpy_name(given)
    if name not in dtypes:
        raise TypeError(f"{layer}: {parameter} must be of {' or '.join(dtypes)}, not of {name}")


def _check(layer: str, parameter: str, value: Any, accepted: _Accepted) -> None:
    if accepted.kinds:
        check_kind(layer, parameter, value, accepted.kinds)
    if accepted.dtypes and isinstance(value, Variable):
        check_element_type(layer, parameter, value.dtype, accepted.dtypes)
    elif accepted.dtypes and "Variables" in accepted.kinds:
        for item in value:
            check_element_type(layer, f"each of {parameter}", item.dtype, accepted.dtypes)
    elif accepted.dtypes and not accepted.kinds and value is not None:
        check_element_type(layer, parameter, dtype_of(value) if isinstance(value, int) else value, accepted.dtypes)


def _checked(name: str, function: Callable[..., Any], accepted: dict[str, _Accepted]) -> Callable[..., Any]:
    order = list(inspect.signature(function).parameters)
    places = [(order.index(parameter), parameter, taken) for parameter, taken in accepted.items() if parameter in order]

    @wraps(function)
    def layer(*args: Any, **options: Any) -> Any:
        for index, parameter, taken in places:
            if index < len(args):
                _check(name, parameter, args[index], taken)
            elif parameter in options:
                _check(name, parameter, options[parameter], taken)
        return function(*args, **options)

    return layer


def checked_all(module: dict[str, Any]) -> None:
    """Has every layer of a module check its arguments first. Takes the module's globals."""
    for name, accepted in _table().items():
        function = module.get(name)
        if inspect.isfunction(function) and not hasattr(function, "__wrapped__"):
            module[name] = _checked(name, function, accepted)
