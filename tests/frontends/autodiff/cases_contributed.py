"""What is drawn for ops that Fluid keeps among its contributions; importing it adds to `CASES`."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

import pstranspile as ps
from tests.frontends.autodiff.cases import NOT_CHECKED, Draw, case, dims, off_zero, smooth
from tests.frontends.autodiff.cases_recurrent import sequences
from tests.frontends.autodiff.numeric import Case

NOT_CHECKED["pyramid_hash"] = "its gradient op moves the table itself"


@case("match_matrix_tensor")
def _matches(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    width, channels, x = draw(st.integers(1, 3)), draw(st.integers(1, 3)), sequences(draw, random, 2)
    y = ps.LoDTensor(smooth(random, (x.lod[0][-1] + 1, width)), [[*x.lod[0][:-1], x.lod[0][-1] + 1]])
    inputs = {"X": x, "Y": y, "W": smooth(random, (2, channels, width))}
    return Case(op_type, inputs, {"dim_t": channels}, ("X", "Y", "W"), others=("Tmp",))


@case("var_conv_2d")
def _images_of_any_size(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    sizes = draw(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4)), min_size=1, max_size=3))
    channels, filters, high, wide = dims(draw, 4, 4, upper=3)
    counts = ([channels * r * c for r, c in sizes], [r for r, _ in sizes], [c for _, c in sizes])
    ends = [[0, *map(int, np.cumsum(count))] for count in counts]
    slots = zip(("X", "ROW", "COLUMN"), ends, strict=True)
    inputs: dict[str, object] = {slot: ps.LoDTensor(smooth(random, (at[-1], 1)), [at]) for slot, at in slots}
    inputs["W"] = smooth(random, (filters, channels * high * wide))
    attrs = {"InputChannel": channels, "OutputChannel": filters, "KernelH": high, "KernelW": wide}
    attrs |= {"StrideH": draw(st.integers(1, 2)), "StrideW": draw(st.integers(1, 2))}
    return Case(op_type, inputs, attrs, ("X", "W"), others=("Col",))


@case("tree_conv")
def _tree(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    width, size, filters = dims(draw, 3, 3, upper=3)
    edges = np.int32([[[1, 2], [1, 3], [3, 4], [3, 5], [0, 0]], [[2, 1], [2, 3], [2, 4], [0, 0], [0, 0]]])
    inputs = {"NodesVector": smooth(random, (2, 6, width)), "EdgeSet": edges}
    inputs["Filter"] = smooth(random, (width, 3, size, filters))
    return Case(op_type, inputs, {"max_depth": draw(st.integers(2, 4))}, ("NodesVector", "Filter"))


@case("rank_attention")
def _ranks(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    rows, width, columns = dims(draw, 3, 3, upper=3)
    ranks = random.integers(0, 3, (rows, 5)).astype("int32")
    ranks[:, 2::2] = random.integers(0, rows, (rows, 2))
    inputs = {"X": smooth(random, (rows, width)), "RankOffset": ranks}
    inputs["RankParam"] = smooth(random, (4 * width, columns))
    return Case(op_type, inputs, {"MaxRank": 2}, ("RankParam",))


@case("roi_perspective_transform")
def _quadrilaterals(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    corners = np.array([1, 1, 5, 1, 5, 4, 1, 4]) + random.uniform(-0.8, 0.8, (3, 8))
    inputs = {"X": smooth(random, (2, 2, 5, 6)), "ROIs": ps.LoDTensor(corners, [[0, 1, 3]])}
    attrs = {"transformed_height": draw(st.integers(1, 4)), "transformed_width": draw(st.integers(1, 4))}
    return Case(op_type, inputs, attrs, others=("Mask", "TransformMatrix", "Out2InIdx", "Out2InWeights"))


@case("inplace_abn")
def _in_place(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = (3, draw(st.integers(1, 3)), 2)
    inputs = {slot: smooth(random, shape[1:2]) for slot in ("Bias", "Mean")}
    inputs |= {"X": smooth(random, shape), "Scale": off_zero(random, shape[1:2])}
    inputs["Variance"] = random.uniform(0.5, 1.5, size=shape[1])
    attrs = {"activation": draw(st.sampled_from(["identity", "leaky_relu", "elu"])), "alpha": 0.25}
    attrs["use_global_stats"] = draw(st.booleans())
    same = {"MeanOut": "Mean", "VarianceOut": "Variance"}
    return Case(op_type, inputs, attrs, ("X", "Scale", "Bias"), {"Y": 1}, ("SavedMean", "SavedVariance"), same)


@case("fused_elemwise_activation")
def _fused(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw, 3)
    functors = [draw(st.sampled_from(["elementwise_add", "elementwise_mul"]))]
    functors.insert(draw(st.integers(0, 1)), draw(st.sampled_from(["scale", "tanh", "sigmoid"])))
    inputs = {"X": off_zero(random, shape), "Y": off_zero(random, shape[1:2])}
    attrs = {"axis": 1, "scale": 0.5, "functor_list": functors, "save_intermediate_out": draw(st.booleans())}
    return Case(op_type, inputs, attrs, ("X", "Y"), others=("IntermediateOut",))


@case("instance_norm_grad")
def _of_instances(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = (2, draw(st.integers(1, 3)), 4)
    x, scale = smooth(random, shape), off_zero(random, shape[1:2])
    inputs = {"X": x, "Scale": scale, "Y@GRAD": smooth(random, shape)}
    inputs["SavedMean"] = x.mean(axis=2).reshape(-1)
    inputs["SavedVariance"] = (1 / np.sqrt(x.var(axis=2) + 1e-5)).reshape(-1)
    return Case(op_type, inputs, wrt=("Scale", "Y@GRAD"), outputs={"X@GRAD": 1, "Scale@GRAD": 1, "Bias@GRAD": 1})
