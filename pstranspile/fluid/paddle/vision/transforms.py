"""`paddle.vision.transforms`: transformations of images, which are arrays [height, width, channels] or images of
Pillow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pstranspile.fluid.paddle.later import not_there


def _array(image: Any) -> Any:
    """An image as an array with a dim for channels."""
    held = np.asarray(image)
    return held[..., None] if held.ndim == 2 else held


class BaseTransform:
    """The base class of transformations; subclasses define `_apply_image`."""

    def __init__(self, keys: Any = None):
        self.keys = keys

    def _apply_image(self, image: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not say what it does: write _apply_image")

    def __call__(self, inputs: Any) -> Any:
        """The transformed image; the other items of a tuple are unchanged."""
        if isinstance(inputs, tuple):
            return (self._apply_image(inputs[0]), *inputs[1:])  # pyright: ignore[reportUnknownVariableType]
        return self._apply_image(inputs)


class Compose:
    """Several transformations, one after the other."""

    def __init__(self, transforms: Sequence[Any]):
        self.transforms = transforms

    def __call__(self, data: Any) -> Any:
        """The result of the last transformation."""
        for transform in self.transforms:
            data = transform(data)
        return data


class Normalize(BaseTransform):
    """Subtracts a mean from each channel, then divides it by a standard deviation."""

    def __init__(
        self, mean: Any = 0.0, std: Any = 1.0, data_format: str = "CHW", to_rgb: bool = False, keys: Any = None
    ):
        super().__init__(keys)
        self.data_format, self.to_rgb = data_format, to_rgb
        self._numbers = [np.array(number, "float32").reshape(-1) for number in (mean, std)]

    def _apply_image(self, image: Any) -> Any:
        held = np.asarray(image, "float32")
        dims = (-1, 1, 1) if self.data_format == "CHW" else (1, 1, -1)
        if self.to_rgb:
            held = held[::-1] if self.data_format == "CHW" else held[..., ::-1]
        mean, std = (number.reshape(dims) for number in self._numbers)
        return ((held - mean) / std).astype("float32")


class Transpose(BaseTransform):
    """Reorders the dims, by default channels first."""

    def __init__(self, order: Sequence[int] = (2, 0, 1), keys: Any = None):
        super().__init__(keys)
        self.order = order

    def _apply_image(self, image: Any) -> Any:
        return _array(image).transpose(self.order)


class ToTensor(BaseTransform):
    """Scales numbers up to 255 to numbers up to 1, and puts channels first (`data_format`)."""

    def __init__(self, data_format: str = "CHW", keys: Any = None):
        super().__init__(keys)
        self.data_format = data_format

    def _apply_image(self, image: Any) -> Any:
        held = _array(image)
        held = held.astype("float32") / (255.0 if held.dtype == np.uint8 else 1.0)
        return held.transpose(2, 0, 1) if self.data_format == "CHW" else held


class Resize(BaseTransform):
    """Resizes images to [height, width], or so that the shorter side has a given length."""

    def __init__(self, size: Any, interpolation: str = "bilinear", keys: Any = None):
        super().__init__(keys)
        self.size, self.interpolation = size, interpolation

    def _apply_image(self, image: Any) -> Any:
        from PIL import Image

        alone = not isinstance(image, np.ndarray)
        held = image if alone else Image.fromarray(image.astype("uint8"))
        size = self.size
        if isinstance(size, int):
            short = min(held.size)
            size = [round(side * size / short) for side in held.size[::-1]]
        made = held.resize((size[1], size[0]), getattr(Image.Resampling, self.interpolation.upper()))
        return made if alone else np.asarray(made)


class CenterCrop(BaseTransform):
    """Cuts the middle of an image: [height, width], or a square."""

    def __init__(self, size: Any, keys: Any = None):
        super().__init__(keys)
        self.size = [size, size] if isinstance(size, int) else list(size)

    def _apply_image(self, image: Any) -> Any:
        held = np.asarray(image)
        top, left = ((held.shape[axis] - self.size[axis]) // 2 for axis in (0, 1))
        return held[top : top + self.size[0], left : left + self.size[1]]


class RandomHorizontalFlip(BaseTransform):
    """Mirrors an image left to right with a probability."""

    def __init__(self, prob: float = 0.5, keys: Any = None):
        super().__init__(keys)
        self.prob = prob

    def _apply_image(self, image: Any) -> Any:
        return np.asarray(image)[:, ::-1] if np.random.random() < self.prob else image


def __getattr__(name: str) -> Any:
    raise not_there(f"paddle.vision.transforms.{name}", globals())
