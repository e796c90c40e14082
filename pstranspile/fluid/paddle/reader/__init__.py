"""Fluid's `paddle.reader`."""

from pstranspile.fluid.paddle.reader.decorator import ComposeNotAligned as ComposeNotAligned
from pstranspile.fluid.paddle.reader.decorator import buffered as buffered
from pstranspile.fluid.paddle.reader.decorator import cache as cache
from pstranspile.fluid.paddle.reader.decorator import chain as chain
from pstranspile.fluid.paddle.reader.decorator import compose as compose
from pstranspile.fluid.paddle.reader.decorator import firstn as firstn
from pstranspile.fluid.paddle.reader.decorator import map_readers as map_readers
from pstranspile.fluid.paddle.reader.decorator import multiprocess_reader as multiprocess_reader
from pstranspile.fluid.paddle.reader.decorator import shuffle as shuffle
from pstranspile.fluid.paddle.reader.decorator import xmap_readers as xmap_readers
