"""Fluid's own interface over this compiler, for programs and habits that come from there."""

from pstranspile.fluid.config import DistributeTranspilerConfig as DistributeTranspilerConfig
from pstranspile.fluid.geo import GeoSgdTranspiler as GeoSgdTranspiler
from pstranspile.fluid.transpiler import DistributeTranspiler as DistributeTranspiler
