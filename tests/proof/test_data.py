"""Labels that are drawn for a check are classes of the op that reads them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.compiler.job import Job
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, minimize
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.types import DType
from pstranspile.proof import check, make_feeds
from pstranspile.proof.values import array_like, inputs_of
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


def _fed(draft: L.Draft, dims: Mapping[str, tuple[int, ...]], ids: tuple[str, ...], lod: int = 0) -> dict[str, Any]:
    return {
        slot: L.data(draft, slot.lower(), shape, "i64" if slot in ids else "f32", lod_level=lod if slot != "X" else 0)
        for slot, shape in dims.items()
    }


INDEXED: Mapping[str, tuple[dict[str, tuple[int, ...]], str, dict[str, Any], list[int]]] = {
    "scatter": ({"X": (7, 2), "Ids": (4,), "Updates": (4, 2)}, "Ids", {}, [*range(7)]),
    "gather_nd": ({"X": (9, 7, 2), "Index": (-1, 2)}, "Index", {}, [*range(7)]),
    "scatter_nd_add": ({"X": (9, 7), "Index": (4, 2), "Updates": (4,)}, "Index", {}, [*range(7)]),
    "index_select": ({"X": (2, 3, 7), "Index": (5,)}, "Index", {"dim": -1}, [*range(7)]),
    "index_sample": ({"X": (-1, 7), "Index": (-1, 3)}, "Index", {}, [*range(7)]),
    "lookup_table_dequant": ({"W": (7, 6), "Ids": (-1, 1)}, "Ids", {}, [*range(7)]),
    "shard_index": ({"X": (-1, 1)}, "X", {"index_num": 7, "nshards": 2, "shard_id": 0}, [*range(7)]),
    "gather_tree": ({"Ids": (3, 2, 7), "Parents": (3, 2, 7)}, "Parents", {}, [*range(7)]),
    "crop": ({"X": (3, 3), "Offsets": (2,)}, "Offsets", {"shape": (3, 3)}, [0]),
}
"""Op type -> dims of its inputs, the slot of indices, attributes, and the numbers that these take."""


@pytest.mark.parametrize("op_type", INDEXED)
def test_indices_are_those_that_there_are(op_type: str):
    dims, slot, attrs, numbers = INDEXED[op_type]
    draft = L.Draft(seed=1)
    inputs = _fed(draft, dims, (slot, "Ids"))
    draft.op(op_type, inputs, {"Out": draft.fresh("out").name}, attrs)
    drawn = make_feeds(draft.main(), 40, 8)[slot.lower()]
    assert sorted({*drawn.ravel().tolist()}) == numbers


@pytest.mark.parametrize("op_type", ["scatter", "index_sample", "gather_nd", "one row"])
def test_indices_of_the_batch_stay_within_a_share(op_type: str):
    draft = L.Draft(seed=1)
    x = L.data(draft, "x", (-1, 3))
    if op_type == "scatter":
        index, updates = L.data(draft, "index", (-1,), "i64"), L.data(draft, "updates", (-1, 3))
        out(draft, "scatter", {"X": x, "Ids": index, "Updates": updates}, {})
    elif op_type == "index_sample":
        out(draft, op_type, {"X": x, "Index": L.data(draft, "index", (-1, 2), "i64")}, {})
    else:
        out(draft, "gather_nd", {"X": x, "Index": L.data(draft, "index", (-1, 2), "i64")}, {})
    batch = 2 if op_type == "one row" else 8
    drawn = make_feeds(draft.main(), 30, batch, shares=2)["index"]
    assert drawn.max() == {"scatter": 3, "index_sample": 2, "gather_nd": 2, "one row": 0}[op_type]


@pytest.mark.parametrize("count", [1, 3])
def test_what_is_chosen_is_one_of_those_given(count: int):
    draft = L.Draft(seed=1)
    given = [L.data(draft, f"x{number}", (-1, 2)) for number in range(count)]
    ids = L.data(draft, "ids", (-1, 1), "i32")
    out(draft, "multiplex", {"Ids": ids, "X": given}, {})
    assert sorted({*make_feeds(draft.main(), 20, 4)["ids"].ravel().tolist()}) == [*range(count)]


def test_sequences_are_scattered_into_rows_of_the_batch():
    draft = L.Draft(seed=1)
    x, ids = L.data(draft, "x", (-1, 7)), L.data(draft, "ids", (-1, 1), "i64", lod_level=1)
    updates = L.data(draft, "updates", (-1, 1), lod_level=1)
    out(draft, "sequence_scatter", {"X": x, "Ids": ids, "Updates": updates}, {})
    feeds = make_feeds(draft.main(), 9, 4, shares=2)
    assert np.array_equal(feeds["ids@LENS"], feeds["updates@LENS"])
    assert sorted({*feeds["ids"].ravel().tolist()}) == [*range(7)]


def test_slices_of_sequences_lie_in_them():
    draft = L.Draft(seed=1)
    x = L.data(draft, "x", (-1, 3), lod_level=1)
    offset, length = (L.data(draft, name, (-1, 1), "i64") for name in ("offset", "length"))
    out(draft, "sequence_slice", {"X": x, "Offset": offset, "Length": length}, {})
    feeds = make_feeds(draft.main(), 9, 4, shares=2)
    assert {*feeds["offset"].ravel().tolist()} == {0}
    assert {*feeds["length"].ravel().tolist()} == {1}


@pytest.mark.parametrize("op_type", ["scatter", "index_sample", "gather_nd", "sequence_scatter", "multiplex"])
def test_a_program_with_indices_of_a_feed_is_checked(op_type: str):
    """Each on made data, with trainers that have one row each."""
    draft = L.Draft(seed=1)
    x = L.fc(L.data(draft, "x", (-1, 1)), 1, name="dense")
    given: dict[str, Any] = {"X": x}
    if op_type == "scatter":
        given |= {"Ids": L.data(draft, "i", (-1,), "i64"), "Updates": L.data(draft, "u", (-1, 1))}
    elif op_type == "sequence_scatter":
        given["Ids"] = L.data(draft, "i", (-1, 1), "i64", lod_level=1)
        given["Updates"] = L.data(draft, "u", (-1, 1), lod_level=1)
    elif op_type == "multiplex":
        given = {"X": [x], "Ids": L.data(draft, "i", (-1, 1), "i32")}
    else:
        given["Index"] = L.data(draft, "i", (-1, 2 if op_type == "gather_nd" else 1), "i64")
    minimize(L.mean(out(draft, op_type, given, {})), SGD(0.1))
    assert check(draft.module(), Job(pservers=1, trainers=2), steps=4, batch=2).verdicts


def test_rows_of_nothing_but_padding_are_made_where_the_example_has_some():
    bags = np.array([[0, 0, 0], [3, 1, 0], [2, 5, 4]])
    for example, some in ((bags, True), (bags[1:], False)):
        empty = (array_like(example, 40, np.random.default_rng(0), mark=0) == 0).all(1)
        assert bool(empty.any()) == some
        assert not empty.all()
