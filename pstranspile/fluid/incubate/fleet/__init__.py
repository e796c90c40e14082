"""Fluid's `incubate.fleet`: sets up clusters from role makers and strategies."""

from pstranspile.fluid.missing import names_of_fluid

__getattr__ = names_of_fluid(__name__, globals())
