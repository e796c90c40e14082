"""docs/reference/diagnostics.md lists exactly the codes there are, each with its sentence and an example."""

import re
from pathlib import Path

import pytest

from tests.golden import Goldens
from tests.verify.rejected import FOLDER
from tests.verify.test_rejected import all_codes

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "diagnostics.md"
ENTRY = re.compile(r"^\* \*\*`([\w-]+)`\*\*: (.+)\n  Example: (.+)\.$", re.MULTILINE)


def test_exactly_the_codes_there_are():
    listed = [code for code, _, _ in ENTRY.findall(DOCUMENT.read_text(encoding="utf-8"))]
    assert len(set(listed)) == len(listed), "a code is listed twice"
    wanted = [f"* **`{code}`**: {sentence}" for code, sentence in all_codes().items() if code not in listed]
    assert wanted == [], "these entries are missing"
    assert sorted(set(listed) - all_codes().keys()) == [], "these codes do not exist"


def test_the_sentences(goldens: Goldens, request: pytest.FixtureRequest):
    codes = all_codes()
    text = DOCUMENT.read_text(encoding="utf-8")
    sentence = re.compile(r"^(\* \*\*`([\w-]+)`\*\*: ).+$", re.MULTILINE)
    right = sentence.sub(lambda match: match.group(1) + codes.get(match.group(2), "no such code"), text)
    goldens.check(DOCUMENT, right, request.node.nodeid)


def test_examples_of_rejected_texts_are_from_them():
    for code, _, example in ENTRY.findall(DOCUMENT.read_text(encoding="utf-8")):
        path = FOLDER / f"{code}.ir"
        if path.exists() and code not in ("no-block", "no-program"):  # these are about what is not there
            assert example.startswith("`")
            assert example.strip("`") in path.read_text(encoding="utf-8"), code
