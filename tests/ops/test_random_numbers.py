"""Streams of random numbers: parts equal the whole bit for bit, and the numbers have the distribution they should."""

import itertools
import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstranspile.runtime.kernels import random as rn

DRAWS = {
    "words": lambda key, offset, count: rn.words(key, offset, count),
    "uniform": lambda key, offset, count: rn.uniform(key, offset, count, -0.3, 0.7),
    "uniform_f64": lambda key, offset, count: rn.uniform(key, offset, count, -0.3, 0.7, "float64"),
    "normal": lambda key, offset, count: rn.normal(key, offset, count, 1.0, 3.0),
    "normal_f64": lambda key, offset, count: rn.normal(key, offset, count, 1.0, 3.0, "float64"),
    "truncated_normal": lambda key, offset, count: rn.truncated_normal(key, offset, count, 1.0, 3.0),
    "integers": lambda key, offset, count: rn.integers(key, offset, count, -5, 9),
    "fluid_states": lambda key, offset, count: rn.fluid_states(key, offset, count),
    "fluid_uniform": lambda key, offset, count: rn.fluid_uniform(key, offset, count),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
@given(
    key=st.integers(0, 2**128 - 1),
    start=st.integers(0, 2**40),
    cuts=st.lists(st.integers(0, 300), max_size=6),
    count=st.integers(0, 300),
)
def test_any_split_equals_the_whole(draw, key, start, cuts, count):
    ends = sorted({min(cut, count) for cut in cuts} | {0, count})
    parts = [draw(key, start + a, b - a) for a, b in itertools.pairwise(ends)]
    whole = draw(key, start, count)
    assert b"".join(part.tobytes() for part in parts) == whole.tobytes()
    assert all(part.dtype == whole.dtype for part in parts)


@pytest.mark.parametrize("name", ["uniform", "normal", "truncated_normal", "integers"])
def test_splits_at_and_around_chunks(name):
    whole = DRAWS[name](7, 0, 70_000)
    for cut in (1, 5, 32_767, 32_768, 32_769, 65_537):
        assert np.array_equal(DRAWS[name](7, cut, 70_000 - cut), whole[cut:])


def test_numbers_are_these_for_ever():
    assert rn.stream_key(1, 2, "w") == 0xBEE5D301B6217FE74D53C16F875017EA
    assert rn.words(1, 0, 2).tolist() == [5599841837815857887, 15655913098571550255]
    assert rn.uniform(1, 0, 2, dtype="float64").tolist() == [0.3035680343067587, 0.8487087496857769]
    assert rn.normal(1, 0, 2, dtype="float64").tolist() == [-0.5141658112314123, 1.0309111217613403]


def test_keys_tell_parts_apart():
    keys = [
        rn.stream_key(*parts) for parts in ((1, 0, "w"), (0, 1, "w"), (1, 0, "v"), (10, "w"), ("1", 0, "w"), ("w",))
    ]
    assert len(set(keys)) == len(keys)
    assert all(0 <= key < 2**128 for key in keys)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_uniform_distribution(dtype):
    drawn = rn.uniform(3, 0, 200_000, 2.0, 3.0, dtype)
    assert drawn.dtype == dtype
    assert drawn.min() >= 2.0
    assert drawn.max() < 3.0
    assert abs(drawn.astype(float).mean() - 2.5) < 4 * math.sqrt(1 / 12 / drawn.size)
    counts = np.histogram(drawn, 50, (2.0, 3.0))[0]
    assert ((counts - 4000.0) ** 2 / 4000.0).sum() < 49 + 5 * math.sqrt(2 * 49)


def test_uniform_never_gives_the_upper_bound():
    assert rn.uniform(1, 0, 10_000, 1.0, 1.0 + 2**-22).max() < np.float32(1.0 + 2**-22)
    assert rn.uniform(1, 0, 4, 5.0, 5.0).tolist() == [5.0] * 4


def test_normal_distribution():
    drawn = rn.normal(3, 0, 200_000, 0.0, 1.0, "float64")
    error = 1 / math.sqrt(drawn.size)
    assert abs(drawn.mean()) < 4 * error
    assert abs(drawn.std() - 1) < 4 * error
    assert abs((drawn**3).mean()) < 4 * math.sqrt(15) * error
    assert abs((drawn**4).mean() - 3) < 4 * math.sqrt(96) * error


def test_truncated_normal_distribution():
    drawn = rn.truncated_normal(3, 0, 200_000, 5.0, 2.0, "float64")
    assert drawn.min() >= 1.0
    assert drawn.max() <= 9.0
    assert abs(drawn.mean() - 5.0) < 4 * 2 * 0.88 / math.sqrt(drawn.size)
    assert abs(drawn.std() - 2 * 0.879_626) < 0.02


@given(st.floats(2.0**-53, 1 - 2.0**-53))
def test_quantiles_are_those_of_the_normal_distribution(p):
    found = float(rn.normal_quantile(np.array([p]))[0])
    assert found == pytest.approx(NormalDist().inv_cdf(p), rel=1e-12, abs=1e-12)


@given(st.floats(1e-300, 1e300))
def test_logarithm(x):
    assert float(rn.logarithm(np.array([x]))[0]) == pytest.approx(math.log(x), rel=1e-14, abs=1e-15)


def test_integers_cover_their_range_evenly():
    drawn = rn.integers(3, 0, 60_000, -2, 4)
    counts = np.bincount(drawn + 2)
    assert len(counts) == 6
    assert abs(counts - 10_000).max() < 500


@given(st.integers(1, 2**31 - 2), st.integers(0, 50))
def test_fluid_generator_is_the_minimal_standard_one(seed, count):
    state, expected = seed, []
    for _ in range(count):
        state = state * 48271 % (2**31 - 1)
        expected.append(state)
    assert rn.fluid_states(seed, 0, count).tolist() == expected


def test_the_ten_thousandth_state_is_the_one_the_c_plus_plus_standard_names():
    assert rn.fluid_states(1, 9_999, 1).tolist() == [399_268_537]
