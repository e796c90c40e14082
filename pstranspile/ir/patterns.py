"""Regular expressions of modules, which cost nothing until they are used."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import AnyStr, Generic


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
