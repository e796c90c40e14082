"""Families of ops: declarations and kernels in files of the same name, and which of them a command imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from pstranspile.ops import all_schemas, families, schema_of
from pstranspile.runtime.kernels.kernel import kernel_of

ROOT = Path(__file__).parent.parent.parent
KERNELS = ROOT / "pstranspile" / "runtime" / "kernels"
FAMILIES = [family.removeprefix("pstranspile.ops.") for family in families()]


def kernel_file(family: str) -> Path:
    return KERNELS.joinpath(*family.split(".")).with_suffix(".py")


def types_of_kernels(path: Path) -> set[str]:
    """The op types that a file registers kernels for by their names (not those of a list it has)."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    named = [call for call in calls if isinstance(call.func, ast.Name)]
    registering = [call for call in named if call.func.id in ("kernel", "plain_kernel", "formula")]
    names = [call.args[0].value for call in registering if isinstance(call.args[0], ast.Constant)]
    return {op_type for name in names for op_type in name.split()}


def test_every_file_of_kernels_in_an_area_has_declarations_of_the_same_name():
    areas = {family.partition(".")[0] for family in FAMILIES}
    files = [path for area in areas for path in (KERNELS / area).glob("[a-z]*.py")]
    assert {f"{path.parent.name}.{path.stem}" for path in files} <= set(FAMILIES)
    assert len(files) > 25


@pytest.mark.parametrize("family", [family for family in FAMILIES if kernel_file(family).exists()])
def test_kernels_are_in_the_file_named_as_that_of_their_declarations(family: str):
    types = types_of_kernels(kernel_file(family))
    assert types
    assert {op_type: schema_of(op_type).module for op_type in types} == dict.fromkeys(
        types, f"pstranspile.ops.{family}"
    )


def test_every_kernel_is_found_by_its_op_type():
    found = {op_type for op_type in all_schemas() if kernel_of(op_type) is not None}
    assert len(found) > 480
    for family in FAMILIES:
        if kernel_file(family).exists():
            assert types_of_kernels(kernel_file(family)) <= found


COMMUNICATING = ("programs.collective", "programs.parameter_server")
"""Families whose ops machines carry out together, or nothing does: they need no kernels."""

NOT_RUN = {"cudnn_lstm": "of GPUs alone", "cudnn_lstm_grad": "of GPUs alone", "coalesce_tensor": "of Fluid's executors"}
"""The other ops that have no kernel, each with the reason."""


def test_every_other_op_has_a_kernel():
    """An op is declared in `pstranspile/ops`, and computed by the kernel of the same family."""
    computed = {op for op, schema in all_schemas().items() if not schema.module.endswith(COMMUNICATING)}
    assert sorted(op for op in computed if kernel_of(op) is None) == sorted(NOT_RUN)


def test_every_family_declares_ops():
    declaring = {schema.module for schema in all_schemas().values()}
    assert [family for family in families() if family not in declaring] == []


def in_a_fresh_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_one_op_type_imports_only_the_kernels_of_its_family():
    code = """
import sys
from pstranspile.runtime.kernels.kernel import kernel_of
print(kernel_of("relu") is not None, kernel_of("c_broadcast"), kernel_of("no_such_op"))
areas = ("math", "tensors", "images", "sequences", "tables", "training", "programs")
kernels = "pstranspile.runtime.kernels."
names = [name.removeprefix(kernels) for name in sys.modules if name.startswith(kernels)]
print(*[name for name in names if "." in name and name.split(".")[0] in areas])
"""
    assert in_a_fresh_process(code) == "True None None\nmath.activation"


def test_compiling_imports_no_kernels_and_looks_for_no_other_packages():
    code = """
import contextlib, io, sys
from pstranspile.tools.cli import main
with contextlib.redirect_stdout(io.StringIO()):
    assert main(["compile", "golden/linear_regression.ir", "--pservers", "2", "--trainers", "2"]) == 0
    assert main(["verify", "golden/linear_regression.ir"]) == 0
heavy = ("numpy", "pstranspile.runtime.kernels", "pstranspile.runtime.arithmetic", "importlib.metadata")
print([name for name in heavy if name in sys.modules])
"""
    assert in_a_fresh_process(code) == "[]"
