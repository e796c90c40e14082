"""Damaged files beside programs: jobs, plans, scenarios, feeds, checkpoints, tensors, records of compiled jobs."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import struct
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstranspile.cluster.checkpoint.api import load_checkpoint, save_checkpoint
from pstranspile.cluster.checkpoint.inference import load_inference_model, save_inference_model
from pstranspile.cluster.checkpoint.manifest import MANIFEST, _checksum
from pstranspile.cluster.checkpoint.persistables import load_persistables, save_persistables
from pstranspile.cluster.machines.snapshots import FORM, read_snapshot
from pstranspile.runtime.files.variables import read_metadata, read_safetensors, write_safetensors
from pstranspile.runtime.values.encoding import read_combined, read_selected_rows, read_tensor
from pstranspile.tools.cli import main
from tests.cluster.checkpoint.jobs import job, machines, started
from tests.conftest import ROOT
from tests.hostile.counts import cases
from tests.hostile.mutate import changed_bytes, changed_json, changed_lines, json_bytes
from tests.hostile.trial import call, campaign, command

Case = Callable[[random.Random], str]
NET = str(ROOT / "golden" / "linear_regression.ir")
ADAM = str(ROOT / "golden" / "mlp_adam.ir")
JOB = ("--pservers", "a:6174,b:6174", "--trainers", "2")
WORDS = ["-1", "9" * 30, "1" + "0" * 5000, "trainer_0", "pserver_0", "trainer_9", "step", "|", "1..2", "x", "=", "\xa0"]
WORDS += ["[" * 90, '"', "nan", "0x" + "f" * 5000, "[job]", "{}", "rows", "%w", '@ "a:6174"', "\u2028", "true", "#"]

TOML = """# a job
pservers = ["a:6174", "b:6174"]
trainers = 2
mode = "sync"
slice_var_up = true
min_block_size = 4
split_method = "RoundRobin"
distributed_table = "modulo"
geo_sgd_need_push_nums = 5
nccl_comm_num = 1
use_hierarchical_allreduce = false
current_endpoint = "a:6174"
trainer_id = 0
"""
SCENARIO = """seed 7  # of the random choices
delay 0.2 1..40
drop 0.1
duplicate 0.1
keep 2
late trainer_1 200
slow trainer_0 30
leave trainer_1 step 5
crash trainer_1 step 3 after 2
rejoin trainer_1 step 6
crash pserver_0 step 4 restart 50
partition trainer_0 | pserver_0, pserver_1 from 100 to 300
"""


def of_jobs(folder: Path) -> Case:
    values = {"pservers": ["a:6174"], "trainers": 2, "mode": "async", "min_block_size": 4, "wait_port": False}

    def case(draw: random.Random) -> str:
        if draw.random() < 0.4:
            path = folder / "job.json"
            path.write_bytes(json_bytes(changed_json(values, draw)))
        else:
            path = folder / "job.toml"
            text = changed_lines(TOML, draw, WORDS).encode()
            path.write_bytes(text if draw.random() < 0.6 else changed_bytes(text, draw))
        return command("plan", NET, "--config", str(path), *(["--trust-code"] if draw.random() < 0.5 else []))

    return case


def of_plans(folder: Path) -> Case:
    path = folder / "edited.plan"
    assert main(["compile", ADAM, *JOB, "-o", str(folder / "out")]) == 0
    made = folder / "made.plan"
    with made.open("w") as out, contextlib.redirect_stdout(out):
        assert main(["plan", ADAM, *JOB]) == 0
    text = made.read_text(encoding="utf-8")

    def case(draw: random.Random) -> str:
        changed = changed_lines(text, draw, WORDS).encode()
        path.write_bytes(changed if draw.random() < 0.6 else changed_bytes(text.encode(), draw))
        return command("compile", ADAM, *JOB, "--plan", str(path))

    return case


def of_scenarios(folder: Path) -> Case:
    path, feed = folder / "faults.txt", folder / "steps.npz"
    np.savez(feed, x=np.ones((6, 4, 13), "float32"), y=np.ones((6, 4, 1), "float32"))

    def case(draw: random.Random) -> str:
        text = changed_lines(SCENARIO, draw, WORDS).encode()
        path.write_bytes(text if draw.random() < 0.6 else changed_bytes(text, draw))
        return command("run", NET, *JOB, "--feed", str(feed), "--faults", str(path))

    return case


def of_records(folder: Path) -> Case:
    out = folder / "explained"
    assert main(["compile", ADAM, *JOB, "-o", str(out)]) == 0
    plan = json.loads((out / "plan.json").read_text(encoding="utf-8"))
    asked = [(), ("--op", "3"), ("--var", "w1"), ("--role", "pserver_0", "--op", "^1#0"), ("--var", "w2", "--all")]

    def case(draw: random.Random) -> str:
        changed = json_bytes(changed_json(plan, draw))
        (out / "plan.json").write_bytes(changed if draw.random() < 0.9 else changed_bytes(changed, draw))
        return command("explain", str(out), *draw.choice(asked), *(["--json"] if draw.random() < 0.3 else []))

    return case


def of_feeds(folder: Path) -> Case:
    path, values = folder / "feed.npz", np.random.default_rng(0)
    x = {"x": values.normal(size=(2, 4, 13)).astype("float32"), "y": values.normal(size=(2, 4, 1)).astype("float32")}
    odd = [np.zeros(3), np.zeros((2, 0, 13)), np.float32(1), np.array(["a"]), np.zeros((2, 4, 13), "complex64")]
    odd += [np.zeros((1, 1), "i8"), np.array([[2**62, 2**62]]), np.zeros((2, 4, 13), "V4"), np.array(None, "O")]

    def case(draw: random.Random) -> str:
        held: dict[str, Any] = dict(x)
        if draw.random() < 0.5:
            held[draw.choice(["x", "y", "w", "x@LENS", "", "../up", "y@LENS"])] = draw.choice(odd)
        (np.savez if draw.random() < 0.7 else np.savez_compressed)(path, **held)
        if draw.random() < 0.7:
            path.write_bytes(changed_bytes(path.read_bytes(), draw))
        return command("run", NET, draw.choice(["--feed", "--init"]), str(path))

    return case


def of_checkpoints(folder: Path) -> Case:
    compiled = job(2, 2)
    live = machines(started(compiled, 1))
    forms: list[Any] = ["files", "combined", "safetensors"]
    for form in forms:
        save_checkpoint(live, compiled, folder / form, format=form, step=1)
    place = folder / "damaged"

    def case(draw: random.Random) -> str:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(folder / draw.choice(forms), place)
        held = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
        if draw.random() < 0.5:
            entry = draw.choice(held["files"])
            content = changed_bytes((place / entry["path"]).read_bytes(), draw)
            (place / entry["path"]).write_bytes(content)
            entry |= {"size": len(content), "sha256": sha256(content).hexdigest()}
        else:
            held = changed_json(held, draw)
        if isinstance(held, dict):
            held["checksum"] = _checksum(held)
        data = json_bytes(held)
        (place / MANIFEST).write_bytes(data if draw.random() < 0.9 else changed_bytes(data, draw))
        return call(lambda: load_checkpoint(live, compiled, place, same_program=draw.random() < 0.7))

    return case


def of_fluid_s_folders(folder: Path) -> Case:
    compiled = job(2, 2)
    live = machines(started(compiled, 1))
    save_persistables(live, compiled, folder / "persistables")
    save_persistables(live, compiled, folder / "persistables", "all")

    def case(draw: random.Random) -> str:
        path = draw.choice(sorted((folder / "persistables").iterdir()))
        kept = path.read_bytes()
        path.write_bytes(changed_bytes(kept, draw))
        try:
            name = "all" if path.name == "all" else None
            return call(load_persistables, live, compiled, folder / "persistables", name)
        finally:
            path.write_bytes(kept)

    return case


def of_tensors(folder: Path) -> Case:
    path = folder / "tensor"
    files = [file.read_bytes() for file in sorted((ROOT / "tests" / "data" / "tensor_files").glob("*.bin"))]
    array = np.arange(12, dtype="float32").reshape(3, 4)
    write_safetensors(path, {"w": array, "ids": np.arange(5), "flag": np.array(True)}, {"made": "here"})
    safe = path.read_bytes()
    size = struct.unpack("<Q", safe[:8])[0]
    header, rest = json.loads(safe[8 : 8 + size]), safe[8 + size :]

    def case(draw: random.Random) -> str:
        if draw.random() < 0.5:
            path.write_bytes(changed_bytes(draw.choice(files), draw))
            reader: Any = draw.choice([read_tensor, read_selected_rows, lambda file: read_combined(file, ["a", "b"])])
            return call(reader, path)
        text = json_bytes(changed_json(header, draw))
        data = struct.pack("<Q", len(text)) + text + rest
        path.write_bytes(data if draw.random() < 0.6 else changed_bytes(safe, draw))
        return call(draw.choice([read_safetensors, read_metadata]), path)

    return case


def of_inference_models(folder: Path) -> Case:
    compiled = job(1, 1)
    live = machines(started(compiled, 1))
    place = folder / "inference"
    target = next(op.output("Out") for op in compiled.source.main.main_block.ops if op.type == "mean")
    save_inference_model(live, compiled, place, ["x", "y"], [target])
    data = (place / "__model__").read_bytes()

    def case(draw: random.Random) -> str:
        (place / "__model__").write_bytes(changed_bytes(data, draw))
        return call(load_inference_model, place, {})

    return case


def of_kept_states(folder: Path) -> Case:
    path = folder / "snapshot"
    array = {"dict": [["w", {"array": ["<f4", [2, 2]]}]]}
    kept = {"snapshot": [array, {"dict": [["seen", {"set": [1, 2]}]]}, *[{"dict": [["a", 1]]}] * 3]}
    tree = {"tuple": ["pserver_0", kept]}

    def case(draw: random.Random) -> str:
        body = json_bytes(changed_json(tree, draw)) + b"\n" + bytes(16)
        data = f"{FORM} {sha256(body).hexdigest()}\n".encode() + body
        path.write_bytes(data if draw.random() < 0.7 else changed_bytes(data, draw))
        return call(read_snapshot, path, "pserver_0")

    return case


KINDS = (
    of_jobs,
    of_plans,
    of_scenarios,
    of_records,
    of_feeds,
    of_checkpoints,
    of_fluid_s_folders,
    of_tensors,
    of_inference_models,
    of_kept_states,
)


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A tenth of the cases for each kind of file."""
    made = {make.__name__.removeprefix("of_"): make(tmp_path) for make in KINDS}
    monkeypatch.chdir(tmp_path)  # where a scenario may have servers keep their state

    def case(number: int) -> str:
        kind = list(made)[number % len(made)]
        return f"{kind}, {made[kind](random.Random(f'{kind} {number}'))}"

    ends = campaign(case, cases(1000))
    assert len(ends) >= 20
