"""`--init` takes a folder of Fluid's `save_persistables`."""

import ast
import re
from pathlib import Path

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.runtime.run.files import read_initial
from pstranspile.tools.cli import main

PROGRAM = str(Path(__file__).parents[3] / "examples" / "regression.ir")


@pytest.fixture
def saved(tmp_path):
    module = ps.load(PROGRAM)
    scope = ps.Scope()
    ps.run(module["startup"], scope=scope)
    draw = np.random.default_rng(1)
    scope["w"] = draw.normal(size=scope["w"].shape).astype("float32")
    ps.save_variables(module["main"], scope, tmp_path / "persistables")
    ps.save_variables(module["main"], scope, tmp_path / "combined", layout="combined")
    x = draw.normal(size=(2, 4, 1000)).astype("float32")
    np.savez(tmp_path / "data.npz", x=x, y=x[:, :, :20])
    np.savez(tmp_path / "same.npz", **{n: scope[n] for n in ps.load(PROGRAM).main.main_block.vars if n in ("w", "b")})
    return tmp_path


@pytest.mark.parametrize("job", [[], ["--pservers", "2", "--trainers", "2"]])
def test_a_folder_gives_what_a_file_gives(saved, job, capsys):
    shown = []
    for init in ("persistables", "combined", "same.npz"):
        command = ["run", PROGRAM, *job, "--feed", str(saved / "data.npz"), "--init", str(saved / init)]
        assert main([*command, "--save", str(saved / f"{init}.out.npz")]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] == shown[2]
    one, *others = (np.load(saved / f"{init}.out.npz") for init in ("persistables", "combined", "same.npz"))
    assert all(np.array_equal(one[name], other[name]) for name in one.files for other in others)


def test_check_takes_a_folder(saved):
    job = ["--pservers", "2", "--trainers", "2", "--feed", str(saved / "data.npz")]
    assert main(["check", PROGRAM, *job, "--steps", "2", "--init", str(saved / "persistables")]) == 0


def test_a_file_that_is_no_variable(saved, capsys):
    (saved / "persistables" / "ww").write_bytes((saved / "persistables" / "w").read_bytes())
    status = main(["run", PROGRAM, "--feed", str(saved / "data.npz"), "--init", str(saved / "persistables")])
    assert status == 1
    assert "declares no persistable variable ww" in capsys.readouterr().err


def test_names_with_folders(saved):
    (saved / "persistables" / "emb").mkdir()
    (saved / "persistables" / "w").rename(saved / "persistables" / "emb" / "w")
    assert "emb/w" in read_initial(saved / "persistables", ps.load(PROGRAM).main)


def test_what_is_no_such_folder(saved):
    (saved / "empty").mkdir()
    with pytest.raises(DiagnosticError, match="the folder is empty"):
        read_initial(saved / "empty", ps.load(PROGRAM).main)
    (saved / "persistables" / "w").write_bytes(b"no tensor")
    with pytest.raises(DiagnosticError, match="persistables/w"):
        read_initial(saved / "persistables", ps.load(PROGRAM).main)


def test_the_scripts_for_fluid_are_written_for_its_python():
    page = (Path(__file__).parents[3] / "docs" / "guides" / "from_fluid.md").read_text()
    scripts = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    assert len(scripts) == 2
    for script in scripts:
        ast.parse(script, feature_version=(3, 7))


def test_a_combined_file_of_another_program(saved, capsys):
    (saved / "combined").write_bytes((saved / "combined").read_bytes()[:-10])
    assert main(["run", PROGRAM, "--feed", str(saved / "data.npz"), "--init", str(saved / "combined")]) == 1
    assert "error[values-damaged]" in capsys.readouterr().err


def test_a_python_script_in_place_of_a_program(tmp_path, capsys):
    (tmp_path / "train.py").write_text("import paddle.fluid as fluid\n")
    assert main(["verify", str(tmp_path / "train.py")]) == 1
    assert "this is a Python script; dump its programs where it runs" in capsys.readouterr().err
