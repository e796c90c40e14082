"""Attributes of ops: their values by type, and which values the declarations of ops admit.

A value that is wrong whatever the op is fed is told by `refusals`; an axis that an input of some rank does not have, by
`wrong_axis`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import NamedTuple, Protocol

from pstranspile.ir.attributes import AttrValue, Floats, Ints, Longs, Strings
from pstranspile.ir.model import Attrs, Op
from pstranspile.ir.types import DType


def int_attr(op: Op, name: str, default: int = 0) -> int:
    """An INT or LONG attribute; `default` if the op has none of that kind."""
    value = op.attrs.get(name)
    return value if isinstance(value, int) else default


def ints_attr(op: Op, name: str) -> tuple[int, ...]:
    """An INTS or LONGS attribute; empty if the op has none of that kind."""
    value = op.attrs.get(name)
    return value if isinstance(value, Ints | Longs) else ()


def strings_attr(op: Op, name: str) -> tuple[str, ...]:
    """A STRINGS attribute; empty if the op has none of that kind."""
    value = op.attrs.get(name)
    return value if isinstance(value, Strings) else ()


def flag(op: Op, name: str) -> bool:
    """A BOOLEAN attribute; False if the op does not have it."""
    return op.attrs.get(name) is True


def real(op: Op, name: str) -> float:
    """A FLOAT attribute. Raises KeyError if the op does not have it, ValueError if it is of another kind."""
    value = op.attrs[name]
    if not isinstance(value, float):
        raise ValueError(f"the attribute {name} is {value!r}, not a float")
    return value


def reals_attr(op: Op, name: str) -> tuple[float, ...]:
    """A FLOATS attribute; empty if the op has none of that kind."""
    value = op.attrs.get(name)
    return value if isinstance(value, Floats) else ()


def text(op: Op, name: str) -> str:
    """A STRING attribute; "" if the op does not have it."""
    value = op.attrs.get(name)
    return value if isinstance(value, str) else ""


# The values that declarations admit.


class Limits(NamedTuple):
    """A range that holds a number, or every number of a list: from `least` (or `above` it) to `most`, and at most the
    attribute named `below`. None: no limit on that side. `finite`: neither infinite nor NaN. A list has one of `counts`
    numbers; empty: any.
    """

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: str = ""
    finite: bool = False
    counts: tuple[int, ...] = ()

    @property
    def range_text(self) -> str:
        """The range in words, without `below`."""
        words = ["finite"] if self.finite else []
        if self.least is not None and self.most is not None:
            words.append(f"from {_written(self.least)} to {_written(self.most)}")
        elif self.least is not None:
            words.append(f"at least {_written(self.least)}")
        elif self.most is not None:
            words.append(f"at most {_written(self.most)}")
        if self.above is not None:
            words.append(f"above {_written(self.above)}")
        return " and ".join(words)

    def holds(self, number: float) -> bool:
        """Whether a number lies in the range; NaN lies in none."""
        return (
            (self.least is None or number >= self.least)
            and (self.above is None or number > self.above)
            and (self.most is None or number <= self.most)
            and (not self.finite or isfinite(number))
        )


class AxisOf(NamedTuple):
    """A dim, or a list of dims, of the input `slot`. The least is `least`, or the rank below 0 without one;
    `extra_dims` is how many dims there are beyond the rank.
    """

    slot: str
    least: int | None = None
    extra_dims: int = 0


class ElementType(NamedTuple):
    """Fluid's number of an element type. `unset`: any negative number stands for none."""

    unset: bool = False


Admitted = Limits | AxisOf | ElementType
"""What a declaration states about the values of an attribute."""


class AttributeDeclaration(Protocol):
    """What is read of an attribute's declaration."""

    @property
    def default(self) -> AttrValue | None:
        """The value of an op that does not carry the attribute."""
        ...

    @property
    def among(self) -> tuple[str, ...]:
        """The texts that the attribute may be; empty: any."""
        ...

    @property
    def admitted(self) -> Admitted | None:
        """What other values it may have; None: any."""
        ...


_ELEMENT_TYPES = frozenset(dtype.value for dtype in DType)


def _numbers(value: AttrValue | None) -> tuple[float, ...]:
    if isinstance(value, Ints | Longs | Floats):
        return value
    return (value,) if isinstance(value, int | float) else ()


def refusals(attrs: Attrs, specs: Mapping[str, AttributeDeclaration]) -> Iterator[tuple[str, str]]:
    """(attribute, reason) for every attribute with a value that its declaration does not admit, whatever the op is fed.

    An attribute that the op does not carry has its default, which is compared with nothing but other attributes.
    """
    for name, spec in specs.items():
        if name not in attrs and not (isinstance(spec.admitted, Limits) and spec.admitted.below):
            continue
        reason = _refusal(name, attrs.get(name, spec.default), spec, attrs, specs)
        if reason:
            yield name, reason


def _written(number: float) -> str:
    """A number with all digits that it has before the point: 1073741824, 0.5, 1e+20."""
    whole = -1e16 < number < 1e16 and number == int(number)
    return str(int(number)) if whole else f"{number:g}"


def _refusal(
    name: str,
    value: AttrValue | None,
    spec: AttributeDeclaration,
    attrs: Mapping[str, AttrValue],
    specs: Mapping[str, AttributeDeclaration],
) -> str:
    if spec.among:
        if isinstance(value, str) and value not in spec.among:
            return f"{name} is {value!r}, it must be one of {', '.join(repr(word) for word in spec.among)}"
        return ""
    numbers = _numbers(value)
    if isinstance(spec.admitted, Limits):
        wrong = next((number for number in numbers if not spec.admitted.holds(number)), None)
        if wrong is not None:
            has = f"has {_written(wrong)}" if isinstance(value, tuple) else f"is {_written(wrong)}"
            return f"{name} {has}, it must be {spec.admitted.range_text}"
        counts = spec.admitted.counts
        if counts and isinstance(value, tuple) and len(value) not in counts:
            return f"{name} is {list(value)}, it must have {' or '.join(map(str, counts))} numbers"
        other = spec.admitted.below
        if other in specs:
            for number, most in zip(numbers, _numbers(attrs.get(other, specs[other].default)), strict=False):
                if not number <= most:  # NaN is not
                    return f"{name} is {_written(number)}, it must be at most {other}, which is {_written(most)}"
    elif isinstance(spec.admitted, ElementType):
        for number in numbers:
            if number not in _ELEMENT_TYPES and not (spec.admitted.unset and number < 0):
                return f"{name} is {_written(number)}, which is the number of no element type"
    return ""


def axis_attributes(specs: Mapping[str, AttributeDeclaration]) -> tuple[tuple[str, AxisOf], ...]:
    """The attributes that name dims of an input."""
    return tuple((name, spec.admitted) for name, spec in specs.items() if isinstance(spec.admitted, AxisOf))


def wrong_axis(value: AttrValue | None, axis: AxisOf, rank: int) -> float | None:
    """The first dim in the value of an attribute that an input of this rank does not have, None if it has all."""
    most = rank + axis.extra_dims
    least = -most if axis.least is None else axis.least
    return next((number for number in _numbers(value) if not least <= number < most), None)
