"""What scripts import as `paddle`: readers, batches, data sets, launchers, and `paddle.fluid`."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.paddle import compat as compat
from pstranspile.fluid.paddle import dataset as dataset
from pstranspile.fluid.paddle import reader as reader
from pstranspile.fluid.paddle.batching import batch as batch

__version__ = "1.8.5"
_OF_FLUID = ("CPUPlace", "CUDAPlace", "CUDAPinnedPlace", "ParamAttr")
_LAYERS = {"mean": "mean", "concat": "concat", "cast": "cast", "reshape": "reshape"}
"""Names of the first 2.x versions that mean a layer of Fluid."""


def enable_static() -> None:
    """Nothing: there are static graphs only."""


def disable_static() -> None:
    """Refused: there are static graphs only."""
    from pstranspile.fluid.missing import refused

    raise refused("paddle.disable_static", "programs are static graphs here")


def in_dynamic_mode() -> bool:
    """False: there are static graphs only."""
    return False


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "fluid":
        return import_module(__name__.rpartition(".")[0])
    if name in ("distributed", "io", "optimizer", "static", "utils", "version"):
        return import_module(f"{__name__}.{name}")
    if name in _OF_FLUID:
        return getattr(import_module(__name__.rpartition(".")[0]), name)
    if name in _LAYERS:
        return getattr(import_module(f"{__name__.rpartition('.')[0]}.layers"), _LAYERS[name])
    raise AttributeError(f"module paddle has no attribute {name!r}")
