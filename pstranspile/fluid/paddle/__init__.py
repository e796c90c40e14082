"""What scripts import as `paddle`: readers, batches, data sets, launchers, and `paddle.fluid`."""

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
"""Names of 2.x for what there is only without static graphs, or with other devices."""
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
    """The function of 2.x that a method of variables stands for; None for other names."""
    from importlib import import_module

    if name in ("get_value", "set_value"):
        return getattr(import_module(f"{__name__}.values"), name)
    tensor = import_module(f"{__name__}.tensor")
    return tensor.function(name) if name in tensor.METHODS else None


Variable.methods = _method


def enable_static() -> None:
    """Says that the script is one of 2.x, by whose rules variables then compute. There are static graphs only."""
    Variable.later = True
    build_static()


def disable_static() -> None:
    """Refused: there are static graphs only."""
    from pstranspile.fluid.missing import refused

    raise refused("paddle.disable_static", "programs are static graphs here")


def in_dynamic_mode() -> bool:
    """Whether the script's graphs would be dynamic in Paddle; they are not run here."""
    return is_dynamic()


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


def get_device() -> str:
    """The device that all is computed on."""
    return "cpu"


def get_default_dtype() -> str:
    """The element type of parameters that none is given for."""
    return "float32"


def set_default_dtype(d: Any) -> None:
    """Accepts float32; refuses others, which layers are given themselves."""
    if str(d).rpartition(".")[2] not in ("float32", "FP32", "<class 'numpy.float32'>", "float32'>"):
        from pstranspile.fluid.missing import refused

        raise refused(f"paddle.set_default_dtype({d!r})", "parameters have float32; cast what is computed")


def get_cudnn_version() -> None:
    """None: all is computed on the CPU."""


class no_grad:
    """A context or decorator without effect: programs have gradients where `minimize` appends them."""

    def __call__(self, function: Any = None) -> Any:
        """The function as it is."""
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
        kinds = import_module("pstranspile.fluid.graph.vartype").VarType
        return kinds if name == "dtype" else getattr(kinds, _DTYPES[name])
    if name in _REFUSED:
        from pstranspile.fluid.missing import Missing

        return Missing(f"paddle.{name}", [])
    if name in _OF_FLUID:
        return getattr(import_module(__name__.rpartition(".")[0]), name)
    return getattr(import_module(f"{__name__}.tensor"), name)
