"""Fluid's `input`, and `fluid.data`."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.layers.adapt import adapt, with_argument_checks
from pstranspile.fluid.layers.io import declare_input
from pstranspile.fluid.layers.nn import hot_rows
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.frontends.layers import nn
from pstranspile.frontends.layers.draft import whole_dim

embedding = adapt(
    nn.embedding_v2,
    "input, size, is_sparse=False, is_distributed=False, padding_idx=None, param_attr=None, dtype='float32'",
    called="embedding",
    ids="input",
)


@with_argument_checks
def one_hot(input: Any, depth: Any, allow_out_of_range: bool = False) -> Any:
    """A row of `depth` elements for each id, all 0 but a 1 at the id; its dims are those of the ids, followed by
    `depth`.
    """
    return hot_rows("one_hot_v2", input, depth, allow_out_of_range)


@with_argument_checks
def data(name: str, shape: Any, dtype: Any = "float32", lod_level: int = 0) -> Any:
    """A variable that is fed with exactly these dims; a dim of None or -1 may have any length."""
    dims = [-1 if dim is None else whole_dim(dim) for dim in shape]
    return declare_input(name, dims, dtype, lod_level, check=True)


__getattr__ = names_of_fluid(__name__, globals())
