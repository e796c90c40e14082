"""Folders that do not hold the machines of one job, and what a geo job is told beside its programs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pstranspile.cluster.net.job import load_job_folder
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.tools.cli import main

EXAMPLES = Path(__file__).parents[3] / "examples"
JOBS = {
    "sync": ["--pservers", "2", "--trainers", "2"],
    "three": ["--pservers", "3", "--trainers", "2"],
    "async": ["--pservers", "2", "--trainers", "2", "--mode", "async"],
    "geo": ["--pservers", "2", "--trainers", "2", "--mode", "geo", "--set", "geo_sgd_need_push_nums=7"],
    "grad": ["--trainers", "a:1,b:1", "--mode", "grad-allreduce"],
    "local": ["--trainers", "a:1,b:1", "--mode", "local-sgd"],
}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jobs")
    for name, options in JOBS.items():
        assert main(["compile", str(EXAMPLES / "regression.ir"), *options, "-o", str(folder / name)]) == 0
    return folder


@pytest.fixture
def copied(jobs: Path, tmp_path: Path) -> Callable[..., Path]:
    """Copies a job; `files` come from another one."""

    def copy(job: str, other: str = "", *files: str) -> Path:
        folder = tmp_path / "job"
        shutil.copytree(jobs / job, folder)
        for file in files:
            shutil.copy(jobs / other / file, folder / file)
        return folder

    return copy


def refusal(folder: Path, push_every: int | None = None) -> str:
    with pytest.raises(DiagnosticError) as found:
        load_job_folder(folder, push_every)
    return str(found.value)


def test_a_plan_of_more_machines_than_a_message_names(copied: Callable[..., Path]) -> None:
    folder = copied("sync")
    plan = json.loads((folder / "plan.json").read_text())
    (folder / "plan.json").write_text(json.dumps({**plan, "trainers": 10**18}))
    assert "the programs of 2 trainers are there, and plan.json says that there are 1,000,000,000" in refusal(folder)


@pytest.mark.parametrize("job", JOBS)
def test_whole_jobs_are_taken(job: str, jobs: Path) -> None:
    assert load_job_folder(jobs / job).push_every == (7 if job == "geo" else 100)


def test_a_folder_of_other_programs_is_no_job() -> None:
    assert "this is no job: ctr_dnn, deepfm, " in refusal(EXAMPLES)


@pytest.mark.parametrize("plan", [True, False])
@pytest.mark.parametrize("lost", ["trainer_0", "trainer_1", "pserver_0"])
def test_a_machine_that_is_missing_is_named(lost: str, plan: bool, copied: Callable[..., Path]) -> None:
    folder = copied("sync")
    (folder / f"{lost}.ir").unlink()
    if plan:
        assert f"the programs of {lost} are missing" in refusal(folder)
        return
    (folder / "plan.json").unlink()
    if lost == "trainer_1":  # then it may be a job of one trainer, until programs say that it is not
        with pytest.raises(DiagnosticError, match="pserver_0 waits for 2 trainers, but there is 1"):
            load_job_folder(folder).cluster().require_sound()
    else:
        assert f"the programs of {lost} are missing" in refusal(folder)


@pytest.mark.parametrize(
    ("job", "other", "files", "says"),
    [
        ("sync", "async", ["pserver_0.ir", "pserver_1.ir"], "goes to '127.0.0.1:6174', which does not expect it"),
        ("sync", "geo", ["pserver_0.ir", "pserver_1.ir"], "no server waits for it"),
        ("geo", "sync", ["trainer_1.ir"], "error[link-barrier]"),
        ("sync", "three", ["pserver_0.ir"], "'127.0.0.1:6174' does not hold %w.block1"),
        ("sync", "three", ["pserver_2.ir"], "the job has no pserver_2: plan.json says which machines there are"),
        ("grad", "local", ["trainer_0.ir"], "in trainer_0 c_allreduce_sum of %b"),
    ],
)
def test_machines_of_two_jobs_are_told_apart(
    job: str, other: str, files: list[str], says: str, copied: Callable[..., Path]
) -> None:
    assert says in refusal(copied(job, other, *files))


@pytest.mark.parametrize(
    "text",
    ["", '{"version": 1, "so', "[]", '{"trainers": 2}', '{"trainers": true, "pservers": ["a", "b"]}', "\udcff",
     '{"trainers": 2, "pservers": ["a", "b"], "geo": {"need_push_nums": "x"}}', "[" * 100_000],
)  # fmt: skip
def test_a_damaged_plan_is_refused(text: str, copied: Callable[..., Path]) -> None:
    folder = copied("geo")
    (folder / "plan.json").write_bytes(text.encode(errors="surrogateescape"))
    assert "plan.json: error[start-folder]: " in refusal(folder)


@pytest.mark.parametrize(("lost", "left"), [("startup", "main"), ("main", "startup")])
def test_half_of_the_programs_of_a_machine(lost: str, left: str, tmp_path: Path) -> None:
    command = ["compile", str(EXAMPLES / "regression.ir"), *JOBS["sync"], "--emit", "pb", "-o", str(tmp_path)]
    assert main(command) == 0
    load_job_folder(tmp_path)
    (tmp_path / f"trainer_0.{lost}.pb").unlink()
    assert f"trainer_0.{left}.pb: error[start-folder]: the programs of trainer_0 lack @{lost}" in refusal(tmp_path)


def test_how_often_geo_trainers_exchange_is_an_option_without_a_plan(copied: Callable[..., Path]) -> None:
    """It is part of what the processes agree on."""
    folder = copied("geo")
    assert "this job was compiled with geo_sgd_need_push_nums=7" in refusal(folder, 5)
    plan = json.loads((folder / "plan.json").read_text())
    assert plan["geo"]["need_push_nums"] == 7
    (folder / "plan.json").unlink()
    usual, given = load_job_folder(folder), load_job_folder(folder, 5)
    assert (usual.push_every, given.push_every) == (100, 5)
    assert usual.hash != given.hash
    assert given.cluster().settings.push_every == 5


@pytest.mark.parametrize("job", ["sync", "async", "grad"])
def test_other_jobs_have_no_such_option(job: str, jobs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["start", str(jobs / job), "--role", "trainer_0", "--push-every", "5"]) == 1
    assert "--push-every is for jobs in mode geo, which this is not" in capsys.readouterr().err


def test_a_program_says_it_in_its_job(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["launch", str(EXAMPLES / "regression.ir"), *JOBS["geo"], "--push-every", "5"]
    assert main(command) == 2
    assert "of a program, --set geo_sgd_need_push_nums=N says it" in capsys.readouterr().err
