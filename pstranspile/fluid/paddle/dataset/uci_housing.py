"""The prices of houses in Boston: 13 scaled features, and the price."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pstranspile.fluid.paddle.dataset.common import download

feature_names = ["CRIM", "ZN", "INDUS", "CHAS", "NOX", "RM", "AGE", "DIS", "RAD", "TAX", "PTRATIO", "B", "LSTAT"]
_AT = "http://paddlemodels.bj.bcebos.com/uci_housing/housing.data"


def load_data(filename: str, feature_num: int = 14, ratio: float = 0.8) -> tuple[Any, Any]:
    """The rows for training and those for tests; the mean is subtracted from each feature, which is then divided by its
    range.
    """
    data = np.fromfile(filename, sep=" ").reshape(-1, feature_num)
    features = data[:, :-1]
    span = features.max(axis=0) - features.min(axis=0)
    data[:, :-1] = (features - features.sum(axis=0) / len(data)) / span
    at = int(len(data) * ratio)
    return data[:at], data[at:]


def _reader(part: int) -> Callable[[], Iterator[Any]]:
    rows = load_data(download(_AT, "uci_housing", ""))[part]

    def samples() -> Iterator[Any]:
        for row in rows:
            yield row[:-1], row[-1:]

    return samples


def train() -> Callable[[], Iterator[Any]]:
    """A reader of the rows for training."""
    return _reader(0)


def test() -> Callable[[], Iterator[Any]]:
    """A reader of the rows for tests."""
    return _reader(1)


def fetch() -> None:
    """Raises FileNotFoundError, with the names of missing files, unless all files are there."""
    download(_AT, "uci_housing", "")
