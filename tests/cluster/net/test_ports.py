"""A port has one process that listens, also where the first one does not answer."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from pstranspile.cluster.net import transport
from pstranspile.cluster.net.loop import Loop
from pstranspile.cluster.net.supervisor import Ports
from pstranspile.cluster.net.transport import Listener, answers, is_taken


@pytest.fixture
def loop() -> Iterator[Loop]:
    with closing(Loop()) as made:
        yield made


def test_a_stopped_process_with_a_full_queue_still_has_its_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "ANSWER", 0.1)
    with ExitStack() as at_end:
        stopped = at_end.enter_context(socket.socket())
        stopped.bind(("127.0.0.1", 0))
        stopped.listen(1)
        for _ in range(4):
            one = at_end.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(stopped.getsockname())
        address = f"127.0.0.1:{stopped.getsockname()[1]}"
        assert is_taken(address)
        assert not answers(address)
    assert not is_taken(address)


def test_a_lack_of_descriptors_does_not_make_a_port_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "create_connection", lacking)
    with pytest.raises(OSError, match="Too many open files"):
        is_taken("127.0.0.1:7")


def test_no_second_process_listens_at_an_address(loop: Loop) -> None:
    first = Listener("127.0.0.1:0", loop)
    with pytest.raises(OSError, match="somebody does already"):
        Listener(f"127.0.0.1:{first.port}", loop)


def test_a_reserved_port_is_listened_on(loop: Loop) -> None:
    with closing(Ports(1)) as ports:
        assert Listener(ports.addresses[0], loop).port == int(ports.addresses[0].rpartition(":")[2])
        assert is_taken(ports.addresses[0])
