"""Fluid's `paddle.incubate.hapi`."""

from pstranspile.fluid.paddle.incubate.hapi import distributed as distributed
