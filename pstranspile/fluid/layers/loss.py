"""Fluid's `layers.loss`."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from operator import gt, lt
from typing import Any

import numpy as np

from pstranspile.fluid.layers.adapt import adapt, checked_all, renamed_all, to_core, wrap
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.frontends.layers import loss, sequence
from pstranspile.frontends.layers.parameters import Array

cross_entropy = adapt(loss.cross_entropy, "input, label, soft_label=False, ignore_index=-100", x="input")
square_error_cost = adapt(loss.square_error_cost, "input, label", x="input")
edit_distance = adapt(
    sequence.edit_distance,
    "input, label, normalized=True, ignored_tokens=(), input_length=None, label_length=None",
    x="input",
)
warpctc = adapt(
    sequence.warpctc,
    "input, label, blank=0, norm_by_times=False, input_length=None, label_length=None",
    x="input",
)
_nce = adapt(
    loss.nce,
    "input, label, num_total_classes, sample_weight=None, param_attr=None, bias_attr=None, num_neg_samples=10, "
    "name=None, sampler='uniform', alias_table=(), seed=0, is_sparse=False",
    x="input",
)
hsigmoid = adapt(
    loss.hsigmoid,
    "input, label, num_classes, param_attr=None, bias_attr=None, name=None, path_table=None, path_code=None, "
    "is_custom=False, is_sparse=False",
    "is_custom",
    x="input",
)
sampled_softmax_with_cross_entropy = adapt(
    loss.sampled_softmax_with_cross_entropy,
    "logits, label, num_samples, num_true=1, remove_accidental_hits=True, use_customized_samples=False, "
    "customized_samples=None, customized_probabilities=None, seed=0",
    "use_customized_samples",
)
rank_loss = adapt(loss.rank_loss, "label, left, right, name=None")
margin_rank_loss = adapt(loss.margin_rank_loss, "label, left, right, margin=0.1, name=None")
sigmoid_cross_entropy_with_logits = adapt(
    loss.sigmoid_cross_entropy_with_logits, "x, label, ignore_index=-100, name=None, normalize=False"
)
teacher_student_sigmoid_loss = adapt(
    loss.teacher_student_sigmoid_loss, "input, label, soft_max_up_bound=15.0, soft_max_lower_bound=-15.0", x="input"
)
huber_loss = adapt(loss.huber_loss, "input, label, delta", x="input")
kldiv_loss = adapt(loss.kldiv_loss, "x, target, reduction='mean', name=None")
bpr_loss = adapt(loss.bpr_loss, "input, label, name=None", x="input")
mse_loss = adapt(loss.mse_loss, "input, label", x="input")


def nce(
    input: Any,
    label: Any,
    num_total_classes: int,
    sample_weight: Any = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    num_neg_samples: int | None = None,
    name: str | None = None,
    sampler: str = "uniform",
    custom_dist: Sequence[float] | None = None,
    seed: int = 0,
    is_sparse: bool = False,
) -> Any:
    """Noise contrastive estimation against classes that are sampled evenly, by rank, or as `custom_dist` says."""
    table: tuple[Any, ...] = ()
    if sampler == "custom_dist":
        if custom_dist is None or len(custom_dist) != num_total_classes:
            raise ValueError("nce: custom_dist must say how likely each class is")
        table = tuple(map(Array, _alias_table(custom_dist)))
    negatives = 10 if num_neg_samples is None else int(num_neg_samples)
    attrs = param_attr, bias_attr
    return _nce(
        input, label, num_total_classes, sample_weight, *attrs, negatives, name, sampler, table, seed, is_sparse
    )


def _alias_table(likely: Sequence[float]) -> tuple[Any, Any, Any]:
    """The table of A. J. Walker's alias method: probabilities, aliases (-1: none), and those of the class itself."""
    count = len(likely)
    own, alias = [1.0] * count, [-1] * count
    shares = [(number, share * count) for number, share in enumerate(likely)]
    above, below = (deque(pair for pair in shares if side(pair[1], 1)) for side in (gt, lt))
    while above and below:
        (high, share), (low, kept) = above.popleft(), below.popleft()
        own[low], alias[low] = kept, high
        left = share + kept - 1
        if left != 1:
            (above if left > 1 else below).append((high, left))
    return np.array(likely, "float32"), np.array(alias, "int32"), np.array(own, "float32")


def softmax_with_cross_entropy(
    logits: Any,
    label: Any,
    soft_label: bool = False,
    ignore_index: int = -100,
    numeric_stable_mode: bool = True,
    return_softmax: bool = False,
    axis: int = -1,
) -> Any:
    """The cross entropy of softmax(logits) with the label; with `return_softmax` also the softmax."""
    made = loss.softmax_and_loss(
        to_core(logits),
        to_core(label),
        soft_label=soft_label,
        ignore_index=ignore_index,
        axis=axis,
        stable=numeric_stable_mode,
    )
    softmax, cost = wrap(list(made))
    return (cost, softmax) if return_softmax else cost


__getattr__ = names_of_fluid(__name__, globals())
renamed_all({name: value for name, value in globals().items() if getattr(value, "__signature__", None) is not None})
checked_all(globals())
