"""`paddle.vision`: data sets whose files are there, and what is done to their images."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.paddle.later import not_there
from pstranspile.fluid.paddle.vision import datasets as datasets
from pstranspile.fluid.paddle.vision import transforms as transforms

_BACKEND = ["pil"]


def set_image_backend(backend: str) -> None:
    """Notes which library a script takes images from. Raises ValueError for another one than pil and cv2."""
    if backend not in ("pil", "cv2", "tensor"):
        raise ValueError(f"images come from pil or cv2, not {backend!r}")
    _BACKEND[0] = backend


def get_image_backend() -> str:
    """The library that was set."""
    return _BACKEND[0]


def __getattr__(name: str) -> Any:
    raise not_there(f"paddle.vision.{name}", globals())
