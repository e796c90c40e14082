"""Which rows of the whole batch a machine has, and the numbers that ops draw for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pstranspile as ps
from pstranspile.cluster.machines.feeding import share_of
from pstranspile.runtime.kernels.random import Rows, RowStream
from pstranspile.runtime.run.batch import Batch, Part, concat_shares, part_of, rows_of, select_range, select_rows
from pstranspile.runtime.values import LoDTensor
from tests.runtime.run.test_interpreter import program

X = "temp %x : f32[-1, 6] feed"
DRAWS = {
    "dropout": ("temp %m : u8[-1, 6]", "dropout(X=%x) -> Out=%out, Mask=%m {dropout_prob=0.4}"),
    "dropout with a seed": ("dropout(X=%x) -> Out=%out {dropout_prob=0.4, fix_seed=true, seed=3}",),
    "uniform": ("uniform_random_batch_size_like(Input=%x) -> Out=%out {shape=[-1, 5]}",),
    "normal": ("gaussian_random_batch_size_like(Input=%x) -> Out=%out {shape=[-1, 5], seed=4}",),
    "noise of an open shape": (
        "temp %s : i32[2]",
        "shape(Input=%x) -> Out=%s",
        "uniform_random(ShapeTensor=%s) -> Out=%out {shape=[-1, 6]}",
    ),
    "sampling_id": ("sampling_id(X=%x) -> Out=%out",),
    "crop by a seed": (
        "temp %s : i64[1]",
        "temp %t : i64[1]",
        "fill_constant() -> Out=%s {shape=[1], value=7.0, dtype=3}",
        "random_crop(X=%x, Seed=%s) -> Out=%out, SeedOut=%t {shape=[4]}",
    ),
}


def reordered(feed: Any, names: list[str], order: Any) -> Batch:
    """A batch with the rows of the inputs `names` in the order that a function gives for so many rows."""
    values, parts = dict(feed), dict(feed.parts) if isinstance(feed, Batch) else {}
    for name in names:
        part = part_of(feed, name)
        values[name], made = select_rows(feed[name], order(rows_of(feed[name])), part)
        parts[name] = made if part else None
    return Batch(values, parts)


def text(name: str) -> Any:
    return program(X, "temp %out : f32[-1, 6]", *DRAWS[name])["main"]


@pytest.mark.parametrize("name", DRAWS)
def test_a_row_draws_the_same_wherever_it_is(name: str):
    main = text(name)
    feed = {"x": np.random.default_rng(0).random((11, 6), "float32") / 6}

    def drawn(given: Any, stream: int = 0) -> Any:
        return ps.run(main, given, ["out"], seed=2, step=3, stream=stream)["out"]

    whole = drawn(feed)
    parts = [drawn(share_of(feed, main, trainer, 3), trainer) for trainer in range(3)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    backwards = drawn(reordered(feed, ["x"], lambda size: range(size - 1, -1, -1)))
    np.testing.assert_array_equal(backwards[::-1], whole)
    assert len(np.unique(whole, axis=0)) >= 4
    assert not np.array_equal(drawn(feed, 1), whole) or "seed" in name  # of a batch that nothing is told of


lengths = st.lists(st.integers(0, 4), min_size=1, max_size=7)


def batch(sizes: list[list[int]]) -> ps.LoDTensor:
    """A ragged value of two levels: for each sequence, the sizes of its parts."""
    inner = [size for parts in sizes for size in parts]
    data = np.arange(sum(inner), dtype="float32").reshape(-1, 1)
    return ps.LoDTensor(data, [np.cumsum([0, *map(len, sizes)]).tolist(), np.cumsum([0, *inner]).tolist()])


@settings(deadline=None)
@given(st.lists(lengths, min_size=1, max_size=9), st.integers(1, 4), st.randoms(use_true_random=False))
def test_shares_are_the_batch(sizes: list[list[int]], trainers: int, random: Any):
    main = program("temp %x : f32[-1, 1] lod=2 feed", "temp %y : f32[-1, 1]", "scale(X=%x) -> Out=%y")["main"]
    feed = {"x": batch(sizes)}
    shares = [share_of(feed, main, trainer, trainers) for trainer in range(trainers)]
    together = concat_shares(shares, ["x"])
    np.testing.assert_array_equal(together["x"].data, feed["x"].data)
    assert together["x"].lod == feed["x"].lod
    whole, part = part_of(feed, "x"), part_of(together, "x")
    assert whole is not None
    assert part is not None
    for ours, theirs in zip(part, whole, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    order = random.sample(range(len(sizes)), len(sizes))
    mixed = reordered(together, ["x"], lambda size: order)
    assert mixed.parts["x"] is not None
    assert mixed.parts["x"].places.tolist() == order
    back = reordered(mixed, ["x"], lambda size: np.argsort(order))
    np.testing.assert_array_equal(back["x"].data, feed["x"].data)


def test_nobody_knows_the_rows_of_a_part_that_is_not_told():
    shares = [
        Batch({"x": np.zeros((2, 1))}, {"x": None}),
        Batch({"x": np.zeros((1, 1))}, {"x": Part(np.arange(1), 3)}),
    ]
    assert concat_shares(shares, ["x"]).parts["x"] is None


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(0, 2**127))
def test_a_row_draws_the_same_however_long_the_others_are(sizes: list[int], key: int):
    places = np.arange(len(sizes))
    drawn = RowStream(key, Rows(places, np.array(sizes))).words32()
    table = RowStream(key, Rows(places, 10)).words32().reshape(-1, 10)
    np.testing.assert_array_equal(drawn, np.concatenate([table[at, :size] for at, size in enumerate(sizes)]))


@given(st.integers(0, 2**128 - 1), st.integers(1, 30))
def test_a_row_draws_the_same_however_many_others_there_are(key: int, count: int):
    places = np.array([0, 3, 2**40, 7, 1, 2, *range(8, 32)])
    all_of_them = RowStream(key, Rows(places, 5)).words32().reshape(-1, 5)
    few = RowStream(key, Rows(places[:count], 5)).words32().reshape(-1, 5)
    np.testing.assert_array_equal(few, all_of_them[:count])


def test_numbers_are_spread_evenly_and_rows_have_nothing_in_common():
    stream = RowStream(12345, Rows(np.arange(400), 500))
    numbers = stream.words32().reshape(400, 500) / 2.0**32
    assert abs(numbers.mean() - 0.5) < 0.003
    assert abs(np.var(numbers) - 1 / 12) < 0.001
    counts = np.histogram(numbers, 50, (0, 1))[0]
    assert ((counts - 4000) ** 2 / 4000).sum() < 100  # chi squared of 49 degrees
    for axis in (0, 1):
        assert np.abs(np.corrcoef(np.moveaxis(numbers, axis, 0)[:60]) - np.eye(60)).max() < 0.25
    other = RowStream(12346, stream.rows).words32().reshape(400, 500) / 2.0**32
    assert abs(np.corrcoef(numbers.ravel(), other.ravel())[0, 1]) < 0.01
    kept = stream.reaches(0.3)
    assert abs(kept.mean() - 0.7) < 0.005
    assert not stream.reaches(1.0).any()
    assert stream.reaches(0.0).all()


@st.composite
def values_with_sequences(draw: st.DrawFn) -> tuple[LoDTensor, int, int]:
    """A value with up to three levels of sequences, also empty ones, and a range of them."""
    count = first = draw(st.integers(0, 5))
    lod: list[list[int]] = []
    for _ in range(draw(st.integers(1, 3))):
        sizes = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
        lod.append([sum(sizes[:at]) for at in range(count + 1)])
        count = lod[-1][-1]
    start = draw(st.integers(0, first))
    return LoDTensor(np.arange(2 * count).reshape(count, 2), lod), start, draw(st.integers(start, first))


@given(values_with_sequences())
def test_a_range_of_sequences_is_that_of_their_numbers(drawn: tuple[LoDTensor, int, int]) -> None:
    value, start, stop = drawn
    (selected, part), (expected, whole) = select_range(value, start, stop), select_rows(value, range(start, stop))
    assert selected.lod == expected.lod
    assert (selected.data == expected.data).all()
    assert part.total == whole.total
    for one, other in zip(part[:1] + part[2:], whole[:1] + whole[2:], strict=True):
        assert one.dtype == other.dtype
        assert one.tolist() == other.tolist()
