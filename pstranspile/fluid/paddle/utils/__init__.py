"""Fluid's `paddle.utils`."""

from pstranspile.fluid.paddle.utils.plot import Ploter as Ploter
