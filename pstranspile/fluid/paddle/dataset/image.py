"""Reads, cuts, flips and converts images. OpenCV (`cv2`) reads and resizes them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

Image = Any
"""An array [height, width, 3], colours in the order blue, green, red, or a greyscale array [height, width]."""


def _opencv() -> Any:
    """The module of OpenCV. Raises ImportError, which says how to install it, if it is missing."""
    try:
        return import_module("cv2")
    except ImportError:
        raise ImportError("images are read and resized by OpenCV: pip install opencv-python") from None


def load_image_bytes(bytes: bytes, is_color: bool = True) -> Image:
    """The image in the bytes of a file."""
    return _opencv().imdecode(np.frombuffer(bytes, "uint8"), int(is_color))


def load_image(file: str, is_color: bool = True) -> Image:
    """The image in a file."""
    return _opencv().imread(file, int(is_color))


def resize_short(im: Image, size: int) -> Image:
    """The image resized so that its shorter side has `size` pixels, with unchanged proportions."""
    opencv, (height, width) = _opencv(), im.shape[:2]
    high, wide = (size * height // width, size) if height > width else (size, size * width // height)
    return opencv.resize(im, (wide, high), interpolation=opencv.INTER_CUBIC)


def to_chw(im: Image, order: tuple[int, ...] = (2, 0, 1)) -> Image:
    """The image with its dims in another order, by default the colours first."""
    return im.transpose(order)


def _crop_square(im: Image, top: int, left: int, size: int) -> Image:
    return im[top : top + size, left : left + size]


def center_crop(im: Image, size: int, is_color: bool = True) -> Image:
    """The square of `size` pixels in the middle of the image."""
    return _crop_square(im, (im.shape[0] - size) // 2, (im.shape[1] - size) // 2, size)


def random_crop(im: Image, size: int, is_color: bool = True) -> Image:
    """A square of `size` pixels at a position drawn by `numpy.random`."""
    top, left = (int(np.random.randint(0, side - size + 1)) for side in im.shape[:2])
    return _crop_square(im, top, left, size)


def left_right_flip(im: Image, is_color: bool = True) -> Image:
    """The image mirrored left to right."""
    return im[:, ::-1]


def simple_transform(
    im: Image, resize_size: int, crop_size: int, is_train: bool, is_color: bool = True, mean: Any = None
) -> Image:
    """An image as the input of a network: resized, cut, colours first, as float32, minus the `mean` of each colour.

    For training, the square is cut at random and mirrored with probability 1/2; otherwise it is cut from the middle.
    """
    im = resize_short(im, resize_size)
    if is_train:
        im = random_crop(im, crop_size, is_color)
        im = left_right_flip(im, is_color) if np.random.randint(2) == 0 else im
    else:
        im = center_crop(im, crop_size, is_color)
    made: Any = (to_chw(im) if im.ndim == 3 else im).astype("float32")
    if mean is not None:
        middle = np.asarray(mean, "float32")
        made -= middle[:, None, None] if middle.ndim == 1 and is_color else middle
    return made


def load_and_transform(
    filename: str, resize_size: int, crop_size: int, is_train: bool, is_color: bool = True, mean: Any = None
) -> Image:
    """The image in a file, converted by `simple_transform`."""
    return simple_transform(load_image(filename, is_color), resize_size, crop_size, is_train, is_color, mean)
