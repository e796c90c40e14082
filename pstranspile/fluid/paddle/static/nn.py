"""`paddle.static.nn`: Fluid's layers; those with other names of arguments take both."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid import input as inputs
from pstranspile.fluid import layers
from pstranspile.fluid.layer_helper import LayerHelper
from pstranspile.fluid.layers.accepted import check_variable
from pstranspile.fluid.running.large import EntryAttr, make_large
from pstranspile.job.table_rules import Rules

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


def sparse_embedding(
    input: Any,
    size: Any,
    padding_idx: int | None = None,
    is_test: bool = False,
    entry: Any = None,
    param_attr: Any = None,
    dtype: str = "float32",
) -> Any:
    """The rows of a table that has a row for every id from 0 on to 2**63 / width, whatever the height in `size`.

    Servers hold it, or the process itself. A row exists once it is trained, by the rule of an `entry`:
    `CountFilterEntry` or `ProbabilityEntry`. Raises ValueError for another one.
    """
    if not isinstance(entry, EntryAttr | None):
        raise ValueError(f"entry is a CountFilterEntry or a ProbabilityEntry, not a {type(entry).__name__}")
    check_variable("sparse_embedding", "input", input, ("int64",))
    helper = LayerHelper("sparse_embedding")
    table = helper.create_parameter(param_attr, list(size), dtype)
    make_large(table, Rules() if entry is None else entry.rules)
    padding = -1 if padding_idx is None else padding_idx if padding_idx >= 0 else size[0] + padding_idx
    made = helper.create_variable_for_type_inference(dtype)
    attrs = {"is_sparse": True, "is_distributed": False, "remote_prefetch": True, "padding_idx": padding}
    kind = "lookup_table" if input.shape[-1] == 1 else "lookup_table_v2"
    helper.append_op(kind, inputs={"Ids": input, "W": table}, outputs={"Out": made}, attrs=attrs)
    return made


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
