"""A server that takes the calls of Fluid's trainers, which are played here: what it answers, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from pstranspile.cluster.machines.snapshots import read_snapshot
from pstranspile.cluster.net.supervisor import Ports
from pstranspile.fluid.net.message import VariableMessage, read_variable, value_of, write_value, write_variable
from pstranspile.runtime.values import SelectedRows
from pstranspile.tools.cli import main

PROGRAM = str(Path(__file__).parents[3] / "examples" / "regression.ir")
GRADIENT = np.full((1000, 20), 0.5, "float32")


class Trainer:
    """A trainer's connection, and its number."""

    def __init__(self, address: str, index: int):
        options = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own, as a process has
        self.address = address
        self.channel: Any = grpc.insecure_channel(address, options=options)
        self.index = index

    def call(self, method: str, data: bytes) -> bytes:
        call = self.channel.unary_unary(f"/sendrecv.SendRecvService/{method}")
        try:
            return call(data, wait_for_ready=True, timeout=30)
        except grpc.RpcError as problem:  # as trainers do it where a server is gone before it has answered
            told: Any = problem
            if told.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return call(data, wait_for_ready=True, timeout=30)

    def send(self, name: str, value: Any) -> None:
        assert self.call("SendVariable", write_value(VariableMessage(name, trainer_id=self.index), value)) == b""

    def get(self, name: str) -> Any:
        asked = VariableMessage(name, out_varname=f"own/{name}", trainer_id=self.index)
        found = read_variable(self.call("GetVariable", write_variable(asked)))
        assert found.varname == f"own/{name}"
        return value_of(found)

    def barrier(self, method: str, name: str) -> None:
        assert self.call(method, write_variable(VariableMessage(name))) == b""

    def complete(self) -> None:
        self.call("SendVariable", write_variable(VariableMessage("COMPLETE@RECV", trainer_id=self.index)))

    def status(self, method: str, data: bytes) -> str:
        """The status with which a call is refused."""
        with pytest.raises(grpc.RpcError) as refused:
            self.call(method, data)
        problem: Any = refused.value
        return problem.code().name


class Served:
    """A server as a process; of several, those before it are `others`."""

    def __init__(
        self,
        work: Path,
        *options: str,
        mode: str = "sync",
        pservers: int = 1,
        trainers: int = 2,
        program: str = PROGRAM,
    ):
        job = ["--pservers", str(pservers), "--trainers", str(trainers), "--mode", mode]
        assert main(["compile", program, *job, "-o", str(work / "job")]) == 0
        self.ports = Ports(pservers)
        self.addresses = self.ports.addresses
        self.address = self.addresses[-1]
        self.result = work / "result"
        self.state = work / "kept"
        start = [sys.executable, "-m", "pstranspile", "start", str(work / "job"), *options]
        start += ["--servers", ",".join(self.addresses)]
        names = [f"pserver_{number}" for number in range(pservers)]
        commands = [[*start, "--role", name, "--result", str(work / f"result{name[7:]}")] for name in names]
        self.others = [subprocess.Popen(command) for command in commands[:-1]]
        self.command = [*commands[-1][:-1], str(self.result)]
        self.process = subprocess.Popen(self.command)

    def kill(self) -> None:
        """Ends the process at once, and starts another one in its place."""
        self.process.kill()
        self.process.wait()
        self.process = subprocess.Popen(self.command)

    def end(self) -> None:
        for process in (self.process, *self.others):
            process.kill()
            process.wait()
        self.ports.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    server = Served(tmp_path, "--fluid")
    yield server
    server.end()


def starts(trainer: Trainer) -> Any:
    w = trainer.get("w")
    trainer.get("b")
    trainer.barrier("GetVariable", "FETCH_BARRIER@RECV")
    return w


def step(trainer: Trainer, gradient: Any) -> Any:
    trainer.send(f"b@GRAD.trainer_{trainer.index}", np.zeros(20, "float32"))
    trainer.send(f"w@GRAD.trainer_{trainer.index}", gradient)
    trainer.barrier("SendVariable", "BATCH_BARRIER@RECV")
    w = trainer.get("w")
    trainer.barrier("GetVariable", "FETCH_BARRIER@RECV")
    return w


def test_two_trainers(served: Served) -> None:
    """An update is made of what both send; who has not sent is waited for; the server ends when both have left."""
    one, other = Trainer(served.address, 0), Trainer(served.address, 1)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(starts, one)
        before = pool.submit(starts, other).result()
        assert (first.result() == before).all()
        waiting = pool.submit(step, one, GRADIENT)
        after = step(other, 3 * GRADIENT)
        assert (waiting.result() == after).all()
        rate = value_of_rate(served, one)
        np.testing.assert_allclose(before - after, rate * 2 * GRADIENT, rtol=1e-5, atol=1e-7)
        alone = pool.submit(step, one, GRADIENT)
        other.complete()  # it is not waited for, and the average is over who is there
        np.testing.assert_allclose(after - alone.result(), rate * GRADIENT, rtol=1e-4, atol=1e-7)
    one.complete()
    assert served.process.wait(30) == 0
    assert read_snapshot(served.result, "pserver_0").state == {"updates": 2, "memory": {}}


def value_of_rate(served: Served, trainer: Trainer) -> float:
    """Asked for without a barrier."""
    asked = write_variable(VariableMessage("lr@WITHOUT_BARRIER@RECV", out_varname="lr", trainer_id=trainer.index))
    return float(value_of(read_variable(trainer.call("GetVariableNoBarrier", asked)))[0])


def named(name: str, **fields: Any) -> bytes:
    return write_variable(VariableMessage(name, **fields))


def test_what_is_refused_changes_nothing(served: Served) -> None:
    one, other = Trainer(served.address, 0), Trainer(served.address, 1)
    message = VariableMessage("w@GRAD.trainer_0")
    wrong = [
        ("SendVariable", b"\xff\xff", "INVALID_ARGUMENT"),
        ("GetVariable", named("nothing"), "NOT_FOUND"),
        ("GetVariable", named("w", trainer_id=2), "INVALID_ARGUMENT"),
        ("SendVariable", write_value(VariableMessage("nothing@GRAD"), GRADIENT), "NOT_FOUND"),
        ("SendVariable", write_value(message, GRADIENT.astype("float64")), "INVALID_ARGUMENT"),
        ("SendVariable", write_value(message, GRADIENT[:10]), "INVALID_ARGUMENT"),
        ("SendVariable", named("w@GRAD.trainer_0"), "INVALID_ARGUMENT"),
        ("SendVariable", write_value(message, SelectedRows(np.array([1]), GRADIENT[:1], 1000)), "INVALID_ARGUMENT"),
        ("PrefetchVariable", write_value(VariableMessage("ids", table_name="w"), np.array([1000])), "INVALID_ARGUMENT"),
        ("PrefetchVariable", write_value(VariableMessage("ids", table_name="v"), np.array([1])), "NOT_FOUND"),
        ("CheckpointNotify", named("SAVE@CHECKPOINTNOTIFY", out_varname="x"), "FAILED_PRECONDITION"),
        ("DistributeNotify", named("@LR_DECAY_COUNTER@"), "NOT_FOUND"),
        ("GetMonomerVariable", named("w"), "UNIMPLEMENTED"),
        ("SendVariable", named("BATCH_BARRIER@RECV"), "FAILED_PRECONDITION"),
        ("SendVariable", named("w@GRAD.trainer_0", data_type=5, dims=(0, *(6 * [2**31 - 1]))), "INVALID_ARGUMENT"),
        ("SendVariable", named("w@GRAD.trainer_0", data_type=5, dims=(0, 20)), "INVALID_ARGUMENT"),
        ("SendVariable", write_value(VariableMessage("w"), GRADIENT), "NOT_FOUND"),
        ("DistributeNotify", write_value(VariableMessage("w"), GRADIENT), "INVALID_ARGUMENT"),
    ]
    for method, data, status in wrong:
        assert one.status(method, data) == status, (method, data[:40])
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(starts, one), pool.submit(starts, other)
        before = first.result()
        assert (second.result() == before).all()
        first, second = pool.submit(step, one, GRADIENT), pool.submit(step, other, GRADIENT)
        assert (first.result() == second.result()).all()
        np.testing.assert_allclose(before - first.result(), value_of_rate(served, one) * GRADIENT, rtol=1e-4, atol=1e-7)
    one.complete()
    assert one.status("GetVariable", named("w")) == "FAILED_PRECONDITION"
    other.complete()
    assert served.process.wait(30) == 0


def test_gradients_in_other_dims_of_as_many_numbers_are_taken_as_the_server_has_them(served: Served) -> None:
    one, other = Trainer(served.address, 0), Trainer(served.address, 1)
    with ThreadPoolExecutor(2) as pool:
        before, _ = pool.map(starts, (one, other))
        after, _ = pool.map(step, (one, other), (GRADIENT.reshape(-1), GRADIENT.reshape(20, 1000, 1)))
    np.testing.assert_allclose(before - after, value_of_rate(served, one) * GRADIENT, rtol=1e-4, atol=1e-7)
    one.complete()
    other.complete()
    assert served.process.wait(30) == 0


def test_a_step_counter_is_a_number_of_steps(tmp_path: Path) -> None:
    """Anything else would change the learning rate of all."""
    program = str(Path(PROGRAM).parents[1] / "golden" / "exponential_decay.ir")
    server = Served(tmp_path, "--fluid", mode="async", program=program)
    try:
        one = Trainer(server.address, 0)
        name = "@LR_DECAY_COUNTER@.trainer_0"
        wrong = [np.array([1], "int32"), np.array([1.0]), np.array([1, 1]), np.array([-1]), np.array([1 << 40])]
        for value in wrong:
            assert one.status("DistributeNotify", write_value(VariableMessage(name), value)) == "INVALID_ARGUMENT"
        assert one.call("DistributeNotify", write_value(VariableMessage(name), np.array([[1]]))) == b""
    finally:
        server.end()


def test_a_trainer_that_gives_up_waiting_is_not_waited_for(served: Served) -> None:
    """Its process has ended: the call that was open is over."""
    one, other = Trainer(served.address, 0), Trainer(served.address, 1)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(starts, (one, other)))
    one.send("b@GRAD.trainer_0", np.zeros(20, "float32"))
    one.send("w@GRAD.trainer_0", GRADIENT)
    one.barrier("SendVariable", "BATCH_BARRIER@RECV")
    call = one.channel.unary_unary("/sendrecv.SendRecvService/GetVariable").future(named("w", out_varname="w"))
    assert one.status("GetVariable", named("nothing")) == "NOT_FOUND"  # the call before it has come then
    assert not call.done()
    one.channel.close()
    step(other, GRADIENT)
    other.complete()
    assert served.process.wait(30) == 0


@pytest.mark.parametrize("count", [1, 2])
def test_nobody_takes_the_place_of_a_trainer_that_is_here(
    count: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A number proves nothing, and barriers have none; an open connection does."""
    served = Served(tmp_path, "--fluid", trainers=count)
    trainers = [Trainer(served.address, index) for index in range(count)]
    for trainer in trainers:
        starts(trainer)
    other = Trainer(served.address, 0)
    name = "w@GRAD.trainer_0" if count > 1 else "w@GRAD"
    gradient = write_value(VariableMessage(name), GRADIENT)
    asked = write_variable(VariableMessage("w", out_varname="w"))
    complete = write_variable(VariableMessage("COMPLETE@RECV"))
    for method, data in (
        ("SendVariable", gradient),
        ("GetVariable", asked),
        ("SendVariable", complete),
        ("SendVariable", write_variable(VariableMessage("BATCH_BARRIER@RECV"))),
        ("GetVariable", write_variable(VariableMessage("FETCH_BARRIER@RECV"))),
    ):
        assert other.status(method, data) == "UNAVAILABLE", method
    assert "trainer_0 is here already, at 127.0.0.1:" in capfd.readouterr().err
    trainers[0].channel.close()
    back = Trainer(served.address, 0)
    back.send(name, GRADIENT)  # its connection has ended: it may have another one
    for trainer in (back, *trainers[1:]):
        trainer.complete()
    assert served.process.wait(30) == 0
    served.end()


def test_machines_of_fluid_take_part_only_where_they_are_asked_to(tmp_path: Path) -> None:
    server = Served(tmp_path)
    try:
        assert Trainer(server.address, 0).status("GetVariable", named("w")) == "UNIMPLEMENTED"
    finally:
        server.end()
