"""A server's port that another service takes for a while, in the middle of a job."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from pstranspile.cluster.machines.simulate import simulate
from pstranspile.cluster.net.terms import PeerRefused
from tests.cluster.net.cutting import Cuttable
from tests.cluster.net.played import compiled, play

PROGRAM = str(Path(__file__).parents[3] / "examples" / "regression.ir")
STEPS = 6
OTHERS = {
    "a service that speaks first": b"SSH-2.0-other\r\n",
    "a service that answers": b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
    "a server of gRPC": b"\0\0\0\4\0\0\0\0\0",
}


class Taken:
    """A port that passes on to a server, but after so many bytes to another service for a few connections."""

    def __init__(self, target: str, after: int, count: int, says: bytes):
        self.way = Cuttable(target, [after])
        self.left, self._says = count, says
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        host, _, port = self.way.address.rpartition(":")
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                if self.way.cuts and self.left:
                    self.left -= 1
                    near.sendall(self._says)
                    near.shutdown(socket.SHUT_WR)
                    continue
                far = socket.create_connection((host, int(port)))
                for one, other in ((near, far), (far, near)):
                    Thread(target=self._pass, args=(one, other), daemon=True).start()

    @staticmethod
    def _pass(one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(4096):
                other.sendall(data)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.close()
        self.way.close()


def feeds() -> dict[str, Any]:
    x = np.random.RandomState(0).rand(STEPS, 8, 1000).astype("float32")
    return {"x": x, "y": x[:, :, :20].copy()}


@pytest.mark.parametrize("fluid", [False, True])
@pytest.mark.parametrize("other", OTHERS)
def test_a_trainer_goes_on_when_its_server_is_back(other: str, fluid: bool, tmp_path: Path) -> None:
    """Also where servers of Fluid may take part: whoever was a machine of this package is one."""
    job = compiled(tmp_path, PROGRAM, "--pservers", "1", "--trainers", "1")
    opened: list[Taken] = []

    def through(_trainer: str, address: str) -> str:
        opened.append(Taken(address, 400_000, 3, OTHERS[other]))
        return opened[0].address

    found = play(job, feeds(), STEPS, through=through, fluid=fluid, fetch=["loss"]).arrays()
    assert opened[0].left == 0
    opened[0].close()
    for name, value in simulate(job.roles, feeds(), STEPS, ["loss"], seed=1).arrays().items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_a_server_that_does_not_come_back_is_waited_for_as_long_as_any(tmp_path: Path) -> None:
    job = compiled(tmp_path, PROGRAM, "--pservers", "1", "--trainers", "1")

    def through(_trainer: str, address: str) -> str:
        return Taken(address, 400_000, 1 << 30, OTHERS["a service that answers"]).address

    with pytest.raises(PeerRefused, match=r"pserver_0 was not heard for 1\.5 seconds"):
        play(job, feeds(), STEPS, through=through, patience=1.5)
