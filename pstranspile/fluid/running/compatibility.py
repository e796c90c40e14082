"""Restores names and behaviour that Python and numpy had when Fluid's scripts were written.

Arrays of one element are numbers, arrays are made of lists and bytes, and names exist that later versions dropped.
"""

from __future__ import annotations

import base64
import collections
import collections.abc
import ctypes
import fractions
import gc
import inspect
import math
import random
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import total_ordering, wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

# Restores what other modules had when Fluid's scripts were written, once a script imports them.

_FILTERS = {"ANTIALIAS": "LANCZOS", "LINEAR": "BILINEAR", "CUBIC": "BICUBIC"}
"""Names of filters in Pillow up to 9, and the present names of the same filters."""


def _give_filters(module: ModuleType) -> None:
    held = vars(module)
    for older, name in _FILTERS.items():
        if older not in held and name in held:
            held[older] = held[name]


def _compare_doubles(module: ModuleType) -> None:
    cases: Any = vars(module)["TestCase"]
    for name in ("assertAlmostEqual", "assertNotAlmostEqual"):
        if not hasattr(getattr(cases, name), "__wrapped__"):
            setattr(cases, name, _of_doubles(getattr(cases, name)))


def _of_doubles(compare: Callable[..., None]) -> Callable[..., None]:
    @wraps(compare)
    def compare_as_floats(case: Any, first: Any, second: Any, *rest: Any, **options: Any) -> None:
        if type(first) is not type(second):
            first, second = (float(x) if isinstance(x, np.floating) else x for x in (first, second))
        compare(case, first, second, *rest, **options)

    return compare_as_floats


def _size_of_text(font: Any, text: str, *given: Any, **named: Any) -> Any:
    return font.getbbox(text, *given, **named)[2:]


def _size_of_drawn(draw: Any, text: str, *given: Any, **named: Any) -> Any:
    return draw.textbbox((0, 0), text, *given, **named)[2:]


def _measure(kind: str, name: str, size: Callable[..., Any]) -> Callable[[ModuleType], None]:
    def give(module: ModuleType) -> None:
        if not hasattr(vars(module)[kind], name):
            setattr(vars(module)[kind], name, size)

    return give


def _take_encodings(module: ModuleType) -> None:
    def without_encoding(read: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(read)
        def read_ignoring_encoding(text: Any, *, encoding: Any = None, **options: Any) -> Any:
            return read(text, **options)

        return read_ignoring_encoding

    held = vars(module)
    for name in ("load", "loads"):
        if not hasattr(held[name], "__wrapped__"):
            held[name] = without_encoding(held[name])


def _load_plainly(module: ModuleType) -> None:
    held = vars(module)
    for name in ("load", "load_all"):
        if not held[name].__defaults__:
            held[name].__defaults__ = (held["FullLoader"],)


_CHANGES: Mapping[str, Callable[[ModuleType], None]] = {
    "PIL.Image": _give_filters,
    "PIL.ImageDraw": _measure("ImageDraw", "textsize", _size_of_drawn),
    "PIL.ImageFont": _measure("FreeTypeFont", "getsize", _size_of_text),
    "json": _take_encodings,
    "unittest.case": _compare_doubles,
    "yaml": _load_plainly,
}
"""For each module, the function that changes it after it is loaded."""


class _ChangingLoader(Loader):
    """Loads a module as its own loader does, and then changes it."""

    def __init__(self, own_loader: Loader):
        self.own_loader = own_loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The module as its own loader makes it."""
        return self.own_loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module, and changes it."""
        self.own_loader.exec_module(module)
        _CHANGES[module.__name__](module)


class ChangedModuleFinder(MetaPathFinder):
    """A finder for the modules in `_CHANGES`, which looks where Python's own finder does."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The origin of a module that is changed; None for all other modules, and for one that is not installed."""
        if fullname not in _CHANGES:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _ChangingLoader(spec.loader)
        return spec


def change_libraries() -> None:
    """Restores names and behaviour of libraries: in loaded modules at once, in others when they are loaded.

    Images are resized by the names of filters that Pillow had until 9, and texts measured by its calls. `json.loads`
    takes an encoding, which never had an effect, as until Python 3.8. `yaml.load` needs no loader, as until PyYAML 5;
    it then makes plain values. Tests compare a number of numpy with one of Python in double precision, as before numpy
    2.0. Later versions take and round the difference in the precision of numpy's number, although a test may ask for
    seven places, which float32 does not have.
    """
    for name, change in _CHANGES.items():
        if name in sys.modules:
            change(sys.modules[name])
    if not any(isinstance(finder, ChangedModuleFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, ChangedModuleFinder())


_CONVERSIONS = {"__int__": 16, "__float__": 18}
"""Conversions to numbers, with their indices in CPython's table of a type's arithmetic (`PyNumberMethods`)."""

_POINTER = ctypes.sizeof(ctypes.c_void_p)
_ARITHMETIC = object.__basicsize__ + 10 * _POINTER
"""The offset in bytes, in a type of CPython, of the address of its `PyNumberMethods` (`PyTypeObject.tp_as_number`)."""


class _WithoutConversions:
    """A class with arithmetic, but without conversions."""

    def __index__(self) -> int:
        return 0


class _WithConversions:
    """A class with the conversions, to which CPython gives functions that call them by name."""

    def __int__(self) -> int:
        return 0

    def __float__(self) -> float:
        return 0.0


def _slot(kind: type, place: int) -> ctypes.c_void_p:
    """The place where CPython keeps the function behind a conversion of a type."""
    table = ctypes.c_void_p.from_address(id(kind) + _ARITHMETIC).value or 0
    return ctypes.c_void_p.from_address(table + place * _POINTER)


def _refuses_numbers() -> bool:
    try:
        float(np.zeros(1))
    except TypeError:
        return True
    return False


def _of_one_element(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def convert_single_element(array: Any) -> Any:
        return convert(array.reshape(()) if array.ndim and array.size == 1 else array)

    return convert_single_element


def give_numbers() -> None:
    """Makes `float` and `int` accept arrays of one element and any dims, as they did before numpy 2.4.

    `float(np.array(loss))` and `"%f" % loss` are in most scripts, and `np.array` returns objects of numpy's own class,
    whose conversions can only be exchanged where CPython keeps them. Nothing is changed where arrays can be converted
    anyway, or where the conversions of two classes of known form are not found in that place.
    """
    if not _refuses_numbers():
        return
    if any(
        _slot(_WithoutConversions, place).value or not _slot(_WithConversions, place).value
        for place in _CONVERSIONS.values()
    ):
        return
    names = gc.get_referents(np.ndarray.__dict__)[0]
    for name, place in _CONVERSIONS.items():
        names[name] = _of_one_element(names[name])
        _slot(np.ndarray, place).value = _slot(_WithConversions, place).value
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(np.ndarray))


def _set_item(array: Any, *given: Any) -> None:
    *index, value = given
    array.flat[index[0] if index else 0] = value


_METHODS: dict[str, Callable[..., Any]] = {"tostring": np.ndarray.tobytes, "ptp": np.ptp, "itemset": _set_item}
"""Methods that arrays had before numpy 2.0, some until 2.3."""


def _of_bytes(of_text: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(of_text)
    def fromstring(string: Any, dtype: Any = float, count: int = -1, *, sep: str = "") -> Any:
        if sep:
            return of_text(string, dtype, count, sep=sep)
        held = string.encode("latin-1") if isinstance(string, str) else string
        return np.frombuffer(held, dtype, count).copy()

    return fromstring


def give_bytes() -> None:
    """Restores methods of arrays, and makes `np.fromstring` read bytes, as before numpy 2.3."""
    if missing := {name: method for name, method in _METHODS.items() if not hasattr(np.ndarray, name)}:
        gc.get_referents(np.ndarray.__dict__)[0].update(missing)
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(np.ndarray))
    try:
        np.fromstring(b"\0", "uint8")  # pyright: ignore[reportDeprecated]
    except ValueError:
        setattr(np, "fromstring", _of_bytes(np.fromstring))  # noqa: B010


_STRICT = ("numpy", "pstranspile")
"""Packages that rely on the errors of today's numpy."""


def _of_unequal_rows(make: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(make)
    def array(*given: Any, **named: Any) -> Any:
        try:
            return make(*given, **named)
        except ValueError as problem:
            typed = len(given) > 1 or named.get("dtype") is not None
            caller = str(sys._getframe(1).f_globals.get("__name__")).partition(".")[0]  # pyright: ignore[reportPrivateUsage]
            if caller in _STRICT:
                raise
            if named.get("copy") is False and "avoid copy" in str(problem):
                return make(*given, **{**named, "copy": None})
            if typed or "inhomogeneous" not in str(problem):
                raise
            return make(*given, **{**named, "dtype": object})

    return array


def give_unequal_rows() -> None:
    """Makes `np.array` and `np.asarray` accept lists whose rows have unequal lengths, as before numpy 1.24.

    Scripts keep sequences as `np.array([[1, 2], [3]])`. Calls with an element type are still refused. `copy=False`
    copies where it must, as before numpy 2.0.
    """
    try:
        np.array([[1, 2], [3]])
    except ValueError:
        for name in ("array", "asarray"):
            setattr(np, name, _of_unequal_rows(getattr(np, name)))


def _in_1d(ar1: Any, ar2: Any, assume_unique: bool = False, invert: bool = False) -> Any:
    return np.isin(np.ravel(ar1), ar2, assume_unique, invert)


def _as_floats(a: Any, dtype: Any = float) -> Any:
    return np.asarray(a, dtype)


def _sort_first_axis(a: Any) -> Any:
    return np.sort(a, axis=0)


_NUMPY: dict[str, Any] = {
    "int": int,
    "float": float,
    "bool": bool,
    "complex": complex,
    "object": object,
    "str": str,
    "long": int,
    "bool8": np.bool_,
    "float_": np.float64,
    "complex_": np.complex128,
    "string_": np.bytes_,
    "unicode_": np.str_,
    "Inf": np.inf,
    "Infinity": np.inf,
    "infty": np.inf,
    "PINF": np.inf,
    "NINF": -np.inf,
    "NaN": np.nan,
    "NAN": np.nan,
    "asfarray": _as_floats,
    "msort": _sort_first_axis,
    "product": np.prod,
    "cumproduct": np.cumprod,
    "sometrue": np.any,
    "alltrue": np.all,
    "round_": np.round,
    "row_stack": np.vstack,
    "asscalar": np.ndarray.item,
    "in1d": _in_1d,
    "trapz": getattr(np, "trapezoid", None) or getattr(np, "trapz", None),
}
"""Names in numpy before 2.0, with their values."""

_COLLECTIONS = (
    *("Callable", "Hashable", "Iterable", "Iterator", "Mapping", "MutableMapping", "MutableSequence", "Sequence"),
    *("Set", "Sized"),
)
"""Kinds of collections that `collections` had until Python 3.10."""


class ArgSpec(NamedTuple):
    """The result of `inspect.getargspec`."""

    args: list[str]
    varargs: str | None
    keywords: str | None
    defaults: tuple[Any, ...] | None


def getargspec(function: Callable[..., Any]) -> ArgSpec:
    """The arguments of a function. Raises ValueError for a function with keyword-only arguments."""
    found = inspect.getfullargspec(function)
    if found.kwonlyargs:
        raise ValueError(f"{function} has arguments that are given by name only")
    return ArgSpec(found.args, found.varargs, found.varkw, found.defaults)


_PYTHON: tuple[tuple[Any, str, Any], ...] = (
    (time, "clock", time.process_time),
    (inspect, "getargspec", getargspec),
    (fractions, "gcd", math.gcd),
    (threading.Thread, "isAlive", threading.Thread.is_alive),
    (base64, "encodestring", base64.encodebytes),
    (base64, "decodestring", base64.decodebytes),
)
"""Names of Python 3.7 and numpy 1 that later versions dropped: the module, the name, and its value."""


def _of_new_shape(reshape: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(reshape)
    def reshape_with_newshape(
        a: Any, shape: Any = None, order: Any = "C", *, newshape: Any = None, **options: Any
    ) -> Any:
        return reshape(a, newshape if shape is None else shape, order, **options)

    return reshape_with_newshape


def _of_sets(sample: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(sample)
    def sample_from_sets(population: Any, k: int, **options: Any) -> Any:
        several: Any = [*population] if isinstance(population, set | frozenset) else population
        return sample(several, k, **options)

    return sample_from_sets


def _by_numbers(shuffle: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(shuffle)
    def shuffle_by_numbers(x: Any, random: Callable[[], float] | None = None) -> None:
        if random is None:
            return shuffle(x)
        for last in range(len(x) - 1, 0, -1):
            other = int(random() * (last + 1))
            x[last], x[other] = x[other], x[last]

    return shuffle_by_numbers


_CALLS: tuple[tuple[Any, str, str, Callable[[Callable[..., Any]], Callable[..., Any]]], ...] = (
    (np, "reshape", "newshape", _of_new_shape),
    (random, "sample", "", _of_sets),
    (random, "shuffle", "random", _by_numbers),
)
"""Functions whose arguments have changed: the module, the function, the name of the dropped argument (if it has one),
and a function that wraps it to take both forms.
"""
_TAKING: list[Callable[..., Any]] = []
"""The functions that are wrapped in this process."""


def strtobool(val: str) -> int:
    """1 for y, yes, t, true, on and 1; 0 for n, no, f, false, off and 0. Raises ValueError for other words."""
    word = val.lower()
    if word in ("y", "yes", "t", "true", "on", "1"):
        return 1
    if word in ("n", "no", "f", "false", "off", "0"):
        return 0
    raise ValueError(f"invalid truth value {word!r}")


@total_ordering
class LooseVersion:
    """A version that is compared part by part, numbers and words."""

    def __init__(self, vstring: str):
        self.vstring = vstring
        parts = re.findall(r"\d+|[a-z]+", vstring)
        self.version: list[int | str] = [int(part) if part.isdigit() else part for part in parts]

    def __str__(self) -> str:
        return self.vstring

    def __hash__(self) -> int:
        return hash(tuple(self.version))

    def _parts(self, other: object) -> list[int | str] | None:
        if isinstance(other, str):
            return LooseVersion(other).version
        return other.version if isinstance(other, LooseVersion) else None

    def __eq__(self, other: object) -> bool:
        return self.version == self._parts(other)

    def __lt__(self, other: object) -> bool:
        parts = self._parts(other)
        if parts is None:
            return NotImplemented
        return self.version < parts  # pyright: ignore[reportOperatorIssue]  # words beside numbers: TypeError, as before


_DISTUTILS: dict[str, dict[str, Any]] = {
    "distutils": {"__version__": "3.7"},
    "distutils.util": {"strtobool": strtobool},
    "distutils.version": {"LooseVersion": LooseVersion},
    "distutils.spawn": {"find_executable": shutil.which},
}
"""The names that scripts use of `distutils`, which Python had until 3.11, by module."""


class Distutils(MetaPathFinder, Loader):
    """A finder and loader of `distutils`, used where no other finder has it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The origin of a module of `distutils`; None for all other modules."""
        found = fullname in _DISTUTILS
        return ModuleSpec(fullname, self, is_package=fullname == "distutils") if found else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """None, so that Python makes an empty module."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Puts the names into the module."""
        vars(module).update(_DISTUTILS[module.__name__])


def give_names() -> None:
    """Restores dropped names in Python's modules and numpy; existing names stay unchanged."""
    for name, value in _NUMPY.items():
        if name not in vars(np):
            setattr(np, name, value)
    for name in _COLLECTIONS:
        if name not in vars(collections):
            setattr(collections, name, getattr(collections.abc, name))
    for holder, name, value in _PYTHON:
        if name not in vars(holder):
            setattr(holder, name, value)
    for holder, name, argument, taking in _CALLS:
        function = getattr(holder, name)
        if function not in _TAKING and argument not in inspect.signature(function).parameters:
            setattr(holder, name, taking(function))
            _TAKING.append(getattr(holder, name))
    if not any(isinstance(finder, Distutils) for finder in sys.meta_path):
        sys.meta_path.append(Distutils())
