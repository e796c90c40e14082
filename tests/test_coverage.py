"""docs/reference/coverage.md has every row of the family's features once, and names tests and codes that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pstranspile.ir.codes import CODES

ROOT = Path(__file__).parent.parent
AREAS = {"1": 34, "2": 117, "3": 42}
"""How many features each area has: the program model, the parameter-server mode, and the other modes."""

ROW = re.compile(r"\| ([^|]+) \| (supported|different|refused|out of scope) \| (.*) \| (.*) \|")
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
    lines = (ROOT / "docs" / "reference" / "coverage.md").read_text().split("\n")
    found = [match.groups() for line in lines if (match := ROW.fullmatch(line))]
    heads = sum(line == "| feature | here | how | shown by |" for line in lines)
    assert len(found) + 2 * heads == sum(line.startswith("|") for line in lines), "a row of another form"
    return [Row(feature, status, how, tuple(TEST.findall(shown))) for feature, status, how, shown in found]


@cache
def defined_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_every_feature_is_there_once() -> None:
    counts = dict.fromkeys(AREAS, 0)
    area = ""
    for line in (ROOT / "docs" / "reference" / "coverage.md").read_text().split("\n"):
        area = line[3] if line.startswith("## ") else area
        counts[area] = counts.get(area, 0) + bool(ROW.fullmatch(line))
    assert {area: count for area, count in counts.items() if count} == AREAS
    assert len({row.feature for row in rows()}) == sum(AREAS.values())


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
    assert sorted(entry for entry in named if entry[1] not in CODES) == []


def test_nothing_refers_to_a_list_of_features_that_is_not_here() -> None:
    """Such as `A2.50`: a reader of the repository can't look it up."""
    files = [*(ROOT / "pstranspile").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    assert [str(file) for file in files if re.search(r"\b[A-G]\d+\.\d\d+\b|\bFEATURES\b", file.read_text())] == []
