"""Profiles of hosts: what is measured is complete and read as it was written, and the fit finds what is there."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.net import calibrate
from pstranspile.cluster.net.calibrate import TINY, measure, nonnegative_least_squares, spent_each
from pstranspile.compiler.cost.profile import TIMED, read_profile
from pstranspile.tools.cli import main


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(calibrate, "FULL", TINY)
    monkeypatch.chdir(tmp_path)


def test_a_profile_has_all_families_and_is_written(capfd: pytest.CaptureFixture[str], tmp_path: Path):
    assert main(["calibrate", "-o", "host.json"]) == 0
    assert "host.json: the profile of a host of " in capfd.readouterr().err
    found = read_profile("host.json")
    assert [*found.families] == [*TIMED]
    assert found.processors >= 1
    assert found.wire.bytes_per_second > 0
    held = json.loads(Path("host.json").read_text())
    assert sorted(held["measured"]) == ["arithmetic", "numpy", "pstranspile", "python"]
    assert os.uname().nodename not in json.dumps(held["measured"])
    assert str(tmp_path) not in Path("host.json").read_text()
    compiled = ps.compile(ps.load(Path(__file__).parents[3] / "examples" / "regression.ir"), ps.Job(pservers=1))
    assert ps.cost(compiled, profile=found).seconds is not None


def test_every_family_is_measured():
    """Each has an unknown of its own that some program needs."""
    told: list[str] = []
    from pstranspile.compiler.cost.seconds import terms_of
    from pstranspile.compiler.cost.steps import step_cost

    used = set[str]()
    for trial in calibrate.trials(TINY.divisor):
        told.append(trial.name)
        terms = terms_of(step_cost(trial.module.main, trial.rows, example=trial.feed))
        used |= {family for family, numbers in terms.items() if numbers[0]}
    assert used - {"messages"} == {*TIMED}


def test_another_file_is_not_replaced(capfd: pytest.CaptureFixture[str]):
    Path("notes.json").write_text("{}\n")
    assert main(["calibrate", "-o", "notes.json"]) == 1
    assert "output-foreign" in capfd.readouterr().err
    assert Path("notes.json").read_text() == "{}\n"


def test_what_is_told_of_the_work():
    told: list[str] = []
    assert measure(TINY, told.append).processors == calibrate.processors()
    assert "measuring products" in told
    assert any(line.endswith("as processes") for line in told)


def test_a_fit_finds_the_numbers_of_which_sums_are_made():
    rng = np.random.default_rng(0)
    for _ in range(20):
        true = rng.uniform(0, 1, 6) * (rng.uniform(0, 1, 6) > 0.4) * 10.0 ** rng.integers(-9, 3, 6)
        lines = rng.uniform(0.1, 1, (30, 6))
        times = lines @ true
        if times.min() > 0:
            np.testing.assert_allclose(
                nonnegative_least_squares(lines.tolist(), times.tolist()), true, rtol=1e-6, atol=1e-9 * true.max()
            )


def test_no_number_of_a_fit_is_below_0():
    """The best sums with both unknowns would need a negative one; the other alone is the best without."""
    found = nonnegative_least_squares([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]], [1.0, 0.9, 0.8])
    assert found[1] == 0.0
    ones = 1 / np.array([1.0, 0.9, 0.8])
    assert found[0] == pytest.approx(ones.sum() / (ones**2).sum())
    assert nonnegative_least_squares([[1.0, 0.0], [2.0, 0.0]], [2.0, 4.0]) == pytest.approx([2.0, 0.0])


def test_the_least_stretch_counts():
    marks = {step: 0.01 * step + (5.0 if step > 40 else 0.0) for step in range(1, 71)}
    assert spent_each(marks, 70) == pytest.approx(0.01)
    assert spent_each({}, 70) == 1e-6
