"""Fluid's `paddle.io`: data sets whose samples have numbers, and their loader."""

from pstranspile.fluid.reader import BatchSampler as BatchSampler
from pstranspile.fluid.reader import DataLoader as DataLoader
from pstranspile.fluid.reader import Dataset as Dataset

__all__ = ["BatchSampler", "DataLoader", "Dataset"]
