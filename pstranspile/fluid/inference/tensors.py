"""Tensors of Fluid's inference engine: what predictors take and give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pstranspile.fluid.graph.vartype import Numbers
from pstranspile.fluid.lod_tensor import LoDTensor


class PaddleDType(Numbers):
    """Element types of the engine."""

    FLOAT32 = 0
    INT64 = 1
    INT32 = 2


def element_type(array: Any) -> PaddleDType:
    """The element type of an array. Raises TypeError for one that the engine does not have."""
    name = str(array.dtype).upper()
    if name not in PaddleDType.__members__:
        raise TypeError(f"predictors take float32, int64 and int32, not {array.dtype}")
    return PaddleDType[name]


class PaddleBuf:
    """The elements of a tensor, one after the other: an array, numbers (as float32), or so many bytes of zeros."""

    def __init__(self, data: Any = ()):
        self._bytes = b""
        self.reset(np.zeros(data, "uint8") if isinstance(data, int) else data)

    def reset(self, data: Any) -> None:
        """Takes other elements."""
        self._bytes = (data if isinstance(data, np.ndarray) else np.array(data, "float32")).tobytes()

    def resize(self, length: int) -> None:
        """Makes it so many bytes long; what is new is zero."""
        self._bytes = self._bytes[:length].ljust(length, b"\0")

    def length(self) -> int:
        """How many bytes it holds."""
        return len(self._bytes)

    def empty(self) -> bool:
        """Whether it holds nothing."""
        return not self._bytes

    def array(self, dtype: PaddleDType) -> Any:
        """The elements as an array of one dim."""
        return np.frombuffer(self._bytes, dtype.name.lower())

    def float_data(self) -> list[float]:
        """The elements, read as float32."""
        return self.array(PaddleDType.FLOAT32).tolist()

    def int64_data(self) -> list[int]:
        """The elements, read as int64."""
        return self.array(PaddleDType.INT64).tolist()

    def int32_data(self) -> list[int]:
        """The elements, read as int32."""
        return self.array(PaddleDType.INT32).tolist()

    def tolist(self, dtype: str) -> list[Any]:
        """The elements, read as the type of this name. Raises KeyError for one that the engine does not have."""
        return self.array(PaddleDType[dtype.upper()]).tolist()


class PaddleTensor:
    """A tensor with a name: `data`, `shape`, `dtype`, and in `lod` where sequences begin.

    Made of an array of float32, int64 or int32 (TypeError for others), or empty, to be filled.
    """

    def __init__(self, data: Any = None, name: str = "", lod: Sequence[Sequence[int]] = (), copy: bool = True):
        self.name, self.lod = name, [list(level) for level in lod]
        self.shape: list[int] = [] if data is None else list(np.shape(data))
        self.dtype = PaddleDType.FLOAT32 if data is None else element_type(data)
        self.data = PaddleBuf() if data is None else PaddleBuf(data)

    def as_ndarray(self) -> Any:
        """The tensor as an array."""
        return self.data.array(self.dtype).reshape(self.shape)

    def as_lod_tensor(self) -> LoDTensor:
        """The tensor as runs of programs are fed it."""
        made = LoDTensor(self.as_ndarray())
        if self.lod:
            made.set_lod(self.lod)
        return made


class ZeroCopyTensor:
    """A place for what a predictor is fed, or for what it gives."""

    def __init__(self) -> None:
        self.held = LoDTensor()

    def copy_from_cpu(self, data: Any) -> None:
        """Takes an array of float32, int64 or int32. Raises TypeError for others."""
        element_type(data)
        lod = self.held.lod()
        self.held = LoDTensor(np.array(data))
        if lod:
            self.held.set_lod(lod)

    def copy_to_cpu(self) -> Any:
        """The array."""
        return np.array(self.held)

    def reshape(self, shape: Sequence[int]) -> None:
        """Does nothing: arrays that are copied in have their own dims."""

    def shape(self) -> list[int]:
        """The dims."""
        return list(self.held.shape())

    def type(self) -> PaddleDType:
        """The element type."""
        return element_type(np.array(self.held))

    def set_lod(self, lod: Sequence[Sequence[int]]) -> None:
        """Says where sequences begin."""
        self.held.set_lod(lod)

    def lod(self) -> list[list[int]]:
        """The offsets at which sequences begin, for each LoD level; an empty list for plain tensors."""
        return self.held.lod()
