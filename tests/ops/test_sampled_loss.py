"""Losses that look at few classes of many, against loops over rows and classes."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstranspile.ir.attributes import Ints
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.runtime.kernels.random import mersenne_words
from pstranspile.runtime.values import SelectedRows
from tests.ops.computing import compute
from tests.ops.differences import check_gradients, quick, seeds, values

NCE = ["Cost", "SampleLogits", "SampleLabels"]
CUSTOM = np.array([0.1, 0.4, 0.2, 0.2, 0.1])
CLASSES = len(CUSTOM)
PROBABILITY = (
    lambda k: 1 / CLASSES,
    lambda k: math.log((k + 2) / (k + 1)) / math.log(CLASSES),
    lambda k: CUSTOM[k],
)
DENSE = ("Input", "Weight", "Bias")


@st.composite
def sampled(draw):
    rows, seed, sampler = draw(st.integers(1, 3)), draw(seeds), draw(st.integers(0, 2))
    inputs = {
        "Input": values(seed, rows, 2),
        "Weight": values(seed + 1, CLASSES, 2),
        "Bias": values(seed + 2, CLASSES, 1),
        "Label": np.random.default_rng(seed).integers(0, CLASSES, (rows, draw(st.integers(1, 2)))),
    }
    if sampler == 2:
        inputs["CustomDistProbs"] = CUSTOM
    if draw(st.booleans()):
        inputs["SampleWeight"] = values(seed + 3, rows, 1, low=0.5)
    negatives = draw(st.lists(st.integers(0, CLASSES - 1), min_size=1, max_size=3))
    attrs = {"num_total_classes": CLASSES, "sampler": sampler, "num_neg_samples": len(negatives)}
    return inputs, {**attrs, "custom_neg_classes": Ints(negatives)}


@quick
@given(case=sampled())
def test_nce(case):
    inputs, attrs = case
    frame = compute("nce", inputs, {name: name for name in NCE}, attrs)
    for row, labels in enumerate(inputs["Label"]):
        cost = 0.0
        classes = [*labels, *attrs["custom_neg_classes"]]
        assert frame.find("SampleLabels")[row].tolist() == classes
        for at, k in enumerate(classes):
            share = 1 / (1 + math.exp(-(inputs["Input"][row] @ inputs["Weight"][k] + inputs["Bias"][k, 0])))
            noise = PROBABILITY[attrs["sampler"]](k) * attrs["num_neg_samples"]
            assert frame.find("SampleLogits")[row, at] == pytest.approx(share)
            cost -= math.log((share if at < len(labels) else noise) / (share + noise))
        weight = inputs["SampleWeight"][row, 0] if "SampleWeight" in inputs else 1
        assert frame.find("Cost")[row, 0] == pytest.approx(cost * weight)
    check_gradients("nce", inputs, NCE, attrs, of=DENSE, through=["Cost"])


def gradient_of_table(op_type, inputs, table, attrs):
    """The gradient of the table, dense and as SelectedRows."""
    made = {f"{table}@GRAD": "g"}
    dense = compute(f"{op_type}_grad", inputs, made, attrs).find("g")
    return dense, compute(f"{op_type}_grad", inputs, made, {**attrs, "is_sparse": True}, sparse=("g",)).find("g")


def assert_same_rows(dense, sparse, used):
    assert isinstance(sparse, SelectedRows)
    assert sparse.rows.tolist() == sorted(used)
    assert sparse.height == len(dense)
    whole = np.zeros_like(dense)
    whole[sparse.rows] = sparse.value
    np.testing.assert_allclose(whole, dense, rtol=1e-12)


@quick
@given(case=sampled())
def test_sparse_gradients_of_nce_have_the_rows_used(case):
    inputs, attrs = case
    frame = compute("nce", inputs, {name: name for name in NCE}, attrs)
    given_inputs = {
        **inputs,
        **{name: frame.find(name) for name in NCE[1:]},
        "Cost@GRAD": np.ones_like(frame.find("Cost")),
    }
    dense, sparse = gradient_of_table("nce", given_inputs, "Weight", attrs)
    assert_same_rows(dense, sparse, set(frame.find("SampleLabels").reshape(-1).tolist()))


@pytest.mark.parametrize("sampler", [0, 1, 2])
@pytest.mark.parametrize("seed", [0, 11])
def test_classes_are_drawn_as_often_as_the_sampler_says(sampler, seed):
    rows, count = 400, 50
    inputs = {"Input": np.zeros((rows, 1)), "Weight": np.zeros((CLASSES, 1)), "Label": np.zeros((rows, 1), "int64")}
    if sampler == 2:
        # One class each stands in for what others have too much of: 0 and 4 are drawn half as often as 1/5
        inputs["CustomDistProbs"] = CUSTOM
        inputs["CustomDistAlias"] = np.array([1, -1, -1, -1, 1], "int32")
        inputs["CustomDistAliasProbs"] = np.array([0.5, 1, 1, 1, 0.5], "float32")
    attrs = {"num_total_classes": CLASSES, "sampler": sampler, "num_neg_samples": count, "seed": seed}
    drawn = compute("nce", inputs, {name: name for name in NCE}, attrs).find("SampleLabels")[:, 1:]
    shares = np.bincount(drawn.reshape(-1), minlength=CLASSES) / drawn.size
    expected = np.array([PROBABILITY[sampler](k) for k in range(CLASSES)])
    if sampler == 1:  # Fluid's sampler never draws the last class
        expected = np.array([math.log((k + 2) / (k + 1)) / math.log(CLASSES) for k in range(CLASSES)])
        expected[-1] = 0
    np.testing.assert_allclose(shares, expected, atol=0.02)


def test_a_seed_makes_fluid_s_numbers():
    # 10,000th word of the default seed, as the C++ standard gives it for mt19937_64
    assert int(mersenne_words(5489, 10_000)[-1]) == 9981545732273789042
    inputs = {"Input": np.zeros((3, 1)), "Weight": np.zeros((20, 1)), "Label": np.zeros((3, 1), "int64")}
    attrs = {"num_total_classes": 20, "num_neg_samples": 5, "seed": 11}
    drawn = compute("nce", inputs, {name: name for name in NCE}, attrs).find("SampleLabels")
    assert drawn[:, 1:].tolist() == [[3, 15, 7, 13, 1], [5, 17, 13, 10, 17], [5, 1, 17, 7, 5]]  # recorded


def path_of(label, classes):
    """From the root to the leaf `label` of the complete binary tree: (row of W, bit), the last step first."""
    code = label + classes
    return [((code >> (step + 1)) - 1, code >> step & 1) for step in range(code.bit_length() - 1)]


@quick
@given(classes=st.integers(2, 9), rows=st.integers(1, 3), seed=seeds)
def test_hierarchical_sigmoid(classes, rows, seed):
    x, w, b = values(seed, rows, 2), values(seed + 1, classes - 1, 2), values(seed + 2, classes - 1, 1)
    label = np.random.default_rng(seed).integers(0, classes, (rows, 1))
    inputs, attrs = {"X": x, "W": w, "Label": label, "Bias": b}, {"num_classes": classes}
    frame = compute("hierarchical_sigmoid", inputs, {"Out": "out", "PreOut": "pre"}, attrs)
    steps = (classes - 1).bit_length()
    assert frame.find("pre").shape == (rows, steps)
    for row in range(rows):
        path = path_of(int(label[row, 0]), classes)
        loss = (steps - len(path)) * math.log(2)
        for node, bit in path:
            score = x[row] @ w[node] + b[node, 0]
            loss += math.log(1 + math.exp(score)) - bit * score
        assert frame.find("out")[row, 0] == pytest.approx(loss)
    check_gradients("hierarchical_sigmoid", inputs, ["Out", "PreOut"], attrs, of=("X", "W", "Bias"))


def test_a_tree_of_one_s_own():
    table = np.array([[0, 2, -1], [0, 1, 3], [0, 2, -1]])
    code = np.array([[1, 0, -1], [0, 1, 1], [1, 1, -1]])
    inputs = {
        "X": values(1, 3, 2),
        "W": values(2, 5, 2),
        "Label": np.array([[0], [1], [2]]),
        "PathTable": table,
        "PathCode": code,
    }
    attrs = {"num_classes": 6}
    frame = compute("hierarchical_sigmoid", inputs, {"Out": "out", "PreOut": "pre"}, attrs)
    for row in range(3):
        loss = 0.0
        for node, bit in zip(table[row], code[row], strict=True):
            score = inputs["X"][row] @ inputs["W"][node] if node >= 0 else 0
            loss += math.log(1 + math.exp(score)) - max(bit, 0) * score
        assert frame.find("out")[row, 0] == pytest.approx(loss)
    check_gradients("hierarchical_sigmoid", inputs, ["Out", "PreOut"], attrs, of=("X", "W"))
    given_inputs = {**inputs, "PreOut": frame.find("pre"), "Out@GRAD": np.ones((3, 1))}
    dense, sparse = gradient_of_table("hierarchical_sigmoid", given_inputs, "W", attrs)
    assert_same_rows(dense, sparse, {0, 1, 2, 3})


def test_labels_and_samplers_that_do_not_exist_are_refused():
    inputs = {"X": np.ones((1, 2)), "W": np.ones((3, 2)), "Label": np.array([[4]])}
    with pytest.raises(DiagnosticError, match="the label 4 is not in 0 to 3"):
        compute("hierarchical_sigmoid", inputs, {"Out": "out"}, {"num_classes": 4})
    inputs = {"Input": np.ones((1, 2)), "Weight": np.ones((3, 2)), "Label": np.array([[0]])}
    with pytest.raises(DiagnosticError, match="sampler is 3"):
        compute("nce", inputs, {name: name for name in NCE}, {"num_total_classes": 3, "sampler": 3})
