"""Scenarios: how they are read, and what is wrong with them; `run --faults`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pstranspile.cluster.machines.scenario import parse_scenario
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.tools.cli import main
from tests.cluster.machines.faulty import TROUBLE, cluster, ended

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("crash trainer_0", "expected: crash MACHINE step STEP"),
        ("crash trainer_0 step x", "x is no step: steps are numbered from 1"),
        ("leave trainer_0 step 0", "0 is no step: steps are numbered from 1"),
        ("crash trainer_0 after 0 step 0", "0 is no step: steps are numbered from 1"),
        ("crash trainer_0 step 2 unnoticed notice 3", "expected: crash MACHINE"),
        ("crush trainer_0 step 1", "there is no crush; did you mean crash?"),
        ("drop 1.5", "1.5 is no chance between 0 and 0.9"),
        ("delay 0.1 9..3", "the shortest delay is above the longest"),
        ("partition trainer_0 | trainer_0 from 3", "none may be on both"),
        ("partition trainer_0 | pserver_0 from 9 to 3", "it ends before it begins"),
        ("slow trainer_0 0", "0 is no whole number of at least 1"),
        ("keep 0", "0 is no whole number of at least 1"),
        ("rejoin trainer_0 4", "expected: rejoin TRAINER step STEP"),
    ],
)
def test_what_is_wrong_in_a_scenario_is_told(text: str, told: str):
    with pytest.raises(DiagnosticError) as caught:
        parse_scenario(f"seed 1\n\n{text}  # here\n", "trouble.txt")
    (finding,) = caught.value.diagnostics
    assert finding.code == "cluster-scenario"
    assert finding.location is not None
    assert (finding.location.file, finding.location.line) == ("trouble.txt", 3)
    assert told in finding.message


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("crash trainer_7 step 2", "the cluster has no machine trainer_7; "),
        ("slow pserver_0 3", "the cluster has no trainer pserver_0; "),
        ("crash trainer_0 step 2 restart 3", "trainer_0 is a trainer: use `rejoin`"),
    ],
)
def test_machines_of_a_scenario_must_exist(text: str, told: str):
    with pytest.raises(DiagnosticError, match="cluster-scenario") as caught:
        cluster("sync", text)
    assert told in caught.value.diagnostics[0].message


def test_a_scenario_gives_the_same_run_every_time():
    def events() -> list[str]:
        found = cluster("async", TROUBLE, 5)
        seen: list[str] = []
        found.network.observe(lambda event, message: seen.append(f"{event} {message}"))
        ended(found)
        assert found.injector is not None
        return [*seen, *map(str, found.injector.log)]

    assert events() == events()


# The command


@pytest.fixture
def data(tmp_path: Path) -> list[str]:
    rows = np.random.RandomState(0).rand(4, 8, 1000).astype("float32")
    np.savez(tmp_path / "data.npz", x=rows, y=rows[:, :, :20])
    return ["run", str(ROOT / "examples" / "regression.ir"), "--feed", str(tmp_path / "data.npz")]


CLUSTER = ["--pservers", "2", "--trainers", "2"]


def test_run_with_faults_of_a_file(data: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "trouble.txt"
    file.write_text("drop 0.2\ncrash trainer_1 step 2 after 1\nrejoin trainer_1 step 4\n")
    assert main([*data, *CLUSTER, "--faults", str(file)]) == 0
    told = capsys.readouterr().err
    assert ": trainer_1 crashed in step 2\n" in told
    assert ": trainer_1 rejoins, from step 4\n" in told
    file.write_text("crash trainer_1 step 2 unnoticed\n")
    assert main([*data, *CLUSTER, "--faults", str(file)]) == 1
    told = capsys.readouterr().err
    assert "error[cluster-stuck]" in told
    assert "pserver_1 waits at listen_and_serv for send barriers of step 2; not come: trainer_1" in told
    assert main([*data, *CLUSTER, "--faults", str(tmp_path / "none.txt")]) == 1
    assert "none.txt: error[cluster-scenario]: can't be read" in capsys.readouterr().err


def test_run_with_faults_of_a_seed(data: list[str], capsys: pytest.CaptureFixture[str]):
    assert main([*data, *CLUSTER, "--faults", "4"]) == 0
    first = capsys.readouterr().err
    assert first.startswith("the scenario of seed 4:\nseed 4\n")
    assert main([*data, *CLUSTER, "--faults", "4"]) == 0
    assert capsys.readouterr().err == first


def test_faults_are_for_clusters_and_for_whole_runs(data: list[str], capsys: pytest.CaptureFixture[str]):
    assert main([*data, "--faults", "4"]) == 1
    assert "--faults is for a cluster" in capsys.readouterr().err
    assert main([*data, *CLUSTER, "--faults", "4", "--checkpoint", "kept"]) == 2
    assert "can't be combined with --checkpoint" in capsys.readouterr().err
