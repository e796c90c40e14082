"""`ps.why` and `pstranspile plan --why`: the reason for the place of a variable, and what other servers would cost."""

import json
from pathlib import Path
from typing import Any

import pytest

import pstranspile as ps
from pstranspile import layers as L
from pstranspile.autodiff import Adam, minimize
from pstranspile.tools.cli import main
from tests.recorded_fluid import source

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "golden"


def net() -> ps.Module:
    """Weights [4, 50] and [50, 1], and biases of 50 and 1 elements."""
    model = L.Draft(seed=1)
    hidden = L.fc(L.data(model, "x", [-1, 4]), 50, act="relu")
    minimize(L.mean(L.fc(hidden, 1)), Adam(0.1))
    return model.module()


def why(name: str, **given: Any) -> Any:
    return ps.why(ps.prepare(net(), ps.Job(**{"pservers": 3, "trainers": 2, **given})), name)


def test_numbers_of_a_parameter_that_is_dealt_out():
    found = why("fc_0.w_0")
    (part,) = found.slices
    assert (found.role, found.parameter, found.split_method, found.limit) == (
        *("parameter", "fc_0.w_0", "RoundRobin"),
        "min_block_size",
    )
    assert (part.start, part.stop, part.held, part.moved) == (0, 4, 800, 2 * 2 * 800)
    loads = {"fc_0.b_0": 200, "fc_0.w_0": 800, "fc_1.b_0": 4, "fc_1.w_0": 200}
    servers = {server: [n for k, n in enumerate(loads) if k % 3 == at] for at, server in enumerate("012")}
    assert servers == {"0": ["fc_0.b_0", "fc_1.w_0"], "1": ["fc_0.w_0"], "2": ["fc_1.b_0"]}
    assert part.endpoint == "127.0.0.1:6175"
    assert [(choice.endpoint[-1], choice.busiest, choice.held) for choice in part.choices] == [
        ("5", 4 * 800, 800),
        ("6", 4 * 804, 804),
        ("4", 4 * 1200, 1200),
    ]
    assert part.runner_up == part.choices[1]
    assert "costs did not matter to RoundRobin" in str(found)
    assert repr(found) == "<Placement of %fc_0.w_0: 1 slice, RoundRobin>"


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.ir")), ids=lambda path: path.stem)
@pytest.mark.parametrize("given", [{"min_block_size": 16}, {"split_method": "cost", "min_block_size": 16}], ids=str)
def test_alternatives_cost_what_the_edited_plan_costs(path: Path, given: dict[str, Any]):
    compiled = ps.prepare(ps.load(path), ps.Job(pservers=3, trainers=2, **given))
    text = str(compiled.plan)
    for parameter in compiled.plan.parameters[:6]:
        found = ps.why(compiled, parameter.name)
        for part in () if found.together else found.slices:
            assert part.choices[0].endpoint == part.endpoint
            for choice in part.choices:
                line = next(line for line in text.split("\n") if f"-> %{part.name} @" in line)
                edited = text.replace(line, line.replace(part.endpoint, choice.endpoint))
                moved = ps.prepare(compiled.source, compiled.job, plan=ps.parse_plan(edited))  # type: ignore[arg-type]
                costs = {server.endpoint: server for server in ps.cost(moved).servers}
                assert choice.busiest == pytest.approx(max(server.moved for server in costs.values()))
                assert choice.held == costs[choice.endpoint].held


@pytest.mark.parametrize(
    ("name", "given", "limit", "slices"),
    [
        ("fc_0.w_0", {}, "min_block_size", 1),
        ("fc_0.w_0", {"min_block_size": 70}, "min_block_size", 2),
        ("fc_0.w_0", {"min_block_size": 10}, "rows", 2),
        ("fc_1.w_0", {"min_block_size": 10}, "servers", 3),
        ("fc_1.w_0", {"min_block_size": 10, "pservers": 1}, "servers", 1),
        ("fc_1.w_0", {"min_block_size": 10, "slice_var_up": False}, "slice_var_up", 1),
        ("fc_1.w_0", {"min_block_size": 10, "slice_var_up": False, "mode": "geo"}, "servers", 3),
        ("fc_0.w_0", {"min_block_size": 10, "split_method": "cost", "pservers": 2}, "level", 2),
        ("fc_1.w_0", {"min_block_size": 26, "split_method": "cost"}, "min_block_size", 1),
        ("fc_1.b_0", {"min_block_size": 1}, "min_block_size", 1),
    ],
)
def test_the_constraint_that_decides(name: str, given: dict[str, Any], limit: str, slices: int):
    found = why(name, **given)
    assert (found.limit, len(found.slices)) == (limit, slices)
    assert f"({limit})" in str(found).split("\n")[2]


def test_rows_of_whole_rows_are_not_cut():
    model = L.Draft(seed=1)
    minimize(L.mean(L.fc(L.data(model, "x", [-1, 1]), 50)), Adam(0.1))
    found = ps.why(ps.prepare(model.module(), ps.Job(pservers=2, trainers=1, min_block_size=4)), "fc_0.w_0")
    assert (found.limit, found.limited) == ("rows", "it has 1 row, and rows are not cut")


def test_what_follows_a_parameter():
    given = {"min_block_size": 10}
    compiled = ps.prepare(net(), ps.Job(pservers=3, trainers=2, min_block_size=10))
    whole, part = compiled.plan.by_name["fc_1.w_0"], compiled.plan.by_name["fc_1.w_0"].slices[1]
    adam = next(op for op in compiled.source.main.main_block.ops if op.input("Param") == "fc_1.w_0")
    names = {
        part.name: "slice",
        whole.gradient: "gradient",
        part.gradient: "gradient",
        compiled.plan.sent_name(part, 1): "gradient",
        adam.input("Moment1"): "state",
        adam.input("Beta1Pow"): "state",
    }
    for name, role in names.items():
        assert name is not None
        found = why(f"%{name}", **given)
        assert (found.variable, found.parameter, found.role) == (name, "fc_1.w_0", role)
        assert len(found.slices) == (1 if name.startswith((part.name, part.gradient)) else 3)


def test_a_plan_that_was_edited():
    job = ps.Job(pservers=3, trainers=2)
    text = str(ps.prepare(net(), job).plan)
    line = next(line for line in text.split("\n") if line.startswith("whole %fc_0.w_0"))
    moved = text.replace(line, line.replace("6175", "6176"))
    (part,) = ps.why(ps.prepare(net(), job, plan=ps.parse_plan(moved)), "fc_0.w_0").slices
    assert (part.rule, part.reason) == ("plan", "the plan was edited: RoundRobin would take 127.0.0.1:6175")
    assert part.choices[1] == ("127.0.0.1:6175", 4 * 800, 800, True)
    cut = 'slice %fc_0.w_0 rows 0..1 @ "127.0.0.1:6174"\nslice %fc_0.w_0 rows 1..4 @ "127.0.0.1:6175"'
    found = ps.why(ps.prepare(net(), job, plan=ps.parse_plan(text.replace(line, cut))), "fc_0.w_0")
    assert (found.limit, [part.rule for part in found.slices]) == ("plan", ["plan", "plan"])
    assert "costs did not matter: the plan states the server" in str(found)


def test_the_memory_of_servers_is_a_limit():
    model = L.Draft(seed=1)
    row = L.embedding(L.data(model, "word", [-1, 1], "int64"), [40_000, 8], is_sparse=True)
    minimize(L.mean(row), Adam(0.1))
    given = {"pservers": 5, "trainers": 2, "split_method": "cost", "server_memory": 1, "min_block_size": 8}
    found = ps.why(ps.prepare(model.module(), ps.Job(**given)), "embedding_0.w_0")
    assert all(not choice.fits for part in found.slices for choice in part.choices[1:])
    assert all(part.runner_up is None for part in found.slices)
    assert "has no room" in str(found)


def test_parameters_that_must_be_together():
    compiled = ps.prepare(source("clip_global_norm"), ps.Job(pservers=2, trainers=2, min_block_size=16))
    (group,) = (group.parameters for group in compiled.plan.groups)
    first, second = (ps.why(compiled, name) for name in group[:2])
    assert (first.limit, first.slices[0].rule, second.slices[0].rule) == ("together", "RoundRobin", "together")
    assert set(second.together) == {*group} - {second.parameter}
    assert second.slices[0].reason == f"it must be on the server of %{group[0]}, with which its update is connected"
    text, (here, there) = str(compiled.plan), (choice.endpoint for choice in first.slices[0].choices)
    lines = [
        line.replace(here, there) if any(f"%{name} ->" in line for name in group) else line for line in text.split("\n")
    ]
    assert compiled.job is not None
    moved = ps.prepare(compiled.source, compiled.job, plan=ps.parse_plan("\n".join(lines)))
    assert first.slices[0].choices[1].busiest == second.slices[0].choices[1].busiest == ps.cost(moved).busiest.moved


def test_a_table_that_is_dealt_out_by_id():
    compiled = ps.prepare(ps.load(GOLDEN / "distributed_table.ir"), ps.Job(pservers=2, trainers=2))
    assert compiled.plan.table is not None
    found = ps.why(compiled, compiled.plan.table.name)
    assert (found.role, found.limit, found.slices) == ("table", "id", ())
    assert "row i is on server i modulo 2, whatever it costs" in str(found)


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("fc_0.w_1", {}, "there is no variable 'fc_0.w_1'; did you mean fc_0.w_0"),
        ("x", {}, "the plan does not place %x: it is no parameter, nor the gradient or optimizer state of one"),
        ("fc_0.w_0", {"pservers": None, "mode": "ddp"}, "mode ddp has no servers"),
    ],
)
def test_variables_on_no_server(name: str, given: dict[str, Any], said: str):
    with pytest.raises(LookupError, match=said):
        why(name, **given)


# The command.


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.ir").write_text(ps.dumps(net()))
    return ["plan", "net.ir", "--pservers", "3", "--trainers", "2"]


def test_the_command_prints_the_reasons(job: list[str], capfd: pytest.CaptureFixture[str]):
    assert main([*job, "--why", "fc_0.w_0"]) == 0
    assert capfd.readouterr().out == f"{why('fc_0.w_0')}\n"
    assert main([*job, "--why", "fc_0.w_0", "--json"]) == 0
    held = json.loads(capfd.readouterr().out)
    assert (held["version"], held["limit"], held["slices"][0]["choices"][0]["busiest"]) == (1, "min_block_size", 3200)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--why", "fc_0.w_1"], "--why: there is no variable 'fc_0.w_1'; did you mean fc_0.w_0"),
        (["--why", "fc_0.w_0", "--cost"], "--why asks for one variable"),
        (["--why", "fc_0.w_0", "-o", "x.plan"], "--why asks for one variable"),
        (["--why", "fc_0.w_0", "--sweep", "pservers=1..2"], "--why asks for one variable"),
    ],
)
def test_wrong_usage_of_why(words: list[str], said: str, job: list[str], capfd: pytest.CaptureFixture[str]):
    assert main([*job, *words]) == 2
    assert said in capfd.readouterr().err
