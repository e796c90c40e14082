"""Modules imported at their first use, so that commands that don't need them start fast."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


class LazyModule(ModuleType):
    """A stand-in for a module; the real one is imported when an attribute is first asked for.

    Every attribute found is kept on the stand-in, so that later uses cost an ordinary lookup.
    """

    def __getattr__(self, name: str) -> Any:
        value = getattr(importlib.import_module(self.__name__), name)
        self.__dict__[name] = value
        return value


def lazy_import(name: str) -> Any:
    """The module called `name`, imported when first used; pair it with a TYPE_CHECKING import for types."""
    return LazyModule(name)
