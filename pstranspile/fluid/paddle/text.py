"""`paddle.text`, all of whose names are missing: `paddle.dataset` has readers of texts."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.paddle.later import not_there


def __getattr__(name: str) -> Any:
    raise not_there(f"paddle.text.{name}", ())
