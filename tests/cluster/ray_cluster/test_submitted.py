"""Jobs that come from outside of a cluster: to its job server, as `ray job submit` does, and through Ray's client."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from tests.cluster.data.tables import module, rows, write
from tests.cluster.ray_cluster.nodes import node, persistently
from tests.ports import free_ports

pytest.importorskip("ray", reason="Ray is not installed")


@contextmanager
def head(**options: Any) -> Generator[None]:
    """A cluster of one node."""
    from ray.cluster_utils import Cluster

    try:
        cluster = persistently(
            lambda: Cluster(initialize_head=True, head_node_args={**node(3), "include_dashboard": False, **options})
        )
    except Exception as problem:
        pytest.skip(f"Ray itself does not start on this machine: {problem}")
    try:
        yield
    finally:
        cluster.shutdown()


def require_trained(folder: Path, on: str, *submit: str) -> None:
    """Runs a job and compares what comes of it with the simulation."""
    (folder / "net.ir").write_text(ps.dumps(module()))
    path = write(folder / "x.jsonl", rows(40))
    command = [sys.executable, "-m", "pstranspile", "launch", str(folder / "net.ir"), "--on", on]
    command += ["--pservers", "a:1", "--trainers", "2", "--cpus", "0.5", "--save", str(folder / "made.npz")]
    command += ["--feed", path, "--batch", "8", "--columns", "dense=a,b"]
    known = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run([*submit, *command], capture_output=True, text=True, timeout=300, env=known, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step 5/5" in done.stdout
    data = ps.Data(path, batch=8, columns={"dense": ["a", "b"]})
    expected = ps.simulate(ps.compile(module(), ps.Job(pservers=["a:1"], trainers=2)), data)
    with np.load(folder / "made.npz") as made:
        for name, value in expected.parameters.items():
            np.testing.assert_array_equal(made[f"param/{name}"], value, err_msg=name)


@pytest.mark.skipif(find_spec("aiohttp_cors") is None, reason="ray[default] has the job server")
def test_a_submitted_job_trains_on_the_cluster_it_was_handed_to(tmp_path: Path):
    (port,) = free_ports(1)
    submit = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "job",
        "submit",
        "--address",
        f"http://127.0.0.1:{port}",
        "--",
    ]
    with head(include_dashboard=True, dashboard_port=port, dashboard_host="127.0.0.1"):
        require_trained(tmp_path, "ray", *submit)


def test_a_job_trains_on_a_cluster_that_is_named_by_its_address(tmp_path: Path):
    (port,) = free_ports(1)
    with head(ray_client_server_port=port):
        require_trained(tmp_path, f"ray://127.0.0.1:{port}")
