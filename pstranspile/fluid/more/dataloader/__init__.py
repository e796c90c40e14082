"""Fluid's `dataloader`: what a `DataLoader` takes."""

from pstranspile.fluid.more.dataloader.batch_sampler import BatchSampler as BatchSampler
from pstranspile.fluid.more.dataloader.dataset import Dataset as Dataset
