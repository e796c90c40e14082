"""Digits with a multilayer perceptron, 784-200-200-10, with Adam. The digits are drawn here: a blob for each class."""

import numpy as np
import training

import pstranspile as ps
from pstranspile import layers as L
from pstranspile.autodiff import Adam, minimize

STEPS = 60
CLASSES = np.random.default_rng(7).normal(size=(10, 784)).astype("float32")


def build() -> tuple[ps.Module, str]:
    model = L.Draft(seed=1)
    image, label = L.data(model, "img", [-1, 784]), L.data(model, "label", [-1, 1], "i64")
    hidden = L.fc(L.fc(image, 200, act="tanh"), 200, act="tanh")
    digits = L.fc(hidden, 10, act="softmax")
    loss = L.mean(L.cross_entropy(digits, label))
    L.accuracy(digits, label)
    minimize(loss, Adam(0.001))
    return model.module(), loss.name


def feed(step: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(step)
    label = random.integers(10, size=(64, 1))
    image = 0.3 * CLASSES[label[:, 0]] + random.normal(size=(64, 784))
    return {"img": image.astype("float32"), "label": label}


if __name__ == "__main__":
    training.main(__file__, build, feed, STEPS)
