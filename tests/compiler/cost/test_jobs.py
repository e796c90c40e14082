"""Jobs that are placed by cost: they train as one machine does, and the busiest server is the least busy."""

import itertools
import json
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile import layers as L
from pstranspile.autodiff import SGD, Adagrad, Adam, LarsMomentum, minimize
from pstranspile.cluster.machines.recorder import Recorder, traffic_of
from pstranspile.compiler.cost.counts import IdCounts, Range, RowCounts, counts_of, counts_text
from pstranspile.compiler.cost.jobs import cost_under
from pstranspile.compiler.job import job_warnings
from pstranspile.runtime.run.step_feeds import inputs_of
from pstranspile.tools.cli import main

EXAMPLES = Path(__file__).parents[3] / "examples"
GOLDEN = Path(__file__).parents[3] / "golden"
ROWS_FED = 8
ROWS = (40, 700, 5000)
"""The heights of the tables."""


def net(optimizer: Any = None) -> ps.Module:
    model = L.Draft(seed=1)
    ids = [L.data(model, f"id_{number}", [-1, 1], "int64") for number in range(len(ROWS))]
    dense, click = L.data(model, "dense", [-1, 5]), L.data(model, "click", [-1, 1])
    rows = [L.embedding(each, [height, 8], is_sparse=True) for each, height in zip(ids, ROWS, strict=True)]
    hidden = L.fc(L.concat([*rows, dense], axis=1), 40, act="relu")
    loss = L.mean(L.sigmoid_cross_entropy_with_logits(L.fc(hidden, 1), click))
    minimize(loss, optimizer or Adagrad(0.01))
    return model.module()


def skewed(tmp_path: Path) -> str:
    """Counts by which the first rows of each table are looked up most."""
    tables = {
        f"embedding_{number}.w_0": RowCounts([Range(0, 2, 600), Range(2, 20, 300), Range(20, height, 100)])
        for number, height in enumerate(ROWS)
    }
    path = tmp_path / "ids.json"
    path.write_text(counts_text(IdCounts(1000, tables)))
    return str(path)


def job(method: str, counts: str, **more: Any) -> ps.Job:
    return ps.Job(
        **{"pservers": 3, "trainers": 2, "min_block_size": 8, "split_method": method, "id_counts": counts, **more}
    )


@pytest.mark.parametrize("more", [{}, {"slice_var_up": False}, {"mode": "async", "trainers": 1}, {"pservers": 1}])
@pytest.mark.parametrize("optimizer", [Adagrad(0.01), Adam(0.01)])
def test_the_cluster_trains_as_one_machine_does(more: dict[str, Any], optimizer: Any, tmp_path: Path):
    report = ps.check(net(optimizer), job("cost", skewed(tmp_path), **more), steps=2, batch=6)
    assert report.holds, str(report)


def test_the_busiest_server_is_less_busy_than_in_turn(tmp_path: Path):
    counts = skewed(tmp_path)
    in_turn, by_cost = (ps.cost(ps.compile(net(), job(method, counts))) for method in ("RoundRobin", "cost"))
    assert in_turn.of_mean(in_turn.busiest) > 1.5
    assert by_cost.of_mean(by_cost.busiest) < 1.05
    assert by_cost.mean == pytest.approx(in_turn.mean)
    assert by_cost.busiest.moved < in_turn.busiest.moved


def test_bytes_are_those_that_machines_send():
    """A dense parameter goes there and back; of a table as many rows as there are lookups, with ids."""
    compiled = ps.compile(net(), ps.Job(pservers=1, trainers=2, batch_rows=10))
    dense = 4 * (40 * 29 + 40 + 40 + 1)
    looked_up = len(ROWS) * 10 * (8 * 4 + 8)
    (server,) = ps.cost(compiled).servers
    assert server.moved == 2 * 2 * (dense + looked_up)
    assert server.held == dense + 4 * 8 * sum(ROWS)


@pytest.mark.parametrize("merge_rows", [False, True])
def test_bytes_by_counts_of_ids_are_those_of_a_run(merge_rows: bool, tmp_path: Path):
    """Rows that come again in a step are asked for once, and with `merge_rows` their gradients are sent once."""
    height, steps, rows = 400, 20, 64
    share = np.arange(1, height + 1) ** -1.3
    model = L.Draft(seed=1)
    row = L.embedding(L.data(model, "id", [-1, 1], "int64"), [height, 8], is_sparse=True, merge_rows=merge_rows)
    minimize(L.mean(row), SGD(0.1))
    drawn = np.random.default_rng(0).choice(height, (2, steps, rows, 1), p=share / share.sum())
    number, times = np.unique(drawn, return_counts=True)
    path = tmp_path / "ids.json"
    table = counts_of(dict(zip(number.tolist(), times.tolist(), strict=True)))
    path.write_text(counts_text(IdCounts(drawn.size, {"embedding_0.w_0": table})))
    settings: dict[str, Any] = {"pservers": 2, "trainers": 2, "batch_rows": rows, "large_tables": ["embedding_0.w_0"]}
    compiled = ps.compile(model.module(), ps.Job(**settings, id_counts=str(path)))
    cluster = ps.Cluster(compiled.roles())
    recorder = Recorder(cluster)
    cluster.feed(lambda trainer, step: {"id": drawn[trainer, step]})
    cluster.run_to(steps)
    cluster.finish()
    found = traffic_of(recorder, ("pserver_0", "pserver_1"))
    moved = sum(each.bytes_to_server + each.bytes_from_server for each in found) / steps
    assert moved == pytest.approx(sum(server.moved for server in ps.cost(compiled).servers), rel=0.03)
    every = 2 * 2 * rows * (8 * 4 + 8)
    assert moved < (0.7 if merge_rows else 0.85) * every


def test_parameters_that_find_no_room_are_an_error(tmp_path: Path):
    with pytest.raises(ps.DiagnosticError, match="find no room on 1 server with server_memory 1 MiB") as problem:
        ps.compile(_large(), job("cost", "", pservers=1, server_memory=1))
    assert [found.code for found in problem.value.diagnostics] == ["plan-memory"]
    ps.compile(_large(), job("cost", "", pservers=4, server_memory=1))


def _large() -> ps.Module:
    model = L.Draft(seed=1)
    row = L.embedding(L.data(model, "word", [-1, 1], "int64"), [40_000, 8], is_sparse=True)
    minimize(L.mean(row), Adagrad(0.1))
    return model.module()


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"other": RowCounts([Range(0, 1, 1)])}, "it counts ids of other, which the program does not update"),
        ({"embedding_0.w_0": RowCounts([Range(0, 41, 1)])}, "up to 40, and the table has 40 rows"),
        (
            {name: RowCounts([Range(0, 1, 1)]) for name in ("embedding_0.w_0", "fc_0.w_0")},
            "it counts ids of fc_0.w_0, in which no op of the program looks rows up",
        ),
        (
            {name: RowCounts([Range(0, 1, 1)]) for name in ("embedding_0.w_0", "embeding_1.w_0")},
            "embeding_1.w_0, and the program has no such variable; did you mean",
        ),
    ],
)
def test_counts_of_another_program_are_refused(tables: dict[str, RowCounts], said: str, tmp_path: Path):
    path = tmp_path / "ids.json"
    path.write_text(counts_text(IdCounts(10, tables)))
    with pytest.raises(ps.DiagnosticError, match=said) as problem:
        ps.compile(net(), job("cost", str(path)))
    assert [found.code for found in problem.value.diagnostics] == ["id-counts"]


def test_options_without_effect_are_told():
    found = job_warnings(ps.Job(trainers=2, mode="ddp", server_memory=5))
    assert [(each.code, each.focus) for each in found] == [("job-unused", "server_memory")]
    found = job_warnings(ps.Job(pservers=1, trainers=2, server_memory=5))
    assert [(each.code, each.focus) for each in found] == [("job-unused", "server_memory")]
    assert job_warnings(ps.Job(pservers=1, trainers=2, server_memory=5, split_method="cost")) == ()


def test_a_mode_that_keeps_snapshots_counts_them_in_the_types_of_the_source():
    module = ps.load(str(Path(__file__).parents[3] / "golden" / "mlp_adam.ir"))
    plain, keeping = (ps.cost(ps.compile(module, ps.Job(mode=mode, trainers=2))) for mode in ("ddp", "local-sgd"))
    parameters = sum(4 * int(np.prod(each.shape)) for each in module.main.main_block.vars.values() if each.parameter)
    assert keeping.machines[0].held == plain.machines[0].held + parameters
    assert keeping.machines[0].moved == plain.machines[0].moved


def test_a_mode_without_servers_has_the_cost_of_its_trainers():
    found = ps.cost(ps.compile(net(), ps.Job(trainers=2, mode="ddp", batch_rows=10)))
    (trainer,) = found.machines
    assert (found.servers, trainer.machine, trainer.alike) == ((), "trainer_0 to 1", 2)
    summed = 4 * (40 * 29 + 40 + 40 + 1) + 4 * 8 * sum(ROWS)  # whole tables, as their gradients are dense
    assert trainer.moved >= 2 * 4 * (40 * 29 + 40 + 40 + 1)
    assert trainer.held >= summed
    assert str(found).startswith("2 trainers (ddp), 10 rows a batch of a trainer")
    assert repr(found).startswith("<PlanCost of <Plan ddp")


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("name", ["mnist_mlp", "linear_regression", "deepfm"])
def test_messages_and_bytes_are_those_of_a_run(name: str, mode: str):
    """Of two more steps of a simulated cluster, whose batches have no id twice."""
    module = ps.load(EXAMPLES / f"{name}.ir")
    compiled = ps.compile(module, ps.Job(pservers=2, trainers=2, mode=mode, batch_rows=ROWS_FED))
    predicted = ps.cost(compiled)
    (one, three) = (_traffic(compiled, steps) for steps in (1, 3))
    trainers = predicted.machines[0]
    messages, moved = ((after - before) / 2 for before, after in zip(one, three, strict=True))
    assert (messages, moved) == (2 * trainers.messages, 2 * trainers.moved)
    assert messages == sum(machine.messages for machine in predicted.machines[1:])
    assert moved == sum(server.moved for server in predicted.servers)


@pytest.mark.parametrize("trainers", [1, 2, 3])
def test_sums_without_servers_move_what_they_move_in_a_run(trainers: int):
    compiled = ps.compile(ps.load(EXAMPLES / "linear_regression.ir"), ps.Job(trainers=trainers, mode="ddp"))
    (trainer,) = ps.cost(compiled).machines
    (one, three) = (_exchanged(compiled, steps) for steps in (1, 3))
    messages, moved = ((after - before) / 2 for before, after in zip(one, three, strict=True))
    assert (messages, moved) == pytest.approx((trainers * trainer.messages / 2, trainers * trainer.moved / 2))


def _exchanged(compiled: ps.Compiled, steps: int) -> tuple[int, int]:
    """The messages and the bytes of the sums of trainers."""
    recorder = _recorded(compiled, steps)
    found = {event.message: event.bytes for event in recorder.events if event.kind in ("piece", "total")}
    return len(found), sum(found.values())


def _traffic(compiled: ps.Compiled, steps: int) -> tuple[int, int]:
    """The messages and the bytes between the machines of a run."""
    recorder = _recorded(compiled, steps)
    found = traffic_of(recorder, tuple(name for name in compiled.roles() if name.startswith("pserver")))
    messages = sum(each.to_server + each.from_server for each in found)
    return messages, sum(each.bytes_to_server + each.bytes_from_server for each in found)


def _recorded(compiled: ps.Compiled, steps: int) -> Recorder:
    """The events of a run of a simulated cluster, with `ROWS_FED` rows for each trainer and no id twice in a step."""
    main, draw, feeds = compiled.source.main, np.random.default_rng(0), {}
    looked_up = {op.input("Ids") for op in main.main_block.ops if op.type.startswith("lookup_table")}
    for name in sorted(inputs_of(main)):
        var = main.main_block.vars[name]
        dims = (steps, ROWS_FED * compiled.plan.trainers, *var.shape[1:])
        whole = var.dtype is not None and var.dtype.text.startswith("i")
        if name in looked_up:
            feeds[name] = np.stack([np.arange(prod(dims[1:])).reshape(dims[1:])] * steps)
            continue
        feeds[name] = draw.integers(0, 2, dims) if whole else draw.normal(size=dims).astype("float32")
    cluster = ps.Cluster(compiled.roles())
    recorder = Recorder(cluster)
    cluster.feed(feeds)
    cluster.run_to(steps)
    cluster.finish()
    return recorder


def most(found: ps.PlanCost) -> tuple[float, int]:
    """The bytes that the busiest machine moves, and the most memory of a machine."""
    return max(each.moved for each in found.machines), max(each.held + each.peak for each in found.machines)


def test_suggestions_lower_costs_and_hold_what_they_promise(tmp_path: Path):
    given = job("RoundRobin", skewed(tmp_path), min_block_size=8192, batch_rows=64)
    found = ps.suggest(net(), given)
    assert (found.moved, found.memory) == most(ps.cost(ps.prepare(net(), given)))
    same = "the same results (equal to one machine: always)"
    settings = [("--set split_method=cost", {"split_method": "cost"})]
    settings += [("--set min_block_size=512", {"min_block_size": 512}), ("--pservers 4", {"pservers": 4})]
    assert [(each.option, each.exactness) for each in found.suggestions] == [(option, same) for option, _ in settings]
    for each, (_, changed) in zip(found.suggestions, settings, strict=True):
        other = replace(given, **changed)
        assert (each.moved, each.memory) == most(ps.cost(ps.prepare(net(), other)))
        assert each.moved < 0.95 * found.moved or each.memory < 0.95 * found.memory
        assert ps.check(net(), other, steps=2, batch=6).holds
    assert found.tried[-2:] == ("--pservers 2", "--pservers 4")
    assert repr(found) == f"<Suggestions for sync: 3 of {len(found.tried)} settings>"
    assert ps.suggest(net(), given) == found


def test_tables_that_trainers_receive_whole_may_be_looked_up_on_servers():
    """Of 5740 rows of 32 bytes a trainer then holds none, and gets the 3 x 16 that it looks up, with their ids."""
    module = ps.loads(ps.dumps(net()).replace(", remote_prefetch=true", ""))
    found = ps.suggest(module, ps.Job(pservers=2, trainers=2, batch_rows=16))
    best = found.suggestions[0]
    assert best.option == "--set large_tables=embedding_0.w_0,embedding_1.w_0,embedding_2.w_0"
    assert best.exactness.startswith("the same bits with SGD, Adagrad and lazy Adam; others no longer move rows")
    dense, looked_up = 4 * (40 * 29 + 40 + 40 + 1), 3 * 16 * (8 * 4 + 8)
    tables = ps.Job(pservers=2, trainers=2, batch_rows=16, large_tables=[f"embedding_{k}.w_0" for k in range(3)])
    before, after = (
        ps.cost(ps.prepare(module, each)).machines[0] for each in (replace(tables, large_tables=()), tables)
    )
    assert before.moved - after.moved == 32 * sum(ROWS) - looked_up
    assert after.moved == 2 * (dense + looked_up)
    assert best.moved < 0.2 * found.moved


def test_costs_of_a_plan_with_large_tables_compare_with_themselves():
    given = ps.Job(pservers=2, trainers=2, large_tables="embedding_2.w_0 enter_after=2", min_block_size=8)
    compiled = ps.prepare(net(), given)
    assert cost_under(compiled, ps.parse_plan(str(compiled.plan)), by_id=False) == ps.cost(compiled)
    assert [part.rule for part in ps.why(compiled, "embedding_2.w_0").slices] == ["RoundRobin", "RoundRobin"]


def test_costs_of_a_table_by_id_and_by_rows_compare():
    module = ps.load(GOLDEN / "distributed_table.ir")
    by_id, by_rows = (
        ps.prepare(module, ps.Job(pservers=2, trainers=2, distributed_table=how)) for how in ("modulo", "rows")
    )
    assert cost_under(by_rows, ps.parse_plan(str(by_id.plan)), by_id=True) == ps.cost(by_id)
    assert cost_under(by_id, ps.parse_plan(str(by_rows.plan)), by_id=False) == ps.cost(by_rows)


def test_what_is_suggested_in_other_modes():
    asynchronous = ps.suggest(net(), ps.Job(pservers=3, trainers=2, mode="async", batch_rows=8))
    assert "(equal to one machine: with a single trainer;" in str(asynchronous)
    alone = ps.suggest(net(), ps.Job(trainers=2, mode="ddp"))
    assert (alone.suggestions, alone.tried) == ((), ())
    assert "none of 0 settings lowers one of them by more than 5%" in str(alone)
    elsewhere = ps.suggest(net(), ps.Job(pservers="a:1,b:1", trainers=2))
    assert not [option for option in elsewhere.tried if option.startswith("--pservers")]


def test_what_a_suggestion_changes_is_told():
    """A slice of a parameter of LARS is updated by its own norm, so that other cuts give other results."""
    model = L.Draft(seed=1)
    hidden = L.fc(L.data(model, "x", [-1, 64]), 128, act="relu")
    minimize(L.mean(L.fc(hidden, 1)), LarsMomentum(0.1))
    found = ps.suggest(model.module(), ps.Job(pservers=2, trainers=2, batch_rows=4))
    (size,) = (each for each in found.suggestions if "min_block_size" in each.option)
    assert "is cut, and each server will use the norm of its own slice" in size.exactness


def test_settings_that_the_job_can_not_have(tmp_path: Path):
    given = job("RoundRobin", skewed(tmp_path), pservers=1, server_memory=1)
    found = ps.suggest(_large(), replace(given, id_counts=""))
    assert found.refused[0][0] == "--set split_method=cost"
    assert "find no room on 1 server with server_memory 1 MiB" in found.refused[0][1]
    assert "--set split_method=cost is refused: " in str(found)


# The commands.


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.ir")), ids=lambda path: path.stem)
@pytest.mark.parametrize("given", [{"pservers": 2, "trainers": 2}, {"trainers": 2, "mode": "ddp"}], ids=str)
def test_every_program_has_a_cost(path: Path, given: dict[str, Any]):
    compiled = ps.compile(ps.load(path), ps.Job(**given))
    found = ps.cost(compiled)
    assert len(found.machines) == 1 + len(compiled.plan.pservers)
    assert all(machine.operations > 0 and machine.held > 0 for machine in found.machines[:1])
    assert all(min(machine[2:]) >= 0 for machine in found.machines)
    assert ps.cost(compiled) == found


def test_the_rows_of_a_distributed_table_are_those_of_the_ids():
    compiled = ps.compile(ps.load(GOLDEN / "distributed_table.ir"), ps.Job(pservers=2, trainers=2, batch_rows=40))
    small, large = (ps.cost(compiled).machines[1], ps.cost(replaced(compiled, 4000)).machines[1])
    assert 20 * small.peak < large.peak


def replaced(compiled: ps.Compiled, rows: int) -> ps.Compiled:
    """The same job with batches of so many rows."""
    assert compiled.job is not None
    return ps.compile(compiled.source, replace(compiled.job, batch_rows=rows))


def test_a_sweep_has_the_costs_of_each_job(tmp_path: Path):
    given = job("RoundRobin", skewed(tmp_path))
    found = ps.sweep(net(), given, pservers=[1, 2, 3, 4], trainers=[2, 5])
    assert [(row.trainers, row.pservers) for row in found.rows] == [(t, s) for t in (2, 5) for s in (1, 2, 3, 4)]
    costs = ps.cost(ps.compile(net(), job("RoundRobin", skewed(tmp_path), pservers=3)))
    row = found.rows[2]
    assert (row.server_moved, row.of_mean) == (costs.busiest.moved, costs.of_mean(costs.busiest))
    assert row.server_held == max(machine.held for machine in costs.machines[1:])
    assert (row.messages, row.trainer_peak) == (costs.machines[0].messages, costs.machines[0].peak)
    for number in (2, 5):
        of_number = [row for row in found.rows if row.trainers == number]
        knees = [at for at, row in enumerate(of_number) if row.is_knee]
        for at, (one, more) in enumerate(itertools.pairwise(of_number)):
            if at < (knees or [3])[0]:
                assert more.server_moved <= 0.95 * one.server_moved
    assert "of the mean" in str(found).splitlines()[2]
    assert repr(found) == "<Sweep sync: 8 combinations>"
    (one,) = ps.sweep(net(), ps.Job(trainers=3, mode="ddp")).rows
    assert (one.trainers, one.pservers, one.is_knee) == (3, 0, False)
    assert "servers" not in str(ps.sweep(net(), ps.Job(trainers=3, mode="ddp")))


def test_sweeps_that_are_none(tmp_path: Path):
    given = job("RoundRobin", skewed(tmp_path))
    with pytest.raises(ValueError, match="a number of machines"):
        ps.sweep(net(), given, pservers=[0])
    with pytest.raises(ValueError, match="1,000,000 combinations"):
        ps.sweep(net(), given, pservers=range(1, 1001), trainers=range(1, 1001))
    with pytest.raises(ps.JobError, match="no parameter servers"):
        ps.sweep(net(), ps.Job(trainers=3, mode="ddp"), pservers=[1])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.ir").write_text(ps.dumps(net()))
    draw = np.random.default_rng(0)
    ids = {f"id_{k}": np.minimum(draw.zipf(1.3, (5, 8, 1)), height) - 1 for k, height in enumerate(ROWS)}
    dense = draw.normal(size=(5, 8, 5)).astype("float32")
    np.savez(tmp_path / "f.npz", **ids, dense=dense, click=np.ones((5, 8, 1), "float32"))
    return tmp_path


JOB = ["--pservers", "3", "--trainers", "2", "--set", "min_block_size=8", "--set", "id_counts=ids.json"]


def test_from_data_to_a_plan_that_a_command_takes(folder: Path, capfd: pytest.CaptureFixture[str]):
    assert main(["rows", "--histogram", "net.ir", "--feed", "f.npz", "-o", "ids.json"]) == 0
    assert capfd.readouterr().err == "ids.json: the counts of ids of 3 tables in 40 rows\n"
    held = json.loads((folder / "ids.json").read_text())
    assert held["batch_rows"] == 40
    assert sum(count for _, _, count in held["tables"][0]["ranges"]) == 40
    assert main(["plan", "net.ir", *JOB, "--set", "split_method=cost", "--cost"]) == 0
    assert "of the mean" in capfd.readouterr().out.splitlines()[0]
    assert main(["plan", "net.ir", *JOB, "--cost", "--json"]) == 0
    costs = json.loads(capfd.readouterr().out)
    assert costs["busiest"]["of_mean"] == max(server["of_mean"] for server in costs["servers"])
    by_cost = [*JOB, "--set", "split_method=cost"]
    assert main(["plan", "net.ir", *by_cost, "-o", "net.plan"]) == 0
    assert main(["compile", "net.ir", *by_cost, "--plan", "net.plan", "-o", "out"]) == 0
    capfd.readouterr()
    assert main(["explain", "out", "--var", "embedding_2.w_0"]) == 0
    assert "split_method cost" in capfd.readouterr().out


def test_the_command_sweeps(folder: Path, capfd: pytest.CaptureFixture[str]):
    words = ["plan", "net.ir", "--set", "min_block_size=8", "--sweep", "pservers=1..2,4", "trainers=2"]
    assert main(words) == 0
    table = capfd.readouterr().out
    assert table.startswith("mode sync, 512 rows a batch of a trainer; bytes in a step\n\ntrainers  servers")
    assert main([*words, "--json"]) == 0
    rows = json.loads(capfd.readouterr().out)["rows"]
    assert [(row["trainers"], row["pservers"]) for row in rows] == [(2, 1), (2, 2), (2, 4)]


def against(folder: Path, capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str]]:
    """The status and the lines of `plan --against` for a folder that was compiled for three servers in turn."""
    if not (folder / "out").exists():
        assert main(["compile", "net.ir", *JOB[:6], "-o", "out"]) == 0
    capfd.readouterr()
    status = main(["plan", "net.ir", "--trainers", "2", "--against", "out", *words])
    return status, capfd.readouterr().out.rstrip("\n").split("\n")


def test_what_another_plan_changes_in_cost(folder: Path, capfd: pytest.CaptureFixture[str]):
    before, after = (
        ps.cost(ps.prepare(net(), ps.Job(pservers=count, trainers=2, min_block_size=8))) for count in (3, 2)
    )
    two = ["--pservers", "2", *JOB[4:6]]
    status, plain = against(folder, capfd, *two)
    _, lines = against(folder, capfd, *two, "--cost")
    assert (status, lines[: len(plain)]) == (1, plain)
    ratios = [found.of_mean(found.busiest) for found in (before, after)]
    trainers = [found.machines[0] for found in (before, after)]
    assert lines[len(plain) :] == [
        "",
        "cost of a step:",
        f"~ the busiest server moves: {before.busiest.moved:,.0f} -> {after.busiest.moved:,.0f} bytes a step "
        f"({after.busiest.moved / before.busiest.moved - 1:+.1%})",
        f"~ the busiest server moves: {ratios[0]:.2f} -> {ratios[1]:.2f} of the mean "
        f"({ratios[1] / ratios[0] - 1:+.1%})",
        *(
            f"~ server {one.endpoint} holds: {old.held:,} -> {new.held:,} bytes ({new.held / old.held - 1:+.1%})"
            for one, old, new in zip(after.servers, before.machines[1:], after.machines[1:], strict=False)
        ),
        f"- server 127.0.0.1:6176 holds: {before.machines[3].held:,} bytes",
        f"~ a trainer's messages: {trainers[0].messages:.0f} -> {trainers[1].messages:.0f} "
        f"({trainers[1].messages / trainers[0].messages - 1:+.1%})",
    ]
    status, lines = against(folder, capfd, *two, "--cost", "--json")
    held = json.loads("\n".join(lines))
    assert (status, held["cost"]["before"]["servers"][0]["moved"]) == (1, before.servers[0].moved)
    assert held["cost"]["after"]["machines"][0]["peak"] == trainers[1].peak
    assert held["cost"]["changes"][0] == {
        "figure": "the busiest server moves",
        "before": before.busiest.moved,
        "after": after.busiest.moved,
        "unit": "bytes a step",
    }
    assert len(held["changes"]) == len(plain) - 1


def test_costs_that_do_not_change_or_compare(folder: Path, capfd: pytest.CaptureFixture[str]):
    same = against(folder, capfd, "--pservers", "3", *JOB[4:6], "--cost")
    assert same == (0, ["no changes", "", "the cost of a step is the same"])
    (folder / "net.ir").write_text(ps.dumps(net(Adam(0.01))))
    status, lines = against(folder, capfd, "--pservers", "3", *JOB[4:6], "--cost")
    assert (status, lines[0], lines[-2]) == (1, "~ the programs", "")
    assert lines[-1] == "the programs differ, so that costs can't be compared: out does not have its source"
    _, lines = against(folder, capfd, "--pservers", "3", *JOB[4:6], "--cost", "--json")
    costs = json.loads("\n".join(lines))["cost"]
    assert (costs["before"], costs["changes"], costs["after"]["mode"]) == (None, None, "sync")


@pytest.mark.parametrize(
    ("mode", "figure"), [("geo", "+ the busiest server moves"), ("ddp", "- the busiest server moves")]
)
def test_costs_of_another_mode(mode: str, figure: str, folder: Path, capfd: pytest.CaptureFixture[str]):
    servers = ["--pservers", "3", *JOB[4:6]] if mode == "geo" else []
    status, lines = against(folder, capfd, "--mode", mode, *servers, "--cost")
    assert (status, lines[0]) == (1, f"~ mode: sync -> {mode}")
    assert [line for line in lines if line.startswith(figure)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pservers=4..2"], "'4..2' is no number or range of numbers"),
        (["pservers=0"], "'0' is no number"),
        (["servers=2"], "give pservers=1..8 or trainers=2,4,8, each once"),
        (["pservers=1", "pservers=2"], "each once"),
        (["pservers=1..200", "trainers=1..200"], "40,000 combinations; at most 10,000 are compared"),
        (["pservers=1..2", "--cost"], "--sweep is for a job whose numbers of machines vary"),
        (["pservers=1..2", "-o", "x.plan"], "prints no plan"),
    ],
)
def test_wrong_usage_of_sweeps(words: list[str], said: str, folder: Path, capfd: pytest.CaptureFixture[str]):
    assert main(["plan", "net.ir", "--sweep", *words]) == 2
    assert said in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--histogram", "net.ir", "-o", "ids.json"], "which --feed names"),
        (["--histogram", "net.ir", "kept", "w", "--feed", "f.npz", "-o", "i.json"], "checkpoint is about a checkpoint"),
        (["kept", "w", "--feed", "f.npz", "-o", "rows"], "--feed names data"),
        (["kept", "-o", "rows"], "required: TABLE"),
        (["kept", "w", "-o", "rows.npz"], "is the name of a file"),
    ],
)
def test_wrong_usage_of_rows(words: list[str], said: str, folder: Path, capfd: pytest.CaptureFixture[str]):
    assert main(["rows", *words]) == 2
    assert said in capfd.readouterr().err


def test_ids_that_an_op_makes_are_not_counted(folder: Path, capfd: pytest.CaptureFixture[str]):
    model = L.Draft(seed=1)
    word = L.data(model, "word", [-1, 1], "int64")
    row = L.embedding(L.cast(L.cast(word, "float32"), "int64"), [40, 8], is_sparse=True)
    minimize(L.mean(row), Adagrad(0.1))
    (folder / "made.ir").write_text(ps.dumps(model.module()))
    np.savez(folder / "w.npz", word=np.zeros((2, 3, 1), "int64"))
    assert main(["rows", "--histogram", "made.ir", "--feed", "w.npz", "-o", "ids.json"]) == 1
    told = capfd.readouterr().err
    assert "warning[id-counts]: lookup_table: the ids of %embedding_0.w_0 are not fed but made" in told
    assert "looks up no rows at ids that it is fed" in told
    assert not (folder / "ids.json").exists()


def test_the_command_suggests(folder: Path, capfd: pytest.CaptureFixture[str]):
    words = ["plan", "net.ir", "--pservers", "3", "--trainers", "2", "--suggest"]
    assert main(words) == 0
    found = ps.suggest(net(), ps.Job(pservers=3, trainers=2))
    assert capfd.readouterr().out == f"{found}\n"
    assert main([*words, "--json"]) == 0
    held = json.loads(capfd.readouterr().out)
    assert [each["option"] for each in held["suggestions"]] == [each.option for each in found.suggestions]
    assert (held["moved"], held["memory"], held["tried"]) == (found.moved, found.memory, [*found.tried])
    assert main([*words, "--cost"]) == 2
    assert "--suggest is for a job whose settings vary" in capfd.readouterr().err


@pytest.mark.parametrize("trainers", [1, 2, 5])
def test_a_server_holds_an_answer_for_each_trainer(trainers: int):
    """It writes each one anew, and keeps it until that trainer has confirmed it; a trainer has its own alone."""
    model = L.Draft(seed=1)
    x = L.data(model, "x", [-1, 512])
    minimize(L.mean(L.fc(x, 512, bias_attr=False)), SGD(0.0))
    found = ps.cost(ps.compile(model.module(), ps.Job(pservers=1, trainers=trainers, batch_rows=4)))
    assert found.work is not None
    size = 4 * 512 * 512
    (trainer, server), steps = found.machines, found.work.steps
    assert server.peak - steps[1].peak == pytest.approx(trainers * size, rel=0.01)
    assert trainer.peak - steps[0].peak == pytest.approx(2 * size, rel=0.01)
