"""`paddle.static.nn`: Fluid's layers; a layer whose arguments were renamed accepts both names."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid import input as inputs
from pstranspile.fluid import layers, unique_name
from pstranspile.fluid.contrib.layers import sparse_embedding as sparse_embedding
from pstranspile.fluid.initializer import Constant
from pstranspile.fluid.layer_helper import LayerHelper

# `paddle.static.ctr_metric_bundle`: sums over all batches, from which metrics of click models are computed.

L: Any = layers
_OF_BATCHES = 9
"""The number of variables of one batch that Paddle names here, so that later variables get the same
names as in Paddle.
"""


def ctr_metric_bundle(input: Any, label: Any, ins_tag_weight: Any = None) -> tuple[Any, ...]:
    """Sums over all batches: of squared errors, absolute errors, predictions, their sigmoids, and clicks, and the
    number of samples.

    If the first row of `ins_tag_weight` is 0, the batch is left out of the sums of sigmoids and of samples. Each sum is
    a persistable float32 variable with one element. Raises AssertionError where predictions and labels have different
    dims.
    """
    assert tuple(input.shape) == tuple(label.shape), f"ctr_metric_bundle: {input.shape} predictions, {label.shape}"
    weight = L.fill_constant([1, 1], "float32", 1.0) if ins_tag_weight is None else ins_tag_weight
    kept = L.reshape(L.cast(L.slice(weight, [0], [0], [1]), "float32"), [1])
    errors = L.elementwise_sub(input, label)
    ones = L.fill_constant_batch_size_like(label, [-1, 1], "float32", 1.0)
    parts = (
        L.reduce_sum(L.square(errors)),
        L.reduce_sum(L.abs(errors)),
        L.reduce_sum(input),
        L.elementwise_mul(L.reduce_sum(L.sigmoid(input)), kept),
        L.reduce_sum(label),
        L.elementwise_mul(L.reduce_sum(ones), kept),
    )
    helper = LayerHelper("ctr_metric_bundle")
    made = [helper.create_global_variable(persistable=True, dtype="float32", shape=[1]) for _ in parts]
    for _ in range(_OF_BATCHES):
        unique_name.generate("_generated_var")
    sums = [made[1], made[0], *made[2:]]  # the errors have the first name
    for held, part in zip(sums, parts, strict=True):
        helper.set_variable_initializer(held, Constant(0.0))
        held.stop_gradient = True
        L.assign(L.elementwise_add(held, part), held)
    return tuple(sums)


_RENAMED = {"x": "input", "weight_attr": "param_attr", "activation": "act"}


def fc(*args: Any, **options: Any) -> Any:
    """A fully connected layer, with the arguments of 2.x (`x`, `weight_attr`, `activation`) or those of Fluid.

    The first arguments by position are the input, the number of outputs, and the number of leading dims that are kept.
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
    """The rows of a table for ids, with the dims of the ids followed by the width."""
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
    """Images convolved at sampling positions shifted by `offset`; without a mask it is the first version of deformable
    convolution.
    """
    settings = num_filters, filter_size, stride, padding, dilation, groups, deformable_groups, im2col_step
    made: Any = layers.deformable_conv(x, offset, mask, *settings, weight_attr, bias_attr, mask is not None, name)
    return made


def __getattr__(name: str) -> Any:
    return getattr(layers, name)
