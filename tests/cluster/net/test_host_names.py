"""Names of hosts: those that stand for several addresses, those of IPv6, and those that no host can have."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstranspile.cluster.machines.simulate import simulate
from pstranspile.cluster.net import transport
from pstranspile.cluster.net.loop import CLOSED, FRAME, Loop
from pstranspile.cluster.net.transport import Dialer, Listener, answers, is_taken
from pstranspile.cluster.net.wire import HELLO, Header
from pstranspile.tools.cli import main
from tests.cluster.net.played import compiled, play
from tests.ports import free_port_of_ipv6

PROGRAM = str(Path(__file__).parents[3] / "examples" / "regression.ir")


@pytest.fixture
def loop() -> Iterator[Loop]:
    with closing(Loop()) as made:
        yield made


@pytest.fixture
def dead() -> Iterator[int]:
    """A port on which nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that does not answer, as where an address leads to no host: its queue is full."""
    with closing(socket.socket()) as sock, closing(socket.socket()) as first, closing(socket.socket()) as second:
        sock.bind(("127.0.0.1", 0))
        sock.listen(0)
        for one in (first, second):
            one.setblocking(False)
            one.connect_ex(sock.getsockname())
        yield sock.getsockname()[1]


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that makes the name `server` stand for addresses of this host, given by their ports."""
    known = socket.getaddrinfo

    def stands_for(*ports: int, lacking: int = 0) -> None:
        """The first `lacking` addresses are of a family that this system does not have."""

        def find(host: Any, port: Any, *args: Any, **options: Any) -> Any:
            if host != "server":
                return known(host, port, *args, **options)
            families = [99] * lacking + [socket.AF_INET] * (len(ports) - lacking)
            kind = socket.SOCK_STREAM, socket.IPPROTO_TCP, ""
            return [(family, *kind, ("127.0.0.1", one)) for family, one in zip(families, ports, strict=True)]

        monkeypatch.setattr(socket, "getaddrinfo", find)

    return stands_for


def reached(dialer: Dialer, loop: Loop) -> int:
    """How often the dialer calls until somebody hears it."""
    for tries in range(1, 5):
        dialer.dial().send(Header(HELLO, 0, 0, 0), b"{}")
        while (event := loop.get(10.0)).kind not in (CLOSED, FRAME):
            pass
        if event.kind == FRAME:
            return tries
    raise AssertionError("nobody is reached")


def test_the_next_address_of_a_name_is_tried_where_the_first_refuses(
    loop: Loop, dead: int, named: Callable[..., None]
) -> None:
    listener = Listener("127.0.0.1:0", loop)
    named(dead, dead, listener.port)
    assert reached(Dialer("server:1", loop), loop) == 3


def test_the_next_address_of_a_name_is_tried_where_the_first_does_not_answer(
    loop: Loop, silent: int, named: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "CONNECTING", 0.5)
    listener = Listener("127.0.0.1:0", loop)
    named(silent, listener.port)
    begun = loop.now()
    assert reached(Dialer("server:1", loop), loop) == 2
    assert 0.4 < loop.now() - begun < 5.0


def test_a_single_address_is_waited_for(
    loop: Loop, silent: int, named: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "CONNECTING", 0.0)
    named(silent)
    channel = Dialer("server:1", loop).dial().channel
    assert channel is not None
    channel.look(loop.now() + 60.0)
    assert channel.open


def test_a_job_begins_where_the_first_address_of_a_server_is_dead(
    tmp_path: Path, dead: int, named: Callable[..., None]
) -> None:
    job = compiled(tmp_path, PROGRAM, "--pservers", "1", "--trainers", "2")
    x = np.random.RandomState(0).rand(2, 8, 1000).astype("float32")
    feeds = {"x": x, "y": x[:, :, :20].copy()}

    def through(_trainer: str, address: str) -> str:
        named(dead, int(address.rpartition(":")[2]))
        return "server:1"

    found = play(job, feeds, 2, through=through, fetch=["loss"]).arrays()
    for name, value in simulate(job.roles, feeds, 2, ["loss"], seed=1).arrays().items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_a_process_listens_at_the_first_address_that_its_system_has(loop: Loop, named: Callable[..., None]) -> None:
    """As where IPv6 is turned off, and the name has an address of it."""
    named(0, 0, lacking=1)
    assert answers(f"127.0.0.1:{Listener('server:0', loop).port}")
    named(0, 0, lacking=2)
    with pytest.raises(OSError) as found:
        Listener("server:0", loop)
    assert found.value.errno == errno.EAFNOSUPPORT


NAMES = {"a..b": "a..b", ".host": ".host", "a" * 70: "a" * 70, "a\u202eb": "a\\u202eb", "a\0b": "a\\u0000b"}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_no_host_can_have_is_an_error_of_the_system(name: str, loop: Loop) -> None:
    told = f"{NAMES[name]} can't be the name of a host".replace("\\", "\\\\")
    for use in (answers, is_taken):
        assert not use("127.0.0.1:1")
    with pytest.raises(OSError, match=told):
        is_taken(f"{name}:1")
    assert not answers(f"{name}:1")
    with pytest.raises(OSError, match=told):
        Listener(f"{name}:0", loop)
    Dialer(f"{name}:1", loop).dial()
    event = loop.get(1.0)
    assert event.kind == CLOSED
    assert event.reason.endswith("can't be the name of a host")


@pytest.mark.parametrize("name", ["a..b", "a\u202eb"])
def test_start_tells_of_a_name_that_no_host_can_have(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled(tmp_path / "job", PROGRAM, "--pservers", "1", "--trainers", "1")
    x = np.random.RandomState(0).rand(1, 8, 1000).astype("float32")
    np.savez(tmp_path / "data.npz", x=x, y=x[:, :, :20].copy())
    begin = ["start", str(tmp_path / "job"), "--insecure", "--role"]
    trainer = [*begin, "trainer_0", "--feed", str(tmp_path / "data.npz"), "--patience", "0.2"]
    capsys.readouterr()
    for words in (
        [*trainer, "--address", f"pserver_0={name}:6999"],
        [*begin, "pserver_0", "--listen", f"{name}:6999"],
        [*begin, "pserver_0", "--metrics", f"{name}:6999"],
    ):
        assert main(words) == 1
        told = capsys.readouterr().err
        assert "can't be the name of a host" in told
        assert "\u202e" not in told


def test_addresses_of_ipv6_are_shown_in_brackets(loop: Loop) -> None:
    lines: list[str] = []
    listener = Listener(f"[::1]:{free_port_of_ipv6()}", loop, tell=lines.append)
    with socket.create_connection(("::1", listener.port)) as sock:
        sock.sendall(b"nonsense")
        end = loop.now() + 5.0
        while not lines and loop.now() < end:
            loop._poll(0.05)
        assert f"the connection with [::1]:{sock.getsockname()[1]} is closed" in lines[0]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True), ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False), ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False), ("fe80::1%lo", "fe80::2%lo", True),
    ],
)  # fmt: skip
def test_a_network_of_ipv6_counts_as_one_host(one: str, other: str, same: bool) -> None:
    """A host has as many addresses there as it likes, with which it could push out all other strangers."""
    assert (transport._one_host((one, 1)) == transport._one_host((other, 1))) is same
