"""`format_text`: canonical form, with comments and blank lines where they were."""

from __future__ import annotations

import random
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from pstranspile.ops.textual import format_text, parse, print_module
from tests.strategies import exactly, modules

DATA = Path(__file__).parent / "format"


def test_comments_and_blank_lines_stay_where_they_are(golden):
    text = (DATA / "comments.ir").read_text(encoding="utf-8")
    golden(DATA / "comments.expected", format_text(text))


def test_formatting_twice_changes_nothing_and_keeps_the_program():
    text = (DATA / "comments.ir").read_text(encoding="utf-8")
    once = format_text(text)
    assert format_text(once) == once
    assert parse(once) == parse(text)


MARK = "#a comment that no name holds:"


def comments(text: str) -> list[str]:
    return sorted(line[line.index(MARK) :] for line in text.split("\n") if MARK in line)


@settings(max_examples=50, deadline=None)
@given(modules, st.integers(0, 2**32))
def test_no_comment_is_lost(module, seed):
    rng = random.Random(seed)
    lines: list[str] = []
    for number, line in enumerate(print_module(module).split("\n")):
        for extra in range(rng.choice([0, 0, 1, 2])):
            lines.append(rng.choice(["", "", f"  {MARK} {number} {extra}"]))
        lines.append(line + rng.choice(["", "", f" {MARK} {number} end"]))
    text = "\n".join(lines)
    once = format_text(text)
    assert comments(once) == comments(text)
    assert format_text(once) == once
    assert exactly(parse(once)) == exactly(module)
    assert "\n\n\n" not in once


def test_windows_line_ends_and_a_missing_last_one():
    text = "ir 1\r\n\r\nprogram @main {  # m\r\n  block ^0 {\r\n    foo # f\r\n  }\r\n}"
    assert format_text(text) == "ir 1\n\nprogram @main {  # m\n  block ^0 {\n    foo  # f\n  }\n}\n"
