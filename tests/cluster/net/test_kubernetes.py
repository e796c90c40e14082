"""The manifest for Kubernetes: it is well formed, its parts fit together, and its commands are those of `start`."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pstranspile.tools.cli.start import make_options

yaml = pytest.importorskip("yaml", reason="PyYAML reads the manifest")
ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs" / "guides" / "machines.md").read_text(encoding="utf-8")


def objects() -> dict[tuple[str, str], Any]:
    text = (ROOT / "examples" / "kubernetes.yaml").read_text(encoding="utf-8")
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text)}


def pod(job: str) -> Any:
    return objects()["Job", job]["spec"]["template"]


@pytest.mark.parametrize("job", ["servers", "trainers"])
def test_every_pod_plays_a_machine(job: str) -> None:
    spec = objects()["Job", job]["spec"]
    (container,) = pod(job)["spec"]["containers"]
    assert spec["completionMode"] == "Indexed"
    assert container["command"] == ["sh", "-c"]
    (script,) = container["args"]
    for index in range(spec["completions"]):
        words = script.replace("exec pstranspile", "exec printf '%s\\n'")
        environment = {"JOB_COMPLETION_INDEX": str(index), "PATH": "/usr/bin:/bin"}
        shown = subprocess.check_output(["sh", "-c", words], env=environment, text=True).splitlines()
        assert shown[0] == "start"
        options = make_options().parse_args(shown[1:])
        assert options.role == {"servers": "pserver", "trainers": "trainer"}[job] + f"_{index}"
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        paths = (options.folder, options.tls, options.state, options.feed, options.save)
        assert all("/" + path.split("/")[1] in mounts for path in paths if path)


@pytest.mark.parametrize("job", ["servers", "trainers"])
def test_what_is_mounted_is_there(job: str) -> None:
    spec = pod(job)["spec"]
    (container,) = spec["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}
    named = {v["configMap"]["name"] for v in spec["volumes"] if "configMap" in v}
    named |= {v["secret"]["secretName"] for v in spec["volumes"] if "secret" in v}
    named |= {entry["valueFrom"]["secretKeyRef"]["name"] for entry in container["env"]}
    made = re.findall(r"kubectl create (?:configmap|secret generic) (\w+)", GUIDE)
    assert named == set(made)


def test_servers_are_found_where_the_job_says() -> None:
    service, servers = objects()["Service", "servers"], objects()["Job", "servers"]["spec"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() <= servers["template"]["metadata"]["labels"].items()
    assert servers["template"]["spec"]["subdomain"] == "servers"
    (port,) = [port["port"] for port in service["spec"]["ports"]]
    names = [f"servers-{index}.servers:{port}" for index in range(servers["completions"])]
    line = next(line for line in GUIDE.splitlines() if "compile" in line and "servers-0" in line)
    words = shlex.split(line)
    assert words[words.index("--pservers") + 1] == ",".join(names)
    trainers = objects()["Job", "trainers"]["spec"]
    assert words[words.index("--trainers") + 1] == str(trainers["completions"]) == str(trainers["parallelism"])
