"""Labels that are drawn for a check are classes of the op that reads them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.compiler.job import Job
from pstranspile.frontends import layers as L
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.types import DType
from pstranspile.proof import check, make_feeds
from pstranspile.proof.values import inputs_of
from tests.training import recorded

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


def lengths(feeds: dict[str, Any], name: str) -> list[int]:
    """The lengths of an input's sequences in the first step."""
    return feeds[f"{name}@LENS"][0].tolist()


def out(draft: L.Draft, op: str, inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> Any:
    """What an op makes in its slot `Out`."""
    made = draft.fresh("made", DType.FP32)
    draft.op(op, inputs, {"Out": made.name}, dict(attrs))
    return made


def ragged(draft: L.Draft, *names: str) -> list[Any]:
    """Rows of ids, of sequences that are embedded."""
    return [L.data(draft, name, (-1, 1), "i64", lod_level=1) for name in names]


def test_rows_that_stand_beside_others_are_one_for_each_sequence():
    draft = L.Draft(seed=1)
    ids, label = ragged(draft, "ids", "label")
    x = out(draft, "sequence_pool", {"X": L.embedding(ids, (9, 2))}, {"pooltype": "SUM"})
    draft.op("cross_entropy2", {"X": x, "Label": label}, {"Y": draft.fresh("loss", DType.FP32).name}, {})
    feeds = make_feeds(draft.main(), 2, 8)
    assert lengths(feeds, "label") == [1] * 8
    assert len({*lengths(feeds, "ids")}) > 1
    assert {*feeds["label"].ravel().tolist()} == {0, 1}


def test_sequences_are_not_erased_as_a_whole():
    draft = L.Draft(seed=1)
    (label,) = ragged(draft, "label")
    out(draft, "sequence_erase", {"X": label}, {"tokens": (0, 1)})
    out(draft, "one_hot", {"X": label}, {"depth": 4})
    made = make_feeds(draft.main(), 20, 8)
    sizes = made["label@LENS"].ravel()
    assert {*made["label"][np.cumsum(sizes) - sizes].ravel().tolist()} == {2, 3}
    assert {*made["label"].ravel().tolist()} == {0, 1, 2, 3}


def test_a_reshape_says_how_long_sequences_are():
    draft = L.Draft(seed=1)
    (ids,) = ragged(draft, "ids")
    dense = L.data(draft, "dense", (-1, 3))
    x = out(draft, "reshape2", {"X": L.embedding(ids, (9, 2))}, {"shape": (-1, 3, 2)})
    pooled = out(draft, "reduce_sum", {"X": x}, {"dim": (2,)})
    out(draft, "elementwise_mul", {"X": pooled, "Y": dense}, {})
    assert lengths(make_feeds(draft.main(), 2, 4), "ids") == [3] * 4


def test_ragged_inputs_that_are_put_together_are_as_long_and_reach_what_is_padded():
    draft = L.Draft(seed=1)
    a, b = ragged(draft, "a", "b")
    mask = L.data(draft, "mask", (-1, -1, 1))
    x = out(draft, "concat", {"X": [L.embedding(a, (9, 2)), L.embedding(b, (9, 2))]}, {"axis": 1})
    zero = L.fill_constant(draft, (1,), DType.FP32, 0.0)
    padded, length = draft.fresh("padded", DType.FP32), draft.fresh("length", DType.INT64)
    draft.op("sequence_pad", {"X": x, "PadValue": zero}, {"Out": padded.name, "Length": length.name}, {})
    out(draft, "elementwise_mul", {"X": padded, "Y": mask}, {"axis": 0})
    feeds = make_feeds(draft.main(), 3, 4, shares=2)
    assert np.array_equal(feeds["a@LENS"], feeds["b@LENS"])
    assert (feeds["a@LENS"].reshape(3, 2, 2).max(axis=2) == feeds["mask"].shape[2]).all()


def test_indices_stay_within_a_share():
    draft = L.Draft(seed=1)
    x, index = L.data(draft, "x", (-1, 6, 2)), L.data(draft, "index", (-1, 1), "i64")
    rows = out(draft, "reshape2", {"X": x}, {"shape": (-1, 2)})
    out(draft, "gather", {"X": rows, "Index": index}, {})
    drawn = make_feeds(draft.main(), 30, 4, shares=2)["index"]
    assert drawn.max() == 2 * 6 - 1


def test_lengths_do_not_exceed_what_they_cut():
    draft = L.Draft(seed=1)
    x, length = L.data(draft, "x", (-1, 3, 2)), L.data(draft, "length", (-1,), "i64")
    out(draft, "sequence_unpad", {"X": x, "Length": length}, {})
    assert {*make_feeds(draft.main(), 20, 4)["length"].ravel().tolist()} == {1, 2, 3}


def test_rows_that_are_cut_out_are_there_in_every_share():
    draft = L.Draft(seed=1)
    x = L.data(draft, "x", (-1, 2))
    out(draft, "slice", {"Input": x}, {"axes": (0,), "starts": (10,), "ends": (30,)})
    assert make_feeds(draft.main(), 1, 8, shares=2)["x"].shape[1] >= 60


def test_divisors_are_above_0_and_masks_are_0_or_1():
    draft = L.Draft(seed=1)
    weight, mask = L.data(draft, "weight", (-1, 1)), L.data(draft, "mask", (-1, 4))
    total = out(draft, "reduce_sum", {"X": weight}, {"dim": (0,)})
    out(draft, "elementwise_div", {"X": weight, "Y": total}, {})
    out(draft, "scale", {"X": mask}, {"scale": 10000.0, "bias": -1.0})
    feeds = make_feeds(draft.main(), 4, 8)
    assert (feeds["weight"] > 0).all()
    assert {*feeds["mask"].ravel().tolist()} == {0.0, 1.0}


def test_what_is_too_large_has_to_be_given():
    draft = L.Draft(seed=1)
    x = L.data(draft, "x", (-1, 1 << 28))
    L.relu(x)
    with pytest.raises(DiagnosticError, match=r"%x.*give it with --feed"):
        make_feeds(draft.main(), 1, 4)


def test_what_readers_give_is_made():
    """A program of a py_reader as it was dumped, `read` and the double buffer in it, is proven like any other."""
    assert check(recorded("py_reader"), Job(pservers=2, trainers=2), steps=2).holds


@pytest.mark.parametrize(
    "statement",
    [
        "fill_constant_batch_size_like(Input=%x) -> Out=%y {input_dim_idx=100, shape=[-1, 1]}",
        "slice(Input=%x) -> Out=%y {axes=[7], starts=[0], ends=[1]}",
        "gather(X=%none, Index=%none) -> Out=%y",
    ],
)
def test_a_dim_that_there_is_not_asks_nothing_of_the_data(statement: str):
    """The op can't work, which the run says of it."""
    text = (
        "ir 1\n\nprogram @main {\n  block ^0 {\n    temp %x : f32[-1, 3] feed\n    temp %none : f32[] feed\n"
        f"    temp %y : f32[-1, 1]\n    {statement}\n  }}\n}}\n"
    )
    assert make_feeds(ps.loads(text).main, 1, 4)
