"""`paddle.vision`: data sets of images, whose files a user has put in place, and transformations of images."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.paddle.later import not_there
from pstranspile.fluid.paddle.vision import datasets as datasets
from pstranspile.fluid.paddle.vision import transforms as transforms

_BACKEND = ["pil"]


def set_image_backend(backend: str) -> None:
    """Sets the library from which a script gets images. Raises ValueError for an unknown one."""
    if backend not in ("pil", "cv2", "tensor"):
        raise ValueError(f"images come from pil or cv2, not {backend!r}")
    _BACKEND[0] = backend


def get_image_backend() -> str:
    """The library that a script has set."""
    return _BACKEND[0]


def __getattr__(name: str) -> Any:
    raise not_there(f"paddle.vision.{name}", globals())
