"""What each mode does when messages get lost, machines are slow, servers are started again and trainers come and go
(docs/reference/faults.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.injection import Injector
from pstranspile.cluster.machines.message import SEND
from pstranspile.cluster.machines.scenario import Crash, Departure, Rejoin, Scenario, parse_scenario
from pstranspile.cluster.machines.simulate import simulate
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.proof.faults import UpdateLedger
from tests.cluster.machines.faulty import (
    MODES,
    STEPS,
    TROUBLE,
    WITH_SERVERS,
    WITHOUT,
    alike,
    alone,
    cluster,
    ended,
    equal,
)
from tests.cluster.machines.fuzz import compiled, feeds, model

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

    found.network.observe(observe)
    return sums


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
    assert sum("started again" in told for _, told in found.injector.log) == 2
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


@pytest.mark.parametrize("step", range(1, STEPS + 1))
@pytest.mark.parametrize("keep", [1, 3])
@pytest.mark.parametrize("kind", ["adam", "sparse"])
def test_a_server_that_is_started_again_makes_its_updates_anew(kind: str, keep: int, step: int):
    scenario = f"keep {keep}\ncrash pserver_0 step {step} after {2 * step - 2} restart 30"
    found = cluster("sync", scenario, step, kind)
    ledger = UpdateLedger(found)
    assert equal(ended(found), ended(cluster("sync", kind=kind)))
    assert ledger.problems() == []
    assert found.injector is not None
    assert next(told for _, told in found.injector.log) == f"pserver_0 crashed in step {step}"


# Trainers


@pytest.mark.parametrize(
    ("mode", "event"),
    [
        *((mode, "leave trainer_1 step 3") for mode in ("sync", "fleet-sync", "grad-allreduce", "nccl2")),
        *((mode, "crash trainer_1 step 3") for mode in ("sync", "fleet-sync", "grad-allreduce", "nccl2")),
        ("sync", "crash trainer_1 step 3 after 3"),
        ("fleet-sync", "crash trainer_1 step 3 after 3"),
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
    "away", ["leave trainer_1 step 2", "crash trainer_1 step 2 notice 1", "crash trainer_1 step 2 after 2"]
)
def test_a_trainer_that_rejoins_takes_part_from_the_next_step(away: str, schedule: int | None):
    found = cluster("sync", f"{away}\nrejoin trainer_1 step 5\ndelay 0.3 1..20", schedule)
    ledger = UpdateLedger(found)
    ours = ended(found)
    assert ledger.problems() == []
    assert found.injector is not None
    (step,) = [int(told.rpartition(" ")[2]) for _, told in found.injector.log if "rejoins" in told]
    assert step == 5
    alike(ours, alone(["both"] + [0] * (step - 2) + ["both"] * (STEPS - step + 1)))
    for name, value in ours.items():
        np.testing.assert_array_equal(found.trainers[1].scope[name], value)


@pytest.mark.parametrize("mode", WITH_SERVERS)
@pytest.mark.parametrize("event", ["leave trainer_0 step 3", "crash trainer_0 step 2 after 1"])
def test_the_only_trainer_comes_back(event: str, mode: str):
    found = cluster(mode, f"{event}\nrejoin trainer_0 step 4", trainers=1)
    ended(found)
    assert found.injector is not None
    assert [told for _, told in found.injector.log][1].startswith("trainer_0 rejoins, from step ")
    assert found.trainers[0].step == STEPS


@pytest.mark.parametrize("mode", ["grad-allreduce", "nccl2"])
def test_a_trainer_that_rejoins_without_servers_takes_over_what_another_has(mode: str):
    found = cluster(mode, "leave trainer_1 step 2\nrejoin trainer_1 step 5")
    ours = ended(found)
    alike(ours, alone(["both"] + [0] * 3 + ["both"] * 2))
    for name, value in ours.items():
        np.testing.assert_array_equal(found.trainers[1].scope[name], value)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("schedule", [None, 1])
def test_in_every_mode_trainers_crash_and_come_back(mode: str, schedule: int | None):
    found = cluster(mode, "crash trainer_1 step 3 after 1\nrejoin trainer_1 step 5\nslow trainer_0 60", schedule)
    ours = ended(found)
    assert all(np.isfinite(value).all() for value in ours.values())
    assert found.injector is not None
    assert any("rejoins" in told for _, told in found.injector.log)
    assert found.trainers[1].step == STEPS


def test_a_geo_trainer_that_comes_back_begins_with_what_the_servers_have():
    """Also of tables, which its start-up program does not fetch."""
    found = cluster("geo", "crash trainer_1 step 3\nrejoin trainer_1 step 6\nslow trainer_0 200", kind="embedding")
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


def test_a_trainer_rejoins_while_a_server_is_down():
    """The server, back at what it kept before, lets it in, and does not wait for it when it has left again."""
    scenario = "leave trainer_1 step 2\nrejoin trainer_1 step 4\ncrash pserver_0 step 10 after 3 restart 300"
    found = cluster("async-communicator", scenario, 1)
    ended(found)
    assert found.injector is not None
    told = [text.partition(",")[0] for _, text in found.injector.log]
    assert told[1:] == ["pserver_0 crashed in update 11", "trainer_1 rejoins", "pserver_0 is started again"]


# Numbers of steps


@pytest.mark.parametrize("schedule", [None, 1])
@pytest.mark.parametrize("mode", MODES)
def test_every_message_is_about_a_step_that_is_made(mode: str, schedule: int | None):
    """Also those of communicators, which send after the step, and when their trainer leaves."""
    found = cluster(mode, schedule=schedule)
    seen: dict[str, set[int]] = {}
    found.network.observe(
        lambda _, message: seen.setdefault(message.source, set()).add(message.step) if message.kind != "complete" else 0
    )
    ended(found)
    told = set().union(*seen.values())
    assert told - {-1} <= set(range(STEPS))
    assert STEPS - 1 in told
    if mode == "geo":  # it exchanges after every second step
        assert seen["trainer_0/communicator"] == {1, 3, 5}


def test_a_scenario_of_values_numbers_steps_from_1_too():
    (crash,) = parse_scenario("crash trainer_1 step 3").events
    assert crash == Crash("trainer_1", 3)
    for event in (Crash("trainer_1", 0), Departure("trainer_0", 0), Rejoin("trainer_0", -1)):
        with pytest.raises(DiagnosticError, match="steps are numbered from 1"):
            Injector(cluster("sync"), Scenario(events=(event,)))


@pytest.mark.parametrize("after", range(10))
def test_what_a_trainer_fetched_in_the_step_it_crashed_in_does_not_count(after: int):
    """Also where the crash comes with the last message, when the step has given its values."""
    job, module = compiled("dense", 2, 2), model("dense")
    (loss, *_) = next(op for op in module.main.main_block.ops if op.type == "mean").output_names
    scenario = parse_scenario(f"crash trainer_1 step 2 after {after}\nrejoin trainer_1 step 4")
    done = simulate(job, feeds("dense", 2, 5), fetch=[loss], faults=scenario)
    found = done.cluster.trainers[1]
    assert [result.step for result in found.results] == [0, 3, 4]
    assert [len(values[loss]) for values in done.fetched] == [5, 3]
    assert len(found.results) == 3
