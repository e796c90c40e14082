"""Counts in messages: one thing is one thing."""

from __future__ import annotations

from pathlib import Path

import pytest

from pstranspile.ir.diagnostics import cluster_of, quantity
from pstranspile.tools.cli import main

REGRESSION = str(Path(__file__).parents[1] / "examples" / "regression.ir")


def test_counts_have_a_noun_that_fits() -> None:
    assert [quantity(count, "row") for count in (0, 1, 2, 40080)] == ["0 rows", "1 row", "2 rows", "40,080 rows"]
    assert cluster_of(1, 2) == "1 trainer, 2 servers"
    assert cluster_of(2, 0) == "2 trainers"
    assert cluster_of(2, 1, " and ") == "2 trainers and 1 server"


ONE = ["--pservers", "1", "--trainers", "1"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["plan", REGRESSION, "--pservers", "3", "--trainers", "1"], ": 1 slice, "),
        (["check", REGRESSION, *ONE, "--steps", "1", "--schedules", "1"], "mode sync, 1 trainer, 1 server, 1 step\n"),
        (["check", REGRESSION, *ONE, "--steps", "1", "--schedules", "1"], "\n1 schedule ends bitwise equal\n"),
        (["check", REGRESSION, "--trainers", "2", "--mode", "local-sgd"], "mode local-sgd, 2 trainers, 5 steps\n"),
        (
            ["check", REGRESSION, "--trainers", "2", "--mode", "local-sgd"],
            "the cluster trains as the single machine does, which the mode does not promise\n",
        ),
        (
            ["check", REGRESSION, "--pservers", "2", "--trainers", "2", "--mode", "geo"],
            "what the mode promises holds; the mode gives no equality with a single machine\n",
        ),
    ],
)
def test_commands_count(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    assert told in f"\n{capsys.readouterr().out}"


@pytest.mark.parametrize("option", ["--pservers", "--trainers"])
def test_a_number_in_words_is_told_that_a_number_is_meant(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", REGRESSION, "--pservers", "2", "--trainers", "2", option, "two"]) == 2
    assert f"{option[2:]}: 'two' is neither a number nor of the form host:port" in capsys.readouterr().err


def test_a_column_that_is_not_there_is_told_with_the_option_that_gives_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("label,x\n1,2\n")
    assert main(["run", REGRESSION, "--feed", str(rows), "--batch", "1"]) == 1
    told = capsys.readouterr().err
    assert (
        "y takes the column y, which is not among label, x\nnote: another column is named with --columns y=COLUMN"
        in told
    )
    assert main(["run", REGRESSION, "--feed", str(rows), "--batch", "1", "--columns", "y=lable"]) == 1
    assert "did you mean label?" in (told := capsys.readouterr().err)
    assert "COLUMN" not in told
