"""Fluid's `dygraph.layers`: the base of layers as objects."""

from __future__ import annotations

from pstranspile.fluid.layers.objects import Layer as Layer
from pstranspile.fluid.missing import names_of_fluid

__getattr__ = names_of_fluid(__name__, globals())
