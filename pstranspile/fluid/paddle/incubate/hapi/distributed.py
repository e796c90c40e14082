"""Fluid's `paddle.incubate.hapi.distributed`."""

from pstranspile.fluid.paddle.io import DistributedBatchSampler as DistributedBatchSampler
