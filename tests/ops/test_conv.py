"""Convolution against loops over every product."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstranspile.ir.attributes import Ints
from pstranspile.ir.diagnostics import DiagnosticError
from tests.ops.differences import check_gradients, one_output, quick, seeds, values


@st.composite
def convolutions(draw):
    groups, filters, channels = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    size = [draw(st.integers(1, 3)) for _ in "hw"]
    dims = [draw(st.integers(3, 5)) for _ in "hw"]
    seed = draw(seeds)
    x = values(seed, draw(st.sampled_from([1, 2, 8])), groups * channels, *dims)
    attrs = {
        "groups": groups,
        "strides": Ints(draw(st.integers(1, 2)) for _ in "hw"),
        "dilations": Ints(draw(st.integers(1, 2)) if k < 3 else 1 for k in size),
        "paddings": Ints(draw(st.integers(0, 2)) for _ in range(draw(st.sampled_from([2, 4])))),
        "padding_algorithm": draw(st.sampled_from(["EXPLICIT", "EXPLICIT", "SAME", "VALID"])),
        "data_format": draw(st.sampled_from(["NCHW", "NHWC"])),
    }
    return x, values(seed + 1, groups * filters, channels, *size), attrs


def padding(attrs, dims, size):
    """Before and after each spatial dim."""
    if attrs["padding_algorithm"] == "VALID":
        return [(0, 0), (0, 0)]
    if attrs["padding_algorithm"] == "SAME":
        missing = [max((-(-d // s) - 1) * s + k - d, 0) for d, s, k in zip(dims, attrs["strides"], size, strict=True)]
        return [(m // 2, m - m // 2) for m in missing]
    listed = attrs["paddings"]
    return [(p, p) for p in listed] if len(listed) == 2 else [tuple(listed[:2]), tuple(listed[2:])]


def convolved(x, kernel, attrs):
    """Every output element, product by product."""
    size, (height, width) = kernel.shape[2:], x.shape[2:]
    (top, bottom), (left, right) = padding(attrs, (height, width), size)
    strides = attrs["strides"]
    dilations = (1, 1) if attrs["padding_algorithm"] == "SAME" else attrs["dilations"]
    counts = [
        (dim + sum(around) - dilation * (k - 1) - 1) // stride + 1
        for dim, around, dilation, k, stride in zip(
            (height, width), ((top, bottom), (left, right)), dilations, size, strides, strict=True
        )
    ]
    found = np.zeros((len(x), len(kernel), *counts))
    for n, o, i, j in np.ndindex(found.shape):
        first = o // (len(kernel) // attrs["groups"]) * kernel.shape[1]
        for c, a, b in np.ndindex(kernel.shape[1:]):
            row = i * strides[0] + a * dilations[0] - top
            column = j * strides[1] + b * dilations[1] - left
            if 0 <= row < height and 0 <= column < width:
                found[n, o, i, j] += x[n, first + c, row, column] * kernel[o, c, a, b]
    return found


@quick
@given(case=convolutions())
def test_conv2d(case):
    x, kernel, attrs = case
    last = attrs["data_format"] == "NHWC"
    found = one_output("conv2d", {"Input": x.transpose(0, 2, 3, 1) if last else x, "Filter": kernel}, attrs, "Output")
    found = found.transpose(0, 3, 1, 2) if last else found
    np.testing.assert_allclose(found, convolved(x, kernel, attrs), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("op_type", ["conv2d", "depthwise_conv2d"])
@pytest.mark.parametrize("data_format", ["NCHW", "NHWC"])
def test_gradients(op_type, data_format):
    groups = 2 if op_type == "depthwise_conv2d" else 1
    x = values(1, 2, 2, 4, 3)
    attrs = {
        "groups": groups,
        "strides": Ints((2, 1)),
        "dilations": Ints((1, 2)),
        "paddings": Ints((1, 0, 2, 1)),
        "data_format": data_format,
    }
    x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if data_format == "NHWC" else x
    inputs = {"Input": x, "Filter": values(2, 4, 2 // groups, 3, 2)}
    check_gradients(op_type, inputs, ["Output"], attrs, of=("Input", "Filter"), through=["Output"])


def test_gradients_of_many_small_images():
    """From eight images on, small ones are computed with the images as the last dim."""
    attrs = {"strides": Ints((1, 1)), "dilations": Ints((1, 2)), "paddings": Ints((1, 0, 2, 1))}
    inputs = {"Input": values(1, 8, 2, 4, 3), "Filter": values(2, 3, 2, 3, 2)}
    check_gradients("conv2d", inputs, ["Output"], attrs, of=("Input", "Filter"), through=["Output"])


def test_channels_must_fit():
    with pytest.raises(DiagnosticError, match="Input has 3 channels, Filter takes 2"):
        one_output("conv2d", {"Input": np.ones((1, 3, 2, 2)), "Filter": np.ones((1, 2, 1, 1))}, slot="Output")


def test_element_types_stay():
    inputs = {"Input": np.ones((1, 1, 3, 3), "float32"), "Filter": np.ones((1, 1, 2, 2), "float32")}
    found = one_output("conv2d", inputs, slot="Output")
    assert (found.dtype, found.tolist()) == ("float32", [[[[4, 4], [4, 4]]]])
