"""Fluid's `paddle.utils.image_util`: resizes, cuts, mirrors and centres images of Pillow and arrays."""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np


def _pillow() -> Any:
    """Pillow's module `Image`. Raises ImportError, which says how to install it, if it is missing."""
    try:
        return import_module("PIL.Image")
    except ImportError:
        raise ImportError("images are read and resized by Pillow: pip install pillow") from None


def resize_image(img: Any, target_size: int) -> Any:
    """An image of Pillow resized so that its shorter side has `target_size` pixels, with unchanged proportions."""
    scale = target_size / min(img.size)
    return img.resize(tuple(round(side * scale) for side in img.size), _pillow().LANCZOS)


def flip(im: Any) -> Any:
    """An array [colours, height, width] or [height, width], mirrored left to right."""
    return im[..., ::-1]


def crop_img(im: Any, inner_size: int, color: bool = True, test: bool = True) -> Any:
    """A square cut from an array, which is padded with zeros if it is smaller.

    The square is in the middle; without `test` its position is drawn by `numpy.random`, and it is mirrored with
    probability 1/2.
    """
    high, wide = (max(inner_size, side) for side in im.shape[-2:])
    top, left = (high - im.shape[-2]) // 2, (wide - im.shape[-1]) // 2
    padded = np.zeros((3, high, wide) if color else (high, wide), "float64" if color else "float32")
    padded[..., top : top + im.shape[-2], left : left + im.shape[-1]] = im
    if test:
        top, left = (high - inner_size) // 2, (wide - inner_size) // 2
    else:
        top, left = (int(np.random.randint(0, side - inner_size + 1)) for side in (high, wide))
    cut = padded[..., top : top + inner_size, left : left + inner_size]
    return flip(cut) if not test and np.random.randint(2) == 0 else cut


def decode_jpeg(jpeg_string: bytes) -> Any:
    """The image in the bytes of a file, as an array with colours first."""
    made = np.array(_pillow().open(io.BytesIO(jpeg_string)))
    return made.transpose(2, 0, 1) if made.ndim == 3 else made


def preprocess_img(im: Any, img_mean: Any, crop_size: int, is_train: bool, color: bool = True) -> Any:
    """A square cut from an array, minus a mean, as a vector; with `is_train` the position is random, and the square may
    be mirrored.
    """
    return (crop_img(im.astype("float32"), crop_size, color, not is_train) - img_mean).flatten()


def load_meta(meta_path: str, mean_img_size: int, crop_size: int, color: bool = True) -> Any:
    """The square in the middle of the mean image, which is `data_mean` in a file of numpy."""
    shape = (3, mean_img_size, mean_img_size) if color else (mean_img_size, mean_img_size)
    mean, border = np.load(meta_path)["data_mean"].reshape(shape), (mean_img_size - crop_size) // 2
    return mean[..., border : border + crop_size, border : border + crop_size].astype("float32")


def load_image(img_path: str, is_color: bool = True) -> Any:
    """The image in a file, as an image of Pillow."""
    made = _pillow().open(img_path)
    made.load()
    return made


def oversample(img: Sequence[Any], crop_dims: Sequence[int]) -> Any:
    """Ten cuts [height, width, colours] of each array: at the corners and in the middle, then the same
    ones mirrored.
    """
    high, wide = crop_dims
    cuts: list[Any] = []
    for im in img:
        down, right = im.shape[0] - high, im.shape[1] - wide
        places = [(0, 0), (0, right), (down, 0), (down, right), (down // 2, right // 2)]
        five = [im[top : top + high, left : left + wide] for top, left in places]
        cuts += [*five, *(cut[:, ::-1] for cut in five)]
    return np.array(cuts, "float32")


class ImageTransformer:
    """Transforms arrays: reorders their dims, then their colours, then subtracts a mean."""

    def __init__(self, transpose: Any = None, channel_swap: Any = None, mean: Any = None, is_color: bool = True):
        self.is_color = is_color
        self.set_transpose(transpose)
        self.set_channel_swap(channel_swap)
        self.set_mean(mean)

    def set_transpose(self, order: Any) -> None:
        """Sets the order of the dims."""
        assert order is None or not self.is_color or len(order) == 3, "an image with colours has 3 dims"
        self.transpose = order

    def set_channel_swap(self, order: Any) -> None:
        """Sets the order of the colours."""
        assert order is None or not self.is_color or len(order) == 3, "there are 3 colours"
        self.channel_swap = order

    def set_mean(self, mean: Any) -> None:
        """Sets the mean, one number for each colour or for each element."""
        self.mean = mean[:, None, None] if mean is not None and mean.ndim == 1 else mean

    def transformer(self, data: Any) -> Any:
        """An array after the transformations that are set."""
        data = data if self.transpose is None else data.transpose(self.transpose)
        data = data if self.channel_swap is None else data[self.channel_swap, :, :]
        return data if self.mean is None else data - self.mean
