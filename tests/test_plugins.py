"""Ops and passes of other packages, installed beside this one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

SWISH = """
import numpy as np
from pstranspile.ir.codes import declare as declare_code
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.runtime.kernels.kernel import kernel
from pstranspile.ops.facts import Below
from pstranspile.ops.schema import declare, declare_gradient
from pstranspile.ops.shapes import one, shape_rule

REFUSED = declare_code("swish-refused")
declare("my_swish", "X -> Out", {"beta": 1.0}, doc="Out = X * sigmoid(beta * X)")
declare_gradient("my_swish", "X Out@GRAD -> X@GRAD")
declare("my_unpack", "X Index -> Out", rows="own", domains={"Index": Below("X", 0)})


@shape_rule("my_swish")
def shape(op, types):
    return {"Out": (one(types, "X"),)}


@kernel("my_swish")
def swish(op):
    beta = op.attrs["beta"]
    return lambda X: X / (1 + np.exp(-beta * X))


def to_swish(module):
    block = module.main.main_block
    ops = tuple(op._replace(type="my_swish") if op.type == "relu" else op for op in block.ops)
    main = module.main._replace(blocks=(block._replace(ops=ops),))
    return type(module)(type(module.programs)({**module.programs, "main": main}), module.source)


def refuse(module):
    raise DiagnosticError([error(REFUSED, "this pass likes no program")])


def crash(module):
    raise KeyError("x")


def nothing(module):
    return None
"""

ENTRIES = """
[pstranspile.ops]
swish = swish_ops

[pstranspile.passes]
to-swish = swish_ops:to_swish
refuse = swish_ops:refuse
crash = swish_ops:crash
nothing = swish_ops:nothing
missing = swish_ops:not_there
"""

PROGRAM = """ir 1

program @main {
  block ^0 {
    temp %x : f32[-1, 4]
    temp %y : f32[-1, 4]
    relu(X=%x) -> Out=%y
  }
}
"""


@pytest.fixture
def installed(tmp_path):
    """A folder with another package in it, and a program."""
    (tmp_path / "swish_ops.py").write_text(SWISH)
    info = tmp_path / "swish_ops-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: swish-ops\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    (tmp_path / "net.ir").write_text(PROGRAM)
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT), str(folder)])
    return subprocess.run(
        [sys.executable, "-m", "pstranspile", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_op_of_another_package_is_verified_and_printed(installed):
    (installed / "own.ir").write_text(PROGRAM.replace("relu(X=%x) -> Out=%y", "my_swish(X=%x) -> Out=%y {beta=1.0}"))
    assert run(installed, "verify", "own.ir").stderr == ""
    assert "beta" not in run(installed, "fmt", "own.ir").stdout
    (installed / "wrong.ir").write_text(PROGRAM.replace("relu(X=%x)", "my_swish(Y=%x)"))
    wrong = run(installed, "verify", "wrong.ir")
    assert wrong.returncode == 1
    assert "my_swish" in wrong.stderr


def test_an_op_of_another_package_runs(installed):
    script = """
import numpy as np, pstranspile as ps
module = ps.loads(open("net.ir").read().replace("relu(X=%x)", "my_swish(X=%x)"))
y = ps.run(module["main"], feed={"x": np.ones((1, 4), "float32")}, fetch=["y"], scope=ps.Scope())["y"]
print(round(float(y[0, 0]), 4))
"""
    paths = os.pathsep.join([str(ROOT), str(installed)])
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=installed,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "0.7311\n"


def test_facts_that_another_package_states_are_known(installed):
    script = """
from pstranspile.ops import facts_of
facts = facts_of("my_unpack")
index = facts.domains["Index"]
print(facts.rows, index.of, index.axis, facts_of("my_swish").rows)
"""
    paths = os.pathsep.join([str(ROOT), str(installed)])
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "own X 0 kept\n"


def test_a_fact_that_there_is_none_of_is_reported(installed):
    (installed / "swish_ops.py").write_text(SWISH.replace('rows="own"', 'row="own"'))
    (installed / "own.ir").write_text(PROGRAM.replace("relu(", "my_swish("))
    done = run(installed, "verify", "own.ir")
    assert done.returncode == 1
    assert "op family 'swish' (swish_ops) can't be loaded: ValueError: my_unpack: there is no fact 'row'" in done.stderr


def test_passes_of_another_package_are_listed(installed):
    lines = run(installed, "passes").stdout.splitlines()
    assert next(line for line in lines if line.startswith("to-swish ")).endswith("with --pass to-swish")
    assert lines.index(next(line for line in lines if line.startswith("find-roles"))) > 3


def test_a_pass_runs_when_it_is_asked_for(installed):
    (installed / "train.ir").write_text((ROOT / "golden" / "mlp_adam.ir").read_text())
    job = ["--pservers", "1", "--trainers", "1"]
    assert "my_swish" not in run(installed, "compile", "train.ir", *job).stdout
    done = run(installed, "compile", "train.ir", *job, "--pass", "to-swish")
    assert done.returncode == 0, done.stderr
    assert "my_swish(" in done.stdout


@pytest.mark.parametrize(
    ("name", "words", "status"),
    [
        ("refuse", "this pass likes no program", 1),
        ("crash", "the pass 'crash' failed: KeyError", 1),
        ("nothing", "gave NoneType, not a Module", 1),
        ("missing", "can't be loaded: AttributeError", 1),
        ("absent", "no installed package offers the pass 'absent' (offered: crash, missing", 2),
        ("mint-names", "a pass of the compiler itself", 2),
    ],
)
def test_a_pass_that_fails_is_reported(installed, name, words, status):
    done = run(installed, "grad", "net.ir", "--loss", "y", "--optimizer", "sgd", "--pass", name)
    assert done.returncode == status
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_an_op_family_that_fails_is_reported(installed):
    (installed / "swish_ops.py").write_text("1 / 0\n")
    (installed / "own.ir").write_text(PROGRAM.replace("relu(", "my_swish("))
    done = run(installed, "verify", "own.ir")
    assert done.returncode == 1
    assert "op family 'swish' (swish_ops) can't be loaded: ZeroDivisionError" in done.stderr


def test_a_pass_that_fails_shows_its_own_traceback(installed):
    done = run(installed, "compile", "net.ir", "--pass", "crash", "--pservers", "1")
    assert done.returncode == 1
    assert "error[pass]: the pass 'crash' failed: KeyError: 'x'" in done.stderr
    where = done.stderr[done.stderr.index("note: this is where:") :]
    assert f'File "{installed / "swish_ops.py"}", line' in where
    assert 'raise KeyError("x")' in where
    assert "plugins.py" not in where


def test_a_package_that_fails_as_it_is_imported_shows_where(installed):
    (installed / "swish_ops.py").write_text("import math\nx = math.no_such_thing\n")
    done = run(installed, "compile", "net.ir", "--pass", "crash", "--pservers", "1")
    assert "can't be loaded: AttributeError" in done.stderr
    assert f'File "{installed / "swish_ops.py"}", line 2' in done.stderr
    assert "importlib" not in done.stderr
