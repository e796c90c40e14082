"""Inputs of one step with different numbers of rows, refused where an op takes their rows side by side; and ids that a
table has no row for.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.runtime.run.feeds import FedRows
from pstranspile.tools.cli import main

ROOT = Path(__file__).parents[3]
EXAMPLE = str(ROOT / "examples" / "linear_regression.ir")
JOB = ["--pservers", "1", "--trainers", "2"]

HEAD = "ir 1\nprogram @main {\n  block ^0 {\n"
SIDE_BY_SIDE = "    temp %a : f32[-1, 4] feed\n    temp %b : f32[-1, 4] feed\n"


def rows_of(declarations: str, ops: str, **shapes: tuple[int, ...]) -> tuple[str, str] | None:
    """The inputs that are found to differ."""
    module = ps.loads(f"{HEAD}{declarations}{ops}  }}\n}}\n")
    found = FedRows(module.main).row_mismatch({name: np.ones(shape, "float32") for name, shape in shapes.items()})
    return None if found is None else found.inputs


ADD = "    elementwise_add(X=%a, Y=%b) -> Out=%o\n"
OUT = "    temp %o : f32[-1, 4]\n"


def test_a_row_beside_several_is_found():
    assert rows_of(SIDE_BY_SIDE + OUT, ADD, a=(8, 4), b=(1, 4)) == ("a", "b")
    assert rows_of(SIDE_BY_SIDE + OUT, ADD, a=(0, 4), b=(8, 4)) == ("a", "b")
    assert rows_of(SIDE_BY_SIDE + OUT, ADD, a=(8, 4), b=(6, 4)) == ("a", "b")
    assert rows_of(SIDE_BY_SIDE + OUT, ADD, a=(8, 4), b=(8, 4)) is None


def test_losses_that_compare_rows_are_among_such_ops():
    loss = "    sigmoid_cross_entropy_with_logits(X=%a, Label=%b) -> Out=%o\n"
    assert rows_of(SIDE_BY_SIDE + OUT, loss, a=(8, 4), b=(1, 4)) == ("a", "b")


def test_rows_that_stay_apart_may_differ():
    one_row = "    temp %a : f32[-1, 4] feed\n    temp %b : f32[1, 4] feed\n"
    assert rows_of(one_row + OUT, ADD, a=(8, 4), b=(1, 4)) is None
    product = "    matmul(X=%a, Y=%b) -> Out=%o {transpose_Y=true}\n"
    assert rows_of(SIDE_BY_SIDE + "    temp %o : f32[-1, -1]\n", product, a=(8, 4), b=(1, 4)) is None
    below = "    concat(X=[%a, %b]) -> Out=%o {axis=0}\n"
    assert rows_of(SIDE_BY_SIDE + OUT, below, a=(8, 4), b=(1, 4)) is None
    alone = "    scale(X=%a) -> Out=%o\n    scale(X=%b) -> Out=%o\n"
    assert rows_of(SIDE_BY_SIDE + OUT, alone, a=(8, 4), b=(1, 4)) is None


def test_rows_are_those_that_a_reshape_has_made():
    wide = "    temp %a : f32[-1, 8] feed\n    temp %b : f32[-1, 4] feed\n    temp %c : f32[-1, 4]\n"
    ops = "    reshape(X=%a) -> Out=%c {shape=[-1, 4]}\n    elementwise_add(X=%c, Y=%b) -> Out=%o\n"
    assert rows_of(wide + OUT, ops, a=(4, 8), b=(8, 4)) is None


@pytest.mark.parametrize("verb", ["run", "cluster", "check", "launch"])
def test_arrays_of_a_feed_name_the_inputs_their_rows_the_step_and_the_file(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    np.savez("d.npz", x=np.ones((3, 8, 13), "float32"), y=np.ones((3, 1, 1), "float32"))
    job = [] if verb == "run" else JOB
    assert main(["run" if verb == "cluster" else verb, EXAMPLE, "--feed", "d.npz", *job]) == 1
    err = capfd.readouterr().err.replace(f"{tmp_path}/", "")
    told = "error[run-feed-mismatch]: elementwise_sub: x has 8 rows and y has 1 in step 1 of d.npz"
    assert f"{EXAMPLE}:24:5: {told}, which it takes side by side" in err
    assert "note: y is declared with -1 rows; a single row for all others is declared with 1" in err


def test_a_step_in_which_rows_differ_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    steps = {f"{step}|x": np.ones((4, 13), "float32") for step in (1, 2)}
    rows = {"1|y": np.ones((4, 1), "float32"), "2|y": np.ones((3, 1), "float32")}
    np.savez("d.npz", **steps, **rows)  # pyright: ignore[reportArgumentType]
    assert main(["run", EXAMPLE, "--feed", "d.npz"]) == 1
    assert "x has 4 rows and y has 3 in step 2 of d.npz" in capsys.readouterr().err


def test_a_feed_given_step_by_step_is_looked_at_too():
    module = ps.load(EXAMPLE)
    job = ps.compile(module, ps.Job(pservers=1, trainers=2))
    feed = [{"x": np.ones((8, 13), "float32"), "y": np.ones((1, 1), "float32")}]
    with pytest.raises(ps.DiagnosticError, match="x has 8 rows and y has 1 in step 1, which it takes side by side"):
        ps.simulate(job, feed)


@pytest.mark.parametrize("verb", ["run", "cluster", "check", "launch"])
def test_a_feed_without_steps_is_told_with_its_dims(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    np.savez("d.npz", x=np.ones((0, 8, 13), "float32"), y=np.ones((0, 8, 1), "float32"))
    job = [] if verb == "run" else JOB
    assert main(["run" if verb == "cluster" else verb, EXAMPLE, "--feed", "d.npz", *job]) == 1
    told = "error[run-file-unusable]: it holds no step: x is f32[0, 8, 13], and its first dim counts them"
    assert f"d.npz: {told}" in capfd.readouterr().err
