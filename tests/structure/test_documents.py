"""What users look up has its place in the documents: modes, verbs."""

import re
from pathlib import Path

import pytest

from pstranspile.compiler.job.modes import mode_names
from pstranspile.tools.cli import VERBS

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize("mode", mode_names())
def test_a_mode_has_its_row(mode: str):
    rows = [line for line in (REFERENCE / "job.md").read_text().splitlines() if line.startswith("|")]
    assert any(re.match(rf"\| `{re.escape(mode)}`( \(default\))? \|", row) for row in rows), (
        f"no row of {mode} in job.md"
    )


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_a_verb_has_its_section(verb: str):
    headings = re.findall(r"^## (.+)$", (REFERENCE / "cli.md").read_text(), re.MULTILINE)
    assert any(verb in heading.split() for heading in headings), f"no section of {verb} in cli.md"
