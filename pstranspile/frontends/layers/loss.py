"""Losses of rows (`mean` turns them into the loss to minimise), of ranks, distributions and sampled classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pstranspile.frontends.layers.basic import declare_initialised, layer, layer_outputs, reduce_mean
from pstranspile.frontends.layers.draft import Value
from pstranspile.frontends.layers.nn import GENERATED, name_layer
from pstranspile.frontends.layers.parameters import Array, Attr, Element, ParamAttr, attr_of, create_parameter
from pstranspile.ir.model import TensorType
from pstranspile.ir.types import DType, element_type

# Layers that compute metrics of predictions.


def top_k(x: Value, k: int) -> tuple[Value, Value]:
    """The k largest elements of each row, and their indices."""
    values, indices = layer_outputs("top_k", {"X": x}, {"Out": x.dtype, "Indices": DType.INT64}, {"k": k})
    return values.stopped(), indices.stopped()


def accuracy(x: Value, label: Value, *, k: int = 1) -> Value:
    """The share of rows whose label is among the k largest elements."""
    name = x.draft.names.mint("accuracy")
    values, indices = top_k(x, k)
    inputs = {"Out": values, "Indices": indices, "Label": label}
    outputs = {"Accuracy": DType.FP32, "Correct": DType.INT32, "Total": DType.INT32}
    return layer_outputs("accuracy", inputs, outputs, name=name)[0]


def arg_max(x: Value, *, axis: int = 0) -> Value:
    """The index of the largest element along `axis`, i64."""
    return layer("arg_max", {"X": x}, DType.INT64, {"axis": axis}).stopped()


class Auc(NamedTuple):
    """The area under the curve: since the start, and over the last steps."""

    total: Value
    batch: Value


def auc(x: Value, label: Value, *, curve: str = "ROC", num_thresholds: int = 2**12 - 1, slide_steps: int = 1) -> Auc:
    """The area under the ROC curve of the last column of x, from counts in four persistable variables."""
    draft = x.draft
    minted = draft.names.mint("auc")
    total, batch = draft.temporary(minted, DType.FP64), draft.temporary(minted, DType.FP64)
    whole = (1, num_thresholds + 1)
    sliding = ((1 + slide_steps) * (num_thresholds + 1) + 1,)
    counts: list[str] = []
    for shape in (sliding, sliding, whole, whole):
        counts.append(draft.names.mint("_generated_var"))
        draft.stop_gradient.add(counts[-1])
        declare_initialised(draft, counts[-1], TensorType(DType.INT64, shape), 0.0)
    for out, positive, negative, steps in ((batch, *counts[:2], slide_steps), (total, *counts[2:], 0)):
        inputs = {"Predict": x, "Label": label, "StatPos": positive, "StatNeg": negative}
        outputs = {"AUC": out, "StatPosOut": positive, "StatNegOut": negative}
        attrs = {"curve": curve, "num_thresholds": num_thresholds, "slide_steps": steps}
        draft.op("auc", inputs, outputs, attrs)
        for name in () if steps else (positive, negative):
            Value(draft, name).redeclare_dims(whole)  # as the op leaves it
    return Auc(total, batch)


IGNORE = -100
"""The default value of labels to ignore."""


def cross_entropy(x: Value, label: Value, *, soft_label: bool = False, ignore_index: int = IGNORE) -> Value:
    """-log of the probability that x gives the label, or -sum(label * log(x)) with soft labels."""
    inputs, attrs = {"X": x, "Label": label}, {"ignore_index": ignore_index}
    if soft_label:
        return layer("cross_entropy", inputs, x.dtype, {"soft_label": True, **attrs}, out="Y")
    outputs = {"Y": x.dtype, "XShape": x.dtype, "MatchX": x.dtype}
    return layer_outputs("cross_entropy2", inputs, outputs, attrs)[0]


def softmax_with_cross_entropy(
    logits: Value, label: Value, *, soft_label: bool = False, ignore_index: int = IGNORE, axis: int = -1
) -> Value:
    """The cross entropy of softmax(logits) along `axis`."""
    return softmax_and_loss(logits, label, soft_label=soft_label, ignore_index=ignore_index, axis=axis)[1]


def softmax_and_loss(
    logits: Value,
    label: Value,
    *,
    soft_label: bool = False,
    ignore_index: int = IGNORE,
    axis: int = -1,
    stable: bool = True,
) -> tuple[Value, Value]:
    """softmax(logits), and its cross entropy with the label. `stable` becomes an attribute of the op and changes no
    result here.
    """
    attrs = {"soft_label": soft_label, "ignore_index": ignore_index, "numeric_stable_mode": stable, "axis": axis}
    inputs, outputs = {"Logits": logits, "Label": label}, {"Softmax": logits.dtype, "Loss": logits.dtype}
    softmax, loss = layer_outputs("softmax_with_cross_entropy", inputs, outputs, attrs)
    return softmax, loss


def square_error_cost(x: Value, label: Value) -> Value:
    """(x - label) squared, element by element."""
    name = x.draft.names.mint("square_error_cost")
    difference = layer("elementwise_sub", {"X": x, "Y": label}, x.dtype, name=name)
    return layer("square", {"X": difference}, x.dtype, name=name)


def sigmoid_cross_entropy_with_logits(
    x: Value, label: Value, *, ignore_index: int = IGNORE, normalize: bool = False
) -> Value:
    """The cross entropy of sigmoid(x) with the label, element by element."""
    attrs = {"ignore_index": ignore_index, "normalize": normalize}
    return layer("sigmoid_cross_entropy_with_logits", {"X": x, "Label": label}, x.dtype, attrs)


def log_loss(probability: Value, label: Value, *, epsilon: float = 1e-4) -> Value:
    """The logistic loss -label * log(p + epsilon) - (1 - label) * log(1 - p + epsilon) of probabilities p."""
    inputs = {"Predicted": probability, "Labels": label}
    return layer("log_loss", inputs, probability.dtype, {"epsilon": epsilon}, out="Loss")


def huber_loss(x: Value, label: Value, delta: float) -> Value:
    """Squared error below `delta`, linear above."""
    outputs = {"Residual": x.dtype, "Out": x.dtype}
    return layer_outputs("huber_loss", {"X": x, "Y": label}, outputs, {"delta": delta})[1]


def cos_sim(x: Value, y: Value) -> Value:
    """The cosine of the angle between the rows of x and y."""
    return layer_outputs("cos_sim", {"X": x, "Y": y}, {"Out": x.dtype, "XNorm": x.dtype, "YNorm": x.dtype})[0]


def nce(
    x: Value,
    label: Value,
    num_total_classes: int,
    *,
    sample_weight: Value | None = None,
    num_neg_samples: int = 10,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    sampler: str = "uniform",
    alias_table: Sequence[Array] = (),
    seed: int = 0,
    is_sparse: bool = False,
    name: str | None = None,
) -> Value:
    """Noise contrastive estimation of the label against sampled classes.

    The sampler is `uniform`, `log_uniform`, or `custom_dist` with an `alias_table`: for each class its probability, its
    alias, and the probability of taking the class itself rather than its alias.
    """
    kinds = {"uniform": 0, "log_uniform": 1, "custom_dist": 2}
    if sampler not in kinds:
        raise ValueError(f"the sampler is {sampler!r}, it must be one of {', '.join(kinds)}")
    draft = x.draft
    layer_name = name_layer(draft, "nce", name)
    weight = create_parameter(draft, layer_name, param_attr, (num_total_classes, x.shape[1]), x.dtype)
    inputs = {"Input": x, "Label": label, "Weight": weight}
    if attr_of(bias_attr) is not None:
        shape = (num_total_classes, 1)
        inputs["Bias"] = create_parameter(draft, layer_name, bias_attr, shape, x.dtype, is_bias=True)
    if sample_weight is not None:
        inputs["SampleWeight"] = sample_weight
    slots = {"CustomDistProbs": DType.FP32, "CustomDistAlias": DType.INT32, "CustomDistAliasProbs": DType.FP32}
    for (slot, dtype), start in zip(slots.items(), alias_table, strict=bool(alias_table)):
        shape = (num_total_classes,)
        inputs[slot] = create_parameter(draft, layer_name, ParamAttr(None, start), shape, dtype).stopped()
    attrs = {
        "num_total_classes": num_total_classes,
        "num_neg_samples": num_neg_samples,
        "seed": seed,
        "sampler": kinds[sampler],
        "is_sparse": is_sparse,
        "remote_prefetch": is_sparse,
    }
    outputs = {"Cost": x.dtype, "SampleLogits": x.dtype, "SampleLabels": label.dtype}
    cost, *_ = layer_outputs("nce", inputs, outputs, attrs, name=layer_name)
    return cost / (num_neg_samples + 1)


def hsigmoid(
    x: Value,
    label: Value,
    num_classes: int,
    *,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    path_table: Value | None = None,
    path_code: Value | None = None,
    is_sparse: bool = False,
    name: str | None = None,
) -> Value:
    """Binary losses along the label's path in a tree of classes. A custom tree is given as table and code."""
    if (path_table is None) != (path_code is None):
        raise ValueError("hsigmoid takes path_table and path_code together")
    draft = x.draft
    custom = path_table is not None
    layer_name = name_layer(draft, "hierarchical_sigmoid", name)
    out, pre_out = draft.temporary(layer_name, x.dtype), draft.temporary(layer_name, x.dtype)
    rows = num_classes if custom else num_classes - 1
    weight = create_parameter(draft, layer_name, param_attr, (rows, x.shape[1]), x.dtype)
    inputs: dict[str, Value | list[Value]] = {
        "X": x,
        "W": weight,
        "PathTable": path_table or [],
        "PathCode": path_code or [],
        "Label": label,
    }
    if attr_of(bias_attr) is not None:
        inputs["Bias"] = create_parameter(draft, layer_name, bias_attr, (rows, 1), x.dtype, is_bias=True)
    sparse = is_sparse and custom
    attrs = {"num_classes": num_classes, "is_sparse": sparse, "remote_prefetch": sparse}
    draft.op("hierarchical_sigmoid", inputs, {"Out": out, "PreOut": pre_out, "W_Out": weight}, attrs)
    return out


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
    """The Huber loss of each row, summed over its elements."""
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
    """The loss max(0, margin - label * (left - right)), where label is 1 or -1."""
    inputs, outputs = {"Label": label, "X1": left, "X2": right}, {"Out": left.dtype, "Activated": left.dtype}
    return layer_outputs("margin_rank_loss", inputs, outputs, {"margin": margin})[0]


def teacher_student_sigmoid_loss(
    x: Value, label: Value, *, soft_max_up_bound: float = 15.0, soft_max_lower_bound: float = -15.0
) -> Value:
    """The sum of the loss of a click and of the loss of a teacher's score; one label combines the two."""
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
    labels_dim = draft.temporary(minted, DType.BOOL).redeclare_dims([*label.shape, 0])  # as in Fluid, without dtype
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
