"""Rows of sequences that are padded, or sorted by length and dropped as they end: what Fluid 1.8.5 gave."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from pstranspile.ir.attributes import Ints
from pstranspile.ops.textual import parse
from pstranspile.runtime.arithmetic import loops
from pstranspile.runtime.kernels.random import Rows, RowStream
from pstranspile.runtime.kernels.tables.ctr import _groups
from pstranspile.runtime.run.prepared import run
from pstranspile.runtime.run.scope import Scope
from pstranspile.runtime.values import LoDTensor
from tests.ops.computing import compute


def test_unpadded_numbers_are_a_column():
    x, lengths = np.arange(6.0).reshape(2, 3), np.array([2, 3])
    found = compute("sequence_unpad", {"X": x, "Length": lengths}, {"Out": "out"}).find("out")
    assert (found.data.tolist(), found.lod) == ([[0], [1], [3], [4], [5]], [[0, 2, 5]])
    given = {"X": x, "Out@GRAD": LoDTensor(np.arange(5.0)[:, None], [[0, 2, 5]])}
    grad = compute("sequence_unpad_grad", given, {"X@GRAD": "grad"}).find("grad")
    assert grad.tolist() == [[0, 1, 0], [2, 3, 4]]


@pytest.mark.parametrize("lengths", [[2, 3], [3, 3], [3], [0, 0], [0, 3], []])
def test_padding_is_the_inverse_of_unpadding(lengths: list[int]):
    """Sequences of one length, which fill their places, are taken as others are; nothing shares memory."""
    longest = max(lengths, default=2)
    x = np.arange(len(lengths) * longest * 2.0).reshape(len(lengths), longest, 2)
    unpadded = compute("sequence_unpad", {"X": x, "Length": np.array(lengths, "int64")}, {"Out": "out"})
    found = unpadded.find("out")
    assert found.data.tolist() == [row for n, rows in zip(lengths, x.tolist(), strict=True) for row in rows[:n]]
    assert not np.shares_memory(found.data, unpadded.find("X"))
    grad = compute("sequence_unpad_grad", {"X": x, "Out@GRAD": found}, {"X@GRAD": "grad"}).find("grad")
    inside = np.arange(longest) < np.array(lengths, "int64")[:, None]
    assert np.array_equal(grad, x * inside[:, :, None])
    padded = compute(
        "sequence_pad", {"X": found, "PadValue": np.array([-1.0])}, {"Out": "out", "Length": "n"}, {"padded_length": 3}
    )
    assert padded.find("n").tolist() == lengths
    wide = np.full((len(lengths), 3, 2), -1.0)
    wide[:, :longest][inside] = x[inside]
    assert np.array_equal(padded.find("out"), wide)
    given = {"X": found, "Out@GRAD": wide}
    back = compute("sequence_pad_grad", given, {"X@GRAD": "grad"}, {"padded_length": 3}).find("grad")
    assert (back.data.tolist(), back.lod) == (found.data.tolist(), found.lod)


@pytest.mark.parametrize(
    ("op_type", "attrs", "left"),
    [
        ("reduce_sum", {"dim": Ints((0,))}, False),  # three columns, as many as there are rows
        ("reduce_max", {"dim": Ints((-2,))}, False),
        ("reduce_mean", {"dim": Ints((1, 0)), "keep_dim": True}, False),
        ("reduce_sum", {"reduce_all": True}, False),
        ("reduce_sum", {"dim": Ints((1,))}, True),
        ("reduce_prod", {"dim": Ints((-1,)), "keep_dim": True}, True),
        ("slice", {"axes": Ints((0,)), "starts": Ints((0,)), "ends": Ints((3,))}, False),
        ("slice", {"axes": Ints((1,)), "starts": Ints((0,)), "ends": Ints((1,))}, True),
        ("pad", {"paddings": Ints((0, 0, 0, 1))}, True),
        ("pad", {"paddings": Ints((0, 1, 0, 0))}, False),
        ("sampling_id", {}, True),
    ],
)
@pytest.mark.parametrize("offsets", [[0, 1, 3], [0, 1]])
def test_sequences_are_left_where_rows_are(op_type: str, attrs: dict[str, Any], left: bool, offsets: list[int]):
    """Not where an op happens to give as many rows as there were: one row, or the columns of as many rows."""
    x = LoDTensor(np.ones((offsets[-1], 3), "float32"), [offsets])
    found = compute(op_type, {"Input" if op_type == "slice" else "X": x}, {"Out": "out"}, attrs).find("out")
    assert (found.lod if isinstance(found, LoDTensor) else None) == ([offsets] if left else None)


@pytest.mark.parametrize("offsets", [[0, 2, 3], [0, 0, 3], [0, 0]])
def test_the_gradient_of_a_maximum_goes_to_the_first_row_that_has_it(offsets: list[int]):
    x = LoDTensor(np.array([[1.0, 5], [4, 5], [2, np.nan]])[: offsets[-1]], [offsets])
    attrs = {"pooltype": "MAX", "pad_value": -7.0}
    forward = compute("sequence_pool", {"X": x}, {"Out": "out", "MaxIndex": "index"}, attrs)
    out, index = forward.find("out"), forward.find("index")
    runs = list(pairwise(offsets))
    assert np.array_equal(out, [x.data[a:b].max(axis=0) if a < b else [-7, -7] for a, b in runs], equal_nan=True)
    assert index.tolist() == [(x.data[a:b].argmax(axis=0) + a).tolist() if a < b else [-1, -1] for a, b in runs]
    given = {"X": x, "MaxIndex": index, "Out@GRAD": np.arange(2.0 * len(runs)).reshape(-1, 2) + 1}
    grad = compute("sequence_pool_grad", given, {"X@GRAD": "grad"}, attrs).find("grad").data
    wanted = np.zeros_like(x.data)
    for number, (start, end) in enumerate(runs):
        for column in range(2 if start < end else 0):
            wanted[index[number, column], column] = 2 * number + column + 1
    assert np.array_equal(grad, wanted)


MEMORY = """ir 1
program @main {
  block ^0 {
    temp %x : f32[-1, 2] lod=1 feed
    temp %r : f32[-1, 1] lod=1 feed
    temp %i : i64[1] feed
    temp %table : lod_rank_table
    temp %y : f32[-1, 2] lod=1
    temp %grad : f32[-1, 2] lod=1
    lod_rank_table(X=%r) -> Out=%table
    shrink_rnn_memory(X=%x, RankTable=%table, I=%i) -> Out=%y
    shrink_rnn_memory_grad(X=%x, Out@GRAD=%y) -> X@GRAD=%grad
  }
}
"""


def test_the_memory_of_sequences_that_go_on_keeps_its_rows_together():
    """Sequences of 3, 2 and 1 steps; x has 2, 1 and 3 rows for them."""
    main = parse(MEMORY).main
    x, r = LoDTensor(np.arange(12, dtype="float32").reshape(6, 2), [[0, 2, 3, 6]]), np.zeros((6, 1), "float32")
    for step, lod in enumerate(([0, 2, 3, 6], [0, 2, 3], [0, 2])):
        feed = {"x": x, "r": LoDTensor(r, [[0, 3, 5, 6]]), "i": np.array([step])}
        out = run(main, feed, ["y", "grad"], Scope())
        assert (out["y"].lod, out["y"].data.tolist()) == ([lod], x.data[: lod[-1]].tolist())
        assert (out["grad"].lod, out["grad"].data.shape) == (x.lod, (6, 2))
        assert not out["grad"].data[lod[-1] :].any()


def test_the_largest_rows_of_sequences_are_the_first_that_hold_them():
    nan = float("nan")
    x = np.array([[1, 5], [3, 5], [3, 2], [nan, 0], [7, nan], [nan, nan]], "float32")
    found = compute(
        "sequence_pool",
        {"X": LoDTensor(x, [[0, 3, 3, 6]])},
        {"Out": "out", "MaxIndex": "index"},
        {"pooltype": "MAX"},
    )
    assert found.find("index").tolist() == [[1, 0], [-1, -1], [3, 4]]


@pytest.mark.parametrize("lengths", [[3, 3], [1, 5, 2], [0, 1, 5, 0, 2], [1, 1, 1, 1, 1, 40]])
def test_the_largest_of_sequences_of_any_lengths(lengths: list[int]):
    offsets = [0, *np.cumsum(lengths).tolist()]
    x = np.random.default_rng(1).integers(0, 4, (offsets[-1], 2, 3)).astype("float32")
    x[-1, 1, 1] = np.nan
    found = compute("sequence_pool", {"X": LoDTensor(x, [offsets])}, {"Out": "o", "MaxIndex": "i"}, {"pooltype": "MAX"})
    for number, (start, end) in enumerate(pairwise(offsets)):
        if start < end:
            np.testing.assert_array_equal(found.find("o")[number], x[start:end].max(axis=0))
            np.testing.assert_array_equal(found.find("i")[number], x[start:end].argmax(axis=0) + start)
        else:
            assert (found.find("o")[number] == 0).all()
            assert (found.find("i")[number] == -1).all()


@pytest.mark.parametrize(("start", "length"), [(-1, 3), (0, 2), (-4, 9), (2, 2), (-3, 2)])
@pytest.mark.parametrize("offsets", [[0, 2], [0, 1, 1, 4, 6]])
def test_windows_over_sequences_reach_into_no_other(offsets: list[int], start: int, length: int):
    r = np.random.default_rng(3)
    x, weight = r.standard_normal((offsets[-1], 2)), r.standard_normal((2 * length, 3))
    windows = np.zeros((len(x), length, 2))
    for first, end in pairwise(offsets):
        for row in range(first, end):
            for place in range(length):
                if first <= row + start + place < end:
                    windows[row, place] = x[row + start + place]
    attrs = {"contextStart": start, "contextLength": length, "contextStride": 1, "paddingTrainable": False}
    given: dict[str, Any] = {"X": LoDTensor(x, [offsets]), "Filter": weight}
    out = compute("sequence_conv", given, {"Out": "out"}, attrs).find("out").data
    np.testing.assert_allclose(out, windows.reshape(len(x), -1) @ weight)
    grad = r.standard_normal(out.shape)
    given["Out@GRAD"] = LoDTensor(grad, [offsets])
    found = compute("sequence_conv_grad", given, {"X@GRAD": "x", "Filter@GRAD": "w"}, attrs)
    np.testing.assert_allclose(found.find("w"), windows.reshape(len(x), -1).T @ grad)
    change = r.standard_normal(x.shape) * 1e-6
    moved = compute("sequence_conv", {**given, "X": LoDTensor(x + change, [offsets])}, {"Out": "out"}, attrs)
    np.testing.assert_allclose(
        ((moved.find("out").data - out) * grad).sum(), (found.find("x").data * change).sum(), 1e-5
    )


def test_rows_draw_the_same_whether_all_are_as_long_or_one_is_longer():
    even = RowStream(1 << 100 | 77, Rows(np.array([4, 0]), np.array([3, 3]))).words()
    alike = RowStream(1 << 100 | 77, Rows(np.array([4, 0]), 3)).words()
    longer = RowStream(1 << 100 | 77, Rows(np.array([4, 0, 9]), np.array([3, 3, 5000]))).words()
    alone = RowStream(1 << 100 | 77, Rows(np.array([9]), 5000)).words()
    assert even.tolist() == alike.tolist() == longer[:6].tolist()
    assert longer[6:].tolist() == alone.tolist()


RAGGED = [[0, 3, 3, 4, 9], [0, 1, 2], [0, 0], [0, 5]]


@pytest.mark.parametrize("offsets", RAGGED, ids=str)
def test_a_row_convolution_looks_ahead_within_its_sequence(offsets: list[int]):
    random, rows = np.random.default_rng(0), offsets[-1]
    x, weight, grad = random.normal(size=(rows, 2)), random.normal(size=(4, 2)), random.normal(size=(rows, 2))
    inputs = {"X": LoDTensor(x, [offsets]), "Filter": weight}
    want, x_grad, filter_grad = np.zeros_like(x), np.zeros_like(x), np.zeros_like(weight)
    for start, stop in pairwise(offsets):
        for row in range(start, stop):
            for ahead in range(min(4, stop - row)):
                want[row] += x[row + ahead] * weight[ahead]
                x_grad[row + ahead] += grad[row] * weight[ahead]
                filter_grad[ahead] += grad[row] * x[row + ahead]
    np.testing.assert_allclose(compute("row_conv", inputs, {"Out": "out"}).find("out").data, want)
    given = inputs | {"Out@GRAD": LoDTensor(grad, [offsets])}
    gradients = compute("row_conv_grad", given, {"X@GRAD": "x", "Filter@GRAD": "filter"})
    np.testing.assert_allclose(plain(gradients.find("x")), x_grad)
    np.testing.assert_allclose(gradients.find("filter"), filter_grad, atol=1e-14)


@pytest.mark.parametrize("offsets", RAGGED, ids=str)
def test_sequences_are_joined_one_by_one(offsets: list[int]):
    others = [at * 2 for at in offsets]
    x, y = np.arange(offsets[-1])[:, None] * 1.0, -np.arange(others[-1])[:, None] * 1.0
    inputs = {"X": [LoDTensor(x, [offsets]), LoDTensor(y, [others])]}
    joined = compute("sequence_concat", inputs, {"Out": "out"}).find("out")
    pairs = zip(pairwise(offsets), pairwise(others), strict=True)
    want = [part for (a, b), (c, d) in pairs for part in (x[a:b], y[c:d])]
    assert joined.lod == [[a + b for a, b in zip(offsets, others, strict=True)]]
    np.testing.assert_array_equal(joined.data, np.concatenate(want))
    given = inputs | {"Out@GRAD": joined}
    gradients = compute("sequence_concat_grad", given, {"X@GRAD": ["x", "y"]})
    np.testing.assert_array_equal(gradients.find("x").data, x)
    np.testing.assert_array_equal(gradients.find("y").data, y)


@pytest.mark.parametrize("offsets", RAGGED, ids=str)
@pytest.mark.parametrize("op_type", ["sequence_expand", "sequence_expand_as"])
def test_the_gradient_of_repeated_rows_is_their_sum(op_type: str, offsets: list[int]):
    x, y = np.zeros((len(offsets) - 1, 2)), LoDTensor(np.zeros((offsets[-1], 1)), [offsets])
    grad = np.random.default_rng(0).normal(size=(offsets[-1], 2))
    given = {"X": x, "Y": y, "Out@GRAD": LoDTensor(grad, [offsets])}
    result = compute(f"{op_type}_grad", given, {"X@GRAD": "x"}).find("x")
    want = [grad[start:stop].sum(axis=0) for start, stop in pairwise(offsets)]
    np.testing.assert_allclose(plain(result), want, atol=1e-14)


def test_the_gradient_of_repeated_sequences_is_the_sum_of_their_rows():
    x, y = LoDTensor(np.zeros((3, 2)), [[0, 2, 3]]), LoDTensor(np.zeros((3, 1)), [[0, 2, 3]])
    grad = np.arange(10.0).reshape(5, 2)  # the rows 0, 1, 0, 1, 2
    given = {"X": x, "Y": y, "Out@GRAD": LoDTensor(grad, [[0, 2, 4, 5]])}
    result = compute("sequence_expand_grad", given, {"X@GRAD": "x"}).find("x")
    np.testing.assert_array_equal(plain(result), [grad[0] + grad[2], grad[1] + grad[3], grad[4]])


def plain(value: Any) -> np.ndarray:
    return value.data if isinstance(value, LoDTensor) else value


def test_groups_have_no_more_words_than_the_longest_sequence():
    """Whatever `pyramid_layer` says: there would be as many turns for groups that do not exist."""
    words, offsets = np.arange(7, dtype="float32"), [0, 4, 4, 5, 7]
    sequence, bits = _groups(words, offsets, 4)
    assert [group.shape for group in bits] == [(4, 2), (2, 3), (1, 4)]
    more_sequence, more_bits = _groups(words, offsets, (1 << 31) - 1)
    assert [group.tolist() for group in more_bits] == [group.tolist() for group in bits]
    assert more_sequence.tolist() == sequence.tolist()
    assert [group.shape for group in _groups(words, [0, 1], 7)[1]] == [(0, 2)]


@pytest.mark.parametrize("offsets", [[0, 3, 4, 9], [0, 2, 2, 5, 5], [0, 4, 8], [0, 1], [0, 0], [0, 0, 0, 2]], ids=str)
@pytest.mark.parametrize("width", [1, 3, 40])
def test_compiled_windows_and_largest_rows_have_the_bits_of_numpys(
    offsets: list[int], width: int, monkeypatch: pytest.MonkeyPatch
):
    random = np.random.default_rng(0)
    data = random.integers(-2, 3, (offsets[-1], width)).astype("float32") / 2
    data[random.random(data.shape) < 0.1] = np.nan
    data[random.random(data.shape) < 0.1] = -0.0
    x = LoDTensor(data, [offsets])

    def found() -> list[bytes]:
        pooled = compute("sequence_pool", {"X": x}, {"Out": "out", "MaxIndex": "index"}, {"pooltype": "MAX"})
        values = [pooled.find("out"), pooled.find("index")]
        for start, length in ((-1, 3), (0, 1), (-4, 2), (3, 2), (-20, 50)):
            attrs = {"contextStart": start, "contextLength": length}
            weights = np.ones((length * width, 2), "float32")
            values.append(compute("sequence_conv", {"X": x, "Filter": weights}, {"Out": "out"}, attrs).find("out"))
            given = {"X": x, "Filter": weights, "Out@GRAD": LoDTensor(data[:, :1].repeat(2, axis=1), [offsets])}
            slots = {"X@GRAD": "x", "Filter@GRAD": "filter"}
            grads = compute("sequence_conv_grad", given, slots, attrs)
            values += [grads.find("x"), grads.find("filter")]
        return [(value.data if isinstance(value, LoDTensor) else value).tobytes() for value in values]

    compiled = found()
    monkeypatch.setattr(loops, "COMPILED", False)
    assert compiled == found()
