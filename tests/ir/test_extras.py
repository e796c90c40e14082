"""How extras are installed is told in one wording, for extras that there are."""

from __future__ import annotations

import re
from typing import get_args

from pstranspile.ir.diagnostics import Extra, installing
from tests.conftest import ROOT


def test_extras_are_those_of_the_project():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    there = re.findall(r"(?m)^(\w+) = \[", text[text.index("[project.optional-dependencies]") :].split("\n\n")[0])
    assert set(get_args(Extra)) <= set(there)


def test_the_command_is_that_of_a_clone():
    assert installing("data") == "pip install '.[data]' in the folder of pstranspile"
    files = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", *(ROOT / "pstranspile").rglob("*.py")]
    assert [str(file) for file in files if "install 'pstranspile[" in file.read_text(encoding="utf-8")] == []
