"""A script that is interrupted ends at once, with a sentence: its line, and what it was waiting for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from operator import mul
from pathlib import Path
from typing import Any

import pytest

from pstranspile.cluster.net import other_systems
from pstranspile.fluid.dataloader import Workers
from pstranspile.fluid.running.failures import line_of_script, naming_wait
from tests.ports import free_ports
from tests.terminal import interrupts

ROOT = Path(__file__).parents[2]
SOON = 5.0
"""Seconds within which a process ends that takes about one, on a host with much to do."""

CLUSTER = """
import sys
import numpy as np
import paddle.fluid as fluid

role, endpoint = sys.argv[1:3]
x = fluid.data("x", [None, 3])
loss = fluid.layers.mean(fluid.layers.fc(x, 1))
fluid.optimizer.SGD(0.1).minimize(loss)
t = fluid.DistributeTranspiler()
t.transpile(0, pservers=endpoint, trainers=TRAINERS)
exe = fluid.Executor(fluid.CPUPlace())
if role == "PSERVER":
    main = t.get_pserver_program(endpoint)
    exe.run(t.get_startup_program(endpoint, main))
    print("ready", flush=True)
    exe.run(main)
else:
    print("ready", flush=True)
    STARTUP
    print("step", flush=True)
    STEP
"""
STARTUP = "exe.run(fluid.default_startup_program())"
STEP = 'exe.run(t.get_trainer_program(), feed={"x": np.ones((4, 3), "float32")}, fetch_list=[loss])'
WAITING = """
import paddle.fluid as fluid
from paddle.fluid.transpiler.details import wait_server_ready
print("ready", flush=True)
wait_server_ready(["127.0.0.1:PORT"])
"""
CALLS = """
import grpc  # what is interrupted is the call, not the import before the first one
import paddle.fluid as fluid
from paddle.fluid.layers.io import Send

main = fluid.Program()
with fluid.program_guard(main, fluid.Program()):
    x = main.global_block().create_var(name="x", shape=[2, 3], dtype="float32", persistable=True)
    fluid.initializer.Constant(2.0)(x, main.global_block())
    Send("127.0.0.1:PORT", [x])
print("ready", flush=True)
fluid.Executor(fluid.CPUPlace()).run(main)
"""
MEETING = """
import paddle
from paddle.distributed import fleet

paddle.enable_static()
fleet.init(is_collective=True)
print("ready", flush=True)
fleet.barrier_worker()
"""
SAMPLES = """
import time
import numpy as np
import paddle

paddle.enable_static()

class Slow(paddle.io.Dataset):
    def __getitem__(self, number):
        print("ready", flush=True)
        for _ in range(600):
            time.sleep(0.1)
        return np.ones(3, "float32")

    def __len__(self):
        return 50

x = paddle.static.data("x", [None, 3])
loader = paddle.io.DataLoader(Slow(), feed_list=[x], batch_size=4, num_workers=2, places=paddle.CPUPlace())
next(iter(loader))
"""
MAPPED = """
import time
import paddle

def slow(sample):
    print("ready", flush=True)
    for _ in range(600):
        time.sleep(0.1)

list(paddle.reader.xmap_readers(slow, lambda: iter(range(9)), 2, 4)())
"""
OWN = """
import time
print("ready", flush=True)
for _ in range(600):
    time.sleep(0.1)
"""


def started(text: str, folder: Path, *arguments: str, module: bool = True, **environment: str) -> Any:
    """A script as a process, without the flags, machines and tokens that other tests of this process have named."""
    (folder / "train.py").write_text(text)
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("FLAGS_", "PADDLE_", "PSTRANSPILE_"))
    }
    command = ["-m", "pstranspile.fluid"] if module else ["-m", "pstranspile", "fluid"]
    return subprocess.Popen(
        [sys.executable, *command, "train.py", *arguments],
        cwd=folder,
        env={**clean, "PYTHONPATH": str(ROOT), **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def tell_to_go_on(process: Any) -> None:
    """Gives a script that waits for a line of its input one."""
    process.stdin.write("\n")
    process.stdin.flush()


def interrupted(
    process: Any, line: str = "ready", pause: float = 0.5, number: int = signal.SIGINT
) -> tuple[int, list[str]]:
    """The status of a process that gets one signal a moment after it has printed a line, and what it has told."""
    with process:
        try:
            for shown in process.stdout:
                if shown.startswith(line):
                    break
            time.sleep(pause)
            process.send_signal(number)
            _, told = process.communicate(timeout=SOON)
        finally:
            process.kill()
    return process.returncode, told.splitlines()


def line_of(text: str, part: str) -> int:
    """The number of the line of a script that has a part."""
    return next(number for number, line in enumerate(text.splitlines(), start=1) if part in line)


@pytest.mark.parametrize("module", [True, False], ids=["-m pstranspile.fluid", "pstranspile fluid"])
def test_a_trainer_whose_servers_are_absent(module: bool, tmp_path: Path) -> None:
    endpoint = f"127.0.0.1:{free_ports(1)[0]}"
    text = CLUSTER.replace("TRAINERS", "2").replace("STARTUP", STARTUP)
    status, told = interrupted(started(text, tmp_path, "TRAINER", endpoint, module=module))
    waits = f"trainer_0 waits for pserver_0 at {endpoint} (Connection refused)"
    assert (status, told) == (130, [f"interrupted at train.py:{line_of(text, STARTUP)}: {waits}"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_whose_trainers_are_absent(number: int, tmp_path: Path) -> None:
    process = started(CLUSTER.replace("TRAINERS", "1"), tmp_path, "PSERVER", f"127.0.0.1:{free_ports(1)[0]}")
    status, told = interrupted(process, number=number)
    assert status == 128 + number
    assert len(told) == 1
    assert told[0].startswith("interrupted: pserver_0 waits at listen_and_serv for ")
    assert told[0].endswith("; not come: trainer_0")


@pytest.mark.parametrize("step", [STEP, ""], ids=["in a step", "leaving"])
def test_a_trainer_in_the_midst_of_training(step: str, tmp_path: Path) -> None:
    """The other trainer never comes: its barrier is waited for, and at the end the server's answer."""
    endpoint = f"127.0.0.1:{free_ports(1)[0]}"
    text = CLUSTER.replace("TRAINERS", "2").replace("STARTUP", STARTUP).replace("STEP", step or "pass")
    server = started(text, tmp_path, "PSERVER", endpoint)
    try:
        if not step:  # a server that is stopped confirms nothing
            text = text.replace("    pass", f"    import os; os.kill({server.pid}, 19)")
        process = started(text, tmp_path, "TRAINER", endpoint)
        status, told = interrupted(process, "step", 2.0)
    finally:
        server.kill()
        server.communicate()
    assert status == 130
    assert len(told) == 1
    if step:
        waits = "trainer_0 waits at recv for answers to recv: fc_0.b_0, fc_0.w_0; not come: pserver_0"
        assert told == [f"interrupted at train.py:{line_of(text, STEP)}: {waits}"]
    assert told[0].startswith("interrupted")


def test_an_interrupt_that_the_script_catches_mixes_up_no_answers(tmp_path: Path) -> None:
    endpoint = f"127.0.0.1:{free_ports(1)[0]}"
    loop = (
        "for number in range(3):\n"
        "        sys.stdin.readline()\n"
        "        try:\n"
        "            print('step', flush=True)\n"
        "            fed = {'x': np.full((4, 3), number + 1, 'float32')}\n"
        "            (made,) = exe.run(t.get_trainer_program(), feed=fed, fetch_list=[total])\n"
        "            print('made', float(made[0]), flush=True)\n"
        "        except KeyboardInterrupt as stop:\n"
        "            print('caught', stop, flush=True)\n"
        "    exe.close()\n"
    )
    text = CLUSTER.replace("TRAINERS", "1").replace("STARTUP", STARTUP).replace("STEP", loop)
    text = text.replace("loss =", "total = fluid.layers.reduce_sum(x)\nloss =")
    server = started(text, tmp_path, "PSERVER", endpoint)
    try:
        assert server.stdout.readline() == "ready\n"
        trainer = started(text, tmp_path, "TRAINER", endpoint)
        tell_to_go_on(trainer)
        while trainer.stdout.readline() != "made 12.0\n":
            pass
        os.kill(server.pid, signal.SIGSTOP)
        tell_to_go_on(trainer)
        assert trainer.stdout.readline() == "step\n"
        time.sleep(0.5)
        trainer.send_signal(signal.SIGINT)
        caught = trainer.stdout.readline()
        os.kill(server.pid, signal.SIGCONT)
        out, told = trainer.communicate(timeout=60)
    finally:
        server.kill()
        server.communicate()
    assert caught.startswith("caught trainer_0 waits at ")
    assert (trainer.returncode, told) == (0, "")
    assert out.split()[-2:] == ["made", "36.0"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (WAITING, "it waits for 127.0.0.1:PORT, where nobody listens"),
        (CALLS, "trainer_0 waits for 127.0.0.1:PORT to answer (send)"),
        (SAMPLES, ""),
        (MAPPED, ""),
        (OWN, ""),
    ],
    ids=["wait_server_ready", "calls", "samples", "xmap_readers", "own"],
)
def test_whatever_else_a_script_waits_for(text: str, said: str, tmp_path: Path) -> None:
    port = str(free_ports(1)[0])
    text, said = text.replace("PORT", port), said.replace("PORT", port)
    status, told = interrupted(started(text, tmp_path))
    at = f"interrupted at train.py:{len(text.splitlines())}"
    assert (status, told[-1]) == (130, f"{at}: {said}" if said else at)
    assert "Traceback" not in "".join(told)


def test_a_library_that_is_being_imported_is_whole_before_an_interrupt_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []

    def importing(name: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        imported.append(name)

    monkeypatch.setattr(other_systems, "import_module", importing)
    with pytest.raises(KeyboardInterrupt):
        other_systems.grpc_library()
    assert imported == ["grpc"]


@pytest.mark.parametrize(("index", "other"), [("0", "trainer_1"), ("1", "trainer_0")])
def test_a_meeting_of_trainers(index: str, other: str, tmp_path: Path) -> None:
    addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
    process = started(
        MEETING,
        tmp_path,
        PADDLE_TRAINERS_NUM="2",
        PADDLE_TRAINER_ENDPOINTS=",".join(addresses[:2]),
        PADDLE_GLOO_HTTP_ENDPOINT=addresses[2],
        PADDLE_TRAINER_ID=index,
    )
    status, told = interrupted(process)
    waits = f"trainer_{index} waits for {other} in the meeting of all trainers at {addresses[2]}"
    assert (status, told[-1]) == (130, f"interrupted at train.py:8: {waits}")


def test_a_wait_is_named_once() -> None:
    def stopped() -> None:
        with naming_wait(lambda: "outer"), naming_wait(lambda: "inner"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="inner"):
        stopped()


def test_workers_do_what_they_are_given_and_drop_it_after_an_error() -> None:
    with Workers[int](2) as workers:
        assert list(workers.map(mul, range(5), range(5))) == [0, 1, 4, 9, 16]
        with pytest.raises(ZeroDivisionError):
            workers.submit(lambda: 1 // 0).result()
    held, begun = threading.Event(), list[int]()

    def wait(number: int) -> int:
        begun.append(number)
        held.wait(60)
        return number

    def fail(act: Callable[[Workers[int]], object]) -> None:
        with Workers[int](1) as workers:
            act(workers)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail(lambda workers: workers.map(wait, range(3)))
    held.set()
    time.sleep(0.2)
    assert begun in ([], [0])


AT_IMPORT = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, *_):
        if name == "MODULE":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
"""


@pytest.mark.parametrize(
    ("command", "module"),
    [
        ("pstranspile.fluid", "pstranspile.fluid.missing"),
        ("pstranspile.fluid", "pstranspile.fluid.__main__"),
        ("pstranspile.fluid", "pstranspile.fluid.framework"),
        ("pstranspile.fluid.launch", "pstranspile.fluid.missing"),
        ("pstranspile.fluid.launch", "pstranspile.fluid.processes"),
        ("pstranspile.fluid.launch_ps", "pstranspile.fluid.processes"),
        ("pstranspile fluid", "pstranspile.fluid.__main__"),
        ("pstranspile fluid", "pstranspile.tools.cli.fluid"),
        ("pstranspile run", "pstranspile.tools.cli.run"),
    ],
)
def test_a_command_that_is_interrupted_while_it_starts(command: str, module: str, tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text(AT_IMPORT.replace("MODULE", module))
    (tmp_path / "s.py").write_text("print('run')\n")
    words = [sys.executable, "-m", *command.split(), "s.py"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with interrupts(signal.SIG_DFL):
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "interrupted before anything was done\n"


def test_signals_of_scripts_are_those_of_any_python(tmp_path: Path):
    (tmp_path / "s.py").write_text(
        "from signal import SIG_DFL, default_int_handler, getsignal\n"
        "print(getsignal(2) is default_int_handler, getsignal(15) is SIG_DFL, getsignal(1) is SIG_DFL)\n"
    )
    printed: list[str] = []
    for command in ([], ["-m", "pstranspile.fluid"], ["-m", "pstranspile", "fluid"]):
        with interrupts(signal.SIG_DFL):
            line = [sys.executable, *command, "s.py"]
            done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=True)
        printed.append(done.stdout)
    assert printed == printed[:1] * 3
    assert printed[0].startswith("True True ")  # a hangup may be ignored, as under nohup


def test_an_interrupt_within_another_package_is_told_at_the_script_line():
    called: dict[str, Any] = {}
    exec(compile("def mean():\n    raise KeyboardInterrupt\n", "/lib/site-packages/numpy/mean.py", "exec"), called)
    exec(compile("def train():\n    print()\n    mean()\n", "train.py", "exec"), called)
    with pytest.raises(KeyboardInterrupt) as stop:
        called["train"]()
    assert line_of_script(stop.value) == "train.py:3"
    with pytest.raises(KeyboardInterrupt) as stop:
        called["mean"]()
    assert "test_interrupts.py" in line_of_script(stop.value)
