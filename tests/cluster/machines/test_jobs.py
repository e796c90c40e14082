"""Compiled jobs on the simulated cluster train as one machine does."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pstranspile as ps
from pstranspile.cluster.machines import server as server_module
from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.simulate import cluster_of, simulate
from pstranspile.compiler.compile import Compiled, compile
from pstranspile.compiler.job import Job
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import Role
from pstranspile.runtime.run import fused_updates
from tests.recorded_fluid import source
from tests.trained_clusters import SEED, train_alone

STEPS = 5
CASES = ["fit_a_line_sgd", "reg_l2", "lr_piecewise", "two_optimizers", "clip_global_norm"]


@cache
def compiled(case: str, servers: int, trainers: int, mode: str = "sync") -> Compiled:
    return compile(source(case), Job(pservers=servers, trainers=trainers, mode=mode))


def batches(case: str, size: int = 12) -> list[dict[str, Any]]:
    main = source(case).main.main_block
    written = {name for op in main.ops for name in op.output_names}
    read = {name for op in main.ops for name in op.input_names}
    inputs = [v for v in main.vars.values() if v.name in read and v.name not in written and not v.persistable]
    random = np.random.RandomState(5)
    return [{v.name: random.uniform(-1, 1, (size, *v.shape[1:])).astype(np.float32) for v in inputs} for _ in range(5)]


@cache
def alone(case: str) -> dict[str, Any]:
    scope = train_alone(source(case), batches(case))
    return {name: np.asarray(scope[name]) for name in scope}


@settings(max_examples=40, deadline=None)
@given(
    case=st.sampled_from(CASES),
    shape=st.sampled_from([(1, 1), (2, 2), (3, 4), (5, 3)]),
    schedule=st.integers(0, 2**32),
)
def test_synchronous_training_is_that_of_one_machine_in_every_order(case: str, shape: tuple[int, int], schedule: int):
    servers, trainers = shape
    job = compiled(case, servers, trainers)
    done = simulate(job, batches(case), seed=SEED, schedule=schedule)
    in_turn = simulate(job, batches(case), seed=SEED)
    assert done.parameters.keys() == in_turn.parameters.keys()
    for name, value in done.parameters.items():
        np.testing.assert_array_equal(value, in_turn.parameters[name])
        if trainers == 1:
            np.testing.assert_array_equal(value, alone(case)[name])
        elif case != "clip_global_norm":
            np.testing.assert_allclose(value, alone(case)[name], rtol=1e-4, atol=1e-6)


@settings(max_examples=20, deadline=None)
@given(case=st.sampled_from(CASES[:4]), schedule=st.integers(0, 2**32))
def test_asynchronous_training_ends_and_is_replayed_by_its_seed(case: str, schedule: int):
    job = compiled(case, 2, 3, "async")
    runs = [simulate(job, batches(case), seed=SEED, schedule=schedule) for _ in range(2)]
    assert all(server.ended for server in runs[0].cluster.servers)
    for name, value in runs[0].parameters.items():
        np.testing.assert_array_equal(value, runs[1].parameters[name])
        assert np.isfinite(value).all()


def test_one_asynchronous_trainer_is_one_machine():
    """Also its learning rate: the schedule's counter is not ahead of the steps, as it is in Fluid."""
    for case in ("reg_l2", "lr_exponential"):
        done = simulate(compiled(case, 2, 1, "async"), batches(case), seed=SEED)
        for name, value in done.parameters.items():
            np.testing.assert_array_equal(value, alone(case)[name])


def start(case: str = "fit_a_line_sgd", **options: Any) -> Cluster:
    cluster = cluster_of(compiled(case, 2, 2), seed=SEED, **options)
    cluster.feed(batches(case))
    return cluster


def test_step_by_step():
    cluster = start(fetch=["mean_0.tmp_0"])
    cluster.start()
    begun = cluster.parameters()
    assert [trainer.step for trainer in cluster.trainers] == [0, 0]
    cluster.run_to(2)
    assert [server.updates for server in cluster.servers] == [2, 2]
    assert [trainer.step for trainer in cluster.trainers] == [2, 2]
    assert not np.array_equal(cluster.parameters()["fc_0.w_0"], begun["fc_0.w_0"])
    cluster.run_to(STEPS)
    cluster.finish()
    whole = simulate(compiled("fit_a_line_sgd", 2, 2), batches("fit_a_line_sgd"), seed=SEED)
    np.testing.assert_array_equal(cluster.parameters()["fc_0.w_0"], whole.parameters["fc_0.w_0"])
    assert [len(trainer.results) for trainer in cluster.trainers] == [STEPS, STEPS]


def test_what_is_told():
    seen: list[str] = []
    cluster = start()
    cluster.network.observe(lambda event, message: seen.append(f"{event} {message}"))
    cluster.run_to(1)
    assert "post send fc_0.w_0@GRAD.trainer_0 from trainer_0 to pserver_1, step 1" in seen
    assert "deliver send fc_0.w_0@GRAD.trainer_0 from trainer_0 to pserver_1, step 1" in seen
    assert sum(line.startswith("post") for line in seen) == sum(line.startswith("deliver") for line in seen)


def test_a_trainer_that_runs_out_of_data_is_not_waited_for():
    """From then on the updates are those of the other trainer alone."""
    case = "fit_a_line_sgd"
    data = batches(case)

    def feed(trainer: int, step: int) -> dict[str, Any] | None:
        if trainer == 1 and step == 2:
            return None
        return {name: rows[:6] if trainer == 0 else rows[6:] for name, rows in data[step].items()}

    cluster = cluster_of(compiled(case, 2, 2), seed=SEED)
    cluster.feed(feed)
    cluster.run_to(STEPS)
    cluster.finish()
    assert [len(trainer.results) for trainer in cluster.trainers] == [STEPS, 2]
    firsts = [{name: rows[:6] for name, rows in batch.items()} for batch in data[2:]]
    scope = train_alone(source(case), [*data[:2], *firsts])
    for name, value in cluster.parameters().items():
        np.testing.assert_allclose(value, np.asarray(scope[name]), rtol=1e-5, atol=1e-7)


def test_lost_doubled_and_late_messages_change_nothing():
    def faults(message: Any, attempt: int, now: int) -> list[int]:
        chance = (3 * message.sequence + len(message.kind) + attempt) % 7
        return [[], [0, 3], [5], [0], [0], [2, 9], [0]][chance]

    seen: list[str] = []
    cluster = start()
    cluster.network.fail(faults)
    cluster.network.observe(lambda event, message: seen.append(event))
    cluster.run_to(STEPS)
    cluster.finish()
    assert {"lost", "duplicate"} <= set(seen)
    sound = simulate(compiled("fit_a_line_sgd", 2, 2), batches("fit_a_line_sgd"), seed=SEED)
    for name, value in cluster.parameters().items():
        np.testing.assert_array_equal(value, sound.parameters[name])


def test_what_is_received_stays_as_it_was():
    """A server updates its parameters in place; what trainers got before does not change under them."""
    cluster = start()
    cluster.start()
    held = cluster.trainers[0].scope["fc_0.w_0"]
    before = held.copy()
    cluster.trainers[1].scope["fc_0.w_0"] = before + 1
    server = next(server for server in cluster.servers if "fc_0.w_0" in server.scope)
    server.scope["fc_0.w_0"] += 1
    np.testing.assert_array_equal(cluster.trainers[0].scope["fc_0.w_0"], before)
    assert not held.flags.writeable


@pytest.mark.parametrize("case", ["fit_a_line_sgd", "two_optimizers", "reg_l2"])
def test_a_large_parameter_is_given_away_and_replaced(case: str, monkeypatch: pytest.MonkeyPatch):
    """What trainers got is what the server had, not a copy, and keeps its value when the server has updated."""
    monkeypatch.setattr(server_module, "LARGEST", 0)
    monkeypatch.setattr(fused_updates, "LARGEST", 0)
    cluster = start(case)
    cluster.start()
    trainer = cluster.trainers[0]
    pairs = [(server.scope, name) for server in cluster.servers for name in server.scope if name in trainer.scope]
    server, name = next((scope, name) for scope, name in pairs if scope[name] is trainer.scope[name])
    for step in range(1, STEPS + 1):
        held = server[name]
        assert trainer.scope[name] is held
        before = held.tobytes()
        cluster.run_to(step)
        assert server[name] is not held
        assert held.tobytes() == before
    monkeypatch.undo()
    plain = simulate(compiled(case, 2, 2), batches(case), seed=SEED)
    for name, value in cluster.parameters().items():
        np.testing.assert_array_equal(value, plain.parameters[name])


def test_initial_values():
    case = "fit_a_line_sgd"
    init = {"fc_0.w_0": np.full((13, 1), 0.25, "float32")}
    cluster = start(case, init=init)
    cluster.start()
    np.testing.assert_array_equal(cluster.parameters()["fc_0.w_0"], init["fc_0.w_0"])
    np.testing.assert_array_equal(cluster.trainers[1].scope["fc_0.w_0"], init["fc_0.w_0"])
    with pytest.raises(DiagnosticError, match=r"cluster-placement.*did you mean fc_0.w_0"):
        start(case, init={"fc_0.w0": np.ones(1)}).start()
    with pytest.raises(DiagnosticError, match=r"cluster-placement.*has dims"):
        start(case, init={"fc_0.w_0": np.ones(12, "float32")}).start()


def test_feeds_for_one_trainer():
    case = "fit_a_line_sgd"
    whole = {name: np.stack([batch[name] for batch in batches(case)]) for name in batches(case)[0]}
    halves = {f"trainer_{i}/{name}": rows[:, 6 * i : 6 * i + 6] for name, rows in whole.items() for i in range(2)}
    job = compiled(case, 2, 2)
    one, other = simulate(job, whole, seed=SEED), simulate(job, halves, seed=SEED)
    for name, value in one.parameters.items():
        np.testing.assert_array_equal(value, other.parameters[name])
    with pytest.raises(DiagnosticError, match=r"cluster-feeds.*trainer_2, which is none of 2 trainers"):
        simulate(job, {"trainer_2/x": whole["x"]})


def test_what_goes_wrong_in_an_op_is_said_once():
    job = compiled("py_reader", 2, 2)
    with pytest.raises(DiagnosticError, match="must be fed") as failed:
        simulate(job, [{}], seed=SEED)
    (told,) = failed.value.diagnostics
    assert told.message.count("must be fed") == 1
    assert [note.message for note in told.notes] == ["on trainer_0, step 1"]


def test_results_as_arrays():
    job = compiled("fit_a_line_sgd", 2, 2)
    arrays = simulate(job, batches("fit_a_line_sgd"), fetch=["mean_0.tmp_0"], seed=SEED).arrays()
    assert arrays["trainer_1/step/mean_0.tmp_0"].shape == (STEPS, 1)
    assert arrays["param/fc_0.w_0"].shape == (13, 1)


def test_programs_written_and_read_again_know_where_variables_lie():
    """Also the state of optimizers, which no name tells."""
    case = "two_optimizers"
    job = compile(source(case), Job(pservers=2, trainers=2, min_block_size=100))
    read = {name: ps.loads(ps.dumps(role.module)) for name, role in job.roles().items()}
    roles = {name: Role(name, module["main"], module["startup"]) for name, module in read.items()}
    one, other = simulate(job, batches(case), seed=SEED), simulate(roles, batches(case), seed=SEED)
    assert one.parameters.keys() == other.parameters.keys()
    for name, value in one.parameters.items():
        np.testing.assert_array_equal(value, other.parameters[name])
    assert set(one.cluster.placement.rows) == set(other.cluster.placement.rows)
    assert any(row.vtype == "Optimizer" for row in other.cluster.placement.rows)


@settings(max_examples=30, deadline=None)
@given(
    mode=st.sampled_from(["sync", "async", "half-async", "fleet-sync", "geo", "nccl2", "grad-allreduce", "local-sgd"]),
    servers=st.integers(1, 3),
    trainers=st.integers(2, 4),
    schedule=st.integers(0, 2**32),
    data=st.data(),
)
def test_no_mode_hangs_when_trainers_leave_at_any_step(
    mode: str, servers: int, trainers: int, schedule: int, data: st.DataObject
):
    case = "fit_a_line_sgd"
    if mode in ("nccl2", "grad-allreduce", "local-sgd"):
        job = Job(trainers=[f"127.0.0.1:{7164 + i}" for i in range(trainers)], mode=mode)
    else:
        job = Job(pservers=servers, trainers=trainers, mode=mode, geo_sgd_need_push_nums=2 if mode == "geo" else None)
    ends = [data.draw(st.integers(0, STEPS)) for _ in range(trainers)]
    given_batches = batches(case)

    def feed(trainer: int, step: int) -> dict[str, Any] | None:
        return None if step >= ends[trainer] else {name: rows[:3] for name, rows in given_batches[step].items()}

    done = simulate(compile(source(case), job), feed, STEPS, seed=SEED, schedule=schedule)
    assert [len(trainer.results) for trainer in done.cluster.trainers] == ends
    assert all(server.ended for server in done.cluster.servers)
    assert all(np.isfinite(value).all() for value in done.parameters.values())
