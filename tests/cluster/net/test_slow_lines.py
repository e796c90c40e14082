"""A frame may be longer on its way than a lease lasts: whoever sends it is heard by its bytes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from pstranspile.cluster.machines.simulate import simulate
from pstranspile.cluster.net.peer import Peer
from pstranspile.cluster.net.terms import Terms
from tests.cluster.net.played import compiled, play
from tests.cluster.net.slow import Slow

PROGRAM = str(Path(__file__).parents[3] / "examples" / "regression.ir")


def test_a_trainer_is_not_given_up_while_its_gradient_comes(tmp_path: Path) -> None:
    """The gradient has 80,000 bytes, which take three leases."""
    job = compiled(tmp_path, PROGRAM, "--pservers", "1", "--trainers", "1")
    x = np.random.RandomState(0).rand(1, 8, 1000).astype("float32")
    feeds = {"x": x, "y": x[:, :, :20].copy()}
    opened: list[Slow] = []

    def through(_trainer: str, address: str) -> str:
        opened.append(Slow(address, 27_000))
        return opened[0].address

    found = play(job, feeds, 1, through=through, terms=Terms("job", "token", 1.0), patience=20.0, fetch=["loss"])
    with closing(opened[0]):
        assert opened[0].connections == 1
    for name, value in simulate(job.roles, feeds, 1, ["loss"], seed=1).arrays().items():
        np.testing.assert_array_equal(found.arrays()[name], value, err_msg=name)


def test_who_sends_no_byte_is_not_heard() -> None:
    peer, connection = Peer("trainer_0", frozenset({"trainer_0"}), 0), SimpleNamespace(received_bytes=100)
    shown: Any = connection
    peer.connect(shown, 0, 1.0)
    peer.hear_progress(2.0)
    assert peer.heard_at == 1.0
    connection.received_bytes += 1
    peer.hear_progress(3.0)
    peer.hear_progress(4.0)
    assert peer.heard_at == 3.0
    peer.disconnect()
    peer.hear_progress(5.0)
    assert peer.heard_at == 3.0
