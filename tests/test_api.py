"""The names that `import pstranspile` offers."""

import ast
import subprocess
import sys
from pathlib import Path

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
        alias.asname: f"{node.module.removeprefix('pstranspile.')}:{alias.name}"
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
