"""docs/reference/diagnostics.md lists exactly the codes there are, each with a sentence and an example."""

import re
from pathlib import Path

from pstranspile.ir.codes import CODES
from tests.compiler.verify.rejected import FOLDER

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "diagnostics.md"
ENTRY = re.compile(r"^\* \*\*`([\w-]+)`\*\*: (.+)\n  Example: (.+)\.$", re.MULTILINE)


def test_exactly_the_codes_there_are():
    listed = [code for code, _, _ in ENTRY.findall(DOCUMENT.read_text(encoding="utf-8"))]
    assert len(set(listed)) == len(listed), "a code is listed twice"
    assert sorted(CODES - {*listed}) == [], "these entries are missing"
    assert sorted({*listed} - CODES) == [], "these codes do not exist"


def test_examples_of_rejected_texts_are_from_them():
    for code, _, example in ENTRY.findall(DOCUMENT.read_text(encoding="utf-8")):
        path = FOLDER / f"{code}.ir"
        if path.exists() and code not in ("no-block", "no-program"):  # these are about what is not there
            assert example.startswith("`")
            assert example.strip("`") in path.read_text(encoding="utf-8"), code
