"""Fluid's `data_feeder`: converts samples of Python values to feeds for runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from pstranspile.fluid.graph.program import DEFAULTS
from pstranspile.fluid.graph.values import numpy_name
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.lod_tensor import LoDTensor
from pstranspile.fluid.missing import names_of_fluid


def convert_dtype(dtype: Any) -> str:
    """numpy's name of an element type."""
    return numpy_name(dtype)


def check_type(
    input: Any, input_name: str, expected_type: type | tuple[type, ...], op_name: str, extra_message: str = ""
) -> None:
    """Raises TypeError unless the argument of a layer is of one of these types."""
    if not isinstance(input, expected_type):
        types = expected_type if isinstance(expected_type, tuple) else (expected_type,)
        wanted = " or ".join(kind.__name__ for kind in types)
        raise TypeError(
            f"{op_name}: {input_name} must be {wanted}, not {type(input).__name__}. {extra_message}".rstrip(". ")
        )


def check_dtype(input_dtype: Any, input_name: str, expected_dtype: Any, op_name: str, extra_message: str = "") -> None:
    """Raises TypeError unless the element type of a layer's argument is one of `expected_dtype`."""
    name = numpy_name(input_dtype)
    if name not in expected_dtype:
        wanted = " or ".join(expected_dtype)
        raise TypeError(f"{op_name}: {input_name} must be of {wanted}, not of {name}. {extra_message}".rstrip(". "))


def check_variable_and_dtype(
    input: Any, input_name: str, expected_dtype: Any, op_name: str, extra_message: str = ""
) -> None:
    """Raises TypeError unless the argument of a layer is a variable of one of these element types."""
    check_type(input, input_name, Variable, op_name, extra_message)
    check_dtype(input.dtype, input_name, expected_dtype, op_name, extra_message)


class _Column:
    """The values of one variable in a batch."""

    def __init__(self, var: Variable):
        self.level, self.dtype = var.lod_level, numpy_name(var.dtype)
        self.shape = var.shape
        self.rows: list[Any] = []
        self.lengths: list[list[int]] = [[] for _ in range(self.level)]

    def add(self, value: Any) -> None:
        self._add(value, 0)

    def _add(self, value: Any, level: int) -> None:
        if level == self.level:
            self.rows.append(value)
            return
        self.lengths[level].append(len(value))
        for item in value:
            self._add(item, level + 1)

    def tensor(self) -> LoDTensor:
        """The values as one tensor; it is reshaped to the declared dims if at most one of them is unknown."""
        array = np.asarray(self.rows, self.dtype)
        if array.ndim != len(self.shape) and sum(dim < 0 for dim in self.shape) <= 1:
            array = array.reshape(self.shape)
        result = LoDTensor(array)
        if self.level:
            result.set_recursive_sequence_lengths(self.lengths)
        return result


class DataFeeder:
    """Converts lists of samples to feeds; a sample has one value for each variable."""

    def __init__(self, feed_list: Sequence[Variable | str], place: Any = None, program: Any = None):
        block = (program or DEFAULTS[0]).global_block()
        self.vars = [block.var(var) if isinstance(var, str) else var for var in feed_list]
        self.place = place

    def feed(self, iterable: Iterable[Any]) -> dict[str, LoDTensor]:
        """The samples as a feed: a tensor for each variable, by name. Raises ValueError for a sample with another
        number of values.
        """
        columns = [_Column(var) for var in self.vars]
        for sample in iterable:
            values = list(sample)
            if len(values) != len(columns):
                raise ValueError(f"a sample has {len(values)} values for {len(columns)} variables")
            for column, value in zip(columns, values, strict=True):
                column.add(value)
        return {var.name: column.tensor() for var, column in zip(self.vars, columns, strict=True)}

    def feed_parallel(self, iterable: Iterable[Any], num_places: int | None = None) -> Iterator[dict[str, LoDTensor]]:
        """The feeds of several devices."""
        return (self.feed(samples) for samples in iterable)

    def decorate_reader(
        self, reader: Any, multi_devices: bool, num_places: int | None = None, drop_last: bool = True
    ) -> Any:
        """A reader of feeds, from a reader of lists of samples."""

        def feeds() -> Iterator[dict[str, LoDTensor]]:
            return (self.feed(samples) for samples in reader())

        return feeds


__getattr__ = names_of_fluid(__name__, globals())
