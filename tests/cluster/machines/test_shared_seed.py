"""A cluster draws what one machine draws, wherever the seeds of its numbers stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile import layers as L
from pstranspile.autodiff import SGD, minimize
from pstranspile.ir.model import STARTUP
from pstranspile.tools.cli import main

STEPS, ROWS, WIDTH = 3, 8, 4
FEEDS = {"x": np.ones((STEPS, ROWS, WIDTH), "f4"), "y": np.ones((STEPS, ROWS, 1), "f4")}
LOSS, NOISE = "mean_0.tmp_0", "gaussian_random_0.tmp_0"
SERVERS = ["a:1", "b:2"]
JOBS: dict[str, dict[str, Any]] = {
    "sync": {"pservers": SERVERS},
    "async": {"pservers": SERVERS, "mode": "async"},
    "half-async": {"pservers": SERVERS, "mode": "half-async"},
    "geo": {"pservers": SERVERS, "mode": "geo"},
    "grad-allreduce": {"mode": "grad-allreduce"},
    "ddp": {"mode": "ddp"},
    "local-sgd": {"mode": "local-sgd"},
}


def module(own: int, main_seed: int = 0, startup_seed: int = 0) -> ps.Module:
    """A regression whose weight draws with a seed of its own, and to which an op without one adds noise."""
    d = L.Draft()
    x, y = L.data(d, "x", [-1, WIDTH]), L.data(d, "y", [-1, 1])
    hidden = L.fc(x, 1, param_attr=L.ParamAttr("w", initializer=L.Uniform(-0.5, 0.5, seed=own)))
    hidden = L.elementwise_add(hidden, L.gaussian_random(d, [1]))
    minimize(L.mean(L.square_error_cost(hidden, y)), SGD(0.05))
    made = d.module()
    seeds = {"main": main_seed, "startup": startup_seed}
    return ps.Module(ps.FrozenMap({key: p._replace(random_seed=seeds[key]) for key, p in made.programs.items()}))


def alone(source: ps.Module, seed: int | None = None) -> tuple[Any, list[Any]]:
    """The weight that one machine starts with, and the noise of each step."""
    scope = ps.Scope()
    ps.run(source[STARTUP], scope=scope, seed=seed)
    start = scope["w"].copy()
    feeds = [{name: value[step] for name, value in FEEDS.items()} for step in range(STEPS)]
    return start, [ps.run(source.main, feed, [NOISE], scope=scope, seed=seed)[NOISE] for feed in feeds]


STILL = {name: np.zeros_like(value[:1]) for name, value in FEEDS.items()}
"""A step in which the weight learns nothing."""


@pytest.mark.parametrize("mode", JOBS)
@pytest.mark.parametrize("seed", [None, 3, 0], ids=str)
def test_an_initialiser_with_a_seed_starts_as_on_one_machine(mode: str, seed: int | None):
    source = module(5)
    result = ps.compile(source, ps.Job(trainers=2, min_block_size=1, **JOBS[mode]))
    np.testing.assert_array_equal(ps.simulate(result, STILL, seed=seed).parameters["w"], alone(source, seed)[0])


@pytest.mark.parametrize("mode", JOBS)
@pytest.mark.parametrize(("main_seed", "startup_seed"), [(7, 0), (7, 9)])
def test_each_program_draws_from_its_own_seed(mode: str, main_seed: int, startup_seed: int):
    source = module(5, main_seed, startup_seed)
    made = ps.simulate(ps.compile(source, ps.Job(trainers=2, **JOBS[mode])), FEEDS, fetch=[NOISE])
    for fetched in made.fetched:
        np.testing.assert_array_equal(fetched[NOISE], alone(source)[1])


@pytest.mark.parametrize("mode", ["sync", "ddp"])
@pytest.mark.parametrize("seeds", [(0, 0), (0, 9)])
@pytest.mark.parametrize("given", [None, 0])
def test_numbers_without_any_seed_are_those_of_one_run_on_all_its_machines(
    mode: str, seeds: tuple[int, int], given: int | None
):
    result = ps.compile(module(0, *seeds), ps.Job(trainers=2, **JOBS[mode]))
    runs = [ps.simulate(result, FEEDS, fetch=[NOISE], seed=given) for _ in range(2)]
    for run in runs:
        np.testing.assert_array_equal(run.fetched[0][NOISE], run.fetched[1][NOISE])
    assert not np.array_equal(runs[0].fetched[0][NOISE], runs[1].fetched[0][NOISE])


@pytest.mark.parametrize("mode", ["sync", "ddp"])
def test_processes_start_as_one_machine(mode: str):
    source = module(5)
    servers = {key: value[:1] if key == "pservers" else value for key, value in JOBS[mode].items()}
    made = ps.launch(ps.compile(source, ps.Job(trainers=2, **servers)), STILL)
    assert repr(made) == "<Launched: 2 trainers, 1 step; 2 parameters>"
    np.testing.assert_array_equal(made.parameters["w"], alone(source)[0])


@pytest.mark.parametrize(("first", "second"), [("launch", "launch"), ("launch", "run"), ("run", "launch")])
def test_the_seed_that_a_run_has_drawn_is_taken_on_from_its_checkpoint(first: str, second: str, tmp_path: Path):
    (tmp_path / "net.ir").write_text(ps.dumps(module(5)))
    np.savez(tmp_path / "data.npz", **FEEDS)
    job = [str(tmp_path / "net.ir"), "--pservers", "1", "--trainers", "2"]
    job += ["--feed", str(tmp_path / "data.npz"), "--fetch", NOISE]
    kept, record = str(tmp_path / "kept"), str(tmp_path / "record")
    assert main([first, *job, "--steps", "1", "--checkpoint", kept]) == 0
    assert main([second, *job, "--resume", kept, "--save", str(tmp_path / "on.npz")]) == 0
    assert main(["launch", *job, "--record", record, "--save", str(tmp_path / "straight.npz")]) == 0
    assert main(["run", *job, "--replay", record, "--save", str(tmp_path / "again.npz")]) == 0
    on, straight, again = (dict(np.load(tmp_path / f"{name}.npz")) for name in ("on", "straight", "again"))
    np.testing.assert_array_equal(on[f"trainer_0/step/{NOISE}"], on[f"trainer_1/step/{NOISE}"])
    for name, value in straight.items():
        np.testing.assert_array_equal(again[name], value)
    if first == "launch":  # processes draw the seed of a job from its programs: the same in every launch
        np.testing.assert_array_equal(on["param/w"], straight["param/w"])


@pytest.mark.parametrize("given", ["-3", "0"])
def test_a_seed_that_is_no_count_is_kept_too(given: str, tmp_path: Path):
    (tmp_path / "net.ir").write_text(ps.dumps(module(5)))
    np.savez(tmp_path / "data.npz", **FEEDS)
    job = [str(tmp_path / "net.ir"), "--pservers", "1", "--feed", str(tmp_path / "data.npz"), "--fetch", NOISE]
    kept = str(tmp_path / "kept")
    assert main(["run", *job, "--seed", given, "--steps", "1", "--checkpoint", kept]) == 0
    assert main(["run", *job, "--resume", kept]) == 0
