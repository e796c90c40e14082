"""A folder of checkpoints belongs to one run: no other run takes its checkpoints away, or goes on from them unseen."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.checkpoint import manifest as names
from pstranspile.cluster.checkpoint.api import CheckpointedRun, resume, run_with_checkpoints, save_checkpoint
from pstranspile.cluster.checkpoint.layout import layout_of
from pstranspile.cluster.checkpoint.manifest import MANIFEST, _checksum
from pstranspile.cluster.checkpoint.runs import LOCK, Source, Target, forget_older, identity_of, newest, step_folder
from pstranspile.cluster.checkpoint.store import read_manifest
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import Adam, minimize
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.runtime.files.outputs import FileLock
from pstranspile.tools.cli import main

STEPS = 6
CLUSTER = ["--pservers", "2", "--trainers", "2"]
WAYS = {"alone": ["run"], "cluster": ["run", *CLUSTER], "processes": ["launch", *CLUSTER]}
"""How a program is run: the verb and the job, by what it is."""


def module(name: str = "w", seed: int = 7) -> Any:
    draft = L.Draft(seed=seed)
    x, y = L.data(draft, "x", [-1, 6]), L.data(draft, "y", [-1, 1])
    prediction = L.fc(L.dropout(x, 0.4), 1, param_attr=L.ParamAttr(name=name))
    minimize(L.mean(L.square_error_cost(prediction, y)), Adam(0.05))
    return draft.module()


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.ir").write_text(ps.dumps(module()))
    np.savez("data.npz", **fed())


def fed() -> dict[str, Any]:
    random = np.random.default_rng(1)
    sizes = {"x": (STEPS, 8, 6), "y": (STEPS, 8, 1)}
    return {name: random.normal(size=size).astype("float32") for name, size in sizes.items()}


def run(way: str, *options: str, net: str = "net.ir") -> int:
    verb, *job = WAYS[way]
    return main([verb, net, *job, "--feed", "data.npz", *options])


def held(folder: str | Path = "kept") -> dict[str, bytes]:
    """All files of a folder, with what they hold."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


@pytest.fixture
def kept() -> dict[str, bytes]:
    """The folder `kept`, with the checkpoints of a run of three steps."""
    assert run("alone", "--steps", "3", "--checkpoint", "kept", "--checkpoint-every", "2") == 0
    return held()


def refused(capsys: pytest.CaptureFixture[str], way: str, *options: str, net: str = "net.ir") -> str:
    """What is told of a run that is refused before its first step and leaves `kept` as it was."""
    before = held()
    capsys.readouterr()
    assert run(way, *options, net=net) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert held() == before
    return err


@pytest.mark.parametrize("way", WAYS)
def test_another_run_needs_another_folder(way: str, kept: dict[str, bytes], capsys: pytest.CaptureFixture[str]):
    """Shorter, longer, or the very same command once more."""
    for options in (["--steps", "1"], ["--steps", "3"], ["--steps", "5", "--checkpoint-every", "1"]):
        told = refused(capsys, way, "--checkpoint", "kept", *options)
        assert told.startswith(
            "kept: error[checkpoint-run]: it holds checkpoints of an earlier run, the last one step_"
        )
        assert "add --resume kept to go on with that run, or name another folder for a new one" in told
    assert sorted(os.listdir("kept")) == ["step_00000002", "step_00000003"]


@pytest.mark.parametrize("way", WAYS)
def test_the_run_itself_goes_on_in_its_folder(way: str, kept: dict[str, bytes]):
    assert run(way, "--resume", "kept", "--checkpoint", "kept", "--checkpoint-every", "1", "--steps", "5") == 0
    assert sorted(os.listdir("kept")) == ["step_00000004", "step_00000005"]
    assert run(way, "--resume", "kept", "--checkpoint", os.path.abspath("kept")) == 0
    assert sorted(os.listdir("kept")) == ["step_00000005", "step_00000006"]


@pytest.mark.parametrize("way", WAYS)
def test_going_back_needs_another_folder(way: str, kept: dict[str, bytes], capsys: pytest.CaptureFixture[str]):
    told = refused(capsys, way, "--resume", "kept/step_00000002", "--checkpoint", "kept")
    assert "kept: error[checkpoint-run]: the run goes on from step_00000002, and step_00000003 was saved later" in told
    assert run(way, "--resume", "kept/step_00000002", "--checkpoint", "other", "--steps", "4") == 0
    assert os.listdir("other") == ["step_00000004"]
    assert held() == kept


@pytest.mark.parametrize("way", WAYS)
def test_from_one_folder_into_another_runs_folder(way: str, kept: dict[str, bytes], capsys: pytest.CaptureFixture[str]):
    """Also if it stands at the same step, or is a copy."""
    assert run("alone", "--steps", "2", "--checkpoint", "other") == 0
    shutil.copytree("kept", "copy")
    for source in ("other", "copy"):
        told = refused(capsys, way, "--resume", source, "--checkpoint", "kept")
        assert f"holds checkpoints of another run than {newest(source)}, the last one step_00000003" in told


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_left_to_do(way: str, kept: dict[str, bytes], capsys: pytest.CaptureFixture[str]):
    assert run(way, "--resume", "kept", "--checkpoint", "kept", "--steps", "3", "--save", "out.npz") == 0
    assert "step_00000003: warning[checkpoint-run]: all 3 steps were done before: nothing is" in capsys.readouterr().err
    assert held() == kept
    assert "param/w" in np.load("out.npz")
    told = refused(capsys, way, "--resume", "kept", "--checkpoint", "kept", "--steps", "2", "--save", "none.npz")
    assert "it has done 3 steps, and the run is to have 2, counted from the beginning" in told
    assert not Path("none.npz").exists()


@pytest.mark.parametrize("way", WAYS)
def test_without_data_the_cause_is_named(way: str, kept: dict[str, bytes], capsys: pytest.CaptureFixture[str]):
    verb, *job = WAYS[way]
    assert main([verb, "net.ir", *job, "--resume", "kept"]) == 1
    told = capsys.readouterr().err
    assert "error[checkpoint-run]: it has done 3 steps, and nothing says how many the run is to have: --feed" in told
    Path("other.ir").write_text(ps.dumps(module("other")))
    assert main([verb, "other.ir", *job, "--resume", "kept"]) == 1
    assert "error[checkpoint-model]: it is a checkpoint of another program: " in capsys.readouterr().err
    assert held() == kept


@pytest.mark.parametrize("way", WAYS)
def test_a_seed_that_is_another(way: str, kept: dict[str, bytes], capsys: pytest.CaptureFixture[str]):
    told = refused(capsys, way, "--resume", "kept", "--seed", "9")
    assert "error[checkpoint-model]: it was run with the programs' own seeds; give no other" in told
    assert run(way, "--seed", "9", "--steps", "1", "--checkpoint", "seeded") == 0
    assert run(way, "--seed", "9", "--steps", "2", "--resume", "seeded", "--checkpoint", "seeded") == 0
    assert {read_manifest(place).seed for place in Path("seeded").glob("step_*")} == {9}


def test_another_mode_is_told(capsys: pytest.CaptureFixture[str]):
    assert run("cluster", "--steps", "2", "--checkpoint", "kept") == 0
    assert run("cluster", "--mode", "async", "--resume", "kept") == 0
    err = capsys.readouterr().err
    assert "kept/step_00000002: warning[checkpoint-run]: it was saved in mode sync, and goes on in mode async" in err


@pytest.mark.parametrize("way", WAYS)
def test_values_are_given_once(way: str, capsys: pytest.CaptureFixture[str]):
    np.savez("start.npz", w=np.zeros((6, 1), "float32"))
    assert run(way, "--resume", "kept", "--init", "start.npz") == 2
    assert "--init can't be combined with --resume" in capsys.readouterr().err


@pytest.mark.parametrize("way", WAYS)
def test_foreign_files(way: str, capsys: pytest.CaptureFixture[str]):
    """They stay; where one has the name of a checkpoint to come, the run does not begin."""
    Path("kept/step_00000009").mkdir(parents=True)
    Path("kept/step_00000009/thesis.tex").write_text("everything")
    told = refused(capsys, way, "--checkpoint", "kept")
    assert "kept/step_00000009: error[checkpoint-target]: it has the name of a checkpoint and is none" in told
    os.rename("kept/step_00000009", "kept/step_9")
    assert run(way, "--checkpoint", "kept", "--checkpoint-every", "2") == 0
    assert sorted(os.listdir("kept")) == ["step_00000004", "step_00000006", "step_9"]
    assert Path("kept/step_9/thesis.tex").read_text() == "everything"


def test_runs_in_one_folder(kept: dict[str, bytes], capsys: pytest.CaptureFixture[str]):
    """A folder in which there are checkpoints of two runs all the same, and a run that has other rows of its own."""
    for seed in ("1", "2"):
        assert run("alone", "--seed", seed, "--steps", seed, "--checkpoint", f"of_{seed}") == 0
    shutil.copytree("of_2/step_00000002", "of_1/step_00000002")
    told = refused(capsys, "alone", "--resume", "of_1")
    assert (
        "of_1: error[checkpoint-run]: step_00000001 and step_00000002 are checkpoints of different runs; name" in told
    )
    own = ["--resume", "of_1/step_00000002", "--checkpoint", "of_1", "--checkpoint-every", "1"]
    assert run("alone", *own, "--steps", "5") == 0
    assert sorted(os.listdir("of_1")) == ["step_00000001", "step_00000004", "step_00000005"]


def test_what_is_being_read_stays(kept: dict[str, bytes]):
    source = Source("kept/step_00000002")
    manifest = read_manifest("kept/step_00000003")
    forget_older("kept", 1, identity_of(manifest))
    assert held() == kept
    source.close()
    forget_older("kept", 1, identity_of(manifest))
    assert os.listdir("kept") == ["step_00000003"]


HOLDER = """
import sys, time
from pstranspile.cluster.checkpoint.runs import Target
target = Target(sys.argv[1], None, None)
print("held", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("way", WAYS)
def test_one_run_at_a_time(way: str, capsys: pytest.CaptureFixture[str]):
    """Another one is refused, until the first has ended, however it has."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, "kept"], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        told = refused(capsys, way, "--checkpoint", "kept")
        assert told.startswith("kept: error[checkpoint-busy]: another run is saving its checkpoints here; wait for its")
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert os.listdir("kept") == [LOCK]
    assert run(way, "--steps", "2", "--checkpoint", "kept") == 0
    assert os.listdir("kept") == ["step_00000002"]


def test_locks_that_are_shared(tmp_path: Path):
    place = tmp_path / "lock"
    first, second = FileLock(place, shared=True), FileLock(place, shared=True)
    assert not first.held_by_another
    assert not second.held_by_another
    assert FileLock(place).held_by_another
    first.close()
    assert place.exists()
    assert FileLock(place).held_by_another
    second.close()
    assert not place.exists()
    alone = FileLock(place)
    assert not alone.held_by_another
    assert FileLock(place, shared=True).held_by_another


def cluster(compiled: Any) -> Any:
    machines = ps.Cluster(compiled.roles(), distributed_vars=compiled.distributed_vars)
    machines.feed(fed())
    return machines


def test_a_cluster_in_python(tmp_path: Path):
    """It may save where the latest checkpoint is what it has gone on from, or has saved itself."""
    compiled = ps.compile(module(), ps.Job(pservers=2, trainers=2))
    first = cluster(compiled)
    run_with_checkpoints(first, compiled, 2, "kept", keep=9)
    run_with_checkpoints(first, compiled, 3, "kept", keep=9)
    before = held()
    ahead = cluster(compiled)
    ahead.run_to(2)
    for other in (cluster(compiled), ahead):
        with pytest.raises(DiagnosticError, match="checkpoint-run"):
            run_with_checkpoints(other, compiled, 5, "kept")
    assert held() == before
    again = cluster(compiled)
    resume(again, compiled, "kept")
    run_with_checkpoints(again, compiled, 4, "kept", keep=3)
    assert sorted(os.listdir("kept")) == ["step_00000002", "step_00000003", "step_00000004"]
    other = ps.compile(module("v"), ps.Job(pservers=2, trainers=2))
    strange = cluster(other)
    strange.run_to(4)
    with pytest.raises(DiagnosticError, match="checkpoint-run"):
        run_with_checkpoints(strange, other, 5, "kept")


def test_a_run_that_was_refused_holds_nothing(kept: dict[str, bytes]):
    compiled = ps.compile(module(), ps.Job(pservers=2, trainers=2))
    with pytest.raises(DiagnosticError):
        CheckpointedRun(compiled, None, "kept")
    Target("kept", None, Source("kept").standing).close()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("w" * 300, "it has 300 bytes, and the file system allows names of 255"),
        ("ä" * 130, "it has 260 bytes, and the file system allows names of 255"),
        ("/".join(["w" * 200] * 25), "the file system allows"),
        ("__machines__", "the checkpoint needs the name"),
        ("../w", "it does not lie in the folder"),
        ("/w", "it does not lie in the folder"),
        ("fc_0.b_0/w", "it would be a file and a folder"),
    ],
)
def test_names_that_are_none_of_files(way: str, name: str, reason: str, capsys: pytest.CaptureFixture[str]):
    """They are refused before the first step."""
    Path("odd.ir").write_text(ps.dumps(module(name)))
    Path("kept").mkdir()
    told = refused(capsys, way, "--checkpoint", "kept", net="odd.ir")
    assert reason in told
    assert "error[checkpoint-name]" in told


def test_names_that_differ_in_case_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    draft = L.Draft(seed=1)
    x = L.data(draft, "x", [-1, 6])
    hidden = L.fc(x, 4, param_attr=L.ParamAttr(name="w"), bias_attr=False)
    minimize(L.mean(L.fc(hidden, 1, param_attr=L.ParamAttr(name="W"), bias_attr=False)), Adam(0.1))
    layout = layout_of(draft.module())
    Target(tmp_path / "kept", layout, None).close()
    monkeypatch.setattr(names, "ignores_case", lambda _: True)
    with pytest.raises(DiagnosticError, match="which differs in upper and lower case alone"):
        Target(tmp_path / "kept", layout, None)


def test_a_name_with_folders_is_kept(tmp_path: Path):
    """As in Fluid, `/` makes folders."""
    Path("odd.ir").write_text(ps.dumps(module("part/" + "w" * 200)))
    assert run("alone", "--checkpoint", "kept", net="odd.ir") == 0
    assert run("alone", "--resume", "kept", net="odd.ir") == 0


def test_single_checkpoints_are_no_runs(tmp_path: Path):
    """`save_checkpoint` replaces the checkpoint that it is given."""
    scope, net = ps.Scope(), module()
    ps.run(net["startup"], scope=scope)
    for step in (5, 2):
        save_checkpoint(scope, net, tmp_path / "one", step=step)
        save_checkpoint(scope, net, step_folder(tmp_path / "kept", step), step=step)
    assert read_manifest(tmp_path / "one").step == 2
    assert len(os.listdir(tmp_path / "kept")) == 2


def test_a_command_that_is_repeated_is_told_what_to_add(kept: dict[str, bytes], capsys: pytest.CaptureFixture[str]):
    """What is to be added can be typed as it is shown, and then the command goes on."""
    os.rename("kept", "my runs")
    command = ["--steps", "4", "--checkpoint", "my runs"]
    assert run("alone", *command) == 1
    added = capsys.readouterr().err.partition("add ")[2].partition(" to go on")[0]
    assert run("alone", *command, *shlex.split(added)) == 0
    assert sorted(os.listdir("my runs")) == ["step_00000003", "step_00000004"]


SETTINGS: list[tuple[list[str], list[str], str]] = [
    ([], ["--arithmetic", "fluid"], "give --arithmetic numpy"),
    (["--arithmetic", "fluid"], [], "give --arithmetic fluid"),
    ([], ["--no-dropout"], "leave out --no-dropout"),
    (["--no-dropout"], [], "give --no-dropout"),
    ([], ["--program", "main*2"], "leave out --program"),
    (["--program", "main*2"], ["--program", "main"], "give --program 'main*2'"),
    (["--program", "main*2"], [], "give --program 'main*2'"),
]
"""Options of a run, those of one that is to go on from it, and what this one is told."""


@pytest.mark.parametrize(("before", "now", "told"), SETTINGS, ids=lambda part: " ".join(part) or "none")
@pytest.mark.parametrize("way", ["alone", "cluster"])
def test_what_decides_the_numbers_stays(
    way: str, before: list[str], now: list[str], told: str, capsys: pytest.CaptureFixture[str]
):
    assert run(way, "--steps", "1", "--checkpoint", "kept", *before) == 0
    assert told in refused(capsys, way, "--resume", "kept", *now)
    assert run(way, "--resume", "kept", "--steps", "2", *before) == 0


def test_shares_stay(kept: dict[str, bytes], capsys: pytest.CaptureFixture[str]):
    """A single machine has none, so that a cluster may go on from it with any."""
    weighted = ["--shares", "weighted"]
    assert run("cluster", "--resume", "kept", "--checkpoint", "other", "--steps", "4", *weighted) == 0
    for way in ("cluster", "processes"):
        capsys.readouterr()
        assert run(way, "--resume", "other") == 1
        assert (
            "other/step_00000004: error[checkpoint-model]: it was run with --shares weighted, and is to go on with "
            "--shares equal: give --shares weighted" in capsys.readouterr().err
        )
    assert run("alone", "--resume", "other") == 0


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ([], ["--schedule", "3"], "leave out --schedule"),
        (["--schedule", "3"], [], "give --schedule 3"),
        (["--schedule", "3"], ["--schedule", "4"], "give --schedule 3"),
    ],
    ids=["none", "one", "another"],
)
def test_the_order_of_events_stays(before: list[str], now: list[str], told: str, capsys: pytest.CaptureFixture[str]):
    assert run("cluster", "--steps", "1", "--checkpoint", "kept", *before) == 0
    assert told in refused(capsys, "cluster", "--resume", "kept", *now)
    assert run("cluster", "--resume", "kept", "--steps", "2", *before) == 0


@pytest.mark.parametrize("way", ["cluster", "processes"])
def test_arithmetic_of_processes_stays(way: str, kept: dict[str, bytes], capsys: pytest.CaptureFixture[str]):
    assert "give --arithmetic numpy" in refused(capsys, "processes", "--resume", "kept", "--arithmetic", "fluid")
    assert run("processes", "--steps", "1", "--checkpoint", "other", "--arithmetic", "fluid") == 0
    assert run(way, "--resume", "other", "--steps", "2", "--arithmetic", "fluid") == 0
    capsys.readouterr()
    assert run(way, "--resume", "other", "--steps", "2") == 1
    assert "give --arithmetic fluid" in capsys.readouterr().err


def test_columns_stay(capsys: pytest.CaptureFixture[str]):
    lines = [",".join(["0.5"] * 7)] * 8
    Path("rows.csv").write_text("\n".join([",".join([*"abcdef", "y"]), *lines]))
    rows = ["run", "net.ir", "--feed", "rows.csv", "--batch", "2", "--columns"]
    assert main([*rows, "x=a,b,c,d,e,f", "--steps", "1", "--checkpoint", "kept"]) == 0
    assert main([*rows, "x=b,a,c,d,e,f", "--resume", "kept"]) == 1
    assert "give --columns x=a,b,c,d,e,f" in capsys.readouterr().err
    assert main([*rows, "x=a,b,c,d,e,f", "--resume", "kept"]) == 0


def test_settings_of_a_cluster_in_python():
    job = ps.compile(module(), ps.Job(pservers=["a:1"], trainers=2))
    save_until = [ps.Cluster(job.roles(), seed=1, shares="weighted") for _ in range(2)]
    for cluster in save_until:
        cluster.feed(fed())
    run_with_checkpoints(save_until[0], job, 1, "kept")
    assert read_manifest("kept/step_00000001").settings == {"arithmetic": "numpy", "program": "", "shares": "weighted"}
    resume(save_until[1], job, "kept")
    other = ps.Cluster(job.roles(), seed=1)
    with pytest.raises(DiagnosticError, match="give --shares weighted"):
        resume(other, job, "kept")
    resume(other, job, "kept", same_program=False)


def test_checkpoints_of_earlier_versions_say_nothing_of_settings(kept: dict[str, bytes]):
    file = Path("kept/step_00000003", MANIFEST)
    held = json.loads(file.read_text())
    del held["settings"]
    held["checksum"] = _checksum(held)
    file.write_text(json.dumps(held))
    assert run("alone", "--resume", "kept", "--arithmetic", "fluid") == 0


@pytest.mark.parametrize("options", [[], ["--checkpoint", "kept"]])
def test_a_checkpoint_under_the_name_of_another_step(
    options: list[str], kept: dict[str, bytes], capsys: pytest.CaptureFixture[str]
):
    os.rename("kept/step_00000003", "kept/step_00000009")
    told = refused(capsys, "alone", "--resume", "kept", *options)
    assert "kept/step_00000009: error[checkpoint-run]: its manifest says that it is step_00000003" in told


@pytest.mark.parametrize("make", [lambda path: path.write_text("mine"), os.mkfifo, lambda path: path.symlink_to("x")])
def test_what_is_called_as_the_lock_and_is_none_stays(make: Any, capsys: pytest.CaptureFixture[str]):
    Path("kept").mkdir()
    make(Path("kept", LOCK))
    assert run("alone", "--checkpoint", "kept") == 1
    assert "kept/.lock: error[checkpoint-target]: can't be written: " in capsys.readouterr().err
    assert os.path.lexists(Path("kept", LOCK))


def test_a_folder_to_go_on_from_that_is_not_there(kept: dict[str, bytes], capsys: pytest.CaptureFixture[str]):
    told = refused(capsys, "alone", "--resume", "nothing")
    assert "nothing: error[checkpoint-manifest]: there is no such folder" in told
