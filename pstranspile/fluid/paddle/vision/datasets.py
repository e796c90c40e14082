"""`paddle.vision.datasets`: data sets of images with indices. Nothing is downloaded."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from pstranspile.fluid.dataloader import Dataset
from pstranspile.fluid.paddle.dataset import cifar
from pstranspile.fluid.paddle.dataset.common import download as there
from pstranspile.fluid.paddle.later import not_there


class MNIST(Dataset):
    """The handwritten digits: images [28, 28] of numbers up to 255, and labels [1].

    Raises FileNotFoundError, which says where to put the files, if they are missing.
    """

    NAME, AT = "mnist", "https://dataset.bj.bcebos.com/mnist/"

    def __init__(
        self,
        image_path: str | None = None,
        label_path: str | None = None,
        mode: str = "train",
        transform: Callable[[Any], Any] | None = None,
        download: bool = True,
        backend: str | None = None,
    ):
        part = {"train": "train", "test": "t10k"}[mode.lower()]
        image_path = image_path or there(f"{self.AT}{part}-images-idx3-ubyte.gz", self.NAME, "")
        label_path = label_path or there(f"{self.AT}{part}-labels-idx1-ubyte.gz", self.NAME, "")
        self.mode, self.transform, self.backend = mode.lower(), transform, backend or "pil"
        with gzip.open(image_path) as images, gzip.open(label_path) as labels:
            self.images = np.frombuffer(images.read()[16:], "uint8").reshape(-1, 28, 28)
            self.labels = np.frombuffer(labels.read()[8:], "uint8").astype("int64").reshape(-1, 1)

    def __getitem__(self, idx: int) -> tuple[Any, Any]:
        return _sample(self.images[idx], self.labels[idx], self.transform, self.backend)

    def __len__(self) -> int:
        return len(self.labels)


class FashionMNIST(MNIST):
    """Images of clothes, in the form of `MNIST`."""

    NAME, AT = "fashion-mnist", "https://dataset.bj.bcebos.com/fashion_mnist/"


class Cifar10(Dataset):
    """Small photographs [32, 32, 3] of numbers up to 255, and labels. Raises FileNotFoundError as `MNIST`."""

    READERS: Mapping[str, Callable[[], Callable[[], Iterator[Any]]]] = {"train": cifar.train10, "test": cifar.test10}

    def __init__(
        self,
        data_file: str | None = None,
        mode: str = "train",
        transform: Callable[[Any], Any] | None = None,
        download: bool = True,
        backend: str | None = None,
    ):
        held = list(self.READERS[mode.lower()]()())
        self.mode, self.transform, self.backend = mode.lower(), transform, backend or "pil"
        self.data = [np.rint(image.reshape(3, 32, 32) * 255).astype("uint8").transpose(1, 2, 0) for image, _ in held]
        self.labels = [np.array(label).astype("int64") for _, label in held]

    def __getitem__(self, idx: int) -> tuple[Any, Any]:
        return _sample(self.data[idx], self.labels[idx], self.transform, self.backend)

    def __len__(self) -> int:
        return len(self.data)


class Cifar100(Cifar10):
    """Small photographs of a hundred classes, in the form of `Cifar10`."""

    READERS: Mapping[str, Callable[[], Callable[[], Iterator[Any]]]] = {"train": cifar.train100, "test": cifar.test100}


def _sample(image: Any, label: Any, transform: Callable[[Any], Any] | None, backend: str) -> tuple[Any, Any]:
    if backend == "pil":
        from PIL import Image

        image = Image.fromarray(image)
    else:
        image = image.astype("float32")
    return image if transform is None else transform(image), label


def __getattr__(name: str) -> Any:
    raise not_there(f"paddle.vision.datasets.{name}", globals())
