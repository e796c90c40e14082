"""Of an option that is given two values the last counts, and is named; options that may be repeated keep theirs."""

import argparse
import os
from contextlib import suppress
from pathlib import Path

import pytest

from pstranspile.tools.cli import main
from pstranspile.tools.cli.common import make_parser
from pstranspile.tools.cli.written_files import clash
from tests.conftest import ROOT

NET = str(ROOT / "examples" / "regression.ir")
JOB = ("--pservers", "2", "--trainers", "2")
FORWARD = str(ROOT / "tests" / "data" / "forward.ir")


def told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command says that is refused as wrong usage."""
    try:
        status: object = main(arguments)
    except SystemExit as stop:
        status = stop.code
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    return err


@pytest.mark.parametrize(
    ("arguments", "option", "counts"),
    [
        (["plan", NET, "--pservers", "2", "--trainers", "2", "--trainers", "3"], "--trainers", "3 counts, not 2"),
        (["plan", NET, "--trainers", "2", "--pservers=a:1", "--pservers=b:1"], "--pservers", "b:1 counts, not a:1"),
        (["plan", NET, *JOB, "--mode", "sync", "--mode", "async"], "--mode", "async counts, not sync"),
        (["plan", NET, *JOB, "-o", "one", "--output", "-"], "--output", "- counts, not one"),
        (["check", NET, *JOB, "--steps", "9", "--steps", "1"], "--steps", "1 counts, not 9"),
        (["run", NET, "--seed", "1", "--seed", "2", "--steps", "1"], "--seed", "2 counts, not 1"),
        (["fluid", "--check", "--trainers", "2", "--trainers=3", "no.py"], "--trainers", "3 counts, not 2"),
    ],
)
def test_two_values(arguments: list[str], option: str, counts: str, capsys: pytest.CaptureFixture[str]):
    with suppress(SystemExit):
        main(arguments)
    assert f"{arguments[0]}: warning: {option} is given twice; {counts}\n" in capsys.readouterr().err


def test_the_last_value_counts(capsys: pytest.CaptureFixture[str]):
    plans: list[str] = []
    for trainers in (["2", "--trainers", "3"], ["3"]):
        assert main(["plan", NET, "--pservers", "2", "--trainers", *trainers]) == 0
        plans.append(capsys.readouterr().out)
    assert plans[0] == plans[1]


def test_the_same_value_twice_loses_nothing(capsys: pytest.CaptureFixture[str]):
    assert main(["plan", NET, "--pservers", "2", "--trainers", "2", "--trainers", "2"]) == 0


def test_a_parser_parses_again():
    parser = make_parser("none", "", [""])
    parser.add_argument("--number", type=int, default=1)
    group = parser.add_argument_group("more").add_mutually_exclusive_group()
    group.add_argument("--name", action="store")
    for number in (2, 3):
        options = parser.parse_args(["--number", str(number), "--name", "x"])
        assert options == argparse.Namespace(traceback=False, number=number, name="x")


def test_a_key_of_set(capsys: pytest.CaptureFixture[str]):
    job = ["--pservers", "2", "--trainers", "2"]
    twice = ["--set", "min_block_size=1", "--set", "min_block_size=2"]
    assert "min_block_size is given twice, with different values" in told(["plan", NET, *job, *twice], capsys)
    of_optimizer = ["--loss", "loss", "--optimizer", "adam", "--set", "beta1=0.1", "--set", "beta1=0.2"]
    assert "beta1 is given twice" in told(["grad", FORWARD, *of_optimizer], capsys)


def test_an_address_of_a_machine(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert main(["compile", NET, "--pservers", "2", "--trainers", "2", "-o", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    twice = ["--address", "trainer_0=127.0.0.1:7001", "--address", "trainer_0=127.0.0.1:7002"]
    assert "trainer_0 is given twice" in told(["start", str(tmp_path / "out"), "--role", "trainer_0", *twice], capsys)


CLUSTER = ("--pservers", "1", "--trainers", "1")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", NET, *CLUSTER, "--save", "q.npz", "--trace", "q.npz"], "--save and --trace name one file, q.npz"),
        (["run", NET, "--save", "x/../q.svg", "--plot", "./q.svg"], "--save and --plot name one file, ./q.svg"),
        (["run", NET, *CLUSTER, "--trace", "q", "--chart", "link"], "--trace and --chart name one file, link"),
        (["run", NET, *CLUSTER, "--trace", "q", "--chart", "hard"], "--trace and --chart name one file, hard"),
        (["run", NET, "--save", "t", "--plot", "t/l.svg"], "--plot t/l.svg is in t, which --save writes as a file"),
        (
            ["run", NET, "--save", "zz/t", "--checkpoint", "zz/t"],
            "--save writes zz/t as a file, and --checkpoint needs",
        ),
        (["run", NET, "--save", "zz", "--checkpoint", "zz/t"], "--checkpoint needs a folder of this name for zz/t"),
        (["run", NET, "--save", "k/step_00000003", "--checkpoint", "k"], "names like step_00000003 in k are those of"),
        (["run", NET, "--save", "k/step_00000003/a.npz", "--checkpoint", "k"], "of what --checkpoint keeps there"),
        (["launch", NET, *CLUSTER, "--save", "q", "--record", "q"], "--save and --record name one file, q"),
        (["launch", NET, *CLUSTER, "--save", "logs", "--logs", "./logs"], "--logs needs it as a folder"),
        (["launch", NET, *CLUSTER, "--save", "logs/trainer_0.log", "--logs", "logs"], "of what --logs keeps there"),
        (["import", "m.onnx", "-o", "w.ir", "--params", "w.ir"], "--params and --output name one file, w.ir"),
    ],
    ids=lambda value: " ".join(value[2:]) if isinstance(value, list) else "",
)
def test_two_outputs_of_one_name(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    Path("q").write_bytes(b"")
    Path("link").symlink_to("q")
    Path("hard").hardlink_to("q")
    assert said in told(arguments, capsys)
    assert sorted(os.listdir()) == ["hard", "link", "q"]


def test_outputs_that_are_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    called = {name: f"--{name}" for name in ("save", "trace", "chart", "checkpoint")}
    assert not clash({"save": "k/out.npz", "checkpoint": "k", "resume": None, "trace": "k/t", "chart": "-"}, called)
    assert not clash({"trace": os.devnull, "chart": os.devnull, "save": None}, called)
