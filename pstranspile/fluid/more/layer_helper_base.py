"""Fluid's `layer_helper_base`: what makes the parameters of layers."""

from pstranspile.fluid.layer_helper import LayerHelperBase as LayerHelperBase
from pstranspile.fluid.missing import names_of_fluid

__getattr__ = names_of_fluid("pstranspile.fluid.layer_helper_base", globals())
