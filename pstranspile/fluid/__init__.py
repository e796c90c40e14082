"""Fluid's own interface over this compiler, for programs and habits that come from there."""

from pstranspile.fluid.collective import Collective as Collective
from pstranspile.fluid.collective import GradAllReduce as GradAllReduce
from pstranspile.fluid.collective import LocalSGD as LocalSGD
from pstranspile.fluid.collective import SingleProcessMultiThread as SingleProcessMultiThread
from pstranspile.fluid.config import DistributeTranspilerConfig as DistributeTranspilerConfig
from pstranspile.fluid.geo import GeoSgdTranspiler as GeoSgdTranspiler
from pstranspile.fluid.transpiler import DistributeTranspiler as DistributeTranspiler
