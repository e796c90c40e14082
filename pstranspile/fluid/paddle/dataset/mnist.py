"""The MNIST data set of handwritten digits: images of 784 values in [-1, 1], and labels."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pstranspile.fluid.paddle.dataset.common import download

_AT = "https://dataset.bj.bcebos.com/mnist/"


def reader_creator(image_filename: str, label_filename: str, buffer_size: int) -> Callable[[], Iterator[Any]]:
    """A reader of an image file and a label file, both compressed, in the format of the data set."""

    def samples() -> Iterator[Any]:
        with gzip.open(image_filename, "rb") as images, gzip.open(label_filename, "rb") as labels:
            pixels = np.frombuffer(images.read()[16:], "uint8").reshape(-1, 784)
            for image, label in zip(pixels, labels.read()[8:], strict=True):
                yield image.astype("float32") / 255.0 * 2.0 - 1.0, int(label)

    return samples


def _reader(part: str) -> Callable[[], Iterator[Any]]:
    names = f"{part}-images-idx3-ubyte.gz", f"{part}-labels-idx1-ubyte.gz"
    paths = [download(_AT + name, "mnist", "") for name in names]
    return reader_creator(paths[0], paths[1], 100)


def train() -> Callable[[], Iterator[Any]]:
    """A reader of the images for training."""
    return _reader("train")


def test() -> Callable[[], Iterator[Any]]:
    """A reader of the images for tests."""
    return _reader("t10k")


def fetch() -> None:
    """Raises FileNotFoundError, with the names of missing files, unless all files are there."""
    train()
    test()
