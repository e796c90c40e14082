"""Ranking by pairs: a query shall be nearer to its title than to another one, as bags of words, with SGD."""

import numpy as np
import training

import pstranspile as ps
from pstranspile import layers as L
from pstranspile.autodiff import SGD, minimize

STEPS = 150
WORDS = 600


def build() -> tuple[ps.Module, str]:
    model = L.Draft(seed=1)
    names = ("query_ids", "pos_title_ids", "neg_title_ids")
    query, right, wrong = (L.data(model, name, [-1, 1], "i64", lod_level=1) for name in names)

    def bag(ids: L.Value, weight: str, bias: str | None) -> L.Value:
        words = L.embedding(ids, (WORDS, 32), is_sparse=True, param_attr="__emb__")
        return L.fc(L.unary("softsign", L.sequence_pool(words, "sum")), 16, param_attr=weight, bias_attr=bias)

    asked = bag(query, "__q_fc__", None)
    titles = [bag(ids, "__fc__", "__fc_b__") for ids in (right, wrong)]
    near, far = (L.cos_sim(asked, title) for title in titles)
    margin = L.fill_constant_batch_size_like(near, [-1, 1], "f32", 0.1)
    excess = L.elementwise_add(L.elementwise_sub(margin, near), far)
    zero = L.fill_constant_batch_size_like(excess, [-1, 1], "f32", 0.0)
    loss = L.mean(L.elementwise_max(zero, excess))
    minimize(loss, SGD(0.1))
    return model.module(), loss.name


def feed(step: int) -> dict[str, object]:
    """A title belongs to a query when its words are of the same topic: numbers from the same hundred."""
    random = np.random.default_rng(step)
    topics = random.permuted(np.tile(np.arange(6), (48, 1)), axis=1)[:, :2]
    ends = list(range(0, 48 * 4 + 1, 4))

    def words(topic: np.ndarray) -> ps.LoDTensor:
        ids = topic[:, None] * 100 + random.integers(20, size=(48, 4))
        return ps.LoDTensor(ids.reshape(-1, 1), [ends])

    own, other = topics[:, 0], topics[:, 1]
    return {"query_ids": words(own), "pos_title_ids": words(own), "neg_title_ids": words(other)}


if __name__ == "__main__":
    training.main(__file__, build, feed, STEPS)
