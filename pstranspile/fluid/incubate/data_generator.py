"""Fluid's data generators: scripts that write the lines of data sets."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from numbers import Real
from typing import Any, cast

from pstranspile.fluid.missing import names_of_fluid

Sample = Any
"""The pairs of a variable's name and its list of values, in the order of the variables."""


class DataGenerator:
    """The base class of generators; a subclass defines in `generate_sample` the samples for a line of its input."""

    def __init__(self) -> None:
        self.batch_size_ = 32

    def set_batch(self, batch_size: int) -> None:
        """Sets the number of samples that `generate_batch` gets at a time (default: 32)."""
        self.batch_size_ = batch_size

    def generate_sample(self, line: str | None) -> Callable[[], Iterable[Sample]]:
        """A function that returns the samples for a line, which is None if there is no input."""
        raise NotImplementedError("generate_sample says what a line gives: write it in a subclass")

    def generate_batch(self, samples: list[Sample]) -> Callable[[], Iterable[Sample]]:
        """A function that returns samples made from a batch of samples; by default the same ones."""
        return lambda: samples

    def run_from_stdin(self) -> None:
        """Writes the lines of the samples for standard input."""
        self._write(sample for line in sys.stdin for sample in self.generate_sample(line)())

    def run_from_memory(self) -> None:
        """Writes the lines of the samples that are generated without input."""
        self._write(iter(self.generate_sample(None)()))

    def _write(self, samples: Iterator[Sample]) -> None:
        held: list[Sample] = []
        for sample in samples:
            if sample is not None:
                held.append(sample)
            if len(held) == self.batch_size_:
                self._write_batch(held)
                held = []
        self._write_batch(held)

    def _write_batch(self, samples: list[Sample]) -> None:
        for sample in self.generate_batch(samples)() if samples else ():
            sys.stdout.write(self._gen_str(sample))

    def _gen_str(self, line: Sample) -> str:
        """The line for a sample."""
        raise NotImplementedError("take MultiSlotDataGenerator or MultiSlotStringDataGenerator")


class MultiSlotStringDataGenerator(DataGenerator):
    """Generates samples of texts, which are written unchanged."""

    def _gen_str(self, line: Sample) -> str:
        """The line for a sample: for each variable the number of its values, then the values. Raises ValueError for a
        variable without values.
        """
        words: list[str] = []
        for name, values in _pairs_of(line):
            if not len(values):
                raise ValueError(f"{name} has no values")
            words += [str(len(values)), *map(str, values)]
        return " ".join(words) + "\n"


def _pairs_of(sample: Sample) -> list[tuple[str, Any]]:
    """The names and values of a sample. Raises ValueError if it is not a list or tuple of such pairs."""
    if isinstance(sample, zip):
        sample = list(cast("Iterable[Any]", sample))
    if not isinstance(sample, (list, tuple)):
        raise ValueError(f"a sample is a list of names and values, as [('words', [3, 8])], not {sample!r}")
    pairs: list[tuple[str, Any]] = []
    for pair in cast("Iterable[Any]", sample):
        name, values = pair
        if not isinstance(name, str):
            raise ValueError(f"the name of a variable is a text, not {name!r}")
        pairs.append((name, values))
    return pairs


class MultiSlotDataGenerator(MultiSlotStringDataGenerator):
    """Generates samples of numbers. The first sample determines the variables of all samples, and their order."""

    _names: list[str] | None = None

    def _gen_str(self, line: Sample) -> str:
        """The line for a sample. Raises ValueError for other variables than in the first sample, and for values that
        are not lists of numbers.
        """
        pairs = _pairs_of(line)
        names = [name for name, _ in pairs]
        if self._names is None:
            self._names = names
        if names != self._names:
            raise ValueError(f"a sample has the variables {names}, and the first had {self._names}")
        for name, values in pairs:
            if not isinstance(values, list):
                raise ValueError(f"the values of {name} are a {type(values).__name__}, not a list")
            for value in cast("list[Any]", values):
                if isinstance(value, bool) or not isinstance(value, Real):
                    raise ValueError(f"{name} holds {value!r}, which is no int or float")
        return super()._gen_str(pairs)


__getattr__ = names_of_fluid(__name__, globals())
