"""Fluid's mixed precision: float16 for GPUs, which is refused when it is to train."""

from __future__ import annotations

from typing import Any, NoReturn

from pstranspile.fluid.contrib.mixed_precision.fp16_lists import AutoMixedPrecisionLists as AutoMixedPrecisionLists
from pstranspile.fluid.missing import refused


class OptimizerWithMixedPrecision:
    """An optimizer whose program would compute in float16."""

    def __init__(self, optimizer: Any):
        self._optimizer = optimizer

    def minimize(self, *_: Any, **__: Any) -> NoReturn:
        """Raises NotHere."""
        raise refused(
            "contrib.mixed_precision", "all is computed in the element types of the program: minimise without"
        )

    backward = minimize


def decorate(optimizer: Any, *_: Any, **__: Any) -> OptimizerWithMixedPrecision:
    """The optimizer, to be refused when it minimises; the settings of its scaling are taken as they come."""
    return OptimizerWithMixedPrecision(optimizer)
