"""Strategies of 2.x, tables with a row for every id, and what trainers give each other beside training."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile.fluid.paddle as paddle
from pstranspile.fluid.missing import NotHere
from pstranspile.fluid.paddle.distributed.fleet.one_fleet import Fleet
from pstranspile.fluid.paddle.distributed.fleet.strategy import DistributedStrategy
from pstranspile.fluid.running.meeting import Meeting
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.values.reading import decode_selected_rows, opened
from tests.fluid_api.running import SCRIPTS, fresh, printed
from tests.fluid_api.test_clusters import free_ports, launched

SCRIPT = SCRIPTS / "later_fleet.py"
IDS = [-(1 << 63), -1, 3, 1000000007, (1 << 62) + 5]


def losses(text: str) -> list[float]:
    return [float(line.split()[1]) for line in text.splitlines() if line.startswith("loss")]


def meet(counts: int, port: int, gives: Any, before: Callable[[], None] = lambda: None) -> list[Any]:
    """What each of so many trainers, in a thread each, gets in two meetings; `before` is called while trainer 0 waits
    for the others.
    """
    made: list[Any] = [None] * counts

    def trainer(number: int) -> None:
        meeting = Meeting(number, counts, f"127.0.0.1:{port}")
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


def test_nobody_else_comes_to_a_meeting(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    assert meet(2, port, lambda number, _: number, lambda: _shout(port))[1][0] == [0, 1]
    with pytest.raises(DiagnosticError, match="not on this host"):
        Meeting(0, 2, "10.0.0.1:1")
    monkeypatch.setenv("PSTRANSPILE_TLS", "certificates")
    with pytest.raises(NotHere, match="PSTRANSPILE_TLS"):
        Meeting(0, 2, "127.0.0.1:1")


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
            with opened(Path(folder, name)) as reader:
                kept.append(decode_selected_rows(reader))
        assert [each.rows.tolist() for each in kept] == [IDS, IDS]
        assert (kept[0].value != kept[1].value).all()
        for folder in (first, second):
            with opened(Path(f"{folder}_shrunk", name)) as reader:
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
    strategy.localsgd_configs = {"k_steps": 1}
    with pytest.raises(NotHere, match="trainers average after every step"):
        strategy.localsgd_configs = {"k_steps": 4}
    strategy.a_sync_configs = {"launch_barrier": False, "k_steps": 4}
    strategy.recompute_configs = {"enable_offload": True}
    with pytest.raises(ValueError, match="threshold is a whole number from 1 on, not 0"):
        Fleet().shrink(0)
    said = capsys.readouterr().err
    assert "a_sync_configs['launch_barrier'] = False changes nothing" in said
    assert "recompute_configs['enable_offload'] = True changes nothing" in said
    assert "k_steps" not in said


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
    with pytest.raises(NotHere, match="gradient_merge with servers"):
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
