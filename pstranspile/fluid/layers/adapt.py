"""How layers with Fluid's signatures are declared and written.

A layer is declared by `adapt` where it is one of this package's under other names, and by `one_op` where it is just an
op. All others are functions: they make their ops by `made_by`, and `checked` has them refuse what Fluid's refuse.
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
from pstranspile.fluid.graph.live import LiveDraft
from pstranspile.fluid.graph.plain import several
from pstranspile.fluid.graph.variable import Variable, operand
from pstranspile.fluid.graph.vartype import dtype_of, numpy_name
from pstranspile.fluid.missing import NotHere
from pstranspile.fluid.param_attr import core_attr
from pstranspile.frontends.layers.basic import layer_outputs
from pstranspile.frontends.layers.draft import Names
from pstranspile.ir.diagnostics import did_you_mean
from pstranspile.ir.types import DType
from pstranspile.ops import schema_of

Function = Callable[..., Any]

# What layers take: the checks of arguments that Fluid's layers make, from the table in `accepted.txt`.

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


def checked(function: Function) -> Function:
    """The layer, which checks first what the table says of its arguments."""
    name, order = function.__name__, list(inspect.signature(function).parameters)
    accepted = _table().get(name, {}).items()
    places = [(order.index(parameter), parameter, taken) for parameter, taken in accepted if parameter in order]
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
"""Arguments that change no value. `name` is taken care of."""


class _FirstName(unique_name.UniqueNameGenerator):
    """Counters that give a name of the user's to the first thing that is named: the layer."""

    def __init__(self, name: str, others: Names):
        super().__init__()
        self.name: str | None = name
        self.others = others

    def mint(self, key: str) -> str:
        """The user's name once, then those of the counters."""
        name, self.name = self.name, None
        return name or self.others.mint(key)

    def copy(self) -> dict[str, int]:
        """The counters as they are now."""
        return self.others.copy()

    def restore(self, counters: dict[str, int]) -> None:
        """Makes the counters again what they were."""
        self.others.restore(counters)


@contextmanager
def named(name: str | None) -> Any:
    """The layer made in the block is called `name`; None: after the counters."""
    if not name:
        yield
        return
    before = unique_name.switch(_FirstName(name, unique_name.generator()))
    try:
        yield
    finally:
        unique_name.switch(before)


def live() -> LiveDraft:
    """The programs in use, as layers of this package take them."""
    return default_main_program().live()


def to_core(value: Any) -> Any:
    """An argument of a script as layers of this package take it: variables as values, lists item by item."""
    if several(value):
        return [to_core(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return _here(value).value if isinstance(value, Variable) else operand(value)


def _here(variable: Variable) -> Variable:
    """The variable in the program in use, where layers make their ops: a clone has others of the same names.

    Raises ValueError where that program has none of the name.
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


def wrap(made: Any) -> Any:
    """What a layer has made, as variables of the program in use."""
    return default_main_program().wrap(made)


def signature_of(text: str) -> inspect.Signature:
    """The signature that a text such as `"input, size, act=None"` writes."""
    return inspect.signature(eval(f"lambda {text}: None", {"__builtins__": {"float": float}}))


def bound(name: str, signature: inspect.Signature, args: Any, options: Any) -> dict[str, Any]:
    """Arguments by name, defaults filled in. Raises TypeError that names the layer."""
    try:
        result = signature.bind(*args, **options)
    except TypeError as problem:
        wrong: object = problem
        unknown = next((option for option in options if option not in signature.parameters), None)
        if unknown is not None:  # which explains what is missing
            wrong = f"got an unexpected keyword argument {unknown!r}{did_you_mean(unknown, list(signature.parameters))}"
        raise TypeError(f"{name}({', '.join(map(str, signature.parameters.values()))}): {wrong}") from None
    result.apply_defaults()
    return dict(result.arguments)


def adapt(function: Function, text: str, also: str = "", *, called: str = "", **renamed: str) -> Function:
    """`function` of this package under Fluid's signature `text`, and under the name `called` if that is another.

    `renamed` gives the parameters that have other names in Fluid. What `function` does not take must be left at its
    default in scripts (NotHere), except what changes no value, and the parameters listed in `also`.
    """
    signature, own = signature_of(text), inspect.signature(function).parameters
    names = {fluid: core for core, fluid in renamed.items()}
    ignored = {*HARMLESS, *also.replace(",", " ").split()}

    def layer(*args: Any, **options: Any) -> Any:
        given = bound(layer.__name__, signature, args, options)
        draft = live()
        taken: dict[str, Any] = {"draft": draft} if "draft" in own else {}
        for name, value in given.items():
            core = names.get(name, name)
            if core not in own:
                if name not in ignored and value != signature.parameters[name].default:
                    raise NotHere(f"{layer.__name__}: {name}={value!r} is not supported, leave it out")
                continue
            taken[core] = _argument(draft, name, value)
        with named(None if "name" in own else given.get("name")):
            return wrap(function(**taken))

    return _dressed(layer, called or function.__name__, signature, inspect.getdoc(function))


def _argument(draft: LiveDraft, name: str, value: Any) -> Any:
    if name in ATTRIBUTES:
        return core_attr(value, draft)
    if name == "dtype" and value is not None:
        return dtype_of(value)
    return to_core(value)


def _dressed(layer: Function, name: str, signature: inspect.Signature, doc: str | None) -> Function:
    layer.__name__ = layer.__qualname__ = name
    layer.__doc__ = doc
    layer.__signature__ = signature  # type: ignore[attr-defined]
    layer.__module__ = __name__.rpartition(".")[0]
    return checked(layer)


def listed(value: Any) -> list[Any]:
    """A list of what is one, or a single thing as a list."""
    return list(value) if several(value) else [value]


def numbers(value: Any) -> list[float]:
    """A number or several, as floats. Raises TypeError for others."""
    held = listed(value)
    if not all(isinstance(item, Real) for item in held):
        raise TypeError(f"a number, or a list of numbers, is needed in place of {value!r}")
    return [float(item) for item in held]


def _number(value: Any) -> Any:
    return value or 0


def _items(value: Any) -> list[Any]:
    return list(value or ())


_FORMS: dict[str, Callable[[Any], Any]] = {"floats": numbers, "items": _items, "list": listed, "number": _number}
"""What makes an attribute of an argument, by the word behind it in a declaration."""


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

    `outputs` are slots, each with its element type, or the slot of an input that has the same one, if that is not the
    first input's (`"Out Index:int32 Scores:Scores"`). Those named in `stopped` get no gradient; `*` means all. `into`
    has the variables that are there already, by slot. Inputs that are None are left out. Raises TypeError for what is
    no variable.
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
    with named(name):
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

    `inputs` and `attrs` map slots and attributes to parameters (`"X=x Y=y"`; `axis` alone is `axis=axis`); None leaves
    them out. Behind an attribute stands what is made of the argument: `:floats` of a number or several, `:list` of
    anything, `:items` of a list or None, `:number` of a number or None. `outputs` are as `made_by` takes them; the
    layer gives the first one, all where the text ends with `*`, or what `gives` makes of them and of the arguments.
    `more` gives further attributes, or raises an error for arguments that can't be. `fixed` are attributes for all
    calls, `called` is the layer's name and `key` what the names of its variables begin with, where these are not its
    op's.
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
    return _dressed(layer, called or key or op_type, signature, doc)


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


def every(made: list[Any], _: dict[str, Any]) -> tuple[Any, ...]:
    """All that an op writes, for `one_op`."""
    return tuple(made)


def lists(layer: str, *parameters: str, of: str = "a list or a tuple") -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A check for `one_op`, which raises TypeError where a parameter has neither a list nor a tuple."""

    def check(given: dict[str, Any]) -> dict[str, Any]:
        for parameter in parameters:
            if not several(given[parameter]):
                raise TypeError(f"{layer}: {parameter} must be {of}, not {type(given[parameter]).__name__}")
        return {}

    return check
