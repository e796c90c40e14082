"""Attribute values of ops: each Python type stands for exactly one kind of ProgramDesc attribute.

| kind    | Python type        | kind     | Python type |
|---------|--------------------|----------|-------------|
| INT     | int (32 bit)       | INTS     | Ints        |
| LONG    | Long (64 bit)      | LONGS    | Longs       |
| FLOAT   | float (a float32)  | FLOATS   | Floats      |
| BOOLEAN | bool               | BOOLEANS | Bools       |
| FLOAT64 | Double (a float64) |          |             |
| STRING  | str                | STRINGS  | Strings     |
| BLOCK   | BlockRef           | BLOCKS   | BlockRefs   |

The kinds are those of Fluid's `framework.proto` (AttrType); FLOAT64 is of Paddle 2.x.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeAlias


class Long(int):
    """A 64-bit integer attribute (kind LONG); a plain int is kind INT."""

    __slots__ = ()


class Double(float):
    """A float64 attribute (kind FLOAT64), which stands wherever a FLOAT may; a plain float is kind FLOAT."""

    __slots__ = ()


class BlockRef(int):
    """A reference to a block of the same program, by index (kind BLOCK)."""

    __slots__ = ()


class Ints(tuple[int, ...]):
    """A list of 32-bit integers (kind INTS)."""

    __slots__ = ()


class Longs(tuple[int, ...]):
    """A list of 64-bit integers (kind LONGS)."""

    __slots__ = ()


class Floats(tuple[float, ...]):
    """A list of float32 values (kind FLOATS)."""

    __slots__ = ()


class Bools(tuple[bool, ...]):
    """A list of booleans (kind BOOLEANS)."""

    __slots__ = ()


class Strings(tuple[str, ...]):
    """A list of strings (kind STRINGS)."""

    __slots__ = ()


class BlockRefs(tuple[int, ...]):
    """References to blocks of the same program, by index (kind BLOCKS)."""

    __slots__ = ()


AttrValue: TypeAlias = (
    bool | int | float | str | Long | Double | BlockRef | Ints | Longs | Floats | Bools | Strings | BlockRefs
)


class AttrKind(Enum):
    """The kinds of attribute a ProgramDesc knows; the value is Fluid's number for the kind."""

    __hash__ = object.__hash__  # Enum calls the built-in hash, which a script may replace

    INT = 0
    FLOAT = 1
    STRING = 2
    INTS = 3
    FLOATS = 4
    STRINGS = 5
    BOOLEAN = 6
    BOOLEANS = 7
    BLOCK = 8
    LONG = 9
    BLOCKS = 10
    LONGS = 11
    FLOAT64 = 15


PYTHON_TYPES: dict[AttrKind, type[Any]] = {
    AttrKind.INT: int,
    AttrKind.FLOAT: float,
    AttrKind.STRING: str,
    AttrKind.INTS: Ints,
    AttrKind.FLOATS: Floats,
    AttrKind.STRINGS: Strings,
    AttrKind.BOOLEAN: bool,
    AttrKind.BOOLEANS: Bools,
    AttrKind.BLOCK: BlockRef,
    AttrKind.LONG: Long,
    AttrKind.BLOCKS: BlockRefs,
    AttrKind.LONGS: Longs,
    AttrKind.FLOAT64: Double,
}
"""The Python type that stands for each kind."""

KINDS: dict[type[Any], AttrKind] = {python: kind for kind, python in PYTHON_TYPES.items()}
"""The kind each Python type stands for."""


def kind_of(value: AttrValue) -> AttrKind:
    """The attribute kind that `value` stands for, by its exact type. Raises KeyError for other types."""
    return KINDS[type(value)]


_F32 = struct.Struct("<f")


def float32(value: float) -> float:
    """`value` rounded to the nearest float32, as Fluid keeps FLOAT attributes. Overflow gives an infinity."""
    try:
        return _F32.unpack(_F32.pack(value))[0]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def round_to_float32(value: float) -> float:
    """`value` as the value of a FLOAT attribute: rounded to float32; a `Double` is returned unchanged."""
    return value if isinstance(value, Double) else float32(value)


def same_attr(a: AttrValue, b: AttrValue) -> bool:
    """Whether two attributes are equal in value and in kind (1, 1.0, True and Long(1) all differ; NaN equals NaN, -0.0
    is not 0.0).
    """
    if type(a) is not type(b):
        return False
    return repr(a) == repr(b) if isinstance(a, float | Floats) else a == b


def renumber_blocks(value: AttrValue, numbers: Mapping[int, int]) -> AttrValue:
    """The attribute with its block indices replaced by those in `numbers`. Raises KeyError for a block that is not in
    `numbers`.
    """
    if isinstance(value, BlockRef):
        return BlockRef(numbers[int(value)])
    return BlockRefs(numbers[int(number)] for number in value) if isinstance(value, BlockRefs) else value
