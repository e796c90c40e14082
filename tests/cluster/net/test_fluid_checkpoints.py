"""Checkpoints that servers of Fluid's trainers leave: folders like all others, also after they were killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.checkpoint.layout import layout_of
from pstranspile.cluster.checkpoint.runs import SharedTarget, Target, newest
from pstranspile.cluster.checkpoint.store import read_checkpoint, read_manifest
from pstranspile.cluster.net.job import load_job_folder
from pstranspile.cluster.net.parts import MachineState, write_part
from pstranspile.cluster.net.server_checkpoints import CheckpointPlan, SaveFolder, of_servers, put_together
from pstranspile.fluid.net.message import BATCH_BARRIER_NAME, FETCH_BARRIER_NAME
from pstranspile.runtime.values.encoding import read_selected_rows, write_file
from pstranspile.tools.cli import main
from tests.cluster.net.fluid_job import FLUID, TABLE, Job
from tests.cluster.net.test_fluid_service import PROGRAM, Served, Trainer, named

SLICE = np.full((500, 20), 0.5, "float32")


class Connected:
    """A trainer, connected with two servers: of the first one it has `w.block1` and `b`, of the other `w.block0`."""

    def __init__(self, served: Served, index: int = 0):
        self.first, self.second = (Trainer(address, index) for address in served.addresses)

    def starts(self) -> Any:
        self.first.get("b")
        w = np.concatenate([self.second.get("w.block0"), self.first.get("w.block1")])
        self.fetched()
        return w

    def fetched(self) -> None:
        for server in (self.first, self.second):
            server.barrier("GetVariable", FETCH_BARRIER_NAME)

    def step(self, *, barriers: bool = True) -> Any:
        self.first.send("b@GRAD", np.zeros(20, "float32"))
        self.first.send("w@GRAD.block1", SLICE)
        self.second.send("w@GRAD.block0", SLICE)
        for server in (self.first, self.second) if barriers else ():
            server.barrier("SendVariable", BATCH_BARRIER_NAME)
        w = np.concatenate([self.second.get("w.block0"), self.first.get("w.block1")])
        if barriers:
            self.fetched()
        return w

    def complete(self) -> None:
        self.first.complete()
        self.second.complete()


def ended(served: Served) -> bool:
    return [process.wait(30) for process in (*served.others, served.process)] == [0, 0]


def saved(folder: Path) -> Any:
    layout = of_servers(layout_of(ps.compile(ps.load(PROGRAM), ps.Job(pservers=1))))
    assert layout.machines == ("pserver_0",)
    return read_checkpoint(folder, None)[1].values


def test_of_synchronous_servers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Saved by two servers of which one is killed, read by three that are simulated, and by one of Fluid's trainers."""
    kept = tmp_path / "checkpoints"
    options = ["--fluid", "--program", PROGRAM]
    saving = ["--checkpoint", str(kept), "--checkpoint-every", "2", "--state", str(tmp_path / "kept")]
    served = Served(tmp_path, *options, *saving, pservers=2, trainers=1)
    try:
        trainer = Connected(served)
        trainer.starts()
        values = [trainer.step()]
        served.kill()
        values += [trainer.step() for _ in range(4)]
        trainer.complete()
        assert ended(served)
    finally:
        served.end()
    assert sorted(os.listdir(kept)) == [".parts", "step_00000004", "step_00000005"]
    told = f"{kept}/step_00000005 is the last checkpoint of all servers; --resume {kept} goes on from it\n"
    assert told in capfd.readouterr().err
    assert not os.listdir(kept / ".parts")
    for step in (4, 5):
        found = saved(kept / f"step_0000000{step}")
        assert sorted(found) == ["b", "lr", "w"]
        assert (found["w"] == values[step - 1]).all()
    assert read_manifest(newest(kept)).steps == {"pserver_0": 5, "pserver_1": 5, "trainer_0": 5}
    np.savez(tmp_path / "data.npz", x=np.ones((6, 4, 1000), "float32"), y=np.ones((6, 4, 20), "float32"))
    run = ["run", PROGRAM, "--pservers", "3", "--feed", str(tmp_path / "data.npz"), "--save", str(tmp_path / "run.npz")]
    assert main([*run, "--resume", str(kept)]) == 0
    (tmp_path / "again").mkdir()
    again = Served(tmp_path / "again", *options, "--resume", str(kept), pservers=1, trainers=1)
    try:
        alone = Trainer(again.address, 0)
        assert (alone.get("w") == values[-1]).all()
        alone.complete()
        assert again.process.wait(30) == 0
    finally:
        again.end()


def test_of_asynchronous_servers(tmp_path: Path) -> None:
    """A part holds the steps that all trainers have done, and what more has come."""
    kept = tmp_path / "checkpoints"
    options = ["--fluid", "--program", PROGRAM, "--checkpoint", str(kept), "--checkpoint-every", "2"]
    served = Served(tmp_path, *options, mode="async", pservers=2, trainers=2)
    try:
        trainers = [Connected(served, index) for index in range(2)]
        values = [trainer.starts() for trainer in trainers][:1]
        for turn in (0, 0, 0, 1, 1, 0, 1):
            values.append(trainers[turn].step(barriers=False))
        for trainer in trainers:
            trainer.complete()
        assert ended(served)
    finally:
        served.end()
    assert sorted(os.listdir(kept)) == [".parts", "step_00000002", "step_00000004"]
    assert (saved(kept / "step_00000004")["w"] == values[7]).all()
    of_both = saved(kept / "step_00000002")["w"]
    assert (of_both[500:] == values[6][500:]).all()  # when the first gradient of a third step had come, that of b
    assert (of_both[:500] == values[7][:500]).all()


@contextmanager
def table_server(work: Path, *options: str) -> Generator[Trainer]:
    """A server with a part of a table, whose working folder is `work`, as a trainer of Fluid sees it."""
    folder = Job("dist_table_sgd", TABLE, work, ()).folder
    command = [sys.executable, "-m", "pstranspile", "start", str(folder), "--role", "pserver_0", "--fluid", *options]
    process = subprocess.Popen([*command, "--seed", "5"], cwd=work)
    try:
        yield Trainer(load_job_folder(folder).addresses()["pserver_0"], 0)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def saving(path: str) -> bytes:
    return named("SAVE@CHECKPOINTNOTIFY", out_varname=path)


def test_a_table_is_saved_where_a_trainer_says_below_a_given_folder(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Other paths are refused, whatever leads there, and nothing is written; the server goes on."""
    kept, out = tmp_path / "kept", tmp_path / "out"
    for folder in (kept, out, kept / "in"):
        folder.mkdir()
    (kept / "away").symlink_to(out)
    (kept / "in" / "link").symlink_to(out / "file")
    (kept / "in" / "loop").symlink_to("../in/file")
    os.mkfifo(kept / "pipe")
    refused = [
        f"{out}/table_0", "out/table_0", "/etc/table_0", "table_0", "kept/../out/table_0", f"{kept}/../out/table_0",
        "kept/away/table_0", "kept/in/link", "kept/in/loop", "kept/pipe", "kept", "kept/", "kept/in", "kept/in/", "",
        "kept\0/x", "kept/x\0", "kept/pipe/table_0", "kept-too/table_0", "kept/" + 300 * "x",
    ]  # fmt: skip
    with table_server(tmp_path, "--saves", "kept") as trainer:
        for path in refused:
            assert trainer.status("CheckpointNotify", saving(path)) == "FAILED_PRECONDITION", path
        assert [path for path in (*kept.rglob("*"), *out.rglob("*"), *tmp_path.glob("table*")) if path.is_file()] == []
        for path in ("kept/new/of/table_0", f"{kept}/table_0", "./kept/./in/table_0", "kept/new/of/table_0"):
            assert trainer.call("CheckpointNotify", saving(path)) == b""
    told = [line for line in capfd.readouterr().err.splitlines() if ": saved " in line]
    assert told[0] == f"pstranspile start: pserver_0: saved {kept}/new/of/table_0, as a trainer has asked"
    assert len(told) == 4
    for path in ("new/of", ".", "in"):
        table = read_selected_rows(kept / path / "table_0")
        assert len(table.rows)
        assert (table.rows % 2 == 0).all()
    assert not os.listdir(out)


OF_FLUID = """
import sys
import paddle.fluid as fluid
program = fluid.Program()
program.global_block().append_op(
    type="checkpoint_notify", inputs={}, outputs={},
    attrs={"epmap": [sys.argv[1]], "dir": sys.argv[2], "lookup_table": "table"},
)
fluid.Executor(fluid.CPUPlace()).run(program)
"""


@pytest.mark.skipif(not FLUID, reason="PSTRANSPILE_FLUID is not set")
def test_a_real_trainer_of_fluid_has_a_table_saved(tmp_path: Path) -> None:
    with table_server(tmp_path, "--saves", "kept") as trainer:
        environment = {name: value for name, value in os.environ.items() if not name.endswith("_proxy")}
        command = [FLUID, "-c", OF_FLUID, trainer.address, "kept/step"]
        assert subprocess.run(command, env=environment, timeout=60, check=False).returncode == 0
    assert len(read_selected_rows(tmp_path / "kept" / "step" / "table_0").rows)


def test_nothing_is_saved_where_no_folder_was_given(tmp_path: Path) -> None:
    with table_server(tmp_path) as trainer, pytest.raises(grpc.RpcError) as refused:
        trainer.call("CheckpointNotify", saving("table_0"))
    problem: Any = refused.value
    assert "--saves DIR" in problem.details()
    assert not (tmp_path / "table_0").exists()


def test_a_link_in_place_of_the_file_that_is_written_is_not_followed(tmp_path: Path) -> None:
    """Whoever may write into the folder knows under which name a file is written before it takes its own."""
    (tmp_path / f".table.{os.getpid()}.part").symlink_to(tmp_path / "elsewhere")
    with SaveFolder(str(tmp_path)).place(f"{tmp_path}/table") as place:
        write_file(Path(place), [b"rows"])
    assert (tmp_path / "table").read_bytes() == b"rows"
    assert os.listdir(tmp_path) == ["table"]


def test_only_whole_sets_of_parts_make_a_checkpoint(tmp_path: Path) -> None:
    job = ps.compile(ps.load(PROGRAM), ps.Job(pservers=2))
    plan = CheckpointPlan(of_servers(layout_of(job)), str(tmp_path), 2)
    work = tmp_path / ".parts"
    work.mkdir()
    ones = {name: np.ones(shape, "float32") for name, shape in (("b", (20,)), ("lr", (1,)), ("w.block1", (500, 20)))}
    parts = {
        "pserver_0": MachineState(ones, 2),
        "pserver_1": MachineState({"lr": ones["lr"], "w.block0": ones["w.block1"]}, 2),
    }
    write_part(work / "pserver_0.2.part", "pserver_0", parts["pserver_0"])
    write_part(work / "pserver_1.4.part", "pserver_1", parts["pserver_1"])
    put_together(plan, work, None)
    assert os.listdir(tmp_path) == [".parts"]
    write_part(work / "pserver_1.2.part", "pserver_1", parts["pserver_1"])
    put_together(plan, work, None)
    assert sorted(os.listdir(tmp_path)) == [".parts", "step_00000002"]
    assert os.listdir(work) == ["pserver_1.4.part"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--checkpoint", "kept"], "are for servers with --fluid"),
        (["--fluid", "--resume", "kept"], "need --program"),
        (["--fluid", "--checkpoint-every", "2"], "--checkpoint-every needs --checkpoint"),
        (["--fluid", "--checkpoint", "kept", "--program", PROGRAM, "--role", "trainer_0"], "are for servers, not for"),
    ],
)
def test_what_goes_together(given: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = str(tmp_path / "job")
    assert main(["compile", PROGRAM, "--pservers", "1", "-o", job]) == 0
    role = [] if "--role" in given else ["--role", "pserver_0"]
    assert main(["start", job, *role, *given]) == 2
    assert told in capsys.readouterr().err


def test_the_job_must_be_that_of_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = tmp_path / "job"
    assert main(["compile", PROGRAM, "--pservers", "1", "-o", str(job)]) == 0
    start = ["start", str(job), "--role", "pserver_0", "--fluid", "--checkpoint", str(tmp_path / "kept")]
    other = str(Path(PROGRAM).parent / "linear_regression.ir")
    assert main([*start, "--program", other]) == 1
    assert "that is not here" in capsys.readouterr().err
    plan = json.loads((job / "plan.json").read_text())
    (job / "plan.json").write_text(json.dumps({**plan, "settings": 5}))
    assert main([*start, "--program", PROGRAM]) == 1
    assert "what it says of the job's settings is damaged" in capsys.readouterr().err
    (job / "plan.json").unlink()
    assert main([*start, "--program", PROGRAM]) == 1
    assert "there is no plan.json" in capsys.readouterr().err


def test_a_folder_belongs_to_one_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not to one that is over, nor to one whose server is at work."""
    job, kept = str(tmp_path / "job"), tmp_path / "kept"
    assert main(["compile", PROGRAM, "--pservers", "1", "-o", job]) == 0
    start = ["start", job, "--role", "pserver_0", "--fluid", "--program", PROGRAM, "--checkpoint", str(kept)]
    at_work = SharedTarget(kept, kept / ".parts", "pserver_0")
    other = SharedTarget(kept, kept / ".parts", "pserver_1")
    assert main(start) == 1
    assert "error[checkpoint-busy]" in capsys.readouterr().err
    with pytest.raises(ps.DiagnosticError, match="checkpoint-busy"):
        Target(kept, None, None)
    at_work.close()
    with pytest.raises(ps.DiagnosticError, match="checkpoint-busy"):
        Target(kept, None, None)
    other.close()
    assert os.listdir(kept) == [".parts"]
    assert not os.listdir(kept / ".parts")
    np.savez(tmp_path / "data.npz", x=np.ones((6, 4, 1000), "float32"), y=np.ones((6, 4, 20), "float32"))
    run = ["run", PROGRAM, "--pservers", "1", "--feed", str(tmp_path / "data.npz"), "--checkpoint", str(kept)]
    assert main([*run, "--checkpoint-every", "3"]) == 0
    for more, told in (
        ([], "it holds checkpoints of an earlier run, the last one step_00000006"),
        (["--resume", str(kept / "step_00000003")], "the run goes on from step_00000003, and step_00000006 was saved"),
        (["--resume", str(kept), "--seed", "5"], "it was run with the programs' own seeds; give no other"),
    ):
        assert main([*start, *more]) == 1
        assert told in capsys.readouterr().err
    assert sorted(os.listdir(kept)) == [".parts", "step_00000003", "step_00000006"]
