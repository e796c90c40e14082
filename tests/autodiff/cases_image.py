"""What is drawn for the ops over images and volumes, so that their gradients can be checked."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.autodiff.cases import Draw, case, smooth
from tests.autodiff.numeric import Case


@case("conv2d_transpose", "depthwise_conv2d_transpose", "conv3d_transpose", "conv3d")
def _conv(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    spatial = 3 if "3d" in op_type else 2
    groups, per_group = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    if op_type.startswith("depthwise"):
        per_group = 1
    size, stride, dilation = ([draw(st.integers(1, 2)) for _ in range(spatial)] for _ in range(3))
    padding = [draw(st.integers(0, 1)) for _ in range(2 * spatial)]
    image = [draw(st.integers(2, 3)) for _ in range(spatial)]
    made = draw(st.integers(1, 2))
    channels = groups * per_group
    filters = (groups * made, per_group, *size) if op_type == "conv3d" else (channels, made, *size)
    inputs = {"Input": smooth(random, (2, channels, *image)), "Filter": smooth(random, filters)}
    attrs: dict[str, object] = {"strides": stride, "paddings": padding, "dilations": dilation, "groups": groups}
    if op_type == "conv3d":
        attrs["dilations"] = [1] * spatial
    return Case(op_type, inputs, attrs, wrt=("Input", "Filter"), outputs={"Output": 1})


@case("unfold", "im2sequence")
def _windows(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    size, stride = ([draw(st.integers(1, 3)) for _ in "hw"] for _ in range(2))
    padding = [draw(st.integers(0, 1)) for _ in range(4)]
    x = smooth(random, (2, 2, draw(st.integers(3, 5)), draw(st.integers(3, 5))))
    if op_type == "im2sequence":
        return Case(op_type, {"X": x}, {"kernels": size, "strides": stride, "paddings": padding})
    attrs = {"kernel_sizes": size, "strides": stride, "paddings": padding, "dilations": [1, 1]}
    return Case(op_type, {"X": x}, attrs, outputs={"Y": 1})
