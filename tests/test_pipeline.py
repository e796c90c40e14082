"""The pipeline names every pass that a compile runs, and every mode of a job has a compiler."""

from __future__ import annotations

from pathlib import Path

import pytest

import pstranspile as ps
from pstranspile.compiler.job.modes import mode_names, settings_of
from pstranspile.compiler.modes import mode_of
from pstranspile.compiler.pipeline import NAMES

GOLDEN = Path(__file__).parent.parent / "golden"


def passes_of(mode: str) -> list[str]:
    ran: list[str] = []
    servers = {"pservers": 2} if settings_of(mode).servers else {}
    job = ps.Job(trainers=["a:1", "b:2"], mode=mode, **servers)
    ps.compile(ps.load(GOLDEN / "mlp_adam.ir"), job, on_pass=lambda name, result, seconds: ran.append(name))
    return list(dict.fromkeys(ran))


def test_every_mode_has_a_class_of_its_own():
    assert len({type(mode_of(name)) for name in mode_names()}) == len(mode_names())


@pytest.mark.parametrize("mode", mode_names())
def test_passes_run_in_the_order_of_the_pipeline(mode: str):
    ran = passes_of(mode)
    assert ran == [name for name in NAMES if name in ran]
    assert ran[-1] == "link"


def test_every_pass_runs_in_some_mode():
    assert {name for mode in mode_names() for name in passes_of(mode)} == set(NAMES)
