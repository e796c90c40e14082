"""Pooling against loops over every window."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstranspile.ir.attributes import Ints
from pstranspile.ir.diagnostics import DiagnosticError
from tests.ops.differences import check_gradients, one_output, quick, seeds, values

FORMATS = st.sampled_from(["NCHW", "NHWC"])


@st.composite
def poolings(draw):
    dims = [draw(st.integers(2, 6)) for _ in "hw"]
    strides = Ints(draw(st.integers(1, 3)) for _ in "hw")
    attrs = {
        "pooling_type": draw(st.sampled_from(["max", "avg"])),
        "ksize": Ints(draw(st.integers(1, dim + stride - 1)) for dim, stride in zip(dims, strides, strict=True)),
        "strides": strides,
        "exclusive": draw(st.booleans()),
        "data_format": draw(FORMATS),
    }
    kind = draw(st.sampled_from(["plain", "padded", "ceil", "adaptive", "global"]))
    if kind == "padded":
        attrs["paddings"] = Ints(draw(st.integers(0, (k - 1) // 2)) for k in attrs["ksize"])
    elif kind == "ceil":  # longer strides would leave the last window nothing of the image
        attrs["strides"] = Ints(min(stride, k) for stride, k in zip(attrs["strides"], attrs["ksize"], strict=True))
    elif kind == "adaptive":
        attrs["ksize"] = Ints(min(k, dim) for k, dim in zip(attrs["ksize"], dims, strict=True))
    if kind in ("ceil", "adaptive", "global"):
        attrs[{"ceil": "ceil_mode", "adaptive": "adaptive", "global": "global_pooling"}[kind]] = True
    return values(draw(seeds), draw(st.integers(1, 2)), 2, *dims), attrs


def bounds(dim, at, attrs):
    """Start and end of every window along one dim, inside the image, and the size they count as."""
    k, stride = attrs["ksize"][at], attrs["strides"][at]
    if attrs.get("adaptive"):
        return [(i * dim // k, -(-(i + 1) * dim // k), None) for i in range(k)]
    if attrs.get("global_pooling"):
        return [(0, dim, dim)]
    pad = attrs.get("paddings", (0, 0))[at]
    room = dim + 2 * pad - k
    # Windows past the end of images that lack less than a stride: Fluid divides as C does
    count = (math.ceil if attrs.get("ceil_mode") else math.trunc)(room / stride) + 1
    starts = [i * stride - pad for i in range(count)]
    return [(max(start, 0), min(start + k, dim), k) for start in starts]


def pooled(x, attrs):
    """The result, window by window."""
    rows, columns = bounds(x.shape[2], 0, attrs), bounds(x.shape[3], 1, attrs)
    found = np.zeros((*x.shape[:2], len(rows), len(columns)))
    for i, (top, bottom, height) in enumerate(rows):
        for j, (left, right, width) in enumerate(columns):
            part = x[:, :, top:bottom, left:right]
            if attrs["pooling_type"] == "max":
                found[:, :, i, j] = part.max(axis=(2, 3))
            elif attrs["exclusive"] or height is None or width is None:
                found[:, :, i, j] = part.mean(axis=(2, 3))
            else:
                found[:, :, i, j] = part.sum(axis=(2, 3)) / (height * width)
    return found


@quick
@given(case=poolings())
def test_pool2d(case):
    x, attrs = case
    last = attrs["data_format"] == "NHWC"
    image = np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if last else x
    found = one_output("pool2d", {"X": image}, attrs)
    expected = pooled(x, attrs)
    np.testing.assert_allclose(found.transpose(0, 3, 1, 2) if last else found, expected, rtol=1e-9, atol=1e-12)
    check_gradients("pool2d", {"X": image[:1]}, ["Out"], attrs)


def test_of_equal_elements_the_first_gets_the_gradient():
    x = np.zeros((1, 1, 2, 2))
    inputs = {"X": x, "Out": np.zeros((1, 1, 1, 1)), "Out@GRAD": np.ones((1, 1, 1, 1))}
    found = one_output("pool2d_grad", inputs, {"pooling_type": "max", "ksize": Ints((2, 2))}, "X@GRAD")
    assert found.tolist() == [[[[1, 0], [0, 0]]]]


def test_other_kinds_are_refused():
    with pytest.raises(DiagnosticError, match="pooling_type is 'median', it must be one of 'max', 'avg'"):
        one_output("pool2d", {"X": np.ones((1, 1, 2, 2))}, {"pooling_type": "median", "ksize": Ints((1, 1))})
