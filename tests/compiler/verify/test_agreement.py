"""Variables that the programs of a module share."""

import pytest

from pstranspile.compiler.verify import verify
from pstranspile.ir.model import Location
from pstranspile.ops.textual import parse


@pytest.mark.parametrize("kind", ["f32[4]", "rows f32[4, 2]", "f64[4, 2]", "f32[4, 3]"])
def test_programs_that_declare_a_variable_differently(kind):
    text = "ir 1\n" + "".join(
        f"program @{name} {{\nblock ^0 {{\nparam %w : {type_}\ntemp %t : {type_}\n}}\n}}\n"
        for name, type_ in (("main", "f32[4, 2]"), ("test", "f32[-1, 2]"), ("startup", kind))
    )
    (found,) = verify(parse(text))
    assert found.code == "declared-differently"
    assert found.message == f"%w is {kind} in @startup, but f32[4, 2] in @main"
    assert found.location == Location("<text>", 16, 1)
    assert found.notes[0].location == Location("<text>", 4, 1)


def test_temporary_variables_are_not_shared():
    text = "ir 1\n" + "".join(
        f"program @{name} {{\nblock ^0 {{\n{storage} %x : {type_}\n}}\n}}\n"
        for name, storage, type_ in (
            ("main", "temp", "f32[4, 2]"),
            ("test", "temp", "f32[3]"),
            ("startup", "state", "f64[1]"),
        )
    )
    assert verify(parse(text)) == ()
    (found,) = verify(parse(text.replace("state", "temp").replace("temp", "state", 1)))
    assert found.message.startswith("@startup declares %x as temp, so its value is gone when @main runs")
