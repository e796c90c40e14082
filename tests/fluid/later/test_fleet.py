"""Strategies of 2.x, tables with a row for every id, and what trainers give each other beside training."""

from __future__ import annotations

import io
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
import pstranspile.fluid.paddle as paddle
from pstranspile.fluid.incubate.fleet.parameter_server import (
    AsyncStrategy,
    GeoStrategy,
    SyncStrategy,
)
from pstranspile.fluid.missing import NotHere
from pstranspile.fluid.paddle.distributed.fleet.one_fleet import Fleet
from pstranspile.fluid.paddle.distributed.fleet.strategy import DistributedStrategy, MergeForServers
from pstranspile.fluid.running.gathering import Rendezvous, _pack_arrays, _unpack_arrays
from pstranspile.fluid.transpiler.distribute_transpiler import DistributeTranspiler, DistributeTranspilerConfig
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.proof.check import check
from pstranspile.proof.report import ADDS_UP
from pstranspile.runtime.values.encoding import decode_selected_rows, open_reader
from tests.fluid.running import SCRIPTS, fresh, printed
from tests.fluid.test_checked_fleet import ran
from tests.fluid.test_clusters import launched
from tests.ports import free_port_of_ipv6, free_ports

SCRIPT = SCRIPTS / "later_fleet.py"
IDS = [-(1 << 63), -1, 3, 1000000007, (1 << 62) + 5]


def losses(text: str) -> list[float]:
    return [float(line.split()[1]) for line in text.splitlines() if line.startswith("loss")]


def meet(
    counts: int, port: int, gives: Any, before: Callable[[], None] = lambda: None, host: str = "127.0.0.1"
) -> list[Any]:
    """What each of so many trainers, in a thread each, gets in two meetings; `before` is called while trainer 0 waits
    for the others.
    """
    made: list[Any] = [None] * counts

    def trainer(number: int) -> None:
        meeting = Rendezvous(number, counts, f"{host}:{port}")
        made[number] = [meeting.all_of(gives(number, turn)) for turn in (0, 1)]

    threads = [threading.Thread(target=trainer, args=(number,), daemon=True) for number in range(counts)]
    threads[0].start()
    before()
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join(20)
    return made


def test_trainers_meet_as_often_as_they_like() -> None:
    made = meet(3, free_ports(1)[0], lambda number, turn: np.full(turn + 1, number))
    for first, second in made:
        assert [each.tolist() for each in first] == [[0], [1], [2]]
        assert [each.tolist() for each in second] == [[0, 0], [1, 1], [2, 2]]


def test_trainers_meet_at_an_address_of_ipv6() -> None:
    assert meet(2, free_port_of_ipv6(), lambda number, _: number, host="[::1]")[1][0] == [0, 1]


def test_trainers_can_not_meet_at_a_name_that_no_host_can_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSTRANSPILE_INSECURE", "1")
    with pytest.raises(ConnectionError, match=r"trainers can't meet at a\.\.b:1 \(.*\): a\.\.b can't be the name"):
        Rendezvous(0, 2, "a..b:1")


def test_nobody_else_comes_to_a_meeting(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    assert meet(2, port, lambda number, _: number, lambda: _shout(port))[1][0] == [0, 1]
    with pytest.raises(DiagnosticError, match="not on this host"):
        Rendezvous(0, 2, "10.0.0.1:1")
    monkeypatch.setenv("PSTRANSPILE_TLS", "certificates")
    with pytest.raises(NotHere, match="PSTRANSPILE_TLS"):
        Rendezvous(0, 2, "127.0.0.1:1")


def test_who_comes_to_a_meeting_and_says_nothing_keeps_nobody_out() -> None:
    """Each would have been waited for, one after the other, for two minutes. Who has said a byte stays no longer than a
    trainer that has said nothing yet.
    """
    (port,) = free_ports(1)
    silent: list[socket.socket] = []

    def crowd() -> None:
        for number in range(40):
            silent.append(_reached(port))
            silent[-1].sendall(bytes([1] * (1 + number % 8)))

    assert meet(2, port, lambda number, _: number, crowd)[1][0] == [0, 1]
    for link in silent:
        link.close()


def _shout(port: int) -> None:
    """Comes with another token, with one that is too long, and with a number alone."""
    number = (1).to_bytes(8, "little")
    for sent in (number + (3).to_bytes(8, "little") + b"key", number + (1 << 40).to_bytes(8, "little"), number):
        with _reached(port) as link:
            link.sendall(sent)


def _reached(port: int) -> socket.socket:
    end = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 1)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


def test_trainers_without_servers_follow_a_strategy_as_one_does(tmp_path: Path) -> None:
    alone = losses(printed(SCRIPT, "merged", "none"))
    port = str(free_ports(1)[0])
    logs = launched("launch", "--nproc_per_node", "2", "--started_port", port, str(SCRIPT), "merged", folder=tmp_path)
    np.testing.assert_allclose(np.mean([losses(log) for log in logs], axis=0), alone, rtol=1e-4)
    for log in logs:
        assert "all [0, 1] [1. 2.] 1" in log
    assert len(alone) == 4


def averaged_in(steps: set[int], momentum: float, trainers: int = 2) -> list[np.ndarray]:
    """What each of these trainers has after every step, if they average after `steps`; a row for a trainer."""
    rng, made = np.random.RandomState(0), list[np.ndarray]()
    w, moved = np.full((trainers, 4), 0.2), np.zeros((trainers, 4))
    for step in range(1, 9):
        x = rng.rand(8, 4)
        for number in range(trainers):
            rows = x[number::trainers]
            moved[number] = momentum * moved[number] + 2 * rows.T @ (rows @ w[number] - 1.0) / len(rows)
        w = w - 0.1 * moved
        if step in steps:
            w = np.repeat(w.mean(axis=0, keepdims=True), trainers, axis=0)
        made.append(w)
    return made


@pytest.mark.parametrize(
    ("options", "steps", "momentum"),
    [
        (["1", "1", "SGD"], {*range(1, 9)}, 0.0),
        (["3", "2", "SGD"], {1, 2, 5, 8}, 0.0),
        (["4", "0", "Momentum", "edited"], {4, 8}, 0.9),
        (["2", "20", "SGD"], {*range(1, 9)}, 0.0),
    ],
)
def test_trainers_average_their_parameters_every_so_many_steps(
    options: list[str], steps: set[int], momentum: float, tmp_path: Path
) -> None:
    script, port = SCRIPTS / "later_local.py", str(free_ports(1)[0])
    logs = launched("launch", "--nproc_per_node", "2", "--started_port", port, str(script), *options, folder=tmp_path)
    held = np.array([[line.split()[1:] for line in log.splitlines() if line.startswith("w ")] for log in logs], float)
    np.testing.assert_allclose(held.transpose(1, 0, 2), averaged_in(steps, momentum), rtol=1e-5)


def test_parameters_of_another_optimizer_are_not_averaged(capsys: pytest.CaptureFixture[str]) -> None:
    strategy: Any = DistributedStrategy()
    setattr(strategy, "localsgd", True)  # noqa: B010
    assert vars(strategy.without_servers(paddle.optimizer.Momentum(0.1)))["use_local_sgd"]
    assert not vars(strategy.without_servers(paddle.optimizer.Adam(0.1)))["use_local_sgd"]
    assert "localsgd = True changes nothing: as in Paddle it is for SGD and Momentum" in capsys.readouterr().err


MERGED = SCRIPTS / "later_merged.py"


def held_after(log: str) -> np.ndarray:
    """The parameter after every step, as a script has printed it."""
    return np.array([line.split()[1:] for line in log.splitlines() if line.startswith("w ")], float)


def merged_of(scale: float, decay: float = 1.0) -> np.ndarray:
    """The parameter after every step, if three batches make an update; `scale` is what their sum is multiplied by."""
    rng, w, total, rate, made = np.random.RandomState(0), np.full(4, 0.2), np.zeros(4), 0.1, list[np.ndarray]()
    for step in range(1, 9):
        x = rng.rand(8, 4)
        total += 2 * x.T @ (x @ w - 1.0) / len(x)
        if step % 3 == 0:
            w, total, rate = w - rate * scale * total, np.zeros(4), rate * decay
        made.append(w)
    return np.array(made)


@pytest.mark.parametrize(
    ("options", "scale", "trainers"),
    [([], 1 / 3, 2), (["sum"], 1.0, 2), (["async"], 1 / 3, 1)],
)
def test_servers_update_by_the_merged_gradients_of_several_steps(
    options: list[str], scale: float, trainers: int, tmp_path: Path
) -> None:
    servers = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
    logs = launched(
        "launch", "--servers", servers, "--worker_num", str(trainers), str(MERGED), *options, folder=tmp_path
    )
    assert len(logs) == trainers
    wanted = merged_of(scale)
    if trainers > 1:
        for log in logs:
            np.testing.assert_allclose(held_after(log), wanted, rtol=1e-5)
    else:  # nobody waits: what the servers have made comes some time later
        held = held_after(logs[0])
        assert {*np.round(held[:, 0], 5)} <= {0.2, *np.round(wanted[:, 0], 5)}


@pytest.mark.parametrize("options", [[], ["sum", "adam"], ["decay"]])
def test_a_cluster_that_merges_gradients_trains_as_one_machine(options: list[str]) -> None:
    status, out, errors = ran("--check", str(MERGED), *options)
    assert status == 0, out + errors
    assert "the cluster trains as the single machine does" in out
    assert "steps of accumulate*2,main" in out


def merging(k_steps: int, clipped: bool) -> tuple[MergeForServers, DistributeTranspiler]:
    """An optimizer that has minimised a loss, and the transpiler that has made a cluster of it."""
    x = paddle.static.data("x", [None, 4])
    hidden = paddle.static.nn.fc(x, 3, activation="relu")
    loss = paddle.mean(paddle.square(paddle.static.nn.fc(hidden, 1) - 1.0))
    clip = paddle.nn.ClipGradByGlobalNorm(0.1) if clipped else None
    made = paddle.optimizer.SGD(0.1, grad_clip=clip) if clipped else paddle.optimizer.Adam(0.1)
    optimizer = MergeForServers(made, k_steps, avg=True)
    optimizer.minimize(loss)
    transpiler = DistributeTranspiler(DistributeTranspilerConfig(min_block_size=1))
    transpiler.take_turns(optimizer.turns)
    transpiler.transpile(0, pservers="127.0.0.1:1,127.0.0.1:2", trainers=2)
    return optimizer, transpiler


@pytest.mark.parametrize("clipped", [False, True])
def test_steps_between_updates_run_the_program_that_is_checked(clipped: bool) -> None:
    with fresh():
        optimizer, transpiler = merging(4, clipped)
        role = transpiler.result.trainer(1)
        ops = optimizer.turns.between(role.main).main_block.ops
        assert [(op.type, op.inputs, op.outputs) for op in ops] == [
            (op.type, op.inputs, op.outputs) for op in role.others["accumulate"].main_block.ops
        ]


def test_sums_of_gradients_are_compared_in_the_mean_over_trainers() -> None:
    with fresh():
        optimizer, transpiler = merging(4, clipped=False)
        assert optimizer.turns.text == "accumulate*3,main"
        job = transpiler.result.job
        assert job is not None
        report = check(transpiler.result.source, job, programs=optimizer.turns.text)
        sums = {verdict.equality for verdict in report.verdicts if verdict.kind == "sum"}
        assert (report.holds, sums) == (True, {ADDS_UP})
        source = transpiler.result.source  # gradients that trainers add up without clearing the sums are found
        main = source.main.main_block
        kept = main._replace(ops=tuple(op for op in main.ops if op.output("Out") != "fc_0.w_0@GRAD@GradientMerge"))
        wrong = check(
            source.with_programs({**source.programs, "main": source.main.with_main_block(kept)}),
            job,
            result=transpiler.result,
            programs=optimizer.turns.text,
        )
        assert not wrong.holds
        assert "fc_0.w_0@GRAD@GradientMerge" in {verdict.name for verdict in wrong.different}


def test_sparse_gradients_are_not_merged() -> None:
    with fresh():
        ids = paddle.static.data("ids", [None, 1], "int64")
        loss = paddle.mean(paddle.static.nn.embedding(ids, [10, 4], is_sparse=True, param_attr="rows"))
        with pytest.raises(NotHere, match="gradient_merge of rows"):
            MergeForServers(paddle.optimizer.SGD(0.1), 2, avg=True).minimize(loss)


def test_servers_have_a_row_for_every_id_and_keep_them_in_files(tmp_path: Path) -> None:
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    alone = losses(printed(SCRIPT, "tables", first))
    servers = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
    options = "--servers", servers, "--worker_num", "1"
    (log,) = launched("launch", *options, str(SCRIPT), "tables", second, first, folder=tmp_path)
    assert losses(log)[0] < alone[-1]
    for name in ("rows", "rows_moment_0"):
        kept: list[Any] = []
        for folder in (first, second):
            with open_reader(Path(folder, name)) as reader:
                kept.append(decode_selected_rows(reader))
        assert [each.rows.tolist() for each in kept] == [IDS, IDS]
        assert (kept[0].value != kept[1].value).all()
        for folder in (first, second):
            with open_reader(Path(f"{folder}_shrunk", name)) as reader:
                assert decode_selected_rows(reader).rows.tolist() == IDS[2:4]


def rows_of(optimizer: Any, entry: Any = None) -> list[float]:
    """The losses of a table alone."""
    with fresh():
        ids = paddle.static.data("ids", [None, 1], "int64")
        row = paddle.static.nn.sparse_embedding(ids, [10, 4], entry=entry)
        assert row.shape == (-1, 4)
        loss = paddle.mean(paddle.square(paddle.static.nn.fc(row, 1) - 1.0))
        optimizer.minimize(loss)
        exe = paddle.static.Executor(paddle.CPUPlace())
        exe.run(paddle.static.default_startup_program())
        feed = {"ids": np.array([[3], [1 << 60]])}
        return [exe.run(feed=feed, fetch_list=[loss])[0].item() for _ in range(4)]


@pytest.mark.parametrize("kind", ["SGD", "Adam", "Momentum"])
def test_one_process_has_a_row_for_every_id_too(kind: str) -> None:
    made = rows_of(getattr(paddle.optimizer, kind)(learning_rate=0.05))
    assert made[-1] < made[0]


def test_one_process_writes_a_table_into_a_model_as_high_as_declared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for size, told in (
        (10, "emb: the 1 rows of ids from 10 on, the height of its declaration, are not in the"),
        (0, ""),
    ):
        with fresh():
            ids = paddle.static.data("ids", [None, 1], "int64")
            height = size or 1 << 40
            row = paddle.static.nn.sparse_embedding(ids, [height, 4], param_attr=paddle.ParamAttr(name="emb"))
            out = paddle.static.nn.fc(row, 1)
            paddle.optimizer.Adam(0.1).minimize(paddle.mean(paddle.square(out - 1.0)))
            exe = paddle.static.Executor(paddle.CPUPlace())
            exe.run(paddle.static.default_startup_program())
            exe.run(feed={"ids": np.array([[3], [1 << 60]])})
            prefix = str(tmp_path / str(size) / "model")
            if not size:
                with pytest.raises(ValueError, match="1099511627776, of which from 1 to 536870912 can be written"):
                    paddle.static.save_inference_model(prefix, [ids], [out], exe)
                assert not (tmp_path / "0").exists()
                continue
            paddle.static.save_inference_model(prefix, [ids], [out], exe)
            assert told in capsys.readouterr().err
            asked = {"ids": np.array([[3], [9]])}
            (wanted,) = exe.run(paddle.static.default_main_program().clone(for_test=True), feed=asked, fetch_list=[out])
            with paddle.static.scope_guard(paddle.static.Scope()):
                program, _, fetches = paddle.static.load_inference_model(prefix, exe)
                assert program.global_block().var("emb").shape == (10, 4)
                assert exe.run(program, feed=asked, fetch_list=fetches)[0].tolist() == wanted.tolist()


def test_files_are_read_before_servers_serve() -> None:
    for name in ("load_model", "load_inference_model"):
        with pytest.raises(NotHere, match=rf"fleet.{name}.*fleet.init_server\('kept'\)"):
            getattr(Fleet(), name)("kept", mode=0)


def test_a_model_that_fetches_nothing_is_refused(tmp_path: Path) -> None:
    with fresh():
        x = paddle.static.data("x", [None, 4])
        out = paddle.static.nn.fc(x, 1)
        exe = paddle.static.Executor(paddle.CPUPlace())
        exe.run(paddle.static.default_startup_program())
        paddle.static.save_inference_model(str(tmp_path / "model"), [x], [out], exe)
        program, _, _ = paddle.static.load_inference_model(str(tmp_path / "model"), exe)
        block = program.global_block()
        fetch = next(op for op in block.ops if op.type == "fetch")
        block._remove_op(block.ops.index(fetch))
        block.append_op(type="fetch", inputs={}, outputs={"Out": fetch.output("Out")}, attrs={"col": 0})
        (tmp_path / "model.pdmodel").write_bytes(program.desc.serialize_to_string())
        with pytest.raises(ValueError, match="fetch of the model names no variable"):
            paddle.static.load_inference_model(str(tmp_path / "model"), exe)


def test_what_reads_all_rows_of_a_table_is_refused_where_it_is_written() -> None:
    decay = paddle.optimizer.SGD(0.1, weight_decay=paddle.regularizer.L2Decay(0.01))
    with pytest.raises(DiagnosticError, match=r"scale: it reads all rows of %.*, a large table"):
        rows_of(decay)


def test_geo_sgd_refuses_tables_with_a_row_for_every_id() -> None:
    with fresh():
        ids = paddle.static.data("ids", [None, 1], "int64")
        row = paddle.static.nn.sparse_embedding(ids, [10, 4], param_attr=paddle.ParamAttr(name="emb"))
        paddle.optimizer.SGD(0.1).minimize(paddle.mean(row))
        module = paddle.static.default_main_program().live().module()
    with pytest.raises(DiagnosticError, match="%emb: it is a large table, of which geo-SGD would have every trainer"):
        ps.compile(module, ps.Job(2, 2, mode="geo"))


def test_rows_enter_by_the_rule_of_an_entry() -> None:
    entry = paddle.distributed.CountFilterEntry(3)
    assert rows_of(paddle.optimizer.SGD(0.1), entry)[0] == 1.0  # rows that have not entered are 0
    assert (entry.to_attr(), paddle.distributed.ProbabilityEntry(0.5).to_attr()) == (
        "count_filter_entry:3",
        "probability_entry:0.5",
    )
    for make in (lambda: paddle.distributed.ProbabilityEntry(1.5), lambda: paddle.distributed.CountFilterEntry(-1)):
        with pytest.raises(ValueError, match="is a"):
            make()
    with fresh():
        ids = paddle.static.data("ids", [None, 1], "int64")
        with pytest.raises(ValueError, match="entry is a CountFilterEntry"):
            paddle.static.nn.sparse_embedding(ids, [10, 4], entry="none")
        start = paddle.ParamAttr(initializer=paddle.nn.initializer.Assign(np.zeros((10, 4), "float32")))
        with pytest.raises(DiagnosticError, match="does not begin all rows alike"):
            paddle.static.nn.sparse_embedding(ids, [10, 4], param_attr=start)


def test_settings_without_effect_are_named_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    strategy: Any = DistributedStrategy()
    strategy.localsgd_configs = {"k_steps": 4, "begin_step": 0}
    for wrong in ({"k_steps": 0}, {"k_steps": 2.5}, {"k_steps": True}, {"begin_step": -1}):
        with pytest.raises(ValueError, match=r"is a whole number from [01] on, not"):
            strategy.localsgd_configs = wrong
    assert strategy.localsgd_configs == {"k_steps": 4, "begin_step": 0}
    strategy.a_sync_configs = {"launch_barrier": False, "k_steps": 4}
    strategy.recompute_configs = {"enable_offload": True}
    with pytest.raises(ValueError, match="threshold is a whole number from 1 on, not 0"):
        Fleet().shrink(0)
    said = capsys.readouterr().err
    assert "a_sync_configs['launch_barrier'] = False changes nothing" in said
    assert "recompute_configs['enable_offload'] = True changes nothing" in said
    assert "k_steps" not in said


def test_settings_are_read_back_with_their_defaults_and_in_their_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    strategy: Any = DistributedStrategy()
    assert (strategy.a_sync, strategy.a_sync_configs["k_steps"]) == (True, -1)
    assert strategy.amp_configs["init_loss_scaling"] == 32768.0
    assert strategy.sharding_configs["sharding_degree"] == 8
    assert strategy.pipeline_configs["schedule_mode"] == "1F1B"
    strategy.dgc_configs = {"rampup_step": 3}
    strategy.hybrid_configs = {"dp_degree": 2}
    assert strategy.dgc_configs == {"rampup_begin_step": 0, "rampup_step": 3, "sparsity": []}
    assert (strategy.hybrid_configs["dp_degree"], strategy.hybrid_configs["pp_degree"]) == (2, 1)
    strategy.a_sync_configs = {"launch_barrier": 0, "send_queue_size": np.int64(3), "k_steps": True}
    held = [strategy.a_sync_configs[name] for name in ("launch_barrier", "send_queue_size", "k_steps")]
    assert [(value, type(value)) for value in held] == [(False, bool), (3, int), (1, int)]
    strategy.lars_configs = {"lars_coeff": 1, "exclude_from_weight_decay": ("bn",)}
    assert (strategy.lars_configs["lars_coeff"], strategy.lars_configs["exclude_from_weight_decay"]) == (1.0, ["bn"])
    for configs, wrong, kind in (
        ("a_sync", {"k_steps": "5"}, "a whole number, not '5'"),
        ("a_sync", {"k_steps": 1.5}, "a whole number, not 1.5"),
        ("a_sync", {"launch_barrier": "no"}, "True or False, not 'no'"),
        ("a_sync", {"heter_worker_device_guard": 1}, "a text, not 1"),
        ("lars", {"lars_coeff": "2"}, "a number, not '2'"),
        ("amp", {"custom_white_list": "relu"}, "a list, not 'relu'"),
    ):
        (name,) = wrong
        with pytest.raises(TypeError, match=re.escape(f"{configs}_configs[{name!r}] is {kind}")):
            setattr(strategy, f"{configs}_configs", wrong)
    for configs in ("a_sync_configs", "amp_configs", "fs_client_param", "sparse_table_configs"):
        with pytest.raises(TypeError, match=f"{configs} is a dict"):
            setattr(strategy, configs, 3)
    assert strategy.a_sync_configs["k_steps"] == 1
    capsys.readouterr()
    strategy.amp, strategy.lamb, strategy.nccl_comm_num, strategy.fuse_grad_size_in_MB = 1, "yes", 1.5, "64"
    assert (strategy.amp, strategy.lamb, strategy.nccl_comm_num, strategy.fuse_grad_size_in_MB) == (False, False, 1, 32)
    said = capsys.readouterr().err
    assert "DistributedStrategy.lamb = 'yes' changes nothing: it is True or False, and as in Paddle others" in said
    for name in ("a_sync", "adam_d2sum"):
        with pytest.raises(ValueError, match=f"{name} is True or False, not 1"):
            setattr(strategy, name, 1)


def test_steps_of_geo_are_enough_and_trainers_work_in_step_without_them() -> None:
    strategy: Any = DistributedStrategy()
    assert isinstance(strategy.with_servers(), SyncStrategy)
    strategy.a_sync_configs = {"k_steps": 5}
    assert isinstance(strategy.with_servers(), GeoStrategy)
    strategy.a_sync = True
    assert isinstance(strategy.with_servers(), AsyncStrategy)
    with pytest.raises(ValueError, match="once a_sync has been set; not -1"):
        strategy.a_sync_configs = {"k_steps": -1}
    strategy.a_sync = False
    assert isinstance(strategy.with_servers(), SyncStrategy)


def test_strategies_take_what_they_know() -> None:
    strategy: Any = DistributedStrategy()

    def take(**settings: Any) -> None:
        for name, value in settings.items():
            setattr(strategy, name, value)

    take(gradient_merge_configs={"k_steps": 4})
    assert strategy.gradient_merge_configs == {"k_steps": 4, "avg": True}
    with pytest.raises(ValueError, match="did you mean lars_coeff"):
        take(lars_configs={"lars_coef": 1.0})
    take(auto=True)
    sgd = paddle.optimizer.SGD(0.1)
    assert strategy.optimizer(sgd, with_servers=True) is sgd
    assert (strategy.a_sync, strategy.a_sync_configs["k_steps"]) == (True, 800)
    take(gradient_merge=True)
    with pytest.raises(NotHere, match="gradient_merge with geo-SGD"):
        strategy.optimizer(sgd, with_servers=True)
    take(auto=False, a_sync=True)
    assert isinstance(strategy.optimizer(sgd, with_servers=True), MergeForServers)
    take(gradient_merge_configs={"k_steps": 1}, a_sync=False)
    assert strategy.optimizer(sgd, with_servers=True) is sgd
    take(auto=True)
    strategy.optimizer(sgd, with_servers=True)
    assert "a_sync = True" in repr(strategy)
    take(gradient_merge=False, lamb=True, lamb_configs={"exclude_from_weight_decay": [".b_0"]})
    assert strategy.optimizer(paddle.optimizer.Adam(0.1), with_servers=False).type == "Lamb"
    take(lamb=False, lars=True, lars_configs={"exclude_from_weight_decay": [".b_0"]})
    lars = strategy.optimizer(paddle.optimizer.Momentum(0.1), with_servers=False)
    assert (lars.type, lars.settings["exclude"]("fc.b_0"), lars.settings["exclude"]("w")) == (
        "LarsMomentum",
        True,
        False,
    )


def _compressed() -> bytes:
    """A megabyte of an archive that holds a gigabyte."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, np.zeros(1 << 24, "uint8"))
    return buffer.getvalue()


def _headed(header: str, numbers: bytes = b"") -> bytes:
    text = header.encode()
    data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + numbers
    return struct.pack("<Q", len(data)) + data


@pytest.mark.parametrize(
    "held",
    [
        b"",
        b"\x01",
        _compressed(),
        struct.pack("<Q", 1 << 60) + b"x",
        _headed("{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,), }\n"),
        _headed("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }\n"),
        _headed("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n", bytes(9)),
        _headed("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n", bytes(8)),
        _headed("[" * 9000 + "\n"),
        _headed("\x1b[2J\n"),
        _pack_arrays([np.ones(2)] * 3),
        _pack_arrays([np.ones(2)]),
    ],
)
def test_what_a_trainer_gives_takes_no_more_memory_than_it_has_bytes(held: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(ConnectionError, match="a trainer gives"):
        _unpack_arrays(held, 2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < len(held) + (4 << 20)


@pytest.mark.parametrize(
    "array", [np.asarray(3), np.asfortranarray(np.eye(2, 3)), np.array(["a", "bcd"]), np.zeros((0, 4)), np.array([1j])]
)
def test_arrays_of_a_meeting_come_as_they_were_given(array: Any) -> None:
    (found,) = _unpack_arrays(_pack_arrays([array]), 1)
    assert (found.dtype, found.shape, found.flags.writeable) == (array.dtype, array.shape, True)
    np.testing.assert_array_equal(found, array)


TABLE_OF_SERVERS = """
import os
import numpy as np
import paddle
from paddle.distributed import fleet

paddle.enable_static()
fleet.init(fleet.PaddleCloudRoleMaker())
ids = paddle.static.data("ids", [None, 1], "int64")
out = paddle.static.nn.fc(paddle.static.nn.sparse_embedding(ids, [10, 4], param_attr=paddle.ParamAttr(name="emb")), 1)
strategy = fleet.DistributedStrategy()
strategy.a_sync = True
fleet.distributed_optimizer(paddle.optimizer.SGD(0.1), strategy).minimize(paddle.mean(out))
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    exe.run(feed={"ids": np.array([[1], [2], [int(os.environ["ID"])]], "int64")})
    fleet.save_persistables(exe, "saved")
    fleet.save_inference_model(exe, "model", ["ids"], [out])
    fleet.stop_worker()
"""


@pytest.mark.parametrize(
    ("number", "told"),
    [(3, ""), (1000, "emb: the 1 rows of ids from 10 on, the height of its declaration, are not in the model\n")],
)
def test_a_table_of_servers_is_saved_without_a_warning_unless_rows_are_left_out(
    number: int, told: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(TABLE_OF_SERVERS)
    server, trainer = (f"127.0.0.1:{port}" for port in free_ports(2))
    environment = {
        **os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "ID": str(number),
        "PADDLE_PSERVERS_IP_PORT_LIST": server, "PADDLE_TRAINERS_NUM": "1", "PADDLE_TRAINER_ENDPOINTS": trainer,
    }  # fmt: skip
    own = {"TRAINING_ROLE": "PSERVER", "POD_IP": "127.0.0.1", "PADDLE_PORT": server.partition(":")[2]}
    command = [sys.executable, "-m", "pstranspile.fluid", "train.py"]
    with subprocess.Popen(command, cwd=tmp_path, env={**environment, **own}) as serving:
        try:
            own = {"TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": "0", "PADDLE_CURRENT_ENDPOINT": trainer}
            done = subprocess.run(
                command,
                cwd=tmp_path,
                env={**environment, **own},
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            )
            assert serving.wait(30) == 0
        finally:
            serving.kill()
    assert done.stderr == told
    assert (tmp_path / "model" / "dnn_plugin" / "emb").is_file()
