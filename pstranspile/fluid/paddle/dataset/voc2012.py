"""The VOC 2012 data set of photographs with outlines of objects: an image [height, width, 3], and classes of its pixels
[height, width].

Pillow reads the images.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import numpy as np

from pstranspile.fluid.paddle.dataset.common import download

VOC_URL = "http://host.robots.ox.ac.uk/pascal/VOC/voc2012/VOCtrainval_11-May-2012.tar"
CACHE_DIR = "voc2012"
_IN = "VOCdevkit/VOC2012"


def reader_creator(filename: str, sub_name: str) -> Callable[[], Iterator[Any]]:
    """A reader of the images that a list in the archive names."""
    try:
        image = import_module("PIL.Image")
    except ImportError:
        raise ImportError("the images of voc2012 are read by Pillow: pip install Pillow") from None

    def samples() -> Iterator[Any]:
        with tarfile.open(filename) as archive:

            def content(name: str) -> bytes:
                held = archive.extractfile(f"{_IN}/{name}")
                assert held is not None
                return held.read()

            for name in content(f"ImageSets/Segmentation/{sub_name}.txt").decode().split():
                files = (f"JPEGImages/{name}.jpg", f"SegmentationClass/{name}.png")
                yield tuple(np.array(image.open(io.BytesIO(content(file)))) for file in files)

    return samples


def train() -> Callable[[], Iterator[Any]]:
    """A reader of all images."""
    return reader_creator(download(VOC_URL, CACHE_DIR, ""), "trainval")


def test() -> Callable[[], Iterator[Any]]:
    """A reader of the images in the data set's part for training."""
    return reader_creator(download(VOC_URL, CACHE_DIR, ""), "train")


def val() -> Callable[[], Iterator[Any]]:
    """A reader of the images in the data set's part for validation."""
    return reader_creator(download(VOC_URL, CACHE_DIR, ""), "val")
