"""Ops over images and volumes: what recordings of Fluid can't say, which are refusals and where Fluid is at fault."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pstranspile.ir.attributes import Ints
from pstranspile.ir.diagnostics import DiagnosticError
from tests.ops.computing import compute
from tests.ops.differences import one_output, values

IMAGE = values(1, 1, 4, 3, 3)
FILTER = values(2, 4, 1, 2, 2)
PLAIN = {"strides": Ints([2, 2]), "paddings": Ints([0, 0]), "dilations": Ints([1, 1])}
PLACES = np.array([[[[0]], [[9]], [[1]], [[2]]]], "int32")

REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any], str, str]] = {
    "channels": ("conv2d_transpose", {"Input": IMAGE[:, :3], "Filter": FILTER}, PLAIN, "Output", "3 channels, Filter"),
    "larger": (
        "conv2d_transpose",
        {"Input": IMAGE, "Filter": FILTER},
        {**PLAIN, "output_size": Ints([8, 6])},
        "Output",
        "output_size has 8, it must be from 6 to 7",
    ),
    "no window": (
        "conv3d",
        {"Input": IMAGE[None], "Filter": values(3, 2, 1, 5, 1, 1)},
        {"paddings": Ints([0, 0, 0])},
        "Output",
        "which have no window of",
    ),
    "no column": (
        "unfold",
        {"X": IMAGE},
        {"kernel_sizes": Ints([4, 1]), "strides": Ints([1, 1]), "paddings": Ints([0] * 4), "dilations": Ints([1, 1])},
        "Y",
        r"images of \[3, 3\], which have no window of \[4, 1\]",
    ),
    "groups": ("group_norm", {"X": IMAGE}, {"groups": 3}, "Y", "4 channels can't be cut into 3 groups"),
    "singular": ("spectral_norm", {"Weight": IMAGE[0, 0], "U": np.ones(2), "V": np.ones(3)}, {}, "Out", "U has 2"),
    "squares": ("pixel_shuffle", {"X": IMAGE}, {"upscale_factor": 3}, "Out", "4 channels can't be cut into 9"),
    "maxout": ("maxout", {"X": IMAGE}, {"groups": 3}, "Out", "4 channels can't be cut into 3"),
    "slopes": ("prelu", {"X": IMAGE, "Alpha": np.ones(3)}, {"mode": "channel"}, "Out", "Alpha has 3 elements"),
    "mode": ("prelu", {"X": IMAGE, "Alpha": np.ones(1)}, {"mode": "each"}, "Out", "mode is 'each'"),
    "reflected": (
        "pad2d",
        {"X": IMAGE},
        {"paddings": Ints([3, 0, 0, 0]), "mode": "reflect"},
        "Out",
        "reflects more elements",
    ),
    "larger than X": ("pad_constant_like", {"X": IMAGE[..., :2], "Y": IMAGE}, {}, "Out", "don't fit into those of X"),
    "outside": (
        "crop",
        {"X": IMAGE[0, 0]},
        {"offsets": Ints([2, 0]), "shape": Ints([2, 3])},
        "Out",
        r"X has the dims \[3, 3\], not \[2, 3\] from \[2, 0\] on",
    ),
    "no size": ("bilinear_interp", {"X": IMAGE}, {"out_h": 0, "out_w": 2}, "Out", r"can't be scaled to \[0, 2\]"),
    "other images": (
        "grid_sampler",
        {"X": IMAGE, "Grid": values(4, 2, 3, 3, 2)},
        {},
        "Output",
        "points for each image",
    ),
    "place": (
        "unpool",
        {"X": IMAGE[..., :1, :1], "Indices": PLACES},
        {"ksize": Ints([3, 3]), "unpooling_type": "max"},
        "Out",
        "the index 9 is not in 0 to 8",
    ),
    "pyramid": (
        "spp",
        {"X": values(5, 1, 1, 4, 5)},
        {"pyramid_height": 3, "pooling_type": "max"},
        "Out",
        "too small for 4 windows",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str):
    op_type, inputs, attrs, slot, message = REFUSED[what]
    with pytest.raises(DiagnosticError, match=message):
        compute(op_type, inputs, {slot: "out"}, attrs)


@pytest.mark.parametrize("dims", [(5,), (2, 3), (2, 2, 3)])
def test_group_norm_takes_all_elements(dims: tuple[int, ...]):
    """Fluid reads two spatial dims, however many there are."""
    x = values(6, 2, 4, *dims)
    y = one_output("group_norm", {"X": x}, {"groups": 2}, "Y").reshape(2, 2, -1)
    np.testing.assert_allclose(y.mean(axis=2), 0, atol=1e-12)
    np.testing.assert_allclose(y.std(axis=2), 1, rtol=1e-4)


def test_channels_shuffled_in_f64_and_back():
    """Fluid moves half of an f64 image, and shuffles the gradient once more."""
    x = values(7, 2, 6, 2, 2)
    shuffled = one_output("shuffle_channel", {"X": x}, {"group": 3})
    np.testing.assert_array_equal(shuffled, x[:, [0, 2, 4, 1, 3, 5]])
    back = compute("shuffle_channel_grad", {"Out@GRAD": shuffled}, {"X@GRAD": "back"}, {"group": 3}).find("back")
    np.testing.assert_array_equal(back, x)


def test_slots_without_shows_let_no_gradient_through():
    x = np.array([[0.0, 2.0, 1.0, 3.0]])
    inputs = {"X": x, "Means": np.zeros(4), "Scales": np.ones(4), "Y@GRAD": np.ones((1, 4))}
    found = compute("data_norm_grad", inputs, {"X@GRAD": "gradient"}, {"slot_dim": 2}).find("gradient")
    np.testing.assert_array_equal(found, [[0, 0, 1, 1]])


def test_a_single_row_of_a_grid():
    theta = np.array([[[1.0, 0.0, 0.5], [0.0, 1.0, 0.25]]])
    found = one_output("affine_grid", {"Theta": theta}, {"output_shape": Ints([1, 1, 1, 2])}, "Output")
    np.testing.assert_array_equal(found, [[[[-0.5, -0.75], [1.5, -0.75]]]])


def test_nan_is_the_maximum_wherever_it_is():
    x = np.array([[[[1.0, np.nan], [2.0, 3.0]]]])
    frame = compute("max_pool2d_with_index", {"X": x}, {"Out": "out", "Mask": "mask"}, {"ksize": Ints([2, 2])})
    assert np.isnan(frame.find("out")).all()
    assert frame.find("mask").tolist() == [[[[1]]]]


def test_adaptive_maxima_of_volumes():
    """Fluid takes plain windows here."""
    x = np.arange(5.0).reshape(1, 1, 5, 1, 1)
    attrs = {"pooling_type": "max", "ksize": Ints([2, 1, 1]), "adaptive": True}
    assert one_output("pool3d", {"X": x}, attrs).reshape(-1).tolist() == [2, 4]
