"""Fluid's `memory_optimization_transpiler`."""

from __future__ import annotations

from pstranspile.fluid.transpiler import memory_optimize as memory_optimize
from pstranspile.fluid.transpiler import release_memory as release_memory
