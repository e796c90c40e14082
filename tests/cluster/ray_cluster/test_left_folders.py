"""Runs on Ray leave no folders in the place for temporary files, however they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

import pstranspile as ps
from pstranspile.cluster.ray import launch
from tests.cluster.data.tables import module, write
from tests.cluster.ray_cluster.heard import Heard
from tests.cluster.ray_cluster.jobs import job, require_nodes, slow_host, small

ray = pytest.importorskip("ray", reason="Ray is not installed")
pytest.importorskip("pyarrow", reason="files of columns are read by pyarrow")

PLACE = Path(tempfile.gettempdir())


def folders() -> set[Path]:
    """Those of hosts and of launching processes; other tests may have some too, which they remove."""
    return {path for kind in ("host", "ray") for path in PLACE.glob(f"pstranspile-{kind}-*")}


def require_none_left(made: set[Path]) -> None:
    """Waits until folders are gone: a host has a moment to remove its own after the job."""
    assert made
    until = monotonic() + 20
    while (left := {path for path in made if path.exists()}) and monotonic() < until:
        sleep(0.2)
    assert not left


def test_a_host_removes_its_own_folder_and_those_of_killed_hosts() -> None:
    from pstranspile.cluster.ray.hosts import Host

    before = folders()
    program = (
        "import os, signal; from pstranspile.cluster.ray.hosts import Host; host = Host(); "
        "print(host._work); import sys; sys.stdout.flush(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    left = Path(killed.stdout.strip())
    assert killed.returncode == -signal.SIGKILL
    assert left.is_dir()
    host = Host()
    own = folders() - before - {left}
    assert not left.exists()
    assert len(own) == 1
    host.leave()
    require_none_left(own)


@pytest.mark.parametrize("ends", ["whole", "refused", "interrupted"])
def test_nothing_is_left_of_a_job(ends: str, nodes: Any, data: ps.Data) -> None:
    require_nodes(nodes)
    before, made = folders(), set[Path]()

    def prepare(session: Any) -> None:
        def reported(role: str, fields: Any) -> None:
            made.update(folders() - before)
            if ends == "refused":
                raise RuntimeError("the caller's own")
            if ends == "interrupted":
                raise KeyboardInterrupt

        session.hosts._class = ray.remote(slow_host(0.0))
        session.listen(Heard(reported=reported))

    with suppress(KeyboardInterrupt, RuntimeError):
        launch(job(), data, cpus=0.5, prepare=prepare)
    require_none_left(made)


def test_nothing_is_left_of_a_command_that_is_told_to_end(tmp_path: Path) -> None:
    (tmp_path / "net.ir").write_text(ps.dumps(module()))
    path = write(tmp_path / "x.jsonl", small(4000))
    command = [sys.executable, "-m", "pstranspile", "launch", str(tmp_path / "net.ir"), "--on", "ray"]
    command += ["--pservers", "a:1", "--trainers", "1", "--cpus", "0.5", "--feed", path, "--batch", "2"]
    command += ["--columns", "dense=a,b", "--epochs", "1000"]
    before = folders()
    known = {**os.environ, "RAY_ADDRESS": "local"}
    with open(tmp_path / "out", "w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL, env=known)
    try:
        until = monotonic() + 120
        while "step" not in (tmp_path / "out").read_text() and process.poll() is None and monotonic() < until:
            sleep(0.2)
        made = folders() - before
        assert len(made) >= 3
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    finally:
        process.kill()
    require_none_left(made)
