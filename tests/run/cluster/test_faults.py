"""What each mode does when something goes wrong (docs/faults.md), and what is said when it can't go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cli import main
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.run.cluster.cluster import Cluster
from pstranspile.run.cluster.ledger import UpdateLedger
from pstranspile.run.cluster.message import SEND
from pstranspile.run.cluster.scenario import parse_scenario
from pstranspile.run.cluster.simulate import cluster_of
from tests.run.cluster.fuzz import compiled, feeds, model

ROOT = Path(__file__).parents[3]
STEPS = 6
WITH_SERVERS = ("sync", "fleet-sync", "async", "async-communicator", "half-async", "dc-asgd", "geo")
WITHOUT = ("grad-allreduce", "local-sgd", "nccl2")
MODES = (*WITH_SERVERS, *WITHOUT)
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "async-communicator": ("async", {"runtime_split_send_recv": True}),
    "dc-asgd": ("async", {"enable_dc_asgd": True}),
    "geo": ("geo", {"geo_sgd_need_push_nums": 2}),
}


def cluster(
    mode: str, scenario: str = "", schedule: int | None = None, kind: str = "dense", trainers: int = 2
) -> Cluster:
    name, settings = SETTINGS.get(mode, (mode, {}))
    faults = parse_scenario(scenario) if scenario else None
    found = cluster_of(compiled(kind, trainers, 2, name, **settings), schedule=schedule, faults=faults)
    found.feed(feeds(kind, trainers, STEPS))
    return found


def ended(found: Cluster) -> dict[str, Any]:
    found.run_to(STEPS)
    found.finish()
    assert all(server.ended for server in found.servers)
    return found.parameters()


def equal(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    assert ours.keys() == theirs.keys()
    return all(np.array_equal(value, theirs[name]) for name, value in ours.items())


def alone(parts: list[Any], kind: str = "dense") -> dict[str, Any]:
    """One machine, fed the rows that `parts` says of each step: "both" trainers', or those of one of them."""
    whole = feeds(kind, 2, STEPS)
    module, scope = model(kind), ps.Scope()
    ps.run(module["startup"], scope=scope)
    rows = {"both": slice(None), 0: slice(0, 2), 1: slice(2, 4)}
    for step, part in enumerate(parts):
        ps.run(module["main"], feed={name: array[step][rows[part]] for name, array in whole.items()}, scope=scope)
    return {var.name: np.asarray(scope[var.name]) for var in module.main.parameters()}


def alike(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    for name, value in ours.items():
        np.testing.assert_allclose(value, theirs[name], rtol=1e-4, atol=1e-6)


# Messages


@pytest.mark.parametrize("schedule", [None, 1, 2])
@pytest.mark.parametrize(
    "fault", ["delay 0.5 1..60", "drop 0.4", "duplicate 0.6", "delay 0.3 1..9\ndrop 0.3\nduplicate 0.3"]
)
@pytest.mark.parametrize("mode", ["sync", "fleet-sync", *WITHOUT])
def test_messages_change_nothing_where_trainers_wait_for_each_other(mode: str, fault: str, schedule: int | None):
    assert equal(ended(cluster(mode, fault, schedule)), ended(cluster(mode)))


@pytest.mark.parametrize(
    "slow", ["late trainer_1 300", "slow trainer_0 50", "partition trainer_1 | pserver_0 from 10 to 400"]
)
@pytest.mark.parametrize("mode", ["sync", "fleet-sync"])
def test_trainers_that_are_late_slow_or_cut_off_for_a_while_change_nothing(mode: str, slow: str):
    found = cluster(mode, slow)
    assert equal(ended(found), ended(cluster(mode)))
    assert found.scheduler.now >= 300


def gradients(found: Cluster) -> dict[str, Any]:
    """Per slice, the sum of what was sent; to be asked for before the cluster starts."""
    sums: dict[str, Any] = {}

    def observe(event: str, message: Any) -> None:
        if event == "post" and message.kind == SEND:
            name = message.variable.partition(".trainer_")[0]
            sums[name] = sums.get(name, 0) + message.payload.astype("float64")

    found.network.observers.append(observe)
    return sums


TROUBLE = """seed 3
delay 0.3 1..30
drop 0.2
duplicate 0.3
crash pserver_0 step 4 after 2 restart 40
crash pserver_1 step 9 restart 5
keep 2
"""


@pytest.mark.parametrize("schedule", [None, *range(4)])
@pytest.mark.parametrize("mode", ["async", "async-communicator", "half-async"])
def test_asynchronous_servers_apply_every_gradient_once_whatever_happens(mode: str, schedule: int | None):
    """With SGD, a server ends with the start less the rate times all that was sent."""
    found = cluster(mode, TROUBLE, schedule)
    start = dict(found.trainers[0].scope)
    sums = gradients(found)
    found.start()
    start = found.parameters()
    ours = ended(found)
    assert found.injector is not None
    assert sum("started again" in told for _, told in found.injector.told) == 2
    for name, value in start.items():
        sent = [sums[key] for key in sorted(sums) if key.partition("@GRAD")[0] == name]
        np.testing.assert_allclose(
            ours[name].ravel(), value.ravel() - 0.1 * np.concatenate(sent).ravel(), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("schedule", [None, 1, 2])
def test_geo_servers_hold_the_start_and_all_differences_whatever_happens(schedule: int | None):
    found = cluster("geo", TROUBLE.replace("step 9", "step 6"), schedule)
    sums = gradients(found)
    found.start()
    start = found.parameters()
    ours = ended(found)
    for name, value in start.items():
        sent = [sums[key] for key in sorted(sums) if key.partition(".delta")[0].partition(".block")[0] == name]
        np.testing.assert_allclose(
            ours[name].ravel(), value.ravel() + np.concatenate(sent).ravel(), rtol=1e-4, atol=1e-5
        )


# Servers


@pytest.mark.parametrize("step", range(STEPS))
@pytest.mark.parametrize("keep", [1, 3])
@pytest.mark.parametrize("kind", ["adam", "sparse"])
def test_a_server_that_is_started_again_makes_its_updates_anew(kind: str, keep: int, step: int):
    scenario = f"keep {keep}\ncrash pserver_0 step {step} after {2 * step} restart 30"
    found = cluster("sync", scenario, step, kind)
    ledger = UpdateLedger(found)
    assert equal(ended(found), ended(cluster("sync", kind=kind)))
    assert ledger.problems() == []
    assert found.injector is not None
    assert next(told for _, told in found.injector.told) == f"pserver_0 crashed in step {step}"


# Trainers


@pytest.mark.parametrize(
    ("mode", "event"),
    [
        *((mode, "leave trainer_1 step 2") for mode in ("sync", "fleet-sync", "grad-allreduce", "nccl2")),
        *((mode, "crash trainer_1 step 2") for mode in ("sync", "fleet-sync", "grad-allreduce", "nccl2")),
        ("sync", "crash trainer_1 step 2 after 3"),
        ("fleet-sync", "crash trainer_1 step 2 after 3"),
    ],
)
def test_the_average_is_over_those_who_sent(mode: str, event: str):
    """What a trainer sent of a step that it did not finish does not count, where servers hear of the end of steps."""
    found = cluster(mode, event)
    ours = ended(found)
    alike(ours, alone(["both"] * 2 + [0] * 4))
    assert [len(trainer.results) for trainer in found.trainers] == [6, 2]


@pytest.mark.parametrize("schedule", [None, 1, 2, 3])
@pytest.mark.parametrize(
    "away", ["leave trainer_1 step 1", "crash trainer_1 step 1 notice 1", "crash trainer_1 step 1 after 2"]
)
def test_a_trainer_that_rejoins_takes_part_from_the_next_step(away: str, schedule: int | None):
    found = cluster("sync", f"{away}\nrejoin trainer_1 step 4\ndelay 0.3 1..20", schedule)
    ledger = UpdateLedger(found)
    ours = ended(found)
    assert ledger.problems() == []
    assert found.injector is not None
    (step,) = [int(told.rpartition(" ")[2]) for _, told in found.injector.told if "rejoins" in told]
    assert step == 4
    alike(ours, alone(["both"] + [0] * (step - 1) + ["both"] * (STEPS - step)))
    for name, value in ours.items():
        np.testing.assert_array_equal(found.trainers[1].scope[name], value)


@pytest.mark.parametrize("mode", WITH_SERVERS)
@pytest.mark.parametrize("event", ["leave trainer_0 step 2", "crash trainer_0 step 1 after 1"])
def test_the_only_trainer_comes_back(event: str, mode: str):
    found = cluster(mode, f"{event}\nrejoin trainer_0 step 3", trainers=1)
    ended(found)
    assert found.injector is not None
    assert [told for _, told in found.injector.told][1].startswith("trainer_0 rejoins, from step ")
    assert found.trainers[0].step == STEPS


@pytest.mark.parametrize("mode", ["grad-allreduce", "nccl2"])
def test_a_trainer_that_rejoins_without_servers_takes_over_what_another_has(mode: str):
    found = cluster(mode, "leave trainer_1 step 1\nrejoin trainer_1 step 4")
    ours = ended(found)
    alike(ours, alone(["both"] + [0] * 3 + ["both"] * 2))
    for name, value in ours.items():
        np.testing.assert_array_equal(found.trainers[1].scope[name], value)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("schedule", [None, 1])
def test_in_every_mode_trainers_crash_and_come_back(mode: str, schedule: int | None):
    found = cluster(mode, "crash trainer_1 step 2 after 1\nrejoin trainer_1 step 4\nslow trainer_0 60", schedule)
    ours = ended(found)
    assert all(np.isfinite(value).all() for value in ours.values())
    assert found.injector is not None
    assert any("rejoins" in told for _, told in found.injector.told)
    assert found.trainers[1].step == STEPS


def test_a_geo_trainer_that_comes_back_begins_with_what_the_servers_have():
    """Also of tables, which its start-up program does not fetch."""
    found = cluster("geo", "crash trainer_1 step 2\nrejoin trainer_1 step 5\nslow trainer_0 200", kind="embedding")
    trainer, feed = found.trainers[1], found.trainers[1].feed
    begun: dict[int, bool] = {}

    def look(step: int) -> Any:
        begun.setdefault(step, all(np.array_equal(trainer.scope[n], value) for n, value in found.parameters().items()))
        return feed(step)

    trainer.feed = look
    found.start()
    first = found.parameters()
    ours = ended(found)
    assert begun[0]
    assert begun[3]
    assert not begun[5]
    assert all(not np.array_equal(ours[name], value) for name, value in first.items())


# Stuck


def report_of(found: Cluster) -> list[str]:
    with pytest.raises(DiagnosticError) as caught:
        ended(found)
    (finding,) = caught.value.diagnostics
    assert finding.code == "cluster-stuck"
    return [note.message for note in finding.notes]


@pytest.mark.parametrize("schedule", [None, 1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_a_crash_that_nobody_notices_is_named(mode: str, schedule: int | None):
    found = cluster(mode, "crash trainer_1 step 2 unnoticed", schedule)
    told = report_of(found)
    assert told[0] == "trainer_1 crashed in step 2, and nobody noticed"
    waiting = [line for line in told if "; not come: trainer_1" in line]
    assert waiting
    what = {
        "sync": "send barriers of step 2",
        "fleet-sync": "send barriers of step 2",
        "grad-allreduce": "the parts of all trainers in c_allreduce_sum",
        "local-sgd": "the parts of all trainers in c_allreduce_sum",
        "nccl2": "the parts of all trainers in average",
    }.get(mode, "the end of all trainers")
    assert all(f"for {what}; " in line for line in waiting), waiting


@pytest.mark.parametrize("schedule", [None, 1, 2])
@pytest.mark.parametrize("mode", WITH_SERVERS)
def test_a_server_that_does_not_come_back_is_named(mode: str, schedule: int | None):
    told = report_of(cluster(mode, "crash pserver_1 step 1 after 1", schedule))
    assert told[0] == "pserver_1 crashed in step 1, and is not started again"
    assert any(line.startswith("trainer") and "pserver_1" in line.partition("not come: ")[2] for line in told), told


@pytest.mark.parametrize("mode", WITH_SERVERS)
def test_a_partition_that_does_not_end_is_named(mode: str):
    told = report_of(cluster(mode, "partition trainer_1 | pserver_0 from 0"))
    assert "pserver_0 and trainer_1 can't reach each other (since tick" in told[0]
    assert any(line.startswith("trainer_1") and "pserver_0" in line.partition("not come: ")[2] for line in told), told


WAITS: dict[str, Callable[[], Cluster]] = {
    "answers to recv": lambda: cluster("sync", "crash pserver_0 step 0 after 1"),
    "answers to distributed_lookup_table": lambda: cluster("sync", "crash pserver_0 step 1 after 3", kind="embedding"),
    "answers to c_allreduce_sum": lambda: cluster("grad-allreduce", "crash trainer_0 step 1 unnoticed"),
    "fetch barriers of the start-up programs": lambda: cluster("sync", "partition trainer_0 | pserver_1 from 0"),
    "room in the queue of its communicator": lambda: cluster(
        "async-communicator", "partition trainer_0 | pserver_1 from 20"
    ),
    "its communicator to begin the next exchange": lambda: cluster("geo", "partition trainer_0 | pserver_1 from 20"),
    "answers of servers": lambda: cluster("geo", "partition trainer_0 | pserver_1 from 20"),
}


@pytest.mark.parametrize("what", WAITS)
def test_every_kind_of_wait_is_told_with_its_op(what: str):
    found = WAITS[what]()
    with pytest.raises(DiagnosticError) as caught:
        ended(found)
    (finding,) = caught.value.diagnostics
    (line, *_) = [note.message for note in finding.notes if f"for {what}" in note.message]
    assert " waits at " in line


# Scenarios


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("crash trainer_0", "expected: crash MACHINE step STEP"),
        ("crash trainer_0 step x", "x is no whole number of at least 0"),
        ("crash trainer_0 step 1 unnoticed notice 3", "expected: crash MACHINE"),
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
        ("crash trainer_7 step 1", "the cluster has no machine trainer_7; "),
        ("slow pserver_0 3", "the cluster has no trainer pserver_0; "),
        ("crash trainer_0 step 1 restart 3", "trainer_0 is a trainer: use `rejoin`"),
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
        found.network.observers.append(lambda event, message: seen.append(f"{event} {message}"))
        ended(found)
        assert found.injector is not None
        return [*seen, *map(str, found.injector.told)]

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
    file.write_text("drop 0.2\ncrash trainer_1 step 1 after 1\nrejoin trainer_1 step 3\n")
    assert main([*data, *CLUSTER, "--faults", str(file)]) == 0
    told = capsys.readouterr().err
    assert ": trainer_1 crashed in step 1\n" in told
    assert ": trainer_1 rejoins, from step 3\n" in told
    file.write_text("crash trainer_1 step 1 unnoticed\n")
    assert main([*data, *CLUSTER, "--faults", str(file)]) == 1
    told = capsys.readouterr().err
    assert "error[cluster-stuck]" in told
    assert "pserver_1 waits at listen_and_serv for send barriers of step 1; not come: trainer_1" in told
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
