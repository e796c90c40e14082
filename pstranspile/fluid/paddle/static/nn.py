"""`paddle.static.nn`: Fluid's layers; those with other names of arguments take both."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid import input as inputs
from pstranspile.fluid import layers
from pstranspile.fluid.contrib.layers.sparse import sparse_embedding as sparse_embedding

_RENAMED = {"x": "input", "weight_attr": "param_attr", "activation": "act"}


def fc(*args: Any, **options: Any) -> Any:
    """A fully connected layer, with the arguments of 2.x (`x`, `weight_attr`, `activation`) or those of Fluid.

    In order they are what is read, the number of outputs, and how many dims stay as they are.
    """
    names = ("input", "size", "num_flatten_dims")
    given = dict(zip(names, args, strict=False)) | {_RENAMED.get(name, name): value for name, value in options.items()}
    rest = args[len(names) :]
    if rest:
        given |= dict(zip(("param_attr", "bias_attr", "act", "name"), rest, strict=False))
    if given.get("num_flatten_dims", 1) == -1:
        given["num_flatten_dims"] = len(given["input"].shape) - 1
    return layers.fc(**given)


def embedding(
    input: Any,
    size: Any,
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: int | None = None,
    param_attr: Any = None,
    dtype: str = "float32",
    weight_attr: Any = None,
) -> Any:
    """The rows of a table for ids; the dims are those of the ids, and the width."""
    return inputs.embedding(input, size, is_sparse, is_distributed, padding_idx, weight_attr or param_attr, dtype)


def deform_conv2d(
    x: Any,
    offset: Any,
    mask: Any,
    num_filters: int,
    filter_size: Any,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    deformable_groups: int = 1,
    im2col_step: int = 1,
    weight_attr: Any = None,
    bias_attr: Any = None,
    name: Any = None,
) -> Any:
    """Images convolved with filters whose places move by `offset`; without a mask by the first version of this."""
    settings = num_filters, filter_size, stride, padding, dilation, groups, deformable_groups, im2col_step
    made: Any = layers.deformable_conv(x, offset, mask, *settings, weight_attr, bias_attr, mask is not None, name)
    return made


def __getattr__(name: str) -> Any:
    return getattr(layers, name)
