"""`paddle.static.ctr_metric_bundle`: sums over all batches, of which the figures of click models are made."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid import layers, unique_name
from pstranspile.fluid.initializer import Constant
from pstranspile.fluid.layer_helper import LayerHelper

L: Any = layers
_OF_BATCHES = 9
"""How many names Paddle gives to variables of one batch, so that what comes later has the same names."""


def ctr_metric_bundle(input: Any, label: Any, ins_tag_weight: Any = None) -> tuple[Any, ...]:
    """Adds up over all batches: squared errors, errors, predictions, their sigmoids, clicks, and samples.

    `ins_tag_weight`, of which the first row counts, has a batch left out of the last sums but one where it is 0. Each
    sum is a persistable float32 variable of one element. Raises AssertionError where predictions and labels have
    other dims.
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
