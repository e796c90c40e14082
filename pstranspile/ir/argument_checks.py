"""Checks of arguments of public functions: a TypeError says what to pass instead.

`check_arguments` holds every argument of a function to the type that it declares. What types don't say, such as
limits of numbers, the function checks with `expect_number` and others here; `require_programs` checks that a module
has the required programs.
"""

from __future__ import annotations

import builtins
import math
import operator
import os
import sys
from collections import abc
from collections.abc import Callable, Collection, Container, Iterable, Mapping, MutableMapping, Sequence
from functools import wraps
from itertools import chain, islice
from pathlib import Path
from types import UnionType
from typing import (
    Any,
    Literal,
    NamedTuple,
    SupportsFloat,
    SupportsIndex,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
)

from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Note, did_you_mean, error
from pstranspile.ir.model import MAIN, STARTUP, Location, Module, Program

_INSTEAD = {
    ("Module", "Program"): "Module(FrozenMap(main=program)) makes one of it",
    ("Module", "path"): "load gives that of a file",
    ("Program", "Module"): "module.main is its main program, module.startup its start-up program",
    ("Program", "Role"): "role.main is its main program, role.startup its start-up program",
    ("Program", "Compiled"): "compiled.trainer(0).main is one of its programs",
    ("Program", "path"): "load(path).main is that of a file",
    ("Job", "dict"): "Job(**settings) makes one",
    ("Job", "path"): "load_job gives that of a file",
    ("PlanFile", "path"): "load_plan gives that of a file, parse_plan that of a text",
    ("PlanFile", "Compiled"): "compiled.plan is its plan",
    ("Compiled", "Job"): "compile(module, job) gives one",
    ("Compiled", "Module"): "compile(module, job) gives one",
    ("Facts", "Program"): "analyze(program) gives them",
    ("Facts", "Module"): "analyze(module.main) gives them",
    ("Scope", "dict"): "scope = Scope() makes one, scope.update(values) fills it",
    ("Scenario", "path"): "parse_scenario(text) gives one",
    ("roles", "Compiled"): "compiled.roles() gives them",
}
"""The advice in the message, by the required type and the given type."""


def wrong_type(caller: str, wanted: str, value: object, kind: str = "") -> TypeError:
    """The TypeError for a `value` passed to the function `caller`, which requires `wanted` (words) of
    the type `kind`.
    """
    given = type(value).__name__
    instead = _INSTEAD.get((kind, "path" if isinstance(value, str | os.PathLike) else given), "")
    return TypeError(f"{caller} takes {wanted}, not a value of type {given}" + (f"; {instead}" if instead else ""))


def expect(value: object, kind: type[Any] | UnionType, caller: str, wanted: str = "") -> None:
    """Raises TypeError unless `value` is of the type, or of one of the types; `wanted` describes it in the message."""
    if not isinstance(value, kind):
        name = "" if isinstance(kind, UnionType) else kind.__name__
        raise wrong_type(caller, wanted or f"a {name}", value, name)


def expect_module(value: object, caller: str) -> None:
    """Raises TypeError unless `value` is a Module."""
    expect(value, Module, caller)


def expect_program(value: object, caller: str) -> None:
    """Raises TypeError unless `value` is a Program."""
    expect(value, Program, caller)


def path_of(value: str | os.PathLike[str], caller: str) -> str:
    """The path of a file or folder as text. Raises TypeError for a value that is no path."""
    if not isinstance(value, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise wrong_type(caller, "the path of a file or folder", value)
    return os.fspath(value)


MOST_STEPS = 10**9
"""The largest number of steps of a run, because the fetched values of each step are kept."""

MOST_CHECKED = 10**6
"""The largest number of steps of a check, of rows of its batches, and of orders of its events."""


def expect_number(value: object, caller: str, wanted: str, most: int | None = None, least: int | None = None) -> None:
    """Raises TypeError unless `value` is an integer (of Python, numpy or another package); `wanted` describes it in the
    message.

    Raises ValueError if it exceeds `most`, or is below `least`.
    """
    if not is_whole(value):
        raise wrong_type(caller, wanted, value)
    number = operator.index(cast("SupportsIndex", value))
    if most is not None and number > most:
        raise ValueError(f"{caller} takes {wanted}, {most:,} at most")
    if least is not None and number < least:
        raise ValueError(f"{caller} takes {wanted}, {least} at least, not {number}")


def expect_word(value: object, caller: str, wanted: str, words: Sequence[str]) -> None:
    """Raises ValueError unless `value` is one of `words`; `wanted` is the name of the argument in the message."""
    if not isinstance(value, str) or value not in words:
        hint = did_you_mean(str(value), words)
        raise ValueError(f"{caller} takes {' or '.join(map(repr, words))} as {wanted}, not {value!r}{hint}")


def names_of(value: Iterable[str], caller: str) -> tuple[str, ...]:
    """A list of variable names as a tuple. Raises TypeError for other values, in particular for a single name without a
    list.
    """
    if value.__class__ is tuple or value.__class__ is list:
        names = tuple(value)
        if all(name.__class__ is str for name in names):
            return names
    wanted = "a list of names of variables"
    if isinstance(value, str):
        raise TypeError(f"{caller} takes {wanted}, not one name; write [{value!r}]")
    if not isinstance(value, Iterable) or isinstance(value, Module | Program):  # pyright: ignore
        raise wrong_type(caller, wanted, value)
    names = tuple(value)
    for name in cast("tuple[object, ...]", names):
        if not isinstance(name, str):
            raise TypeError(f"{caller} takes {wanted}; one is of type {type(name).__name__}")
    return names


def is_separator(sign: str) -> bool:
    """Whether a text can separate the fields of a row: a single character that occurs in no number and no name."""
    return (
        len(sign) == 1
        and sign.isascii()
        and (sign == "\t" or sign.isprintable())
        and sign not in "\"'+-._ "
        and (not sign.isalnum())
    )


# Errors for misspelt names in Python, with suggestions.


def no_attribute(module: str, name: str, known: Iterable[str]) -> AttributeError:
    """The error for a name that a module does not have; it suggests the most similar name of the module."""
    hint = "" if name.startswith("_") else did_you_mean(name, known)
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}", name=name, obj=None)


def require_arguments(called: str, named: Iterable[str], known: Sequence[str]) -> None:
    """Raises TypeError if one of the arguments that are named is not among the known ones."""
    wrong = next((name for name in named if name not in known), None)
    if wrong is not None:
        hint = did_you_mean(wrong, known) or f"; it takes {', '.join(known)}"
        raise TypeError(f"{called} has no argument {wrong!r}{hint}") from None


_Called = TypeVar("_Called", bound=Callable[..., Any])


def suggesting(called: _Called) -> _Called:
    """Wraps a function or class: when called with an unknown argument, its TypeError suggests the most similar known
    one.
    """
    made: Any = called.__init__ if isinstance(called, type) else called

    @wraps(made)
    def call(*given: Any, **named: Any) -> Any:
        return _result(called, made, given, named)

    return cast("_Called", _install_wrapper(called, call))


def _result(called: Any, function: Callable[..., Any], given: Iterable[Any], named: Mapping[str, Any]) -> Any:
    """The result of `function`, which `called` stands for; a TypeError about an unknown argument suggests the most
    similar one.
    """
    try:
        return function(*given, **named)
    except TypeError:
        _require_known(called, named)
        wrong = "" if _can_be_called(function, given, named) else _wrong_places(called, function, given, named)
        if wrong:
            raise TypeError(wrong) from None
        raise


def check_arguments(called: _Called) -> _Called:
    """Wraps a public function or method, or a class: arguments that are not of the types that it declares, and unknown
    ones, are refused with a TypeError that says what would be right.

    Declared types that only type checkers know (imported for them alone, or protocols) are not checked.
    """
    function: Any = called.__init__ if isinstance(called, type) else called
    code = function.__code__
    names: tuple[str, ...] = code.co_varnames[: code.co_argcount]
    first = next((name for name in names if name != "self"), "")
    kinds: dict[str, AcceptedTypes] = {}

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        try:
            for name, value in chain(zip(names, given), named.items()):  # noqa: B905 (there may be too many, or defaults)
                wanted = kinds.get(name)
                if wanted is None:
                    wanted = kinds[name] = declared_kinds(function, name)
                if wanted.is_known and value.__class__ not in wanted.exact:
                    _require_kind(value, wanted, called.__qualname__, name, is_first=name == first)
        except TypeError:
            if _can_be_called(function, given, named) or _wrong_places(called, function, given, named):
                raise
        return _result(called, function, given, named)

    return cast("_Called", _install_wrapper(called, call))


def _install_wrapper(called: Any, call: Callable[..., Any]) -> Any:
    """The function that takes the place of another one, or the class whose constructor it is."""
    if not isinstance(called, type):
        return call
    setattr(called, "__init__", call)  # noqa: B010 (pyright takes no assignment to a method)
    return cast("Any", called)


def _can_be_called(function: Callable[..., Any], given: Iterable[Any], named: Mapping[str, Any]) -> bool:
    """Whether a function has the arguments that it is called with; that it lacks one is told before their types."""
    from inspect import signature

    try:
        signature(function).bind(*given, **named)
    except TypeError:
        return False
    return True


_SHOWN = 12
"""The most arguments that a message lists."""


def _wrong_places(
    called: Callable[..., Any], function: Callable[..., Any], given: Iterable[Any], named: Mapping[str, Any]
) -> str:
    """What is wrong with the places of the arguments: they are too many, or one is given by its name as well. "" if
    nothing is.
    """
    from inspect import signature

    known = [*signature(function).parameters.values()]
    if any(one.kind is one.VAR_POSITIONAL for one in known):
        return ""
    by_place = [one.name for one in known if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    values = [*given]
    if by_place[:1] == ["self"]:
        by_place, values = by_place[1:], values[1:]
    order = f"{called.__name__}({', '.join(by_place)}{', ...' if len(known) > len(by_place) else ''})"
    twice = next((name for name in by_place[: len(values)] if name in named), None)
    if twice is not None:
        return f"{called.__name__} is given {twice} twice, by its place and by its name: {order}"
    if len(values) > len(by_place):
        others = [one.name for one in known if one.kind is one.KEYWORD_ONLY]
        more = ", ..." if len(others) > _SHOWN else ""
        hint = f"; by name it takes {', '.join(others[:_SHOWN])}{more}" if others else ""
        return f"{called.__name__} is given {len(values)} arguments by place, it takes {len(by_place)}: {order}{hint}"
    return ""


def _require_known(called: Callable[..., Any], named: Iterable[str]) -> None:
    """Raises TypeError, with a suggestion, if one of the arguments that are named is not one of the function's."""
    from inspect import signature

    known = [*signature(called).parameters.values()]
    if any(one.kind is one.VAR_KEYWORD for one in known):
        return
    names = [one.name for one in known if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    wrong = [name for name in named if name not in names]
    made: Any = called.__init__ if isinstance(called, type) else called
    for name in names if wrong else ():
        for kind in declared_kinds(made, name).classes:
            inside = [other for other in wrong if other in _settings_of(kind)]
            if inside and inside[0] == wrong[0]:
                hint = f"{name}={kind.__name__}({', '.join(f'{other}=...' for other in inside)})"
                raise TypeError(
                    f"{called.__name__} has no argument {wrong[0]!r}; {kind.__name__} has it: {hint}"
                ) from None
    require_arguments(called.__name__, named, names)


def _settings_of(kind: type) -> Iterable[str]:
    """The arguments that make a value of a class of this package; none of other classes."""
    from inspect import signature

    return signature(kind).parameters if kind.__module__.startswith(f"{__name__.partition('.')[0]}.") else ()


# The types that functions declare for their arguments.


class AcceptedTypes(NamedTuple):
    """What a parameter takes. `exact` are classes whose values need no further look, `classes` those that are asked
    with isinstance; `elements` are the kinds of the elements of a list, `values` those of the values of a mapping, if
    they are known. Without `is_known`, anything.
    """

    is_known: bool
    exact: frozenset[type] = frozenset()
    classes: tuple[type, ...] = ()
    elements: AcceptedTypes | None = None
    values: AcceptedTypes | None = None


_ANYTHING = AcceptedTypes(False)


class _AnnotationNames(dict[str, Any]):
    """The names that an annotation can use, those of aliases that are texts included; names that only type checkers
    know stand for anything.
    """

    def __getitem__(self, name: str) -> Any:
        value = self.get(name, Any)
        if value is Any:
            value = vars(builtins).get(name) or vars(abc).get(name, Any)
        return eval(value, {}, self) if isinstance(value, str) else value


def declared_kinds(function: Any, parameter: str) -> AcceptedTypes:
    """What a function's parameter takes, or a field of a class holds, by its annotation."""
    text = function.__annotations__.get(parameter)
    text = getattr(text, "__forward_arg__", text)  # as named tuples keep it
    if not isinstance(text, str):
        return _ANYTHING
    try:
        return _kinds(eval(text, {}, _AnnotationNames(vars(sys.modules[function.__module__]))))
    except TypeError:  # a name that only type checkers know, with parameters
        return _ANYTHING


def _kinds(hint: Any) -> AcceptedTypes:
    origin: Any = cast("object", get_origin(hint))
    arguments: tuple[Any, ...] = get_args(hint)
    if origin in (Union, UnionType):
        parts = [_kinds(part) for part in arguments]
        if not all(part.is_known for part in parts):
            return _ANYTHING
        elements = next((part.elements for part in parts if part.elements is not None), None)
        values = next((part.values for part in parts if part.values is not None), None)
        classes = tuple(dict.fromkeys(one for part in parts for one in part.classes))
        return AcceptedTypes(True, frozenset[type]().union(*(part.exact for part in parts)), classes, elements, values)
    if origin is Literal:
        return _kinds(type(arguments[0]))
    kind: Any = hint if origin is None else origin
    if kind in _DISTINCT:
        kind = _DISTINCT[kind]
    if getattr(kind, "_is_protocol", False) and "__call__" in vars(kind):
        kind = Callable
    if not isinstance(kind, type) or kind in (Any, object) or getattr(kind, "_is_protocol", False):
        return _ANYTHING
    if kind.__name__ == "ndarray":  # what makes an array is one, such as a list of numbers
        return _ANYTHING
    if kind in _LISTS:
        element = arguments[0] if arguments and (kind is not tuple or arguments[1:] == (...,)) else Any
        found = _kinds(element)
        exact = frozenset[type]() if found.is_known else frozenset[type]([list, tuple])
        return AcceptedTypes(True, exact, (kind,), elements=found if found.is_known else None)
    if kind in (Mapping, MutableMapping) and arguments:
        found = _kinds(arguments[1])
        told = found.is_known and all(one in _WORDS or one is type(None) for one in found.classes)
        return AcceptedTypes(True, frozenset() if told else frozenset([dict]), (kind,), values=found if told else None)
    exact = frozenset[type]() if kind is float else frozenset[type]([kind])
    return AcceptedTypes(True, exact, (kind,))


_LISTS = (list, tuple, Sequence, Iterable, Collection, Container)
"""Declared types that stand for anything that can be gone through: users need not tell them apart."""

_DISTINCT: dict[Any, Any] = {None: type(None), Path: os.PathLike, dict: Mapping}
"""What is taken for a declared type where that is wider."""


def _is_of(value: Any, kinds: AcceptedTypes) -> bool:
    return any(_is(value, kind) for kind in kinds.classes)


def _is(value: Any, kind: Any) -> bool:
    """Whether a value passes for a declared type, as numbers of other packages do."""
    if kind is bool:
        return isinstance(value, bool) or type(value).__name__ in ("bool_", "bool")
    if kind is int:
        return is_whole(value)
    if kind is float:
        return _is_number(value)
    if kind in _LISTS:
        if isinstance(value, str | bytes | type) or hasattr(value, "_fields"):
            return False
        return hasattr(value, "__iter__") and getattr(value, "ndim", 1) != 0
    if kind is Callable:
        return callable(value)
    return isinstance(value, kind)


def is_whole(value: object) -> bool:
    """Whether a value is a whole number, of Python, numpy or another package; True and False are none."""
    if value.__class__ is int:  # the usual case: asking for a protocol takes long
        return True
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return False
    try:
        operator.index(value)
    except TypeError:  # an array that is no single number
        return False
    return True


def _is_number(value: Any) -> bool:
    """Whether a value is a single number, of Python or another package, and not NaN."""
    if isinstance(value, bool) or not isinstance(value, SupportsFloat) or hasattr(value, "__len__"):
        return False
    return not math.isnan(value)


_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "text",
    bytes: "bytes",
    os.PathLike: "a path",
    Mapping: "a mapping",
    MutableMapping: "a mapping",
    Callable: "a function",
    **dict.fromkeys(_LISTS, "a list"),
}
"""Declared types in messages; other classes are named."""

_MANY: dict[Any, str] = {int: "whole numbers", str: "texts", Mapping: "mappings"}
"""Declared types of elements in messages."""


def _in_words(kinds: AcceptedTypes) -> str:
    """The kinds as messages tell them: `a whole number`, `the path of a file or folder`, `a Job or a mapping`."""
    classes = [one for one in kinds.classes if one is not type(None)]
    if str in classes and os.PathLike in classes:
        classes = [one for one in classes if one is not str]
    words = [_WORDS.get(one) or f"{'an' if one.__name__[0] in 'AEIO' else 'a'} {one.__name__}" for one in classes]
    if kinds.elements is not None:
        first = kinds.elements.classes[0]
        many = _MANY.get(first) or f"values of type {first.__name__}"
        words = [f"a list of {many}" if word == "a list" else word for word in words]
    words = ["the path of a file or folder" if word == "a path" else word for word in words]
    return " or ".join(dict.fromkeys(words)) or "nothing"


_MOST_PARTS = 1000
"""How many elements of a list, or values of a mapping, are looked at: users pass long ones."""


def _parts_of(value: Any, kinds: AcceptedTypes) -> tuple[Iterable[object], AcceptedTypes, str]:
    """The elements of a list or the values of a mapping, what they must be, and what one is called in a message."""
    if isinstance(value, Mapping) and kinds.values is not None:
        return islice(cast("Mapping[Any, object]", value).values(), _MOST_PARTS), kinds.values, "one value"
    of = type(cast("object", value))
    is_there = issubclass(of, list | tuple | set | frozenset | dict) or of.__name__ == "ndarray"
    if is_there and kinds.elements is not None and Mapping not in kinds.classes:
        return islice(cast("Iterable[object]", value), _MOST_PARTS), kinds.elements, "one"
    return (), _ANYTHING, ""


def expect_fields(value: Any, caller: str) -> None:
    """Raises TypeError unless every field of a named tuple is of the type that its class declares."""
    kind: Any = type(cast("object", value))
    for name, held in zip(kind._fields, value, strict=True):
        kinds = declared_kinds(kind, name)
        if kinds.is_known and held.__class__ not in kinds.exact:
            _require_kind(held, kinds, caller, name, is_first=False)


_MEANINGS = {"fetch": ("a list of names of variables", "name")}
"""What parameters of these names take, in the words of messages, and what one element of it is."""


def _require_kind(value: Any, kinds: AcceptedTypes, caller: str, parameter: str, is_first: bool) -> None:
    """Raises TypeError unless a value is of the declared kinds, and so are the elements of a list, if it is one."""
    if value.__class__ in (tuple, list) and kinds.elements and kinds.elements.exact.issuperset(map(type, value)):
        return  # the usual case, and quick
    fits = _is_of(value, kinds)
    parts, of_parts, one = _parts_of(value, kinds) if fits else ((), _ANYTHING, "")
    wrong = [part for part in parts if not _is_of(part, of_parts)]
    if fits and not wrong:
        return
    named_classes = [one for one in kinds.classes if one not in _WORDS and one is not type(None)]
    wanted, one_of = _MEANINGS.get(parameter, (_in_words(kinds), "text"))
    if parameter not in _MEANINGS and not is_first and not named_classes:
        wanted = f"{wanted} as {parameter}"
    if wrong:
        raise TypeError(f"{caller} takes {wanted}; {one} is of type {type(wrong[0]).__name__}")
    if isinstance(value, str) and kinds.elements is not None and str in kinds.elements.classes:
        raise TypeError(f"{caller} takes {wanted}, not one {one_of}; write [{value!r}]")
    if float in kinds.classes and isinstance(value, float):
        raise TypeError(f"{caller} takes {wanted}, not NaN")
    raise wrong_type(caller, wanted, value, named_classes[-1].__name__ if named_classes else parameter)


# The check that a module has the required programs.


_START = (
    f"@{STARTUP} gives parameters and state their first values; in a text it is a program of its own, and that of a "
    "serialized main program is given with --startup FILE"
)
"""What a module without a start-up program lacks."""


def require_programs(module: Module, names: Iterable[str] = (MAIN, STARTUP)) -> None:
    """Raises DiagnosticError unless the module has all these programs, each with a block."""
    location = Location(module.source.file) if module.source else None
    missing = [name for name in names if name not in module.programs]
    findings: list[Diagnostic] = []
    if missing:
        text = " and ".join(f"@{name}" for name in missing)
        notes = [Note(_START)] if missing == [STARTUP] else []
        findings.append(error("no-program", f"the module has no program {text}", location, notes=notes))
    for name in names:
        if name in module.programs and not module[name].blocks:
            findings.append(error("no-block", f"the program @{name} has no block", location))
    if findings:
        raise DiagnosticError(findings)
