"""What modules had when Fluid's scripts were written, given to them once a script imports them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import numpy as np

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
