"""Lists of many numbers are read one by one, in little memory, as short ones are."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

import pstranspile as ps
from pstranspile.ir.attributes import Floats, Ints, Longs
from pstranspile.ir.diagnostics import DiagnosticError

COUNT = 20_000
"""Elements: far more than those from which a list is read by itself."""


def text(attributes: str, comment: str = "") -> str:
    return (
        "ir 1\n\nprogram @main {\n  block ^0 {\n    temp  %w : f32[2]\n"
        f"    assign_value -> Out=%w {{{attributes}}}{comment}\n  }}\n}}\n"
    )


def attrs(attributes: str, comment: str = "") -> Any:
    return ps.loads(text(attributes, comment)).main.main_block.ops[0].attrs


def listed(*numbers: object) -> str:
    return ", ".join(map(str, numbers))


@pytest.mark.parametrize("comment", ["", "  # by hand"])
@pytest.mark.parametrize(
    ("name", "numbers", "kind"),
    [
        ("int32_values", [-(2**31) + n for n in range(COUNT)], Ints),
        ("int64_values", [2**62 + n for n in range(COUNT)], Longs),
        ("fp32_values", [n / 4 for n in range(COUNT)], Floats),
        ("fp32_values", list(range(COUNT)), Floats),
    ],
)
def test_long_lists_have_the_written_numbers(name: str, numbers: list[Any], kind: type, comment: str):
    found = attrs(f"dtype=3, {name}=[{listed(*numbers)}], shape=[2]", comment)
    assert type(found[name]) is kind
    assert list(found[name]) == numbers
    assert found["dtype"] == 3
    assert list(found["shape"]) == [2]
    module = ps.loads(text(f"dtype=3, {name}=[{listed(*numbers)}], shape=[2]"))
    assert ps.loads(ps.dumps(module)).main == module.main


def test_a_string_may_hold_what_looks_like_a_long_list():
    written = f"a, int32_values=[{listed(*range(COUNT))}]"
    assert attrs(f'op_namescope="{written}"')["op_namescope"] == written


@pytest.mark.parametrize(
    "damaged",
    [
        "int32_values=[{0} 7]",
        "int32_values=[{0}, 2147483648]",
        "int32_values=[{0}, -]",
        "int32_values=[{0}, 1e]",
        "int32_values=[{0}, +1]",
        "int32_values=[,{0}]",
        "int32_values=[{0}], int32_values=[{0}]",
        "int32_values=[{0}], int32_values=[1]",
        "fp32_values=[{0}, 1e39]",
        "nothing=[{0}]",
        "op_role=[{0}]",
    ],
)
def test_damage_in_a_long_list_is_refused(damaged: str):
    with pytest.raises(DiagnosticError):
        ps.loads(text(damaged.format(listed(*range(1, 1000)))))


def test_a_long_list_takes_little_memory():
    """Beside the numbers and the tuple of them (36 bytes each): the lines that the text is cut into."""
    count = 10 * COUNT
    given = text(f"int32_values=[{listed(*range(10**9, 10**9 + count))}]")
    tracemalloc.start()
    try:
        ps.loads(given)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak / count < 120
