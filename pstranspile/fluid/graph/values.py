"""The values that scripts pass and get, under Fluid's names: element types and kinds of variables, several things or
one, and the arrays that runs return.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, TypeGuard

import numpy as np

from pstranspile.ir.types import DType, VarKind, element_type
from pstranspile.runtime.values import NUMPY_TYPES


class Numbers(IntEnum):
    """Numbers with names, which print by their names like the enumerations of Fluid's core."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    __str__ = __repr__


class VarType(Numbers):
    """Fluid's `core.VarDesc.VarType`: element types and kinds of variables, numbered as in Fluid."""

    BOOL = 0
    INT16 = 1
    INT32 = 2
    INT64 = 3
    FP16 = 4
    FP32 = 5
    FP64 = 6
    LOD_TENSOR = 7
    SELECTED_ROWS = 8
    FEED_MINIBATCH = 9
    FETCH_LIST = 10
    STEP_SCOPES = 11
    LOD_RANK_TABLE = 12
    LOD_TENSOR_ARRAY = 13
    PLACE_LIST = 14
    READER = 15
    RAW = 17
    TUPLE = 18
    SIZE_T = 19
    UINT8 = 20
    INT8 = 21


class NoElementType(TypeError, ValueError):
    """The error that a value does not name an element type. Fluid raises TypeError in some places, ValueError in
    others; this is both.
    """

    def __init__(self, given: object):
        super().__init__(f"{given!r} names no element type, such as 'float32' or 'int64'")


def dtype_of(given: Any) -> DType:
    """The element type behind a value that Fluid's scripts pass: a VarType, a name (`float32`), or numpy's type.

    Raises NoElementType for anything else.
    """
    if isinstance(given, DType):
        return given
    if isinstance(given, int):
        return DType(int(given))
    try:
        return element_type(np.dtype(given).name)
    except (TypeError, ValueError):
        raise NoElementType(given) from None


def vartype_of(dtype: DType) -> VarType:
    """The VarType of an element type."""
    return VarType(dtype.value)


def numpy_name(given: Any) -> str:
    """numpy's name of an element type, which may be any value that `dtype_of` takes."""
    return NUMPY_TYPES[dtype_of(given)]


def kind_of(given: Any) -> VarKind:
    """The kind of variable behind a number or VarType; LOD_TENSOR for None."""
    return VarKind(int(given)) if given is not None else VarKind.LOD_TENSOR


def several(value: Any) -> TypeGuard[Sequence[Any]]:
    """Whether a value is a list or a tuple."""
    return isinstance(value, list | tuple)


class Fetched(np.ndarray):
    """An array that a run returns. With a single element it can be used as a number, whatever its dims."""

    def __repr__(self) -> str:
        return repr(self.view(np.ndarray))  # printed as in Fluid, for scripts and for comparisons of logs

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        return self.item().__index__()

    def __format__(self, form: str) -> str:
        return format(self.item(), form) if form and self.size == 1 else str(self)
