"""Fluid's `dataloader.batch_sampler`."""

from pstranspile.fluid.running.sampling import BatchSampler as BatchSampler
