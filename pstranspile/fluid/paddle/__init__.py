"""What scripts import as `paddle`: readers, batches, data sets, launchers, and `paddle.fluid`."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.paddle import compat as compat
from pstranspile.fluid.paddle import dataset as dataset
from pstranspile.fluid.paddle import reader as reader
from pstranspile.fluid.paddle.batching import batch as batch

__version__ = "1.8.5"
_OF_FLUID = ("CPUPlace", "CUDAPlace", "CUDAPinnedPlace", "ParamAttr", "core", "is_compiled_with_cuda")
_MODULES = [
    "distributed",
    "framework",
    "io",
    "metric",
    "nn",
    "optimizer",
    "regularizer",
    "static",
    "sysconfig",
    "tensor",
    "utils",
    "version",
]


def enable_static() -> None:
    """Nothing: there are static graphs only."""


def disable_static() -> None:
    """Refused: there are static graphs only."""
    from pstranspile.fluid.missing import refused

    raise refused("paddle.disable_static", "programs are static graphs here")


def in_dynamic_mode() -> bool:
    """False: there are static graphs only."""
    return False


def seed(value: int) -> None:
    """Draws the random numbers of the programs in use from this number on."""
    from pstranspile.fluid.framework import default_main_program, default_startup_program

    for program in (default_main_program(), default_startup_program()):
        program.random_seed = value


def set_device(device: str) -> Any:
    """The place that a text such as `cpu` or `gpu:0` names."""
    from pstranspile.fluid.places import CPUPlace, CUDAPlace

    kind, _, number = device.partition(":")
    return CUDAPlace(int(number or 0)) if kind == "gpu" else CPUPlace()


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "fluid":
        return import_module(__name__.rpartition(".")[0])
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name == "common_ops_import":
        return import_module(f"{__name__}.framework")
    if name in _OF_FLUID:
        return getattr(import_module(__name__.rpartition(".")[0]), name)
    return getattr(import_module(f"{__name__}.tensor"), name)
