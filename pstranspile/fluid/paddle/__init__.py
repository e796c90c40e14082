"""The module that scripts import as `paddle`: readers, batches, data sets, launchers, and `paddle.fluid`."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.framework import is_compiled_with_cinn as is_compiled_with_cinn
from pstranspile.fluid.framework import is_compiled_with_custom_device as is_compiled_with_custom_device
from pstranspile.fluid.framework import is_compiled_with_distribute as is_compiled_with_distribute
from pstranspile.fluid.framework import is_compiled_with_ipu as is_compiled_with_ipu
from pstranspile.fluid.framework import is_compiled_with_mlu as is_compiled_with_mlu
from pstranspile.fluid.framework import is_compiled_with_npu as is_compiled_with_npu
from pstranspile.fluid.framework import is_compiled_with_rocm as is_compiled_with_rocm
from pstranspile.fluid.framework import is_compiled_with_xpu as is_compiled_with_xpu
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.paddle import compat as compat
from pstranspile.fluid.paddle import dataset as dataset
from pstranspile.fluid.paddle import reader as reader
from pstranspile.fluid.paddle.reader import batch as batch
from pstranspile.fluid.running.flags import build_static, is_dynamic

__version__ = "1.8.5"
_OF_FLUID = ("CPUPlace", "CUDAPlace", "CUDAPinnedPlace", "ParamAttr", "core", "is_compiled_with_cuda")
_REFUSED = ("DataParallel", "Model", "XPUPlace", "amp", "callbacks", "flops", "grad", "jit", "onnx", "summary")
"""Names of 2.x that only work with dynamic graphs or other devices, so they are missing."""
_DTYPES = {
    **{f"float{bits}": f"FP{bits}" for bits in (16, 32, 64)},
    **{name: name.upper() for name in ("bool", "int8", "int16", "int32", "int64", "uint8")},
}
"""The element types under their names in 2.x, with those of Fluid."""
_MODULES = [
    *("device", "distributed", "distribution", "framework", "io", "metric", "nn", "optimizer", "regularizer", "static"),
    *("sysconfig", "tensor", "text", "utils", "version", "vision"),
]


def _method(name: str) -> Any:
    """The function of 2.x behind a method of variables; None for other names."""
    from importlib import import_module

    tensor = import_module(f"{__name__}.tensor")
    if name in ("get_value", "set_value"):
        return getattr(tensor, name)
    return tensor.function(name) if name in tensor.METHODS else None


Variable.methods = _method


def enable_static() -> None:
    """Marks the script as one of 2.x, whose rules variables then follow. Graphs are always static."""
    Variable.later = True
    build_static()


def disable_static() -> None:
    """Raises NotHere, because there are static graphs only."""
    from pstranspile.fluid.missing import unsupported_error

    raise unsupported_error("paddle.disable_static", "programs are static graphs here")


def in_dynamic_mode() -> bool:
    """Whether the script's graphs would be dynamic in Paddle; such graphs can't be run here."""
    return is_dynamic()


def seed(value: int) -> None:
    """Sets the seed of the programs in use."""
    from pstranspile.fluid.framework import default_main_program, default_startup_program

    for program in (default_main_program(), default_startup_program()):
        program.random_seed = value


def set_device(device: str) -> Any:
    """The place that a text such as `cpu` or `gpu:0` names."""
    from pstranspile.fluid.framework import CPUPlace, CUDAPlace

    kind, _, number = device.partition(":")
    return CUDAPlace(int(number or 0)) if kind == "gpu" else CPUPlace()


def get_device() -> str:
    """The device on which everything is computed, which is always `cpu`."""
    return "cpu"


def get_default_dtype() -> str:
    """The default element type of parameters, which is always `float32`."""
    return "float32"


def set_default_dtype(d: Any) -> None:
    """Accepts float32, and raises NotHere for others, which scripts can pass to the layers themselves."""
    if str(d).rpartition(".")[2] not in ("float32", "FP32", "<class 'numpy.float32'>", "float32'>"):
        from pstranspile.fluid.missing import unsupported_error

        raise unsupported_error(f"paddle.set_default_dtype({d!r})", "parameters have float32; cast what is computed")


def get_cudnn_version() -> None:
    """None, because everything is computed on the CPU."""


class no_grad:
    """A context manager and decorator without effect, because programs only have the gradients that
    `minimize` appends.
    """

    def __call__(self, function: Any = None) -> Any:
        """The function unchanged."""
        return function

    def __enter__(self) -> no_grad:
        return self

    def __exit__(self, *_: object) -> None:
        """Does nothing."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in ("fluid", "base"):
        build_static()
        return import_module(__name__.rpartition(".")[0])
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name == "common_ops_import":
        return import_module(f"{__name__}.framework")
    if name == "Tensor":
        return Variable
    if name in ("dtype", *_DTYPES):
        kinds = import_module("pstranspile.fluid.graph.values").VarType
        return kinds if name == "dtype" else getattr(kinds, _DTYPES[name])
    if name in _REFUSED:
        from pstranspile.fluid.missing import Missing

        return Missing(f"paddle.{name}", [])
    if name in _OF_FLUID:
        return getattr(import_module(__name__.rpartition(".")[0]), name)
    return getattr(import_module(f"{__name__}.tensor"), name)
