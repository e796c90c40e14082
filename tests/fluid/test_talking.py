"""Servers and trainers whose ops a script writes itself talk as those do that a transpiler has written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pstranspile.fluid as fluid
from pstranspile.fluid.layers.io import ListenAndServ
from pstranspile.fluid.running.gathering import Rendezvous
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.runtime.values.encoding import read_tensor
from tests.fluid.running import SCRIPTS, fresh
from tests.fluid.test_clusters import FLUID, play
from tests.ports import free_ports

SCRIPT = str(SCRIPTS / "written_by_hand.py")


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests of the process have set, these calls can't carry."""
    for name in ("PSTRANSPILE_TOKEN", "PSTRANSPILE_TLS"):
        monkeypatch.delenv(name, raising=False)


def check(folder: Path, of_fluid: str = "") -> None:
    endpoints = [f"127.0.0.1:{port}" for port in free_ports(2)]
    servers = [[SCRIPT, "PSERVER", endpoint, str(4 * place)] for place, endpoint in enumerate(endpoints)]
    *_, printed = play([*servers, [SCRIPT, "TRAINER", ",".join(endpoints), str(folder)]], fluid=of_fluid)
    assert [line for line in printed.splitlines() if line.startswith(("rows", "total"))] == [
        "rows [6, 1, 6, 3]",
        "total 120.0",
        "total 168.0",
    ]
    assert np.array_equal(np.asarray(read_tensor(str(folder / "table")))[:, 1], np.arange(8))


def test_what_is_sent_is_computed_with_and_fetched_looked_up_and_saved(tmp_path: Path) -> None:
    check(tmp_path / "saved")


@pytest.mark.skipif(not FLUID, reason="PSTRANSPILE_FLUID is not set")
@pytest.mark.parametrize("of_fluid", ["PSERVER", "TRAINER"])
def test_the_others_may_be_of_fluid(of_fluid: str, tmp_path: Path) -> None:
    check(tmp_path / "saved", of_fluid)


def talking(endpoint: str) -> fluid.Program:
    made = fluid.Program()
    made.global_block().append_op("fetch_barrier", {}, {"Out": []}, {"endpoints": [endpoint]})
    return made


def test_nobody_is_called_openly_on_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PSTRANSPILE_INSECURE", raising=False)
    with fresh(), pytest.raises(DiagnosticError, match=r"192\.0\.2\.1:6174, which is not on this host"):
        fluid.Executor(fluid.CPUPlace()).run(talking("192.0.2.1:6174"))


def test_calls_that_bring_no_token_are_not_made_where_one_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSTRANSPILE_TOKEN", "secret")
    main = fluid.Program()
    with fluid.program_guard(main), ListenAndServ("127.0.0.1:0", [], optimizer_mode=False).do():
        pass
    for program in (talking("127.0.0.1:6174"), main):
        with fresh(), pytest.raises(DiagnosticError, match="PSTRANSPILE_TOKEN is set"):
            fluid.Executor(fluid.CPUPlace()).run(program)


def test_an_empty_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSTRANSPILE_TOKEN", "")
    main = fluid.Program()
    with fluid.program_guard(main), ListenAndServ("127.0.0.1:0", [], optimizer_mode=False).do():
        pass
    for program in (talking("127.0.0.1:6174"), main):
        with fresh(), pytest.raises(DiagnosticError, match="PSTRANSPILE_TOKEN is set, but empty"):
            fluid.Executor(fluid.CPUPlace()).run(program)
    with pytest.raises(DiagnosticError, match="PSTRANSPILE_TOKEN is set, but empty"):
        Rendezvous(0, 2, "127.0.0.1:6174")


def test_a_server_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAGS_rpc_deadline", "100")
    (port,) = free_ports(1)
    with fresh(), pytest.raises(RuntimeError, match=f"the server at 127.0.0.1:{port}.*deadline"):
        fluid.Executor(fluid.CPUPlace()).run(talking(f"127.0.0.1:{port}"))


def test_ops_that_name_no_server_talk_to_nobody() -> None:
    with fresh():
        program = fluid.Program()
        attrs = {"epmap": [], "dir": "", "lookup_table": ""}
        program.current_block().append_op("checkpoint_notify", {}, {}, attrs)
        assert fluid.Executor(fluid.CPUPlace()).run(program) == []
