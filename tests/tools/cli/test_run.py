"""`pstranspile run`: from files to files."""

from __future__ import annotations

import io
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.proof import make_feeds
from pstranspile.tools.cli import main
from tests.training import files as training_files

RUNS = Path(__file__).parents[2] / "data" / "fluid" / "runs.tar.xz"

PROGRAM = """\
ir 1
program @main seed=1 {
  block ^0 {
    param %w : f32[3, 1]
    state %lr : f32[1]
    temp %x : f32[-1, 3] feed
    temp %y : f32[-1, 1]
    temp %loss : f32[1]
    temp %loss@GRAD : f32[1]
    temp %y@GRAD : f32[-1, 1]
    temp %w@GRAD : f32[3, 1]
    mul(X=%x, Y=%w) -> Out=%y
    mean(X=%y) -> Out=%loss : loss
    fill_constant -> Out=%loss@GRAD {shape=[1], value=1.0} : backward|loss
    mean_grad(X=%y, Out@GRAD=%loss@GRAD) -> X@GRAD=%y@GRAD : backward
    mul_grad(X=%x, Y=%w, Out@GRAD=%y@GRAD) -> X@GRAD=[], Y@GRAD=%w@GRAD : backward(%w, %w@GRAD)
    sgd(Param=%w, Grad=%w@GRAD, LearningRate=%lr) -> ParamOut=%w : optimize(%w, %w@GRAD)
  }
}
program @startup seed=1 {
  block ^0 {
    param %w : f32[3, 1]
    state %lr : f32[1]
    fill_constant -> Out=%lr {shape=[1], value=0.5}
    fill_constant -> Out=%w {shape=[3, 1], value=1.0}
  }
}
"""


@cache
def recorded_runs() -> dict[str, bytes]:
    with tarfile.open(RUNS) as archive:
        return {m.name: f.read() for m in archive.getmembers() if (f := archive.extractfile(m)) is not None}


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("net.ir").write_text(PROGRAM)
    np.savez("feed.npz", x=np.ones((4, 2, 3), "float32"))
    return "net.ir"


def result(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["run", *arguments])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.parametrize("name", sorted({name.partition("/")[0] for name in recorded_runs()}))
def test_real_runs_are_reproduced(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    held = training_files()
    for file in ("main.pb", "startup.pb", "case.json"):
        (tmp_path / file).write_bytes(held[f"{name}/{file}"])
    for file in ("feeds.npz", "init.npz"):
        (tmp_path / file).write_bytes(recorded_runs()[f"{name}/{file}"])
    with np.load(io.BytesIO(recorded_runs()[f"{name}/local.npz"])) as data:
        want = dict(data)
    paths = [
        str(tmp_path / file) for file in ("main.pb", "startup.pb", "case.json", "feeds.npz", "init.npz", "out.npz")
    ]
    options = [
        item
        for pair in zip(("--startup", "--meta", "--feed", "--init", "--save"), paths[1:], strict=True)
        for item in pair
    ]
    status, out, err = result(capsys, paths[0], *options)
    assert status == 0, err
    with np.load(paths[-1]) as data:
        got = dict(data)
    (loss,) = [key for key in got if key.startswith("step/")]
    assert len(out.splitlines()) == len(want["loss"])
    np.testing.assert_allclose(got[loss].ravel(), want["loss"], rtol=1e-5)
    finals = {key.removeprefix("final/"): value for key, value in want.items() if key.startswith("final/")}
    assert finals
    for parameter, value in finals.items():
        np.testing.assert_allclose(got[f"param/{parameter}"], value, rtol=1e-4, atol=1e-6)


def test_steps_are_printed_and_saved(net: str, capsys: pytest.CaptureFixture[str]):
    status, out, _ = result(capsys, net, "--feed", "feed.npz", "--fetch", "loss", "--fetch", "y", "--save", "out.npz")
    assert status == 0
    numbers = ["3", "1.5", "0", "-1.5"]
    assert out == "".join(f"step {step}/4  loss {n}  y f32[2, 1]: {n} {n}\n" for step, n in enumerate(numbers, start=1))
    with np.load("out.npz") as saved:
        assert {key: saved[key].shape for key in saved} == {"step/loss": (4, 1), "step/y": (4, 2, 1), "param/w": (3, 1)}
        assert saved["param/w"].ravel().tolist() == [-1, -1, -1]
    first = Path("out.npz").read_bytes()
    result(capsys, net, "--feed", "feed.npz", "--fetch", "loss", "--fetch", "y", "--save", "out.npz")
    assert Path("out.npz").read_bytes() == first


def test_initial_values_and_fewer_steps(net: str, capsys: pytest.CaptureFixture[str]):
    np.savez("init.npz", w=np.full((3, 1), 2, "float32"))
    status, out, _ = result(capsys, net, "--feed", "feed.npz", "--init", "init.npz", "--steps", "1")
    assert (status, out) == (0, "step 1/1  loss 6\n")


def test_profile_and_trace(net: str, capsys: pytest.CaptureFixture[str]):
    status, _, err = result(capsys, net, "--feed", "feed.npz", "--profile", "--trace", "--check-nan")
    assert status == 0
    assert "     0 fill_constant -> lr f32[1]\n" in err
    assert "mul -> y f32[2, 1]\n" in err
    table = err[err.index("op  ") :].splitlines()
    assert {line.split()[0]: int(line.split()[1]) for line in table[1:]}["sgd"] == 4


def ragged(tmp_path: Path) -> str:
    path = tmp_path / "ragged.ir"
    lines = [
        "temp %x : f32[-1, 1] lod=1 feed",
        "temp %s : f32[-1, 1]",
        "temp %m : i32[-1, 1]",
        "temp %t : f32[-1, 1] lod=1",
    ]
    ops = ['sequence_pool(X=%x) -> Out=%s, MaxIndex=%m {pooltype="SUM"}', "scale(X=%x) -> Out=%t {scale=2.0}"]
    path.write_text("\n".join(["ir 1", "program @main {", "block ^0 {", *lines, *ops, "}", "}", ""]))
    return str(path)


def test_ragged_inputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    feed, out = str(tmp_path / "feed.npz"), str(tmp_path / "out.npz")
    lengths = np.array([[2, 1], [0, 3]], "int32")
    np.savez(feed, **{"x": np.arange(6, dtype="float32").reshape(6, 1), "x@LENS": lengths})
    status, _, err = result(capsys, ragged(tmp_path), "--feed", feed, "--fetch", "s", "--fetch", "t", "--save", out)
    assert status == 0, err
    with np.load(out) as saved:
        assert saved["step/s"].tolist() == [[[1], [2]], [[0], [12]]]
        assert saved["step/t"].ravel().tolist() == [0, 2, 4, 6, 8, 10]
        assert saved["step/t@LENS"].tolist() == lengths.tolist()


@pytest.mark.parametrize("command", [["run"], ["run", "--pservers", "1"], ["check", "--pservers", "1"]])
def test_which_arrays_there_are_where_an_input_is_missing(
    net: str, capsys: pytest.CaptureFixture[str], command: list[str]
):
    np.savez("feed.npz", xs=np.ones((2, 2, 3), "float32"))
    assert main([command[0], net, *command[1:], "--feed", "feed.npz"]) == 1
    err = capsys.readouterr().err
    assert "note: xs; did you mean x?" in err
    assert "x is an input of the program, declared f32[-1, 3], and is not fed" in err
    assert "note: feed.npz has xs\n" in err


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"x": np.ones((2, 2, 3))}, "x is declared f32[-1, 3], but in each step is fed f64[2, 3]"),
        ({"x": np.float32(1)}, "x has no leading step axis"),
        ({"x": np.ones((2, 3), "float32")}, "x is declared f32[-1, 3], but in each step is fed f32[3]"),
        (
            {"x": np.ones((2, 3), "float32")},
            "the first dim of an array counts steps, which is not there in x: x[None] is one step, "
            "x.reshape(STEPS, -1, 3) divides its rows into steps",
        ),
        ({"x": np.ones((6, 3), "float32"), "x@LENS": np.ones((2, 3), "int64")}, "it can't have x@LENS"),
        (
            {"x": np.ones((2, 2, 3), "float32"), "loss": np.ones((3, 1), "float32")},
            "different numbers of steps: x 2, loss 3",
        ),
        ({}, "run-feed-missing"),
    ],
)
def test_feeds_that_do_not_fit(net: str, capsys: pytest.CaptureFixture[str], arrays: dict[str, Any], told: str):
    np.savez("feed.npz", **arrays)
    status, _, err = result(capsys, net, "--feed", "feed.npz")
    assert status == 1
    assert told in err


@pytest.mark.parametrize(
    ("lengths", "told"),
    [
        (np.array([[2, 2], [1, 2]]), "its lengths add up to 7"),
        (np.array([[2.0, 2.0], [1.0, 1.0]]), "must hold lengths"),
        (np.array([[8, -2]]), "must hold lengths"),
        (np.array([3, 3]), "must hold lengths"),
        (None, "1 LoD level, and comes without x@LENS, the lengths of its sequences: [steps, batch]"),
    ],
)
def test_lengths_that_do_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str], lengths: Any, told: str):
    arrays = {"x": np.zeros((6, 1), "float32"), **({} if lengths is None else {"x@LENS": lengths})}
    if lengths is None:
        arrays["x"] = np.zeros((2, 3, 1), "float32")
    np.savez(tmp_path / "feed.npz", **arrays)
    status, _, err = result(capsys, ragged(tmp_path), "--feed", str(tmp_path / "feed.npz"))
    assert status == 1
    assert told in err
    assert err.count("error[") == 1


CTR = str(Path(__file__).parents[3] / "examples" / "ctr_dnn.ir")


def test_a_mistake_in_the_lengths_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    feeds = make_feeds(ps.load(CTR).main, 3, 4)
    for left_out, told in (
        ("dnn_data@LENS", "dnn_data is declared i64[-1, 1] with 1 LoD level, and comes without dnn_data@LENS, "),
        ("dnn_data", "dnn_data@LENS holds lengths of sequences, but there is no dnn_data"),
    ):
        np.savez(tmp_path / "feed.npz", **{name: array for name, array in feeds.items() if name != left_out})
        for job in ([], ["--pservers", "2", "--trainers", "2"]):
            status, _, err = result(capsys, CTR, "--feed", str(tmp_path / "feed.npz"), *job)
            assert (status, err.count("error[")) == (1, 1)
            assert f"feed.npz: error[run-file-unusable]: {told}" in err


def test_files_that_can_not_be_used(net: str, capsys: pytest.CaptureFixture[str]):
    good = Path("feed.npz").read_bytes()
    Path("junk.npz").write_bytes(b"junk")
    Path("cut.npz").write_bytes(good[: len(good) // 2])
    np.save("one.npy", np.ones(3))
    np.savez("objects.npz", x=np.array([None, 1], dtype=object))
    needed = good.index(b"PK\x01\x02") + 6  # the version of the format that a reader must know
    Path("later.npz").write_bytes(good[:needed] + b"\xff" + good[needed + 1 :])
    for file, told in (
        ("no.npz", "No such file"),
        ("junk.npz", "error[run-file-unusable]: not an .npz file, or a damaged one\n"),
        ("objects.npz", "the array x can't be read, it holds Python objects, not numbers"),
        ("later.npz", "error[run-file-unusable]"),
        ("cut.npz", "not an .npz file, or a damaged one"),
        ("one.npy", "a single array (.npy); several arrays by name (.npz) are needed"),
    ):
        for option in ("--feed", "--init"):
            status, _, err = result(capsys, net, option, file)
            assert status == 1
            assert told in err
            assert file in err


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["--steps", "9"], 1, "4 steps are fed, 9 are asked for"),
        (["--fetch", "los"], 1, "los is fetched, but the program declares no such variable; did you mean loss?"),
        (["--pservers", "2", "--profile"], 1, "error[run-cluster]: --profile looks at one machine"),
        (["--plot", "loss.gif"], 2, "--plot loss.gif: the name must end in .png or .svg"),
        (["--steps", "0"], 2, "argument --steps: '0' is no whole number"),
        (["--fetch", "w@GRAD", "--plot", "x.png"], 1, "run-plot-impossible"),
    ],
)
def test_what_is_refused(net: str, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, told: str):
    found, _, err = result(capsys, net, "--feed", "feed.npz", *arguments)
    assert found == status
    assert told in err


def test_initial_values_that_do_not_fit(net: str, capsys: pytest.CaptureFixture[str]):
    np.savez("init.npz", w=np.ones((2, 1), "float32"), v=np.ones(1), x=np.ones((1, 3), "float32"))
    status, _, err = result(capsys, net, "--feed", "feed.npz", "--init", "init.npz")
    assert status == 1
    assert "w is declared f32[3, 1], but the file holds f32[2, 1]" in err
    assert "the program declares no persistable variable v" in err
    assert "the program declares no persistable variable x" in err


def test_plotting(net: str, capsys: pytest.CaptureFixture[str]):
    for name, start in (("loss.png", b"\x89PNG"), ("loss.svg", b"<?xml")):
        written = []
        for _ in range(2):
            status, _, err = result(capsys, net, "--feed", "feed.npz", "--plot", name)
            assert status == 0, err
            written.append(Path(name).read_bytes())
        assert written[0] == written[1]
        assert written[0].startswith(start)


def test_plotting_without_matplotlib(net: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    status, _, err = result(capsys, net, "--feed", "feed.npz", "--plot", "loss.png")
    assert status == 1
    assert "drawing needs matplotlib: pip install '.[plot]'" in err
    assert not Path("loss.png").exists()
