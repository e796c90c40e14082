"""Losses of each row; a `mean` after them gives the loss to minimise."""

from __future__ import annotations

from pstranspile.layers.basic import layer
from pstranspile.layers.draft import Value
from pstranspile.layers.nn import name_layer
from pstranspile.layers.parameters import Attr, attr_of, create_parameter

IGNORE = -100
"""The label that is left out by default."""


def cross_entropy(x: Value, label: Value, *, soft_label: bool = False, ignore_index: int = IGNORE) -> Value:
    """-log of the probability x gives the label, or -sum(label * log(x)) with soft labels."""
    draft = x.draft
    if soft_label:
        out = draft.temporary(draft.names.mint("cross_entropy"), x.dtype)
        attrs = {"soft_label": True, "ignore_index": ignore_index}
        draft.op("cross_entropy", {"X": x, "Label": label}, {"Y": out}, attrs)
        return out
    minted = draft.names.mint("cross_entropy2")
    out, x_shape, match = (draft.temporary(minted, x.dtype) for _ in range(3))
    outputs = {"Y": out, "XShape": x_shape, "MatchX": match}
    draft.op("cross_entropy2", {"X": x, "Label": label}, outputs, {"ignore_index": ignore_index})
    return out


def softmax_with_cross_entropy(
    logits: Value, label: Value, *, soft_label: bool = False, ignore_index: int = IGNORE, axis: int = -1
) -> Value:
    """The cross entropy of softmax(logits) along `axis`."""
    return softmax_and_loss(logits, label, soft_label=soft_label, ignore_index=ignore_index, axis=axis)[1]


def softmax_and_loss(
    logits: Value, label: Value, *, soft_label: bool = False, ignore_index: int = IGNORE, axis: int = -1
) -> tuple[Value, Value]:
    """softmax(logits), and its cross entropy with the label."""
    draft = logits.draft
    minted = draft.names.mint("softmax_with_cross_entropy")
    softmax, loss = draft.temporary(minted, logits.dtype), draft.temporary(minted, logits.dtype)
    attrs = {"soft_label": soft_label, "ignore_index": ignore_index, "numeric_stable_mode": True, "axis": axis}
    inputs = {"Logits": logits, "Label": label}
    draft.op("softmax_with_cross_entropy", inputs, {"Softmax": softmax, "Loss": loss}, attrs)
    return softmax, loss


def square_error_cost(x: Value, label: Value) -> Value:
    """(x - label) squared, element by element."""
    draft = x.draft
    minted = draft.names.mint("square_error_cost")
    difference = draft.temporary(minted, x.dtype)
    draft.op("elementwise_sub", {"X": x, "Y": label}, {"Out": difference})
    out = draft.temporary(minted, x.dtype)
    draft.op("square", {"X": difference}, {"Out": out})
    return out


def sigmoid_cross_entropy_with_logits(
    x: Value, label: Value, *, ignore_index: int = IGNORE, normalize: bool = False
) -> Value:
    """The cross entropy of sigmoid(x) with the label, element by element."""
    attrs = {"ignore_index": ignore_index, "normalize": normalize}
    return layer("sigmoid_cross_entropy_with_logits", {"X": x, "Label": label}, x.dtype, attrs)


def log_loss(probability: Value, label: Value, *, epsilon: float = 1e-4) -> Value:
    """-label * log(p + epsilon) - (1 - label) * log(1 - p + epsilon)."""
    draft = probability.draft
    out = draft.temporary(draft.names.mint("log_loss"), probability.dtype)
    draft.op("log_loss", {"Predicted": probability, "Labels": label}, {"Loss": out}, {"epsilon": epsilon})
    return out


def huber_loss(x: Value, label: Value, delta: float) -> Value:
    """Squared error below `delta`, linear above."""
    draft = x.draft
    minted = draft.names.mint("huber_loss")
    residual, out = draft.temporary(minted, x.dtype), draft.temporary(minted, x.dtype)
    draft.op("huber_loss", {"X": x, "Y": label}, {"Out": out, "Residual": residual}, {"delta": delta})
    return out


def cos_sim(x: Value, y: Value) -> Value:
    """The cosine of the angle between the rows of x and y."""
    draft = x.draft
    minted = draft.names.mint("cos_sim")
    out, x_norm, y_norm = (draft.temporary(minted, x.dtype) for _ in range(3))
    draft.op("cos_sim", {"X": x, "Y": y}, {"Out": out, "XNorm": x_norm, "YNorm": y_norm})
    return out


def nce(
    x: Value,
    label: Value,
    num_total_classes: int,
    *,
    num_neg_samples: int = 10,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    sampler: str = "uniform",
    seed: int = 0,
    is_sparse: bool = False,
    name: str | None = None,
) -> Value:
    """Noise contrastive estimation of the label against sampled classes (`uniform` or `log_uniform`)."""
    kinds = {"uniform": 0, "log_uniform": 1}
    if sampler not in kinds:
        raise ValueError(f"the sampler is {sampler!r}, it must be 'uniform' or 'log_uniform'")
    draft = x.draft
    layer_name = name_layer(draft, "nce", name)
    weight = create_parameter(draft, layer_name, param_attr, (num_total_classes, x.shape[1]), x.dtype)
    inputs = {"Input": x, "Label": label, "Weight": weight}
    if attr_of(bias_attr) is not None:
        shape = (num_total_classes, 1)
        inputs["Bias"] = create_parameter(draft, layer_name, bias_attr, shape, x.dtype, is_bias=True)
    cost, logits = draft.temporary(layer_name, x.dtype), draft.temporary(layer_name, x.dtype)
    labels = draft.temporary(layer_name, label.dtype)
    attrs = {
        "num_total_classes": num_total_classes,
        "num_neg_samples": num_neg_samples,
        "seed": seed,
        "sampler": kinds[sampler],
        "is_sparse": is_sparse,
        "remote_prefetch": is_sparse,
    }
    draft.op("nce", inputs, {"Cost": cost, "SampleLogits": logits, "SampleLabels": labels}, attrs)
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
    """Binary losses along the label's path in a tree of classes; a tree of one's own comes as table and code."""
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
