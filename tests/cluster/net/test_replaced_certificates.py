"""Certificates that are replaced while a job runs: new connections show the new ones, and nothing is started again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstranspile.cluster.machines.simulate import simulate
from pstranspile.cluster.net.loop import CLOSED, FRAME, Event, Loop
from pstranspile.cluster.net.process import ProcessPlace
from pstranspile.cluster.net.tls import AUTHORITY, CERTIFICATE, KEY, read_credentials
from pstranspile.cluster.net.transport import Dialer, Frames, Listener
from pstranspile.cluster.net.wire import HELLO, Header
from tests.cluster.net.cutting import Cuttable
from tests.cluster.net.played import compiled, play

PROGRAM = str(Path(__file__).parents[3] / "examples" / "regression.ir")
FILES = Path(__file__).parents[2] / "data" / "tls"
FIRST = {AUTHORITY: "ca.crt", CERTIFICATE: "tls.crt", KEY: "tls.key"}
SECOND = {AUTHORITY: "stranger.crt", CERTIFICATE: "stranger.crt", KEY: "stranger.key"}
"""The files of a certificate of one authority, and of another, which knows nothing of the first."""


def put(folder: Path, files: dict[str, str]) -> Path:
    """Replaces files in a folder, each in one move, as tools that renew certificates do."""
    folder.mkdir(exist_ok=True)
    for name, source in files.items():
        shutil.copy(FILES / source, folder / "new")
        (folder / "new").replace(folder / name)
    return folder


class Machine:
    """One end of connections, with certificates in a folder of its own."""

    def __init__(self, folder: Path):
        self.folder = put(folder, FIRST)
        self.lines: list[str] = []
        self.place = ProcessPlace({}, credentials=read_credentials(str(folder)))
        self.shown = partial(self.place.tls_context_factory, self.lines.append)


@pytest.fixture
def loop() -> Iterator[Loop]:
    with closing(Loop()) as made:
        yield made


@pytest.fixture
def server(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "server")


@pytest.fixture
def trainer(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "trainer")


@pytest.fixture
def call(loop: Loop, server: Machine, trainer: Machine) -> Callable[[], tuple[Frames, Event]]:
    """A function by which the trainer calls the server, and which tells what has come of it."""
    listener = Listener("127.0.0.1:0", loop, server.shown(listening=True))

    def begin() -> tuple[Frames, Event]:
        frames = Dialer(f"127.0.0.1:{listener.port}", loop, trainer.shown(listening=False)).dial()
        frames.send(Header(HELLO, 0, 0, 0), b"{}")
        while (event := loop.get(10.0)).kind not in (CLOSED, FRAME):
            assert event.action is None
        return frames, event

    return begin


def test_the_next_connection_shows_what_was_put_in_place(
    call: Callable[[], tuple[Frames, Event]], server: Machine, trainer: Machine
) -> None:
    before, event = call()
    assert event.kind == FRAME
    for machine in (server, trainer):
        put(machine.folder, SECOND)
    _, event = call()
    assert event.kind == FRAME
    for machine in (server, trainer):
        told = f"the certificates in {machine.folder} were replaced; new connections show the new ones"
        assert machine.lines == [told]
    assert before.channel is not None
    assert before.channel.open


def test_who_shows_the_earlier_certificate_is_not_let_in_any_more(
    call: Callable[[], tuple[Frames, Event]], server: Machine
) -> None:
    """An authority that was replaced is not trusted beside the new one."""
    assert call()[1].kind == FRAME
    put(server.folder, SECOND)
    _, event = call()
    assert event.kind == CLOSED
    assert event.reason.startswith("TLS: ")


def test_while_files_do_not_fit_each_other_the_earlier_ones_stay(
    call: Callable[[], tuple[Frames, Event]], server: Machine, trainer: Machine
) -> None:
    put(server.folder, {CERTIFICATE: SECOND[CERTIFICATE]})
    for _ in range(3):
        assert call()[1].kind == FRAME
    (server.folder / AUTHORITY).unlink()
    assert call()[1].kind == FRAME
    head = f"the certificates in {server.folder} were replaced, but the earlier ones stay in use: "
    lines = [line.removeprefix(head) for line in server.lines]
    assert lines[0] == "the certificates can't be used: tls.key is not the key of tls.crt"
    assert lines[1].startswith("can't be read: No such file or directory; ")
    assert len(lines) == 2
    for machine in (server, trainer):
        put(machine.folder, SECOND)
    assert call()[1].kind == FRAME
    assert server.lines[2:] == [f"the certificates in {server.folder} were replaced; new connections show the new ones"]


def test_a_job_goes_on_where_they_are_replaced_and_connections_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    steps = 6
    job = compiled(tmp_path / "job", PROGRAM, "--pservers", "1", "--trainers", "2")
    x = np.random.RandomState(0).rand(steps, 8, 1000).astype("float32")
    folder = put(tmp_path / "shown", FIRST)
    ways: list[Cuttable] = []
    replaced: list[int] = []

    def through(_trainer: str, address: str) -> str:
        ways.append(Cuttable(address, [500_000]))
        return ways[-1].address

    def feed(trainer: int, step: int) -> dict[str, Any] | None:
        if step >= steps:
            return None
        if step == 2 and not replaced:
            replaced.append(step)
            put(folder, SECOND)
        return {"x": x[step, trainer::2], "y": x[step, trainer::2, :20].copy()}

    shown = read_credentials(str(folder))
    found = play(job, feed, steps, through=through, credentials=shown, fetch=["loss"]).arrays()
    assert [way.cuts for way in ways] == [1, 1]
    assert "new connections show the new ones" in capfd.readouterr().err
    for name, value in simulate(job.roles, feed, steps, ["loss"], seed=1).arrays().items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    for way in ways:
        way.close()


def test_two_authorities_are_trusted_while_one_takes_the_place_of_the_other(
    call: Callable[[], tuple[Frames, Event]], server: Machine, trainer: Machine
) -> None:
    both = b"".join((FILES / files[AUTHORITY]).read_bytes() for files in (FIRST, SECOND))
    for machine in (server, trainer):
        (machine.folder / AUTHORITY).write_bytes(both)
        assert call()[1].kind == FRAME
    for machine in (trainer, server):
        put(machine.folder, {name: SECOND[name] for name in (KEY, CERTIFICATE)})
        assert call()[1].kind == FRAME
    for machine in (server, trainer):
        put(machine.folder, SECOND)
        assert call()[1].kind == FRAME
