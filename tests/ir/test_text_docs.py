"""`docs/reference/ir.md` shows canonical text, and names every code of the text layer."""

from __future__ import annotations

import re
from pathlib import Path

from pstranspile.ir.text import codes
from pstranspile.ops.textual import parse, print_module

DOCS = (Path(__file__).parents[2] / "docs" / "reference" / "ir.md").read_text(encoding="utf-8")


def test_the_example_is_canonical():
    (example,) = re.findall(r"```\n(ir 1.*?)```", DOCS, re.DOTALL)
    assert print_module(parse(example)) == example


def test_every_code_is_named():
    for name, code in vars(codes).items():
        if name.isupper():
            assert f"`{code}`" in DOCS
