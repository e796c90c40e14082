"""docs/diagnostics.md lists exactly the codes there are, each with its sentence and an example."""

import re
from pathlib import Path

from tests.verify.rejected import FOLDER
from tests.verify.test_rejected import all_codes

DOCUMENT = Path(__file__).parents[2] / "docs" / "diagnostics.md"
ENTRY = re.compile(r"^\* \*\*`([\w-]+)`\*\*: (.+)\n  Example: (.+)\.$", re.MULTILINE)


def test_every_code_with_its_sentence():
    entries = ENTRY.findall(DOCUMENT.read_text(encoding="utf-8"))
    listed = {code: sentence for code, sentence, _ in entries}
    assert len(listed) == len(entries), "a code is listed twice"
    wanted = [f"* **`{c}`**: {sentence}" for c, sentence in all_codes().items() if listed.get(c) != sentence]
    assert wanted == [], "these entries are missing, or say something else"
    assert sorted(listed.keys() - all_codes().keys()) == [], "these codes do not exist"


def test_examples_of_rejected_texts_are_from_them():
    for code, _, example in ENTRY.findall(DOCUMENT.read_text(encoding="utf-8")):
        path = FOLDER / f"{code}.ir"
        if path.exists() and code not in ("no-block", "no-program"):  # these are about what is not there
            assert example.startswith("`")
            assert example.strip("`") in path.read_text(encoding="utf-8"), code
