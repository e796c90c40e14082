"""Fluid's `incubate.fleet.base.mode`."""

from pstranspile.fluid.incubate.fleet.base.fleet_base import Mode as Mode
