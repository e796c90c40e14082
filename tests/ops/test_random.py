"""Random initialisers and dropout."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstranspile.ir.attributes import Ints, Longs
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.runtime.values import LoDTensor
from tests.ops.computing import compute

ATTRS = {
    "uniform_random": {"min": -0.5, "max": 1.5},
    "gaussian_random": {"mean": 2.0, "std": 0.5},
    "truncated_gaussian_random": {"mean": 2.0, "std": 0.5},
}


def drawn(op_type, dims, name="w", seed=0, slices=None, program_seed=1, **more):
    shape = Ints(dims) if op_type.startswith("truncated") else Longs(dims)
    attrs = ATTRS[op_type] | {"shape": shape, "seed": seed} | more
    return compute(op_type, {}, {"Out": name}, attrs, slices=slices, seed=program_seed).find(name)


@pytest.mark.parametrize("op_type", ATTRS)
@given(height=st.integers(1, 12), width=st.integers(1, 5), cut=st.integers(0, 12), dtype=st.sampled_from([5, 6]))
def test_slices_are_parts_of_the_whole(op_type, height, width, cut, dtype):
    cut = min(cut, height)
    whole = drawn(op_type, (height, width), dtype=dtype, seed=3)
    slices = {"w.block0": ("w", 0), "w.block1": ("w", cut * width)}
    parts = [
        drawn(op_type, (rows, width), name, slices=slices, dtype=dtype, seed=3)
        for name, rows in (("w.block0", cut), ("w.block1", height - cut))
    ]
    assert np.concatenate(parts).tobytes() == whole.tobytes()
    assert whole.dtype == ("float32", "float64")[dtype - 5]


@pytest.mark.parametrize("op_type", ATTRS)
def test_numbers_depend_on_seeds_and_names(op_type):
    draws = [
        drawn(op_type, (3, 4), seed=3).tobytes(),
        drawn(op_type, (3, 4), seed=4).tobytes(),
        drawn(op_type, (3, 4), seed=3, program_seed=2).tobytes(),
        drawn(op_type, (3, 4), "v", seed=3).tobytes(),
    ]
    assert len(set(draws)) == 4
    assert drawn(op_type, (3, 4), seed=3).tobytes() == draws[0]


def test_distributions():
    uniform = drawn("uniform_random", (200, 200))
    assert (uniform.min() >= -0.5, uniform.max() < 1.5) == (True, True)
    assert abs(uniform.mean() - 0.5) < 0.02
    normal = drawn("gaussian_random", (200, 200))
    assert abs(normal.mean() - 2) < 0.02
    assert abs(normal.std() - 0.5) < 0.01
    truncated = drawn("truncated_gaussian_random", (200, 200))
    assert (truncated.min() >= 1.0, truncated.max() <= 3.0) == (True, True)


def test_diagonal_values():
    whole = drawn("uniform_random", (4, 4), diag_num=4, diag_step=4, diag_val=9.0)
    assert np.diag(whole).tolist() == [9.0] * 4
    assert (whole == 9.0).sum() == 4
    part = drawn("uniform_random", (2, 4), "b", diag_num=4, diag_step=4, diag_val=9.0, slices={"b": ("w", 8)})
    np.testing.assert_array_equal(part, whole[2:])
    beyond = drawn("uniform_random", (2, 4), "b", diag_num=3, diag_step=2, diag_val=9.0, slices={"b": ("w", 8)})
    assert not (beyond == 9.0).any()


def test_a_diagonal_takes_no_more_memory_than_the_tensor():
    tracemalloc.start()
    drawn("uniform_random", (40, 4), diag_num=(1 << 31) - 1, diag_val=9.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
    with pytest.raises(DiagnosticError, match="diag_step is -3"):
        drawn("uniform_random", (4, 4), diag_num=2, diag_step=-3)


def test_one_dim_of_the_input():
    attrs = ATTRS["uniform_random"] | {"shape": Ints((-1, 3))}
    out = compute("uniform_random_batch_size_like", {"Input": np.zeros((7, 2))}, {"Out": "out"}, attrs).find("out")
    assert out.shape == (7, 3)
    ragged = LoDTensor(np.zeros((7, 2)), [[0, 3, 7]])
    assert compute("uniform_random_batch_size_like", {"Input": ragged}, {"Out": "out"}, attrs).find("out").shape == (
        2,
        3,
    )


def test_impossible_bounds_and_dims_are_refused():
    with pytest.raises(DiagnosticError, match="min is 2, it must be at most max, which is 1"):
        drawn("uniform_random", (2,), min=2.0)
    with pytest.raises(DiagnosticError, match="the dims to fill are"):
        drawn("gaussian_random", (-1, 2))


def dropped(x, step=0, **attrs):
    frame = compute("dropout", {"X": x}, {"Out": "out", "Mask": "mask"}, attrs, step=step)
    return frame.find("out"), frame.find("mask")


@pytest.mark.parametrize("way", ["upscale_in_train", "downgrade_in_infer"])
@given(rate=st.sampled_from([0.0, 0.25, 0.5, 1.0]), fixed=st.booleans())
def test_dropout_and_its_gradient(way, rate, fixed):
    x = np.random.default_rng(1).standard_normal((40, 5)).astype("float32")
    attrs = {"dropout_prob": rate, "dropout_implementation": way, "fix_seed": fixed, "seed": 3}
    out, mask = dropped(x, **attrs)
    factor = (1 / (1 - rate) if rate < 1 else 0.0) if way == "upscale_in_train" else 1.0
    np.testing.assert_allclose(out, x * mask * factor, rtol=1e-6)
    assert mask.dtype == np.uint8
    assert out.dtype == np.float32
    assert abs(mask.mean() - (1 - rate)) < 0.15
    gradient = compute("dropout_grad", {"Mask": mask, "Out@GRAD": x}, {"X@GRAD": "g"}, attrs).find("g")
    np.testing.assert_allclose(gradient, x * mask * factor, rtol=1e-6)
    test = compute("dropout", {"X": x}, {"Out": "out", "Mask": "mask"}, attrs | {"is_test": True})
    np.testing.assert_allclose(test.find("out"), x * (1.0 if way == "upscale_in_train" else 1 - rate), rtol=1e-6)
    assert test.find("mask") is None


def test_masks_change_from_step_to_step_unless_the_seed_is_fixed():
    x = np.ones((20, 5), "float32")
    assert len({dropped(x, step)[1].tobytes() for step in range(4)}) == 4
    assert len({dropped(x, step, fix_seed=True, seed=5)[1].tobytes() for step in range(4)}) == 1


def test_a_fixed_seed_gives_the_mask_of_fluid():
    mask = dropped(np.ones((6, 5), "float32"), fix_seed=True, seed=1, dropout_prob=0.5)[1]
    state, expected = 1, []
    for _ in range(30):
        state = state * 48271 % (2**31 - 1)
        expected.append(int((state - 1) / 2147483646 >= 0.5))
    assert mask.reshape(-1).tolist() == expected


def test_dropout_refuses_rates_that_are_no_probabilities():
    with pytest.raises(DiagnosticError, match=r"dropout_prob is 1.5, it must be from 0 to 1"):
        dropped(np.ones(3, "float32"), dropout_prob=1.5)
    with pytest.raises(DiagnosticError, match="dropout_implementation"):
        dropped(np.ones(3, "float32"), dropout_implementation="other")


def test_integers_in_their_range():
    attrs = {"shape": Longs((50, 4)), "low": -2, "high": 3, "seed": 4}
    out = compute("randint", {}, {"Out": "out"}, attrs).find("out")
    assert (out.shape, out.dtype) == ((50, 4), np.int64)
    assert sorted(set(out.reshape(-1).tolist())) == [-2, -1, 0, 1, 2]
    with pytest.raises(DiagnosticError, match="not below high"):
        compute("randint", {}, {"Out": "out"}, attrs | {"low": 3})


def test_orders():
    orders = [compute("randperm", {}, {"Out": "out"}, {"n": 9, "seed": seed}).find("out") for seed in (1, 2)]
    assert all(sorted(order.tolist()) == list(range(9)) for order in orders)
    assert orders[0].tolist() != orders[1].tolist()


def test_classes_drawn_with_their_probabilities():
    x = np.tile(np.array([[0.25, 0.75, 0.0]], "float32"), (4000, 1))
    x[0] = 0
    out = compute("sampling_id", {"X": x}, {"Out": "out"}, {"seed": 3}).find("out")
    assert (out.shape, out.dtype, out[0]) == ((4000,), np.int64, 2)
    assert (out[1:] < 2).all()
    assert abs((out == 0).mean() - 0.25) < 0.03


def test_shuffled_rows_and_their_gradient():
    x = np.arange(24.0).reshape(2, 3, 4)
    outputs = {"Out": "out", "ShuffleIdx": "places", "SeedOut": "Seed"}
    frame = compute("shuffle_batch", {"X": x, "Seed": np.array([5])}, outputs)
    out, places = frame.find("out"), frame.find("places")
    np.testing.assert_array_equal(out.reshape(6, 4)[places], x.reshape(6, 4))
    assert places.tolist() != list(range(6))
    assert frame.find("Seed").tolist() != [5]
    back = compute("shuffle_batch_grad", {"ShuffleIdx": places, "Out@GRAD": out}, {"X@GRAD": "g"}).find("g")
    np.testing.assert_array_equal(back, x)
