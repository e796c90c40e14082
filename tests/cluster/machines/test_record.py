"""Records of real runs: what is wrong with a file, or with the machines that are to do the same, is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pstranspile.cluster.machines.record import (
    FORM,
    Record,
    RecordedScheduler,
    TakenMessage,
    Turn,
    read_record,
    replay,
    write_record,
)
from pstranspile.cluster.machines.simulate import simulate
from pstranspile.ir.diagnostics import DiagnosticError
from tests.cluster.machines.recorded import arrays, roles

STEPS = 2


def played(turns: dict[str, list[Turn]]) -> None:
    """A job of two trainers and two servers, as somebody has recorded."""
    schedule = RecordedScheduler(Record(None, STEPS, turns))
    feeds, init = arrays("fit_a_line_sgd", "feeds"), arrays("fit_a_line_sgd", "init")
    simulate(roles("fit_a_line_sgd/sync_2x2"), feeds, STEPS, init=init, schedule=schedule, run=replay)


def begins(trainer: str) -> list[Turn]:
    return [Turn(trainer, ())]


@pytest.mark.parametrize(
    ("turns", "told"),
    [
        (
            {"trainer_0": begins("trainer_0"), "pserver_0": [Turn("pserver_0", (TakenMessage("trainer_1", 1, 0),))]},
            "the machines do not go on as they did in the recorded run\n"
            "note: pserver_0 should go on with message 1 of trainer_1",
        ),
        ({"trainer_7": begins("trainer_7")}, "note: trainer_7 should go on with nothing"),
        (
            {"trainer_0": begins("trainer_0"), "pserver_0": [Turn("pserver_0", (TakenMessage("trainer_0", 1, 5),))]},
            "a message is not that of the recorded run: get",
        ),
        (
            {"trainer_0": begins("trainer_0")},
            "error[cluster-record]: the recorded run ended before all was done\n"
            "note: trainer_0 has done 0 of 2 steps\nnote: trainer_1 has done 0 of 2 steps\n"
            "note: trainer_0 waits at recv",
        ),
        ({}, "the recorded run ended before all was done\nnote: trainer_0 has done 0 of 2 steps"),
        (
            {"trainer_0": begins("trainer_0"), "pserver_0": [Turn("pserver_0", None)]},
            "pserver_0 is no trainer, and can't be told that there is no more to do",
        ),
    ],
)
def test_machines_that_do_something_else(turns: dict[str, list[Turn]], told: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        played(turns)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]\n",
        json.dumps({"form": "another", "seed": 1, "steps": 1}),
        json.dumps({"form": FORM, "seed": 1, "steps": "x"}),
        json.dumps({"form": FORM, "seed": 1, "steps": -1}),
        json.dumps({"form": FORM, "seed": 1, "steps": 10**30}),
        json.dumps({"form": FORM, "seed": "1", "steps": 1}),
        json.dumps({"form": FORM, "seed": {"a": 1}, "steps": 1}),
        json.dumps({"form": FORM, "seed": 1, "steps": 1}) + "\n[1]\n",
        json.dumps({"form": FORM, "seed": 1, "steps": 1}) + '\n{"process": "a"}\n["a", [[1]]]\n',
        json.dumps({"form": FORM, "seed": 1, "steps": 1}) + '\n{"process": "a"}\n[["a"], []]\n',
        json.dumps({"form": FORM, "seed": 1, "steps": 1}) + '\n{"process": "a"}\n["a", [[["b"], 1, 2]]]\n',
        json.dumps({"form": FORM, "seed": 1, "steps": 1}) + '\n{"process": "a"}\n["a", [["b", 1, "x"]]]\n',
        json.dumps({"form": FORM, "seed": 1, "steps": 1}) + '\n{"other": "a"}\n',
    ],
)
def test_a_file_that_is_no_record(text: str, tmp_path: Path) -> None:
    path = tmp_path / "record"
    path.write_text(text)
    with pytest.raises(DiagnosticError, match=r"record(:[123])?: error\[cluster-record\]: is no record of a run"):
        read_record(str(path))
    with pytest.raises(DiagnosticError, match=r"error\[cluster-record\]: can't be read: No such file"):
        read_record(str(path) + "x")


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([], ": is no record of a run: it is empty"),
        (["["], ":1: is no record of a run: a value is expected, the text ends"),
        (["[" * 100_000], ":1: is no record of a run: nested too deeply"),
        (["9" * 5000], ":1: is no record of a run: a number has thousands of digits"),
        (["{}"], ": is no record of a run: this is JSON"),
        (["[1]", "x"], f":1: is no record of a run: its first line does not say that its form is {FORM}"),
        (["HEAD", '["a", []]'], ":2: is no record of a run: a turn stands before the first process"),
        (["HEAD", '{"process": 1}'], ":2: is no record of a run: the name of a process is no text"),
        (
            ["HEAD", '{"process": "a"}', '["a", []]', "[1, []]"],
            ":4: is no record of a run: the name of a machine is no",
        ),
        (
            ["HEAD", '{"process": "a"}', '["a", 1]'],
            ":3: is no record of a run: the messages that a machine took are no",
        ),
        (["HEAD", '{"process": "a"}', '["a", [["b", 1, 1.5]]]'], ":3: is no record of a run: a message is the name of"),
        (["HEAD", '{"process": "a"}', '{"process": "a"}'], ":3: is no record of a run: the turns of a begin a second"),
    ],
)
def test_the_line_that_is_none_of_a_record_is_told(lines: list[str], told: str, tmp_path: Path) -> None:
    head = json.dumps({"form": FORM, "seed": 1, "steps": 1})
    path = tmp_path / "record"
    path.write_text("".join(f"{head if line == 'HEAD' else line}\n" for line in lines))
    with pytest.raises(DiagnosticError) as caught:
        read_record(str(path))
    assert str(caught.value).replace(" error[cluster-record]:", "").startswith(f"{path}{told}")


def test_the_last_line_of_a_process_that_was_killed_may_be_half_a_line(tmp_path: Path) -> None:
    """What it has written before is kept, and so is what the others have."""
    for name, text in (("a", '["a",[]]\n["a",[["b",1,5]]]\n["a",[["b'), ("b", '["b",[]]\n'), ("c", '["')):
        (tmp_path / name).write_text(text)
    files = {name: str(tmp_path / name) for name in "abcd"}
    write_record(str(tmp_path / "run.record"), 3, 2, files)
    turns = {"a": [Turn("a", ()), Turn("a", (TakenMessage("b", 1, 5),))], "b": [Turn("b", ())], "c": [], "d": []}
    assert read_record(str(tmp_path / "run.record")) == Record(3, 2, turns)
