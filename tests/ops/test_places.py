"""Where op types are declared, as written down: a short cut that must be right and may be missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pstranspile.ops import places

ROOT = Path(__file__).parent.parent.parent

REGENERATE = "python -m pstranspile.ops.places"


def in_a_fresh_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_file_is_what_the_families_say() -> None:
    found = in_a_fresh_process("from pstranspile.ops.places import *; print(as_text(find_places()), end='')")
    assert places.FILE.read_text().strip() == found, f"write it anew with: {REGENERATE}"


def test_one_op_type_loads_few_families_and_all_its_parts() -> None:
    code = """
import sys
from pstranspile.ops import schema_of, kernel, gradient, shapes
schema = schema_of("relu")
loaded = {name for name in sys.modules if name.startswith("pstranspile.ops.")} - {"pstranspile.ops.textual"}
print(schema.type, len(loaded) < 25, kernel.kernel_of("relu") is not None, shapes.rule_of("relu") is not None)
"""
    assert in_a_fresh_process(code) == "relu True True True"


def test_a_type_that_is_not_written_down_is_looked_for_everywhere() -> None:
    code = """
import pstranspile.ops as ops
ops._places = lambda: {"relu": ["reduce"]}
print(ops.schema_of("relu").type, ops.schema_of("adam").type, ops.schema_of("no_such_op"))
"""
    assert in_a_fresh_process(code) == "relu adam None"


def test_compiling_does_not_look_for_families_of_other_packages() -> None:
    code = """
import contextlib, io, sys
from pstranspile.cli import main
with contextlib.redirect_stdout(io.StringIO()):
    assert main(["compile", "golden/linear_regression.ir", "--pservers", "2", "--trainers", "2"]) == 0
loaded = {name for name in sys.modules if name.startswith("pstranspile.ops.")} - {"pstranspile.ops.textual"}
print("importlib.metadata" in sys.modules, len(loaded) < 25)
"""
    assert in_a_fresh_process(code) == "False True"
