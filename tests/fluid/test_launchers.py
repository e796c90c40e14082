"""Launchers of scripts: who ends first is named at once, nobody is left, and output is shown line by line."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import indent

import pytest

import pstranspile.fluid as fluid
from pstranspile.fluid.launch import parser
from pstranspile.fluid.transpiler import DistributeTranspiler
from pstranspile.ir.diagnostics import DiagnosticError
from tests.fluid.running import fresh
from tests.ports import free_ports
from tests.terminal import interrupts

ROOT = str(Path(__file__).parents[2])
WHO = "import os, signal, sys, time\nserver = os.environ.get('TRAINING_ROLE') == 'PSERVER'\n"
WHO += "number = int(os.environ['PADDLE_PORT' if server else 'PADDLE_TRAINER_ID'])\n"
SERVER = """
import paddle.fluid as fluid
endpoint = f"{os.environ['POD_IP']}:{number}"
fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", [4]), 1)))
t = fluid.DistributeTranspiler()
at = os.environ["PADDLE_PSERVERS_IP_PORT_LIST"].split(",")
t.transpile(at.index(endpoint), pservers=",".join(at), trainers=2)
exe = fluid.Executor(fluid.CPUPlace())
program = t.get_pserver_program(endpoint)
exe.run(t.get_startup_program(endpoint, program))
exe.run(program)
print("served")
"""


def begun(folder: Path, script: str, *options: str, launcher: str = "launch") -> subprocess.Popen[str]:
    (folder / "train.py").write_text(WHO + script, encoding="utf-8")
    command = [sys.executable, "-m", f"pstranspile.fluid.{launcher}", *options, "train.py"]
    environment = {**os.environ, "PYTHONPATH": ROOT, "PYTHONIOENCODING": "utf-8"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "encoding": "utf-8"}
    with interrupts(signal.SIG_DFL):
        return subprocess.Popen(command, cwd=folder, env=environment, **pipes)


def launched(folder: Path, script: str, *options: str, launcher: str = "launch") -> tuple[int, str, str]:
    process = begun(folder, script, *options, launcher=launcher)
    out, errors = process.communicate(timeout=60)
    return process.returncode, out, errors


def servers(count: int) -> list[str]:
    return ["--endpoints", ",".join(f"127.0.0.1:{port}" for port in free_ports(count))]


def is_there(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def all_gone(processes: list[int]) -> bool:
    end = time.monotonic() + 20
    while any(map(is_there, processes)):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def test_the_first_one_to_fail_is_named_with_the_lines_of_the_script(tmp_path: Path) -> None:
    script = "import numpy, os\nnumber or open('here', 'w').close()\n"
    script += "while not os.path.exists('here'): time.sleep(0.02)  # until the other one runs the script, too\n"
    script += "if number == 1:\n    numpy.zeros(2).reshape(3)  # ünï\ntime.sleep(600)\n"
    status, _, errors = launched(tmp_path, script, "--nproc_per_node", "2", "--log_dir", "logs")
    assert status == 1
    told = errors[errors.index("launch: trainer 1 has ended with status 1\n") :]
    assert "\n    numpy.zeros(2).reshape(3)  # ünï\n".replace("\n    ", "\n      ") in told
    assert "\n  ValueError: cannot reshape" in told
    assert "launch: ended because of it: trainer 0\nlaunch: ended with status 1; logs in logs\n" in told
    log = (tmp_path / "logs" / "workerlog.1").read_text(encoding="utf-8")
    assert "runpy" not in log
    assert "pstranspile" not in log
    assert 'File "train.py", line 8' in log


def test_what_this_package_refuses_is_told_by_the_lines_of_the_script(tmp_path: Path) -> None:
    script = "import paddle.fluid as fluid\nloss = fluid.layers.mean(fluid.layers.data('x', [2]))\n"
    script += "fluid.Executor().run(fetch_list=[loss])\n"
    status, _, errors = launched(tmp_path, script, "--nproc_per_node", "1")
    assert status == 1
    assert "fluid.Executor().run(fetch_list=[loss])" in errors
    assert "run-feed-missing" in errors
    assert f"{ROOT}/pstranspile" not in errors


@pytest.mark.parametrize(
    ("dies", "told", "status"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "by SIGKILL\n  (it has written nothing)\n  (where nobody", 137),
        ("print('bad rows'); sys.exit(7)", "with status 7\n  bad rows\n", 7),
        ("sys.exit('no rows')", "with status 1\n  no rows\n", 1),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "by SIGSEGV\n", 139),
    ],
)
def test_a_server_that_fails_is_named_and_ends_all(dies: str, told: str, status: int, tmp_path: Path) -> None:
    at = servers(2)
    last = at[1].rpartition(":")[2]
    script = f"if number == {last}:\n    {dies}\ntime.sleep(600)\n"
    ended, _, errors = launched(tmp_path, script, *at, "--worker_num", "1", launcher="launch_ps")
    assert ended == status
    assert f"launch: server 1 has ended {told}" in errors
    assert "launch: ended because of it: server 0, trainer 0\n" in errors


def test_servers_end_when_all_trainers_have_ended_before_they_came(tmp_path: Path) -> None:
    """A server whose number no trainer has serves as well."""
    at = servers(3)
    status, out, errors = launched(tmp_path, "if server:\n" + indent(SERVER, "    "), *at, launcher="launch_ps")
    assert status == 0, errors
    assert sorted(out.splitlines()) == [f"[server {number}] served" for number in range(3)]
    for server in range(3):
        for trainer in range(2):
            news = f"pserver_{server}: goes on without trainer_{trainer}: its process has ended"
            assert f"[server {server}] {news}\n" in errors
    assert errors.endswith("launch: all have ended well; logs in logs\n")


def test_a_server_that_never_serves_is_ended_after_the_trainers(tmp_path: Path) -> None:
    script = "if server:\n    time.sleep(600)\n"
    status, _, errors = launched(tmp_path, script, *servers(1), launcher="launch_ps")
    assert status == 0, errors
    assert "[server 0] all trainers have ended, and this server has not begun to serve for 10 seconds\n" in errors


def test_a_trainer_that_ends_early_and_well_ends_nobody(tmp_path: Path) -> None:
    script = "if number:\n    time.sleep(1)\nprint('done')\n"
    status, out, errors = launched(tmp_path, script, "--nproc_per_node", "2")
    assert (status, sorted(out.splitlines())) == (0, ["[trainer 0] done", "[trainer 1] done"])
    assert errors == "launch: 2 trainers\nlaunch: all have ended well\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nobody_outlives_the_launcher(number: int, tmp_path: Path) -> None:
    """Nor do processes that those of the script have started."""
    script = "import subprocess\nother = subprocess.Popen(['sleep', '600'])\n"
    script += "print(os.getpid(), other.pid, flush=True)\ntime.sleep(600)\n"
    launcher = begun(tmp_path, script, "--nproc_per_node", "2")
    assert launcher.stdout is not None
    processes = [int(word) for _ in range(2) for word in launcher.stdout.readline().split()[2:]]
    assert len(processes) == 4
    launcher.send_signal(number)
    errors = launcher.communicate(timeout=30)[1]
    assert launcher.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert all_gone(processes)
    assert (f"launch: told to end by {signal.Signals(number).name}" in errors) == (number != signal.SIGKILL)


def test_a_second_interrupt_kills(tmp_path: Path) -> None:
    script = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n"
    launcher = begun(tmp_path, script, "--nproc_per_node", "1")
    assert launcher.stdout is not None
    assert launcher.stderr is not None
    process = int(launcher.stdout.readline().split()[2])
    launcher.send_signal(signal.SIGINT)
    while "told to end by SIGINT" not in launcher.stderr.readline():
        pass
    launcher.send_signal(signal.SIGINT)
    errors = launcher.communicate(timeout=5)[1]
    assert launcher.returncode == 130
    assert "launch: killed: trainer 0\n" in errors
    assert all_gone([process])


def test_lines_are_shown_whole_whatever_is_written(tmp_path: Path) -> None:
    script = """
for line in range(3000):
    for word in (f"{number} ", "ü" * 30, f" {line}\\n"):
        sys.stdout.write(word)
sys.stdout.flush()
sys.stdout.buffer.write(b"\\xff bytes\\r\\nbar 1\\rbar 2\\n" + b"y" * 200000 + b"\\nno end")
"""
    (tmp_path / "train.py").write_text(WHO + script, encoding="utf-8")
    command = [sys.executable, "-m", "pstranspile.fluid.launch", "--nproc_per_node", "3", "--log_dir", "l", "train.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": ROOT}, capture_output=True, timeout=60, check=True
    )
    lines = done.stdout.splitlines()
    for number in range(3):
        prefix = f"[trainer {number}] ".encode()
        own = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
        assert own[:3000] == [f"{number} {'ü' * 30} {line}".encode() for line in range(3000)]
        assert own[3000:3003] == [b"\xff bytes", b"bar 1", b"bar 2"]
        assert b"".join(own[3003:]) == b"y" * 200000 + b"no end"
        log = (tmp_path / "l" / f"workerlog.{number}").read_bytes()
        assert log.endswith(b"\xff bytes\r\nbar 1\rbar 2\n" + b"y" * 200000 + b"\nno end\n")
        assert log.count(b"\n") == 3003 + 1


def test_logs_of_the_launch_before_are_kept(tmp_path: Path) -> None:
    for number, earlier in enumerate(["", "earlier_1", "earlier_2"]):
        (tmp_path / "logs").mkdir(exist_ok=True)
        (tmp_path / "logs" / "mine.txt").write_text("stays")
        status, _, errors = launched(tmp_path, f"print({number})", "--log_dir", "logs")
        assert status == 0
        moved = f"launch: the logs of the launch before are in logs/{earlier} now\n"
        assert errors == (moved if earlier else "") + (
            "launch: 1 trainer, logs in logs\nlaunch: all have ended well; logs in logs\n"
        )
    found = {
        str(path.relative_to(tmp_path)): path.read_text() for path in (tmp_path / "logs").rglob("*.*") if path.is_file()
    }
    assert found == {
        "logs/mine.txt": "stays",
        "logs/workerlog.0": "2\n",
        "logs/earlier_1/workerlog.0": "0\n",
        "logs/earlier_2/workerlog.0": "1\n",
    }


def test_two_launches_do_not_share_a_folder_of_logs(tmp_path: Path) -> None:
    first = begun(tmp_path, "print('here', flush=True)\ntime.sleep(600)\n", "--log_dir", "logs")
    assert first.stdout is not None
    assert first.stdout.readline() == "[trainer 0] here\n"
    status, _, errors = launched(tmp_path, "", "--log_dir", "logs")
    assert (status, errors) == (
        2,
        "launch: error: another launch writes its logs into logs; give this one another --log_dir\n",
    )
    first.terminate()
    first.communicate(timeout=30)
    assert (tmp_path / "logs" / "workerlog.0").read_text() == "here\n"


def test_what_can_not_be_launched_is_known_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    command = [sys.executable, "-m", "pstranspile.fluid.launch"]
    run = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": ROOT}, "capture_output": True, "text": True}
    done = subprocess.run([*command, "none.py"], **run, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (2, "launch: error: none.py: No such file or directory\n")
    done = subprocess.run([*command, "."], **run, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (2, "launch: error: .: Is a directory\n")
    status, _, errors = launched(tmp_path, "if 1\n  pass\n", "--nproc_per_node", "3")
    assert status == 2
    assert errors.startswith('launch: error: File "train.py", line 4')
    assert errors.count("SyntaxError") == 1
    status, _, errors = launched(tmp_path, "", "--log_dir", "file")
    assert (status, errors) == (2, "launch: error: logs can't be written into file: File exists\n")
    at = servers(1)[1]
    for endpoints, told in (
        (f"{at},{at}", f"server 0 and server 1 are both at {at}"),
        ("127.0.0.1:x", "server 0 can't listen at 127.0.0.1:x: give it as HOST:PORT"),
        ("127.0.0.1:70000", "server 0 can't listen at 127.0.0.1:70000: give it as HOST:PORT"),
    ):
        status, _, errors = launched(tmp_path, "", "--endpoints", endpoints, launcher="launch_ps")
        assert (status, errors) == (2, f"launch: error: {told}\n")
    assert not (tmp_path / "logs").exists()


def test_a_port_that_is_taken_is_known_before_anything_starts(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as other:
        at = f"127.0.0.1:{other.getsockname()[1]}"
        status, _, errors = launched(tmp_path, "", "--endpoints", at, launcher="launch_ps")
    assert (status, errors) == (2, f"launch: error: server 0 can't listen at {at}: somebody does already\n")


@pytest.mark.parametrize("option", ["--worker_num=-1", "--worker_num=0", "--worker_num=two", "--server_num=0"])
def test_numbers_of_processes(option: str, tmp_path: Path) -> None:
    status, _, errors = launched(tmp_path, "", option, launcher="launch_ps")
    assert status == 2
    assert "is no number of processes" in errors or "there is at least one server and one trainer" in errors


def test_output_to_a_full_disk_ends_all(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("while True:\n    print('row')\n")
    command = [sys.executable, "-m", "pstranspile.fluid.launch", "train.py"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": ROOT}, stdout=full, stderr=subprocess.PIPE,
            text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 141
    assert "launch: what is written can't be shown any more" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_log_that_can_not_be_written_is_told_and_the_script_goes_on(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "workerlog.0").symlink_to("/dev/full")
    status, out, errors = launched(tmp_path, "print(1)\nprint(2)\n", "--log_dir", "logs")
    assert (status, out) == (0, "[trainer 0] 1\n[trainer 0] 2\n")
    assert errors.count("launch: [trainer 0] its log can't be written any more: No space left on device\n") == 1


TRAINER = """
import paddle.fluid as fluid
fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", [4]), 1)))
t = fluid.DistributeTranspiler()
t.transpile(number, pservers=os.environ["PADDLE_PSERVERS_IP_PORT_LIST"], trainers=2)
exe = fluid.Executor(fluid.CPUPlace())
"""
STOPPED = """
import subprocess
import numpy as np
if number == 1:
    subprocess.Popen(["sh", "-c", f"sleep 8; kill -CONT {os.getpid()}"])
exe.run(fluid.default_startup_program())
for step in range(300):
    if (number, step) == (1, 3):
        os.kill(os.getpid(), signal.SIGSTOP)
    exe.run(t.get_trainer_program(), feed={"x": np.ones((2, 4), "float32")}, fetch_list=[])
    time.sleep(0.1)
"""


def test_a_trainer_that_the_others_go_on_without_is_named_by_all_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PSTRANSPILE_LEASE", "2")
    script = "if server:\n" + indent(SERVER, "    ") + "else:\n" + indent(TRAINER + STOPPED, "    ")
    status, _, errors = launched(tmp_path, script, *servers(1), "--worker_num", "2", launcher="launch_ps")
    assert status == 1
    why = "goes on without trainer_1: it was not heard for 2 seconds\n"
    assert f"[server 0] pserver_0: {why}" in errors
    assert f"[trainer 0] trainer_0: pserver_0 {why}" in errors
    told = errors[errors.index("launch: trainer 1 has ended with status 1") :]
    assert "refuses trainer_1: trainer_1 was given up: it was not heard for 2 seconds\n" in told


def test_output_that_nobody_reads_ends_all(tmp_path: Path) -> None:
    process = begun(tmp_path, "while True:\n    print('row')\n", "--nproc_per_node", "2")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    errors = process.stderr.read()
    assert process.wait(timeout=30) == 141
    assert "launch: what is written can't be shown any more" in errors
    assert "Traceback" not in errors


def test_a_number_beyond_those_of_trainers_is_that_of_a_server() -> None:
    with fresh():
        loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", [4]), 1))
        fluid.optimizer.SGD(0.1).minimize(loss)
        t = DistributeTranspiler()
        t.transpile(2, pservers="127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", trainers=2)
        assert t.get_pserver_program("127.0.0.1:3") is not None
        exe = fluid.Executor(fluid.CPUPlace())
        for what in (t.get_trainer_program, t.get_trainer_startup_program):
            with pytest.raises(DiagnosticError, match="trainer_id is 2; trainers is 2, numbered from 0: only a server"):
                what()
        with pytest.raises(DiagnosticError, match="only a server may have this number"):
            exe.run(fluid.default_startup_program())
        for number in (2, 3, 7):  # Fluid 1.8.5 gives a server its programs whatever the number
            t.transpile(number, pservers="127.0.0.1:1,127.0.0.1:2", trainers=2)
            assert t.get_pserver_program("127.0.0.1:1") is not None
            with pytest.raises(DiagnosticError, match=f"trainer_id is {number}; trainers is 2, numbered from 0: only"):
                t.get_trainer_program()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--nproc_per_node", "0"], "there is at least one trainer"),
        (["--server_num", "1", "--worker_num", "0"], "there is at least one trainer"),
        (["--worker_num", "2"], "--worker_num and --workers are for trainers beside servers"),
        (["--workers", "127.0.0.1:1,127.0.0.1:2"], "--worker_num and --workers are for trainers beside servers"),
        (["--trainer_num", "2"], "--worker_num and --workers are for trainers beside servers"),
        (["--nnodes", "2"], "--nnodes 2: name the hosts with --ips"),
        (["--run_mode", "ps"], "--run_mode ps goes with servers"),
        (["--run_mode", "collective", "--server_num", "1"], "--run_mode collective goes with no servers"),
    ],
)
def test_numbers_of_trainers_that_mean_nothing(options: list[str], told: str, tmp_path: Path) -> None:
    status, out, errors = launched(tmp_path, "print(1)\n", *options)
    assert (status, out) == (2, "")
    assert told in errors


@pytest.mark.parametrize("end", ["", "sys.exit(0)\n"])
def test_a_server_whose_script_never_serves_is_told(end: str, tmp_path: Path) -> None:
    status, _, errors = launched(tmp_path, end, *servers(2), "--worker_num", "1", launcher="launch_ps")
    assert status == 0
    for server in range(2):
        assert errors.count(f"[server {server}] warning: this process was started as a server, and its script") == 1
    assert "[trainer 0]" not in errors


SHOWS = "import os, sys; print(os.environ.get('TRAINING_ROLE'), os.environ.get('PADDLE_TRAINER_ID'), sys.argv[1:])\n"


@pytest.mark.parametrize("command", ["pstranspile fluid", "pstranspile.fluid"])
def test_the_launcher_of_paddle_as_a_module(command: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SHOWS)
    options = ["-m", "paddle.distributed.launch", "--server_num", "1", "--trainer_num", "2", "train.py", "a", "-m"]
    done = subprocess.run(
        [sys.executable, "-m", *command.split(), *options], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == [
        "[server 0] PSERVER None ['a', '-m']",
        "[trainer 0] TRAINER 0 ['a', '-m']",
        "[trainer 1] TRAINER 1 ['a', '-m']",
    ]


def test_modules_of_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").write_text("")
    (tmp_path / "own" / "__main__.py").write_text(SHOWS + "import paddle.fluid, own.part\n")
    (tmp_path / "own" / "part.py").write_text("print(__name__)\n")
    for module, shown in (("own", "None None ['x']\nown.part\n"), ("own.part", "__main__\n")):
        command = [sys.executable, "-m", "pstranspile.fluid", "-m", module, "x"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, shown, "")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["-m"], "-m takes a module"),
        (["-m", "nowhere"], "there is no module nowhere"),
        (["-m", "paddle.distributed.lunch"], "there is no module paddle.distributed.lunch; did you mean "),
        (["-m", "os.path.nothing"], "there is no module os.path.nothing"),
    ],
)
def test_modules_that_are_not_there(options: list[str], says: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pstranspile.fluid", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"python -m pstranspile.fluid: {says}")


OF_2_6 = [
    *("master", "legacy", "rank", "log_level", "log_overwrite", "sort_ip", "enable_gpu_log", "nnodes", "log_dir"),
    *("nproc_per_node", "run_mode", "job_id", "devices", "gpus", "npus", "xpus", "host", "ips", "start_port"),
    *("auto_parallel_config", "auto_tuner_json", "servers", "trainers", "trainer_num", "server_num", "gloo_port"),
    *("with_gloo", "max_restart", "elastic_level", "elastic_timeout"),
]
"""The options that the launcher of Paddle 2.6.2 lists."""


def test_options_of_2_6_are_known_and_those_without_effect_are_named(tmp_path: Path) -> None:
    known = parser()._option_string_actions
    assert [name for name in OF_2_6 if f"--{name}" not in known] == []
    options = ["--devices", "0,1", "--host", "127.0.0.1", "--start_port", "7200", "--max_restart", "3", "--rank", "0"]
    status, out, errors = launched(tmp_path, SHOWS, *options)
    assert (status, out.count("None")) == (0, 2)
    assert errors.splitlines()[:3] == [
        "launch: --rank 0 has no effect: hosts are named with --ips, each with a launcher of its own",
        "launch: --max_restart 3 has no effect: processes that fail end all others, and nothing is started again",
        "launch: 2 trainers",
    ]


@pytest.mark.parametrize("launcher", ["launch", "launch_ps"])
def test_an_option_that_is_misspelt(launcher: str, tmp_path: Path) -> None:
    status, _, errors = launched(tmp_path, SHOWS, "--servr_num", "1", launcher=launcher)
    told = f"{launcher}: error: there is no option --servr_num; did you mean --server_num?\n"
    assert (status, errors) == (2, f"{told}`--help` explains the options\n")


PLAIN = """
import numpy as np
import paddle.fluid as fluid

x = fluid.data("x", [None, 3])
loss = fluid.layers.mean(fluid.layers.fc(x, 1))
LINE
exe = fluid.Executor()
exe.run(fluid.default_startup_program())
for _ in range(2):
    exe.run(feed={"x": np.ones((4, 3), "float32")}, fetch_list=[loss])
"""
SGD = "fluid.optimizer.SGD(0.1).minimize(loss)"
COLLECTIVE = """
from paddle.fluid.incubate.fleet.base.role_maker import PaddleCloudRoleMaker
from paddle.fluid.incubate.fleet.collective import fleet
fleet.init(PaddleCloudRoleMaker(is_collective=True))
fleet.distributed_optimizer(fluid.optimizer.SGD(0.1)).minimize(loss)
loss = loss.name
exe = fluid.Executor()
exe.run(fluid.default_startup_program())
for _ in range(2):
    exe.run(fleet.main_program, feed={"x": np.ones((4, 3), "float32")}, fetch_list=[loss])
raise SystemExit
"""


@pytest.mark.parametrize(
    ("line", "options", "cluster"),
    [
        (SGD, ["--nproc_per_node", "2"], "2 trainers"),
        (SGD, ["--server_num", "1"], "1 trainer and 1 server"),
        (SGD, ["--nproc_per_node", "1"], ""),
        ("", ["--nproc_per_node", "2"], ""),
        (COLLECTIVE, ["--nproc_per_node", "2"], ""),
    ],
)
def test_processes_that_train_without_each_other_are_told_once(
    line: str, options: list[str], cluster: str, tmp_path: Path
) -> None:
    status, _, errors = launched(tmp_path, PLAIN.replace("LINE", line), *options)
    assert status == 0, errors
    said = re.findall(r"^\[(.*)\] train.py:\d+: UserWarning: the environment names (.*), but this .*", errors, re.M)
    assert said == ([("trainer 0", cluster)] if cluster else [])
    assert errors.count("each process trains alone") == len(said)


SEEDED = """
import numpy as np
import paddle.fluid as fluid
from paddle.fluid.incubate.fleet.base import role_maker
from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler import fleet
x = fluid.layers.data("x", [3])
begun = fluid.initializer.Uniform(-0.5, 0.5, seed=5)
loss = fluid.layers.mean(fluid.layers.fc(x, 1, param_attr=fluid.ParamAttr(initializer=begun), bias_attr=False))
exe = fluid.Executor(fluid.CPUPlace())
feed = {"x": np.arange(12, dtype="float32").reshape(4, 3)}
if alone:
    fluid.optimizer.SGD(0.1).minimize(loss)
    exe.run(fluid.default_startup_program())
    print(exe.run(feed=feed, fetch_list=[loss])[0])
else:
    fleet.init(role_maker.PaddleCloudRoleMaker())
    fleet.distributed_optimizer(fluid.optimizer.SGD(0.1)).minimize(loss)
    if server:
        fleet.init_server()
        fleet.run_server()
    else:
        fleet.init_worker()
        exe.run(fleet.startup_program)
        print(exe.run(fleet.main_program, feed=feed, fetch_list=[loss])[0])
        fleet.stop_worker()
"""


def test_a_cluster_starts_where_one_machine_starts(tmp_path: Path) -> None:
    """The initialiser has a seed of its own, the program has none."""
    status, alone, errors = launched(tmp_path, "alone = True" + SEEDED, "--nproc_per_node", "1")
    assert status == 0, errors
    options = [*servers(1), "--worker_num", "1"]
    status, served, errors = launched(tmp_path, "alone = False" + SEEDED, *options, launcher="launch_ps")
    assert status == 0, errors
    assert served == alone
