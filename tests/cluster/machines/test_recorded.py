"""Fluid's own programs, run here, do what they did on Fluid's real clusters."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.simulate import Simulated, simulate
from pstranspile.ir.diagnostics import DiagnosticError
from tests.cluster.machines.recorded import arrays, loss_of, placed, roles


def run(case: str, config: str, schedule: int | None = None, *, table: bool = True) -> Simulated:
    name = f"{case}/{config}"
    options = {"distributed_vars": placed(name)} if table else {}
    loss = loss_of(case)
    return simulate(
        roles(name), arrays(case, "feeds"), 8, [loss], init=arrays(case, "init"), schedule=schedule, **options
    )


def check(case: str, run_name: str, done: Simulated) -> None:
    recorded, loss = arrays(case, run_name), loss_of(case)
    for index, losses in enumerate(recorded["loss"]):
        ours = [float(value.ravel()[0]) for value in done.fetched[index][loss]]
        np.testing.assert_allclose(ours, losses, rtol=1e-5)
    for key, sampled in recorded.items():
        if key.startswith("final/"):
            ours = done.parameters[key.removeprefix("final/")].reshape(-1)[::61]
            np.testing.assert_allclose(ours, sampled, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("schedule", [None, 1, 2])
@pytest.mark.parametrize(
    ("case", "config", "run_name"),
    [
        ("fit_a_line_sgd", "sync_2x2", "sync"),
        ("word2vec_sparse_sgd", "sync_2x2", "sync"),
        ("lr_exponential", "sync_2x2", "sync"),
        ("mlp_small_adam", "async_1x2", "async1"),
    ],
)
def test_as_on_a_real_cluster(case: str, config: str, run_name: str, schedule: int | None):
    check(case, run_name, run(case, config, schedule))


def test_the_table_of_placed_variables_can_be_inferred():
    check("word2vec_sparse_sgd", "sync", run("word2vec_sparse_sgd", "sync_2x2", table=False))


def test_contradicting_modes_are_found_before_the_run():
    """Asynchronous trainers, synchronous servers: on the real cluster they wait until a deadline passes."""
    with pytest.raises(DiagnosticError) as caught:
        run("fit_a_line_sgd", "asyncarg_2x2")
    told = [(finding.code, finding.message) for finding in caught.value.diagnostics]
    both = "listen_and_serv: pserver_0, pserver_1 will wait for a"
    assert told == [
        ("cluster-barrier", f"{both} send_barrier which no trainer sends in its main program"),
        ("cluster-barrier", f"{both} fetch_barrier which no trainer sends in its main program"),
    ]


def test_a_missing_trainer_is_found_before_the_run():
    given = {name: role for name, role in roles("fit_a_line_sgd/sync_2x2").items() if name != "trainer_1"}
    with pytest.raises(DiagnosticError, match=r"cluster-barrier.*pserver_0 waits for 2 trainers, but there is 1"):
        simulate(given, arrays("fit_a_line_sgd", "feeds"), 8)


def test_a_stuck_cluster_ends_with_a_report(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.modules[Cluster.__module__], "require_barriers", lambda trainers, servers: None)
    with pytest.raises(DiagnosticError) as caught:
        run("fit_a_line_sgd", "asyncarg_2x2")
    (finding,) = caught.value.diagnostics
    assert finding.code == "cluster-stuck"
    told = [note.message for note in finding.notes]
    assert told[0] == "trainer_0 waits at recv for answers to recv: fc_0.b_0, fc_0.w_0; not come: pserver_0, pserver_1"
    waits = "pserver_1 waits at listen_and_serv for fetch barriers of step 1; not come: trainer_0, trainer_1"
    assert told[3] == waits.replace("fetch barriers", "send barriers")


def test_a_gradient_for_another_server_is_refused():
    with pytest.raises(DiagnosticError, match=r"cluster-unknown-variable.*is sent"):
        run("fit_a_line_sgd", "crc32name_noslice_2x3")


def test_a_gradient_that_nobody_sends():
    """With one trainer Fluid's servers add up gradients under a name that is not sent."""
    with pytest.raises(DiagnosticError, match=r"cluster-not-sent.*nobody sent fc_0.b_0@GRAD.trainer_0"):
        run("fit_a_line_sgd", "sync_1x1")


def test_a_missing_server():
    given = {name: role for name, role in roles("fit_a_line_sgd/sync_2x2").items() if name != "pserver_1"}
    with pytest.raises(DiagnosticError, match=r"cluster-no-server.*no server listens at 127.0.0.1:6175"):
        simulate(given, arrays("fit_a_line_sgd", "feeds"), 8)


def test_no_trainer():
    given = {name: role for name, role in roles("fit_a_line_sgd/sync_2x2").items() if "trainer" not in name}
    with pytest.raises(DiagnosticError, match=r"cluster-roles.*no trainer"):
        simulate(given)
