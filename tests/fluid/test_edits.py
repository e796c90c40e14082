"""What a script changes of the programs that a transpiler gave it is what the machines run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pstranspile.fluid as fluid
from pstranspile.runtime.values.encoding import read_tensor
from tests.fluid.running import SCRIPTS, fresh
from tests.fluid.test_clusters import cluster, play
from tests.ports import free_ports

IN_FLUID = """
loss 4.742236 4.500000 2.108362
loss 3.269177 6.000000 1.652809
loss 2.309222 7.500000 1.493102 4.618443
loss 3.397608 9.000000 1.806594 0.431660
loss 3.107747 10.500000 1.740181 0.416396
loss 2.957510 12.000000 1.660354 5.915019
loss 2.957510
w 0.120000 13.500000
"""
"""What trainers of Fluid 1.8.5 print of the same script."""


def printed_numbers(text: str) -> list[list[float]]:
    return [[float(item) for item in line.split()[1:]] for line in text.splitlines() if line[:2] in ("lo", "w ")]


def test_edited_programs_run_as_they_were_edited_on_trainers_and_servers(tmp_path: Path) -> None:
    script = str(SCRIPTS / "edited.py")
    endpoints = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
    roles = [("PSERVER", "0"), ("PSERVER", "1"), ("TRAINER", "0"), ("TRAINER", "1")]
    lease = [{"PSTRANSPILE_LEASE": "10"}] * len(roles)  # the refused step ends the trainers without a word to servers
    out = play([[script, role, number, endpoints, "2", "sync", str(tmp_path)] for role, number in roles], lease)
    assert out[:2] == ["served 17.0\n", "served 17.0\n"]
    for text in out[2:]:
        for mine, theirs in zip(printed_numbers(text), printed_numbers(IN_FLUID), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5)
        (refusal,) = [line for line in text.splitlines() if line.startswith("refused")]
        line = 1 + (SCRIPTS / "edited.py").read_text().split("# its line is named")[0].count("\n")
        assert f"edited.py:{line}: error[run-feed-missing]: scale: never " in refusal
    assert read_tensor(tmp_path / "counter").item() == pytest.approx(13.5)
    np.testing.assert_allclose(read_tensor(tmp_path / "w"), np.full((4, 1), 0.12), rtol=1e-6)


def test_a_copy_for_tests_looks_up_rows_on_the_servers_and_changes_nothing_there() -> None:
    for losses in cluster("looked_up.py", "sync"):
        trained, tested = losses[::2], losses[1::2]
        assert trained[0] > trained[1] > trained[2] > tested[2]
        np.testing.assert_allclose(trained[1:], tested[:2], rtol=1e-6)  # of the same rows, before the next update


def test_every_call_gives_a_server_program_of_its_own() -> None:
    with fresh():
        x = fluid.layers.data("x", [4])
        fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(fluid.layers.fc(x, 1)))
        t = fluid.DistributeTranspiler()
        t.transpile(0, pservers="127.0.0.1:6174", trainers=1)
        edited = t.get_pserver_program("127.0.0.1:6174")
        count = len(edited.global_block().ops)
        var = edited.global_block().create_var(name="n", shape=[1], dtype="float32", persistable=True)
        edited.global_block().append_op(type="increment", inputs={"X": [var]}, outputs={"Out": [var]})
        assert len(t.get_pserver_program("127.0.0.1:6174").global_block().ops) == count
        assert t.get_startup_program("127.0.0.1:6174", edited).global_block().ops
        with pytest.raises(ValueError, match="not that of the server"):
            t.get_startup_program("127.0.0.1:6174", fluid.default_main_program())


def test_what_is_wrong_with_an_op_is_told_with_the_line_of_the_script() -> None:
    with fresh():
        x = fluid.layers.data("x", [4])
        out = fluid.layers.fc(x, 1)
        with pytest.raises(
            fluid.core.EnforceNotMet, match=r"test_edits\.py:\d+: error\[run-uninitialised\]: mul: fc_0"
        ):
            fluid.Executor().run(feed={"x": np.ones((2, 4), "float32")}, fetch_list=[out])
