"""What Prometheus is told of a job while its processes run."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import pytest

from pstranspile.cluster.net.metrics import MOST_REQUEST, Metrics
from pstranspile.cluster.net.status import DisplayedValue
from pstranspile.cluster.net.supervisor import Member, Ports
from pstranspile.cluster.net.transport import MOST_STRANGERS
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.tools.cli import main
from tests.cluster.net.strangers import connect, say

PROGRAM = str(Path(__file__).parents[3] / "examples" / "regression.ir")


def members() -> dict[str, Member]:
    trainer, server = (Member(role, ["true"], Path("log")) for role in ("trainer_0", "pserver_0"))
    trainer.starts, trainer.last_reports = (
        2,
        {"step": 7, "cpu": 1.5, "values": {"loss": [*DisplayedValue("", (0.25,))], "w": ["f32[9]", []]}},
    )
    return {"trainer_0": trainer, "pserver_0": server}


def test_what_is_told() -> None:
    pytest.importorskip("prometheus_client", reason="the extra `metrics` is optional")
    ports = Ports(1)
    address = ports.addresses[0]
    ports.close()
    known = members().values()
    metrics = Metrics(address, lambda: [member.process_reports() for member in known])
    with urlopen(f"http://{address}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    metrics.close()
    assert [line for line in lines if "trainer_0" in line] == [
        'pstranspile_running{role="trainer_0"} 0.0',
        'pstranspile_starts_total{role="trainer_0"} 2.0',
        'pstranspile_steps_total{role="trainer_0"} 7.0',
        'pstranspile_cpu_seconds_total{role="trainer_0"} 1.5',
        'pstranspile_fetched{role="trainer_0",variable="loss"} 0.25',
    ]
    assert 'pstranspile_steps_total{role="pserver_0"} 0.0' in lines


def test_strangers_who_say_nothing_are_few_and_keep_nobody_out() -> None:
    """Each would cost a thread and a descriptor, of which a process has a bounded number."""
    pytest.importorskip("prometheus_client", reason="the extra `metrics` is optional")
    metrics = Metrics("127.0.0.1:0", lambda: [member.process_reports() for member in members().values()])
    address = f"127.0.0.1:{metrics.port}"
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    silent: list[socket.socket] = []
    for number in range(4 * MOST_STRANGERS):
        silent.append(connect(address))
        silent[-1].sendall((b"", b"G", b"GET / HTTP/1.1\r\nHost: x")[number % 3])
    with urlopen(f"http://{address}/metrics") as answer:
        assert b'pstranspile_running{role="trainer_0"} 0.0' in answer.read()
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) <= files + len(silent) + MOST_STRANGERS + 2
    for sock in silent:
        sock.close()
    metrics.close()


@pytest.mark.parametrize(
    ("said", "answered"),
    [
        (b"GET / HTTP/1.0\n\n", b"HTTP/1.1 200 OK"),
        (b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 200 OK"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * (MOST_REQUEST + 5000), b""),
        (b"GET / HTTP/1.1\r\n" + b"X: x\r\n" * 4000, b""),
        (b"POST / HTTP/1.1\r\n\r\n", b""),
        (b"PSTW" + bytes(44), b""),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b""),
        (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03", b""),
    ],
)
def test_what_is_asked_in_other_ways(said: bytes, answered: bytes) -> None:
    pytest.importorskip("prometheus_client", reason="the extra `metrics` is optional")
    metrics = Metrics("127.0.0.1:0", list)
    answer = say(f"127.0.0.1:{metrics.port}", said, more=True)
    metrics.close()
    assert answer.startswith(answered)
    assert bool(answer) == bool(answered)
    assert (b"pstranspile_steps" in answer) == said.startswith(b"GET / HTTP/1.0")


def test_where_nobody_can_be_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("prometheus_client", reason="the extra `metrics` is optional")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(
            DiagnosticError, match=r"error\[launch-metrics\]: --metrics 127.0.0.1:\d+: Address already in use"
        ):
            Metrics(address, list)
    with pytest.raises(DiagnosticError, match=r"--metrics here: here is no host:port"):
        Metrics("here", list)
    monkeypatch.setattr("pstranspile.cluster.net.metrics.find_spec", lambda name: None)
    with pytest.raises(DiagnosticError, match=r"pip install '\.\[metrics\]'"):
        Metrics(address, list)


def test_one_machine_is_asked(tmp_path: Path) -> None:
    """`start --metrics` answers for its own machine, while it waits for the others as well."""
    pytest.importorskip("prometheus_client", reason="the extra `metrics` is optional")
    ports = Ports(2)
    serving, asked = ports.addresses
    ports.close()
    folder = str(tmp_path / "job")
    assert main(["compile", PROGRAM, "--pservers", serving, "--trainers", "1", "-o", folder]) == 0
    command = [sys.executable, "-m", "pstranspile", "start", folder, "--role", "pserver_0", "--metrics", asked]
    process = subprocess.Popen(command)
    lines: list[str] = []
    try:
        end = time.monotonic() + 60
        while not lines and time.monotonic() < end:
            time.sleep(0.1)
            with suppress(OSError), urlopen(f"http://{asked}/metrics") as answer:
                lines = answer.read().decode().splitlines()
    finally:
        process.kill()
        process.wait()
    assert 'pstranspile_running{role="pserver_0"} 1.0' in lines
    assert 'pstranspile_starts_total{role="pserver_0"} 1.0' in lines


@pytest.mark.parametrize(("fresh", "made"), [(1e9, 1), (-1.0, 30)])
def test_who_asks_often_is_told_the_same_for_a_moment(fresh: float, made: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To put an answer together takes long in a large job, in which one who asks without end kept others waiting."""
    pytest.importorskip("prometheus_client", reason="the extra `metrics` is optional")
    monkeypatch.setattr("pstranspile.cluster.net.metrics.FRESH", fresh)
    looks: list[int] = []
    metrics = Metrics(
        "127.0.0.1:0", lambda: [looks.append(1) or member.process_reports() for member in members().values()]
    )
    looks.clear()
    answers = {say(f"127.0.0.1:{metrics.port}", b"GET / HTTP/1.1\r\n\r\n") for _ in range(30)}
    metrics.close()
    assert len(looks) == made * len(members())
    assert len(answers) == 1
