"""Simulated clusters: killed after any step, they go on bit for bit from the checkpoint, on any number of servers."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.checkpoint.api import resume, run_with_checkpoints, save_cluster
from pstranspile.cluster.checkpoint.persistables import load_persistables, load_program, save_persistables, save_program
from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.communicator import Settings
from pstranspile.cluster.machines.simulate import cluster_of
from pstranspile.compiler.compile import Compiled
from pstranspile.compiler.modes.sync import Sync
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, Adam, Momentum, minimize
from pstranspile.ir.attributes import Longs, Strings
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import MAIN, STARTUP, Block, FrozenMap, Module, Op, Program, Var
from pstranspile.ir.types import DType, OpRole
from pstranspile.ops.build import make_op
from pstranspile.runtime.values.encoding import read_tensor
from tests.cluster.checkpoint.jobs import OPTIMIZERS, codes, everything, feeds, job

STEPS = 10
SERVERS = (1, 3, 5, 2)


def dropout_job(servers: int, **options) -> Compiled:
    draft = L.Draft(seed=7)
    x, y = L.data(draft, "x", [-1, 6]), L.data(draft, "y", [-1, 1])
    hidden = L.dropout(L.fc(x, 10, act="relu"), 0.4)
    minimize(L.mean(L.square_error_cost(L.fc(hidden, 1), y)), Momentum(0.05, 0.9))
    return ps.compile(draft.module(), ps.Job(endpoints(servers), 2, min_block_size=4, **options))


def endpoints(servers: int) -> list[str]:
    return [f"ps{number}:6174" for number in range(servers)]


def sparse_job(servers: int, optimizer: Callable = lambda: SGD(0.1), *, is_distributed: bool = False) -> Compiled:
    """A table whose rows the servers hold: ranges of rows, or, if it is distributed, rows by id."""
    draft = L.Draft(seed=3)
    ids, y = L.data(draft, "ids", [-1, 1], dtype="i64"), L.data(draft, "y", [-1, 1])
    rows = L.embedding(ids, [40, 4], is_sparse=True, is_distributed=is_distributed)
    minimize(L.mean(L.square_error_cost(L.fc(rows, 1), y)), optimizer())
    return ps.compile(draft.module(), ps.Job(endpoints(servers), 2, min_block_size=4))


def sparse_feeds(count: int) -> list[dict[str, np.ndarray]]:
    """Every fifth of the table has rows in every step: as in Fluid, an update without any row does nothing at all."""
    random = np.random.default_rng(5)
    return [
        {"ids": np.arange(0, 40, 5)[:, None] + step % 5, "y": random.normal(size=(8, 1)).astype("float32")}
        for step in range(count)
    ]


def of_cluster(cluster: Cluster) -> dict[str, bytes]:
    return {name: np.asarray(value).tobytes() for name, value in cluster.parameters().items()}


def begun(compiled: Compiled, batches: list, **options) -> Cluster:
    cluster = cluster_of(compiled, **options)
    cluster.feed(batches)
    return cluster


def check(make: Callable[[int], Compiled], batches: list, folder: Path, servers: tuple[int, ...] = SERVERS) -> None:
    """Every step of a job of ten steps: killed after it, gone on with another number of servers."""
    straight = begun(make(2), batches)
    straight.run_to(STEPS)
    want = of_cluster(straight)
    run_with_checkpoints(begun(make(2), batches), make(2), STEPS, folder, keep=STEPS)
    assert len(os.listdir(folder)) == STEPS
    for step in range(1, STEPS):
        count = servers[step % len(servers)]
        again = begun(make(count), batches, schedule=step)
        assert resume(again, make(count), folder / f"step_{step:08d}").step == step
        assert of_cluster(again) != want
        again.run_to(STEPS)
        assert of_cluster(again) == want, f"killed after {step} steps, gone on with {count} servers"


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adam with decay"])
def test_killed_after_every_step(optimizer: str, tmp_path: Path):
    check(lambda servers: job(servers, 2, optimizer), feeds(0, STEPS), tmp_path)


def with_sums_of_gradients(module: Module, job: ps.Job) -> tuple[Module, tuple[()]]:
    """The source as a mode may rewrite it: a state for each parameter, the sum of its gradients, is what updates it."""
    del job
    main, startup = module.main.main_block, module[STARTUP].main_block
    states: dict[str, Var] = {}
    ops: list[Op] = []
    starts: list[Op] = []
    for op in main.ops:
        gradient = op.input("Grad")
        if op.role is OpRole.OPTIMIZE and gradient:
            var = main.vars[op.input("Param") or ""]
            state = var._replace(name=f"{var.name}_sum", parameter=None, location=None)
            states[state.name] = state
            attrs = {"shape": Longs(var.shape), "dtype": DType.FP32.value, "value": 0.0}
            starts.append(make_op("fill_constant", {}, {"Out": [state.name]}, attrs))
            slots = {"X": [state.name, gradient]}, {"Out": [state.name]}
            ops.append(make_op("sum", *slots, role=OpRole.OPTIMIZE, role_vars=op.role_vars, origin=op.origin))
            op = op._replace(inputs=FrozenMap({**op.inputs, "Grad": (state.name,)}))
        ops.append(op)
    blocks = {
        MAIN: main._replace(vars=FrozenMap({**main.vars, **states}), ops=tuple(ops)),
        STARTUP: startup._replace(vars=FrozenMap({**startup.vars, **states}), ops=(*startup.ops, *starts)),
    }
    return module.with_programs({name: module[name].with_main_block(block) for name, block in blocks.items()}), ()


def test_state_that_a_mode_adds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(Sync, "rewrite", lambda mode, module, job: with_sums_of_gradients(module, job))
    check(lambda servers: job(servers, 2, "sgd"), feeds(0, STEPS), tmp_path)


def test_random_numbers_go_on(tmp_path: Path):
    """Dropout draws in each step what it would have drawn."""
    check(dropout_job, feeds(0, STEPS), tmp_path)


@pytest.mark.parametrize("optimizer", [lambda: SGD(0.1), lambda: Adam(0.01)], ids=["sgd", "adam"])
def test_tables_on_servers(optimizer: Callable, tmp_path: Path):
    check(lambda servers: sparse_job(servers, optimizer), sparse_feeds(STEPS), tmp_path)


@pytest.mark.parametrize("options", [{}, {"enable_dc_asgd": True}], ids=["async", "dc-asgd"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam with decay"])
def test_asynchronous_jobs(optimizer: str, options: dict, tmp_path: Path):
    """Trainers' old parameters, copies on the servers and counters go on; the order of events is the same again.

    The order in which gradients reach servers depends on how many servers there are, so that stays as it is.
    """
    make = lambda servers: job(servers, 2, optimizer, mode="async", **options)  # noqa: E731
    batches = feeds(0, STEPS)
    paused = begun(make(2), batches)
    for step in range(1, STEPS + 1):  # a pause between steps changes the order, so the run to compare with pauses too
        paused.run_to(step)
    want = of_cluster(paused)
    run_with_checkpoints(begun(make(2), batches), make(2), STEPS, tmp_path, keep=STEPS)
    for start in range(1, STEPS, 2):
        again = begun(make(2), batches)
        resume(again, make(2), tmp_path / f"step_{start:08d}")
        for step in range(start + 1, STEPS + 1):
            again.run_to(step)
        assert of_cluster(again) == want, f"killed after {start} steps"


def test_asynchronous_with_other_servers(tmp_path: Path):
    """Whatever can be moved is moved: the counters say how far the schedule was."""
    make = lambda servers: job(servers, 2, "adam with decay", mode="async", enable_dc_asgd=True)  # noqa: E731
    first = begun(make(2), feeds(0, STEPS))
    first.run_to(4)
    save_cluster(first, make(2), tmp_path / "c")
    again = begun(make(3), feeds(0, STEPS))
    resume(again, make(3), tmp_path / "c")
    assert of_cluster(again) == of_cluster(first)
    for name in ("@LR_DECAY_COUNTER@", "@LR_DECAY_COUNTER@.trainer_1"):
        (value,) = {server.scope[name].tobytes() for server in again.servers}
        assert value == first.servers[0].scope[name].tobytes()
    again.run_to(6)


@pytest.mark.parametrize("mode", ["grad-allreduce", "local-sgd"])
def test_jobs_without_servers(mode: str, tmp_path: Path):
    """Each trainer goes on with its own parameters, and what its mode keeps beside them."""
    draft = L.Draft(seed=7)
    x, y = L.data(draft, "x", [-1, 6]), L.data(draft, "y", [-1, 1])
    hidden = L.dropout(L.batch_norm(L.fc(x, 10, act="relu")), 0.4)
    minimize(L.mean(L.square_error_cost(L.fc(hidden, 1), y)), Adam(0.05))
    compiled = ps.prepare(draft.module(), ps.Job(trainers=["a:1", "b:2", "c:3"], mode=mode))

    def all_of(cluster: Cluster) -> dict[tuple[str, str], bytes]:
        return everything({trainer.name: trainer.scope for trainer in cluster.trainers})

    straight = begun(compiled, feeds(0, STEPS))
    straight.run_to(STEPS)
    run_with_checkpoints(begun(compiled, feeds(0, STEPS)), compiled, STEPS, tmp_path, keep=STEPS)
    for step in range(1, STEPS):
        again = begun(compiled, feeds(0, STEPS), schedule=step)
        resume(again, compiled, tmp_path / f"step_{step:08d}")
        again.run_to(STEPS)
        assert all_of(again) == all_of(straight), f"killed after {step} steps"
    own = {trainer.scope["batch_norm_0.w_1"].tobytes() for trainer in straight.trainers}
    assert len(own) == 3


def test_the_newest_of_the_numbered_ones(tmp_path: Path):
    cluster = begun(job(2), feeds(0, STEPS))
    run_with_checkpoints(cluster, job(2), 7, tmp_path, every=3, keep=2)
    assert sorted(os.listdir(tmp_path)) == ["step_00000006", "step_00000007"]
    again = begun(job(3), feeds(0, STEPS))
    assert resume(again, job(3), tmp_path).step == 7
    run_with_checkpoints(again, job(3), 9, tmp_path, every=3, keep=2)
    assert sorted(os.listdir(tmp_path)) == ["step_00000007", "step_00000009"]


def test_what_is_fetched_goes_on(tmp_path: Path):
    loss = "mean_0.tmp_0"
    straight = begun(job(2), feeds(0, 6), fetch=[loss])
    straight.run_to(6)
    again = begun(job(2), feeds(0, 6), fetch=[loss])
    stopped = begun(job(2), feeds(0, 6))
    stopped.run_to(4)
    save_cluster(stopped, job(2), tmp_path / "c")
    resume(again, job(2), tmp_path / "c")
    again.run_to(6)
    for one, other in zip(again.trainers, straight.trainers, strict=True):
        assert len(one.results) == 2
        assert [result.values[loss] for result in one.results] == [result.values[loss] for result in other.results[4:]]


def test_a_bad_checkpoint_changes_nothing(tmp_path: Path):
    cluster = begun(job(2), feeds(0, STEPS))
    cluster.run_to(3)
    save_cluster(cluster, job(2), tmp_path / "c")
    file = tmp_path / "c" / "fc_1.w_0"
    file.write_bytes(file.read_bytes()[:-1])
    cluster.run_to(5)
    scopes = {name: machine.scope for name, machine in cluster.machines.items()}
    before, steps = everything(scopes), [trainer.step for trainer in cluster.trainers]
    with pytest.raises(DiagnosticError) as problem:
        resume(cluster, job(2), tmp_path / "c")
    assert codes(problem.value) == {"checkpoint-file"}
    assert everything(scopes) == before
    assert [trainer.step for trainer in cluster.trainers] == steps


def test_back_to_an_earlier_step(tmp_path: Path):
    """A cluster that is running goes back."""
    cluster = begun(dropout_job(2), feeds(0, STEPS))
    cluster.run_to(3)
    save_cluster(cluster, dropout_job(2), tmp_path / "c")
    cluster.run_to(6)
    want = of_cluster(cluster)
    resume(cluster, dropout_job(2), tmp_path / "c")
    assert cluster.trainers[0].step == 3
    assert of_cluster(cluster) != want
    cluster.run_to(6)
    assert of_cluster(cluster) == want


def test_all_optimizers_keep_their_state_by_name():
    """The models of these tests keep something on servers (else they would show nothing)."""
    for name in OPTIMIZERS:
        kinds = {v.vtype for v in job(2, 2, name).distributed_vars}
        assert ("Optimizer" in kinds) == (name != "sgd"), name


def test_saving_and_loading_by_programs(tmp_path: Path):
    """As Fluid's io does it: trainers run programs of save and recv_save, servers run one of load."""
    compiled = job(2, 2, "adam with decay")
    cluster = begun(compiled, feeds(0, STEPS), folder=str(tmp_path))
    cluster.run_to(4)
    for trainer in (1, 0):
        cluster.run_once(trainer, save_program(compiled, "model", trainer))
    save_persistables(cluster, compiled, tmp_path / "want")
    want = {path.name: path.read_bytes() for path in (tmp_path / "want").iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()} == want
    cluster.run_to(6)
    straight = begun(compiled, feeds(0, STEPS))
    straight.run_to(6)
    assert of_cluster(cluster) == of_cluster(straight), "saving changed the training"
    other = job(3, 2, "adam with decay")
    again = begun(other, feeds(0, STEPS))
    again.start()
    for server in again.servers:
        ps.run(load_program(other, server.endpoint, "model"), scope=server.scope, folder=tmp_path)
        server.forget_all_copies()
    for number, trainer in enumerate(again.trainers):
        again.run_once(number, load_program(other, trainer.name, str(tmp_path / "model")))
    load_persistables(cluster, compiled, tmp_path / "model")
    assert of_cluster(again) == of_cluster(cluster)


def test_parameters_of_asynchronous_jobs_are_fetched(tmp_path: Path):
    compiled = job(2, 2, "sgd", mode="async")
    cluster = begun(compiled, feeds(0, STEPS), folder=str(tmp_path))
    cluster.run_to(3)
    cluster.run_once(0, save_program(compiled, "model"))
    assert read_tensor(tmp_path / "model" / "fc_0.w_0").tobytes() == of_cluster(cluster)["fc_0.w_0"]
    assert cluster.trainers[0].scope["fc_0.w_0"].tobytes() != of_cluster(cluster)["fc_0.w_0"]


RECV_SAVE = {
    "shape": Longs((6, 10)),
    "slice_shapes": Strings(["6,10"]),
    "slice_varnames": Strings(["a"]),
    "remote_varnames": Strings(["fc_0.w_0"]),
    "endpoints": Strings(["ps0:6174"]),
    "file_path": "w",
}


@pytest.mark.parametrize(
    ("changed", "code", "reason"),
    [
        ({"slice_shapes": Strings(["6,10", "6,10"])}, "cluster-placement", "not of the same length"),
        ({"shape": Longs((12, 10))}, "cluster-placement", "60 elements, the whole, .12, 10., has 120"),
        ({"dtype": 6}, "cluster-placement", "float64.6, 10. is expected"),
        ({"remote_varnames": Strings(["fc_9.w_0"])}, "cluster-unknown-variable", "fc_9.w_0"),
        ({"endpoints": Strings(["ps9:6174"])}, "cluster-no-server", "ps9:6174"),
        ({"overwrite": False}, "values-exist", "is there already"),
    ],
)
def test_recv_save_refuses(changed: dict, code: str, reason: str, tmp_path: Path):
    compiled = job(1, 1, "sgd")
    cluster = begun(compiled, feeds(0, STEPS), folder=str(tmp_path))
    cluster.run_to(1)
    (tmp_path / "w").write_text("mine")
    op = make_op("recv_save", {}, {}, {**RECV_SAVE, **changed})
    with pytest.raises(DiagnosticError, match=reason) as problem:
        cluster.run_once(0, Program((Block(ops=(op,)),)))
    assert codes(problem.value) == {code}
    assert (tmp_path / "w").read_text() == "mine"


def test_recv_save_takes_a_rate_that_was_set_as_a_number(tmp_path: Path):
    """Its array has no dims then; the file has those of the variable, as the trainers' programs say."""
    cluster = begun(job(1, 1, "sgd"), feeds(0, STEPS), folder=str(tmp_path))
    cluster.run_to(1)
    cluster.servers[0].scope["learning_rate_0"] = np.array(0.25, "float32")
    rate = {"shape": Longs((1,)), "slice_shapes": Strings(["1"]), "remote_varnames": Strings(["learning_rate_0"])}
    op = make_op("recv_save", {}, {}, {**RECV_SAVE, **rate})
    cluster.run_once(0, Program((Block(ops=(op,)),)))
    assert read_tensor(tmp_path / "w").tolist() == [0.25]


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_a_distributed_table(servers: int, tmp_path: Path):
    """Rows by id modulo the number of servers; each server saves its own part when a trainer tells it to."""
    make = lambda count: sparse_job(count, is_distributed=True)  # noqa: E731
    batches = sparse_feeds(STEPS)
    cluster = begun(make(2), batches, folder=str(tmp_path))
    cluster.run_to(4)
    save_cluster(cluster, make(2), tmp_path / "c")
    cluster.run_once(0, save_program(make(2), "model"))
    parts = tmp_path / "c" / "__lookup_table__"
    assert len(list(parts.iterdir())) == 2
    for part in parts.iterdir():
        assert (tmp_path / "model" / "__lookup_table__" / part.name).read_bytes() == part.read_bytes()
    again = begun(make(servers), batches)
    resume(again, make(servers), tmp_path / "c")
    assert rows_of(again) == rows_of(cluster)
    cluster.run_to(STEPS)
    again.run_to(STEPS)
    assert rows_of(again) == rows_of(cluster)
    assert of_cluster(again) == of_cluster(cluster)


def rows_of(cluster: Cluster) -> dict[int, bytes]:
    tables = [server.scope["embedding_0.w_0"] for server in cluster.servers]
    return {int(i): row.tobytes() for t in tables for i, row in zip(t.rows, t.value[: len(t.rows)], strict=True)}


def geo_job(servers: int, trainers: int = 2) -> Compiled:
    draft = L.Draft(seed=3)
    ids, y = L.data(draft, "ids", [-1, 1], dtype="i64"), L.data(draft, "y", [-1, 1])
    rows = L.embedding(ids, [40, 4], is_sparse=True)
    minimize(L.mean(L.square_error_cost(L.fc(rows, 1), y)), Adam(0.05))
    return ps.compile(draft.module(), ps.Job(endpoints(servers), trainers, mode="geo", min_block_size=4))


def test_geo_sgd(tmp_path: Path):
    """Between two exchanges as well: what was exchanged last, which rows were used, and how many steps ago."""
    settings, batches = Settings(push_every=3), sparse_feeds(STEPS)

    def all_of(cluster: Cluster) -> dict[tuple[str, str], bytes]:
        return everything({machine.name: machine.scope for machine in (*cluster.trainers, *cluster.servers)})

    paused = begun(geo_job(2), batches, settings=settings)
    run_with_checkpoints(paused, geo_job(2), STEPS, tmp_path, keep=STEPS)
    for start in range(1, STEPS):
        again = begun(geo_job(2), batches, settings=settings)
        resume(again, geo_job(2), tmp_path / f"step_{start:08d}")
        for step in range(start + 1, STEPS + 1):
            again.run_to(step)
        assert all_of(again) == all_of(paused), f"killed after {start} steps"
    own = {trainer.scope["fc_0.w_0"].tobytes() for trainer in paused.trainers}
    assert len(own) == 2, "the trainers have nothing of their own"


def test_geo_sgd_with_other_machines(tmp_path: Path):
    """What a trainer had learnt since the last exchange is not lost; a new one begins with what the servers have."""
    settings, batches = Settings(push_every=3), sparse_feeds(STEPS)
    cluster = begun(geo_job(2), batches, settings=settings)
    cluster.run_to(4)
    save_cluster(cluster, geo_job(2), tmp_path / "c")
    other = begun(geo_job(3), batches, settings=settings)
    resume(other, geo_job(3), tmp_path / "c")
    for one in (cluster, other):
        one.run_to(9)
        one.finish()
    for name, value in cluster.parameters().items():
        assert np.allclose(other.parameters()[name], value, rtol=1e-5, atol=1e-6), name
    more = begun(geo_job(2, 3), batches, settings=settings)
    resume(more, geo_job(2, 3), tmp_path / "c")
    held = more.parameters()
    assert more.trainers[2].scope["fc_0.w_0"].tobytes() == np.asarray(held["fc_0.w_0"]).tobytes()
    more.run_to(9)
