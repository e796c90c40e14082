"""A cluster for the tests of this folder, and rows for jobs on it."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

import pstranspile as ps
from tests.cluster.data.tables import write
from tests.cluster.ray_cluster.jobs import small
from tests.cluster.ray_cluster.nodes import start


@pytest.fixture(scope="package")
def nodes() -> Generator[Any]:
    """Three nodes with two CPUs each, and a head without."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    try:
        cluster = start()
    except Exception as problem:
        pytest.skip(f"Ray itself does not start on this machine: {problem}")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def data(tmp_path: Path) -> ps.Data:
    """400 rows, of which a step takes 8."""
    path = write(tmp_path / "x.parquet", small(400), units=50)
    return ps.Data(path, batch=8, shuffle=3, columns={"dense": ["a", "b"]})
