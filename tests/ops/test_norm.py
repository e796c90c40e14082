"""Normalisation over a batch and over the dims of each row."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ops.computing import compute
from tests.ops.differences import check_gradients, one_output, quick, seeds, values

STATISTICS = {"MeanOut": "Mean", "VarianceOut": "Variance", "SavedMean": "mean", "SavedVariance": "inverse"}
NAMES = ["Y", *STATISTICS]
LAYOUTS = st.sampled_from(["NCHW", "NHWC"])


@st.composite
def batches(draw):
    """X with two channels, its layout, and X with the channels last."""
    lead, spatial = draw(st.integers(2, 3)), draw(st.lists(st.integers(1, 2), max_size=3))
    layout = draw(LAYOUTS)
    x = values(draw(seeds), lead, *spatial, 2)
    return (np.moveaxis(x, -1, 1).copy() if layout == "NCHW" else x), layout, x.reshape(-1, 2)


def parameters(x):
    return {
        "X": x,
        "Scale": np.array([1.5, -0.5]),
        "Bias": np.array([0.25, 1.0]),
        "Mean": np.array([0.5, -1.0]),
        "Variance": np.array([2.0, 0.5]),
    }


@quick
@given(case=batches())
def test_batch_norm(case):
    x, layout, rows = case
    inputs, attrs = parameters(x), {"data_layout": layout, "momentum": 0.75}
    frame = compute("batch_norm", inputs, {"Y": "y", **STATISTICS}, attrs)
    mean, variance = rows.mean(axis=0), rows.var(axis=0)
    inverse = 1 / np.sqrt(variance + 1e-5)
    y = np.moveaxis(frame.find("y"), 1, -1) if layout == "NCHW" else frame.find("y")
    np.testing.assert_allclose(y.reshape(-1, 2), (rows - mean) * inverse * inputs["Scale"] + inputs["Bias"], rtol=1e-6)
    np.testing.assert_allclose(frame.find("Mean"), 0.75 * inputs["Mean"] + 0.25 * mean)
    np.testing.assert_allclose(frame.find("Variance"), 0.75 * inputs["Variance"] + 0.25 * variance)
    np.testing.assert_allclose(frame.find("mean"), mean)
    np.testing.assert_allclose(frame.find("inverse"), inverse, rtol=1e-6)
    check_gradients("batch_norm", inputs, NAMES, attrs, of=("X", "Scale", "Bias"), through=["Y"], tolerance=1e-4)


@pytest.mark.parametrize("switch", ["is_test", "use_global_stats"])
@quick
@given(case=batches())
def test_batch_norm_with_running_statistics(switch, case):
    x, layout, rows = case
    inputs, attrs = parameters(x), {"data_layout": layout, switch: True}
    frame = compute("batch_norm", inputs, {"Y": "y", **STATISTICS}, attrs)
    y = np.moveaxis(frame.find("y"), 1, -1) if layout == "NCHW" else frame.find("y")
    normal = (rows - inputs["Mean"]) / np.sqrt(inputs["Variance"] + 1e-5)
    np.testing.assert_allclose(y.reshape(-1, 2), normal * inputs["Scale"] + inputs["Bias"])
    assert frame.find("Mean").tolist() == inputs["Mean"].tolist()
    check_gradients("batch_norm", inputs, NAMES, attrs, of=("X", "Scale", "Bias"), through=["Y"], tolerance=1e-4)


def test_the_momentum_may_be_a_tensor():
    inputs = {**parameters(values(1, 4, 2)), "MomentumTensor": np.array([0.0], "float32")}
    frame = compute("batch_norm", inputs, {"Y": "y", **STATISTICS})
    np.testing.assert_allclose(frame.find("Mean"), inputs["X"].mean(axis=0))


def test_a_batch_of_one_element_is_left_as_it_is():
    x = values(1, 1, 2)
    frame = compute("batch_norm", parameters(x), {"Y": "y", **STATISTICS})
    assert frame.find("y").tolist() == x.tolist()
    assert frame.find("Mean").tolist() == parameters(x)["Mean"].tolist()


@st.composite
def rows_to_normalise(draw):
    shape = draw(st.lists(st.integers(1, 3), min_size=2, max_size=3))
    axis = draw(st.integers(1, len(shape) - 1))
    seed, width = draw(seeds), int(np.prod(shape[axis:]))
    optional = {"Scale": values(seed + 1, width), "Bias": values(seed + 2, width)}
    kept = draw(st.lists(st.sampled_from(sorted(optional)), unique=True))
    return {"X": values(seed, *shape), **{slot: optional[slot] for slot in kept}}, axis


@quick
@given(case=rows_to_normalise())
def test_layer_norm(case):
    inputs, axis = case
    x = inputs["X"]
    attrs = {"begin_norm_axis": axis, "epsilon": 0.001}
    frame = compute("layer_norm", inputs, {"Y": "y", "Mean": "mean", "Variance": "variance"}, attrs)
    rows = x.reshape(int(np.prod(x.shape[:axis])), -1)
    mean, variance = rows.mean(axis=1), rows.var(axis=1)
    normal = (rows - mean[:, None]) / np.sqrt(variance[:, None] + 0.001)
    expected = normal * inputs.get("Scale", 1) + inputs.get("Bias", 0)
    np.testing.assert_allclose(frame.find("y"), expected.reshape(x.shape), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(frame.find("mean"), mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(frame.find("variance"), variance, rtol=1e-9, atol=1e-12)
    names = ["Y", "Mean", "Variance"]
    check_gradients("layer_norm", inputs, names, attrs, of=list(inputs), through=["Y"], tolerance=1e-4)


def test_element_types_stay():
    x = values(1, 3, 2).astype("float32")
    inputs = {slot: value.astype("float32") for slot, value in parameters(x).items()}
    for op_type in ("batch_norm", "layer_norm"):
        given_inputs = inputs if op_type == "batch_norm" else {"X": x}
        assert one_output(op_type, given_inputs, slot="Y").dtype == "float32"
