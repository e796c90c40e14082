"""Photographs of flowers of 102 species: 3 * 224 * 224 values, and a class from 0 on.

Images are read with OpenCV, classes and parts with scipy.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from os import cpu_count
from typing import Any

from pstranspile.fluid.paddle.dataset.common import download
from pstranspile.fluid.paddle.dataset.image import load_image_bytes, simple_transform
from pstranspile.fluid.paddle.reader import map_readers, xmap_readers

_AT = "http://paddlemodels.bj.bcebos.com/flowers/"
DATA_URL, LABEL_URL, SETID_URL = (f"{_AT}{name}" for name in ("102flowers.tgz", "imagelabels.mat", "setid.mat"))
TRAIN_FLAG = "tstid"
"""The name of the part for training: the larger one, which the data set itself calls the test part."""

TEST_FLAG = "trnid"
"""The name of the part for tests."""

VALID_FLAG = "valid"
"""The name of the part for validation."""

Mapper = Callable[[tuple[bytes, int]], Any]


def default_mapper(is_train: bool, sample: tuple[bytes, int]) -> tuple[Any, int]:
    """An image, from the bytes of its file, as values: for training cut at random and flipped at random, otherwise cut
    from the middle.
    """
    image = simple_transform(load_image_bytes(sample[0]), 256, 224, is_train, mean=[103.94, 116.78, 123.68])
    return image.flatten().astype("float32"), sample[1]


train_mapper, test_mapper = partial(default_mapper, True), partial(default_mapper, False)


def _matrix(path: str, name: str) -> Any:
    try:
        return import_module("scipy.io").loadmat(path)[name][0]
    except ImportError:
        raise ImportError("the classes of flowers are read by scipy: pip install scipy") from None


def reader_creator(
    data_file: str,
    label_file: str,
    setid_file: str,
    dataset_name: str,
    mapper: Mapper,
    buffered_size: int = 1024,
    use_xmap: bool = True,
    cycle: bool = False,
) -> Callable[[], Iterator[Any]]:
    """A reader of a part of the images; with `cycle` it repeats them without end, with `use_xmap` it converts them in
    threads.
    """
    labels = _matrix(label_file, "labels")
    classes = {f"jpg/image_{image:05d}.jpg": int(labels[image - 1]) for image in _matrix(setid_file, dataset_name)}

    def once() -> Iterator[tuple[bytes, int]]:
        with tarfile.open(data_file) as archive:
            for member in archive:
                held = archive.extractfile(member) if member.name in classes else None
                if held is not None:
                    yield held.read(), classes[member.name] - 1

    def samples() -> Iterator[tuple[bytes, int]]:
        yield from once()
        while cycle:
            yield from once()

    if use_xmap:
        return xmap_readers(mapper, samples, min(4, cpu_count() or 1), buffered_size)
    return map_readers(mapper, samples)


def _part(flag: str, mapper: Mapper, buffered_size: int, use_xmap: bool, cycle: bool) -> Callable[[], Iterator[Any]]:
    data, labels, parts = (download(url, "flowers", "") for url in (DATA_URL, LABEL_URL, SETID_URL))
    return reader_creator(data, labels, parts, flag, mapper, buffered_size, use_xmap, cycle)


def train(
    mapper: Mapper = train_mapper, buffered_size: int = 1024, use_xmap: bool = True, cycle: bool = False
) -> Callable[[], Iterator[Any]]:
    """A reader of the images for training."""
    return _part(TRAIN_FLAG, mapper, buffered_size, use_xmap, cycle)


def test(
    mapper: Mapper = test_mapper, buffered_size: int = 1024, use_xmap: bool = True, cycle: bool = False
) -> Callable[[], Iterator[Any]]:
    """A reader of the images for tests."""
    return _part(TEST_FLAG, mapper, buffered_size, use_xmap, cycle)


def valid(
    mapper: Mapper = test_mapper, buffered_size: int = 1024, use_xmap: bool = True
) -> Callable[[], Iterator[Any]]:
    """A reader of the images for validation."""
    return _part(VALID_FLAG, mapper, buffered_size, use_xmap, False)


def fetch() -> None:
    """Raises FileNotFoundError, with the names of missing files, unless all files are there."""
    for url in (DATA_URL, LABEL_URL, SETID_URL):
        download(url, "flowers", "")
