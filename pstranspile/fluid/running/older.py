"""Numbers of numpy as they were when Fluid's scripts were written: arrays of one element, comparisons in tests."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import numpy as np

_CONVERSIONS = {"__int__": 16, "__float__": 18}
"""Conversions to numbers, by their place in CPython's table of a type's arithmetic (`PyNumberMethods`)."""

_POINTER = ctypes.sizeof(ctypes.c_void_p)
_ARITHMETIC = object.__basicsize__ + 10 * _POINTER
"""Where CPython's types keep the address of that table (`PyTypeObject.tp_as_number`), in bytes."""


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


class _Comparing(MetaPathFinder):
    """Finds `unittest.case`, whose comparisons then take numbers as `give_comparisons` says."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where the module comes from; None for all others."""
        spec = PathFinder.find_spec(fullname, path) if fullname == "unittest.case" else None
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def loaded(module: ModuleType) -> None:
                load(module)
                _compare_numbers(module.TestCase)

            spec.loader.exec_module = loaded  # pyright: ignore[reportAttributeAccessIssue]
        return spec


def _compare_numbers(cases: Any) -> None:
    for name in ("assertAlmostEqual", "assertNotAlmostEqual"):
        setattr(cases, name, _of_doubles(getattr(cases, name)))


def _of_doubles(compare: Callable[..., None]) -> Callable[..., None]:
    @wraps(compare)
    def compared(case: Any, first: Any, second: Any, *rest: Any, **options: Any) -> None:
        if type(first) is not type(second):
            first, second = (float(x) if isinstance(x, np.floating) else x for x in (first, second))
        compare(case, first, second, *rest, **options)

    return compared


def give_comparisons() -> None:
    """Has tests compare a number of numpy with one of Python in double precision, as they did before numpy 2.0.

    Since then the difference is taken, and rounded, in the precision of numpy's number: seven places of float32 are
    more than it has. Raised are the same errors as by `unittest` itself.
    """
    case = sys.modules.get("unittest.case")
    if case is not None:
        if not hasattr(case.TestCase.assertAlmostEqual, "__wrapped__"):
            _compare_numbers(case.TestCase)
    elif not any(isinstance(finder, _Comparing) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Comparing())
