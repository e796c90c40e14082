"""A trainer that is not let in says why, as far as it can be known."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from errno import ECONNREFUSED
from pathlib import Path

import numpy as np
import pytest

from pstranspile.cluster.net.wire import HEADER_SIZE, MAGIC, PROTOCOL, REFUSED, Header, frame, json_body
from pstranspile.tools.cli import main

PROGRAM = str(Path(__file__).parents[3] / "examples" / "regression.ir")

ANSWERS = {
    "another version": MAGIC + bytes([PROTOCOL + 1]).ljust(HEADER_SIZE - len(MAGIC), b"\0"),
    "not now": b"".join(frame(Header(REFUSED, 0, 0, 0), json_body({"reason": "trainer_0 is here", "again": True}))),
    "no frame": MAGIC + b"\xff" * HEADER_SIZE,
    "nothing": b"",
}


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


def answer(sock: socket.socket, data: bytes) -> None:
    """Says the same to everybody who comes, and ends the connection."""

    def serve() -> None:
        with suppress(OSError):
            while True:
                one, _ = sock.accept()
                with one:
                    one.recv(HEADER_SIZE)
                    one.sendall(data)

    threading.Thread(target=serve, daemon=True).start()


def told(folder: Path, address: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a trainer says that looks for its server there."""
    job, fed = str(folder / "job"), str(folder / "fed.npz")
    np.savez(fed, x=np.zeros((1, 8, 1000), "f4"), y=np.zeros((1, 8, 20), "f4"))
    assert main(["compile", PROGRAM, "--pservers", "1", "--trainers", "1", "-o", job]) == 0
    capsys.readouterr()
    assert main(["start", job, "--role", "trainer_0", "--servers", address, "--patience", "0.6", "--feed", fed]) == 1
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("another version", f"the frame is of version {PROTOCOL + 1} of the protocol, this is version {PROTOCOL}"),
        ("not now", "trainer_0 is here"),
        ("no frame", ""),
        ("nothing", ""),
    ],
)
def test_who_is_there_does_not_let_it_in(
    what: str, why: str, listening: socket.socket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(listening, ANSWERS[what])
    address = f"127.0.0.1:{listening.getsockname()[1]}"
    found = told(tmp_path, address, capsys)
    assert found.startswith(f"pstranspile start: trainer_0: nobody answers for 0.6 seconds: pserver_0 at {address} (")
    assert why in found


def test_nobody_is_there(listening: socket.socket, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"127.0.0.1:{listening.getsockname()[1]}"
    listening.close()
    assert f"pserver_0 at {address} ({os.strerror(ECONNREFUSED)})\n" in told(tmp_path, address, capsys)
