"""Cases: gradient ops that have gradients themselves."""

from __future__ import annotations

import numpy as np

from tests.frontends.autodiff.cases import Draw, case, dims, off_zero, smooth
from tests.frontends.autodiff.numeric import Case

OUT = {"X@GRAD": 1}
BOTH = {"X@GRAD": 1, "Y@GRAD": 1}


@case("relu_grad", "leaky_relu_grad")
def _rectified(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw)
    inputs = {"Out": off_zero(random, shape), "Out@GRAD": smooth(random, shape)}
    return Case(op_type, inputs, wrt=("Out@GRAD",), outputs=OUT)


@case("elu_grad", "square_grad")
def _of_x(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw)
    inputs = {"X": off_zero(random, shape), "Out@GRAD": smooth(random, shape)}
    return Case(op_type, inputs, wrt=("X", "Out@GRAD"), outputs=OUT)


@case("sqrt_grad")
def _root(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw)
    inputs = {"Out": smooth(random, shape, 0.5, 2.0), "Out@GRAD": smooth(random, shape)}
    return Case(op_type, inputs, wrt=("Out", "Out@GRAD"), outputs=OUT)


@case("reduce_sum_grad", "reduce_mean_grad")
def _reduced(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw, 2)
    inputs = {"X": smooth(random, shape), "Out@GRAD": smooth(random, shape[1:])}
    return Case(op_type, inputs, {"dim": [0]}, wrt=("Out@GRAD",), outputs=OUT)


def _pair(draw: Draw, random: np.random.Generator) -> tuple[dict[str, np.ndarray], dict[str, object]]:
    shape = dims(draw, 2)
    y = shape[1:]
    values = {"X": off_zero(random, shape), "Y": smooth(random, y, 0.5, 2.0), "Out@GRAD": smooth(random, shape)}
    return values, {"axis": 1}


@case("elementwise_add_grad", "elementwise_sub_grad")
def _sum(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    return Case(op_type, *_pair(draw, random), wrt=("Out@GRAD",), outputs=BOTH)


@case("elementwise_mul_grad")
def _product(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    return Case(op_type, *_pair(draw, random), wrt=("X", "Y", "Out@GRAD"), outputs=BOTH)


@case("elementwise_div_grad")
def _quotient(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    values, attrs = _pair(draw, random)
    values["Out"] = smooth(random, values["X"].shape)
    return Case(op_type, values, attrs, wrt=("Y", "Out", "Out@GRAD"), outputs=BOTH)


@case("mul_grad")
def _matrices(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    rows, inner, columns = dims(draw, 3)
    inputs = {
        "X": smooth(random, (rows, inner)),
        "Y": smooth(random, (inner, columns)),
        "Out@GRAD": smooth(random, (rows, columns)),
    }
    return Case(op_type, inputs, wrt=("X", "Y", "Out@GRAD"), outputs=BOTH)


@case("conv2d_grad", "conv3d_grad")
def _convolution(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    space = 2 if op_type == "conv2d_grad" else 3
    batch, channels, filters = dims(draw, 3, upper=2)
    inputs = {
        "Input": smooth(random, (batch, channels, *(4,) * space)),
        "Filter": smooth(random, (filters, channels, *(3,) * space)),
        "Output@GRAD": smooth(random, (batch, filters, *(2,) * space)),
    }
    attrs = {"strides": [2] * space, "paddings": [1] * space, "dilations": [1] * space}
    outputs = {"Input@GRAD": 1, "Filter@GRAD": 1}
    return Case(op_type, inputs, attrs, wrt=("Input", "Filter", "Output@GRAD"), outputs=outputs)


@case("reshape2_grad")
def _reshaped(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw, 2)
    inputs = {"XShape": np.zeros((0, *shape)), "Out@GRAD": smooth(random, (int(np.prod(shape)),))}
    return Case(op_type, inputs, {"shape": [-1]}, wrt=("Out@GRAD",), outputs=OUT)


@case("expand_grad")
def _expanded(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw, 2, 2)
    inputs = {"X": smooth(random, shape), "Out@GRAD": smooth(random, (2 * shape[0], shape[1]))}
    return Case(op_type, inputs, {"expand_times": [2, 1]}, wrt=("Out@GRAD",), outputs=OUT)


@case("slice_grad")
def _sliced(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    rows, columns = dims(draw, 2, 2)
    inputs = {"Input": smooth(random, (rows + 1, columns)), "Out@GRAD": smooth(random, (rows, columns))}
    attrs = {"axes": [0], "starts": [0], "ends": [rows]}
    return Case(op_type, inputs, attrs, wrt=("Out@GRAD",), outputs={"Input@GRAD": 1})
