"""`docs/reference/ir.md` shows canonical text, and names every code of the text layer."""

from __future__ import annotations

import re
from pathlib import Path

from pstranspile.ops.textual import parse, print_module
from tests.codes import codes_in

DOCS = (Path(__file__).parents[2] / "docs" / "reference" / "ir.md").read_text(encoding="utf-8")


def test_the_example_is_canonical():
    (example,) = re.findall(r"```ir\n(ir 1.*?)```", DOCS, re.DOTALL)
    assert print_module(parse(example)) == example


def test_every_code_is_named():
    assert [code for code in sorted(codes_in("ir/text") - codes_in("compiler/verify")) if f"`{code}`" not in DOCS] == []
