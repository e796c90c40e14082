"""A check of fewer steps than are fed says of how many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from tests.cluster.data.tables import module as rows_module
from tests.cluster.data.tables import rows

JOB = ps.Job(pservers=["a:1", "b:1"], trainers=2)


def fed(steps: int) -> Any:
    """Rows of one program, two a step."""
    return [{**row, "dense": [row["a"], row["b"]]} for row in rows(2 * steps)]


def second_line(report: ps.Report) -> str:
    return str(report).splitlines()[1]


def arrays(steps: int) -> list[dict[str, Any]]:
    random = np.random.default_rng(1)
    made: list[dict[str, Any]] = []
    for _ in range(steps):
        ids = ps.LoDTensor(random.integers(0, 50, (4, 1)), [[0, 1, 2, 3, 4]])
        dense, click = random.normal(size=(4, 2)).astype("float32"), random.normal(size=(4, 1)).astype("float32")
        made.append({"ids": ids, "dense": dense, "click": click})
    return made


@pytest.mark.parametrize(("steps", "told"), [(None, "5 of 8 fed steps"), (2, "2 of 8 fed steps"), (8, "8 steps")])
def test_of_so_many_fed(steps: int | None, told: str):
    report = ps.check(rows_module(), JOB, feeds=arrays(8), steps=steps)
    assert second_line(report) == f"mode sync, 2 trainers, 2 servers, {told}"
    assert report.fed == 8


def test_rows_of_which_the_number_is_known_or_not(tmp_path: Any):
    path = tmp_path / "x.csv"
    path.write_text("click,ids,a,b\n" + "".join(f"{n}.0,{n} {n + 1},0.5,{n}\n" for n in range(14)))
    given = ps.Data(str(path), batch=2, columns={"dense": ["a", "b"]})
    assert second_line(ps.check(rows_module(), JOB, feeds=given)).endswith(" 5 of 7 fed steps")
    endless = ps.check(rows_module(), JOB, feeds=ps.Rows(fed(8), batch=2), steps=2)
    assert second_line(endless).endswith(" servers, 2 steps")
    assert endless.fed == 0


def test_made_data_have_no_number():
    assert ps.check(rows_module(), JOB, steps=2).fed == 0
