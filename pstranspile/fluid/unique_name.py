"""Fluid's `unique_name`: the counters behind the names of variables and layers."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

from pstranspile.fluid.missing import names_of_fluid
from pstranspile.frontends.layers.draft import Names


class UniqueNameGenerator(Names):
    """Counters, with a prefix for every name that is made."""

    def __init__(self, prefix: str | None = None):
        super().__init__()
        self.prefix = prefix or ""

    def mint(self, key: str) -> str:
        """The next name of `key`: `fc` gives fc_0, fc_1, ..."""
        return self.prefix + super().mint(key)

    __call__ = mint


_CURRENT = [UniqueNameGenerator()]


def generator() -> UniqueNameGenerator:
    """The counters in use."""
    return _CURRENT[0]


def generate(key: str) -> str:
    """The next name of `key`: `fc` gives fc_0, fc_1, ..."""
    return generator().mint(key)


def generate_with_ignorable_key(key: str) -> str:
    """The next name of `key`, for variables whose names tell nothing."""
    return generate(key)


class Switched(NamedTuple):
    """The counters that were in use, and where Fluid has a checker of names of dygraph."""

    generator: UniqueNameGenerator
    para_name_checker: None = None


def switch(new_generator: UniqueNameGenerator | Switched | None = None, new_para_name_checker: None = None) -> Switched:
    """Goes on with other counters (default: fresh ones); gives those that were in use, as the first of two values.

    It takes what it gives, also whole, as before Fluid 1.8, where it gave the counters alone.
    """
    before = Switched(_CURRENT[0])
    chosen = new_generator.generator if isinstance(new_generator, Switched) else new_generator
    _CURRENT[0] = chosen or UniqueNameGenerator()
    return before


@contextmanager
def guard(new_generator: UniqueNameGenerator | str | bytes | None = None) -> Generator[None]:
    """Other counters for the block: those given, or fresh ones with a text as the prefix of all names."""
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
