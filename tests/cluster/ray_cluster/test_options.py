"""Options of jobs on a cluster: certificates, rows on disk, Prometheus."""

from __future__ import annotations

import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.net.supervisor import Ports
from pstranspile.cluster.ray import launch
from pstranspile.tools.cli import main
from tests.cluster.data.tables import module, write
from tests.cluster.ray_cluster.heard import Heard
from tests.cluster.ray_cluster.jobs import job, require_nodes, small

ray = pytest.importorskip("ray", reason="Ray is not installed")
pytest.importorskip("pyarrow", reason="files of columns are read by pyarrow")


def certificates(folder: Path, address: str) -> str:
    """Certificates for machines at an address."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificates")
    folder.mkdir()
    new = ["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=training"]
    signs = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-out", "tls.crt"]
    (folder / "names").write_text(f"subjectAltName = IP:{address}\n")
    for command in (
        [*new, "-x509", "-keyout", "ca.key", "-out", "ca.crt"],
        [*new, "-keyout", "tls.key", "-out", "machine.csr"],
        ["openssl", "x509", "-req", "-in", "machine.csr", *signs],
    ):
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return str(folder)


def test_certificates_for_other_addresses_end_the_job(nodes: Any, data: ps.Data, tmp_path: Path):
    others = certificates(tmp_path / "tls", "10.1.2.3")

    def impatient(session: Any) -> None:
        session.listen(Heard(lambda roles: setattr(session, "settings", session.settings._replace(patience=3.0))))

    told = r"error\[ray-lost\]: trainer_\d: nobody answers .*its certificate is not accepted: IP address mismatch"
    with pytest.raises(ps.DiagnosticError, match=told):
        launch(job(), data, cpus=0.5, tls=others, prepare=impatient)


def test_machines_talk_with_certificates_and_have_rows_on_disk(nodes: Any, tmp_path: Path):
    require_nodes(nodes)
    (tmp_path / "net.ir").write_text(ps.dumps(module()))
    path = write(tmp_path / "x.jsonl", small(80))
    job = [str(tmp_path / "net.ir"), "--pservers", "2", "--trainers", "2", "--set", "large_tables=embedding_0.w_0"]
    job += ["--feed", path, "--batch", "8", "--columns", "dense=a,b"]
    assert main(["run", *job, "--save", str(tmp_path / "simulated.npz")]) == 0
    on_ray = ["launch", *job, "--on", "ray", "--cpus", "0.5"]
    saved = [
        "--tls",
        certificates(tmp_path / "tls", ray.util.get_node_ip_address()),
        "--table-folder",
        str(tmp_path / "rows"),
        "--table-memory",
        "1",
        "--save",
        str(tmp_path / "real.npz"),
    ]
    assert main([*on_ray, *saved]) == 0
    assert (tmp_path / "rows").is_dir()
    with np.load(tmp_path / "simulated.npz") as simulated, np.load(tmp_path / "real.npz") as real:
        assert sorted(simulated) == sorted(real)
        for name in simulated:
            np.testing.assert_array_equal(real[name], simulated[name], err_msg=name)


def test_certificates_that_a_node_has_not(nodes: Any, data: ps.Data, tmp_path: Path):
    with pytest.raises(
        ps.DiagnosticError, match=r"(?s)error\[start-tls\]: can't be read.*note: \w+ is on the node "
    ) as caught:
        launch(job(), data, cpus=0.5, tls=tmp_path)
    assert str(tmp_path / "ca.crt") in str(caught.value)


def test_prometheus_is_answered(nodes: Any, data: ps.Data, tmp_path: Path):
    pytest.importorskip("prometheus_client", reason="the extra `metrics` is optional")
    ports = Ports(1)
    address, answers = ports.addresses[0], list[str]()
    ports.close()

    def ask() -> None:
        while not ended.wait(0.05):
            with suppress(OSError), urlopen(f"http://{address}/metrics", timeout=1) as answer:
                answers.append(answer.read().decode())

    (tmp_path / "net.ir").write_text(ps.dumps(module()))
    options = ["--pservers", "1", "--trainers", "1", "--on", "ray", "--cpus", "0.5", "--metrics", address]
    fed = ["--feed", *data.files, "--batch", "8", "--columns", "dense=a,b", "--epochs", "20"]
    ended, asking = Event(), Thread(target=ask)
    asking.start()
    try:
        assert main(["launch", str(tmp_path / "net.ir"), *options, *fed]) == 0
    finally:
        ended.set()
        asking.join()
    assert 'pstranspile_starts_total{role="trainer_0"} 1.0' in answers[-1]
    assert re.search(r'pstranspile_steps_total\{role="trainer_0"\} [1-9]', "".join(answers))
