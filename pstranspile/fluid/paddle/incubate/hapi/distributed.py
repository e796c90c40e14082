"""Fluid's `paddle.incubate.hapi.distributed`."""

from pstranspile.fluid.paddle.io.samplers import DistributedBatchSampler as DistributedBatchSampler
