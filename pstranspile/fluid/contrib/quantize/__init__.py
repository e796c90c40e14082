"""Fluid's `contrib.quantize`: training for numbers of a few bits."""

from __future__ import annotations

from pstranspile.fluid.contrib.quantize import quantize_transpiler as quantize_transpiler
from pstranspile.fluid.contrib.quantize.quantize_transpiler import QuantizeTranspiler as QuantizeTranspiler
