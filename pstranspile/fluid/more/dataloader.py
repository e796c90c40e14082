"""Fluid's `dataloader`: what a `DataLoader` takes."""

from pstranspile.fluid.missing import names_of_fluid
from pstranspile.fluid.running.sampling import BatchSampler as BatchSampler
from pstranspile.fluid.running.sampling import Dataset as Dataset

__getattr__ = names_of_fluid(__name__, globals())
