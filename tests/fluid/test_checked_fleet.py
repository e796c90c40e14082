"""`--check` and `--explain` of Fleet scripts that no launcher has told of a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fluid.running import SCRIPTS

SERVERS = "servers at 127.0.0.1:6174,127.0.0.1:6175, 2 trainers"
TRAINERS = "2 trainers at 127.0.0.1:7164,127.0.0.1:7165"
OTHERS = "(--pservers and --trainers give another)\n"


def ran(*arguments: str, **environment: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "pstranspile.fluid", *arguments]
    root = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **environment}
    done = subprocess.run(command, env=root, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("script", "argument", "variable", "cluster"),
    [
        ("fleet_ps.py", "sync", "PADDLE_PSERVERS_IP_PORT_LIST", SERVERS),
        ("fleet_collective.py", "", "PADDLE_TRAINER_ENDPOINTS", TRAINERS),
        ("later_fleet.py", "plain", "PADDLE_TRAINER_ENDPOINTS", TRAINERS),
    ],
)
def test_the_cluster_is_chosen_and_told(script: str, argument: str, variable: str, cluster: str) -> None:
    status, out, errors = ran("--check", str(SCRIPTS / script), argument, "unused")
    assert status == 0, errors
    assert out.startswith("the cluster trains as the single machine does\n")
    others = OTHERS if cluster == SERVERS else "(--trainers gives another)\n"
    assert errors == f"the environment has no {variable}: the cluster is taken to have {cluster} {others}"


def test_a_table_with_a_row_for_every_id_is_compared_with_the_rows_of_its_declaration() -> None:
    status, out, errors = ran("--check", str(SCRIPTS / "later_fleet.py"), "tables", "x")
    assert status == 0, errors
    assert out.startswith("the cluster trains as the single machine does\n")
    assert "%rows has a row for every id: 10 rows of it are compared\n" in errors


def test_options_choose_it() -> None:
    script = str(SCRIPTS / "fleet_ps.py")
    status, out, errors = ran("--explain", "--pservers", "10.0.0.1:1,10.0.0.2:1", "--trainers", "3", script, "geo", "x")
    assert (status, errors.count("servers at 10.0.0.1:1,10.0.0.2:1, 3 trainers")) == (0, 1)
    assert out.startswith("mode geo, 3 trainers, 2 servers\n")
    assert "\npserver_1: server at 10.0.0.2:1\n" in out


def test_what_the_environment_says_counts() -> None:
    given = {"TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": "1", "PADDLE_TRAINERS_NUM": "3"}
    script = str(SCRIPTS / "fleet_ps.py")
    status, out, errors = ran("--explain", script, "sync", "x", PADDLE_PSERVERS_IP_PORT_LIST="127.0.0.1:99", **given)
    assert (status, errors) == (0, "")
    assert out.startswith("mode fleet-sync, 3 trainers, 1 server\n")
    assert "\npserver_0: server at 127.0.0.1:99\n" in out


def test_without_check_the_environment_must_say_it() -> None:
    status, _, errors = ran(str(SCRIPTS / "fleet_ps.py"), "sync", "x")
    assert status == 1
    assert "the environment has no PADDLE_PSERVERS_IP_PORT_LIST" in errors
