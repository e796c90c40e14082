"""What is seen of processes: a trace of all of them, the traffic of each variable, where the time of each goes."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.net.tracing import MACHINE, WAITING, Profile, doing, read_traced, table
from pstranspile.proof.values import make_feeds
from pstranspile.tools.cli import main

PROGRAM = str(Path(__file__).parents[3] / "golden" / "mlp_adam.ir")
STEPS = 3
JOB = [PROGRAM, "--pservers", "2", "--trainers", "2"]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run of processes and the simulation of the same job have left."""
    folder = tmp_path_factory.mktemp("seeing")
    np.savez(folder / "data.npz", **make_feeds(ps.load(PROGRAM).main, STEPS, 8, shares=2))
    fed = ["--feed", str(folder / "data.npz"), "--traffic"]
    for verb, own in (("run", []), ("launch", ["--profile", "--trace", str(folder / "trace.json")])):
        stderr = sys.stderr
        with (folder / verb).open("w") as sys.stderr:
            try:
                assert main([verb, *JOB, *fed, "--chart", str(folder / f"{verb}.txt"), *own]) == 0
            finally:
                sys.stderr = stderr
    return folder


def test_the_traffic_is_that_of_the_simulation(seen: Path) -> None:
    """A synchronous job sends the same in every run; how stale gradients were depends on who was faster."""
    told = {verb: [*map(str.split, (seen / verb).read_text().splitlines())] for verb in ("run", "launch")}
    tables = {verb: [line[:-1] for line in told[verb] if not line[0].endswith(":")] for verb in told}
    simulated, real = tables["run"], tables["launch"][: len(tables["run"])]
    assert len(real) > 10
    assert sorted(real) == sorted(simulated)


def test_the_trace_has_all_processes_and_what_they_tell_each_other(seen: Path) -> None:
    events: list[dict[str, Any]] = json.loads((seen / "trace.json").read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert sorted(names.values()) == ["pserver_0", "pserver_1", "trainer_0", "trainer_1"]
    steps = [(names[event["pid"]], event["name"]) for event in events if event.get("cat") == "step"]
    expected = [(trainer, f"step {n}") for trainer in ("trainer_0", "trainer_1") for n in range(1, STEPS + 1)]
    assert sorted(steps) == expected
    begins = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert begins.keys() == ends.keys()
    for number, begin in begins.items():
        assert begin["pid"] != ends[number]["pid"]
        assert begin["ts"] <= ends[number]["ts"]
    slices = {(event["pid"], event["tid"], event["ts"]) for event in events if event["ph"] == "X"}
    assert {(event["pid"], event["tid"], event["ts"]) for event in [*begins.values(), *ends.values()]} <= slices


def test_the_chart_has_all_machines(seen: Path) -> None:
    assert (seen / "launch.txt").read_text().split()[:4] == (seen / "run.txt").read_text().split()[:4]


def test_the_profile_has_every_role(seen: Path) -> None:
    lines = (seen / "launch").read_text().splitlines()
    roles = [line.split()[0] for line in lines if line.endswith("share")]
    assert roles == ["pserver_0", "pserver_1", "trainer_0", "trainer_1"]
    assert sum(WAITING in line for line in lines) == 4


def test_where_a_thread_stands_is_told() -> None:
    assert doing(sys._getframe()) == MACHINE
    waiting = threading.Event()
    found: list[str] = []

    def look() -> None:
        end = time.monotonic() + 10  # until the other thread has come to its call
        while WAITING not in found and time.monotonic() < end:
            time.sleep(0.1)
            found.append(doing(sys._current_frames()[main_thread]))
        waiting.set()

    import selectors
    import socket

    main_thread = threading.get_ident()
    threading.Thread(target=look).start()
    with selectors.DefaultSelector() as selector, socket.socket() as sock:
        selector.register(sock, selectors.EVENT_READ)
        while not waiting.is_set():
            selector.select(0.3)
    assert found[-1] == WAITING


def test_ops_are_told_by_type() -> None:
    module = ps.load(PROGRAM)
    feed = {name: value[0] for name, value in make_feeds(module.main, 1, 512).items()}
    scope = ps.Scope()
    ps.run(module["startup"], scope=scope)
    profile = Profile()
    end = time.monotonic() + 5
    while "mul" not in profile.seconds and time.monotonic() < end:
        ps.run(module.main, feed=feed, scope=scope)
    seconds = profile.close()
    assert seconds["mul"] > 0
    assert "mul" in table({"trainer_0": seconds})


def test_a_process_that_was_killed_has_left_no_whole_last_line(tmp_path: Path) -> None:
    file = tmp_path / "trace"
    file.write_text('["turn","pserver_0",100,140,-1,2,0]\n["turn","pserver')
    traced = read_traced({"pserver_0": str(file), "trainer_0": str(tmp_path / "none")})
    (span,) = traced.spans["pserver_0"]
    assert (span.begin, span.end, span.messages) == (0, 40, 2)
    assert not traced.spans["trainer_0"]
    assert not traced.events
