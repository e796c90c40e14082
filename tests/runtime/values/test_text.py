"""Tensors as the text that Fluid prints."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from pstranspile.runtime.values import LoDTensor, fetched_line, fetched_text, printed_text, tensor_text


@pytest.mark.parametrize(
    ("value", "lines"),
    [
        (
            np.array([1.1, 1e-9, 1234567, np.nan, -np.inf], "float32"),
            ["{}", "5", "float", "1.1 1e-09 1.23457e+06 nan -inf"],
        ),
        (np.array([[True], [False]]), ["{}", "2, 1", "bool", "1 0"]),
        (
            LoDTensor(np.array([[7], [-1], [9]]), [[0, 1, 2], [0, 1, 3]]),
            ["{{0, 1, 2}{0, 1, 3}}", "3, 1", "int64_t", "7 -1 9"],
        ),
    ],
)
def test_what_is_fetched(value: Any, lines: list[str]) -> None:
    lod, dims, kind, data = lines
    text = f"\tlod: {lod}\n\tdim: {dims}\n\tlayout: NCHW\n\tdtype: {kind}\n\tdata: [{data}]\n"
    assert tensor_text(value) == text
    assert fetched_text("loss", "mean_0", value) == f"loss\tmean_0\t{text}\t"


def test_what_is_printed() -> None:
    value = LoDTensor(np.array([[0.5], [2]]), [[0, 2]])
    assert printed_text("0\t", value, ["shape", "lod", "dtype"], 1) == (
        "0\t\n\tshape: [2,1,]\n\tdtype: d\n\tLoD: [[ 0,2, ]]\n\tdata: 0.5,"
    )
    assert printed_text("0\t", np.int32([3, 4]), [], -1) == "0\t\n\tdata: 3,4,"


def test_what_a_data_set_of_2_prints_is_one_line() -> None:
    """As Paddle 2.6.2 printed it, in its own time zone."""
    values = {
        "cost": np.array([5719542.0], "float32"),
        "pred": np.array([[2282.6884765625], [np.inf]], "float32"),
        "id": LoDTensor(np.array([[10], [11], [12]]), [[0, 1, 3]]),
        "b": np.array([True, False]),
    }
    line = fetched_line(0.0, 6, values.items())
    moment, _, rest = line.partition("], ")
    assert re.fullmatch(r"time: \[(1970-01-01|1969-12-31) \d\d:\d\d:00", moment)
    assert rest == "batch: [6], cost[1]:[5.71954e+06], pred[2]:[2282.69 inf], id[3]:[10 11 12], b[2]:[1 0]"
