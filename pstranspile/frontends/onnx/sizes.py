"""Whole numbers that are computed from dims known at run time only, each of which a code stands for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from pstranspile.frontends.onnx.graph import Refused
from pstranspile.runtime.values import Array

_CODES = -(1 << 40)
"""The first of the numbers that stand for numbers known at run time only, in what shapes are made of."""

_LAST = -(1 << 41)
"""The last of these numbers; they go down."""


_MOST_FACTORS = 63
"""The most numbers known at run time only that a product may have: 2 to the power of 63 is no whole number."""


class Dim(NamedTuple):
    """The size of a variable along an axis."""

    variable: str
    axis: int


class Product(NamedTuple):
    """A number times other numbers that are known at run time only."""

    factor: int
    codes: tuple[int, ...]


class Pair(NamedTuple):
    """Two numbers, at least one of them known at run time only, with an op of Fluid between them."""

    op_type: str
    left: int
    right: int


Size: TypeAlias = Dim | Product | Pair

_OPS = {
    "Add": "elementwise_add",
    "Sub": "elementwise_sub",
    "Mul": "elementwise_mul",
    "Div": "elementwise_floordiv",
    "Mod": "elementwise_mod",
    "Max": "elementwise_max",
    "Min": "elementwise_min",
}


class Sizes:
    """What each code stands for. Equal numbers have one code, as far as this is seen."""

    def __init__(self) -> None:
        self._sizes: list[Size] = []
        self._codes: dict[Size, int] = {}

    def code(self, size: Size) -> int:
        """The code of a number."""
        if size not in self._codes:
            self._codes[size] = _CODES - len(self._sizes)
            self._sizes.append(size)
        return self._codes[size]

    def of(self, code: int) -> Size:
        """What a code stands for."""
        return self._sizes[_CODES - code]

    def combined(self, node_type: str, left: int, right: int) -> int:
        """The number or code of what a node such as `Mul` makes of two of them."""
        if node_type == "Mul":
            return self._product(left, right)
        if node_type == "Div":
            return self._quotient(left, right)
        if right == 0 and node_type in ("Add", "Sub"):
            return left
        if left == 0 and node_type == "Add":
            return right
        if left == right and node_type in ("Max", "Min", "Sub"):
            return 0 if node_type == "Sub" else left
        return self.code(Pair(_OPS[node_type], left, right))

    def _factors(self, number: int) -> Product:
        if not is_code(number):
            return Product(number, ())
        size = self.of(number)
        return size if isinstance(size, Product) else Product(1, (number,))

    def _made(self, factor: int, codes: Sequence[int]) -> int:
        if abs(factor) >= 1 << 63 or len(codes) > _MOST_FACTORS:
            raise Refused("it multiplies dims that are known at run time only to more than a whole number can be")
        if not codes or factor == 0:
            return factor
        return codes[0] if factor == 1 and len(codes) == 1 else self.code(Product(factor, tuple(sorted(codes))))

    def _product(self, left: int, right: int) -> int:
        first, second = self._factors(left), self._factors(right)
        return self._made(first.factor * second.factor, (*first.codes, *second.codes))

    def _quotient(self, left: int, right: int) -> int:
        first, second = self._factors(left), self._factors(right)
        rest = [*first.codes]
        for code in second.codes:
            if code not in rest:
                break
            rest.remove(code)
        else:
            if second.factor and first.factor % second.factor == 0:
                return self._made(first.factor // second.factor, rest)
        return self.code(Pair(_OPS["Div"], left, right))


def is_code(number: int) -> bool:
    """Whether a number stands for one that is known at run time only."""
    return _LAST < number <= _CODES


def has_codes(array: Array) -> bool:
    """Whether a number of the array stands for one that is known at run time only."""
    return array.dtype.kind == "i" and array.dtype.itemsize == 8 and bool(((array <= _CODES) & (array > _LAST)).any())


def combined(node_type: str, left: Array, right: Array, sizes: Sizes) -> Array | None:
    """What a node makes of two arrays of whole numbers, some of which are codes; None if that has no code."""
    if node_type not in _OPS:
        return None
    first, second = np.broadcast_arrays(left, right)
    made = [
        _number(node_type, int(x), int(y), sizes) for x, y in zip(first.reshape(-1), second.reshape(-1), strict=True)
    ]
    return np.array(made, "int64").reshape(first.shape)


def _quotient(left: int, right: int) -> int:
    """A quotient cut off towards zero, as ONNX's."""
    return 0 if right == 0 else abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


_NUMBERS: dict[str, Callable[[int, int], int]] = {
    "Add": lambda left, right: left + right,
    "Sub": lambda left, right: left - right,
    "Mul": lambda left, right: left * right,
    "Div": _quotient,
    "Mod": lambda left, right: left % right if right else 0,
    "Max": max,
    "Min": min,
}


def _number(node_type: str, left: int, right: int, sizes: Sizes) -> int:
    plain = not (is_code(left) or is_code(right))
    return _NUMBERS[node_type](left, right) if plain else sizes.combined(node_type, left, right)


def equal(left: Array, right: Array) -> Array | None:
    """Whether numbers are equal, some of which are codes; None if that is not known yet. Dims are not negative."""
    first, second = np.broadcast_arrays(left, right)
    for x, y in zip(first.reshape(-1), second.reshape(-1), strict=True):
        if x != y and (is_code(int(x)) or is_code(int(y))) and max(int(x), int(y)) >= 0:
            return None
        if x != y and is_code(int(x)) and is_code(int(y)):
            return None
    return np.asarray(first == second)
