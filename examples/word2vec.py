"""The word that follows four words: an n-gram model whose lookups share one sparse table, with SGD."""

import numpy as np
import training

import pstranspile as ps
from pstranspile import layers as L
from pstranspile.autodiff import SGD, minimize

STEPS = 300
WORDS = 600
CONTEXT = ("firstw", "secondw", "thirdw", "forthw")


def build() -> tuple[ps.Module, str]:
    model = L.Draft(seed=1)
    context = [L.data(model, name, [-1, 1], "i64") for name in CONTEXT]
    following = L.data(model, "nextw", [-1, 1], "i64")
    rows = [L.embedding(word, (WORDS, 32), is_sparse=True, param_attr="shared_w") for word in context]
    hidden = L.fc(L.concat(rows, axis=1), 64, act="sigmoid")
    words = L.fc(hidden, WORDS, act="softmax")
    loss = L.mean(L.cross_entropy(words, following))
    minimize(loss, SGD(0.05))
    return model.module(), loss.name


def feed(step: int) -> dict[str, np.ndarray]:
    """Sentences that count up by one, from a few starting words."""
    random = np.random.default_rng(step)
    start = random.integers(20, size=(128, 1))
    return {name: start + at for at, name in enumerate((*CONTEXT, "nextw"))}


if __name__ == "__main__":
    training.main(__file__, build, feed, STEPS)
