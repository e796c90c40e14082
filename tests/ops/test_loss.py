"""Losses against their formulas, label by label."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstranspile.ir.diagnostics import DiagnosticError
from tests.ops.computing import compute
from tests.ops.differences import check_gradients, dims, one_output, quick, seeds, values


@st.composite
def classified(draw):
    """Probabilities, a label for each row, and the label that is ignored."""
    lead, classes, seed = draw(dims(1, 2)), draw(st.integers(2, 4)), draw(seeds)
    x = values(seed, *lead, classes, low=0.1, high=1.0)
    labels = np.random.default_rng(seed).integers(0, classes, lead)
    return x / x.sum(axis=-1, keepdims=True), labels, draw(st.sampled_from([-100, 1]))


@quick
@given(case=classified())
def test_cross_entropy_with_labels(case):
    x, labels, ignored = case
    expected = np.array([0 if label == ignored else -math.log(x[(*at, label)]) for at, label in np.ndenumerate(labels)])
    attrs = {"ignore_index": ignored}
    for label in (labels, labels[..., None]):
        found = one_output("cross_entropy", {"X": x, "Label": label}, attrs, "Y")
        assert found.shape == label.shape
        np.testing.assert_allclose(found.reshape(-1), expected, rtol=1e-12)
        check_gradients("cross_entropy", {"X": x, "Label": label}, ["Y"], attrs, through=["Y"])
    outputs = {"Y": "y", "XShape": "shape", "MatchX": "match"}
    frame = compute("cross_entropy2", {"X": x, "Label": labels[..., None]}, outputs, attrs)
    np.testing.assert_allclose(frame.find("y").reshape(-1), expected, rtol=1e-12)
    assert frame.find("shape").shape == (*x.shape, 0)
    picked = np.take_along_axis(x, labels[..., None], -1)
    np.testing.assert_array_equal(frame.find("match"), np.where(labels[..., None] == ignored, 0, picked))
    inputs = {"X": x, "Label": labels[..., None]}
    with np.errstate(divide="ignore"):
        check_gradients("cross_entropy2", inputs, list(outputs), attrs, through=["Y"], gradient="cross_entropy_grad2")


@quick
@given(case=classified(), seed=seeds)
def test_cross_entropy_with_soft_labels(case, seed):
    x = case[0]
    label = values(seed, *x.shape, low=0.0)
    found = one_output("cross_entropy", {"X": x, "Label": label}, {"soft_label": True}, "Y")
    np.testing.assert_allclose(found, -(label * np.log(x)).sum(axis=-1, keepdims=True), rtol=1e-12)
    check_gradients("cross_entropy", {"X": x, "Label": label}, ["Y"], {"soft_label": True}, through=["Y"])


def test_the_logarithm_of_zero_is_large_and_finite():
    inputs = {"X": np.array([[1.0, 0.0]], "float32"), "Label": np.array([[1]])}
    assert one_output("cross_entropy", inputs, slot="Y").tolist() == [[pytest.approx(1e20)]]
    assert one_output("cross_entropy2", inputs, slot="Y").tolist() == [[pytest.approx(1e20)]]


@pytest.mark.parametrize("op_type", ["cross_entropy", "cross_entropy2"])
def test_labels_that_are_no_class_are_refused(op_type):
    for label in (2, -1):
        with pytest.raises(DiagnosticError, match=f"the label {label} is not in 0 to 1"):
            one_output(op_type, {"X": np.full((1, 2), 0.5), "Label": np.array([[label]])}, slot="Y")


@st.composite
def logits(draw):
    shape = draw(dims(1, 3))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    return values(draw(seeds), *shape), axis, draw(st.sampled_from([-100, 0]))


@quick
@given(case=logits(), seed=seeds)
def test_softmax_with_cross_entropy(case, seed):
    x, axis, ignored = case
    softmax = np.exp(x) / np.exp(x).sum(axis=axis, keepdims=True)
    shape = tuple(1 if at == axis % x.ndim else dim for at, dim in enumerate(x.shape))
    label = np.random.default_rng(seed).integers(0, x.shape[axis], shape)
    attrs = {"axis": axis, "ignore_index": ignored}
    frame = compute("softmax_with_cross_entropy", {"Logits": x, "Label": label}, {"Softmax": "s", "Loss": "l"}, attrs)
    np.testing.assert_allclose(frame.find("s"), softmax, rtol=1e-12)
    expected = np.where(label == ignored, 0, -np.log(np.take_along_axis(softmax, label, axis)))
    np.testing.assert_allclose(frame.find("l"), expected, rtol=1e-12, atol=1e-12)
    hard = {"Logits": x, "Label": label}
    options = {"of": ["Logits"], "through": ["Loss"]}
    check_gradients("softmax_with_cross_entropy", hard, ["Softmax", "Loss"], attrs, **options)
    soft = values(seed, *x.shape, low=0.1)
    inputs = {"Logits": x, "Label": soft / soft.sum(axis=axis, keepdims=True)}
    attrs = {"axis": axis, "soft_label": True}
    found = one_output("softmax_with_cross_entropy", inputs, attrs, "Loss")
    expected = -(inputs["Label"] * np.log(softmax)).sum(axis=axis, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    check_gradients("softmax_with_cross_entropy", inputs, ["Softmax", "Loss"], attrs, **options)


@quick
@given(shape=dims(), normalize=st.booleans(), seed=seeds)
def test_sigmoid_cross_entropy(shape, normalize, seed):
    x = values(seed, *shape)
    label = np.random.default_rng(seed).integers(-1, 2, shape).astype(float)
    attrs = {"ignore_index": -1, "normalize": normalize}
    share = 1 / (1 + np.exp(-x))
    loss = np.where(label == -1, 0, -label * np.log(share) - (1 - label) * np.log(1 - share))
    count = max(int((label != -1).sum()), 1) if normalize else 1
    inputs = {"X": x, "Label": label}
    np.testing.assert_allclose(
        one_output("sigmoid_cross_entropy_with_logits", inputs, attrs), loss / count, rtol=1e-10, atol=1e-12
    )
    check_gradients("sigmoid_cross_entropy_with_logits", inputs, ["Out"], attrs)


@quick
@given(rows=st.integers(1, 4), seed=seeds)
def test_log_loss_and_huber_loss(rows, seed):
    p, label = values(seed, rows, 1, low=0.1, high=0.9), np.random.default_rng(seed).integers(0, 2, (rows, 1)) * 1.0
    expected = -label * np.log(p + 0.01) - (1 - label) * np.log(1 - p + 0.01)
    inputs, attrs = {"Predicted": p, "Labels": label}, {"epsilon": 0.01}
    np.testing.assert_allclose(one_output("log_loss", inputs, attrs, "Loss"), expected, rtol=1e-12)
    check_gradients("log_loss", inputs, ["Loss"], attrs, of=["Predicted"], through=["Loss"])

    x, y = values(seed, rows, 1), values(seed + 1, rows, 1)
    r = np.abs(y - x)
    found = compute("huber_loss", {"X": x, "Y": y}, {"Residual": "r", "Out": "out"}, {"delta": 0.75})
    np.testing.assert_array_equal(found.find("r"), y - x)
    np.testing.assert_allclose(found.find("out"), np.where(r <= 0.75, r * r / 2, 0.75 * (r - 0.375)), rtol=1e-12)
    check_gradients("huber_loss", {"X": x, "Y": y}, ["Residual", "Out"], {"delta": 0.75}, of=("X", "Y"))
