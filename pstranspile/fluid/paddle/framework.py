"""`paddle.framework`: what Fluid's `framework` and `core` have, under their later home."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid import core as core
from pstranspile.fluid import framework
from pstranspile.fluid.core import CPUPlace as CPUPlace
from pstranspile.fluid.core import CUDAPlace as CUDAPlace
from pstranspile.fluid.param_attr import ParamAttr as ParamAttr


def __getattr__(name: str) -> Any:
    return getattr(framework, name)
