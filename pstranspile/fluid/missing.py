"""Names of Fluid that are not here: they can be imported, and fail where they are used."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any, NoReturn


class NotHere(NotImplementedError):
    """Something of Fluid's interface that this package does not have."""


def refused(name: str, instead: str) -> NotHere:
    """The error for something of Fluid's that is refused by name; `instead` says what to do."""
    return NotHere(f"{name} is not part of pstranspile.fluid: {instead}")


class Missing:
    """Stands for a name of Fluid; every use raises NotHere."""

    def __init__(self, name: str, known: Iterable[str]):
        self.__dict__["_name"] = name
        self.__dict__["_known"] = tuple(known)

    def _fail(self) -> NoReturn:
        name: str = self.__dict__["_name"]
        last = name.rpartition(".")[2]
        known: tuple[str, ...] = self.__dict__["_known"]
        near = get_close_matches(last, known, 1, 0.5)
        hint = f"; the nearest name that is there: {near[0]}" if near else ""
        raise NotHere(f"Fluid's {name} is not part of pstranspile.fluid{hint}")

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Raises NotHere."""
        self._fail()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._fail()

    def __setattr__(self, name: str, value: object) -> None:
        self._fail()

    def __mro_entries__(self, _bases: object) -> Any:
        self._fail()

    def __repr__(self) -> str:
        return f"<{self.__dict__['_name']}, which is not part of pstranspile.fluid>"


@cache
def fluid_names() -> dict[str, tuple[str, ...]]:
    """The public names of Fluid 1.8.5 by module, modules without `paddle.fluid` in front (`layers`, `io`, ...)."""
    text = files(__name__.rpartition(".")[0]).joinpath("names.txt").read_text(encoding="utf-8")
    lines = (line.partition(":") for line in text.splitlines() if line and not line.startswith("#"))
    return {module.strip(): tuple(names.split()) for module, _, names in lines}


def names_of_fluid(module: str, known: dict[str, Any]) -> Callable[[str], Any]:
    """A module's `__getattr__`: names of Fluid's module that are not in ours give a Missing, others an AttributeError.

    `module` is the name of ours, `known` its globals.
    """
    short = module.removeprefix(__name__.rpartition(".")[0]).lstrip(".")

    def get(name: str) -> Any:
        if name in fluid_names().get(short or "fluid", ()):
            dotted = f"fluid.{short}.{name}" if short else f"fluid.{name}"
            return Missing(dotted, [key for key in known if not key.startswith("_")])
        near = get_close_matches(name, [key for key in known if not key.startswith("_")], 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise AttributeError(f"module {module} has no attribute {name!r}{hint}")

    return get
