"""What is drawn for the products and norms that are less often used (registered with the other cases)."""

import numpy as np
from hypothesis import strategies as st

from tests.frontends.autodiff.cases import Draw, case, dims, distinct, off_zero, smooth, unary
from tests.frontends.autodiff.numeric import Case

POWERS = (1.0, 1.5, 2.0, 3.0)

unary("l1_norm", off_zero)
unary("mish", smooth, threshold=20.0)


@case("norm")
def _norm(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw)
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    return Case(op_type, {"X": off_zero(random, shape)}, {"axis": axis, "epsilon": 1e-10}, others=("Norm",))


@case("p_norm")
def _p_norm(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw)
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    attrs = {"porder": draw(st.sampled_from(POWERS)), "axis": axis, "keepdim": draw(st.booleans())}
    return Case(op_type, {"X": off_zero(random, shape)}, attrs)


@case("frobenius_norm")
def _frobenius(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw)
    chosen = draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, max_size=len(shape), unique=True))
    attrs = {"dim": sorted(chosen), "keep_dim": draw(st.booleans()), "reduce_all": draw(st.booleans())}
    return Case(op_type, {"X": off_zero(random, shape)}, attrs)


@case("dist")
def _dist(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    x = dims(draw)
    y = tuple(draw(st.sampled_from([dim, 1])) for dim in x)[draw(st.integers(0, len(x) - 1)) :]
    p = draw(st.sampled_from([*POWERS, 0.0, float("inf"), float("-inf")]))
    inputs = {"X": distinct(random, x), "Y": distinct(random, y) / 40 + 0.01}
    return Case(op_type, inputs, {"p": p}, wrt=("X", "Y"))


@case("dot")
def _dot(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw, 1, 2)
    return Case(op_type, {"X": smooth(random, shape), "Y": smooth(random, shape)}, wrt=("X", "Y"))


@case("bmm")
def _bmm(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    count, rows, inner, columns = dims(draw, 4, 4)
    inputs = {"X": smooth(random, (count, rows, inner)), "Y": smooth(random, (count, inner, columns))}
    return Case(op_type, inputs, wrt=("X", "Y"))


@case("addmm")
def _addmm(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    rows, inner, columns = dims(draw, 3, 3)
    shape = draw(st.sampled_from([(rows, columns), (1, columns), (rows, 1)]))
    inputs = {"Input": smooth(random, shape), "X": smooth(random, (rows, inner)), "Y": smooth(random, (inner, columns))}
    return Case(op_type, inputs, {"Alpha": 0.5, "Beta": -2.0}, wrt=("Input", "X", "Y"))


@case("kron")
def _kron(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    return Case(op_type, {"X": smooth(random, dims(draw)), "Y": smooth(random, dims(draw))}, wrt=("X", "Y"))


@case("cross")
def _cross(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = list(dims(draw))
    dim = draw(st.integers(0, len(shape) - 1))
    shape[dim] = 3
    attrs = {"dim": draw(st.sampled_from([dim, dim - len(shape), 9]))}
    return Case(op_type, {"X": smooth(random, tuple(shape)), "Y": smooth(random, tuple(shape))}, attrs, wrt=("X", "Y"))


@case("minus")
def _minus(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw)
    return Case(op_type, {"X": smooth(random, shape), "Y": smooth(random, shape)}, wrt=("X", "Y"))


@case("bilinear_tensor_product")
def _bilinear(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    rows, left, right, slices = dims(draw, 4, 4)
    inputs = {"X": smooth(random, (rows, left)), "Y": smooth(random, (rows, right))}
    inputs |= {"Weight": smooth(random, (slices, left, right)), "Bias": smooth(random, (1, slices))}
    return Case(op_type, inputs, wrt=("X", "Y", "Weight", "Bias"))


@case("trace")
def _trace(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw, 2, 4)
    first, second = draw(st.permutations(range(len(shape))))[:2]
    attrs = {"offset": draw(st.integers(-2, 2)), "dim1": first, "dim2": second - len(shape)}
    return Case(op_type, {"Input": smooth(random, shape)}, attrs, wrt=("Input",))


@case("fsp")
def _fsp(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    count, height, width, left = dims(draw, 4, 4)
    inputs = {"X": smooth(random, (count, left, height, width)), "Y": smooth(random, (count, 2, height, width))}
    return Case(op_type, inputs, wrt=("X", "Y"))
