"""What arrays did when Fluid's scripts were written: those of one element are numbers, those of lists and bytes are
made.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import numpy as np

# What modules had when Fluid's scripts were written, given to them once a script imports them.

_FILTERS = {"ANTIALIAS": "LANCZOS", "LINEAR": "BILINEAR", "CUBIC": "BICUBIC"}
"""Names of filters that Pillow had until 9, and those that it has for the same things."""


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
    def compared(case: Any, first: Any, second: Any, *rest: Any, **options: Any) -> None:
        if type(first) is not type(second):
            first, second = (float(x) if isinstance(x, np.floating) else x for x in (first, second))
        compare(case, first, second, *rest, **options)

    return compared


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
    def without(read: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(read)
        def taken(text: Any, *, encoding: Any = None, **options: Any) -> Any:
            return read(text, **options)

        return taken

    held = vars(module)
    for name in ("load", "loads"):
        if not hasattr(held[name], "__wrapped__"):
            held[name] = without(held[name])


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
"""Module -> what is done to it after it was loaded."""


class _Changing(Loader):
    """Loads a module as its own loader does, and then changes it."""

    def __init__(self, own: Loader):
        self.own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The module as its own loader makes it."""
        return self.own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module, and changes it."""
        self.own.exec_module(module)
        _CHANGES[module.__name__](module)


class Changed(MetaPathFinder):
    """Finds the modules that are changed, where Python's own finder does."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The origin of such a module; None for all other modules, and where it is not installed."""
        if fullname not in _CHANGES:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Changing(spec.loader)
        return spec


def change_libraries() -> None:
    """Gives modules what they had, those that are loaded at once, others when they are.

    Images are resized by the names of filters that Pillow had until 9, and texts measured by its calls. `json.loads`
    takes an encoding, which never changed anything, as until Python 3.8. `yaml.load` needs no loader, as until
    PyYAML 5; it then makes plain values. Tests compare a number of numpy with one of
    Python in double precision, as before numpy 2.0. Since then the difference is taken, and rounded, in the precision
    of numpy's number: seven places of float32 are more than it has.
    """
    for name, change in _CHANGES.items():
        if name in sys.modules:
            change(sys.modules[name])
    if not any(isinstance(finder, Changed) for finder in sys.meta_path):
        sys.meta_path.insert(0, Changed())


_CONVERSIONS = {"__int__": 16, "__float__": 18}
"""Conversions to numbers, by their place in CPython's table of a type's arithmetic (`PyNumberMethods`)."""

_POINTER = ctypes.sizeof(ctypes.c_void_p)
_ARITHMETIC = object.__basicsize__ + 10 * _POINTER
"""The offset at which CPython's types keep the address of that table (`PyTypeObject.tp_as_number`), in bytes."""


class _Without:
    """Has arithmetic, but no conversion."""

    def __index__(self) -> int:
        return 0


class _With:
    """Has the conversions, which CPython finds by their names."""

    def __int__(self) -> int:
        return 0

    def __float__(self) -> float:
        return 0.0


def _slot(kind: type, place: int) -> ctypes.c_void_p:
    """The function behind a conversion of a type, where CPython keeps it."""
    table = ctypes.c_void_p.from_address(id(kind) + _ARITHMETIC).value or 0
    return ctypes.c_void_p.from_address(table + place * _POINTER)


def _refuses_numbers() -> bool:
    try:
        float(np.zeros(1))
    except TypeError:
        return True
    return False


def _of_one_element(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def converted(array: Any) -> Any:
        return convert(array.reshape(()) if array.ndim and array.size == 1 else array)

    return converted


def give_numbers() -> None:
    """Lets `float` and `int` take arrays of one element and any dims, as they did before numpy 2.4.

    `float(np.array(loss))` and `"%f" % loss` stand in most scripts, and what `np.array` gives is of numpy's own class,
    whose conversions can only be exchanged where CPython keeps them. Nothing is changed where arrays are numbers
    anyway, or where the conversions of two classes of known form are not found in that place.
    """
    if not _refuses_numbers():
        return
    if any(_slot(_Without, place).value or not _slot(_With, place).value for place in _CONVERSIONS.values()):
        return
    names = gc.get_referents(np.ndarray.__dict__)[0]
    for name, place in _CONVERSIONS.items():
        names[name] = _of_one_element(names[name])
        _slot(np.ndarray, place).value = _slot(_With, place).value
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
    """Gives arrays the methods that they had, and lets `np.fromstring` read bytes, as before numpy 2.3."""
    if missing := {name: method for name, method in _METHODS.items() if not hasattr(np.ndarray, name)}:
        gc.get_referents(np.ndarray.__dict__)[0].update(missing)
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(np.ndarray))
    try:
        np.fromstring(b"\0", "uint8")  # pyright: ignore[reportDeprecated]
    except ValueError:
        setattr(np, "fromstring", _of_bytes(np.fromstring))  # noqa: B010


_STRICT = ("numpy", "pstranspile")
"""Packages that go by what today's numpy refuses."""


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
    """Lets `np.array` and `np.asarray` make arrays of lists where rows have unequal lengths, as before numpy 1.24.

    `np.array([[1, 2], [3]])` is how scripts keep sequences. Calls that say an element type are refused as ever.
    `copy=False` copies where it must, as before numpy 2.0.
    """
    try:
        np.array([[1, 2], [3]])
    except ValueError:
        for name in ("array", "asarray"):
            setattr(np, name, _of_unequal_rows(getattr(np, name)))
