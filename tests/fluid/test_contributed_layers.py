"""Layers of search models, trees and fused ops that Fluid keeps among its contributions, and those in place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pstranspile.fluid as fluid
from pstranspile.fluid.layers.utils import convert_to_list, is_sequence
from tests.fluid.running import fresh
from tests.fluid.test_contrib_layers import fetched, table

contrib = fluid.contrib


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    with fresh():
        yield


def ragged(values: Any, lengths: list[int]) -> Any:
    return fluid.create_lod_tensor(np.asarray(values), [lengths], fluid.CPUPlace())


def drawn(*dims: int) -> Any:
    return np.random.default_rng(3).uniform(-1, 1, dims).astype("float32")


def test_ranks_choose_the_blocks_of_a_parameter():
    x, ranks = fluid.data("x", [None, 2]), fluid.data("ranks", [None, 5], "int32")
    values = drawn(8, 3)
    out = contrib.layers.rank_attention(x, ranks, [8, 3], table("blocks", values), max_rank=2)
    assert out.shape == (-1, 3)
    (slope,) = fluid.gradients(
        fluid.layers.reduce_sum(out), [fluid.default_main_program().global_block().var("blocks")]
    )
    rows = np.float32([[1, 2], [3, 4], [5, 6]])
    offsets = np.int32([[1, 1, 0, 2, 1], [2, 1, 0, 2, 1], [0, 0, 0, 0, 0]])
    found, grad = fetched({"x": rows, "ranks": offsets}, out, slope)
    blocks = values.reshape(4, 2, 3)
    expected = [rows[0] @ blocks[0] + rows[1] @ blocks[1], rows[0] @ blocks[2] + rows[1] @ blocks[3], np.zeros(3)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(grad, np.repeat(np.tile([[1], [2], [3], [4]], (2, 1)), 3, axis=1), rtol=1e-5)
    with pytest.raises(AssertionError, match="a block per pair"):
        contrib.layers.rank_attention(x, ranks, [9, 3], None, max_rank=2)


def test_matches_of_two_sequences_are_convolved_and_pooled():
    x, y = (fluid.data(name, [None, 3], "float32", lod_level=1) for name in "xy")
    matches, moved = contrib.match_matrix_tensor(x, y, 2, act="tanh")
    assert (matches.shape, matches.lod_level, moved.stop_gradient) == ((-1, 1), 1, True)
    seen = contrib.var_conv_2d(matches, x, y, 2, 3, [3, 3], stride=(1, 2), act="relu")
    loss = fluid.layers.mean(seen)
    fluid.optimizer.SGD(0.1).minimize(loss)
    feed = {"x": ragged(drawn(5, 3), [2, 3]), "y": ragged(drawn(4, 3), [3, 1])}
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())
    first, second = (executor.run(feed=feed, fetch_list=[loss, matches, seen], return_numpy=False) for _ in range(2))
    assert [value.recursive_sequence_lengths() for value in first[1:]] == [[[12, 6]], [[12, 9]]]
    assert np.array(second[0])[0] < np.array(first[0])[0]
    with pytest.raises(AssertionError, match="rows of one width"):
        contrib.match_matrix_tensor(x, fluid.data("z", [None, 4], "float32", lod_level=1), 2)


def test_nodes_of_trees_see_their_subtrees():
    nodes, edges = fluid.data("nodes", [None, 4, 2]), fluid.data("edges", [None, 3, 2], "int32")
    out = contrib.layers.tree_conv(
        nodes, edges, 2, 1, 2, act=None, bias_attr=False, param_attr=table("w", drawn(2, 3, 2, 1))
    )
    assert out.shape == (-1, 4, 2, 1)
    feed = {"nodes": drawn(1, 4, 2), "edges": np.int32([[[1, 2], [1, 3], [0, 0]]])}
    (value,) = fetched(feed, out)
    left, right, top = drawn(2, 3, 2, 1)[..., 0].swapaxes(0, 1)
    one, two, three, _ = feed["nodes"][0]
    expected = [
        one @ top + (two + three) @ top / 2 + two @ right / 2 + three @ (left / 2 + right / 4),
        two @ top,
        three @ top,
    ]
    np.testing.assert_allclose(value[0, :3, :, 0], expected, rtol=1e-5)
    assert not value[0, 3].any()
    with pytest.raises(TypeError, match="nodes_vector"):
        contrib.layers.tree_conv([1], edges, 2)
    with pytest.raises(fluid.core.EnforceNotMet, match="2 edges are a tree of 3 nodes"):
        fetched({**feed, "edges": np.int32([[[1, 9], [1, 3], [0, 0]]])}, out)


def test_groups_of_words_are_embedded_by_their_hashes():
    words = fluid.data("words", [None, 1], "int32", lod_level=1)
    words.stop_gradient = False
    given = {"num_emb": 4, "space_len": 10, "pyramid_layer": 3, "rand_len": 2, "drop_out_percent": 0.0, "seed": 1}
    given |= {"is_training": 1, "use_filter": False, "white_list_len": 0, "black_list_len": 1, "lr": 0.5}
    values = drawn(12, 1)
    out = contrib.search_pyramid_hash(words, param_attr=table("w", values), distribute_update_vars=["w"], **given)
    fluid.backward.append_backward(fluid.layers.reduce_sum(out))
    feed = {"words": ragged(np.int32([[1], [2], [3], [4], [1], [2]]), [3, 1, 2])}
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())
    (found,) = executor.run(feed=feed, fetch_list=[out], return_numpy=False)
    rows = np.array(found)
    assert (found.recursive_sequence_lengths(), rows[3].any()) == ([[3, 1, 1]], False)
    np.testing.assert_array_equal(rows[0], rows[4])
    assert set(rows[0]) <= set(values[:, 0])
    moved = np.array(fluid.global_scope().find_var("w").get_tensor())
    np.testing.assert_allclose((values - moved).sum(), 0.5 * 4 * 4, rtol=1e-5)
    with pytest.raises(ValueError, match="other is none of its parameters"):
        contrib.search_pyramid_hash(words, distribute_update_vars=["other"], **given)


def test_an_activation_of_a_sum_is_one_op():
    x, y = fluid.data("x", [2, 3]), fluid.data("y", [3])
    x.stop_gradient = y.stop_gradient = False
    out = contrib.layers.fused_elemwise_activation(x, y, ["relu", "elementwise_add"])
    inner = contrib.layers.fused_elemwise_activation(x, y, "elementwise_mul,tanh")
    slopes = fluid.gradients([fluid.layers.reduce_sum(out), fluid.layers.reduce_sum(inner)], [x, y])
    a, b = drawn(2, 3), np.float32([0.5, -0.5, 0.1])
    got = fetched({"x": a, "y": b}, out, inner, *slopes)
    on = a + b > 0
    wanted = [(a + b) * on, a * np.tanh(b), on + np.tanh(b), (on + a * (1 - np.tanh(b) ** 2)).sum(0)]
    for found, value in zip(got, wanted, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-5)
    with pytest.raises(ValueError, match="must be two names"):
        contrib.layers.fused_elemwise_activation(x, y, ["relu"])


def test_batches_are_normalised_in_place():
    x = fluid.data("x", [4, 3])
    hidden = fluid.layers.fc(x, 3, bias_attr=False, param_attr=table("w", drawn(3, 3)))
    out = fluid.layers.inplace_abn(hidden, act="leaky_relu", act_alpha=0.2)
    assert out.name == hidden.name
    plain = fluid.layers.fc(x, 3, bias_attr=False, param_attr="w")
    apart = fluid.layers.leaky_relu(fluid.layers.batch_norm(plain), alpha=0.2)
    weights = fluid.layers.assign(drawn(4, 3))
    w = fluid.default_main_program().global_block().var("w")
    slopes = [fluid.gradients(fluid.layers.reduce_sum(made * weights), [w])[0] for made in (out, apart)]
    one, other = fetched({"x": drawn(4, 3)}, *slopes)
    np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
    with pytest.raises(AssertionError, match="act is 'relu'"):
        fluid.layers.inplace_abn(x, act="relu")
    with pytest.raises(AssertionError, match="bias_attr can't be False"):
        fluid.layers.inplace_abn(x, bias_attr=False)


def test_quadrilaterals_are_seen_as_rectangles():
    x, rois = fluid.data("x", [1, 2, 6, 8]), fluid.data("rois", [None, 8], "float32", lod_level=1)
    made = fluid.layers.roi_perspective_transform(x, rois, 4, 5)
    assert [var.shape for var in made] == [(-1, 2, 4, 5), (-1, 1, 4, 5), (-1, 9)]
    image = drawn(1, 2, 6, 8)
    square = ragged(np.float32([[1, 1, 5, 1, 5, 4, 1, 4]]), [1])
    feed = {"x": image, "rois": square}
    values = fluid.Executor(fluid.CPUPlace()).run(feed=feed, fetch_list=list(made), return_numpy=False)
    out, mask, matrix = map(np.array, values)
    np.testing.assert_allclose(out[0], image[0, :, 1:5, 1:6], rtol=1e-4)
    assert mask.all()
    np.testing.assert_allclose(matrix[0], [1, 0, 1, 0, 1, 1, 0, 0, 1], atol=1e-5)
    with pytest.raises(TypeError, match="spatial_scale"):
        fluid.layers.roi_perspective_transform(x, rois, 4, 5, 1)


def test_settings_for_several_dims():
    assert (convert_to_list(3, 2, "stride"), convert_to_list((1, 2), 2, "stride")) == ([3, 3], [1, 2])
    for wrong in ([1, 2, 3], "ab", 1.5, [1.5, 2]):
        with pytest.raises(ValueError, match="stride must be a number or 2 of them"):
            convert_to_list(wrong, 2, "stride")
    assert (is_sequence([1]), is_sequence({}), is_sequence("ab")) == (True, True, False)
