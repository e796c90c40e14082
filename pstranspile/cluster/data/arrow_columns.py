"""Columns of Arrow as what inputs take. A column of lists is ragged, or has one width; several stand side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pstranspile.cluster.data.columns import Column, Input
from pstranspile.cluster.data.mapping import Mapped
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import Location
from pstranspile.runtime.values import Array


class Converted(NamedTuple):
    """The columns by input, and why rows can't be fed, by their number among the rows given."""

    columns: dict[str, Column]
    bad: Mapping[int, str]


def convert(table: Any, mapped: Sequence[Mapped], file: str) -> Converted:
    """The columns of a table of Arrow, of those rows that are good. Raises DiagnosticError for a wrong type."""
    numbers = np.arange(table.num_rows)
    bad: dict[int, str] = {}
    while True:
        made = [_Conversion(one, table, file) for one in mapped]
        columns = {one.input.name: conversion.column() for one, conversion in zip(mapped, made, strict=True)}
        wrong: dict[int, str] = {}
        for conversion in made:
            for row, reason in conversion.bad.items():
                wrong.setdefault(row, reason)
        if not wrong:
            return Converted(columns, dict(sorted(bad.items())))
        bad.update((int(numbers[row]), reason) for row, reason in wrong.items())
        good = np.ones(len(numbers), bool)
        good[list(wrong)] = False
        numbers = numbers[good]
        table = table.take(np.flatnonzero(good))


class _Conversion:
    """The column of one input; `bad` are the rows that have none."""

    def __init__(self, mapped: Mapped, table: Any, file: str):
        self.input = mapped.input
        self.names = mapped.columns
        self.table = table
        self.file = file
        self.bad: dict[int, str] = {}

    def column(self) -> Column:
        """What the input takes; rows that are bad have any values."""
        if self.input.levels:
            if len(self.names) > 1:
                self._refuse(f"{self.input.name} is ragged and takes one column, not {len(self.names)}")
            return self._ragged(self._array(self.names[0]), self.names[0])
        parts = [self._fixed(self._array(name), name) for name in self.names]
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        if whole.shape[1] != self.input.width:
            self._refuse(f"{self.input.name} takes {self.input.width} numbers, its columns have {whole.shape[1]}")
        return Column(whole.reshape(len(whole), *self.input.dims))

    def _array(self, name: str) -> Any:
        array = self.table.column(name).combine_chunks()
        if hasattr(array, "num_chunks"):
            import pyarrow

            array = pyarrow.concat_arrays(array.chunks) if array.num_chunks else pyarrow.array([], array.type)
        if hasattr(array, "dictionary_decode"):
            array = array.dictionary_decode()
        self._note(array, name, [])
        return array

    def _fixed(self, array: Any, name: str) -> Array:
        """Numbers [rows, width]."""
        from pyarrow import types

        if types.is_fixed_size_list(array.type):
            return self._numbers(_children(array), name, []).reshape(len(array), array.type.list_size)
        if not _is_list(array.type):
            return self._numbers(array, name, []).reshape(len(array), 1)
        sizes = _sizes(array)
        width = self.input.width - (len(self.names) - 1)
        for row in np.flatnonzero(sizes != width).tolist():
            self.bad.setdefault(row, f"{name} has {sizes[row]} numbers, {self.input.name} takes {width}")
        if self.bad:
            return np.zeros((len(array), width), self.input.dtype)
        return self._numbers(array.flatten(), name, [np.arange(0, len(array) * width + 1, width)]).reshape(-1, width)

    def _ragged(self, array: Any, name: str) -> Column:
        """Lists in lists, as deep as the input's LoD."""
        from pyarrow import types

        offsets: list[Array] = []
        for level in range(self.input.levels):
            if level == 0 and not _is_list(array.type):
                offsets.append(np.arange(len(array) + 1))
                continue
            if not _is_list(array.type):
                self._refuse(f"{self.input.name} has {self.input.levels} LoD levels, {name} has lists of depth {level}")
            offsets.append(np.concatenate([[0], np.cumsum(_sizes(array))]))
            array = array.flatten()
            self._note(array, name, offsets)
        width = self.input.width
        if types.is_fixed_size_list(array.type):
            if array.type.list_size != width:
                self._refuse(f"{self.input.name} takes {width} numbers, those of {name} have {array.type.list_size}")
            values = self._numbers(_children(array), name, [*offsets, np.arange(len(array) + 1) * width])
        else:
            values = self._numbers(array, name, offsets)
            if width > 1:
                self._require_whole(offsets, name)
                offsets[-1] = offsets[-1] // width
        if self.bad:
            values = np.zeros((int(offsets[-1][-1]), *self.input.dims), self.input.dtype)
        return Column(values.reshape(-1, *self.input.dims), tuple(offsets))

    def _require_whole(self, offsets: Sequence[Array], name: str) -> None:
        wrong = np.flatnonzero(np.diff(offsets[-1]) % self.input.width)
        for row in _rows(wrong, offsets[:-1]):
            self.bad.setdefault(row, f"{name} has a number of values that is no multiple of {self.input.width}")

    def _numbers(self, array: Any, name: str, offsets: Sequence[Array]) -> Array:
        """The numbers of an array as the input's; `offsets` say to which rows they belong."""
        self._note(array, name, offsets)
        if array.null_count:
            array = array.fill_null(False if str(array.type) == "bool" else 0) if _is_number(array.type) else array
        if not _is_number(array.type):
            self._refuse(f"{self.input.name} is {self.input.dtype}, the column {name} is {array.type}")
        values = array.to_numpy(zero_copy_only=False)
        wanted = np.dtype(self.input.dtype)
        if wanted.kind in "iu":
            if values.dtype.kind == "f":
                self._refuse(f"{self.input.name} is {self.input.dtype}, the column {name} is {array.type}")
            self._require_range(values, wanted, name, offsets)
        elif wanted.kind == "b" and values.dtype.kind != "b":
            self._refuse(f"{self.input.name} is bool, the column {name} is {array.type}")
        with np.errstate(over="ignore"):  # beyond a float are infinite ones, as in text
            return values.astype(wanted, copy=False)

    def _require_range(self, values: Array, wanted: Any, name: str, offsets: Sequence[Array]) -> None:
        """Notes rows with numbers beyond the input's type; ids of 64 bits keep their bits, as in Fluid."""
        if values.dtype.kind == "b" or values.dtype == wanted or (values.dtype, wanted) == (np.uint64, np.int64):
            return
        limits = np.iinfo(wanted)
        for row in _rows(np.flatnonzero((values < limits.min) | (values > limits.max)), offsets):
            self.bad.setdefault(row, f"{name} holds a number that {self.input.dtype} can't")

    def _note(self, array: Any, name: str, offsets: Sequence[Array]) -> None:
        """Notes rows with missing values."""
        if array.null_count:
            missing = np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))
            for row in _rows(missing, offsets):
                self.bad.setdefault(row, f"{name} has no value")

    def _refuse(self, message: str) -> None:
        raise DiagnosticError([error("data-column", message, Location(self.file))])


def _children(array: Any) -> Any:
    """The elements of lists of one size; those of missing lists, too."""
    size = array.type.list_size
    return array.values.slice(array.offset * size, len(array) * size)


def _sizes(array: Any) -> Array:
    import pyarrow.compute

    return pyarrow.compute.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False).astype("int64")


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return types.is_list(kind) or types.is_large_list(kind)


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)


def _rows(elements: Array, offsets: Sequence[Array]) -> list[int]:
    """The rows that elements belong to."""
    for level in reversed(offsets):
        elements = np.searchsorted(level, elements, side="right") - 1
    return np.unique(elements).tolist()


def require_numbers(one: Input, name: str, kind: Any, file: str) -> None:
    """Raises DiagnosticError for a column of another type than numbers, lists of them, or numbers by a dictionary."""
    from pyarrow import types

    inner = kind
    while _is_list(inner) or types.is_fixed_size_list(inner) or types.is_dictionary(inner):
        inner = inner.value_type
    if not _is_number(inner):
        message = f"{one.name} is {one.dtype}, the column {name} is {kind}"
        raise DiagnosticError([error("data-column", message, Location(file))])


def type_of(one: Input) -> Any:
    """The type of Arrow for the numbers of an input."""
    import pyarrow

    return pyarrow.from_numpy_dtype(np.dtype(one.dtype))
