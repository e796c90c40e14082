"""Texts of others reach terminals and logs as escapes: what a terminal obeys, what reorders, and what forges lines."""

from __future__ import annotations

import io
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstranspile.cluster.machines.message import SEND, Message
from pstranspile.cluster.machines.recorder import POST, event_of
from pstranspile.cluster.net.status import AT_ONCE, SECONDS, DisplayedValue, RateLimitedPrinter, values_text
from pstranspile.cluster.net.terms import PeerRefused
from pstranspile.cluster.net.wire import HELLO, MAGIC, REFUSED, Header, frame, json_body
from pstranspile.fluid.net.message import VariableMessage, write_variable
from pstranspile.ir.diagnostics import DiagnosticError, error, visible
from pstranspile.tools.cli import main
from tests.cluster.net.strangers import say
from tests.cluster.net.test_fluid_service import PROGRAM, Served, Trainer

EVIL = (
    "\x1b[31m\x1b]0;title\x07\x1b]52;c;AA==\x07\r\nerror[x]: forged\u202etxt\u2066\u200b"
    "\u2028\x9b2J\x00\x7f\ufeff\U000e0041"
)
BARE = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\U000e0000-\U000e0fff]"
)
"""What no line that is shown holds; the ends of lines are looked at one by one."""


def clean(text: str) -> bool:
    return not BARE.search(text) and not any(line.startswith("error[x]") for line in text.splitlines())


def test_a_text_is_shown_in_one_line_without_what_a_terminal_obeys() -> None:
    shown = visible(EVIL)
    assert clean(shown)
    assert "\n" not in shown
    assert shown.startswith("\\u001b[31m")
    assert "\\U000e0041" in shown
    assert visible("w@GRAD.block0/Grün") == "w@GRAD.block0/Grün"
    assert visible("\udcff\ud800") == "\\xff\\ud800"
    assert visible(500 * "x" + 500 * "y") == 100 * "x" + "..." + 100 * "y"


@pytest.mark.parametrize(
    "shown",
    [
        lambda: str(PeerRefused(EVIL)),
        lambda: str(Message(SEND, "trainer_0", "pserver_0", 0, 0, 1, EVIL, None, -1)),
        lambda: values_text({EVIL: DisplayedValue("", (1.0,))}),
        lambda: event_of(0, POST, Message(SEND, "trainer_0", "pserver_0", 0, 0, 1, EVIL, None, -1)).variable,
        lambda: str(DiagnosticError([error("start-role", EVIL.replace("\n", ""))])),
    ],
)
def test_what_carries_texts_of_others_shows_them_so(shown: Callable[[], str]) -> None:
    assert clean(shown())


def test_of_lines_that_others_cause_some_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    told = RateLimitedPrinter("pserver_0", lambda: now)
    for number in range(1000):
        told(f"line {number} {EVIL}")
    printed = capsys.readouterr().err
    assert clean(printed)
    assert len(printed.splitlines()) == AT_ONCE
    now += SECONDS
    told("later")
    told("and one more")
    left_out = f"({1000 - AT_ONCE} lines like this were left out)"
    left_out = f"({1000 - AT_ONCE} lines like this were left out)"
    assert capsys.readouterr().err == f"pstranspile start: pserver_0: later {left_out}\n"


def test_a_server_shows_names_of_callers_as_escapes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Of calls, and of greetings, whatever field of them holds it."""
    served = Served(tmp_path, "--fluid")
    try:
        caller = Trainer(served.address, 0)
        for fields in ({"varname": EVIL}, {"varname": "w", "out_varname": EVIL, "trainer_id": 7}):
            caller.status("GetVariable", write_variable(VariableMessage(**fields)))
        caller.status("CheckpointNotify", write_variable(VariableMessage("SAVE@CHECKPOINTNOTIFY", out_varname=EVIL)))
        caller.status("PrefetchVariable", write_variable(VariableMessage("ids", table_name=EVIL)))
        hello = {"job": EVIL, "token": EVIL, "incarnation": EVIL, "role": EVIL, "received": 0, "knows": EVIL}
        for given in (hello, {**hello, "token": ""}):
            assert say(served.address, b"".join(frame(Header(HELLO, 0, 0, 0), json_body(given))), more=True).startswith(
                MAGIC
            )
    finally:
        served.end()
    told = capfd.readouterr().err
    assert "\\u001b[31m" in told
    assert clean(told)


def test_a_trainer_shows_a_refusal_as_escapes(tmp_path: Path) -> None:
    """The other side of the connection may be anybody: where it listens, what it answers."""
    job, fed = tmp_path / "job", str(tmp_path / "fed.npz")
    np.savez(fed, x=np.zeros((1, 8, 1000), "f4"), y=np.zeros((1, 8, 20), "f4"))
    assert main(["compile", PROGRAM, "--pservers", "1", "--trainers", "1", "-o", str(job)]) == 0
    with socket.create_server(("127.0.0.1", 0)) as listening:
        answer = b"".join(frame(Header(REFUSED, 0, 0, 0), json_body({"reason": EVIL, "again": False})))

        def refuse() -> None:
            for _ in range(2):  # is somebody there, and a greeting
                sock, _ = listening.accept()
                with sock:
                    if sock.recv(1 << 16):
                        sock.sendall(answer)

        threading.Thread(target=refuse, daemon=True).start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        command = [sys.executable, "-m", "pstranspile", "start", str(job), "--role", "trainer_0", "--servers", address]
        ended = subprocess.run(
            [*command, "--patience", "5", "--feed", fed], capture_output=True, timeout=60, check=False
        )
    told = ended.stderr.decode()
    assert ended.returncode == 1
    assert "refuses trainer_0: \\u001b[31m" in told
    assert clean(told)


def test_the_live_view_draws_escapes() -> None:
    rich: Any = pytest.importorskip("rich.console")
    from pstranspile.tools.cli.live_board import Board, picture

    board = Board(3)
    board.begin(["trainer_0"])
    waits = {"what": EVIL, "missing": {EVIL: 0.5}}
    board.update("trainer_0", {"step": 1, "state": EVIL, "values": {EVIL: ("", (1.0,))}, "waits": waits})
    drawn = io.StringIO()
    console = rich.Console(file=drawn, width=400, no_color=True)
    console.print(picture(board, console))
    assert "\\u001b[31m" in drawn.getvalue()
    assert clean(drawn.getvalue())
