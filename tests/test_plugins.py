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


def test_a_package_whose_name_begins_as_this_one_has_it_is_another(tmp_path):
    """Both lie in one folder, as where they are installed."""
    (tmp_path / "pstranspile").symlink_to(ROOT / "pstranspile")
    (tmp_path / "pstranspile_swish.py").write_text("raise SystemExit(0)\n")
    info = tmp_path / "pstranspile_swish-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pstranspile-swish\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pstranspile.ops]\nswish = pstranspile_swish\n")
    (tmp_path / "net.ir").write_text(PROGRAM.replace("relu(", "my_swish("))
    done = subprocess.run(
        [sys.executable, "-m", "pstranspile", "verify", "net.ir"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert (
        "error[op-family]: the op family 'swish' (pstranspile_swish) can't be loaded: it ends the process"
        in done.stderr
    )
    assert "it is of the package pstranspile-swish 1.0" in done.stderr
    assert 'pstranspile_swish.py", line 1' in done.stderr


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


OF_PACKAGE = "of the package swish-ops 1.0"
GOOD = SWISH + "\nfrom pstranspile.ops.gradient import bare_op, gradient\n"


def other_package(folder, name, entries):
    """Installs a package with these entry points into a folder."""
    info = folder / f"{name.replace('-', '_')}-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text(entries)


def own_op(folder):
    (folder / "own.ir").write_text(PROGRAM.replace("relu(", "my_swish("))
    return "own.ir"


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("raise SystemExit(0)", "can't be loaded: it ends the process (status 0)"),
        ("1 / 0", "can't be loaded: ZeroDivisionError: division by zero"),
        (SWISH + "\n1 / 0", "can't be loaded: ZeroDivisionError"),
        (SWISH + "\ndeclare('my_swish', 'X -> Out')", "op type my_swish is declared twice: swish_ops has declared it"),
        (SWISH + "\ndeclare('relu', 'X -> Out')", "relu is declared twice: pstranspile.ops."),
        (
            SWISH + "\n@kernel('relu')\ndef k(op):\n    return lambda X: X",
            "relu is of pstranspile, another package",
        ),
        (GOOD + "\n@gradient('relu')\ndef g(op, wanted):\n    return ()", "can't give it a gradient rule"),
        (GOOD + "\ndeclare_gradient('relu', 'X Out@GRAD -> X@GRAD', op_type='r')", "can't give it a gradient op"),
        (GOOD + "\n@shape_rule('print')\ndef s(op, types):\n    return {}", "can't be loaded"),
    ],
)
def test_a_family_that_is_wrong_names_its_package_for_every_program(installed, family, words):
    """Nothing of it is declared: not either for the second program, after the first one's finding."""
    (installed / "swish_ops.py").write_text(family)
    script = f"""
import pstranspile as ps
for _ in range(2):
    try:
        print(ps.verify(ps.load({own_op(installed)!r})))
    except ps.DiagnosticError as problem:
        print(problem)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(installed)])}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=installed, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.count(words) == 2
    assert done.stdout.count(OF_PACKAGE) == 2


@pytest.mark.parametrize("value", ["swish ops!!", "", ":f"])
def test_an_entry_point_that_names_no_module(installed, value):
    entries = f"[pstranspile.ops]\nswish = {value}\n[pstranspile.passes]\nswish = {value}\n"
    (installed / "swish_ops-1.0.dist-info" / "entry_points.txt").write_text(entries)
    for done in (
        run(installed, "verify", own_op(installed)),
        run(installed, "compile", "net.ir", "--pass", "swish", "--pservers", "1"),
    ):
        assert done.returncode == 1
        assert f"'swish' ({value}) can't be loaded: its entry point must be `module` or `module:name`" in done.stderr
        assert OF_PACKAGE in done.stderr


def test_entry_points_that_are_no_text(installed):
    (installed / "swish_ops-1.0.dist-info" / "entry_points.txt").write_bytes(b"[pstranspile.ops]\nsw\xff = a\n")
    done = run(installed, "verify", own_op(installed))
    assert done.returncode == 1
    assert "the entry points of the package swish-ops 1.0 can't be read: UnicodeDecodeError" in done.stderr


def test_what_a_package_prints_is_not_in_the_text_of_a_program(installed):
    """Neither as it is imported, nor as its pass runs."""
    (installed / "swish_ops.py").write_text("print('importing')\n" + SWISH.replace("def to_swish(module):", PRINTING))
    (installed / "train.ir").write_text((ROOT / "golden" / "mlp_adam.ir").read_text())
    done = run(installed, "compile", "train.ir", "--pservers", "1", "--trainers", "1", "--pass", "to-swish")
    assert done.returncode == 0
    assert ("importing" in done.stdout, "passing" in done.stdout) == (False, False)
    assert ("importing" in done.stderr, "passing" in done.stderr) == (True, True)


PRINTING = "def to_swish(module):\n    print('passing')"


SLOW = """
import sys
import pstranspile.ops.plugins as offered

offered.PATIENCE = float(sys.argv.pop(1))
from pstranspile.__main__ import main

sys.argv[0] = "pstranspile"
main()
"""


@pytest.mark.parametrize(("patience", "told"), [(0.2, 1), (60, 0)])
def test_a_package_that_takes_long_to_import_is_named(installed, patience, told):
    (installed / "swish_ops.py").write_text("import time\ntime.sleep(1.5)\n" + SWISH)
    (installed / "own.ir").write_text(PROGRAM.replace("relu(", "my_swish("))
    done = subprocess.run(
        [sys.executable, "-c", SLOW, str(patience), "verify", "own.ir"],
        cwd=installed,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(installed)])},
        capture_output=True,
        text=True,
        check=False,
    )
    line = "the op family 'swish' (swish_ops) of the package swish-ops 1.0 is still being imported\n"
    assert (done.returncode, done.stderr.count(line), done.stdout) == (0, told, "")


def test_two_packages_with_a_pass_of_one_name(installed):
    other_package(installed, "other-swish", "[pstranspile.passes]\nto-swish = other_ops:f\n")
    done = run(installed, "compile", "net.ir", "--pass", "to-swish", "--pservers", "1")
    assert done.returncode == 1
    says = "the pass 'to-swish' is offered by the package other-swish 2.0 (other_ops:f) and the package swish-ops 1.0"
    assert says in done.stderr


def test_a_pass_that_ends_the_process(installed):
    (installed / "swish_ops.py").write_text(SWISH.replace('raise KeyError("x")', "raise SystemExit(0)"))
    done = run(installed, "compile", "net.ir", "--pass", "crash", "--pservers", "1")
    assert done.returncode == 1
    assert "the pass 'crash' failed: it ends the process (status 0)" in done.stderr
    assert OF_PACKAGE in done.stderr


TRAINED = """ir 1

program @main {
  block ^0 {
    temp %x : f32[-1, 4]
    param %w : f32[4, 4]
    temp %h : f32[-1, 4]
    temp %y : f32[-1, 4]
    temp %l : f32[1]
    mul(X=%x, Y=%w) -> Out=%h
    my_swish(X=%h) -> Out=%y
    mean(X=%y) -> Out=%l
  }
}
"""

ASKING = """
import sys
import numpy as np, pstranspile as ps
import swish_ops
from pstranspile.ir.types import DType
from pstranspile.ir.model import TensorType
from pstranspile.ops import gradient, shapes, work
from pstranspile.ops.gradient import bare_op
from pstranspile.runtime.kernels import kernel

op = ps.load("own.ir").main.main_block.ops[0]
x = TensorType(DType.FP32, (-1, 4))
for code in sys.stdin.read().splitlines():
    what, _, code = code.partition(" ")
    try:
        if what == "shape":
            schema = shapes.schema_of("my_swish")
            shapes._RESOLVED["my_swish"] = shapes._guard_rule(schema, lambda op, types: eval(code))
            print(shapes.infer_types(op, lambda name: x))
        elif what == "work":
            work._RULES.pop("my_swish", None)
            work.work_rule("my_swish")(lambda op, types: eval(code))
            print(work.operations(op, {"X": (x,)}, {"Out": (x,)}))
        elif what == "gradient":
            rule = gradient._guard_rule(lambda op, wanted: eval(code))
            print(rule(op, gradient.WantedGradients()))
        else:
            made = kernel._KERNELS["my_swish"]._replace(make=lambda op: lambda X: eval(code))
            kernel._KERNELS["my_swish"] = made
            shapes._RESOLVED.clear()
            feed = {"x": np.ones((1, 4), "float32")}
            print(ps.run(ps.load("own.ir").main, feed=feed, fetch=["y"], scope=ps.Scope()))
    except ps.DiagnosticError as problem:
        said = str(problem)
        print(said.splitlines()[0], "of the package" in said or "the module swish_ops" in said)
"""

NONSENSE = [
    ("shape None", "its shape rule gives NoneType, not a dict"),
    ("shape {'Out': None}", "its shape rule gives NoneType for Out"),
    ("shape {'Out': x}", "its shape rule gives TensorType for Out, not a tuple"),
    ("shape {'Out': ('f32',)}", "'f32' for Out, not a TensorType"),
    ("shape {'Out': (TensorType(DType.FP32, (-7, 2)),)}", "not a TensorType with a DType and dims of -1 or more"),
    ("shape {'Out': (TensorType('f32', [2]),)}", "not a TensorType with a DType and dims of -1 or more"),
    ("shape {'Nope': (x,)}", "types for the slot 'Nope', which is no output of the op (outputs: Out)"),
    ("shape 1 / 0", "its shape rule fails: ZeroDivisionError: division by zero"),
    ("shape sys.exit(0)", "its shape rule fails: it ends the process (status 0)"),
    ("work None", "its work rule gives None, not a number of operations"),
    ("work -1", "its work rule gives -1, not a number"),
    ("work float('nan')", "its work rule gives nan, not a number"),
    ("work 1 / 0", "its work rule fails: ZeroDivisionError: division by zero"),
    ("work sys.exit(0)", "its work rule fails: it ends the process (status 0)"),
    ("gradient None", "its gradient rule gives NoneType, not a tuple of ops"),
    ("gradient op", "its gradient rule gives Op, not a tuple of ops"),
    ("gradient ('a',)", "its gradient rule gives str among its ops"),
    ("gradient 1 / 0", "its gradient rule fails: ZeroDivisionError"),
    ("gradient sys.exit(0)", "its gradient rule fails: it ends the process (status 0)"),
    ("gradient (bare_op('nope', {}, {}),)", "its gradient rule gives an op nope, which there is not"),
    ("gradient (bare_op('scale', {'X': ('zz',)}, {'Out': ('x@GRAD',)}),)", "scale, which reads zz"),
    ("gradient (bare_op('scale', {'X': ('y',)}, {'Out': 'x@GRAD'}),)", "'x@GRAD' in the slot Out of scale"),
    ("kernel 3", "its kernel gives int for Out, its shape rule f32[-1, 4]"),
    ("kernel (X, X)", "its kernel gives tuple for Out"),
    ("kernel X.astype('float64')", "its kernel gives float64[1, 4] for Out, its shape rule f32[-1, 4]"),
    ("kernel X[:, :2]", "its kernel gives float32[1, 2] for Out, its shape rule f32[-1, 4]"),
    ("kernel np.array(['a'])", "for Out, its shape rule f32[-1, 4]"),
    ("kernel 1 / 0", "division by zero"),
    ("kernel sys.exit(0)", "its kernel fails: it ends the process (status 0)"),
]


def test_what_makes_no_sense_in_a_family_is_a_finding_about_its_package(installed):
    own_op(installed)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(installed)])}
    codes = "\n".join(code for code, _ in NONSENSE)
    done = subprocess.run(
        [sys.executable, "-c", ASKING],
        cwd=installed,
        env=environment,
        input=codes,
        capture_output=True,
        text=True,
        check=True,
    )
    said = done.stdout.splitlines()
    assert len(said) == len(NONSENSE), done.stdout
    for line, (code, words) in zip(said, NONSENSE, strict=True):
        assert words in line, code
        assert line.startswith("own.ir:7:5: error["), code
        assert line.endswith(" True"), code


@pytest.mark.parametrize(("code", "words"), [("None", "not a tuple of ops"), ("sys.exit(0)", "ends the process")])
def test_a_gradient_rule_that_fails_is_reported_by_the_command(installed, code, words):
    rule = f"import sys\n\n@gradient('my_swish')\ndef g(op, wanted):\n    return {code}\n"
    (installed / "swish_ops.py").write_text(GOOD.replace("declare_gradient(", "#") + rule)
    (installed / "train.ir").write_text(TRAINED)
    done = run(installed, "grad", "train.ir", "--loss", "l", "--optimizer", "sgd")
    assert done.returncode == 1
    assert words in done.stderr
    assert OF_PACKAGE in done.stderr
