"""Batches for the recorded training programs."""

from __future__ import annotations

from typing import Any

import numpy as np

from pstranspile.runtime.values import LoDTensor, SelectedRows
from tests.training import case

NAMES = {"FP32": "float32", "INT64": "int64"}
BATCH = 8


def batch(name: str, seed: int = 0) -> dict[str, Any]:
    """A batch for a case: ids are 0 or 1, so that every table has them, and repeat."""
    rng = np.random.default_rng(seed)
    feed: dict[str, Any] = {}
    for made in case(name)["feeds"]:
        shape = [BATCH if size == -1 else size for size in made["shape"]]
        offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 4, BATCH))]).tolist()
        if made["lod_level"]:
            shape[0] = offsets[-1]
        kind = NAMES[made["dtype"]]
        data = rng.integers(0, 2, shape) if kind == "int64" else rng.normal(size=shape).astype(kind)
        feed[made["name"]] = LoDTensor(data, [offsets]) if made["lod_level"] else data
    return feed


def same(a: Any, b: Any) -> bool:
    """Bitwise the same value."""
    if type(a) is not type(b):
        return False
    if isinstance(a, LoDTensor | SelectedRows | list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return a == b
