"""docs/coverage.md has every row of the family's features once, and names tests and codes that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.verify.test_rejected import all_codes

ROOT = Path(__file__).parent.parent
AREAS = {"A1": 34, "A2": 117, "A3": 42}
"""How many features each area has: the program model, the parameter-server mode, and the other modes."""

ROW = re.compile(r"\| (A\d\.\d+) \| ([a-z ]+) \| (.*) \| (.*) \|")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
CODE = re.compile(r"(?:[Ee]rror|[Ww]arning) `([a-z-]+)`(?:, `([a-z-]+)`)*(?: or `([a-z-]+)`)?")


class Row(NamedTuple):
    """One row of the document: the feature, what becomes of it, how, and the tests that show it."""

    feature: str
    status: str
    how: str
    shown: tuple[tuple[str, str], ...]


@cache
def rows() -> list[Row]:
    lines = (ROOT / "docs" / "coverage.md").read_text().split("\n")
    found = [match.groups() for line in lines if (match := ROW.fullmatch(line))]
    assert len(found) == sum(line.startswith("| A") for line in lines), "a row that is not of the form of the others"
    return [Row(feature, status, how, tuple(TEST.findall(shown))) for feature, status, how, shown in found]


@cache
def defined_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_every_feature_is_there_once_and_in_order() -> None:
    wanted = [f"{area}.{number:02}" for area, count in AREAS.items() for number in range(1, count + 1)]
    assert [row.feature for row in rows()] == wanted


def test_every_row_says_what_becomes_of_the_feature() -> None:
    assert {row.status for row in rows()} == {"supported", "different", "refused", "out of scope"}
    assert [row.feature for row in rows() if row.status != "out of scope" and not row.shown] == []
    assert [row.feature for row in rows() if row.status != "supported" and not row.how.strip()] == []
    assert [row.feature for row in rows() if row.status == "refused" and not CODE.search(row.how)] == []


def test_the_tests_exist() -> None:
    named = [(row.feature, path, name) for row in rows() for path, name in row.shown]
    assert [entry for entry in named if not (ROOT / entry[1]).exists()] == []
    assert [entry for entry in named if entry[2] not in defined_in(entry[1])] == []


def test_the_codes_exist() -> None:
    named = {(row.feature, code) for row in rows() for match in CODE.findall(row.how) for code in match if code}
    assert len(named) > 20
    assert sorted(entry for entry in named if entry[1] not in all_codes()) == []
