"""`--init`: values of variables that the start-up program does not make, or declares with other dims."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.runtime.run.files import not_finite
from pstranspile.tools.cli import main
from tests.conftest import ROOT

NET = """ir 1
program @main {
  block ^0 {
    param %w : f32[3, 1]
    state %rate : f32[1]
    state %shift : f32[1, 1]
    state %count : f32[1, 2]
    temp %x : f32[-1, 3] feed
    temp %xw : f32[-1, 1]
    temp %y : f32[-1, 1]
    temp %loss : f32[1]
    temp %loss@GRAD : f32[1]
    temp %y@GRAD : f32[-1, 1]
    temp %xw@GRAD : f32[-1, 1]
    temp %w@GRAD : f32[3, 1]
    mul(X=%x, Y=%w) -> Out=%xw
    elementwise_add(X=%xw, Y=%shift) -> Out=%y
    mean(X=%y) -> Out=%loss : loss
    fill_constant -> Out=%loss@GRAD {shape=[1], value=1.0} : backward
    mean_grad(X=%y, Out@GRAD=%loss@GRAD) -> X@GRAD=%y@GRAD : backward
    elementwise_add_grad(X=%xw, Y=%shift, Out@GRAD=%y@GRAD) -> X@GRAD=%xw@GRAD, Y@GRAD=[] : backward
    mul_grad(X=%x, Y=%w, Out@GRAD=%xw@GRAD) -> X@GRAD=[], Y@GRAD=%w@GRAD : backward(%w, %w@GRAD)
    sgd(Param=%w, Grad=%w@GRAD, LearningRate=%rate) -> ParamOut=%w : optimize(%w, %w@GRAD)
  }
}
program @startup {
  block ^0 {
    param %w : f32[3, 1]
    state %rate : f32[1]
    state %count : f32[3]
    fill_constant -> Out=%w {shape=[3, 1], value=1.0}
    fill_constant -> Out=%rate {shape=[1], value=0.1}
    fill_constant -> Out=%count {shape=[3]}
  }
}
"""


@pytest.mark.parametrize("job", [[], ["--pservers", "1", "--trainers", "2"], ["--mode", "geo", "--pservers", "1"]])
def test_state_that_startup_does_not_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], job: list[str]
):
    monkeypatch.chdir(tmp_path)
    Path("net.ir").write_text(NET, encoding="utf-8")
    np.savez("feed.npz", x=np.ones((1, 2, 3), "float32"))
    np.savez("init.npz", shift=np.full((1, 1), 4, "float32"), count=np.arange(3, dtype="float32"))
    command = ["run", "net.ir", *job, "--feed", "feed.npz", "--fetch", "loss"]
    assert main([*command, "--init", "init.npz"]) == 0
    assert "7" in capsys.readouterr().out
    assert main(command) == 1
    assert "shift" in capsys.readouterr().err


def test_dims_that_neither_program_declares(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    net, init = tmp_path / "net.ir", tmp_path / "init.npz"
    net.write_text(NET, encoding="utf-8")
    np.savez(init, shift=np.zeros((1, 1), "float32"), count=np.zeros(4, "float32"))
    assert main(["run", str(net), "--init", str(init)]) == 1
    assert "count is declared f32[1, 2], but the file holds f32[4]" in capsys.readouterr().err


@pytest.mark.parametrize(("given", "status"), [("int32", 0), ("int64", 0), ("uint64", 1), ("float32", 1)])
def test_integers_of_fewer_bits_than_declared(
    given: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    net = NET.replace("state %count : f32[1, 2]", "state %count : i64[3]").replace("%count : f32[3]", "%count : i64[3]")
    Path("net.ir").write_text(net.replace("{shape=[3]}", "{shape=[3], dtype=3}"), encoding="utf-8")
    np.savez("feed.npz", x=np.ones((1, 2, 3), "float32"))
    np.savez("init.npz", shift=np.ones((1, 1), "float32"), count=np.array([1, -2, 3]).astype(given))
    command = ["run", "net.ir", "--feed", "feed.npz", "--init", "init.npz", "--fetch", "count"]
    assert main(command) == status
    printed = capsys.readouterr()
    assert ("count i64[3]: 1 -2 3" in printed.out) == (status == 0), printed
    assert ("count is declared i64[3], but the file holds" in printed.err) == (status == 1)


MARKED = NET.replace(
    "fill_constant -> Out=%w {shape=[3, 1], value=1.0}", "fill_constant -> Out=%w {shape=[3, 1], value=nan}"
)
CLUSTER = ["--pservers", "1", "--trainers", "2"]


@pytest.mark.parametrize(
    "command",
    [
        ["check", "net.ir", *CLUSTER],
        ["run", "net.ir", "--feed", "feed.npz"],
        ["run", "net.ir", "--feed", "feed.npz", *CLUSTER],
        ["launch", "net.ir", "--feed", "feed.npz", *CLUSTER],
        ["export", "net.ir", "--fetch", "y", "--to", "inference", "-o", "model"],
    ],
    ids=" ".join,
)
def test_parameters_that_nobody_gives_are_told(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    """As in a program that was imported from ONNX, whose parameters are a file of their own."""
    monkeypatch.chdir(tmp_path)
    text = MARKED.replace("state %shift : f32[1, 1]", "temp  %shift : f32[1, 1] feed")
    Path("net.ir").write_text(text, encoding="utf-8")
    np.savez("feed.npz", x=np.ones((2, 2, 3), "float32"), shift=np.ones((2, 1, 1), "float32"))
    np.savez("init.npz", w=np.ones((3, 1), "float32"))
    main(command)
    told = capfd.readouterr().err
    assert told.count("warning[run-uninitialised]: %w begins as NaN, since the start-up program only marks that") == 1
    assert "note: --init FILE.npz gives them; `pstranspile import --params FILE.npz` writes those of an ONNX" in told
    main([*command, "--init", "init.npz"])
    assert "run-uninitialised" not in capfd.readouterr().err


def test_values_that_are_no_numbers_are_told_of_each_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "examples" / "linear_regression.ir", "net.ir")
    w = np.ones((13, 1), "float32")
    w[3:5], w[7] = np.nan, -np.inf
    np.savez("bad.npz", **{"fc_0.w_0": w, "fc_0.b_0": np.array([np.inf], "float32")})
    said = [
        "bad.npz: warning[values-not-finite]: fc_0.w_0 is NaN in 2 and infinite in 1 of 13 numbers",
        "bad.npz: warning[values-not-finite]: fc_0.b_0 is infinite",
    ]
    job = ["--pservers", "1", "--trainers", "2"]
    commands = [["run", "net.ir", "--steps", "1"], ["run", "net.ir", *job], ["check", "net.ir", *job, "--steps", "1"]]
    commands += [
        ["export", "net.ir", "--to", kind, "--fetch", "fc_0.tmp_1", option, "-o", f"out{kind}{option}"]
        for kind in ("onnx", "inference")
        for option in ("--from", "--init")
    ]
    for command in commands:
        options = [*command]
        if command[0] == "export":
            options.insert(options.index("-o"), "bad.npz")
        else:
            options += ["--init", "bad.npz"]
        main(options)
        told = [line for line in capsys.readouterr().err.splitlines() if "values-not-finite" in line]
        assert told == said, command


def test_masks_may_be_infinite():
    program = ps.loads("ir 1\nprogram @main {\n block ^0 {\n state %mask : f32[2]\n param %w : f32[2]\n }\n}\n").main
    mask = np.array([0, -np.inf], "float32")
    assert not_finite({"mask": mask}, program, "a.npz") == []
    assert [one.message for one in not_finite({"w": mask}, program, "a.npz")] == ["w is infinite in 1 of 2 numbers"]
    large = np.full(4, 3e38, "float32")
    assert not_finite({"w": large}, program, "a.npz") == []


def test_a_folder_of_anything_is_refused_before_all_of_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    Path("net.ir").write_text(NET)
    np.savez("feed.npz", x=np.ones((1, 2, 3), "float32"))
    deep = Path("all", "a", "b")
    deep.mkdir(parents=True)
    for number in range(30):
        Path("all", f"{number}.json").write_text("{}")
    (deep / "never.json").write_text("{}")
    entered: list[str] = []
    walk = os.walk

    def walked(path):
        for each in walk(path):
            entered.append(str(each[0]))
            yield each

    monkeypatch.setattr(os, "walk", walked)
    assert main(["run", "net.ir", "--feed", "feed.npz", "--init", "all"]) == 1
    assert "all: error[run-file-unusable]: it is no folder of values: 0.json is JSON" in capsys.readouterr().err
    assert entered == ["all"]
