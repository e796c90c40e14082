"""What is drawn for ops that pick, order and lay out elements (registered with the other cases)."""

import numpy as np
from hypothesis import strategies as st

from tests.autodiff.cases import Draw, case, dims, distinct, smooth
from tests.autodiff.numeric import Case


def picks(draw: Draw, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Positions of some elements or slices of a tensor of these dims, with repeats."""
    depth = draw(st.integers(1, len(shape)))
    lead = dims(draw, 1, 2, 3)
    return np.stack([random.integers(0, size, size=lead) for size in shape[:depth]], axis=-1)


def an_axis(draw: Draw, shape: tuple[int, ...]) -> int:
    return draw(st.integers(-len(shape), len(shape) - 1))


@case("argsort")
def _argsort(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw)
    attrs = {"axis": an_axis(draw, shape), "descending": draw(st.booleans())}
    return Case(op_type, {"X": distinct(random, shape)}, attrs, others=("Indices",))


@case("gather_nd")
def _gather_nd(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw)
    return Case(op_type, {"X": smooth(random, shape), "Index": picks(draw, random, shape)})


@case("scatter_nd_add")
def _scatter_nd_add(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw)
    index = picks(draw, random, shape)
    updates = smooth(random, (*index.shape[:-1], *shape[index.shape[-1] :]))
    inputs = {"X": smooth(random, shape), "Index": index, "Updates": updates}
    return Case(op_type, inputs, wrt=("X", "Updates"))


@case("index_select")
def _index_select(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw)
    axis = an_axis(draw, shape)
    index = random.integers(0, shape[axis], size=draw(st.integers(1, 5)))
    return Case(op_type, {"X": smooth(random, shape), "Index": index}, {"dim": axis})


@case("index_sample")
def _index_sample(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw, 2, 2)
    index = random.integers(0, shape[1], size=(shape[0], draw(st.integers(1, 5))))
    return Case(op_type, {"X": smooth(random, shape), "Index": index})


@case("multiplex")
def _multiplex(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape, count = dims(draw, 2, 3), draw(st.integers(2, 3))
    ids = random.integers(0, count, size=(shape[0], 1)).astype("int32")
    return Case(op_type, {"Ids": ids, "X": [smooth(random, shape) for _ in range(count)]})


@case("where")
def _where(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw)
    inputs = {"Condition": random.random(shape) < 0.5, "X": smooth(random, shape), "Y": smooth(random, shape)}
    return Case(op_type, inputs, wrt=("X", "Y"))
