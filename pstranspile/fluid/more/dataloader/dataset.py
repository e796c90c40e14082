"""Fluid's `dataloader.dataset`."""

from pstranspile.fluid.running.sampling import Dataset as Dataset
