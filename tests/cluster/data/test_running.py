"""Programs are fed rows: by run, by launch, from Python, and on from a checkpoint."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.tools.cli import main
from tests.cluster.data.tables import clicks, data, module, rows, write

pytest.importorskip("pyarrow", reason="files of columns are read by pyarrow")

Place = Callable[..., list[str]]


@pytest.fixture
def job(tmp_path: Path) -> list[str]:
    """A program, and 60 rows of which a step takes 8."""
    (tmp_path / "net.ir").write_text(ps.dumps(module()))
    path = write(tmp_path / "x.parquet", rows(60))
    return [str(tmp_path / "net.ir"), "--feed", path, "--columns", "dense=a,b", "--batch", "8", "--shuffle", "3"]


def parameters(path: Path) -> dict[str, Any]:
    with np.load(path) as arrays:
        return {name: arrays[name] for name in arrays.files if name.startswith("param/")}


def require_equal(one: Path, other: Path) -> None:
    expected, made = parameters(one), parameters(other)
    assert made
    assert made.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(made[name], value, err_msg=name)


def test_processes_take_the_rows_that_the_simulation_takes(job: list[str], tmp_path: Path):
    cluster = [*job, "--pservers", "2", "--trainers", "2", "--epochs", "2"]
    assert main(["run", *cluster, "--save", str(tmp_path / "run.npz")]) == 0
    assert main(["launch", *cluster, "--save", str(tmp_path / "launch.npz")]) == 0
    require_equal(tmp_path / "run.npz", tmp_path / "launch.npz")


@pytest.mark.parametrize("cluster", [[], ["--pservers", "2", "--trainers", "2"]])
def test_a_run_goes_on_at_the_right_row(job: list[str], cluster: list[str], tmp_path: Path):
    kept = str(tmp_path / "kept")
    assert main(["run", *job, *cluster, "--save", str(tmp_path / "straight.npz")]) == 0
    assert main(["run", *job, *cluster, "--steps", "3", "--checkpoint", kept]) == 0
    assert main(["run", *job, *cluster, "--resume", kept, "--save", str(tmp_path / "resumed.npz")]) == 0
    require_equal(tmp_path / "straight.npz", tmp_path / "resumed.npz")


def test_other_trainers_take_what_is_left(tmp_path: Path):
    path = write(tmp_path / "x.parquet", rows(60))
    result = ps.compile(module(), ps.Job(pservers=["a:1"], trainers=2))
    fed: list[float] = []

    def taking(source: ps.Data) -> ps.Data:
        give = source.feeds

        def feeds(programs: Any) -> Any:
            given, steps = give(programs)

            def of(feed: Any) -> Any:
                def taken(step: int) -> Any:
                    batch = feed(step)
                    fed.extend([] if batch is None else batch["click"].ravel().tolist())
                    return batch

                return taken

            return [of(feed) for feed in given], steps

        source.feeds = feeds  # pyright: ignore
        return source

    kept = tmp_path / "kept"
    from pstranspile.cluster.checkpoint.api import CheckpointedRun

    first = CheckpointedRun(result, None, str(kept))
    ps.simulate(result, taking(data(path, shuffle=3)), 3, run=first.run)
    wider = ps.compile(module(), ps.Job(pservers=["a:1"], trainers=5))
    source = data(path, shuffle=3)
    monkey = source.continued
    source.continued = lambda *given: taking(monkey(*given))  # pyright: ignore
    ps.simulate(wider, source, 8, run=CheckpointedRun(wider, str(kept), None).run, seed=first.seed)
    assert sorted(fed) == [float(number) for number in range(60)]


def test_a_checkpoint_of_other_rows_is_refused(job: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    kept = str(tmp_path / "kept")
    assert main(["run", *job, "--steps", "2", "--checkpoint", kept]) == 0
    job[job.index("--batch") + 1] = "4"
    assert main(["run", *job, "--resume", kept]) == 1
    told = "error[data-source]: the run that goes on was fed"
    assert f"{told} with --batch 8, now it is with --batch 4\n" in capsys.readouterr().err
    job[job.index("--shuffle") + 1] = "4"
    assert main(["run", *job, "--resume", kept]) == 1
    assert "now it is with --batch 4; with --shuffle 3, now it is with --shuffle 4\n" in capsys.readouterr().err


def test_another_file_than_before_is_named(tmp_path: Path):
    path, other = write(tmp_path / "x.csv", rows(8)), write(tmp_path / "y.csv", rows(9))
    before = data(path).dealing(1)
    sizes = [f"{name} ({(tmp_path / name).stat().st_size} bytes)" for name in ("x.csv", "y.csv")]
    with pytest.raises(ps.DiagnosticError, match="was fed ") as caught:
        data(other).continued(before, 1, 1)
    assert f"was fed {sizes[0]}, now it is {sizes[1]}" in str(caught.value)
    with pytest.raises(ps.DiagnosticError, match="was fed 1 file, now there are 2"):
        data([path, other]).continued(before, 1, 1)
    with pytest.raises(ps.DiagnosticError, match="was fed 2 files, now there are 1"):
        data(path).continued(data([path, other]).dealing(1), 1, 1)
    earlier = before._replace(settings=())  # as checkpoints of earlier versions say it
    with pytest.raises(ps.DiagnosticError, match="was fed other files, or in other steps"):
        data(other).continued(earlier, 1, 1)
    assert data(path).continued(earlier, 1, 1).dealing(1) == before


@pytest.mark.parametrize("verb", ["run", "launch"])
def test_rows_that_are_left_out_are_told(job: list[str], verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    given = rows(20)
    given[4]["b"] = None
    path = write(tmp_path / "bad.parquet", given)
    job[job.index("--feed") + 1] = path
    assert main([verb, *job, "--pservers", "1", "--trainers", "2", "--bad-rows", "skip"]) == 0
    assert f"{path}: warning[data-row]: row 5 is left out: b has no value" in capsys.readouterr().err


def test_data_is_for_processes_with_other_working_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    sent = pickle.dumps(data(write(Path("x.jsonl"), rows(16))))
    monkeypatch.chdir("/")
    assert clicks(pickle.loads(sent)) == [[[*map(float, range(8))]], [[*map(float, range(8, 16))]]]


def test_rows_that_come_once_stay_in_their_process():
    assert pickle.loads(pickle.dumps(ps.Rows(rows(4), batch=2))).batch == 2
    with pytest.raises(ps.DiagnosticError, match="only once stay in their process; give a function that returns them"):
        pickle.dumps(ps.Rows(iter(rows(4)), batch=2))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--feed", "x.parquet"], "x.parquet holds rows; --batch N says how many"),
        (["--feed", "x.npz", "--batch", "4"], "--batch is about rows; x.npz holds arrays"),
        (["--epochs", "2"], "--epochs is about rows, and --feed names none"),
        (["--feed", "x.csv", "--batch", "4", "--columns", "x"], "--columns x: give it as INPUT=COLUMN,COLUMN"),
        (
            ["--feed", "x.csv", "--batch", "4", "--columns", "x=a", "--columns", "x=b"],
            "--columns x=a: the columns of x are given twice",
        ),
    ],
)
@pytest.mark.parametrize("verb", ["run", "launch"])
def test_options_that_do_not_go_together(verb: str, options: list[str], told: str, capsys: pytest.CaptureFixture[str]):
    assert main([verb, "net.ir", *options]) == 2
    assert told in capsys.readouterr().err


def test_more_steps_than_rows(job: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(["run", *job, "--steps", "9"]) == 1
    assert main(["run", *job, "--steps", "9", "--trainers", "2", "--pservers", "1"]) == 1
    for on in (["local"], ["ray", "--cpus", "0.5"]):
        assert main(["launch", *job, "--steps", "9", "--trainers", "2", "--pservers", "1", "--on", *on]) == 1
    assert capsys.readouterr().err.count("the rows are enough for 8 steps, 9 are asked for") == 4


def test_programs_that_take_turns_are_not_fed_rows(job: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(["run", *job, "--program", "main*2"]) == 1
    assert "rows are fed to one program" in capsys.readouterr().err


def test_rows_of_python_are_those_of_files(tmp_path: Path):
    result = ps.compile(module(), ps.Job(pservers=["a:1"], trainers=1))
    given = [{"ids": row["ids"], "dense": [row["a"], row["b"]], "click": row["click"]} for row in rows(20)]
    path = write(tmp_path / "x.parquet", rows(20))
    files = ps.simulate(result, data(path, epochs=2)).parameters
    for source in (given, lambda: iter(given)):
        made = ps.simulate(result, ps.Rows(source, batch=8, epochs=2)).parameters
        assert all(np.array_equal(made[name], value) for name, value in files.items())


def test_rows_of_python_are_divided(tmp_path: Path):
    given = [{"ids": [1], "dense": [0, 0], "click": number} for number in range(11)]
    fed = [share for step in clicks(ps.Rows(given, batch=4), 2, range(3)) for share in step]  # pyright: ignore
    assert fed == [[0, 1], [2, 3], [4, 5], [6, 7], [8], [9, 10]]
    once = ps.Rows(iter(given), batch=4)
    feeds, _ = once.feeds([module().main])
    assert [feeds[0](step) is None for step in (0, 1, 2, 3)] == [False, False, False, True]
    with pytest.raises(ps.DiagnosticError, match="could be iterated over only once"):
        feeds[0](0)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"dense": [1, 2], "click": 1}, "row 3 can't be fed: it has no ids"),
        ({"ids": [0.5], "dense": [1, 2], "click": 1}, "ids is int64 of dims [1]: 0.5 is no whole number"),
        ({"ids": [1], "dense": [1], "click": 1}, "dense is float32 of dims [2]: the value has 1 number, a row takes 2"),
    ],
)
def test_rows_of_python_that_can_not_be_fed(row: dict[str, Any], told: str):
    good = {"ids": [1], "dense": [1, 2], "click": 1}
    feeds, _ = ps.Rows([good, good, row], batch=2).feeds([module().main])
    feeds[0](0)
    with pytest.raises(ps.DiagnosticError) as caught:
        feeds[0](1)
    assert told in str(caught.value)
