"""Click-through rates from two ragged lists of ids with sparse embeddings (wide and deep), with Adam."""

import numpy as np
import training

import pstranspile as ps
from pstranspile import layers as L
from pstranspile.autodiff import Adam, minimize

STEPS = 80
DEEP, WIDE = 1100, 300


def build() -> tuple[ps.Module, str]:
    model = L.Draft(seed=4)
    deep_ids, wide_ids = (L.data(model, name, [-1, 1], "i64", lod_level=1) for name in ("dnn_data", "lr_data"))
    click = L.data(model, "click", [-1, 1], "i64")
    deep = L.sequence_pool(L.embedding(deep_ids, (DEEP, 16), is_sparse=True, param_attr="deep_embedding"), "sum")
    for at, size in enumerate((64, 32)):
        deep = L.fc(deep, size, act="relu", name=f"dnn-fc-{at}")
    wide = L.sequence_pool(L.embedding(wide_ids, (WIDE, 1), is_sparse=True, param_attr="wide_embedding"), "sum")
    predict = L.fc(L.concat([deep, wide], axis=1), 2, act="softmax")
    loss = L.mean(L.cross_entropy(predict, click))
    minimize(loss, Adam(0.01))
    return model.module(), loss.name


def ragged(random: np.random.Generator, most: int, batch: int) -> tuple[np.ndarray, list[int]]:
    """Ids [total, 1] of `batch` lists of one to five ids, and where each list starts and ends."""
    ends = np.cumsum(random.integers(1, 6, size=batch))
    return random.integers(most, size=(ends[-1], 1)), [0, *map(int, ends)]


def feed(step: int) -> dict[str, object]:
    """A click follows when more of the ids are even than odd."""
    random = np.random.default_rng(step)
    deep, deep_ends = ragged(random, DEEP, 64)
    wide, wide_ends = ragged(random, WIDE, 64)
    votes = np.add.reduceat(1 - 2 * (deep[:, 0] % 2), deep_ends[:-1])
    votes += np.add.reduceat(1 - 2 * (wide[:, 0] % 2), wide_ends[:-1])
    return {
        "dnn_data": ps.LoDTensor(deep, [deep_ends]),
        "lr_data": ps.LoDTensor(wide, [wide_ends]),
        "click": (votes > 0).astype("int64")[:, None],
    }


if __name__ == "__main__":
    training.main(__file__, build, feed, STEPS)
