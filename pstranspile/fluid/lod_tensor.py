"""Ragged tensors under Fluid's names, and functions that make them."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import numpy as np

from pstranspile.fluid.graph.values import dtype_of, numpy_name, vartype_of
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.runtime.values import LoDTensor as CoreLoDTensor
from pstranspile.runtime.values import tensor_text


class LoDTensor:
    """A tensor whose rows may be grouped into sequences; `set` and `set_lod` fill it.

    It is made from an array and offsets, or, as scripts do, from a list with the lengths of the sequences of each
    level.
    """

    def __init__(self, data: Any = None, lod: Sequence[Sequence[int]] = ()):
        if isinstance(data, list):
            lod, data = _offsets(data), None  # pyright: ignore[reportUnknownArgumentType]
        self._data = None if data is None else np.asarray(data)
        self._lod = [list(map(int, level)) for level in lod]
        self._wanted_dims: list[int] | None = None
        self.place: Any = None

    @property
    def data(self) -> Any:
        """The elements. Raises RuntimeError before they are set."""
        if self._data is None:
            raise RuntimeError("the tensor holds nothing yet")
        return self._data

    def set(self, data: Any, place: Any = None) -> None:
        """Sets the elements to a copy of `data`."""
        self._data, self.place = np.array(data), place

    def _is_initialized(self) -> bool:
        """Whether the tensor has elements."""
        try:
            return self.data is not None
        except RuntimeError:
            return False

    def _get_dims(self) -> list[int]:
        """The dims of the elements, or the dims that were set for later elements."""
        return list(self.data.shape) if self._is_initialized() else list(self._wanted_dims or [0])

    def _set_dims(self, dims: Sequence[int]) -> None:
        """Sets the dims: reshapes the elements if there are enough of them, otherwise stores the dims for later
        elements.
        """
        wanted = list(map(int, dims))
        held = np.ravel(self.data) if self._is_initialized() else np.zeros(0)
        if self._is_initialized() and prod(wanted) <= held.size:
            self.set(held[: prod(wanted)].reshape(wanted), self.place)
        else:
            self._wanted_dims = wanted

    def _allocate(self, kind: str, place: Any) -> None:
        self.set(np.zeros(self._wanted_dims or self._get_dims(), kind), place)
        self._wanted_dims = None

    def _alloc_float(self, place: Any = None) -> None:
        """Sets the elements to float32 zeros with the dims that were set."""
        self._allocate("float32", place)

    def _alloc_double(self, place: Any = None) -> None:
        """Sets the elements to float64 zeros with the dims that were set."""
        self._allocate("float64", place)

    def _alloc_int(self, place: Any = None) -> None:
        """Sets the elements to int32 zeros with the dims that were set."""
        self._allocate("int32", place)

    def _mutable_data(self, place: Any, dtype: Any) -> int:
        """The address of the elements, which are replaced by zeros if they have another type or dims than asked for."""
        kind = numpy_name(dtype)
        if not self._is_initialized() or self.data.dtype != kind or self._wanted_dims:
            self._allocate(kind, place)
        return int(self.data.ctypes.data)

    def _clear(self) -> None:
        """Removes the elements, but keeps the dims."""
        if self._is_initialized():
            self._wanted_dims = self._get_dims()
        self._data = None

    def _set_layout(self, layout: str) -> None:
        """Does nothing, because elements are always stored in the order of the dims."""

    def _place(self) -> Any:
        """The place on which the script has put the tensor."""
        from pstranspile.fluid.framework import CPUPlace

        return self.place or CPUPlace()

    def lod(self) -> list[list[int]]:
        """The offsets of each LoD level."""
        return self._lod

    def set_lod(self, lod: Sequence[Sequence[int]]) -> None:
        """Sets the offsets of each LoD level."""
        self._lod = [list(map(int, level)) for level in lod]

    def recursive_sequence_lengths(self) -> list[list[int]]:
        """The lengths of the sequences of each LoD level."""
        return [[end - start for start, end in pairwise(level)] for level in self.lod()]

    def set_recursive_sequence_lengths(self, lengths: Sequence[Sequence[int]]) -> None:
        """Sets the lengths of the sequences of each LoD level. Raises ValueError where a level does not
        fit the next.
        """
        self.set_lod(_offsets(lengths))

    def has_valid_recursive_sequence_lengths(self) -> bool:
        """Whether the LoD levels fit each other and the rows."""
        lengths = self.recursive_sequence_lengths()
        counts = [len(level) for level in lengths[1:]] + [self._get_dims()[0]][: len(lengths)]
        return all(sum(level) == count for level, count in zip(lengths, counts, strict=True))

    def shape(self) -> list[int]:
        """The dims; [0] for a tensor without elements whose dims were not set."""
        return self._get_dims()

    def _copy(self, _place: Any = None) -> LoDTensor:
        """A copy of the tensor, with its elements and offsets."""
        return LoDTensor(np.array(self.data), self.lod())

    def _to_dlpack(self) -> Any:
        """The elements as an object that other libraries can import by the DLPack protocol."""
        return _DLPackArray(np.array(self.data))

    def _dtype(self) -> Any:
        return vartype_of(dtype_of(self.data.dtype))

    def _get_float_element(self, index: int) -> float:
        return float(self.data.ravel()[index])

    def _set_float_element(self, index: int, value: float) -> None:
        self.data.flat[index] = value

    _get_double_element, _set_double_element = _get_float_element, _set_float_element

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if not self._is_initialized():
            return np.zeros(0, dtype)
        return np.asarray(self.data, dtype) if copy is False else np.array(self.data, dtype)

    def __bool__(self) -> bool:
        return True  # also without elements: scripts ask so whether a variable has a tensor

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: Any) -> Any:
        return self.data[index]

    def __repr__(self) -> str:
        return tensor_text(self.core())

    def core(self) -> Any:
        """The value in the form that runs take: a plain array where there is no LoD."""
        return CoreLoDTensor(self.data, self.lod()) if self.lod() else self.data


def _offsets(lengths: Sequence[Sequence[int]]) -> list[list[int]]:
    for level, below in pairwise(lengths):
        if sum(level) != len(below):
            raise ValueError(f"sequences of the lengths {list(level)} are {sum(level)} parts, not {len(below)}")
    return [[0, *accumulate(level)] for level in lengths]


class _DLPackArray:
    """An array that other libraries can import by the DLPack protocol."""

    def __init__(self, array: Any):
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


def from_dlpack(dlpack: Any) -> LoDTensor:
    """A tensor with a copy of another library's data, imported by the DLPack protocol."""
    return LoDTensor(np.array(np.from_dlpack(dlpack)))


class LoDTensorArray(MutableSequence[Any]):
    """A list of tensors: a view on the list that runs use."""

    def __init__(self, values: list[Any] | None = None):
        self.values = list[Any]() if values is None else values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, place: Any) -> Any:
        """The tensor at an index, without elements if none is there; for a slice, the tensors in a new array."""
        value = self.values[place]
        return LoDTensor() if value is None else from_core(value)

    def __setitem__(self, place: Any, value: Any) -> None:
        self.values[place] = _initialized_value(value)

    def __delitem__(self, place: Any) -> None:
        del self.values[place]

    def insert(self, index: int, value: LoDTensor) -> None:
        """Inserts a tensor before an index."""
        self.values.insert(index, _initialized_value(value))


def _initialized_value(value: LoDTensor) -> Any:
    return to_core(value) if value._is_initialized() else None  # pyright: ignore[reportPrivateUsage]


def from_core(value: Any) -> Any:
    """A value of a run in the form that scripts get."""
    if isinstance(value, CoreLoDTensor):
        return LoDTensor(value.data, value.lod)
    if isinstance(value, list):
        return LoDTensorArray(value)  # pyright: ignore[reportUnknownArgumentType]
    return LoDTensor(value) if isinstance(value, np.ndarray) else value


def to_core(value: Any) -> Any:
    """A script's value in the form that runs take."""
    if isinstance(value, LoDTensorArray):
        return value.values
    return value.core() if isinstance(value, LoDTensor) else value


def create_lod_tensor(data: Any, recursive_seq_lens: Any, place: Any = None) -> LoDTensor:
    """A ragged tensor from an array, another tensor, or a list of sequences of numbers.

    Raises AssertionError when the lengths don't fit the rows.
    """
    if isinstance(data, LoDTensor):
        data = data.data
    if isinstance(data, list):
        lengths = [len(sequence) for sequence in data]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        if [lengths] != [list(level) for level in recursive_seq_lens]:
            raise AssertionError(f"the sequences have the lengths {lengths}, not {recursive_seq_lens}")
        data = np.concatenate([np.asarray(s) for s in data]).reshape(-1, 1)  # pyright: ignore[reportUnknownVariableType]
        data = data.astype("int64") if data.dtype.kind in "iu" else data
    result = LoDTensor(np.asarray(data))
    result.set_recursive_sequence_lengths(recursive_seq_lens)
    if not result.has_valid_recursive_sequence_lengths():
        raise AssertionError(f"the lengths {recursive_seq_lens} don't fit {len(result)} rows")
    return result


def create_random_int_lodtensor(
    recursive_seq_lens: Any, base_shape: Sequence[int], place: Any, low: int, high: int
) -> LoDTensor:
    """A ragged tensor of random whole numbers from low to high, both included."""
    rows = sum(recursive_seq_lens[-1])
    return create_lod_tensor(np.random.randint(low, high + 1, [rows, *base_shape]).astype("int64"), recursive_seq_lens)


__getattr__ = names_of_fluid(__name__, globals())
