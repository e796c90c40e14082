"""`paddle.framework` and `paddle.device`: the contents of Fluid's `framework` and `core`, under the names of later
versions.

All programs are computed on the CPU.
"""

from __future__ import annotations

from typing import Any

from pstranspile.fluid import core as core
from pstranspile.fluid import framework
from pstranspile.fluid.core import CPUPlace as CPUPlace
from pstranspile.fluid.core import CUDAPlace as CUDAPlace
from pstranspile.fluid.framework import is_compiled_with_cinn as is_compiled_with_cinn
from pstranspile.fluid.framework import is_compiled_with_cuda as is_compiled_with_cuda
from pstranspile.fluid.framework import is_compiled_with_custom_device as is_compiled_with_custom_device
from pstranspile.fluid.framework import is_compiled_with_distribute as is_compiled_with_distribute
from pstranspile.fluid.framework import is_compiled_with_ipu as is_compiled_with_ipu
from pstranspile.fluid.framework import is_compiled_with_mlu as is_compiled_with_mlu
from pstranspile.fluid.framework import is_compiled_with_npu as is_compiled_with_npu
from pstranspile.fluid.framework import is_compiled_with_rocm as is_compiled_with_rocm
from pstranspile.fluid.paddle import get_cudnn_version as get_cudnn_version
from pstranspile.fluid.paddle import get_device as get_device
from pstranspile.fluid.paddle import is_compiled_with_xpu as is_compiled_with_xpu
from pstranspile.fluid.paddle import set_device as set_device
from pstranspile.fluid.param_attr import ParamAttr as ParamAttr


def __getattr__(name: str) -> Any:
    return getattr(framework, name)
