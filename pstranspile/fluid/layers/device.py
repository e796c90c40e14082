"""Fluid's `layers.device`."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.missing import names_of_fluid
from pstranspile.fluid.places import CPUPlace


def get_places(device_count: int | None = None, device_type: str | None = None) -> Any:
    """As many CPUs as are asked for (default 1)."""
    return [CPUPlace()] * (device_count or 1)


__getattr__ = names_of_fluid(__name__, globals())
