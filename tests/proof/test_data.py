"""Labels that are drawn for a check are classes of the op that reads them."""

import pytest

from pstranspile import layers as L
from pstranspile.proof import make_feeds
from pstranspile.proof.data import inputs_of

CLASSES = {
    "bpr_loss": ("X", "Label", (-1, 7), (-1, 1), {}),
    "nll_loss": ("X", "Label", (-1, 7, 2, 3), (-1, 2, 3), {}),
    "sigmoid_focal_loss": ("X", "Label", (-1, 7), (-1, 1), {}),
    "sample_logits": ("Logits", "Labels", (-1, 7), (-1, 1), {"num_samples": 2}),
    "center_loss": ("X", "Label", (-1, 2), (-1, 1), {"cluster_num": 7, "need_update": True}),
    "mean_iou": ("Predictions", "Labels", (-1, 2), (-1, 2), {"num_classes": 7}),
    "precision_recall": ("MaxProbs", "Labels", (-1, 1), (-1, 1), {"class_number": 7}),
}
"""Op type -> slot of what is labelled, of labels, their dims, attributes; there are 7 classes in each."""


@pytest.mark.parametrize("op_type", CLASSES)
def test_labels_are_classes(op_type: str):
    slot, labels, dims, label_dims, attrs = CLASSES[op_type]
    draft = L.Draft(seed=1)
    x = L.data(draft, "x", dims, "i64" if op_type == "mean_iou" else "f32")
    label = L.data(draft, "label", label_dims, "i64")
    draft.op(op_type, {slot: x, labels: label}, {"Out": draft.fresh("out").name}, attrs)
    drawn = make_feeds(draft.main(), 20, 8)["label"]
    assert sorted({*drawn.ravel().tolist()}) == list(range(7))


@pytest.mark.parametrize(
    ("op_type", "slot"), [("bce_loss", "Label"), ("modified_huber_loss", "Y"), ("hinge_loss", "Labels")]
)
def test_binary_labels_are_0_or_1(op_type: str, slot: str):
    draft = L.Draft(seed=1)
    inputs = {
        "Logits" if op_type == "hinge_loss" else "X": L.data(draft, "x", (-1, 1)),
        slot: L.data(draft, "y", (-1, 1)),
    }
    draft.op(op_type, inputs, {"Out": draft.fresh("out").name}, {})
    assert {*make_feeds(draft.main(), 4, 8)["y"].ravel().tolist()} == {0.0, 1.0}


def test_inputs_are_what_is_read_before_it_is_made():
    draft = L.Draft(seed=1)
    x = L.data(draft, "x", (-1, 3))
    out = L.relu(x)
    draft.op("scale", {"X": out}, {"Out": out.name}, {"scale": 2.0})
    draft.op("scale", {"X": x}, {"Out": x.name}, {"scale": 2.0})
    assert [var.name for var in inputs_of(draft.main())] == ["x"]
