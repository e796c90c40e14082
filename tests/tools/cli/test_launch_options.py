"""What `start` and `launch` are given is looked at before any process begins."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstranspile.cluster.net.metrics import read_pace
from pstranspile.compiler.cost.profile import profile_text
from pstranspile.tools.cli import main
from tests.compiler.cost.test_seconds import REAL

PROGRAM = str(Path(__file__).parents[3] / "examples" / "regression.ir")
CLUSTER = ["--pservers", "2", "--trainers", "2"]


@pytest.mark.parametrize("verb", [["start", "out", "--role", "trainer_0"], ["launch", "out"]])
@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--steps", "0", "'0' is no whole number of at least 1"),
        ("--steps", "-3", "'-3' is no whole number of at least 1"),
        ("--threads", "x", "'x' is no whole number of at least 1"),
        ("--push-every", "0", "'0' is no whole number of at least 1"),
        ("--state-every", "0", "'0' is no whole number of at least 1"),
        ("--lease", "0", "'0' is no number of seconds above 0"),
        ("--patience", "nan", "'nan' is no number of seconds above 0"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(verb, option, value, says, capsys):
    assert main([*verb, f"{option}={value}"]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["start", "out", "--role", "pserver_0", "--state=out/plan.json/kept"],
        ["launch", "out", "--state=out/plan.json/kept"],
        ["launch", "out", "--logs=out/plan.json/kept"],
        ["launch", "out", "--record=out/plan.json/kept"],
    ],
)
def test_folders_that_can_not_be_made_are_refused(command, tmp_path, capsys, monkeypatch):
    pytest.importorskip("grpc")
    monkeypatch.chdir(tmp_path)
    assert main(["compile", PROGRAM, "--pservers", "1", "--trainers", "1", "-o", "out"]) == 0
    assert main(command) == 1
    assert "can't be written: there is a file where a folder is needed" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["garbage", "0:x", "1:2", "0:0", "0:2,", "0:2,5", "-1:2"])
def test_how_rows_were_dealt_is_told_in_pairs(text, capsys):
    assert main(["start", "out", "--role", "trainer_0", f"--dealt={text}"]) == 2
    assert "does not say STEP:N,STEP:N" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["feed", "save", "record", "state", "logs", "resume"])
def test_empty_names_are_refused(option, capsys):
    """Those of shell variables that are not set."""
    assert main(["launch", "out", f"--{option}="]) == 2
    assert f"--{option}: the name is empty" in capsys.readouterr().err


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A folder `out` of 2 servers and 2 trainers, and the inputs of 2 steps."""
    pytest.importorskip("grpc")
    monkeypatch.chdir(tmp_path)
    assert main(["compile", PROGRAM, *CLUSTER, "-o", "out"]) == 0
    x = np.ones((2, 4, 1000), "float32")
    np.savez("two.npz", x=x, y=x[:, :, :20])
    own = {f"trainer_{i}/{name}": x[:, :, :size] for i in (0, 1) for name, size in (("x", 1000), ("y", 20))}
    np.savez("own.npz", **own)


@pytest.mark.parametrize(
    "options",
    [["--pservers", "3"], ["--trainers", "4"], ["--mode", "async"], ["--set", "min_block_size=1"], ["--strict"]],
)
@pytest.mark.usefixtures("job")
def test_a_folder_has_its_job_already(options, capsys):
    assert main(["launch", "out", *options, "--feed", "two.npz"]) == 2
    assert f"{options[0]} goes with a program; out is a folder of compiled programs" in capsys.readouterr().err


@pytest.mark.parametrize("feed", ["two.npz", "own.npz"])
@pytest.mark.parametrize(
    "command",
    [
        ["launch", "out"],
        ["launch", PROGRAM, *CLUSTER],
        ["start", "out", "--role", "trainer_0"],
        ["run", PROGRAM, *CLUSTER],
        ["report", PROGRAM, *CLUSTER, "--run", "-o", "report.html"],
    ],
    ids=lambda command: command[0],
)
@pytest.mark.usefixtures("job")
def test_more_steps_than_are_fed_are_refused(command, feed, capsys):
    capsys.readouterr()
    assert main([*command, "--feed", feed, "--steps", "3"]) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"{feed}: error[run-file-unusable]: 2 steps are fed, 3 are asked for\n")


@pytest.mark.parametrize("restarts", [[], ["--restarts", "1"]])
@pytest.mark.usefixtures("job")
def test_inputs_that_are_not_fed_are_told_once(restarts, capsys):
    """Before any process begins: of a program with its lines, of a folder with those of its first trainer."""
    capsys.readouterr()
    for command, file in (([PROGRAM, *CLUSTER], PROGRAM), (["out"], "out/trainer_0.ir")):
        assert main(["launch", *command, *restarts]) == 1
        out, err = capsys.readouterr()
        lines = err.splitlines()
        told = [line for line in lines if "error[" in line]
        assert out == ""
        assert [line.startswith(f"{file}:") for line in told] == [True, True]
        assert [line.partition("error[run-feed-missing]: ")[2].split(" is an input")[0] for line in told] == [
            "mul: x",
            "elementwise_sub: y",
        ]
        assert lines[-1].startswith(
            "note: --feed FILE.npz gives the inputs of all steps; rows of files are fed with --feed FILE.csv"
        )


@pytest.mark.usefixtures("job")
def test_an_input_that_one_trainer_lacks(capsys):
    x = np.ones((2, 4, 1000), "float32")
    np.savez("part.npz", **{"x": x, "trainer_0/y": x[:, :, :20]})
    capsys.readouterr()
    assert main(["launch", "out", "--feed", "part.npz"]) == 1
    assert "out/trainer_1.ir:" in (err := capsys.readouterr().err)
    assert "y is an input of the program" in err
    assert "note: --feed" not in err


def data_of(page: Path) -> dict[str, Any]:
    """The data of a page for the browser."""
    found = re.findall(r'<script type="application/json" id="[a-z]+">(.*?)</script>', page.read_text(), re.S)
    return {name: value for part in found for name, value in json.loads(part).items()}


def test_a_pace_is_that_of_its_job(tmp_path, capfd, monkeypatch):
    """`launch --pace` writes it, of a program or of a folder; `report --measured` takes it for that job alone."""
    monkeypatch.chdir(tmp_path)
    np.savez("d.npz", x=np.ones((20, 4, 1000), "float32"), y=np.ones((20, 4, 20), "float32"))
    Path("host.json").write_text(profile_text(REAL))
    assert main(["launch", PROGRAM, *CLUSTER, "--feed", "d.npz", "--pace", "pace.json"]) == 0
    assert main(["compile", PROGRAM, *CLUSTER, "-o", "out"]) == 0
    assert main(["launch", "out", "--feed", "d.npz", "--pace", "of_folder.json"]) == 0
    paces = [read_pace(name) for name in ("pace.json", "of_folder.json")]
    assert paces[0].job == paces[1].job
    report = ["report", PROGRAM, "--set", "batch_rows=2", "--profile", "host.json", "-o", "page.html", "--measured"]
    for name, pace in zip(("pace.json", "of_folder.json"), paces, strict=True):
        assert {*pace.processor} == {"trainer_0", "trainer_1", "pserver_0", "pserver_1"}
        assert main([*report, name, *CLUSTER]) == 0
        found = {machine: seconds for machine, _, _, seconds in data_of(Path("page.html"))["step"]["measured"]}
        assert found == pytest.approx(
            {
                "": pace.step,
                "trainer_0 to 1": (pace.processor["trainer_0"] + pace.processor["trainer_1"]) / 2,
                "pserver_0": pace.processor["pserver_0"],
                "pserver_1": pace.processor["pserver_1"],
            },
            rel=1e-3,
        )
    capfd.readouterr()
    others = {
        "2 trainers and 2 servers, and this job has 3 trainers and 1 server": ["--pservers", "1", "--trainers", "3"],
        "as many machines, with other programs": [*CLUSTER, "--mode", "async"],
    }
    for told, options in others.items():
        assert main([*report, "pace.json", *options]) == 1
        assert f"error[cost-measured]: it was measured of another job: that has {told}" in capfd.readouterr().err


def test_a_run_that_is_too_short_has_no_pace(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("d.npz", x=np.ones((1, 4, 1000), "float32"), y=np.ones((1, 4, 20), "float32"))
    assert main(["launch", PROGRAM, *CLUSTER, "--feed", "d.npz", "--pace", "pace.json"]) == 0
    assert "pace.json is not written: the run was too short to tell how long a step takes" in capfd.readouterr().err
    assert not Path("pace.json").exists()
