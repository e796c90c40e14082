"""Lists of integers of which some are known only at run time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from pstranspile.frontends.layers.basic import cast
from pstranspile.frontends.layers.draft import Draft, Value
from pstranspile.ir.types import DType

Numbers: TypeAlias = Sequence["int | Value"] | Value
"""Integers, each a number or a value [1]; or one value that holds all of them."""


class Mixed(NamedTuple):
    """Numbers in the form that an op takes."""

    known: list[int] | None
    """The attribute, -1 for what is known at run time only; None where one value holds all."""
    whole: Value | None
    """The value that holds all."""
    elements: list[Value]
    """A value for each number, if any of them is known at run time only."""

    def unknown(self, count: int) -> list[bool]:
        """For each of `count` numbers whether it is known only at run time."""
        return [True] * count if self.known is None else [bool(self.elements) and number == -1 for number in self.known]

    def inputs(self, whole: str, elements: str) -> dict[str, Value | Sequence[Value]]:
        """The inputs that are read at run time, in the slots of these names."""
        if self.whole is not None:
            return {whole: self.whole}
        return {elements: self.elements} if self.elements else {}


def mixed(numbers: Numbers, constant: Callable[[int], Value], *, narrow: bool = False) -> Mixed:
    """The numbers in the form that an op takes. Values get no gradient. `constant` converts a number to a value [1].

    `narrow` casts values of 64 bits to int32, as some layers of Fluid do.
    """

    def read(value: Value) -> Value:
        return cast(value.stopped(), "int32") if narrow and value.dtype is DType.INT64 else value.stopped()

    if isinstance(numbers, Value):
        return Mixed(None, read(numbers), [])
    known = [-1 if isinstance(number, Value) else int(number) for number in numbers]
    if not any(isinstance(number, Value) for number in numbers):
        return Mixed(known, None, [])
    return Mixed(known, None, [read(n) if isinstance(n, Value) else constant(int(n)) for n in numbers])


def constants_of(draft: Draft, layer: str = "", dtype: DType = DType.INT32) -> Callable[[int], Value]:
    """A function that creates values [1], named after a layer, or after the op that fills them."""

    def constant(number: int) -> Value:
        own = draft.names.mint("fill_constant")
        out = draft.temporary(layer or own, dtype, stop_gradient=True)
        attrs = {"shape": [1], "dtype": dtype, "value": float(number), "force_cpu": True}
        draft.op("fill_constant", {}, {"Out": out}, {**attrs, "str_value": str(number)})
        return out

    return constant
