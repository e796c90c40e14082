"""Values that single machines have for themselves, and tables."""

import itertools
from pathlib import Path

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.checkpoint.api import load_checkpoint, save_checkpoint
from pstranspile.cluster.checkpoint.layout import layout_of
from pstranspile.cluster.checkpoint.manifest import TABLES
from pstranspile.cluster.checkpoint.persistables import load_persistables, save_persistables
from pstranspile.cluster.checkpoint.state import dense, gather, merge_table_parts, shared_out
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, minimize
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.runtime.values.encoding import read_selected_rows, write_values
from tests.cluster.checkpoint.jobs import codes, everything, job, machines, started

POWER = "fc_0.w_0_beta1_pow_acc_0"


def test_only_what_differs_is_kept_per_machine():
    cluster = started(job(2, 3), 2)
    state = gather(layout_of(job(2, 3)), machines(cluster))
    own = {(copy.part.machine, copy.part.name) for copy in state.copies}
    statistics = {f"batch_norm_0.w_{n}" for n in (1, 2)}
    assert own == {(f"trainer_{i}", name) for i in (1, 2) for name in statistics}


def test_values_of_servers_that_differ(tmp_path: Path):
    """In asynchronous training a server may have counted more updates than another."""
    cluster = started(job(2, 2), 2)
    live = machines(cluster)
    holders = [name for name in ("pserver_0", "pserver_1") if POWER in live[name]]
    assert len(holders) == 2
    live["pserver_1"][POWER] = np.array([0.25], "float32")
    save_checkpoint(live, job(2, 2), tmp_path / "c")
    same = machines(started(job(2, 2)))
    load_checkpoint(same, job(2, 2), tmp_path / "c")
    assert float(same["pserver_1"][POWER][0]) == 0.25
    assert same["pserver_0"][POWER].tobytes() == live["pserver_0"][POWER].tobytes()
    other = machines(started(job(3, 2)))  # who had counted more is gone: all get the first server's
    load_checkpoint(other, job(3, 2), tmp_path / "c")
    found = {scope[POWER].tobytes() for name, scope in other.items() if name.startswith("ps") and POWER in scope}
    assert found == {live["pserver_0"][POWER].tobytes()}


def test_a_trainers_own_old_parameters(tmp_path: Path):
    """A trainer that has not fetched lately goes on with what it had."""
    cluster = started(job(2, 2), 2)
    live = machines(cluster)
    live["trainer_1"]["fc_0.b_0"] = np.full(10, 5, "float32")
    save_checkpoint(live, job(2, 2), tmp_path / "c")
    again = machines(started(job(3, 2)))
    load_checkpoint(again, job(3, 2), tmp_path / "c")
    assert again["trainer_1"]["fc_0.b_0"].tolist() == [5] * 10
    assert again["trainer_0"]["fc_0.b_0"].tobytes() == live["trainer_0"]["fc_0.b_0"].tobytes()


def test_negative_zero_and_nan_are_kept(tmp_path: Path):
    live = machines(started(job(2, 2, "sgd")))
    odd = np.array([0x7FC00001, 0x80000000, *range(8)], "uint32").view("float32")
    for trainer in ("trainer_0", "trainer_1"):
        live[trainer]["fc_0.b_0"] = odd
    for form in ("files", "combined", "safetensors"):
        save_checkpoint(live, job(2, 2, "sgd"), tmp_path / form, format=form)
        again = machines(started(job(2, 2, "sgd")))
        load_checkpoint(again, job(2, 2, "sgd"), tmp_path / form)
        assert again["trainer_1"]["fc_0.b_0"].tobytes() == odd.tobytes()


# Tables


def rows(ids: list[int], height: int, room: int = 0) -> ps.SelectedRows:
    value = np.array([[10 * i, 10 * i + 1] for i in ids] + [[-1, -1]] * room, "float32").reshape(-1, 2)
    return ps.SelectedRows(np.array(ids, "int64"), value, height)


def test_a_table_is_shared_out_anew():
    table = merge_table_parts("t", [rows([4, 0], 5, room=3), rows([7, 1], 5)])
    assert table.rows.tolist() == [0, 1, 4, 7]
    assert table.value[:, 0].tolist() == [0, 10, 40, 70]
    three = list(shared_out(table, 3))
    assert [part.rows.tolist() for part in three] == [[0], [1, 4, 7], []]
    assert [part.height for part in three] == [4, 3, 3]
    back = merge_table_parts("t", three)
    assert all(np.array_equal(a, b) for a, b in zip(table, back, strict=True))
    assert dense(table, 6)[:, 0].tolist() == [0, 10, 0, 0, 40, 0]


@pytest.mark.parametrize("counts", list(itertools.product((1, 2, 3, 5), repeat=2)))
def test_sharing_out_loses_nothing(counts: tuple[int, int]):
    ids = np.random.RandomState(1).permutation(100)[:37]
    table = ps.SelectedRows(np.sort(ids), np.sort(ids)[:, None] * np.ones((1, 3), "float32"), 100)
    for count in counts:
        table = merge_table_parts("t", list(shared_out(table, count)))
    assert table.rows.tolist() == sorted(ids.tolist())
    assert np.array_equal(table.value[:, 0], table.rows)


def test_parts_that_do_not_fit_together():
    for parts, reason in (
        ([rows([0], 5), rows([2], 5)], "id 2 is in part 1 of 2"),
        ([rows([0, 2, 0], 5), rows([1], 5)], "id 0 is there twice"),
    ):
        with pytest.raises(DiagnosticError, match=reason) as problem:
            merge_table_parts("t", parts)
        assert codes(problem.value) == {"checkpoint-table"}


def table_job(servers: int) -> ps.Compiled:
    draft = L.Draft(seed=3)
    ids, y = L.data(draft, "ids", [-1, 1], dtype="i64"), L.data(draft, "y", [-1, 1])
    looked_up = L.embedding(ids, [40, 2], is_sparse=True, is_distributed=True)
    minimize(L.mean(L.square_error_cost(L.fc(looked_up, 1), y)), SGD(0.1))
    return ps.compile(draft.module(), ps.Job([f"s{n}:1" for n in range(servers)], 2))


def table_machines(servers: int) -> dict[str, ps.Scope]:
    """What the machines of a job with a distributed table hold; some rows have been looked up."""
    compiled = table_job(servers)
    scopes: dict[str, ps.Scope] = {}
    for number, endpoint in enumerate(compiled.plan.pservers):
        scope = scopes[f"pserver_{number}"] = ps.Scope()
        ps.run(compiled.pserver(endpoint).startup, scope=scope)
        mine = [i for i in (3, 38, 0, 21, 8) if i % servers == number]
        capacity = -(-40 // servers)
        scope["embedding_0.w_0"] = rows(mine, capacity, room=capacity - len(mine))
    for number in (0, 1):
        scope = scopes[f"trainer_{number}"] = ps.Scope()
        for name in ("fc_0.w_0", "fc_0.b_0"):
            held = next(s[name] for machine, s in scopes.items() if machine.startswith("ps") and name in s)
            scope[name] = held
    return scopes


def looked_up(scopes: dict[str, ps.Scope]) -> dict[int, float]:
    tables = [scope["embedding_0.w_0"] for name, scope in scopes.items() if name.startswith("ps")]
    return {int(i): float(value[0]) for t in tables for i, value in zip(t.rows, t.value[: len(t.rows)], strict=True)}


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("fluid", [False, True], ids=["checkpoint", "persistables"])
def test_a_distributed_table(servers: int, fluid: bool, tmp_path: Path):
    live = table_machines(2)
    if fluid:
        save_persistables(live, table_job(2), tmp_path / "c")
    else:
        save_checkpoint(live, table_job(2), tmp_path / "c")
    assert sorted(path.name for path in (tmp_path / "c" / TABLES).iterdir()) == [f"embedding_0.w_0_{n}" for n in (0, 1)]
    again = table_machines(servers)
    for name in again:
        if name.startswith("ps"):
            again[name]["embedding_0.w_0"] = rows([], -(-40 // servers), room=-(-40 // servers))
    (load_persistables if fluid else load_checkpoint)(again, table_job(servers), tmp_path / "c")
    assert looked_up(again) == {i: 10.0 * i for i in (3, 38, 0, 21, 8)}
    for number in range(servers):
        table = again[f"pserver_{number}"]["embedding_0.w_0"]
        assert all(i % servers == number for i in table.rows)
        assert len(table.value) == -(-40 // servers), "no room for rows to come"
    if servers == 2:
        for name in ("pserver_0", "pserver_1"):
            want, found = live[name]["embedding_0.w_0"], again[name]["embedding_0.w_0"]
            assert all(np.array_equal(a, b) for a, b in zip(want, found, strict=True))


def test_parts_of_a_table_exchanged_or_missing(tmp_path: Path):
    live = table_machines(2)
    save_persistables(live, table_job(2), tmp_path)
    one, other = (tmp_path / TABLES / f"embedding_0.w_0_{n}" for n in (0, 1))
    first = read_selected_rows(one)
    before = everything(live)
    write_values(one, read_selected_rows(other))
    write_values(other, first)
    with pytest.raises(DiagnosticError) as problem:
        load_persistables(live, table_job(2), tmp_path)
    assert codes(problem.value) == {"checkpoint-table"}
    one.unlink()
    with pytest.raises(DiagnosticError, match="parts 1 only"):
        load_persistables(live, table_job(2), tmp_path)
    other.unlink()
    with pytest.raises(DiagnosticError, match="no part"):
        load_persistables(live, table_job(2), tmp_path)
    assert everything(live) == before


# Names


@pytest.mark.parametrize(
    "name", ["../w", "/w", "a/../w", "a//w", "__manifest__.json", "__machines__/w", "w\\..\\x", ""]
)
def test_names_that_can_not_be_files(name: str, tmp_path: Path):
    from pstranspile.cluster.checkpoint.manifest import require_names

    with pytest.raises(DiagnosticError) as problem:
        require_names([name], [name], str(tmp_path))
    assert codes(problem.value) == {"checkpoint-name"}


def test_a_variable_of_a_name_that_leads_away(tmp_path: Path):
    draft = L.Draft(seed=1)
    x, y = L.data(draft, "x", [-1, 2]), L.data(draft, "y", [-1, 1])
    out = L.fc(x, 1, param_attr="../w", bias_attr=False)
    minimize(L.mean(L.square_error_cost(out, y)), SGD(0.1))
    module, scope = draft.module(), ps.Scope()
    ps.run(module["startup"], scope=scope)
    with pytest.raises(DiagnosticError) as problem:
        save_checkpoint(scope, module, tmp_path / "c")
    assert codes(problem.value) == {"checkpoint-name"}
    assert not list(tmp_path.iterdir())
    save_checkpoint(scope, module, tmp_path / "c", format="safetensors")  # names are no paths there
    again = ps.Scope()
    load_checkpoint(again, module, tmp_path / "c")
    assert again["../w"].tobytes() == scope["../w"].tobytes()


def test_a_file_that_would_be_a_folder_too(tmp_path: Path):
    from pstranspile.cluster.checkpoint.manifest import require_names

    with pytest.raises(DiagnosticError, match="a file and a folder"):
        require_names(["fc", "fc/w"], [], str(tmp_path))
    with pytest.raises(DiagnosticError, match="two things need this file"):
        require_names(["fc", "fc"], [], str(tmp_path))
