"""The names that `import pstranspile` offers."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import pstranspile as ps


def test_every_public_name_is_there():
    for name in ps._API:
        assert getattr(ps, name) is not None
        assert name in dir(ps)


def test_unknown_name():
    assert not hasattr(ps, "transpile_everything")


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(ps.__file__).read_text())
    typed = {
        alias.asname or alias.name: f"{node.module.removeprefix('pstranspile.')}:{alias.name}"
        for branch in tree.body
        if isinstance(branch, ast.If)
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == ps._API
    assert ps.__all__ == sorted(ps._API)


def test_submodules_do_not_hide_functions():
    code = (
        "import pstranspile as ps, pstranspile.compile, pstranspile.diff, pstranspile.verify\n"
        "from pstranspile.compile import PASSES\n"
        "assert callable(ps.compile) and callable(ps.diff) and callable(ps.verify) and PASSES\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_module_a_plan_and_a_result_print_as_one_line():
    module = ps.load(Path(__file__).parents[1] / "golden" / "mlp_adam.ir")
    result = ps.compile(module, ps.Job(pservers=2, trainers=2))
    shown = repr(module)
    ops = sum(len(block.ops) for block in module.main.blocks)
    assert f"mlp_adam.ir: @main {ops} ops, " in shown
    assert "; @startup " in shown
    assert repr(result.plan) == "<Plan sync, 2 trainers, 2 pservers: 4 parameters in 5 slices>"
    assert repr(result) == f"<Compiled {shown} for {result.plan!r}>"
    assert len(repr(result)) < 400
    assert repr(ps.Module()) == "<Module: no programs>"
    assert repr(result.trainer(0)).startswith("<Role trainer_0: @main ")
    assert all("\n" not in repr(value) for value in (module, result, result.plan, result.trainer(0)))


def test_export_is_what_load_takes(tmp_path):
    module = ps.load(Path(__file__).parents[1] / "golden" / "mlp_adam.ir")
    ps.export(module, tmp_path / "pb")
    again = ps.load(tmp_path / "pb/main.pb", startup=tmp_path / "pb/startup.pb", meta=tmp_path / "pb/meta.json")
    assert again == module
    with pytest.raises(TypeError, match="export takes a Module, not a value of type Program"):
        ps.export(module.main, tmp_path)
