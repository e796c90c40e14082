"""`paddle.static.nn`: Fluid's layers; those with other names of arguments take both."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid import input as inputs
from pstranspile.fluid import layers

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
    """The rows of a table that servers hold, of which only those that are asked for exist.

    Raises NotHere for an `entry`: every row that is asked for is trained from the first time on.
    """
    if entry is not None:
        from pstranspile.fluid.missing import refused

        raise refused("sparse_embedding(entry=...)", "leave it out; tables on Ray have `entry` and `shrink`")
    return inputs.embedding(input, size, True, True, padding_idx, param_attr, dtype)


def __getattr__(name: str) -> Any:
    return getattr(layers, name)
