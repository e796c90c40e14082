"""Fluid's mixed precision."""

from __future__ import annotations

from pstranspile.fluid.contrib.mixed_precision import decorator as decorator
from pstranspile.fluid.contrib.mixed_precision import fp16_lists as fp16_lists
from pstranspile.fluid.contrib.mixed_precision import fp16_utils as fp16_utils
from pstranspile.fluid.contrib.mixed_precision.decorator import (
    OptimizerWithMixedPrecision as OptimizerWithMixedPrecision,
)
from pstranspile.fluid.contrib.mixed_precision.decorator import decorate as decorate
from pstranspile.fluid.contrib.mixed_precision.fp16_lists import AutoMixedPrecisionLists as AutoMixedPrecisionLists
