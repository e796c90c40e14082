"""An option of one value that is given two is refused; options that may be repeated are not."""

import argparse
from pathlib import Path

import pytest

from pstranspile.tools.cli import main
from pstranspile.tools.cli.common import make_parser
from tests.conftest import ROOT

NET = str(ROOT / "examples" / "regression.ir")
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
    ("arguments", "option", "values"),
    [
        (["compile", NET, "--pservers", "2", "--trainers", "2", "--trainers", "3"], "--trainers", "2 and 3"),
        (["compile", NET, "--pservers=a:1", "--pservers=b:1"], "--pservers", "a:1 and b:1"),
        (["compile", NET, "-o", "one", "--output", "two"], "--output", "one and two"),
        (["plan", NET, "--mode", "sync", "--mode", "async"], "--mode", "sync and async"),
        (["check", NET, "--steps", "1", "--steps", "2"], "--steps", "1 and 2"),
        (["run", NET, "--seed", "1", "--seed", "2"], "--seed", "1 and 2"),
        (["launch", NET, "--batch", "1", "--batch", "2"], "--batch", "1 and 2"),
        (
            ["grad", FORWARD, "--loss", "loss", "--optimizer", "sgd", "--optimizer", "adam"],
            "--optimizer",
            "sgd and adam",
        ),
        (["fluid", "--check", "--trainers", "2", "--trainers=3", "net.py"], "--trainers", "2 and 3"),
        (["export", NET, "--to", "onnx", "--to", "dot"], "--to", "onnx and dot"),
    ],
)
def test_two_values(arguments: list[str], option: str, values: str, capsys: pytest.CaptureFixture[str]):
    assert f": {option} is given twice, with different values: {values}\n" in told(arguments, capsys).replace(
        ": error:", ":"
    )


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
