"""DeepFM: click-through rates from one id per field, first and second order terms beside a deep part, with Adagrad.

The second-order term of all pairs of fields is half the difference of the squared sum and the sum of squares.
"""

import numpy as np
import training

import pstranspile as ps
from pstranspile import layers as L
from pstranspile.autodiff import Adagrad, minimize

STEPS = 80
FIELDS, IDS, WIDTH = 6, 500, 8


def build() -> tuple[ps.Module, str]:
    model = L.Draft(seed=1)
    ids, click = L.data(model, "ids", [-1, FIELDS], "i64"), L.data(model, "click", [-1, 1])
    small = L.Normal(0.0, 0.1)
    first = L.embedding_v2(ids, (IDS, 1), is_sparse=True, param_attr=L.ParamAttr("first_order", small))
    factors = L.embedding_v2(ids, (IDS, WIDTH), is_sparse=True, param_attr=L.ParamAttr("factors", small))
    linear = L.reduce_sum(first, 1)
    squared_sum = L.square(L.reduce_sum(factors, 1))
    sum_of_squares = L.reduce_sum(L.square(factors), 1)
    pairs = 0.5 * L.reduce_sum(squared_sum - sum_of_squares, 1, keep_dim=True)
    deep = L.reshape(factors, [-1, FIELDS * WIDTH])
    for size in (64, 32):
        deep = L.fc(deep, size, act="relu")
    logit = L.fc([linear, pairs, deep], 1)
    loss = L.mean(L.sigmoid_cross_entropy_with_logits(logit, click))
    minimize(loss, Adagrad(0.1))
    return model.module(), loss.name


def feed(step: int) -> dict[str, np.ndarray]:
    """Ids of one field end up clicked when they are even in an even number of fields."""
    random = np.random.default_rng(step)
    ids = random.integers(40, size=(128, FIELDS)) + np.arange(FIELDS) * (IDS // FIELDS)
    click = (ids[:, :2] % 2).sum(axis=1, keepdims=True) == 1
    return {"ids": ids, "click": click.astype("float32")}


if __name__ == "__main__":
    training.main(__file__, build, feed, STEPS)
