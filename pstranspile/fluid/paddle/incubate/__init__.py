"""Fluid's `paddle.incubate`."""

from pstranspile.fluid.paddle.incubate import hapi as hapi
