"""Linear regression: 13 numbers to one, with SGD."""

import numpy as np
import training

import pstranspile as ps
from pstranspile import layers as L
from pstranspile.autodiff import SGD, minimize

STEPS = 200


def build() -> tuple[ps.Module, str]:
    model = L.Draft(seed=1)
    x, y = L.data(model, "x", [-1, 13]), L.data(model, "y", [-1, 1])
    loss = L.mean(L.square_error_cost(L.fc(x, 1), y))
    minimize(loss, SGD(0.01))
    return model.module(), loss.name


def feed(step: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(step)
    x = random.normal(size=(32, 13)).astype("float32")
    y = x @ np.linspace(-1, 1, 13).reshape(13, 1) + 0.5 + random.normal(scale=0.1, size=(32, 1))
    return {"x": x, "y": y.astype("float32")}


if __name__ == "__main__":
    training.main(__file__, build, feed, STEPS)
