"""Scripts written for Fluid print what they print when Fluid 1.8.5 runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pstranspile.fluid as fluid
from pstranspile.fluid.running.failures import render_diagnostics, traceback_of
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import Location
from tests.fluid.running import RECORDED, SCRIPTS, fresh, printed

ALONE = sorted(path.stem for path in RECORDED.glob("*.txt"))
"""Scripts for one machine; what Fluid 1.8.5 printed is recorded."""


@pytest.mark.parametrize("name", ALONE)
def test_losses_are_those_of_fluid(name: str, tmp_path: Path) -> None:
    losses = [float(line.split()[1]) for line in printed(SCRIPTS / f"{name}.py", str(tmp_path / "saved")).splitlines()]
    wanted = [float(word) for word in (RECORDED / f"{name}.txt").read_text().split()]
    np.testing.assert_allclose(losses, wanted, rtol=1e-5, atol=1e-6)


def runner(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pstranspile.fluid", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def test_paddle_is_this_package_in_the_script_and_what_it_starts_and_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import subprocess, sys\n"
        "from paddle.fluid.layers.nn import fc\n"
        "import paddle.fluid as fluid\n"
        "assert fluid.layers.fc is fc\n"
        "if len(sys.argv) > 1:\n"
        "    subprocess.run([sys.executable, '-c', 'import paddle.fluid; print(paddle.fluid.__name__)'], check=True)\n"
        "    print(sys.argv, __name__)\n"
    )
    done = runner("script.py", "--lr", "3", folder=tmp_path)
    assert done.stdout == "pstranspile.fluid\n['script.py', '--lr', '3'] __main__\n", done.stderr
    alone = subprocess.run([sys.executable, "-c", "import paddle"], capture_output=True, text=True, cwd=tmp_path)
    assert "No module named 'paddle'" in alone.stderr


def test_names_that_are_not_there_fail_where_they_are_used(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "from paddle.fluid.dataset import BoxPSDataset as moved\n"
        "import paddle.fluid.contrib.slim as slim\nprint('imported')\nmoved(1)\n"
    )
    done = runner("script.py", folder=tmp_path)
    assert done.stdout == "imported\n"
    assert "Fluid's fluid.dataset.BoxPSDataset is not part of pstranspile.fluid" in done.stderr
    (tmp_path / "script.py").write_text("import paddle.fluid as fluid\nfluid.layers.fcc\n")
    assert "has no attribute 'fcc'; did you mean fc?" in runner("script.py", folder=tmp_path).stderr


FAILING = """\
import numpy as np
import paddle.fluid as fluid

def main():
    x = fluid.data("x", [None, 4])
    loss = fluid.layers.mean(
        fluid.layers.fc(x, 1))
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(feed={"x": np.ones((2, WIDTH), "float32")}, fetch_list=[loss])

main()
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            FAILING.replace("WIDTH", "4"),
            "script.py:7:9: error[run-uninitialised]: mul: fc_0.w_0 (Y) has no value: no start-up program has given it"
            " one, and no initial value was given\n"
            "    7 |         fluid.layers.fc(x, 1))\n"
            "      |         ^^^^^^^^^^^^^^^^^^^^^^\n"
            "script.py:9:5: note: when this was run\n"
            '    9 |     exe.run(feed={"x": np.ones((2, 4), "float32")}, fetch_list=[loss])\n'
            "      |     ^",
        ),
        (
            FAILING.replace("WIDTH", "5"),
            "Traceback (most recent call last):\n"
            '  File "script.py", line 11, in <module>\n'
            "    main()\n"
            '  File "script.py", line 9, in main\n',
        ),
        ("x = (\n", '  File "script.py", line 1\n    x = (\n        ^\nSyntaxError: '),
    ],
    ids=["finding", "exception", "syntax"],
)
def test_a_script_that_fails_is_shown_by_its_own_lines(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(text)
    done = runner("script.py", folder=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(message)
    assert "pstranspile" not in done.stderr


def test_a_fault_of_ours_is_shown_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["pstranspile.fluid.layers.adapt"], "bound", None)
    with fresh(), pytest.raises(TypeError) as caught:
        fluid.layers.fc(fluid.data("x", [None, 4]), 1)
    shown = traceback_of(caught.value)
    assert "pstranspile/fluid/layers/adapt.py" in shown
    assert shown.endswith("TypeError: 'NoneType' object is not callable\n")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("fluid.layers.fc(x, size=8, act='reluu')", "ValueError: there is no activation 'reluu'; did you mean relu?"),
        ("fluid.layers.fc(x, size='8')", "TypeError: %fc_0.w_0 would be of dims [4, '8']: each is a whole number"),
        (
            "fluid.layers.embedding(fluid.data('i', [None, 1], 'int64'), ['10', 4])",
            "TypeError: %embedding_0.w_0 would be of dims ['10', 4]: each is",
        ),
        ("fluid.layers.dropout(x, '0.5')", "TypeError: dropout: the attribute dropout_prob is a number, not the text"),
        ("fluid.layers.data('z', ['4'])", "TypeError: a dim is a whole number, not the text '4'"),
        ("fluid.data('z', [None, '4'])", "TypeError: a dim is a whole number, not the text '4'"),
        ("fluid.layers.fill_constant([2], 'float32', 'one')", "ValueError: fill_constant: 'one' is no value of a f32"),
    ],
)
def test_a_setting_of_another_kind_is_told_at_the_line_of_the_script(line: str, told: str) -> None:
    script = f"import pstranspile.fluid as fluid\nx = fluid.data('x', [None, 4])\n{line}\n"
    with fresh(), pytest.raises((ValueError, TypeError)) as caught:
        exec(compile(script, "net.py", "exec"), {})
    shown = traceback_of(caught.value)
    assert 'File "net.py", line 3' in shown
    assert "pstranspile/" not in shown
    assert shown.splitlines()[-1].startswith(told)


def test_every_finding_of_a_line_has_its_place(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text("def fail():\n    raise problem\n\n\nfail()\n")
    code = compile(script.read_text(), str(script), "exec")
    several = [error("run-feed-mismatch", "x is odd"), error("run-feed-mismatch", "y is odd", Location(str(script)))]
    for findings in (several, [*several, error("run-op-failed", "mul", Location("net.ir", 3, 1))]):
        with pytest.raises(DiagnosticError) as caught:
            exec(code, {"problem": DiagnosticError(findings)})
        shown = render_diagnostics(caught.value)
        assert shown.count(f"{script}:2:5: error[run-feed-mismatch]") == 2
        assert shown.count("note: when this was run") == len(findings) - 2


def test_a_text_of_a_number_is_a_value_to_fill_with() -> None:
    """As in Fluid, which converts it."""
    with fresh():
        fluid.layers.fill_constant([2], "float32", "1.5")
        (op,) = fluid.default_main_program().global_block().ops
        assert (op.attr("value"), op.attr("str_value")) == (1.5, "1.5")


def test_what_is_no_module_can_not_be_imported_as_one(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import paddle.fluid.Executor\n")
    assert "No module named 'paddle.fluid.Executor'" in runner("script.py", folder=tmp_path).stderr


@pytest.mark.parametrize(
    ("module", "given", "near"), [("paddle.fluid.layers", "fcc", "fc"), ("paddle", "fluidd", "fluid")]
)
def test_a_failed_import_names_the_module_as_the_script_does(
    module: str, given: str, near: str, tmp_path: Path
) -> None:
    (tmp_path / "s.py").write_text(f"import sys\nfrom {module} import {given}\n")
    done = runner("s.py", folder=tmp_path)
    assert done.returncode == 1
    assert 's.py", line 2' in done.stderr
    assert done.stderr.endswith(f"ImportError: cannot import name '{given}' from '{module}'; did you mean {near}?\n")


def test_check_explain_and_what_was_built(tmp_path: Path) -> None:
    script = str(SCRIPTS / "wide_and_deep.py")
    done = runner("--check", "--ir", "built", script, folder=tmp_path)
    assert done.stdout.startswith("the cluster trains as the single machine does\n"), done.stdout + done.stderr
    assert sorted(path.name for path in (tmp_path / "built" / "job_0").glob("*.ir")) == [
        "pserver_0.ir",
        "pserver_1.ir",
        "trainer_0.ir",
        "trainer_1.ir",
    ]
    assert "adam" in (tmp_path / "built" / "script.ir").read_text()
    done = runner("--explain", "--pservers", "ps0:6174", "--trainers", "3", script, folder=tmp_path)
    assert done.stdout.startswith("mode sync, 3 trainers, 1 server")
    for name in ("script.ir", "job_0/trainer_0.ir"):
        (tmp_path / "mine" / name).parent.mkdir(parents=True)
        (tmp_path / "mine" / name).write_text("important")
        done = runner("--check", "--ir", "mine", script, folder=tmp_path)
        assert done.returncode == 1
        assert f"mine/{name}: error[output-foreign]: it is there, and " in done.stderr
        assert (tmp_path / "mine" / name).read_text() == "important"
        (tmp_path / "mine" / name).unlink()


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (
            "import sys\nimport paddle.fluid as fluid\nsys.exit(0)\n",
            "s.py:3: the script ends here, and has built nothing",
        ),
        ("import paddle.fluid as fluid\n", "the script has built nothing"),
    ],
)
def test_a_script_that_builds_nothing_has_no_text_written(code: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(code)
    done = runner("--ir", "built", "s.py", folder=tmp_path)
    assert done.returncode == 1
    assert f"{told} in its default programs: nothing is written to built\n" in done.stderr
    assert not (tmp_path / "built").exists()


@pytest.mark.parametrize(("option", "done"), [("--check", "checked"), ("--explain", "explained")])
@pytest.mark.parametrize(("code", "status"), [("0", 0), ("", 0), ("3", 3)])
def test_a_script_that_ends_before_it_trains_is_told(
    option: str, done: str, code: str, status: int, tmp_path: Path
) -> None:
    (tmp_path / "s.py").write_text(f"import sys\nif len(sys.argv) < 2:\n    sys.exit({code})\n")
    ended = runner(option, "s.py", folder=tmp_path)
    told = f"s.py:3: the script ends here with status {status}, before it has trained: nothing is {done}\n"
    assert (ended.returncode, ended.stdout) == (status or 1, "")
    assert ended.stderr.endswith(told)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--chek", "x.py"], "there is no option --chek"),
        (["none.py"], "there is no file none.py"),
        (["/dev/null"], "/dev/null is no regular file"),
        (["--check", "--explain", "x.py"], "can't be combined"),
        (["--ir"], "--ir takes a value"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = runner(*arguments, folder=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr


def test_mistakes_of_a_script_are_told_with_the_names_in_it() -> None:
    import pstranspile.fluid as fluid

    with fresh():
        layers = fluid.layers
        x = layers.data("x", [4])
        loss = layers.mean(layers.fc(x, 2))
        exe = fluid.Executor(fluid.CPUPlace())
        with pytest.raises(DiagnosticError, match="no start-up program has given it one"):
            exe.run(feed={"x": np.zeros((2, 4), "float32")}, fetch_list=[loss])
        exe.run(fluid.default_startup_program())
        with pytest.raises(DiagnosticError, match=r"x is declared f32\[-1, 4\], but is fed f64\[2, 4\]"):
            exe.run(feed={"x": np.zeros((2, 4))}, fetch_list=[loss])
        with pytest.raises(ValueError, match=r"no variable mean_0\.tmp_1; did you mean mean_0\.tmp_0"):
            fluid.default_main_program().global_block().var("mean_0.tmp_1")
        with pytest.raises(TypeError, match="missing a required argument: 'size'"):
            layers.fc(x)
        with pytest.raises(TypeError, match="unexpected keyword argument 'siz'; did you mean size"):
            layers.fc(input=x, siz=3)
        exe.close()
        with pytest.raises(RuntimeError, match="the executor was closed"):
            exe.run(fetch_list=[loss])


def test_programs_are_printed_as_the_text_that_is_compiled() -> None:
    import io

    import pstranspile as ps
    import pstranspile.fluid as fluid
    from pstranspile.fluid.transpiler.details import program_to_code

    with fresh():
        fluid.layers.fc(fluid.layers.data("x", [4]), 2)
        main, out = fluid.default_main_program(), io.StringIO()
        program_to_code(main, out)
        assert ps.loads(out.getvalue()).main.main_block.ops == main.freeze().main_block.ops
        assert fluid.Program.parse_from_string(main.serialize_to_string()).freeze().main_block.ops


def test_pickles_name_what_both_numpy_1_and_2_have(tmp_path: Path) -> None:
    import pstranspile.fluid as fluid

    with fresh():
        fluid.layers.fc(fluid.layers.data("x", [4]), 2, name="net")
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        before = np.array(fluid.global_scope().find_var("net.w_0").get_tensor())
        fluid.save(fluid.default_main_program(), str(tmp_path / "kept" / "model"))
        assert b"numpy._core" not in (tmp_path / "kept" / "model.pdparams").read_bytes()
        fluid.global_scope().find_var("net.w_0").get_tensor().set(before * 0, fluid.CPUPlace())
        fluid.load(fluid.default_main_program(), str(tmp_path / "kept" / "model"), exe)
        assert (np.array(fluid.global_scope().find_var("net.w_0").get_tensor()) == before).all()


TRAINS = """
import paddle.fluid as fluid
loss = fluid.layers.mean(fluid.layers.fc(fluid.data("x", [None, 4]), 1))
fluid.optimizer.SGD(0.1).minimize(loss)
if TRANSPILES:
    fluid.DistributeTranspiler().transpile(0, pservers="127.0.0.1:6174,127.0.0.1:6175", trainers=2)
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
exe.run(feed={"x": [[1.0, 2.0, 3.0, 4.0]]}, fetch_list=[loss])
"""


def trains(folder: Path, *, transpiles: bool = False) -> None:
    (folder / "s.py").write_text(f"TRANSPILES = {transpiles}\n{TRAINS}")


@pytest.mark.parametrize("option", ["--compat", "--check", "--explain", "--help"])
def test_output_that_nobody_reads_ends_as_other_commands_do(option: str, tmp_path: Path) -> None:
    trains(tmp_path)
    for command in (["-m", "pstranspile.fluid"], ["-m", "pstranspile", "fluid"]):
        reads, writes = os.pipe()
        os.close(reads)
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        done = subprocess.run(
            [sys.executable, *command, option, "s.py"], cwd=tmp_path, env=environment, stdout=writes,
            stderr=subprocess.PIPE, text=True, timeout=120, check=False,
        )  # fmt: skip
        os.close(writes)
        assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--chek", "s.py"], "there is no option --chek; did you mean --check?"),
        (["--pserver", "3", "s.py"], "there is no option --pserver; did you mean --pservers?"),
        (["--check=yes", "s.py"], "--check takes no value"),
        (["--check", "--pservers=", "s.py"], "--pservers takes a value, and is given an empty one"),
        (["--pservers", "3", "s.py"], "--pservers is for --check and --explain"),
        (["--trainers", "3", "--pservers", "3", "s.py"], "--pservers and --trainers are for --check and --explain"),
        (["--all", "--compat", "s.py"], "--all is for --check and --explain"),
        (["--compat", "s.py", "--json"], "--json comes after the script, which --compat does not run"),
        (["--compat", "s.py", "--ir=x"], "--ir=x comes after the script, which --compat does not run"),
    ],
)
def test_options_that_would_do_nothing_are_refused(arguments: list[str], told: str, tmp_path: Path) -> None:
    trains(tmp_path)
    done = runner(*arguments, folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"python -m pstranspile.fluid: {told}")


def test_an_option_behind_the_script_is_the_scripts_and_told(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("import sys\nprint(sys.argv[1:])\n")
    done = runner("s.py", "--check", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "['--check']\n")
    assert done.stderr == (
        "python -m pstranspile.fluid: --check comes after the script, so it is the script's own; "
        "options of this command stand before it\n"
    )


@pytest.mark.parametrize("late", [["--pservers", "3"], ["--trainers=3"], ["--all"]])
def test_options_of_a_check_behind_the_script_are_told(late: list[str], tmp_path: Path) -> None:
    trains(tmp_path)
    done = runner("--check", "s.py", *late, folder=tmp_path)
    assert done.returncode == 0
    assert f"{late[0]} comes after the script, so it is the script's own; " in done.stderr


def test_a_cluster_that_is_not_that_of_the_script_is_refused(tmp_path: Path) -> None:
    trains(tmp_path, transpiles=True)
    done = runner("--check", "--pservers", "3", "--trainers", "1", "s.py", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "names a cluster of 2 trainers and 2 servers: leave out --pservers 3 and --trainers 1\n" in done.stderr
    done = runner("--explain", "--trainers", "2", "s.py", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_all_lists_what_is_counted(tmp_path: Path) -> None:
    trains(tmp_path)
    short, full = (runner("--check", *more, "s.py", folder=tmp_path).stdout for more in ([], ["--all"]))
    assert "; --all lists them\n" in short
    assert "fc_0.w_0         parameter  " in full


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("import paddle.v2 as paddle\npaddle.init()\n", "it is of the interface that Paddle had before Fluid"),
        ("import paddle.fluid as f\nf.dygraph.guard()\n", "dynamic graphs are not run"),
        ("import paddle.fluid as f\nf.enable_dygraph()\n", "dynamic graphs are not run"),
        ("import paddle.fluid as f\nf.dygraph.to_variable(1)\n", "dynamic graphs are not run"),
        ("from paddle.fluid.dygraph.base import to_variable\nto_variable(1)\n", "dynamic graphs are not run"),
    ],
)
def test_what_is_of_another_kind_of_script_is_told_with_the_kind(script: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(script)
    assert f"is not part of pstranspile.fluid: {told}" in runner("s.py", folder=tmp_path).stderr
    assert f": {told}" in runner("--compat", "s.py", folder=tmp_path).stdout


def test_findings_end_with_a_newline(tmp_path: Path) -> None:
    script = (
        "import paddle.fluid as fluid\nfluid.Executor().run(fetch_list=[fluid.layers.mean(fluid.data('x', [2]))])\n"
    )
    (tmp_path / "s.py").write_text(script)
    done = runner("s.py", folder=tmp_path)
    assert done.returncode == 1
    assert "run-feed-missing" in done.stderr
    assert done.stderr.endswith("\n")
