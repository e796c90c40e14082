"""Digits with two convolutions and poolings, with Momentum. The digits are drawn here: bars at ten angles."""

import numpy as np
import training

import pstranspile as ps
from pstranspile import layers as L
from pstranspile.autodiff import Momentum, minimize

STEPS = 40


def build() -> tuple[ps.Module, str]:
    model = L.Draft(seed=1)
    image, label = L.data(model, "img", [-1, 1, 28, 28]), L.data(model, "label", [-1, 1], "i64")
    first = L.simple_img_conv_pool(image, 20, 5, pool_size=2, pool_stride=2, act="relu")
    second = L.simple_img_conv_pool(first, 50, 5, pool_size=2, pool_stride=2, act="relu")
    digits = L.fc(second, 10, act="softmax")
    loss = L.mean(L.cross_entropy(digits, label))
    L.accuracy(digits, label)
    minimize(loss, Momentum(0.01, momentum=0.9))
    return model.module(), loss.name


def bars() -> np.ndarray:
    """Ten images [28, 28]: a bar through the middle at each of ten angles."""
    rows, columns = np.mgrid[-14:14, -14:14] + 0.5
    angles = np.arange(10) * np.pi / 10
    distance = np.stack([np.abs(rows * np.cos(angle) + columns * np.sin(angle)) for angle in angles])
    return (distance < 2).astype("float32")


def feed(step: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(step)
    label = random.integers(10, size=(32, 1))
    image = bars()[label[:, 0]] + random.normal(scale=0.3, size=(32, 28, 28))
    return {"img": image[:, None].astype("float32"), "label": label}


if __name__ == "__main__":
    training.main(__file__, build, feed, STEPS)
