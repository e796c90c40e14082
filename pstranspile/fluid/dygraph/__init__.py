"""Fluid's `dygraph`, as far as programs go: layers as objects, which add to the program in use when they are called.

There are no eager tensors: what needs `dygraph.guard` is not here.
"""

from __future__ import annotations

from pstranspile.fluid.dygraph.layers import Layer as Layer
from pstranspile.fluid.dygraph.nn import Embedding as Embedding
from pstranspile.fluid.dygraph.nn import Linear as Linear
from pstranspile.fluid.missing import names_of_fluid

__getattr__ = names_of_fluid(__name__, globals())
