"""A job that is handed to the job server of a cluster, as `ray job submit` does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import pstranspile as ps
from tests.data_rows.tables import module, rows, write

pytest.importorskip("ray", reason="Ray is not installed")
pytestmark = pytest.mark.skipif(find_spec("aiohttp_cors") is None, reason="ray[default] has the job server")


def test_a_submitted_job_trains_on_the_cluster_it_was_handed_to(tmp_path: Path):
    from ray.cluster_utils import Cluster

    from tests.ray_cluster.nodes import node

    with socket.create_server(("127.0.0.1", 0)) as made:
        port: int = made.getsockname()[1]
    head = {**node(3), "include_dashboard": True, "dashboard_port": port, "dashboard_host": "127.0.0.1"}
    try:
        cluster = Cluster(initialize_head=True, head_node_args=head)
    except Exception as problem:
        pytest.skip(f"Ray itself does not start on this machine: {problem}")
    (tmp_path / "net.ir").write_text(ps.dumps(module()))
    path = write(tmp_path / "x.jsonl", rows(40))
    try:
        command = [sys.executable, "-m", "pstranspile", "launch", str(tmp_path / "net.ir"), "--on", "ray"]
        command += ["--pservers", "a:1", "--trainers", "2", "--cpus", "0.5", "--save", str(tmp_path / "made.npz")]
        command += ["--feed", path, "--batch", "8", "--columns", "dense=a,b"]
        submit = [sys.executable, "-m", "ray.scripts.scripts", "job", "submit", "--address", f"http://127.0.0.1:{port}"]
        known = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        done = subprocess.run(
            [*submit, "--", *command], capture_output=True, text=True, timeout=300, env=known, check=False
        )
    finally:
        cluster.shutdown()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step 5/5" in done.stdout
    data = ps.Data(path, batch=8, columns={"dense": ["a", "b"]})
    expected = ps.simulate(ps.compile(module(), ps.Job(pservers=["a:1"], trainers=2)), data)
    with np.load(tmp_path / "made.npz") as made:
        for name, value in expected.parameters.items():
            np.testing.assert_array_equal(made[f"param/{name}"], value, err_msg=name)
