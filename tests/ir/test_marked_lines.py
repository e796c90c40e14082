"""Carets stand under the statement of an indented line, where a place has no column."""

from pstranspile.ir.diagnostics import error, render
from pstranspile.ir.model import Location

TEXT = "def f(x):\n    if x:\n\t\treturn x\n\n"


def test_carets_begin_at_the_statement():
    for line, column, width in ((1, 1, 9), (2, 5, 5), (3, 3, 8)):
        head, _, carets = render([error("input-python", "no", Location("a.py", line))], {"a.py": TEXT}).split("\n")
        assert head == f"a.py:{line}:{column}: error[input-python]: no"
        assert carets == f"      | {' ' * (column - 1)}{'^' * width}"


def test_an_empty_line_has_one_caret():
    shown = render([error("input-python", "no", Location("a.py", 4))], {"a.py": TEXT})
    assert shown.split("\n")[0] == "a.py:4:1: error[input-python]: no"
    assert shown.endswith("| ^")
