"""Helpers with which layers with Fluid's signatures are declared and written.

A layer is declared by `adapt` where a layer of this package does the same under other names, and by `one_op` where it
is just an op. All others are functions: they make their ops with `made_by`, and `with_argument_checks` makes them
refuse the arguments that Fluid's layers refuse.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from importlib.resources import files
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np

from pstranspile.fluid import unique_name
from pstranspile.fluid.framework import default_main_program
from pstranspile.fluid.graph.program import LiveDraft
from pstranspile.fluid.graph.values import dtype_of, numpy_name, several
from pstranspile.fluid.graph.variable import Variable, operand
from pstranspile.fluid.missing import NotHere
from pstranspile.fluid.param_attr import core_attr
from pstranspile.frontends.layers.basic import layer_outputs
from pstranspile.frontends.layers.draft import Names
from pstranspile.ir.diagnostics import did_you_mean
from pstranspile.ir.types import DType
from pstranspile.ops import schema_of

Function = Callable[..., Any]

# The checks of arguments that Fluid's layers make, from the table in `accepted.txt`.

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


class _AcceptedValues(NamedTuple):
    """The values that a parameter of a layer accepts; an empty field means any."""

    kinds: tuple[str, ...]
    dtypes: tuple[str, ...]


@cache
def _table() -> dict[str, dict[str, _AcceptedValues]]:
    text = files(__name__.rpartition(".")[0]).joinpath("accepted.txt").read_text(encoding="utf-8")
    result: dict[str, dict[str, _AcceptedValues]] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            layer, parameter, kinds, dtypes = line.split()
            result.setdefault(layer, {})[parameter] = _AcceptedValues(_parse_cell(kinds), _parse_cell(dtypes))
    return result


def _parse_cell(text: str) -> tuple[str, ...]:
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
    """Raises TypeError unless an element type is one of `dtypes`, NoElementType if `given` does not name an element
    type.
    """
    name = numpy_name(given)
    if name not in dtypes:
        raise TypeError(f"{layer}: {parameter} must be of {' or '.join(dtypes)}, not of {name}")


def _check(layer: str, parameter: str, value: Any, accepted: _AcceptedValues) -> None:
    if accepted.kinds:
        check_kind(layer, parameter, value, accepted.kinds)
    if accepted.dtypes and isinstance(value, Variable):
        check_element_type(layer, parameter, value.dtype, accepted.dtypes)
    elif accepted.dtypes and "Variables" in accepted.kinds:
        for item in value:
            check_element_type(layer, f"each of {parameter}", item.dtype, accepted.dtypes)
    elif accepted.dtypes and not accepted.kinds and value is not None:
        check_element_type(layer, parameter, dtype_of(value) if isinstance(value, int) else value, accepted.dtypes)


def with_argument_checks(function: Function) -> Function:
    """The layer with a check of its arguments, according to the table, before each call."""
    name = function.__name__
    accepted = _table().get(name)
    if not accepted:
        return function
    order = list(inspect.signature(function).parameters)
    places = [(order.index(parameter), parameter, taken) for parameter, taken in accepted.items() if parameter in order]
    if not places:
        return function

    @wraps(function)
    def layer(*args: Any, **options: Any) -> Any:
        for index, parameter, taken in places:
            if index < len(args):
                _check(name, parameter, args[index], taken)
            elif parameter in options:
                _check(name, parameter, options[parameter], taken)
        return function(*args, **options)

    return layer


ATTRIBUTES = ("param_attr", "bias_attr", "attr")
HARMLESS = ("name", "use_cudnn", "force_cpu", "numeric_stable_mode", "inplace", "in_place")
"""Arguments that do not change values. Layers use `name`, and ignore the others."""


class _FirstName(unique_name.UniqueNameGenerator):
    """Counters that give the user's name to the first thing that is named, which is the layer."""

    def __init__(self, name: str, other_names: Names):
        super().__init__()
        self.name: str | None = name
        self.other_names = other_names

    def mint(self, key: str) -> str:
        """The user's name in the first call, then names from the counters."""
        name, self.name = self.name, None
        return name or self.other_names.mint(key)

    def copy(self) -> dict[str, int]:
        """A copy of the counters."""
        return self.other_names.copy()

    def restore(self, counters: dict[str, int]) -> None:
        """Sets the counters to a copy made before."""
        self.other_names.restore(counters)


@contextmanager
def name_first_layer(name: str | None) -> Any:
    """A context manager in which the first layer is called `name`; with None it is named by the counters."""
    if not name:
        yield
        return
    before = unique_name.switch(_FirstName(name, unique_name.generator()))
    try:
        yield
    finally:
        unique_name.switch(before)


def live() -> LiveDraft:
    """The programs in use, as the draft that layers of this package take."""
    return default_main_program().live()


def to_core(value: Any) -> Any:
    """An argument of a script as layers of this package take it: a variable as its value, a list item by item."""
    if several(value):
        return [to_core(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return _in_current_program(value).value if isinstance(value, Variable) else operand(value)


def _in_current_program(variable: Variable) -> Variable:
    """The variable of the same name in the program in use, to which layers add their ops; the script may pass one of a
    clone.

    Raises ValueError where the program in use has no such variable.
    """
    program = default_main_program()
    if variable.block.program is program:
        return variable
    found = program.current_block().find_var_recursive(variable.name)
    if found is None:
        raise ValueError(
            f"%{variable.name} is a variable of another program: the program in use, which gets what layers make, has "
            "none of this name; use program_guard with the variable's program"
        )
    return found


def wrap(results: Any) -> Any:
    """The results of a layer as variables of the program in use."""
    return default_main_program().wrap(results)


def signature_of(text: str) -> inspect.Signature:
    """The signature that a text such as `"input, size, act=None"` describes."""
    return inspect.signature(eval(f"lambda {text}: None", {"__builtins__": {"float": float}}))


def bound(name: str, signature: inspect.Signature, args: Any, options: Any) -> dict[str, Any]:
    """Arguments by name, with defaults filled in. Raises TypeError with the layer's name and signature."""
    try:
        result = signature.bind(*args, **options)
    except TypeError as problem:
        wrong: object = problem
        unknown = next((option for option in options if option not in signature.parameters), None)
        if unknown is not None:  # it explains missing arguments, too
            wrong = f"got an unexpected keyword argument {unknown!r}{did_you_mean(unknown, list(signature.parameters))}"
        raise TypeError(f"{name}({', '.join(map(str, signature.parameters.values()))}): {wrong}") from None
    result.apply_defaults()
    return dict(result.arguments)


def adapt(function: Function, text: str, also: str = "", *, called: str = "", **renamed: str) -> Function:
    """`function` of this package under Fluid's signature `text`, and under the name `called` if given.

    `renamed` has the parameters that have other names in Fluid. Parameters that `function` lacks must keep their
    defaults (NotHere), except those that change no value, and those in `also`.
    """
    signature = signature_of(text)
    names = {fluid: core for core, fluid in renamed.items()}
    ignored = {*HARMLESS, *also.replace(",", " ").split()}

    def layer(*args: Any, **options: Any) -> Any:
        given = bound(layer.__name__, signature, args, options)
        draft, own = live(), _parameters(function)
        taken: dict[str, Any] = {"draft": draft} if "draft" in own else {}
        for name, value in given.items():
            core = names.get(name, name)
            if core not in own:
                if name not in ignored and value != signature.parameters[name].default:
                    raise NotHere(f"{layer.__name__}: {name}={value!r} is not supported, leave it out")
                continue
            taken[core] = _argument(draft, name, value)
        with name_first_layer(None if "name" in own else given.get("name")):
            return wrap(function(**taken))

    return _with_metadata(layer, called or function.__name__, signature, inspect.getdoc(function))


@cache
def _parameters(function: Function) -> frozenset[str]:
    """The names of a function's parameters, which are found out when a layer is first called: a script uses few."""
    return frozenset(inspect.signature(function).parameters)


def _argument(draft: LiveDraft, name: str, value: Any) -> Any:
    if name in ATTRIBUTES:
        return core_attr(value, draft)
    if name == "dtype" and value is not None:
        return dtype_of(value)
    return to_core(value)


def _with_metadata(layer: Function, name: str, signature: inspect.Signature, doc: str | None) -> Function:
    layer.__name__ = layer.__qualname__ = name
    layer.__doc__ = doc
    layer.__signature__ = signature  # type: ignore[attr-defined]
    layer.__module__ = __name__.rpartition(".")[0]
    return with_argument_checks(layer)


def as_list(value: Any) -> list[Any]:
    """A list or tuple as a list; any other value as a list of one item."""
    return list(value) if several(value) else [value]


def numbers(value: Any) -> list[float]:
    """A number or several, as floats. Raises TypeError for other values."""
    held = as_list(value)
    if not all(isinstance(item, Real) for item in held):
        raise TypeError(f"a number, or a list of numbers, is needed in place of {value!r}")
    return [float(item) for item in held]


def _number(value: Any) -> Any:
    return value or 0


def _items(value: Any) -> list[Any]:
    return list(value or ())


_FORMS: dict[str, Callable[[Any], Any]] = {"floats": numbers, "items": _items, "list": as_list, "number": _number}
"""The functions that convert an argument to an attribute, by the word after the attribute in a declaration."""


def made_by(
    op_type: str,
    inputs: Mapping[str, Any],
    outputs: str = "Out",
    attrs: Mapping[str, Any] | None = None,
    *,
    key: str = "",
    name: str | None = None,
    stopped: str = "",
    into: Mapping[str, Any] | None = None,
) -> list[Any]:
    """The variables that one op writes.

    `outputs` are slots, each followed by its element type, or by the input slot whose type it has; the default is the
    type of the first input (`"Out Index:int32 Scores:Scores"`). Those named in `stopped` get no gradient; `*` means
    all. `into` has existing variables to write to, by slot. Inputs that are None are left out. Raises TypeError for
    inputs that are not variables.
    """
    layer = key or op_type
    for slot, value in inputs.items():
        check_kind(layer, slot, value, ("Variable", "Variables", "NoneType"))
    values = {slot: to_core(value) for slot, value in inputs.items() if value is not None}
    if not values:
        raise TypeError(f"{layer}: there is no input")

    def kind(given: str) -> DType:
        if given and given not in values:
            return dtype_of(given)
        like = values[given or next(iter(values))]
        return (like[0] if several(like) else like).dtype

    written: dict[str, Any] = {slot: kind(like) for slot, _, like in (slot.partition(":") for slot in outputs.split())}
    written |= {slot: to_core(variable) for slot, variable in (into or {}).items() if isinstance(variable, Variable)}
    with name_first_layer(name):
        made = layer_outputs(op_type, values, written, attrs, key=key)
    for slot, value in zip(written, made, strict=True):
        if stopped == "*" or slot in stopped.split():
            value.stopped()
    return wrap(made)


def one_op(
    op_type: str,
    text: str,
    inputs: str,
    outputs: str = "Out",
    attrs: str = "",
    *,
    called: str = "",
    key: str = "",
    stopped: str = "",
    more: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    gives: Callable[[list[Any], dict[str, Any]], Any] | None = None,
    **fixed: Any,
) -> Function:
    """A layer of one op under Fluid's signature `text`.

    `inputs` and `attrs` map slots and attributes to parameters (`"X=x Y=y"`; `axis` alone is `axis=axis`); arguments
    that are None are left out. A suffix of an attribute converts the argument: `:floats` a number or several, `:list`
    anything, `:items` a list or None, `:number` a number or None. `outputs` are in the form of `made_by`; the layer
    returns the first one, all if the text ends with `*`, or the result of `gives` for them and the arguments. `more`
    returns further attributes, or raises an error for arguments that are not allowed. `fixed` are attributes for all
    calls, `called` is the layer's name and `key` the beginning of its variables' names, if they are not the op's type.
    """
    signature = signature_of(text)
    reads, takes = _pairs(inputs), _pairs(attrs)
    slots = outputs.rstrip("*")
    first_slot = slots.split()[0].partition(":")[0]

    def layer(*args: Any, **options: Any) -> Any:
        given = bound(layer.__name__, signature, args, options)
        further = {} if more is None else more(given)
        values = {slot: given[name] for slot, name in reads.items()}
        settings = {attr: _attribute(name, given) for attr, name in takes.items()}
        settings = {attr: value for attr, value in settings.items() if value is not None} | further | fixed
        into = {first_slot: given.get("out")}
        made = made_by(op_type, values, slots, settings, key=key, name=given.get("name"), stopped=stopped, into=into)
        if gives is not None:
            return gives(made, given)
        return made if slots != outputs else made[0]

    schema = schema_of(op_type)
    doc = schema.doc if schema else f"One op `{op_type}`."
    return _with_metadata(layer, called or key or op_type, signature, doc)


def _attribute(text: str, given: dict[str, Any]) -> Any:
    name, _, form = text.partition(":")
    value = given[name]
    if form:
        return _FORMS[form](value)
    if value is None:
        return None
    return dtype_of(value) if name == "dtype" else to_core(value)


def _pairs(text: str) -> dict[str, str]:
    split = (item.partition("=") for item in text.split())
    return {slot.partition(":")[0]: name or slot for slot, _, name in split}


def every(results: list[Any], _: dict[str, Any]) -> tuple[Any, ...]:
    """All variables that an op writes; a value of `gives` for `one_op`."""
    return tuple(results)


def lists(layer: str, *parameters: str, of: str = "a list or a tuple") -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A check for `one_op`, which raises TypeError where a parameter is neither a list nor a tuple."""

    def check(given: dict[str, Any]) -> dict[str, Any]:
        for parameter in parameters:
            if not several(given[parameter]):
                raise TypeError(f"{layer}: {parameter} must be {of}, not {type(given[parameter]).__name__}")
        return {}

    return check
