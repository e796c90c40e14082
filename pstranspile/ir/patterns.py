"""Regular expressions and named tuples of modules: a command imports hundreds of modules, and uses little of each."""

from __future__ import annotations

import re
import sys
from collections import namedtuple
from collections.abc import Callable, Iterator
from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, Any, AnyStr, Generic, cast


class Pattern(Generic[AnyStr]):
    """A regular expression that is compiled when it is first used.

    A command imports hundreds of modules and uses few of their expressions; compiling all of them would take a tenth
    of the time in which it starts. The methods are those of `re.Pattern`, and a wrong expression raises `re.error` at
    its first use.
    """

    __slots__ = ("_compiled", "flags", "text")

    def __init__(self, text: AnyStr, flags: int = 0):
        self.text, self.flags = text, flags
        self._compiled: re.Pattern[AnyStr] | None = None

    def compiled(self) -> re.Pattern[AnyStr]:
        """The compiled expression, for loops in which a call more counts."""
        if self._compiled is None:
            self._compiled = re.compile(self.text, self.flags)
        return self._compiled

    def match(self, text: AnyStr, start: int = 0, end: int = sys.maxsize) -> re.Match[AnyStr] | None:
        """The match that begins at `start` and ends at `end` or before, or None."""
        return self.compiled().match(text, start, end)

    def fullmatch(self, text: AnyStr) -> re.Match[AnyStr] | None:
        """The match of the whole text, or None."""
        return self.compiled().fullmatch(text)

    def search(self, text: AnyStr, start: int = 0, end: int = sys.maxsize) -> re.Match[AnyStr] | None:
        """The first match that begins at `start` or later and ends at `end` or before, or None."""
        return self.compiled().search(text, start, end)

    def finditer(self, text: AnyStr, start: int = 0) -> Iterator[re.Match[AnyStr]]:
        """The matches that do not overlap, from `start` on."""
        return self.compiled().finditer(text, start)

    def findall(self, text: AnyStr) -> list[AnyStr]:
        """The text of each match, or of its one group. Expressions with several groups are for `finditer`."""
        return self.compiled().findall(text)

    def split(self, text: AnyStr) -> list[AnyStr]:
        """The text between the matches, and what their groups hold."""
        return self.compiled().split(text)

    def sub(self, replacement: AnyStr | Callable[[re.Match[AnyStr]], AnyStr], text: AnyStr, count: int = 0) -> AnyStr:
        """The text with the first `count` matches replaced; with 0, all of them."""
        return self.compiled().sub(replacement, text, count)


@cache
def _tuple_with(fields: int) -> Any:
    """A named tuple with this many fields, which is compiled once and whose parts others take over."""
    names = " ".join(f"field_{number}" for number in range(fields))
    return namedtuple(f"With{fields}", names)  # pyright: ignore[reportUntypedNamedTuple]  # no names are known


def _replace(self: Any, /, **values: Any) -> Any:
    """A copy with other values for the fields that are given."""
    replaced = self._make(map(values.pop, self._fields, self))
    if values:
        raise ValueError(f"Got unexpected field names: {list(values)!r}")
    return replaced


def _repr(self: Any) -> str:
    """The text of a call that gives the value."""
    fields = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True))
    return f"{type(self).__name__}({fields})"


def _class_of(cls: Any, kinds: Any) -> Any:
    """The generic class with kinds in place of its variables."""
    return cast("Any", super)(tuple, cls).__class_getitem__(kinds)


class _Definition(type):
    """Makes the class of each definition, which is then a plain subclass of `tuple`, with `type` as its own class."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        kinds: dict[str, str] = namespace.get("__annotations__", {})
        fields = tuple(kinds)
        defaults = {field: namespace.pop(field) for field in fields if field in namespace}
        if tuple(defaults) != fields[len(fields) - len(defaults) :]:
            raise TypeError(f"{name}: a field without a default follows one that has a default")
        alike = _tuple_with(len(fields))
        code = alike.__new__.__code__.replace(co_varnames=("_cls", *fields))
        new = FunctionType(code, alike.__new__.__globals__, "__new__", tuple(defaults.values()))
        new.__qualname__, new.__annotations__ = f"{name}.__new__", kinds
        own: dict[str, Any] = {
            "__slots__": (),
            "__new__": new,
            "__match_args__": fields,
            "__getnewargs__": alike.__getnewargs__,
            "__replace__": _replace,
            "_fields": fields,
            "_field_defaults": defaults,
            "_make": alike.__dict__["_make"],
            "_replace": _replace,
            "_asdict": alike._asdict,
        }
        if taken := own.keys() & namespace.keys():
            raise TypeError(f"{name}: a named tuple has its own {', '.join(sorted(taken))}")
        if Generic in bases:  # `tuple` comes first, and has another one
            own["__class_getitem__"] = classmethod(_class_of)
        own |= {field: alike.__dict__[other] for field, other in zip(fields, alike._fields, strict=True)}
        parents = tuple(tuple if base is _Defined else base for base in bases)
        return type(name, parents, {"__repr__": _repr, **namespace, **own})


_Defined: Any = type.__new__(_Definition, "NamedTuple", (), {})
"""What stands for `tuple` among the bases of a class while it is defined."""


class _NamedTuple:
    """`typing.NamedTuple` for modules with `from __future__ import annotations`, at a tenth of its time.

    `typing` compiles a function and the type of every field as a class is defined, which is a sixth of the time in
    which a command starts. Here the functions are those of any other named tuple with as many fields, under other
    names, and types stay the text that they are. All that a named tuple has, and what it gives, is the same.
    """

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (_Defined,)


if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    NamedTuple = _NamedTuple()
