"""Fluid's `unique_name`: the counters for the names of variables and layers."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

from pstranspile.fluid.missing import names_of_fluid
from pstranspile.frontends.layers.draft import Names


class UniqueNameGenerator(Names):
    """Counters for names, with a prefix that every name gets."""

    def __init__(self, prefix: str | None = None):
        super().__init__()
        self.prefix = prefix or ""

    def mint(self, key: str) -> str:
        """The next name for `key`: `fc` gives fc_0, fc_1, ..."""
        return self.prefix + super().mint(key)

    __call__ = mint


_CURRENT = [UniqueNameGenerator()]


def generator() -> UniqueNameGenerator:
    """The counters in use."""
    return _CURRENT[0]


def generate(key: str) -> str:
    """The next name for `key`: `fc` gives fc_0, fc_1, ..."""
    return generator().mint(key)


def generate_with_ignorable_key(key: str) -> str:
    """The next name for `key`, for variables whose names have no meaning."""
    return generate(key)


class PreviousCounters(NamedTuple):
    """The previous counters, and None in the place of Fluid's checker of names in dygraph."""

    generator: UniqueNameGenerator
    para_name_checker: None = None


def switch(
    new_generator: UniqueNameGenerator | PreviousCounters | None = None, new_para_name_checker: None = None
) -> PreviousCounters:
    """Replaces the counters in use (default: by new ones); returns the previous ones, as the first of two values.

    The result can be passed back, as a whole or its first value alone, which is what Fluid before 1.8 returned.
    """
    before = PreviousCounters(_CURRENT[0])
    chosen = new_generator.generator if isinstance(new_generator, PreviousCounters) else new_generator
    _CURRENT[0] = chosen or UniqueNameGenerator()
    return before


@contextmanager
def guard(new_generator: UniqueNameGenerator | str | bytes | None = None) -> Generator[None]:
    """A context manager with other counters: the given ones, or new ones with a text as the prefix of all names."""
    if isinstance(new_generator, bytes):
        new_generator = new_generator.decode()
    if isinstance(new_generator, str):
        new_generator = UniqueNameGenerator(new_generator)
    before = switch(new_generator)
    try:
        yield
    finally:
        switch(before)


__getattr__ = names_of_fluid(__name__, globals())
