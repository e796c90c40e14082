"""A transformer encoder block (attention with four heads, dropout) with Adam and the Noam schedule."""

import numpy as np
import training

import pstranspile as ps
from pstranspile import layers as L
from pstranspile.autodiff import Adam, Noam, minimize

STEPS = 150
LENGTH, WIDTH, HEADS = 8, 32, 4


def dropped(x: L.Value) -> L.Value:
    return L.dropout(x, 0.1, implementation="upscale_in_train")


def attention(x: L.Value) -> L.Value:
    size = WIDTH // HEADS
    query, key, value = (L.fc(x, WIDTH, num_flatten_dims=2, bias_attr=False) for _ in range(3))

    def by_head(held: L.Value) -> L.Value:
        return L.transpose(L.reshape(held, [0, 0, HEADS, size]), [0, 2, 1, 3])

    weights = dropped(L.softmax(L.matmul(by_head(query), by_head(key), transpose_y=True, alpha=size**-0.5)))
    mixed = L.transpose(L.matmul(weights, by_head(value)), [0, 2, 1, 3])
    return L.fc(L.reshape(mixed, [0, 0, WIDTH]), WIDTH, num_flatten_dims=2, bias_attr=False)


def build() -> tuple[ps.Module, str]:
    model = L.Draft(seed=1)
    x, y = L.data(model, "x", [-1, LENGTH, WIDTH]), L.data(model, "y", [-1, 1])
    attended = L.layer_norm(L.elementwise_add(x, dropped(attention(x))), begin_norm_axis=2)
    hidden = dropped(L.fc(attended, 64, num_flatten_dims=2, act="relu"))
    out = dropped(L.fc(hidden, WIDTH, num_flatten_dims=2))
    encoded = L.layer_norm(L.elementwise_add(attended, out), begin_norm_axis=2)
    prediction = L.fc(L.reduce_mean(encoded, 1), 1)
    loss = L.mean(L.square_error_cost(prediction, y))
    minimize(loss, Adam(Noam(d_model=32, warmup_steps=8), beta2=0.98, epsilon=1e-9))
    return model.module(), loss.name


def feed(step: int) -> dict[str, np.ndarray]:
    """The number asked for is the mean of the first channel over the sequence."""
    x = np.random.default_rng(step).normal(size=(32, LENGTH, WIDTH)).astype("float32")
    return {"x": x, "y": 2 * x[:, :, 0].mean(axis=1, keepdims=True)}


if __name__ == "__main__":
    training.main(__file__, build, feed, STEPS)
