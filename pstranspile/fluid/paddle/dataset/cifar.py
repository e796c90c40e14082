"""The CIFAR data sets of small photographs: 3072 values in [0, 1], and a class."""

from __future__ import annotations

import pickle
import tarfile
from collections.abc import Callable, Iterator
from typing import Any

from pstranspile.fluid.paddle.dataset.common import download

_AT = "https://dataset.bj.bcebos.com/cifar/"


class _Arrays(pickle.Unpickler):
    """Reads the pickled batches of the data set, and refuses everything but arrays and text."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("numpy") and name in ("ndarray", "dtype", "_reconstruct"):
            return super().find_class(module, name)
        if (module, name) == ("_codecs", "encode"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"a batch of images wants {module}.{name}")


def _reader(file: str, part: str, labels: bytes, cycle: bool) -> Callable[[], Iterator[Any]]:
    path = download(_AT + file, "cifar", "")

    def once() -> Iterator[Any]:
        with tarfile.open(path) as archive:
            for member in archive:
                if part in member.name:
                    held = archive.extractfile(member)
                    assert held is not None
                    batch = _Arrays(held, encoding="bytes").load()
                    for image, label in zip(batch[b"data"], batch[labels], strict=True):
                        yield (image / 255.0).astype("float32"), int(label)

    def samples() -> Iterator[Any]:
        yield from once()
        while cycle:
            yield from once()

    return samples


def train10(cycle: bool = False) -> Callable[[], Iterator[Any]]:
    """A reader of the images of ten classes for training."""
    return _reader("cifar-10-python.tar.gz", "data_batch", b"labels", cycle)


def test10(cycle: bool = False) -> Callable[[], Iterator[Any]]:
    """A reader of the images of ten classes for tests."""
    return _reader("cifar-10-python.tar.gz", "test_batch", b"labels", cycle)


def train100() -> Callable[[], Iterator[Any]]:
    """A reader of the images of a hundred classes for training."""
    return _reader("cifar-100-python.tar.gz", "train", b"fine_labels", False)


def test100() -> Callable[[], Iterator[Any]]:
    """A reader of the images of a hundred classes for tests."""
    return _reader("cifar-100-python.tar.gz", "test", b"fine_labels", False)


def fetch() -> None:
    """Raises FileNotFoundError, with the names of missing files, unless all files are there."""
    train10()
    train100()
