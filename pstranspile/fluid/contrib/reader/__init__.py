"""Fluid's `contrib.reader`."""

from pstranspile.fluid.contrib.reader.distributed_reader import distributed_batch_reader as distributed_batch_reader
