"""Machines of scripts that come late, come again, or wait for others."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import pstranspile.fluid as fluid
from pstranspile.cluster.net import site
from pstranspile.fluid import machines
from tests.cluster.net.test_unreached import ANSWERS, answer, listening
from tests.fluid.running import fresh
from tests.ports import free_ports

__all__ = ["listening"]

SCRIPT = """
import sys
import numpy as np
import paddle.fluid as fluid

role, number, endpoint = sys.argv[1], int(sys.argv[2]), sys.argv[3]
x = fluid.layers.data(name="x", shape=[9, 4], dtype="float32")  # more than will be fed
constant = fluid.ParamAttr(name="w", initializer=fluid.initializer.Constant(0.1))
loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.reduce_sum(x, dim=1), 1, param_attr=constant, bias_attr=False))
(fluid.optimizer.Adam if role == "PSERVER" else fluid.optimizer.SGD)(0.05).minimize(loss)
t = fluid.DistributeTranspiler()
t.transpile(number, pservers=endpoint, trainers=2, sync_mode=False)
exe = fluid.Executor(fluid.CPUPlace())
if role == "PSERVER":
    server = t.get_pserver_program(endpoint)
    exe.run(t.get_startup_program(endpoint, server))
    exe.run(server)
else:
    exe.run(fluid.default_startup_program())
    print("%.4f" % np.array(fluid.global_scope().find_var("w").get_tensor()).sum())
    exe.run(t.get_trainer_program(), feed={"x": np.ones((1, 1, 4), "float32")}, fetch_list=[loss])
    exe.close()
"""


def test_the_servers_optimizer_updates_and_a_trainer_may_come_again(tmp_path: Path) -> None:
    script, endpoint = tmp_path / "script.py", f"127.0.0.1:{free_ports(1)[0]}"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}

    def command(role: str, number: int) -> list[str]:
        return [sys.executable, "-m", "pstranspile.fluid", str(script), role, str(number), endpoint]

    server = subprocess.Popen(command("PSERVER", 0), env=environment)
    fetched: list[float] = []
    try:
        for _ in range(2):
            done = subprocess.run(command("TRAINER", 0), env=environment, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
            fetched.append(float(done.stdout))
    finally:
        server.kill()
        server.wait()
    assert fetched == pytest.approx([0.4, 0.2], abs=1e-3)  # a step of Adam


def test_a_machine_names_what_it_has_waited_for(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(listening, ANSWERS["not now"])
    monkeypatch.setenv("PSTRANSPILE_PATIENCE", "0.6")
    monkeypatch.setattr(site, "IDLE", 0.1)
    monkeypatch.setattr(machines, "LONG", 0)
    address = f"127.0.0.1:{listening.getsockname()[1]}"
    with fresh():
        loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", [4]), 1))
        fluid.optimizer.SGD(0.1).minimize(loss)
        t = fluid.DistributeTranspiler()
        t.transpile(0, pservers=address, trainers=2, sync_mode=False)
        t.get_trainer_program()
        with pytest.raises(RuntimeError, match=r"nobody answers for 0\.6 seconds"):
            fluid.Executor(fluid.CPUPlace()).run(fluid.default_startup_program())
    named = f"trainer_0 waits for pserver_0 at {address} (trainer_0 is here) (for 0 seconds now)\n"
    assert capsys.readouterr().err.count(named) == 1


MEETING = """
import os
import numpy as np
import paddle
from paddle.distributed import fleet

paddle.enable_static()
fleet.init(is_collective=True)
if os.environ["WHAT"] != "never":
    fleet.barrier_worker()
if fleet.worker_index() == 1:
    os._exit(7)
CALL
"""


@pytest.mark.parametrize(
    "call", ["fleet.barrier_worker()", "fleet.util.all_reduce(np.ones(2))", "fleet.util.barrier()"]
)
@pytest.mark.parametrize("what", ["never", "left"])
def test_a_peer_that_has_ended_is_named_at_the_script_s_line(call: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(MEETING.replace("CALL", call))
    addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
    environment = {
        **os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "WHAT": what, "PADDLE_TRAINERS_NUM": "2",
        "PADDLE_TRAINER_ENDPOINTS": ",".join(addresses[:2]), "PADDLE_GLOO_HTTP_ENDPOINT": addresses[2],
        "PSTRANSPILE_PATIENCE": "3",
    }  # fmt: skip
    command = [sys.executable, "-m", "pstranspile.fluid", "train.py"]
    trainers = [
        subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**environment, "PADDLE_TRAINER_ID": str(number), "PADDLE_CURRENT_ENDPOINT": addresses[number]},
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    _, told = trainers[0].communicate(timeout=60)
    assert trainers[1].wait(60) == 7
    assert trainers[0].returncode == 1
    sentence = {
        "never": "TimeoutError: trainer_1 has not come to the meeting of all trainers within 3 seconds "
        "(PSTRANSPILE_PATIENCE)",
        "left": "ConnectionError: trainer_1 has left the meeting of all trainers: its process has ended, or its "
        "connection",
    }[what]
    lines = [line for line in told.splitlines() if set(line) - {" ", "^"}]
    assert lines == [
        "Traceback (most recent call last):",
        '  File "train.py", line 13, in <module>',
        f"    {call}",
        sentence,
    ]


def test_a_trainer_that_finds_nobody_says_so_at_the_script_s_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(MEETING.replace("fleet.worker_index() == 1", "False").replace("CALL", ""))
    addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
    environment = {
        **os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "WHAT": "", "PADDLE_TRAINERS_NUM": "2",
        "PADDLE_TRAINER_ENDPOINTS": ",".join(addresses[:2]), "PADDLE_GLOO_HTTP_ENDPOINT": addresses[2],
        "PADDLE_TRAINER_ID": "1", "PADDLE_CURRENT_ENDPOINT": addresses[1], "PSTRANSPILE_PATIENCE": "1",
    }  # fmt: skip
    command = [sys.executable, "-m", "pstranspile.fluid", "train.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr.count("  File ") == 1
    reason = f"trainers meet at {addresses[2]} (PADDLE_GLOO_HTTP_ENDPOINT), which can't be reached: nobody has listened"
    assert reason in done.stderr.splitlines()[-1]


def test_what_the_system_refuses_is_shown_at_the_script_s_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import shutil\nimport paddle.fluid as fluid\n\n"
        "data = fluid.DatasetFactory().create_dataset('InMemoryDataset')\n"
        "data.set_use_var([fluid.data('x', [None, 4])])\ndata.set_filelist(['nothing.txt'])\n"
        "try:\n    data.load_into_memory()\nexcept OSError:\n    shutil.copy('nothing.txt', 'copy.txt')\n"
    )
    command = [sys.executable, "-m", "pstranspile.fluid", "train.py"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    first, second = done.stderr.split("During handling of the above exception")
    assert first.count("  File ") == 1
    assert "shutil.py" in second  # the script's own call keeps its frames
    assert "pstranspile" not in done.stderr
