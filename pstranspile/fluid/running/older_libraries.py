"""Names that other libraries had when Fluid's scripts were written, given once a script imports the library."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_RENAMED: Mapping[str, Mapping[str, str]] = {
    "PIL.Image": {"ANTIALIAS": "LANCZOS", "LINEAR": "BILINEAR", "CUBIC": "BICUBIC"},
}
"""Module -> a name that it had (Pillow until 9), and the one that it has for the same thing."""


class _Renaming(Loader):
    """Loads a module as its own loader does, and then gives it the names that it had."""

    def __init__(self, own: Loader):
        self.own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The module as its own loader makes it."""
        return self.own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module; a name that is still there stays as it is."""
        self.own.exec_module(module)
        held = vars(module)
        for older, name in _RENAMED[module.__name__].items():
            if older not in held and name in held:
                held[older] = held[name]


class Renamed(MetaPathFinder):
    """Finds the modules that have names to be given, where Python's own finder does."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where such a module comes from; None for all other modules, and where it is not installed."""
        if fullname not in _RENAMED:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Renaming(spec.loader)
        return spec


def give_library_names() -> None:
    """Has modules that are imported from now on have the names that they had."""
    if not any(isinstance(finder, Renamed) for finder in sys.meta_path):
        sys.meta_path.insert(0, Renamed())
