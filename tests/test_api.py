"""The names that `import pstranspile` offers."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pstranspile as ps


def test_every_public_name_is_there():
    for name in ps._API:
        assert getattr(ps, name) is not None
        assert name in dir(ps)


def test_dir_shows_the_interface_and_nothing_else():
    assert dir(ps) == sorted([*ps.__all__, "__version__"])


def test_the_page_of_the_interface_is_made_of_the_docstrings():
    code = "import interface; assert interface.PAGE.read_text(encoding='utf-8') == interface.page(), 'make generated'"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1] / "docs")


def test_unknown_name():
    assert not hasattr(ps, "transpile_everything")


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(ps.__file__).read_text())
    typed = {
        alias.asname or alias.name: f"{node.module.removeprefix('pstranspile.')}:{alias.name}"
        for branch in tree.body
        if isinstance(branch, ast.If)
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == ps._API
    assert ps.__all__ == sorted(ps._API)


def test_a_module_a_plan_and_a_result_print_as_one_line():
    module = ps.load(Path(__file__).parents[1] / "golden" / "mlp_adam.ir")
    result = ps.compile(module, ps.Job(pservers=2, trainers=2))
    shown = repr(module)
    ops = sum(len(block.ops) for block in module.main.blocks)
    assert f"mlp_adam.ir: @main {ops} ops, " in shown
    assert "; @startup " in shown
    assert repr(result.plan) == "<Plan sync, 2 trainers, 2 pservers: 4 parameters in 5 slices>"
    assert repr(result) == f"<Compiled {shown} for {result.plan!r}>"
    assert len(repr(result)) < 400
    assert repr(ps.Module()) == "<Module: no programs>"
    assert repr(result.trainer(0)).startswith("<Role trainer_0: @main ")
    assert str(result.plan).splitlines()[:3] == [
        "plan 1",
        f"source {result.fingerprint}",
        "job mode=sync trainers=2 pservers=" + str(list(result.plan.pservers)).replace("'", '"'),
    ]
    assert all("\n" not in repr(value) for value in (module, result, result.plan, result.trainer(0)))


def test_data_clusters_and_dispatchers_print_as_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("d.csv").write_text("f0,f1,y\n1,2,3\n")
    assert repr(ps.Data("d.csv", batch=4)) == "<Data of d.csv: batch 4>"
    data = ps.Data("d.csv", batch=4, epochs=2, shuffle=7, columns={"x": ["f0", "f1"]}, bad_rows="skip", separator=";")
    shown = "batch 4, 2 epochs, shuffle 7, separator ';', columns x=f0,f1, bad rows skipped"
    assert str(data) == f"<Data of d.csv: {shown}>"
    assert repr(ps.Rows([], batch=2)) == "<Rows of a list: batch 2>"
    assert "rows: batch 2, 3 epochs>" in repr(ps.Rows(_rows, batch=2, epochs=3))
    assert repr(ps.Dispatcher(["a:1", "b:2"])) == "<Dispatcher of 2 servers>"
    module = ps.load(Path(__file__).parents[1] / "examples" / "regression.ir")
    feeds = {"x": np.ones((1, 2, 1000), np.float32), "y": np.zeros((1, 2, 20), np.float32)}
    done = ps.simulate(ps.compile(module, ps.Job(pservers=1, trainers=2)), feeds)
    assert repr(done.cluster) == "<Cluster of 2 trainers, 1 server>"


def test_no_value_prints_its_address():
    classes = [value for name in ps.__all__ if inspect.isclass(value := getattr(ps, name))]
    assert [one for one in classes if one.__repr__ is object.__repr__] == []


def _rows() -> list[dict[str, object]]:
    return []


def test_export_is_what_load_takes(tmp_path):
    module = ps.load(Path(__file__).parents[1] / "golden" / "mlp_adam.ir")
    ps.export(module, tmp_path / "pb")
    again = ps.load(tmp_path / "pb/main.pb", startup=tmp_path / "pb/startup.pb", meta=tmp_path / "pb/meta.json")
    assert again == module
    with pytest.raises(TypeError, match="export takes a Module, not a value of type Program"):
        ps.export(module.main, tmp_path)


def test_a_simulation_prints_a_summary():
    module = ps.load(Path(__file__).parents[1] / "examples" / "regression.ir")
    feeds = {"x": np.ones((3, 4, 1000), np.float32), "y": np.zeros((3, 4, 20), np.float32)}
    done = ps.simulate(ps.compile(module, ps.Job(pservers=2, trainers=2)), feeds, fetch=["loss", "error"])
    first, last = (done.fetched[0]["loss"][step].item() for step in (0, -1))
    assert repr(done) == "<Simulated: 2 trainers, 3 steps; fetched error, loss; 2 parameters>"
    lines = str(done).splitlines()
    assert lines[0] == repr(done)[1:-1]
    assert f"  trainer_0 loss: {first:.6g} to {last:.6g}" in lines
    assert "  trainer_1 error: float32[2, 20]" in lines
    assert "  w: float32[1000, 20]" in lines
    assert first != last


def test_a_simulation_that_fetched_nothing_prints_a_summary():
    module = ps.load(Path(__file__).parents[1] / "examples" / "regression.ir")
    feeds = {"x": np.ones((1, 2, 1000), np.float32), "y": np.zeros((1, 2, 20), np.float32)}
    done = ps.simulate(ps.compile(module, ps.Job(pservers=1, trainers=1)), feeds)
    assert repr(done) == "<Simulated: 1 trainer, 1 step; 2 parameters>"
    rows = ps.SelectedRows(np.array([3, 5]), np.ones((2, 4), np.float32), 10)
    ragged = ps.LoDTensor(np.ones((3, 2)), [[0, 1, 3]])
    mixed = done._replace(fetched=({"rows": [rows], "ragged": [ragged], "none": [None]},))
    assert "  trainer_0 rows: 2 rows of height 10, float32[4] each" in str(mixed).splitlines()
    assert "  trainer_0 ragged: float64[3, 2]" in str(mixed).splitlines()
    assert "  trainer_0 none: nothing" in str(mixed).splitlines()


def test_nodes_of_the_op_graph_carry_their_ops():
    program = ps.load(Path(__file__).parents[1] / "examples" / "regression.ir").main
    ops = program.main_block.ops
    graph = ps.op_graph(program, range(len(ops)))
    assert [graph.nodes[index]["op"] for index in graph] == list(ops)
    assert [graph.nodes[index]["type"] for index in graph] == [op.type for op in ops]


@pytest.mark.parametrize("indices", [[3, 1], [1, 1], [99], [-1, 0]])
def test_an_op_graph_of_no_ops_is_refused(indices: list[int]):
    program = ps.load(Path(__file__).parents[1] / "examples" / "regression.ir").main
    with pytest.raises(ValueError, match="op_graph takes numbers of ops in ascending order, from 0 to 12"):
        ps.op_graph(program, indices)


@pytest.mark.parametrize("kind", ["error", "warning"])
def test_a_finding_is_placed_by_the_origin_of_an_op(kind: str):
    from pstranspile.ir import diagnostics

    path = str(Path(__file__).parents[1] / "examples" / "regression.ir")
    op = ps.load(path).main.main_block.ops[2]
    finding = getattr(diagnostics, kind)("shape-mismatch", "dims differ", op.origin, focus="%y")
    assert finding == getattr(diagnostics, kind)("shape-mismatch", "dims differ", op.location, focus="%y")._replace(
        subject="@main^0#2"
    )
    shown = diagnostics.render([finding], {path: Path(path).read_text()})
    assert shown.startswith(f"{path}:{op.location.line}:")
    assert "elementwise_sub(X=%prediction, Y=%y)" in shown
    placeless = getattr(diagnostics, kind)("shape-mismatch", "dims differ", op.origin._replace(location=None))
    assert diagnostics.render([placeless]) == f"@main^0#2: {kind}[shape-mismatch]: dims differ"
    with pytest.raises(TypeError, match=r"not a value of type Op; op.origin is that of an op"):
        getattr(diagnostics, kind)("shape-mismatch", "dims differ", op)
    with pytest.raises(TypeError, match="not a value of type str"):
        getattr(diagnostics, kind)("shape-mismatch", "dims differ", "net.ir:3")


def test_a_report_prints_as_check_does():
    module = ps.load(Path(__file__).parents[1] / "examples" / "regression.ir")
    report = ps.check(module, ps.Job(pservers=2, trainers=2), steps=1)
    lines = str(report).splitlines()
    assert lines[:2] == ["the cluster trains as the single machine does", "mode sync, 2 trainers, 2 servers, 1 step"]
    assert isinstance(report, ps.Report)
