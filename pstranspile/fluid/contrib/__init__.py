"""What scripts take from Fluid's `contrib`."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.contrib import mixed_precision as mixed_precision
from pstranspile.fluid.missing import names_of_fluid

_get = names_of_fluid(__name__, globals())


def __getattr__(name: str) -> Any:
    return _get(name)
