"""Fluid's `paddle.utils.image_util`: images as Pillow's and as arrays, resized, cut, mirrored and centred."""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np


def _pillow() -> Any:
    """Pillow's `Image`. Raises ImportError, which says what brings it, where it is not there."""
    try:
        return import_module("PIL.Image")
    except ImportError:
        raise ImportError("images are read and resized by Pillow: pip install pillow") from None


def resize_image(img: Any, target_size: int) -> Any:
    """An image of Pillow whose shorter side has `target_size` pixels, and the other side as many in proportion."""
    scale = target_size / min(img.size)
    return img.resize(tuple(round(side * scale) for side in img.size), _pillow().LANCZOS)


def flip(im: Any) -> Any:
    """An array [colours, height, width] or [height, width] as in a mirror."""
    return im[..., ::-1]


def crop_img(im: Any, inner_size: int, color: bool = True, test: bool = True) -> Any:
    """A square of an array, which is widened by zeros where it is smaller.

    The one in the middle; without `test` one that `numpy.random` chooses, mirrored half the times.
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
    """A square of an array less a mean, in one dim; `is_train` has the square chosen, and mirrored at times."""
    return (crop_img(im.astype("float32"), crop_size, color, not is_train) - img_mean).flatten()


def load_meta(meta_path: str, mean_img_size: int, crop_size: int, color: bool = True) -> Any:
    """The square in the middle of the mean image, `data_mean` of a file of numpy's."""
    shape = (3, mean_img_size, mean_img_size) if color else (mean_img_size, mean_img_size)
    mean, border = np.load(meta_path)["data_mean"].reshape(shape), (mean_img_size - crop_size) // 2
    return mean[..., border : border + crop_size, border : border + crop_size].astype("float32")


def load_image(img_path: str, is_color: bool = True) -> Any:
    """The image in a file, as Pillow's."""
    made = _pillow().open(img_path)
    made.load()
    return made


def oversample(img: Sequence[Any], crop_dims: Sequence[int]) -> Any:
    """Ten cuts [height, width, colours] of each array: those in the corners and in the middle, then their mirrors."""
    high, wide = crop_dims
    cuts: list[Any] = []
    for im in img:
        down, right = im.shape[0] - high, im.shape[1] - wide
        places = [(0, 0), (0, right), (down, 0), (down, right), (down // 2, right // 2)]
        five = [im[top : top + high, left : left + wide] for top, left in places]
        cuts += [*five, *(cut[:, ::-1] for cut in five)]
    return np.array(cuts, "float32")


class ImageTransformer:
    """Has arrays with their dims in another order, then colours in another order, then less a mean."""

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
        """Sets the mean, of each colour or of each element."""
        self.mean = mean[:, None, None] if mean is not None and mean.ndim == 1 else mean

    def transformer(self, data: Any) -> Any:
        """What is made of an array."""
        data = data if self.transpose is None else data.transpose(self.transpose)
        data = data if self.channel_swap is None else data[self.channel_swap, :, :]
        return data if self.mean is None else data - self.mean
