"""Profiles of hosts: what is measured is complete and read as it was written, and the fit finds what is there."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.net import calibrate, tls
from pstranspile.cluster.net.calibrate import TINY, fit_machines, measure, nonnegative_least_squares
from pstranspile.cluster.net.metrics import Mark, Pace, note_mark, pace_text, quiet_pace, read_pace, steady_pace
from pstranspile.compiler.cost.profile import TIMED, Profile, read_profile
from pstranspile.tools.cli import main
from tests.compiler.cost.test_seconds import REAL


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(calibrate, "FULL", TINY)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def measured() -> tuple[Profile, list[str]]:
    """A profile of this host, and what was told of the work on it."""
    told: list[str] = []
    return measure(TINY, told.append), told


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
    """Some program has ops of each."""
    from pstranspile.compiler.cost.steps import step_cost

    used = set[str]()
    for trial in calibrate.trials(TINY.divisor):
        used |= {op.family for op in step_cost(trial.module.main, trial.rows, example=trial.feed).ops}
    assert used - {"messages"} == {*TIMED}


def test_common_ops_have_rates_of_their_own(measured: tuple[Profile, list[str]]):
    found, _ = measured
    assert {"mul", "mul_grad", "conv2d_grad", "elementwise_add spread", "sgd", "sgd rows", "lstm"} <= {*found.ops}
    assert all(min(rate) >= 0 and max(rate) > 0 for rate in found.ops.values())


@pytest.mark.parametrize(("used", "told"), [(0.05, False), (0.5, True)])
def test_it_is_told_if_other_programs_were_busy(
    used: float,
    told: bool,
    measured: tuple[Profile, list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
    monkeypatch.setattr(calibrate, "measure", lambda *_: measured[0])
    monkeypatch.setattr(calibrate.OtherPrograms, "share", property(lambda self: used))
    assert main(["calibrate", "-o", "host.json"]) == 0
    assert (f"other programs used {used:.0%} of the processors meanwhile" in capfd.readouterr().err) is told


def test_what_other_programs_use_is_a_share_of_all_processors(monkeypatch: pytest.MonkeyPatch):
    times = iter([100.0, 110.0])
    seconds = iter([5.0, 5.0 + 10.0 * (os.cpu_count() or 1) / 4])
    monkeypatch.setattr(calibrate, "perf_counter", lambda: next(times))
    monkeypatch.setattr(calibrate, "_used_by_others", lambda: next(seconds))
    assert calibrate.OtherPrograms().share == pytest.approx(0.25)


def test_what_tls_costs_is_measured_without_certificates(monkeypatch: pytest.MonkeyPatch):
    frame, byte = calibrate._tls(TINY)
    assert frame + byte > 0
    monkeypatch.setattr(tls, "WITHOUT_CERTIFICATES", "of no library")
    assert calibrate._tls(TINY) == (0.0, 0.0)


def test_another_file_is_not_replaced(capfd: pytest.CaptureFixture[str]):
    Path("notes.json").write_text("{}\n")
    assert main(["calibrate", "-o", "notes.json"]) == 1
    assert "output-foreign" in capfd.readouterr().err
    assert Path("notes.json").read_text() == "{}\n"


def test_what_is_told_of_the_work(measured: tuple[Profile, list[str]]):
    found, told = measured
    assert found.processors == calibrate.processors()
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


def test_a_fit_finds_seconds_and_factors_of_crowded_hosts():
    """Of machines on a host with room for them, and on one with twice as many machines as processors."""
    rng = np.random.default_rng(0)
    true = np.array([1e-4, 2e-6, 5e-5])
    lines, ops = rng.uniform(0.5, 20, (40, 3)), rng.uniform(1e-5, 1e-3, 40)
    extra = np.array([0.0, 1.0] * 20)
    waking = rng.uniform(0.0, 1e-4, 40)
    times = (1 + 0.1 * extra) * ops + (1 + 0.4 * extra) * (lines @ true + waking)
    given = (each.tolist() for each in (lines, times, ops, waking, extra))
    found, (of_ops, other) = fit_machines(*given)
    np.testing.assert_allclose(found, true, rtol=0.02)
    assert of_ops == pytest.approx(1.1, abs=0.02)
    assert other == pytest.approx(1.4, abs=0.02)


def marks(steps: int, each: float, processor: float, *, first: float = 0.0) -> list[Mark]:
    """Reports of a machine whose steps take so many seconds, the first one more."""
    return [Mark(n, n * processor, first + n * each, n) for n in range(1, steps + 1)]


def test_a_pace_is_the_mean_of_the_steady_part():
    """A server that updates thrice in each step has all its seconds counted."""
    found = steady_pace(
        {"trainer_0": marks(100, 0.02, 0.01, first=3.0), "pserver_0": marks(300, 0.02 / 3, 0.001, first=3.0)}
    )
    assert found is not None
    assert found.step == pytest.approx(0.02)
    assert found.processor == pytest.approx({"trainer_0": 0.01, "pserver_0": 0.003})
    assert found.sleeps == pytest.approx({"trainer_0": 1.0, "pserver_0": 3.0})


def test_the_steps_of_trainers_that_are_not_as_fast_have_a_mean():
    found = steady_pace({"trainer_0": marks(100, 0.01, 0.01), "trainer_1": marks(50, 0.02, 0.01)})
    assert found is not None
    assert found.step == pytest.approx(1 / ((100 + 50) / 2))


def test_a_run_of_a_step_has_no_pace():
    assert steady_pace({"trainer_0": marks(1, 0.02, 0.01), "pserver_0": []}) is None
    with pytest.raises(ValueError, match="without steady part"):
        quiet_pace({})


def test_other_work_in_a_part_of_a_run_does_not_count():
    disturbed = [
        mark._replace(processor=mark.processor + 0.01 * max(0, n - 60)) for n, mark in enumerate(marks(100, 0.02, 0.01))
    ]
    found = quiet_pace({"trainer_0": disturbed})
    assert found.processor["trainer_0"] == pytest.approx(0.01)


def test_a_pace_is_read_as_it_was_written(tmp_path: Path):
    pace = Pace(0.0123, {"trainer_0": 0.01, "pserver_0": 0.002}, {}, "sha256:12")
    (tmp_path / "pace.json").write_text(pace_text(pace))
    assert read_pace(str(tmp_path / "pace.json")) == pace


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[1]",
        "{",
        '{"version": 1, "step": 1.0, "machines": [{"machine": "trainer_0", "processor": 1.0}]}',
        '{"version": 2, "job": "", "step": 1.0, "machines": [{"machine": "trainer_0", "processor": 1.0}]}',
        '{"version": 1, "job": "", "step": -1.0, "machines": [{"machine": "trainer_0", "processor": 1.0}]}',
        '{"version": 1, "job": "", "step": 1.0, "machines": [{"machine": "trainer_0"}]}',
        '{"version": 1, "job": "", "step": 1.0, "machines": [7]}',
        '{"version": 1, "job": "", "step": 1.0, "machines": []}',
    ],
)
def test_other_files_have_no_pace(text: str, tmp_path: Path):
    (tmp_path / "pace.json").write_text(text)
    with pytest.raises(ps.DiagnosticError, match="cost-profile"):
        read_pace(str(tmp_path / "pace.json"))


def test_what_a_process_reported_before_it_was_started_again_does_not_count():
    held = marks(20, 0.1, 0.01)
    note_mark(held, Mark(15, 0.02, 3.0))
    assert held == [Mark(15, 0.02, 3.0)]
    note_mark(held, Mark(16, 0.03, 3.1))
    assert len(held) == 2


def test_delays_and_sharing_are_those_with_which_steps_are_as_long_as_measured(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(calibrate, "processors", lambda: 2)
    module = ps.load(Path(__file__).parents[3] / "examples" / "regression.ir")
    true = REAL._replace(delay=3e-4, sharing=1.25)
    jobs: list[calibrate.MeasuredJob] = []
    for trainers, servers in ((1, 1), (1, 1), (8, 2), (6, 2)):
        compiled = ps.compile(module, ps.Job(pservers=servers, trainers=trainers, batch_rows=640))
        work = ps.cost(compiled).work
        assert work is not None
        job = calibrate.MeasuredJob(trainers, servers, compiled.plan, work, Pace(0.0, {}, {}))
        jobs.append(job._replace(pace=Pace(calibrate._simulated_step(true, job), {}, {})))
    assert calibrate.delay_in(REAL, jobs) == pytest.approx(3e-4, rel=1e-3)
    late = REAL._replace(delay=3e-4)
    assert calibrate.sharing_in(late, jobs) == pytest.approx(1.25, abs=0.02)
    assert calibrate.delay_in(REAL, jobs[2:]) == 0.0
    assert calibrate.sharing_in(late, jobs[:2]) == 1.0
    assert calibrate.sharing_in(late, [job._replace(pace=Pace(0.0, {}, {})) for job in jobs[2:]]) == pytest.approx(
        1.0, abs=0.02
    )
