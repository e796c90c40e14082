"""Less common losses, products and measures: what recordings of Fluid can't say, and what is refused."""

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.ir.attributes import Ints
from pstranspile.ir.diagnostics import DiagnosticError
from tests.ops.computing import compute
from tests.ops.differences import check_gradients, one_output, values

COLUMN = np.array([[0.25], [0.5]])
LABELS = np.array([[0], [3]])
SCORES = np.ones((2, 3))
ALL = {"reduction": "mean", "ignore_index": -100}
CENTERS = {"Centers": np.ones((3, 2)), "CenterUpdateRate": np.array([0.1])}
FOCAL = {"gamma": 2.0, "alpha": 0.25}
CUSTOM = {"CustomizedSamples": np.array([[0, 5], [1, 2]]), "CustomizedProbabilities": np.ones((2, 2))}
SAMPLED = ("Samples", "Probabilities", "LogitsDim", "LabelsDim", "SampledLogits", "SampledLabels")

REFUSED = {
    "bpr": ("bpr_loss", {"X": SCORES, "Label": LABELS}, {}, "the label 3 is not in 0 to 2"),
    "nll": ("nll_loss", {"X": SCORES, "Label": LABELS[:, 0]}, ALL, "the label 3 is not in 0 to 2"),
    "nll below 0": ("nll_loss", {"X": SCORES, "Label": np.array([0, -1])}, ALL, "the label -1 is not in 0 to 2"),
    "nll reduction": (
        "nll_loss",
        {"X": SCORES, "Label": LABELS[:, 0]},
        {"reduction": "all"},
        "reduction is 'all', it must be one of",
    ),
    "kldiv reduction": ("kldiv_loss", {"X": SCORES, "Target": SCORES}, {"reduction": "max"}, "batchmean"),
    "center": (
        "center_loss",
        {"X": SCORES[:, :2], "Label": LABELS, **CENTERS},
        {"cluster_num": 3, "need_update": True},
        "the label 3 is not in 0 to 2",
    ),
    "bce": ("bce_loss", {"X": COLUMN + 1, "Label": COLUMN}, {}, "no probabilities"),
    "focal": ("sigmoid_focal_loss", {"X": SCORES, "Label": LABELS + 1, "FgNum": np.array([1])}, FOCAL, "the label"),
    "cross": ("cross", {"X": np.ones((2, 2)), "Y": np.ones((2, 2))}, {"dim": 9}, "not one of size 3"),
    "cross dim": ("cross", {"X": SCORES, "Y": SCORES}, {"dim": 0}, "not one of size 3"),
    "iou": (
        "mean_iou",
        {"Predictions": np.array([1]), "Labels": np.array([2])},
        {"num_classes": 2},
        "the label 2 is not in 0 to 1",
    ),
    "precision": (
        "precision_recall",
        {"MaxProbs": COLUMN, "Indices": LABELS, "Labels": LABELS},
        {"class_number": 3},
        "the class 3 is not in 0 to 2",
    ),
    "focus": (
        "similarity_focus",
        {"X": np.ones((1, 2, 2, 2))},
        {"axis": 1, "indexes": Ints((2,))},
        "index 2 is not in 0 to 1",
    ),
    "focus axis": ("similarity_focus", {"X": np.ones((1, 2, 2, 2))}, {"axis": 0, "indexes": Ints((0,))}, "axis is 0"),
    "odd": ("add_position_encoding", {"X": np.ones((1, 2, 3))}, {}, "must be even"),
    "flat": ("add_position_encoding", {"X": np.ones((2, 4))}, {}, "must have 3"),
    "label": ("sample_logits", {"Logits": SCORES, "Labels": LABELS}, {"num_samples": 2}, "the label 3 is not in"),
    "sample": (
        "sample_logits",
        {"Logits": SCORES, "Labels": LABELS % 3, **CUSTOM},
        {"num_samples": 1, "use_customized_samples": True},
        "the sample 5 is not in 0 to 2",
    ),
    "no samples": (
        "sample_logits",
        {"Logits": SCORES, "Labels": LABELS % 3},
        {"num_samples": 1, "use_customized_samples": True},
        "needs CustomizedSamples",
    ),
    "few classes": (
        "sample_logits",
        {"Logits": SCORES, "Labels": LABELS % 3},
        {"num_samples": 4},
        "4 distinct classes can't be sampled from 3",
    ),
    "not distinct": (
        "sample_logits",
        {"Logits": SCORES, "Labels": LABELS % 3},
        {"num_samples": 1, "uniq": False},
        "uniq is false",
    ),
}
"""Name -> op type, inputs, attributes, and what the message says."""


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str):
    op_type, inputs, attrs, message = REFUSED[name]
    with pytest.raises(DiagnosticError, match=message):
        compute(op_type, inputs, {"Out": "out"}, attrs)


def test_counts_of_cvm_fit_the_sequences():
    x, counts = ps.LoDTensor(np.ones((3, 4)), [[0, 1, 3]]), np.array([[5.0, 2.0], [7.0, 1.0]])
    inputs = {"X": x, "CVM": counts, "Y@GRAD": np.full((3, 4), 0.5)}
    found = compute("cvm_grad", inputs, {"X@GRAD": "found"}).find("found")
    assert found.lod == x.lod
    assert found.data.tolist() == [[5, 2, 0.5, 0.5], [7, 1, 0.5, 0.5], [7, 1, 0.5, 0.5]]
    with pytest.raises(DiagnosticError, match="CVM has 1 rows, X has 2 sequences"):
        compute("cvm_grad", {**inputs, "CVM": counts[:1]}, {"X@GRAD": "found"})
    with pytest.raises(DiagnosticError, match="CVM has 2 rows, X has 3"):
        compute("cvm_grad", {**inputs, "X": x.data}, {"X@GRAD": "found"})


def test_ignored_labels_need_not_be_classes():
    inputs = {"X": np.array([[1.0, 2.0], [3.0, 4.0]]), "Label": np.array([-100, 1])}
    assert one_output("nll_loss", inputs, ALL).tolist() == [-4.0]


def test_nothing_is_divided_where_all_labels_are_ignored():
    inputs = {"X": np.ones((2, 2)), "Label": np.array([-100, -100])}
    assert one_output("nll_loss", inputs, ALL).tolist() == [0.0]


def test_rows_in_more_dims_rank_as_rows_of_a_matrix():
    x, label = values(3, 2, 3, 4), np.random.default_rng(3).integers(4, size=(2, 3, 1))
    flat = one_output("bpr_loss", {"X": x.reshape(6, 4), "Label": label.reshape(6, 1)}, slot="Y")
    np.testing.assert_array_equal(one_output("bpr_loss", {"X": x, "Label": label}, slot="Y").reshape(6, 1), flat)
    check_gradients("bpr_loss", {"X": x, "Label": label}, ["Y"], through=["Y"])


def test_norms_have_no_slope_at_zero():
    zeros, ones = np.zeros((2, 2)), np.ones(1)
    for p in (0.0, 0.5, 1.0, 2.0, 3.0, float("inf"), float("-inf")):
        inputs = {"X": zeros, "Y": zeros, "Out": np.zeros(1), "Out@GRAD": ones}
        found = compute("dist_grad", inputs, {"X@GRAD": "x", "Y@GRAD": "y"}, {"p": p})
        assert found.find("x").tolist() == zeros.tolist() == (-found.find("y")).tolist()
    inputs = {"X": np.array([0.0, 2.0]), "Out": np.array([2.0]), "Out@GRAD": ones}
    assert one_output("p_norm_grad", inputs, {"porder": 0.5, "axis": 0}, "X@GRAD").tolist() == [0.0, 1.0]


def test_the_frobenius_norm_of_all_dims():
    x = np.array([[3.0, 0.0], [0.0, 4.0]])
    assert one_output("frobenius_norm", {"X": x}, {"dim": Ints((0, 1))}).tolist() == [5.0]
    assert one_output("frobenius_norm", {"X": x}, {"dim": Ints((0, 1)), "keep_dim": True}).tolist() == [[5.0]]


def test_roots_of_float64_are_as_precise():
    x = values(1, 5, low=0.1)
    assert one_output("p_norm", {"X": x}, {"porder": 3.0}) == pytest.approx((x**3).sum() ** (1 / 3), rel=1e-14)


@pytest.mark.parametrize("equal_nan", [True, False])
def test_allclose_of_infinite_and_nan_elements(equal_nan: bool):
    def close(a: float, b: float) -> bool:
        return bool(one_output("allclose", {"Input": np.array([a]), "Other": np.array([b])}, {"equal_nan": equal_nan}))

    assert close(np.nan, np.nan) is equal_nan
    assert close(np.inf, np.inf)
    assert not close(np.inf, -np.inf)
    assert not close(1.0, np.inf)


def sampled(step: int, seed: int, labels: np.ndarray = LABELS) -> dict[str, np.ndarray]:
    inputs = {"Logits": np.zeros((2, 50)), "Labels": labels}
    frame = compute(
        "sample_logits", inputs, {slot: slot for slot in SAMPLED}, {"num_samples": 8, "seed": seed}, step=step
    )
    return {slot: frame.find(slot) for slot in SAMPLED}


def test_samples_are_distinct_and_new_in_every_step_without_a_seed():
    first, second = (sampled(step, 0)["Samples"] for step in (0, 1))
    assert first.tolist() == sampled(0, 0)["Samples"].tolist() != second.tolist()
    assert len(set(first[0, 1:])) == 8
    assert first[0, 1:].tolist() == first[1, 1:].tolist()
    assert first[:, :1].tolist() == LABELS.tolist()


def test_samples_of_a_seed_stay():
    assert sampled(0, 5)["Samples"].tolist() == sampled(1, 5)["Samples"].tolist()


def test_a_sample_that_is_the_label_is_taken_out():
    drawn = sampled(0, 5)
    hit = drawn["Samples"][:, 1:] == LABELS
    assert ((drawn["SampledLogits"][:, 1:] <= -1e19) == hit).all()
    again = sampled(0, 5, drawn["Samples"][:, 1:2])
    assert (again["SampledLogits"][:, 1] <= -1e19).all()
    assert again["LogitsDim"].shape == (2, 50, 0)


def test_pairs_of_equal_scores_count_twice():
    inputs = {"Score": np.array([[1.0], [1.0]]), "Label": np.array([[0.0], [1.0]]), "QueryID": np.array([[4], [4]])}
    outputs = {"PositivePair": "positive", "NegativePair": "negative", "NeutralPair": "neutral"}
    frame = compute("positive_negative_pair", inputs, outputs)
    assert [frame.find(name).tolist() for name in outputs.values()] == [[0.0], [1.0], [1.0]]


def test_batches_of_no_rows():
    empty, none = np.zeros((0, 3)), np.zeros((0, 1), "int64")
    assert one_output("smooth_l1_loss", {"X": empty, "Y": empty}, {"sigma": 1.0}).shape == (0, 1)
    inputs = {"X": empty[:, :2], "Label": none, **CENTERS}
    assert one_output("center_loss", inputs, {"cluster_num": 3, "need_update": True}, "Loss").shape == (0, 1)
    assert one_output("bpr_loss", {"X": empty, "Label": none}, slot="Y").shape == (0, 1)
    assert one_output("similarity_focus", {"X": np.zeros((0, 2, 2, 2))}, {"axis": 1, "indexes": Ints((0,))}).size == 0
