"""Fluid's mixed precision, under both of its homes."""

from __future__ import annotations

from pstranspile.fluid.contrib.mixed_precision.decorator import AutoMixedPrecisionLists as AutoMixedPrecisionLists
from pstranspile.fluid.contrib.mixed_precision.decorator import (
    OptimizerWithMixedPrecision as OptimizerWithMixedPrecision,
)
from pstranspile.fluid.contrib.mixed_precision.decorator import decorate as decorate
