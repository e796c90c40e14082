"""What is said of options and of Ray itself before anything is started."""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.checkpoint.api import save_cluster
from pstranspile.cluster.ray import launch
from pstranspile.cluster.ray.session import programs_of, resized_job
from pstranspile.ir.startup_signals import EndSignal
from pstranspile.tools.cli import main
from tests.cluster.data.tables import module


def compiled(**options: Any) -> ps.Compiled:
    return ps.compile(module(), ps.Job(pservers=["a:1", "b:2"], trainers=2, **options))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--on", "rays"], "--on rays: give local, ray, or ray://HOST:PORT"),
        (["--on", "ray://"], "--on ray://: give local, ray, or ray://HOST:PORT"),
        (["--on", "ray", "--state", "kept"], "--state is for processes on this host"),
        (["--on", "ray", "--record", "x"], "--record is for processes on this host"),
        (["--on", "ray", "--trainers", "4..2"], "--trainers 4..2: the first number is the larger one"),
        (["--on", "ray", "--checkpoint-every", "2"], "--checkpoint-every needs --checkpoint"),
        (["--on", "ray", "--trainers", "0..2"], "--trainers 0..2: give the fewest and the most as 2..8, from 1 on"),
        (["--on", "ray", "--pservers", "1..3"], "--pservers FEWEST..MOST needs --trainers FEWEST..MOST"),
        (["--on", "ray", "--cpus", "0"], "'0' is no number of CPUs above 0"),
        (["--cpus", "2"], "--cpus is for machines on Ray"),
        (["--tls", "certificates"], "--tls is for machines on Ray"),
        (["--trainers", "2..8"], "--trainers 2..8: jobs that grow and shrink run on Ray; give --on ray"),
    ],
)
def test_options(options: list[str], told: str, capsys: pytest.CaptureFixture[str]):
    assert main(["launch", "net.ir", *options]) == 2
    assert told in capsys.readouterr().err


def test_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["launch", str(tmp_path), "--on", "ray"]) == 2
    assert "need the program and the job's options in place of a folder" in capsys.readouterr().err


REGRESSION = ["launch", "examples/linear_regression.ir", "--on", "ray", "--pservers", "1", "--trainers", "2"]


def hide(monkeypatch: pytest.MonkeyPatch, *libraries: str) -> None:
    """Has libraries be missing."""
    there = importlib.util.find_spec
    for name in ("ray.launch", "data.files"):
        module = importlib.import_module(f"pstranspile.cluster.{name}")
        monkeypatch.setattr(module, "find_spec", lambda name: None if name in libraries else there(name))


@pytest.mark.parametrize("missing", [(), ("ray",), ("ray", "pyarrow")])
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--feed", "no.npz"], "no.npz: error[run-file-unusable]: the file can't be read: No such file or directory"),
        (["--feed", "no.csv", "--batch", "2"], "no.csv: error[data-source]: the file can't be read: No such file or"),
        (["--feed", "no/*.csv", "--batch", "2"], "no/*.csv: error[data-source]: no files of rows are there"),
        (["--feed", "ok.npz", "--init", "no.npz"], "no.npz: error["),
        (["--feed", "ok.npz", "--steps", "9"], "ok.npz: error[run-file-unusable]: 2 steps are fed, 9 are asked for"),
        ([], "error[run-feed-missing]"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_data_are_looked_at_before_ray_is(
    options: list[str],
    told: str,
    missing: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    hide(monkeypatch, *missing)
    monkeypatch.setattr("pstranspile.tools.cli.launch_ray._have_ray_print_plainly", Mock(side_effect=AssertionError))
    program = Path(REGRESSION[1]).absolute()
    monkeypatch.chdir(tmp_path)
    np.savez("ok.npz", x=np.ones((2, 4, 13), "float32"), y=np.ones((2, 4, 1), "float32"))
    assert main(["launch", str(program), *REGRESSION[2:], *options]) == 1
    assert told in capsys.readouterr().err


def test_what_ray_prints_is_no_output_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("ray", reason="Ray is not installed")
    np.savez(tmp_path / "ok.npz", x=np.ones((2, 4, 13), "float32"), y=np.ones((2, 4, 1), "float32"))
    for name in ("RAY_COLOR_PREFIX", "RAY_DEDUP_LOGS"):
        monkeypatch.setenv(name, "")  # so that it is as it was after the test
        monkeypatch.delenv(name)

    def printing(*_: Any, prepare: Any, **__: Any) -> None:
        from ray._private.worker import print_worker_logs

        print_worker_logs({"pid": 1, "ip": "a", "localhost": "a", "lines": ["words"], "is_err": False}, sys.stdout)
        session = Mock(steps=2, cuts=Mock(first_step=0))
        prepare(session)
        (listener,) = (call.args[0] for call in session.listen.call_args_list)
        listener.machines_started(["trainer_0"])
        listener.machine_reported("trainer_0", {"step": 1, "values": {"loss": ("", [0.5])}})

    monkeypatch.setattr("pstranspile.cluster.ray.launch", printing)
    assert main([*REGRESSION, "--feed", str(tmp_path / "ok.npz")]) == 0
    said = capsys.readouterr()
    assert said.out == "step 1/2  trainer_0 loss 0.5\n"
    assert said.err == "(pid=1) words\n"
    assert (os.environ["RAY_COLOR_PREFIX"], os.environ["RAY_DEDUP_LOGS"]) == ("0", "0")


def test_ray_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.import_module("pstranspile.cluster.ray.launch"),
        "find_spec",
        lambda name: None if name == "ray" else there(name),
    )
    np.savez(tmp_path / "ok.npz", x=np.ones((2, 4, 13), "float32"), y=np.ones((2, 4, 1), "float32"))
    assert main([*REGRESSION, "--feed", str(tmp_path / "ok.npz")]) == 1
    assert "error[ray-library]: Ray is not installed; get it with: pip install" in capsys.readouterr().err


SLOW = ConnectionError("Initialization failure from server:\nStarting Ray client server failed.")
NODE = RuntimeError("The current node timed out during startup.\nThis could happen because ...")


@pytest.mark.parametrize(
    ("address", "raised", "asked", "told"),
    [
        (None, [ConnectionError("none"), NODE], [None, "local"], "nor starts one on this host: The current node"),
        (None, [NODE], [None], "Ray neither joins a cluster nor starts one on this host: The current node timed out"),
        ("a:1", [ConnectionError("it is down\nsince now")], ["a:1"], "no cluster answers at a:1: it is down"),
        ("a:1", [SLOW, SLOW, SLOW], ["a:1"] * 3, "no cluster answers at a:1: Initialization failure from server:"),
        ("a:1", [SLOW, RuntimeError("Version mismatch")], ["a:1"] * 2, "the cluster at a:1 can't be joined: Version"),
        ("a:1", [RuntimeError("Version mismatch")], ["a:1"], "the cluster at a:1 can't be joined: Version mismatch"),
    ],
)
def test_no_cluster(
    address: str | None,
    raised: list[Exception],
    asked: list[str | None],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
):
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(importlib.import_module("pstranspile.cluster.ray.launch"), "_require_listener", lambda _: None)
    init = Mock(side_effect=raised)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # other tests of this process may have joined a cluster
    with pytest.raises(ps.DiagnosticError, match=r"error\[ray-lost\]") as caught:
        launch(compiled(), steps=1, address=address)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [call.kwargs["address"] for call in init.call_args_list] == asked  # never whatever runs on this host


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "localhost:{}", "{}.invalid:6379", "127.0.0.1:99999"])
def test_an_address_where_nobody_listens_is_told_before_ray_tries_it(address: str, monkeypatch: pytest.MonkeyPatch):
    """Which takes a quarter of an hour."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    init = Mock()
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and listens to nobody
        named = address.format(free.getsockname()[1])
        monkeypatch.setenv("RAY_ADDRESS", named)
        with pytest.raises(ps.DiagnosticError, match=rf"error\[ray-lost\]: no cluster answers at {named}: \w"):
            launch(compiled(), steps=1)
    init.assert_not_called()


@pytest.mark.parametrize("given", [None, "7"])
def test_a_head_that_is_silent_is_asked_a_few_times(given: str | None, monkeypatch: pytest.MonkeyPatch):
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    from pstranspile.cluster.ray.launch import _TRIES, _connect

    monkeypatch.delenv(_TRIES, raising=False)
    if given is not None:
        monkeypatch.setenv(_TRIES, given)
    seen: list[str | None] = []

    def silent(**_: object) -> None:
        seen.append(os.environ.get(_TRIES))
        raise RuntimeError("Failed to get cluster ID")

    monkeypatch.setattr(ray, "init", silent)
    refused = pytest.raises(ps.DiagnosticError, match="can't be joined: Failed to get cluster ID")
    with socket.create_server(("127.0.0.1", 0)) as head, refused:
        _connect(f"127.0.0.1:{head.getsockname()[1]}", 1)
    assert (seen, os.environ.get(_TRIES)) == ([given or "3"], given)


@pytest.mark.parametrize(
    ("ranges", "told"),
    [
        ({"trainers": (8, 2)}, r"trainers is \(8, 2\); it must be \(fewest, most\), from 1 on"),
        ({"trainers": (1, 2), "servers": (0, 2)}, r"servers is \(0, 2\)"),
        ({"servers": (1, 2)}, "servers grow and shrink with trainers, which have no range"),
    ],
)
def test_ranges_that_are_none(ranges: Any, told: str):
    pytest.importorskip("ray", reason="Ray is not installed")
    with pytest.raises(ValueError, match=told):
        launch(compiled(), **ranges)


def test_servers_go_with_trainers():
    pytest.importorskip("ray", reason="Ray is not installed")
    from pstranspile.cluster.ray.session import Settings

    settings = Settings(None, (), None, 0, 1.0, False, (2, 8), (1, 4))
    assert [settings.servers_of(trainers, 9) for trainers in range(2, 9)] == [1, 1, 2, 2, 3, 3, 4]
    assert [settings.fitting(machines, 9) for machines in (1, 3, 6, 7, 12, 99)] == [
        *((2, 1), (2, 1), (4, 2), (5, 2), (8, 4), (8, 4))
    ]
    assert settings._replace(servers=None).fitting(6, 2) == (4, 2)


def test_a_job_for_other_numbers_of_machines():
    job = compiled(min_block_size=4)
    other = ps.compile(job.source, resized_job(job, 3, 4))
    assert (other.plan.trainers, other.plan.pservers) == (3, ("a:1", "b:2", "127.0.0.1:6174", "127.0.0.1:6175"))
    assert other.job is not None
    assert other.job.min_block_size == 4
    assert resized_job(job, 2, 1).pservers == ("a:1",)
    rings = ps.compile(module(), ps.Job(trainers=["a:1", "b:2"], mode="nccl2"))
    with pytest.raises(ps.DiagnosticError, match=r"a job of mode nccl2 can't have other numbers of machines"):
        resized_job(rings, 3, 0)


def test_the_programs_are_those_of_compile(tmp_path: Path):
    (tmp_path / "net.ir").write_text(ps.dumps(module()))
    assert (
        main(
            [
                "compile",
                str(tmp_path / "net.ir"),
                "--pservers",
                "a:1,b:2",
                "--trainers",
                "2",
                "-o",
                str(tmp_path / "out"),
            ]
        )
        == 0
    )
    written = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    made = programs_of(ps.compile(ps.load(str(tmp_path / "net.ir")), ps.Job(pservers=["a:1", "b:2"], trainers=2)))
    assert made.keys() == written.keys()
    assert all(made[name] == written[name] for name in made if name != "plan.json")


def test_checkpoints_of_another_run(tmp_path: Path):
    """They are refused before a cluster is joined."""
    pytest.importorskip("ray", reason="Ray is not installed")
    job, kept = compiled(), tmp_path / "kept"
    cluster = ps.Cluster(job.roles(), distributed_vars=job.distributed_vars)
    cluster.start()
    for place in ("kept", "other"):
        save_cluster(cluster, job, tmp_path / place / "step_00000000")
    with pytest.raises(ps.DiagnosticError, match="it holds checkpoints of an earlier run"):
        launch(job, checkpoint=kept)
    with pytest.raises(ps.DiagnosticError, match="it holds checkpoints of another run than"):
        launch(job, checkpoint=kept, resume=tmp_path / "other")
    with pytest.raises(ps.DiagnosticError, match="checkpoint-model"):
        launch(job, checkpoint=kept, resume=kept, seed=12345)
    with pytest.raises(ValueError, match="init and resume"):
        launch(job, init={"w": 1}, resume=kept)


@pytest.mark.parametrize("recorded", [False, True])
def test_a_cluster_that_starts_here_has_the_cpus_that_the_job_needs(
    recorded: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Also where `ray start` has left the record of a cluster that is gone."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    from pstranspile.cluster.ray.launch import _connect

    existing = ValueError("When connecting to an existing cluster, num_cpus and num_gpus must not be provided.")
    init = Mock(side_effect=[existing, ConnectionError("gone"), None] if recorded else [None])
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    _connect(None, 5000)
    asked = [(call.kwargs["address"], call.kwargs.get("num_cpus")) for call in init.call_args_list]
    assert asked == ([(None, 5000), (None, None), ("local", 5000)] if recorded else [(None, 5000)])
    assert "a cluster of Ray's has started on this host, with 5000 CPUs, which share the" in capsys.readouterr().err


def test_a_cluster_that_is_there_is_joined_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    from pstranspile.cluster.ray.launch import _connect

    existing = ValueError("When connecting to an existing cluster, num_cpus and num_gpus must not be provided.")
    init = Mock(side_effect=[existing, None, None])
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: Mock(gcs_address="10.0.0.1:6379"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    _connect(None, 4)
    _connect("ray://a:1", 4)
    asked = [(call.kwargs["address"], call.kwargs.get("num_cpus")) for call in init.call_args_list]
    assert asked == [(None, 4), (None, None), ("ray://a:1", None)]
    assert capsys.readouterr().err.splitlines() == [
        "pstranspile launch: joined the cluster of Ray's at 10.0.0.1:6379, which `ray start` has recorded on this "
        "host; RAY_ADDRESS=local starts one for this job alone",
        "pstranspile launch: joined the cluster of Ray's at ray://a:1",
    ]


@pytest.mark.parametrize(
    ("nodes", "machines", "share"),
    [
        ([8.0], 4, 1.0),
        ([2.0], 2, 1.0),
        ([2.0], 4, 0.5),
        ([2.0], 3, 0.6666),
        ([1.0, 1.0, 0.0], 4, 0.5),
        ([1.0, 3.0], 5, 0.75),
        ([0.5], 2, 0.25),
        ([1.0], 1000, 0.001),
        ([0.0], 3, 1.0),
        ([1.5, 1.5], 3, 0.75),
    ],
)
def test_machines_share_a_cluster_that_has_fewer_cpus(
    nodes: list[float],
    machines: int,
    share: float,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    pytest.importorskip("ray", reason="Ray is not installed")
    from pstranspile.cluster.ray import hosts

    monkeypatch.setattr(hosts, "_nodes", lambda: {str(number): cpus for number, cpus in enumerate(nodes)})
    assert hosts.share_for(machines) == share
    told = f"pstranspile launch: {machines} machines ask for {share:g} CPUs each: the cluster has {sum(nodes):g}\n"
    assert capsys.readouterr().err == (told if share < 1 else "")


def test_a_signal_ends_a_job_while_ray_starts(monkeypatch: pytest.MonkeyPatch):
    """Ray's own handler would end the process with status 15 and without a word."""
    ray = pytest.importorskip("ray")

    def starting(**_: object) -> None:
        signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(number))
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError

    def end(number: int, _frame: object) -> None:
        raise EndSignal(number)

    launching: Any = importlib.import_module("pstranspile.cluster.ray.launch")
    monkeypatch.setenv("RAY_ADDRESS", "local")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", starting)
    before = signal.signal(signal.SIGTERM, end)
    try:
        with pytest.raises(EndSignal) as stop, launching._ray_connection(None, 1):
            raise AssertionError
        stop.value.arrive()
        assert stop.value.code == 143
        assert signal.getsignal(signal.SIGTERM) is end
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_signal_ends_a_job_on_ray_as_it_ends_others(monkeypatch: pytest.MonkeyPatch):
    """Though Ray has put a handler of its own in place, and its calls let no other exception through than that of an
    interrupt.
    """
    ray = pytest.importorskip("ray")

    def initialized(**_: object) -> None:
        signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(number))

    def end(number: int, _frame: object) -> None:
        raise EndSignal(number)

    launching: Any = importlib.import_module("pstranspile.cluster.ray.launch")
    monkeypatch.setenv("RAY_ADDRESS", "local")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", initialized)
    ended = Mock()
    monkeypatch.setattr(ray, "shutdown", ended)
    before = signal.signal(signal.SIGTERM, end)
    try:
        with pytest.raises(EndSignal) as stop, launching._ray_connection(None, 1):
            os.kill(os.getpid(), signal.SIGTERM)  # raises KeyboardInterrupt
        stop.value.arrive()
        assert stop.value.code == 143
        ended.assert_called_once()
        assert signal.getsignal(signal.SIGTERM) is end
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_lost_machine_is_told_with_the_reason_that_ray_gives(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    pytest.importorskip("ray")
    hosts: Any = importlib.import_module("pstranspile.cluster.ray.hosts")
    session: Any = importlib.import_module("pstranspile.cluster.ray.session")
    said = "The actor died unexpectedly before finishing this task.\n\tclass_name: Host\n\tpid: 7\n{}\n"
    why = "The actor is dead because its node has died.\n  The node was out of memory."

    def get(_: Any) -> Any:
        raise hosts.RayActorError("17", said.format(why))

    monkeypatch.setattr(hosts.ray, "get", get)
    with pytest.raises(hosts.MachineLost) as caught:
        hosts.got("pserver_0", Mock())
    assert str(caught.value) == "pserver_0 is gone"
    run = session.Session.__new__(session.Session)
    run.settings = session.Settings(None, (), None, 0, 20.0, "")
    run.failures, run._unreached, run._reported_steps = run.settings.restarts, False, {}
    with pytest.raises(ps.DiagnosticError) as told:
        run._go_back(caught.value)
    reason = "Ray says: The actor is dead because its node has died. The node was out of memory."
    assert str(told.value) == f"error[ray-lost]: pserver_0 is gone\nnote: {reason}"
    run.settings, run.failures = run.settings._replace(restarts=1), 0
    run.hosts, run.cuts, run.job = Mock(), Mock(source=None), Mock()
    monkeypatch.setattr(session.Session, "_others_are_there", lambda *_: False)
    run._go_back(caught.value)
    assert capfd.readouterr().err == (
        f"pstranspile launch: pserver_0 is gone ({reason}); the job goes back to its beginning\n"
    )
    run.failures = 0
    run._go_back(hosts.MachineLost("pserver_0 is gone"))
    assert capfd.readouterr().err == "pstranspile launch: pserver_0 is gone; the job goes back to its beginning\n"
    assert hosts.reason_of(hosts.RayActorError("17", said.format(""))) == ""
    assert len(hosts.reason_of(hosts.RayActorError("17", said.format("x" * 5000)))) <= 600


def test_a_host_that_stands_still_is_lost(monkeypatch: pytest.MonkeyPatch):
    """Ray notices only processes that have ended. A call that takes long is waited for while others are answered."""
    pytest.importorskip("ray")
    hosts: Any = importlib.import_module("pstranspile.cluster.ray.hosts")
    session: Any = importlib.import_module("pstranspile.cluster.ray.session")
    ready: list[Any] = []

    def wait(refs: Any, **_: Any) -> Any:
        return ready.pop(0) if ready else [], refs

    def get(ref: Any) -> str:
        return f"the value of {ref}"

    monkeypatch.setattr(hosts.ray, "wait", wait)
    monkeypatch.setattr(hosts.ray, "get", get)
    with pytest.raises(hosts.MachineLost, match="pserver_0 has not answered for 20 seconds"):
        hosts.wait_for_result("pserver_0", Mock(), "part", 20.0)
    ready += [[], ["sign of life"], [], ["sign of life"], ["part"]]
    assert hosts.wait_for_result("pserver_0", Mock(), "part", 20.0) == "the value of part"
    run = session.Session.__new__(session.Session)
    run.settings = session.Settings(None, (), None, 0, 20.0, "")
    asked = session.monotonic()
    run._require_answers({"new": ("trainer_0", asked)})
    with pytest.raises(hosts.MachineLost, match="trainer_1 has not answered for 20 seconds"):
        run._require_answers({"new": ("trainer_0", asked), "old": ("trainer_1", asked - 21)})
    ready.append(["old"])
    run._require_answers({"old": ("trainer_1", asked - 21)})


def test_rays_head_is_looked_at_while_machines_train(monkeypatch: pytest.MonkeyPatch):
    """Else Ray's library ends the process a minute later, and nobody says from where the job goes on."""
    pytest.importorskip("ray")
    session: Any = importlib.import_module("pstranspile.cluster.ray.session")
    looked = Mock(side_effect=[None, session.HeadGone("Ray's head is gone")])
    monkeypatch.setattr(session, "require_head", looked)
    monkeypatch.setattr(session.ray, "wait", Mock(return_value=([], [])))
    monkeypatch.setattr(session, "monotonic", lambda: 100.0)
    run = session.Session(None, None, {}, session.Settings(None, (), None, 0, 20.0, ""), None, None)
    monkeypatch.setattr(run, "_make_room", Mock())
    for now in (100.0, 102.0):
        monkeypatch.setattr(session, "monotonic", lambda now=now: now)
        run._require_head()
    assert looked.call_count == 1
    monkeypatch.setattr(session, "monotonic", lambda: 105.1)
    run.hosts = Mock(actors={"trainer_0": Mock()})
    with pytest.raises(session.HeadGone):
        run._listen({"playing": "trainer_0"})


@pytest.mark.parametrize("connected", [True, False])
@pytest.mark.parametrize("cause", [None, "a call"])
def test_a_cluster_that_rays_client_has_lost_ends_the_job(
    connected: bool, cause: str | None, monkeypatch: pytest.MonkeyPatch
):
    """Ray's functions would start a cluster on this host, to end actors there that it does not have."""
    pytest.importorskip("ray")
    session: Any = importlib.import_module("pstranspile.cluster.ray.session")
    hosts: Any = importlib.import_module("pstranspile.cluster.ray.hosts")
    joined = [True]
    monkeypatch.setattr(hosts.ray.util.client.ray, "is_connected", lambda: joined[0])
    monkeypatch.setattr(hosts.ray, "remote", Mock())
    ended = Mock()
    monkeypatch.setattr(hosts, "_end", ended)
    run = session.Session(
        None, None, {}, session.Settings(None, (), None, 0, 20.0, ""), hosts.Hosts(1.0, {}, 5.0), Mock()
    )
    run.hosts.actors["trainer_0"] = "an actor"

    def play() -> None:
        joined[0] = connected
        problem = ConnectionError("Client is shutting down.")
        raise problem from (None if cause is None else hosts.RayError(cause))

    monkeypatch.setattr(run, "_play", play)
    if connected and cause:  # of a row of the job's data, say
        with pytest.raises(ConnectionError):
            run.run()
        assert ended.call_args_list[0].args == (["an actor"],)
    else:
        with pytest.raises(
            ps.DiagnosticError, match=r"error\[ray-lost\]: Ray's client has lost the cluster: Client is"
        ):
            run.run()
        assert all(not any(call.args) for call in ended.call_args_list)
