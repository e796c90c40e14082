"""What is drawn for ops that pick, order and lay out elements (registered with the other cases)."""

import numpy as np
from hypothesis import strategies as st

import pstranspile as ps
from tests.frontends.autodiff.cases import Draw, case, dims, distinct, smooth
from tests.frontends.autodiff.cases import ragged as sequences
from tests.frontends.autodiff.numeric import Case


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


@case("strided_slice")
def _strided_slice(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw, upper=6)
    axes = sorted(draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    bounds = [sorted(random.choice(shape[axis] + 1, size=2, replace=False).tolist()) for axis in axes]
    strides = [draw(st.sampled_from([1, 2, 3, -1, -2])) for _ in axes]
    pairs = [
        (low, high) if step > 0 else (high - 1, low - 1) for (low, high), step in zip(bounds, strides, strict=True)
    ]
    backwards = [-shape[axis] - 1 if end == -1 else end for axis, (_, end) in zip(axes, pairs, strict=True)]
    starts = [start for start, _ in pairs]
    attrs: dict[str, object] = {"axes": axes, "starts": starts, "ends": backwards, "strides": strides}
    inputs: dict[str, object] = {"Input": smooth(random, shape)}
    if draw(st.booleans()):
        inputs["StartsTensor"] = np.array(starts, "int32")
        attrs["starts"] = []
    return Case(op_type, inputs, attrs, wrt=("Input",))


@case("flip", "reverse")
def _flip(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw)
    axes = sorted(draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    return Case(op_type, {"X": smooth(random, shape)}, {"dims" if op_type == "flip" else "axis": axes})


@case("roll")
def _roll(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw)
    shifts = draw(st.lists(st.integers(-6, 6), min_size=1, max_size=len(shape)))
    return Case(op_type, {"X": smooth(random, shape)}, {"shifts": shifts, "dims": list(range(len(shifts)))})


@case("unbind", "unstack")
def _unbind(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw)
    axis = an_axis(draw, shape)
    attrs: dict[str, object] = {"axis": axis} if op_type == "unbind" else {"axis": axis, "num": shape[axis]}
    outputs = {"Out" if op_type == "unbind" else "Y": shape[axis]}
    return Case(op_type, {"X": smooth(random, shape)}, attrs, outputs=outputs)


@case("expand_as")
def _expand_as(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw)
    target = np.zeros([size * draw(st.integers(1, 3)) for size in shape])
    return Case(op_type, {"X": smooth(random, shape), "target_tensor": target})


@case("partial_concat", "partial_sum")
def _partial(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw, 2, 2, 5)
    start = draw(st.integers(-shape[1], shape[1] - 1))
    length = draw(st.sampled_from([-1, 1, shape[1] - start % shape[1]]))
    parts = [smooth(random, shape) for _ in range(draw(st.integers(1, 3)))]
    return Case(op_type, {"X": parts}, {"start_index": start, "length": length})


@case("tril_triu")
def _tril_triu(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw, 2, 3)
    attrs = {"diagonal": draw(st.integers(-3, 3)), "lower": draw(st.booleans())}
    return Case(op_type, {"X": smooth(random, shape)}, attrs)


@case("meshgrid")
def _meshgrid(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw, 2, 3)
    return Case(op_type, {"X": [smooth(random, (size,)) for size in shape]}, outputs={"Out": len(shape)})


@case("filter_by_instag")
def _filter_by_instag(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    values, ragged = sequences(draw, random, 3), draw(st.booleans())
    count = len(values.lod[0]) - 1 if ragged else len(values.data)
    tags = ps.LoDTensor(random.integers(0, 3, size=(count, 1)), [list(range(count + 1))])
    inputs = {"Ins": values if ragged else values.data, "Ins_tag": tags, "Filter_tag": np.array([1, 2])}
    return Case(op_type, inputs, {"is_lod": ragged}, wrt=("Ins",), others=("LossWeight", "IndexMap"))
