"""Names that Python and numpy had when Fluid's scripts were written."""

from __future__ import annotations

import base64
import collections
import collections.abc
import fractions
import inspect
import math
import random
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import total_ordering, wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np


def _in_1d(ar1: Any, ar2: Any, assume_unique: bool = False, invert: bool = False) -> Any:
    return np.isin(np.ravel(ar1), ar2, assume_unique, invert)


def _as_floats(a: Any, dtype: Any = float) -> Any:
    return np.asarray(a, dtype)


def _sorted(a: Any) -> Any:
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
    "msort": _sorted,
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
"""Names of numpy before 2.0, by what they stood for."""

_COLLECTIONS = (
    *("Callable", "Hashable", "Iterable", "Iterator", "Mapping", "MutableMapping", "MutableSequence", "Sequence"),
    *("Set", "Sized"),
)
"""Kinds of collections that `collections` had until Python 3.10."""


class ArgSpec(NamedTuple):
    """What `inspect.getargspec` told of a function."""

    args: list[str]
    varargs: str | None
    keywords: str | None
    defaults: tuple[Any, ...] | None


def getargspec(function: Callable[..., Any]) -> ArgSpec:
    """The arguments of a function that has no keyword-only ones. Raises ValueError for one that has."""
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
"""Names of Python 3.7 and numpy 1 that went later."""


def _of_new_shape(reshape: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(reshape)
    def reshaped(a: Any, shape: Any = None, order: Any = "C", *, newshape: Any = None, **options: Any) -> Any:
        return reshape(a, newshape if shape is None else shape, order, **options)

    return reshaped


def _of_sets(sample: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(sample)
    def sampled(population: Any, k: int, **options: Any) -> Any:
        several: Any = [*population] if isinstance(population, set | frozenset) else population
        return sample(several, k, **options)

    return sampled


def _by_numbers(shuffle: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(shuffle)
    def shuffled(x: Any, random: Callable[[], float] | None = None) -> None:
        if random is None:
            return shuffle(x)
        for last in range(len(x) - 1, 0, -1):
            other = int(random() * (last + 1))
            x[last], x[other] = x[other], x[last]

    return shuffled


_CALLS: tuple[tuple[Any, str, str, Callable[[Callable[..., Any]], Callable[..., Any]]], ...] = (
    (np, "reshape", "newshape", _of_new_shape),
    (random, "sample", "", _of_sets),
    (random, "shuffle", "random", _by_numbers),
)
"""Functions that took other arguments: their module, the argument that went (if it had a name), what takes both."""
_TAKING: list[Callable[..., Any]] = []
"""Those that take both in this process."""


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
    """A version whose parts, numbers and words, are compared one by one."""

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
"""What scripts take of `distutils`, which Python had until 3.11."""


class Distutils(MetaPathFinder, Loader):
    """Finds `distutils` where nothing else does."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The origin of a module of `distutils`; None for all other modules."""
        found = fullname in _DISTUTILS
        return ModuleSpec(fullname, self, is_package=fullname == "distutils") if found else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """None: an empty module is made."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Puts the names into the module."""
        vars(module).update(_DISTUTILS[module.__name__])


def give_names() -> None:
    """Gives Python's modules and numpy the names that they had; what is still there stays as it is."""
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
