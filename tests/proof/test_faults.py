"""`check --faults`: what a mode promises when things go wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstranspile.cluster.machines import synchronous
from pstranspile.cluster.machines.asynchronous import AsynchronousServer
from pstranspile.cluster.machines.message import SEND, Message
from pstranspile.cluster.machines.scenario import parse_scenario, random_scenario
from pstranspile.cluster.machines.synchronous import SynchronousServer
from pstranspile.ir.model import Program
from pstranspile.proof.check import check
from pstranspile.proof.replays import Ledger
from pstranspile.proof.report import BITWISE, DIFFERENT, ROUNDING, Away, Faulty, report_text
from pstranspile.tools.cli import main
from tests.cluster.machines.fuzz import cases, compiled, model

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "regression.ir")
CLUSTER = ["--pservers", "2", "--trainers", "2"]


def checked(scenario: Any, mode: str = "sync", kind: str = "dense", trainers: int = 2, **settings: Any) -> Faulty:
    made = compiled(kind, trainers, 2, mode, **settings)
    faults = parse_scenario(scenario) if isinstance(scenario, str) else scenario
    drawn = not isinstance(scenario, str)
    report = check(model(kind), made.job, steps=5, result=made, faults=faults, unreached=drawn)
    assert report.faulty is not None
    assert report.holds == report.faulty.holds
    return report.faulty


@pytest.mark.parametrize("mode", ["sync", "fleet-sync", "nccl2", "grad-allreduce"])
@pytest.mark.parametrize(
    "scenario", ["delay 0.4 1..30\ndrop 0.3\nduplicate 0.3", "late trainer_1 90\nslow trainer_0 9"]
)
def test_nobody_is_away(mode: str, scenario: str):
    found = checked(scenario, mode)
    assert (found.holds, found.equality, found.away) == (True, BITWISE, ())


@pytest.mark.parametrize("kind", ["dense", "adam", "sparse"])
def test_a_server_that_is_started_again(kind: str):
    found = checked("crash pserver_0 step 3 after 2 restart 30\ncrash pserver_1 step 5 restart 3", kind=kind)
    assert (found.holds, found.equality, found.away) == (True, BITWISE, ())


@pytest.mark.parametrize("mode", ["sync", "fleet-sync", "nccl2", "grad-allreduce"])
@pytest.mark.parametrize("kind", ["dense", "adam"])
def test_the_missing_shares_are_told_and_left_out(mode: str, kind: str):
    found = checked("leave trainer_1 step 2\nrejoin trainer_1 step 4\nleave trainer_0 step 5", mode, kind)
    assert found.holds
    assert found.equality in (ROUNDING, BITWISE)
    assert found.away == (Away("trainer_0", 5, 5), Away("trainer_1", 2, 3))


def test_sequences_of_those_who_are_there():
    found = checked("leave trainer_2 step 3", kind="sparse", trainers=3)
    assert (found.holds, found.away) == (True, (Away("trainer_2", 3, 5),))
    assert found.equality in (ROUNDING, BITWISE)


def test_a_crash_half_way_is_not_compared():
    found = checked("crash trainer_1 step 3 after 8", kind="dense")
    assert found.holds
    assert (found.not_compared != "") == (found.equality == "")


@pytest.mark.parametrize("mode", ["async", "half-async", "geo", "local-sgd"])
def test_modes_that_promise_no_equality(mode: str):
    settings = {"geo_sgd_need_push_nums": 2} if mode == "geo" else {}
    found = checked("drop 0.3\nduplicate 0.4\ncrash trainer_1 step 4", mode, **settings)
    assert (found.holds, found.equality) == (True, "")


@pytest.mark.parametrize("mode", ["async", "half-async", "geo", "local-sgd"])
def test_steps_with_faults_are_held_to_the_source_if_everybody_stays(mode: str):
    settings = {"geo_sgd_need_push_nums": 2} if mode == "geo" else {}
    found = checked("delay 0.4 1..80\ndrop 0.3\nduplicate 0.3\nslow trainer_1 40", mode, **settings)
    assert (found.holds, found.held) == (True, True)
    assert not checked("leave trainer_1 step 4", mode, **settings).held


def test_steps_that_go_wrong_with_faults_only_are_found(monkeypatch: pytest.MonkeyPatch):
    on_send = AsynchronousServer.on_send

    def changed(self: AsynchronousServer, message: Message) -> None:
        if self.network.faults is not None:
            message = message._replace(payload=message.payload * 2)
        on_send(self, message)

    monkeypatch.setattr(AsynchronousServer, "on_send", changed)
    found = checked("delay 0.4 1..80", "async")
    assert not found.holds
    assert "is not what the source program makes of the values before the step" in found.wrong[0]


def test_stuck():
    found = checked("crash trainer_1 step 3 unnoticed")
    assert not found.holds
    assert found.stuck[0] == "trainer_1 crashed in step 3, and nobody noticed"


def test_an_average_over_the_wrong_number_is_found(monkeypatch: pytest.MonkeyPatch):
    """A server that goes on dividing by the number of all trainers."""
    monkeypatch.setattr(synchronous, "without_gradients", dividing_by_all(synchronous.without_gradients))
    found = checked("leave trainer_1 step 2")
    assert (found.holds, found.equality) == (False, DIFFERENT)


def dividing_by_all(without: Any) -> Any:
    def wrong(program: Program, absent: Any) -> Program:
        scales = iter([op.attrs["scale"] for op in program.main_block.ops if op.type == "scale"])
        made = without(program, absent)
        block = made.main_block
        ops = [
            op._replace(attrs=type(op.attrs)({**op.attrs, "scale": next(scales)})) if op.type == "scale" else op
            for op in block.ops
        ]
        return made._replace(blocks=(block._replace(ops=tuple(ops)), *made.blocks[1:]))

    return wrong


def test_gradients_that_are_lost_or_doubled_are_found(monkeypatch: pytest.MonkeyPatch):
    forget = SynchronousServer.on_send

    def forgetful(self: SynchronousServer, message: Message) -> None:
        if (message.trainer, message.step) == (1, 2):
            message = message._replace(payload=message.payload * 0.5)
        forget(self, message)

    monkeypatch.setattr(SynchronousServer, "on_send", forgetful)
    made = compiled("dense", 2, 2)
    report = check(model("dense"), made.job, steps=4, result=made, faults=parse_scenario("drop 0.1"))
    assert report.faulty is not None
    assert any("was applied with another value than was sent" in line for line in report.faulty.wrong)
    assert not report.faulty.holds
    assert "WRONG: " in report_text(report)


def test_what_asynchronous_servers_were_sent_is_counted():
    gradients = Ledger()
    one, two = (Message(SEND, "trainer_0", "pserver_0", 0, 1, number, "w@GRAD", None, -1) for number in (1, 2))
    for event, message in (("post", one), ("post", two), ("deliver", one), ("deliver", one)):
        gradients(event, message)
    told = list(gradients.problems(restarts=False))
    assert [line.rpartition(" was ")[2] for line in told] == ["applied 2 times", "lost"]
    assert [line.rpartition(" was ")[2] for line in gradients.problems(restarts=True)] == ["lost"]


REACHED = """\
drop 0.3
delay 0.3 1..9
duplicate 0.3
late trainer_1 9
slow trainer_1 9
leave trainer_1 step 3
rejoin trainer_1 step 4
crash pserver_0 step 2 restart 9
partition trainer_0 | pserver_0 from 5 to 60
"""


def test_all_that_has_happened_is_reached():
    assert not checked(REACHED).unreached


@pytest.mark.parametrize(
    "line",
    [
        "crash trainer_1 step 50",
        "crash trainer_1 step 5 after 1000",
        "crash pserver_0 step 50 restart 9",
        "crash pserver_0 step 7",
        "leave trainer_1 step 50",
        "rejoin trainer_1 step 2",
        "partition trainer_0 | trainer_1 from 0",
        "partition pserver_0 | pserver_1 from 0 to 50",
        "partition trainer_0 | pserver_0 from 100000 to 200000",
        "drop 1e-09",
        "delay 1e-09 1..20",
        "duplicate 1e-09",
    ],
)
def test_what_has_not_happened_is_not_shown(line: str):
    found = checked(line)
    assert found.unreached == (line,)
    assert not found.holds
    assert found.only_unreached


@pytest.mark.parametrize("mode", ["async", "geo", "nccl2", "grad-allreduce", "local-sgd"])
def test_what_has_not_happened_is_named_in_every_mode(mode: str):
    assert checked("drop 0.3\ncrash trainer_1 step 50", mode).unreached == ("crash trainer_1 step 50",)


def test_a_trainer_does_not_crash_after_it_has_left():
    assert checked("leave trainer_1 step 2\ncrash trainer_1 step 4").unreached == ("crash trainer_1 step 4",)
    again = "leave trainer_1 step 2\nrejoin trainer_1 step 3\ncrash trainer_1 step 5"
    assert not checked(again).unreached


def test_random_scenarios():
    names = ["trainer_0", "trainer_1", "trainer_2"], ["pserver_0", "pserver_1"]
    ends: set[str] = set()
    for seed in range(cases(15, 400)):
        found = checked(random_scenario(seed, *names, 5), kind=("dense", "adam")[seed % 2], trainers=3)
        assert found.holds, (seed, found)
        assert found.equality != DIFFERENT
        ends.add(found.equality)
    assert {BITWISE, ROUNDING} <= ends


# The command


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file, data = tmp_path / "trouble.txt", str(tmp_path / "data.npz")
    rows = np.ones((5, 8, 1000), "float32")
    np.savez(data, x=rows, y=rows[:, :, :20])
    file.write_text("leave trainer_1 step 2\nrejoin trainer_1 step 4\n")
    assert main(["check", EXAMPLE, *CLUSTER, "--faults", str(file)]) == 0
    told = capsys.readouterr().out
    assert "the share of trainer_1 in steps 2 to 3 is missing: it was away" in told
    assert "the parameters end equal within rounding to those of a single machine without the missing shares" in told
    file.write_text("crash pserver_0 step 2\n")
    assert main(["check", EXAMPLE, *CLUSTER, "--faults", str(file)]) == 1
    told = capsys.readouterr().out
    assert "STUCK: no machine can go on\n  pserver_0 crashed in step 2, and is not started again\n" in told
    assert told.startswith("without faults the cluster trains as the single machine does\n")
    file.write_text("drop 0.3\ncrash trainer_1 step 50\n")
    assert main(["check", EXAMPLE, *CLUSTER, "--faults", str(file)]) == 1
    told = capsys.readouterr().out
    assert "\n  not reached: crash trainer_1 step 50\n" in told
    assert told.startswith("NOT REACHED: a part of the faults did not happen, so nothing is shown of it\n")
    assert main(["check", EXAMPLE, *CLUSTER, "--faults", str(file), "--allow-unreached"]) == 0
    assert "\n  not reached: crash trainer_1 step 50\n" in capsys.readouterr().out
    page = str(tmp_path / "page.html")
    for verb in (["report", EXAMPLE, *CLUSTER, "--steps", "5", "-o", page], ["run", EXAMPLE, *CLUSTER, "--feed", data]):
        assert main([*verb, "--faults", str(file)]) == 1
        assert "not reached: crash trainer_1 step 50\n" in capsys.readouterr().err
        assert main([*verb, "--faults", str(file), "--allow-unreached"]) == 0
        assert main([*verb, "--allow-unreached"]) == 2
        capsys.readouterr()
    file.write_text("crash pserver_9 step 2\n")
    assert main(["check", EXAMPLE, *CLUSTER, "--faults", str(file)]) == 1
    assert "the cluster has no machine pserver_9" in capsys.readouterr().err


def test_the_command_with_a_seed_and_json(capsys: pytest.CaptureFixture[str]):
    assert main(["check", EXAMPLE, *CLUSTER, "--faults", "3", "--json"]) == 0
    caught = capsys.readouterr()
    assert caught.err.startswith("the scenario of seed 3:\n")
    found = json.loads(caught.out)["faulty"]
    assert (found["stuck"], found["wrong"]) == ([], [])
    assert found["equality"] in (BITWISE, ROUNDING, "")
    assert np.isfinite(found["worst"])
