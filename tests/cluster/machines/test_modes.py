"""What every mode means, on programs that Fluid emitted for it."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.communicator import AsyncCommunicator, GeoCommunicator, Settings
from pstranspile.cluster.machines.network import messages_sent
from pstranspile.cluster.machines.server import OnUpdate
from pstranspile.frontends.meta import apply_meta, parse_meta
from pstranspile.frontends.program_desc import program_from_bytes
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import MAIN, STARTUP, FrozenMap, Module
from pstranspile.runtime.run.step_feeds import Feeds
from pstranspile.runtime.values import LoDTensor
from tests.cluster.machines.recorded import arrays, files, loss_of, placed, roles
from tests.cluster.machines.test_recorded import check, run

SEED = 11
SCHEDULES = [None, 1, 2]


@cache
def module(case: str) -> Module:
    parts = {p: program_from_bytes(files()[f"{case}/{p}.pb"], f"{case}/{p}.pb", p) for p in (MAIN, STARTUP)}
    found = apply_meta(Module(FrozenMap(parts)), parse_meta(files()[f"{case}/case.json"].decode(), "case.json"))
    return found[0] if isinstance(found, tuple) else found


def batches(case: str, size: int = 12, steps: int = 8) -> list[dict[str, Any]]:
    feeds = Feeds(module(case).main, arrays(case, "feeds"))
    return [{name: value[:size] for name, value in feeds.step(step).items()} for step in range(steps)]


@cache
def alone(case: str, size: int = 12, steps: int = 8) -> dict[str, Any]:
    """The parameters that one machine gets."""
    scope = ps.Scope()
    ps.run(module(case).startup, scope=scope, seed=SEED)
    for name, value in arrays(case, "init").items():
        scope[name] = value
    for batch in batches(case, size, steps):
        ps.run(module(case).main, feed=batch, scope=scope, seed=SEED)
    return {name: np.asarray(scope[name]) for name in arrays(case, "init")}


def cluster(case: str, config: str, schedule: int | None = None, **options: Any) -> Cluster:
    options = {"init": arrays(case, "init"), "fetch": [loss_of(case)], **options}
    given = {} if config.startswith(("coll", "nccl2")) else {"distributed_vars": placed(f"{case}/{config}")}
    return Cluster(roles(f"{case}/{config}"), schedule=schedule, seed=SEED, **given, **options)


def parameters(found: Cluster, steps: int = 8) -> dict[str, Any]:
    found.run_to(steps)
    found.finish()
    assert all(server.ended for server in found.servers)
    held = {name: value for name, value in found.trainers[0].scope.items() if isinstance(value, np.ndarray)}
    return {**held, **found.parameters()}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("case", ["fit_a_line_sgd", "word2vec_sparse_sgd"])
def test_synchronous_communicators(case: str, schedule: int | None):
    check(case, "fleet_sync", run(case, "fleet_sync_2x2", schedule))


def test_the_rate_goes_on_under_synchronous_communicators():
    """In Fluid it stands still; here it counts steps, as in synchronous training without communicators."""
    for schedule in SCHEDULES:
        one = run("lr_exponential", "fleet_sync_2x2", schedule)
        check("lr_exponential", "sync", one)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "config",
    ["coll_allreduce_ring2_3", "coll_localsgd_2", "coll_spmt_2", "nccl2_2", "nccl2_hier_4"],
)
def test_trainers_among_themselves(config: str, schedule: int | None):
    found = cluster("fit_a_line_sgd", config, schedule)
    found.feed(batches("fit_a_line_sgd"))
    ours = parameters(found)
    in_turn = cluster("fit_a_line_sgd", config)
    in_turn.feed(batches("fit_a_line_sgd"))
    theirs = parameters(in_turn)
    for name, value in alone("fit_a_line_sgd").items():
        np.testing.assert_allclose(ours[name], value, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(ours[name], theirs[name])
        for trainer in found.trainers:
            np.testing.assert_array_equal(trainer.scope[name], ours[name])


@pytest.mark.parametrize("config", ["coll_allreduce_ring2_3", "coll_localsgd_2", "nccl2_2"])
def test_a_trainer_that_leaves_does_not_skew_the_average(config: str):
    """The last trainer has half of the data: from then on, the average is over the others."""
    found = cluster("fit_a_line_sgd", config)
    count = len(found.trainers)
    data = batches("fit_a_line_sgd")
    share = 12 // count

    def feed(trainer: int, step: int) -> dict[str, Any] | None:
        if trainer == count - 1 and step == 4:
            return None
        return {name: rows[trainer * share : (trainer + 1) * share] for name, rows in data[step].items()}

    found.feed(feed)
    ours = parameters(found)
    scope = ps.Scope()
    ps.run(module("fit_a_line_sgd").startup, scope=scope, seed=SEED)
    for name, value in arrays("fit_a_line_sgd", "init").items():
        scope[name] = value
    for step, batch in enumerate(data):
        rows = 12 if step < 4 else 12 - share
        given = {name: value[:rows] for name, value in batch.items()}
        ps.run(module("fit_a_line_sgd").main, feed=given, scope=scope, seed=SEED)
    for name in alone("fit_a_line_sgd"):
        np.testing.assert_allclose(ours[name], scope[name], rtol=1e-5, atol=1e-6)


def test_trainers_that_do_not_do_the_same(monkeypatch: pytest.MonkeyPatch):
    given = dict(roles("fit_a_line_sgd/coll_allreduce_ring2_3"))
    main = given["trainer_1"].main
    renamed = {"c_allreduce_sum": "c_allreduce_max"}
    ops = tuple(op._replace(type=renamed.get(op.type, op.type)) for op in main.main_block.ops)
    main = main._replace(blocks=(main.main_block._replace(ops=ops), *main.blocks[1:]))
    found = Cluster({**given, "trainer_1": given["trainer_1"]._replace(main=main)}, seed=SEED)
    found.feed(batches("fit_a_line_sgd"))
    told = r"cluster-collective-order.*operation 1 of ring_\d is not the same.*trainer_0 has c_allreduce_sum of.*_max"
    with pytest.raises(DiagnosticError, match=told):
        found.start()
    monkeypatch.setattr(sys.modules[Cluster.__module__], "require_collectives", lambda trainers: None)
    with pytest.raises(DiagnosticError, match=r"cluster-collective.*do not do the same") as caught:
        found.run_to(1)
    (finding,) = caught.value.diagnostics
    assert finding.notes[1].message == "trainer 1: c_allreduce_max of f32[1]"


def test_a_collective_operation_that_one_trainer_leaves_out_is_stuck(monkeypatch: pytest.MonkeyPatch):
    given = dict(roles("fit_a_line_sgd/coll_allreduce_ring2_3"))
    main = given["trainer_1"].main
    ops = tuple(op for op in main.main_block.ops if op.type != "c_allreduce_sum")
    main = main._replace(blocks=(main.main_block._replace(ops=ops), *main.blocks[1:]))
    found = Cluster({**given, "trainer_1": given["trainer_1"]._replace(main=main)}, seed=SEED)
    found.feed(batches("fit_a_line_sgd"))
    with pytest.raises(DiagnosticError, match=r"cluster-collective-order.*trainer_1 has nothing more"):
        found.start()
    monkeypatch.setattr(sys.modules[Cluster.__module__], "require_collectives", lambda trainers: None)
    with pytest.raises(DiagnosticError, match=r"cluster-stuck") as caught:
        found.run_to(1)
    told = [note.message for note in caught.value.diagnostics[0].notes]
    waits = "waits at c_allreduce_sum for the parts of all trainers in c_allreduce_sum; not come: trainer_1"
    assert f"trainer_0/ring_1 {waits}" in told


def test_a_communicator_works_with_the_settings_that_it_is_given_later():
    given, told = (cluster("fit_a_line_sgd", "rt_async_2x2", settings=s) for s in (Settings(3, 4), Settings()))
    for communicator in told.communicators.values():
        assert isinstance(communicator, AsyncCommunicator)
        communicator.configure(Settings(3, 4))
    sent: list[int] = []
    for found in (given, told):
        found.feed(batches("fit_a_line_sgd"))
        parameters(found)
        sent.append(messages_sent(found.machines.values()))
    assert sent[0] == sent[1]
    for name, value in given.parameters().items():
        np.testing.assert_array_equal(told.parameters()[name], value, err_msg=name)


@pytest.mark.parametrize("schedule", [None, *range(5)])
@pytest.mark.parametrize("settings", [Settings(), Settings(3, 4), Settings(3, 4, merge_add=False)])
def test_asynchronous_communicators_lose_nothing(schedule: int | None, settings: Settings):
    """With SGD and a sum of merged gradients, a server has applied each gradient once."""
    found = cluster("fit_a_line_sgd", "rt_async_2x2", schedule, settings=settings)
    assert all(isinstance(each, AsyncCommunicator) for each in found.communicators.values())
    found.feed(batches("fit_a_line_sgd"))
    sent: dict[str, Any] = {}

    def observe(event: str, message: Any) -> None:
        if event == "deliver" and message.kind == "send":
            sent[message.variable] = sent.get(message.variable, 0) + message.payload

    found.network.observe(observe)
    ours = parameters(found)
    start = arrays("fit_a_line_sgd", "init")
    rate = found.servers[0].scope["learning_rate_0"]
    for name, value in start.items():
        np.testing.assert_allclose(ours[name], value - rate * sent[f"{name}@GRAD"], rtol=1e-4, atol=1e-6)
    updates = sum(server.updates for server in found.servers)
    assert updates <= 2 * 8 * len(start)
    if settings == Settings():
        assert updates == 2 * 8 * len(start)


def test_half_asynchronous_trainers_wait_for_their_own_gradients_only():
    """With one training thread each, that is plain asynchronous training."""
    one = cluster("fit_a_line_sgd", "half_async_2x2")
    one.feed(batches("fit_a_line_sgd"))
    ours = parameters(one)
    assert all(np.isfinite(ours[name]).all() for name in alone("fit_a_line_sgd"))
    assert [server.updates for server in one.servers] == [16, 16]


def test_the_rate_of_asynchronous_training_counts_the_steps_of_all_trainers():
    for config in ("async_2x2", "half_async_2x2"):
        found = cluster("lr_exponential", config)
        found.feed(batches("lr_exponential"))
        counted: list[int] = []

        def note(server: Any, _number: int, counted: list[int] = counted) -> None:
            if server.name == "pserver_0":
                counted.append(int(server.scope["@LR_DECAY_COUNTER@"].ravel()[0]))

        for server in found.servers:
            server.listen(OnUpdate(note))
        parameters(found)
        assert counted[0] == 0
        assert counted == sorted(counted)
        assert int(found.servers[0].scope["@LR_DECAY_COUNTER@"].ravel()[0]) == 16


def test_delay_compensation():
    """Fluid's server aborts, since it never says whose gradient it is (V3.12)."""
    case = "fit_a_line_sgd"
    found = cluster(case, "dcasgd_2x2")
    found.feed(batches(case))
    found.start()
    server = next(server for server in found.servers if "fc_0.w_0" in server.scope)
    start, rate = np.array(server.scope["fc_0.w_0"]), server.scope["learning_rate_0"]
    by_hand = start.copy()
    backup = {0: start.copy(), 1: start.copy()}

    def observe(event: str, message: Any) -> None:
        if event != "deliver" or message.variable not in ("fc_0.w_0", "fc_0.w_0@GRAD"):
            return
        if message.kind == "send":
            grad = message.payload
            by_hand[:] -= rate * (grad + (by_hand - backup[message.trainer]) * grad * grad)
        elif message.kind == "get":
            backup[message.trainer] = by_hand.copy()

    found.network.observe(observe)
    ours = parameters(found)
    np.testing.assert_allclose(ours["fc_0.w_0"], by_hand, rtol=1e-6)
    assert not np.array_equal(by_hand, start)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("case", ["fit_a_line_sgd", "word2vec_sparse_sgd"])
def test_one_geo_trainer_is_one_machine_and_the_servers_follow(case: str, schedule: int | None):
    """Also without a sparse table, and with all ids: in Fluid neither is so (V3.09, V3.10)."""
    given = {name: role for name, role in roles(f"{case}/geo_2x2").items() if name != "trainer_1"}
    found = Cluster(
        given,
        schedule=schedule,
        seed=SEED,
        init=arrays(case, "init"),
        distributed_vars=placed(f"{case}/geo_2x2"),
        settings=Settings(push_every=3),
    )
    found.feed(batches(case))
    found.run_to(6)
    trainer = found.trainers[0]
    communicator = found.communicators["trainer_0"]
    assert isinstance(communicator, GeoCommunicator)
    assert communicator.exchanges == 2
    for name, value in found.parameters().items():
        np.testing.assert_allclose(value, trainer.scope[name], rtol=1e-5, atol=1e-6)
    ours = parameters(found)
    for name, value in alone(case).items():
        np.testing.assert_allclose(ours[name], value, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(trainer.scope[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_geo_servers_hold_the_start_and_all_differences(schedule: int | None):
    case = "word2vec_sparse_sgd"
    found = cluster(case, "geo_2x2", schedule, settings=Settings(push_every=2))
    found.feed(batches(case))
    sums: dict[str, Any] = {}

    def observe(event: str, message: Any) -> None:
        if event == "post" and message.kind == "send" and message.variable.startswith("fc_0.b_0"):
            sums["fc_0.b_0"] = sums.get("fc_0.b_0", 0) + message.payload

    found.network.observe(observe)
    ours = parameters(found)
    start = arrays(case, "init")
    np.testing.assert_allclose(ours["fc_0.b_0"], start["fc_0.b_0"] + sums["fc_0.b_0"], rtol=1e-5, atol=1e-7)
    trained = [np.abs(found.trainers[0].scope[name] - value).max() for name, value in start.items()]
    assert min(trained) > 0
    used = np.unique(np.concatenate([batch["firstw"].ravel() for batch in batches(case)]))
    assert (ours["shared_w"][used] != start["shared_w"][used]).any(axis=1).all()


def table_batches() -> list[dict[str, Any]]:
    random = np.random.RandomState(3)
    names = ("title_ids", "brand_ids", "profile_ids")
    return [
        {
            **{name: LoDTensor(random.randint(0, 1000, (24, 1)), [[0, 4, 6, 12, 24]]) for name in names},
            "label": random.randint(0, 2, (4, 1)),
        }
        for _ in range(4)
    ]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_distributed_tables_start_where_one_machine_starts(schedule: int | None):
    """Their updates are sums over the trainers, as Fluid emits them (section 11, 22)."""
    case, config = "dist_table_sgd", "repaired_table_sync_2x2"
    scope = ps.Scope()
    ps.run(module(case).startup, scope=scope, seed=SEED)
    start = np.array(scope["shared_w"])
    for batch in table_batches():
        ps.run(module(case).main, feed=batch, scope=scope, seed=SEED)
    found = Cluster(roles(f"{case}/{config}"), schedule=schedule, seed=SEED)
    found.feed(table_batches())
    found.start()
    np.testing.assert_array_equal(found.parameters()["shared_w"], start)
    ours = parameters(found, 4)
    np.testing.assert_allclose(ours["shared_w"] - start, 2 * (scope["shared_w"] - start), atol=1e-7)
    for name in ("fc_w", "fc_b", "profile_emb"):
        np.testing.assert_allclose(ours[name], scope[name], rtol=1e-4, atol=1e-7)


def test_the_init_of_a_distributed_table():
    whole = np.random.RandomState(0).rand(1000, 64).astype("float32")
    found = Cluster(roles("dist_table_sgd/repaired_table_async_2x2"), init={"shared_w": whole}, seed=SEED)
    found.feed(table_batches())
    found.start()
    np.testing.assert_array_equal(found.parameters()["shared_w"], whole)
    assert found.servers[1].scope["shared_w"].rows.tolist() == list(range(1, 1000, 2))
    ours = parameters(found, 4)
    changed = (ours["shared_w"] != whole).any(axis=1).nonzero()[0]
    ids = [b[name].data.ravel() for b in table_batches() for name in ("title_ids", "brand_ids")]
    assert changed.tolist() == np.unique(np.concatenate(ids)).tolist()
