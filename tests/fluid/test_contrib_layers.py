"""Layers of recommendation models that Fluid keeps among its contributions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pstranspile.fluid as fluid
from pstranspile.fluid.contrib import layers as contrib
from tests.fluid.running import fresh

TREE = np.int32([[0, 0, 0, 1, 2], [0, 1, 0, 3, 4], [0, 1, 0, 5, 6], *([10 + leaf, 2, 1, 0, 0] for leaf in range(4))])
TRAVEL = np.int32([[1, 3], [1, 4], [2, 5], [2, 6]])
NODES = np.int32([[1], [2], [3], [4], [5], [6]])


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    with fresh():
        yield


def table(name: str, values: Any) -> Any:
    """A parameter that begins with these values."""
    return fluid.ParamAttr(name=name, initializer=fluid.initializer.NumpyArrayInitializer(values))


def fetched(feed: dict[str, Any], *wanted: Any) -> list[Any]:
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())
    return executor.run(feed=feed, fetch_list=list(wanted))


def test_children_of_a_node_of_a_tree():
    x = fluid.data("x", [None, 1], "int32")
    children, leaves = contrib.tdm_child(x, 7, 2, table("tree", TREE))
    assert children.shape == (-1, 1, 2)
    found, mask = fetched({"x": np.int32([[1], [2], [3]])}, children, leaves)
    assert found.tolist() == [[[3, 4]], [[5, 6]], [[0, 0]]]
    assert mask.tolist() == [[[1, 1]], [[1, 1]], [[0, 0]]]


def test_samples_of_each_level_hold_the_node_above_the_leaf():
    x = fluid.data("x", [None, 1], "int32")
    nodes, labels, masks = contrib.tdm_sampler(
        x, [1, 2], [2, 4], 4, table("travel", TRAVEL), table("nodes", NODES), seed=3
    )
    assert [var.shape for var in nodes] == [(-1, 2, 1), (-1, 3, 1)]
    values = fetched({"x": np.int32([[2], [0]])}, *nodes, *labels, *masks)
    for level, (found, label) in enumerate(zip(values[:2], values[2:4], strict=True)):
        assert found[:, 0, 0].tolist() == TRAVEL[[2, 0], level].tolist()
        assert label[:, :, 0].tolist() == [[1] + [0] * (found.shape[1] - 1)] * 2
        assert all(len(set(row)) == len(row) for row in found[:, :, 0].tolist())
    with pytest.raises(ValueError, match="level 1 has 4 nodes"):
        contrib.tdm_sampler(x, [1, 4], [2, 4], 4)
    with pytest.raises(ValueError, match="1 counts of samples are for 2 levels"):
        contrib.tdm_sampler(x, [1], [2, 4], 4)


def test_rows_are_shuffled_and_columns_taken():
    x, y = fluid.data("x", [None, 3]), fluid.data("y", [None, 3])
    shuffled = contrib.shuffle_batch(x, seed=5)
    assert shuffled.shape == (-1, 3)
    beside, total = contrib.partial_concat([x, y], 1, 2), contrib.partial_sum([x, y], start_index=0, length=2)
    a, b = np.arange(12, dtype="float32").reshape(4, 3), np.ones((4, 3), "float32")
    rows, wide, added = fetched({"x": a, "y": b}, shuffled, beside, total)
    assert sorted(rows.tolist()) == a.tolist()
    np.testing.assert_array_equal(wide, np.concatenate([a[:, 1:], b[:, 1:]], axis=1))
    np.testing.assert_array_equal(added, (a + b)[:, :2])


def test_rows_of_a_table_are_summed_for_each_sequence():
    ids = fluid.data("ids", [None, 1], "int64", lod_level=1)
    pooled = contrib.fused_embedding_seq_pool(ids, [6, 2], padding_idx=-1, param_attr=table("w", TREE[:6, :2] * 1.0))
    feed = fluid.create_lod_tensor(np.int64([[0], [3], [5], [4]]), [[3, 1]], fluid.CPUPlace())
    (value,) = fetched({"ids": feed}, pooled)
    np.testing.assert_array_equal(value, np.float32([TREE[0, :2] + TREE[3, :2], TREE[4, :2]]))


@pytest.mark.parametrize("is_sparse", [True, False])
def test_the_gradient_of_a_table_summed_for_each_sequence_is_sparse_if_asked_for(is_sparse):
    ids = fluid.data("ids", [None, 1], "int64", lod_level=1)
    rows = TREE[:6, :2] * 1.0
    loss = fluid.layers.mean(contrib.fused_embedding_seq_pool(ids, [6, 2], is_sparse, param_attr=table("w", rows)))
    fluid.optimizer.SGD(2.0).minimize(loss)
    kinds = fluid.core.VarDesc.VarType
    gradient = fluid.default_main_program().global_block().var("w@GRAD")
    assert gradient.type == (kinds.SELECTED_ROWS if is_sparse else kinds.LOD_TENSOR)
    feed = fluid.create_lod_tensor(np.int64([[0], [3]]), [[1, 1]], fluid.CPUPlace())
    fetched({"ids": feed}, loss)
    after = np.array(fluid.global_scope().find_var("w").get_tensor())
    np.testing.assert_allclose(after[[0, 3]], np.float32(rows)[[0, 3]] - 0.5, rtol=1e-6)
    np.testing.assert_array_equal(after[[1, 2, 4, 5]], np.float32(rows)[[1, 2, 4, 5]])


def test_metrics_of_clicks_are_summed_over_steps():
    x, clicks = fluid.data("x", [None, 1]), fluid.data("clicks", [None, 1])
    sums = fluid.contrib.ctr_metric_bundle(x, clicks)
    feed = {"x": np.float32([[0.2], [0.7], [0.9]]), "clicks": np.float32([[0], [1], [0]])}
    once = [float(value[0]) for value in fetched(feed, *sums)]
    np.testing.assert_allclose(once, [0.94, 1.4, 1.8, 1.928971, 1.0, 3.0], rtol=1e-5)
    twice = fluid.Executor(fluid.CPUPlace()).run(feed=feed, fetch_list=list(sums))
    np.testing.assert_allclose([float(value[0]) for value in twice], 2 * np.array(once), rtol=1e-5)
    with pytest.raises(AssertionError, match="input has the dims"):
        fluid.contrib.ctr_metric_bundle(x, fluid.data("other", [None, 2]))


def test_the_largest_elements_of_rows_of_pictures_are_averaged():
    pictures, rows, columns = (fluid.data(name, [-1, 1], "float32", lod_level=1) for name in ("p", "r", "c"))
    pooled = fluid.contrib.sequence_topk_avg_pooling(pictures, rows, columns, topks=[1, 2], channel_num=2)
    assert pooled.shape == (-1, 4)

    def sequences(lengths: list[int]) -> Any:
        values = np.arange(sum(lengths)).reshape(-1, 1).astype("float32") % 7
        return fluid.create_lod_tensor(values, [lengths], fluid.CPUPlace())

    feed = {"p": sequences([6, 8]), "r": sequences([1, 2]), "c": sequences([3, 2])}
    (value,) = fluid.Executor(fluid.CPUPlace()).run(feed=feed, fetch_list=[pooled], return_numpy=False)
    np.testing.assert_array_equal(np.array(value), np.float32([[2, 1.5, 5, 4.5], [6, 3, 4, 3.5], [2, 1.5, 6, 5.5]]))
