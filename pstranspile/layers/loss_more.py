"""Less common losses: of ranks, of distributions, of a teacher's scores, of sampled classes."""

from __future__ import annotations

from pstranspile.ir.types import DType, element_type
from pstranspile.layers.basic import layer, layer_outputs, reduce_mean
from pstranspile.layers.draft import Value
from pstranspile.layers.loss import square_error_cost
from pstranspile.layers.norms import GENERATED
from pstranspile.layers.parameters import Element


def mse_loss(x: Value, label: Value) -> Value:
    """The mean of (x - label) squared."""
    return reduce_mean(square_error_cost(x, label))


def label_smooth(
    label: Value, *, prior_dist: Value | None = None, epsilon: float = 0.1, dtype: Element = "f32"
) -> Value:
    """One-hot labels mixed with `epsilon` of another distribution, by default the uniform one."""
    if not 0.0 <= epsilon <= 1.0:
        raise ValueError(f"label_smooth: epsilon is {epsilon}, it must be from 0 to 1")
    inputs = {"X": label.stopped()} | ({} if prior_dist is None else {"PriorDist": prior_dist})
    return layer("label_smooth", inputs, element_type(dtype), {"epsilon": epsilon})


def smooth_l1(
    x: Value,
    y: Value,
    *,
    inside_weight: Value | None = None,
    outside_weight: Value | None = None,
    sigma: float = 1.0,
) -> Value:
    """For each row, the sum of squares of small differences and of absolute values of large ones."""
    weights = (("InsideWeight", inside_weight), ("OutsideWeight", outside_weight))
    inputs = {"X": x, "Y": y} | {slot: value for slot, value in weights if value is not None}
    return layer_outputs("smooth_l1_loss", inputs, {"Diff": x.dtype, "Out": x.dtype}, {"sigma": sigma})[1]


def bpr_loss(x: Value, label: Value) -> Value:
    """Bayesian personalised ranking: how far the label's score is above those of the others."""
    return layer("bpr_loss", {"X": x, "Label": label}, x.dtype, out="Y")


def kldiv_loss(x: Value, target: Value, *, reduction: str = "mean") -> Value:
    """The divergence of the distribution whose logarithm is x from `target`: `mean`, `sum`, `batchmean` or `none`."""
    return layer("kldiv_loss", {"X": x, "Target": target}, x.dtype, {"reduction": reduction}, out="Loss")


def rank_loss(label: Value, left: Value, right: Value) -> Value:
    """RankNet: the cross entropy of sigmoid(left - right) with the label."""
    return layer("rank_loss", {"Label": label, "Left": left, "Right": right}, DType.FP32)


def margin_rank_loss(label: Value, left: Value, right: Value, *, margin: float = 0.1) -> Value:
    """max(0, margin - label * (left - right)), the label 1 or -1."""
    inputs, outputs = {"Label": label, "X1": left, "X2": right}, {"Out": left.dtype, "Activated": left.dtype}
    return layer_outputs("margin_rank_loss", inputs, outputs, {"margin": margin})[0]


def teacher_student_sigmoid_loss(
    x: Value, label: Value, *, soft_max_up_bound: float = 15.0, soft_max_lower_bound: float = -15.0
) -> Value:
    """The loss of clicks and of a teacher's scores, which one label holds together."""
    draft = x.draft
    draft.names.mint("teacher_student_sigmoid_loss")
    out = draft.fresh(GENERATED, x.dtype)
    attrs = {"soft_max_lower_bound": soft_max_lower_bound, "soft_max_up_bound": soft_max_up_bound}
    draft.op("teacher_student_sigmoid_loss", {"X": x, "Label": label}, {"Y": out}, attrs)
    return out


def sampled_softmax_with_cross_entropy(
    logits: Value,
    label: Value,
    num_samples: int,
    *,
    num_true: int = 1,
    remove_accidental_hits: bool = True,
    customized_samples: Value | None = None,
    customized_probabilities: Value | None = None,
    seed: int = 0,
) -> Value:
    """The cross entropy of a softmax over the label and `num_samples` other classes, drawn or given."""
    if (customized_samples is None) != (customized_probabilities is None):
        raise ValueError("sampled_softmax_with_cross_entropy takes samples and their probabilities together")
    draft = logits.draft
    minted = draft.names.mint("sample_logits")
    samples = customized_samples or draft.temporary(minted, DType.INT64)
    probabilities = customized_probabilities or draft.temporary(minted, logits.dtype)
    sampled = draft.temporary(minted, logits.dtype)
    labels = draft.temporary(minted, DType.INT64)
    soft_labels, logits_dim = (draft.temporary(minted, logits.dtype) for _ in range(2))
    labels_dim = draft.temporary(minted, DType.BOOL).declared([*label.shape, 0])  # Fluid gives it no element type
    inputs = {"Logits": logits, "Labels": label}
    if customized_samples and customized_probabilities:
        inputs |= {"CustomizedSamples": customized_samples, "CustomizedProbabilities": customized_probabilities}
    outputs = {
        "Samples": samples,
        "Probabilities": probabilities,
        "SampledLabels": labels,
        "SampledLogits": sampled,
        "LogitsDim": logits_dim,
        "LabelsDim": labels_dim,
    }
    attrs = {
        "use_customized_samples": customized_samples is not None,
        "uniq": True,
        "remove_accidental_hits": remove_accidental_hits,
        "num_samples": num_samples,
        "seed": seed,
    }
    draft.op("sample_logits", inputs, outputs, attrs)
    loss, softmax = (draft.temporary(minted, logits.dtype) for _ in range(2))
    draft.op("one_hot", {"X": labels}, {"Out": soft_labels}, {"depth": num_samples + 1})
    draft.op(
        "softmax_with_cross_entropy",
        {"Logits": sampled, "Label": soft_labels},
        {"Softmax": softmax, "Loss": loss},
        {"soft_label": True, "ignore_index": 0, "numeric_stable_mode": False},
    )
    return loss / num_true
