"""Fluid's `layers.loss`, and the metrics of `layers.metric_op`."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from operator import gt, lt
from typing import Any

import numpy as np

from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.initializer import Constant
from pstranspile.fluid.layer_helper import LayerHelper
from pstranspile.fluid.layers import control_flow, nn, ops
from pstranspile.fluid.layers.adapt import adapt, live, made_by, to_core, with_argument_checks, wrap
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


@with_argument_checks
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
    """Noise contrastive estimation against classes that are sampled uniformly, by rank, or with the probabilities
    `custom_dist`.
    """
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
    """The table of A. J. Walker's alias method: for each class its probability, its alias (-1: none), and the share of
    its draws that are not replaced by the alias.
    """
    count = len(likely)
    own_shares, alias = [1.0] * count, [-1] * count
    shares = [(number, share * count) for number, share in enumerate(likely)]
    above, below = (deque(pair for pair in shares if side(pair[1], 1)) for side in (gt, lt))
    while above and below:
        (high, share), (low, kept) = above.popleft(), below.popleft()
        own_shares[low], alias[low] = kept, high
        left = share + kept - 1
        if left != 1:
            (above if left > 1 else below).append((high, left))
    return np.array(likely, "float32"), np.array(alias, "int32"), np.array(own_shares, "float32")


def softmax_with_cross_entropy(
    logits: Any,
    label: Any,
    soft_label: bool = False,
    ignore_index: int = -100,
    numeric_stable_mode: bool = True,
    return_softmax: bool = False,
    axis: int = -1,
) -> Any:
    """The cross entropy of softmax(logits) with the label; with `return_softmax` the softmax as well."""
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


@with_argument_checks
def center_loss(
    input: Any, label: Any, num_classes: int, alpha: Any, param_attr: Any, update_center: bool = True
) -> Any:
    """Half the squared distance to the centre of the row's class; centres move by the rate `alpha`, a float or a
    variable.
    """
    helper = LayerHelper("center_loss", param_attr=param_attr)
    centers = helper.create_parameter(param_attr, [num_classes, input.shape[1]], input.dtype)
    centers.stop_gradient = True
    rate = alpha
    if not isinstance(alpha, Variable):
        rate = helper.create_global_variable(
            name="centerloss_alpha", shape=[1], dtype="float32", persistable=True, stop_gradient=True
        )
        helper.startup_program.global_block().create_var(name=rate.name, shape=[1], dtype="float32", persistable=True)
        helper.set_variable_initializer(rate, Constant(alpha))
    difference, loss = (helper.create_variable_for_type_inference(input.dtype) for _ in range(2))
    helper.append_op(
        type="center_loss",
        inputs={"X": input, "Label": label, "Centers": centers, "CenterUpdateRate": rate},
        outputs={"SampleCenterDiff": difference, "Loss": loss, "CentersOut": centers},
        attrs={"cluster_num": num_classes, "need_update": update_center},
    )
    return loss


@with_argument_checks
def npair_loss(anchor: Any, positive: Any, labels: Any, l2_reg: float = 0.002) -> Any:
    """The cross entropy of the similarity of anchors and positives, plus an L2 penalty on both (`l2_reg` / 4)."""
    rows = labels.shape[0]
    columns = nn.expand(nn.reshape(labels, [rows, 1], inplace=True), [1, rows])
    alike: Any = control_flow.equal(columns, nn.transpose(columns, [1, 0])).astype("float32")
    shares = alike / nn.reduce_sum(alike, 1, True)
    sizes = [nn.reduce_mean(nn.reduce_sum(ops.square(each), 1)) for each in (anchor, positive)]
    decay = (sizes[0] + sizes[1]) * 0.25 * l2_reg
    entropy = softmax_with_cross_entropy(nn.matmul(anchor, positive, False, True), shares, soft_label=True)
    return decay + nn.reduce_mean(nn.reduce_sum(shares * entropy, 0))


# Metrics.


@with_argument_checks
def accuracy(input: Any, label: Any, k: Any = 1, correct: Any = None, total: Any = None) -> Any:
    """The share of rows whose label is among the k largest scores; the numbers of such rows and of all rows are written
    to `correct` and `total`.
    """
    layer = live().names.mint("accuracy")
    top, places = nn.topk(input, k)
    inputs = {"Out": top, "Indices": places, "Label": label}
    outputs, into = "Accuracy:float32 Correct:int32 Total:int32", {"Correct": correct, "Total": total}
    return made_by("accuracy", inputs, outputs, name=layer, into=into)[0]


@with_argument_checks
def auc(
    input: Any,
    label: Any,
    curve: str = "ROC",
    num_thresholds: int = 4095,
    topk: int = 1,
    slide_steps: int = 1,
) -> Any:
    """The area under the curve over all batches, the area over the last steps, and the four variables with the counts
    for both.
    """
    draft = to_core(input).draft
    made = loss.auc(to_core(input), to_core(label), curve=curve, num_thresholds=num_thresholds, slide_steps=slide_steps)
    ops = draft.block.ops[-2:]
    counts = [op.inputs[slot][0] for op in ops for slot in ("StatPos", "StatNeg")]
    total, batch = wrap(list(made))
    return total, batch, [draft.program.global_block().var(name) for name in counts]


__getattr__ = names_of_fluid(__name__, globals())
