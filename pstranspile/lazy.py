"""Modules imported at their first use, so that commands that don't need them start fast."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


class LazyModule(ModuleType):
    """A stand-in for a module; the real one is imported when an attribute is first asked for.

    From then on it holds what the module holds, as a plain module, which the interpreter looks into fastest.
    """

    def __getattr__(self, name: str) -> Any:
        module = importlib.import_module(self.__name__)
        value = getattr(module, name)
        if getattr(module.__spec__, "_initializing", False):  # it is being imported, and does not hold everything yet
            return value
        self.__dict__.update(vars(module))
        object.__setattr__(self, "__class__", ModuleType)
        return value


def lazy_import(name: str) -> Any:
    """The module called `name`, imported when first used; pair it with a TYPE_CHECKING import for types."""
    return LazyModule(name)
