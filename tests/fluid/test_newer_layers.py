"""Layers that came with the last versions of Fluid 1, and what layers refuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pstranspile.fluid as fluid
from pstranspile.fluid import layers
from pstranspile.fluid.paddle import compat
from pstranspile.ops.shapes import ShapeError
from tests.fluid.running import fresh

X = np.float32([[1, -2, 3], [4, 5, -6]])


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    with fresh():
        yield


def run(*made: Any, **fed: Any) -> list[Any]:
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())
    return executor.run(feed=fed, fetch_list=list(made))


def test_layers_of_one_tensor() -> None:
    x: Any = fluid.data("x", [2, 3])
    made = [
        layers.log1p(layers.abs(x)),
        layers.logsumexp(x, dim=1),
        layers.clamp(x, min=-1.0, max=layers.full([1], 2.0)),
        layers.full_like(x, 7.0, dtype="int32"),
        layers.addcmul(x, x, x, value=0.5),
        layers.scatter_nd(layers.assign(np.array([[1], [1]])), x, [3, 3]),
    ]
    places = layers.nonzero(x > 0.0, as_tuple=True)
    got = run(*made, *places, x=X)
    scattered = np.zeros((3, 3))
    scattered[1] = X.sum(axis=0)
    expected = [
        np.log1p(abs(X)),
        np.log(np.exp(X).sum(axis=1)),
        np.clip(X, -1, 2),
        np.full((2, 3), 7),
        X + 0.5 * X * X,
        scattered,
        *(column[:, None] for column in np.nonzero(X > 0)),
    ]
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    assert got[3].dtype == np.int32


def test_layers_of_several_tensors() -> None:
    x, y = fluid.data("x", [2, 3]), fluid.data("y", [2, 3])
    one, two = layers.meshgrid([layers.arange(0, 2), layers.arange(0, 3)])
    square = layers.addmm(layers.full([2, 2], 1.0), x, layers.transpose(y, [1, 0]), alpha=2.0, beta=3.0)
    made = [layers.cross(x, y), layers.elementwise_equal(x, y), layers.allclose(x, y), one, two, square]
    got = run(*made, x=X, y=X[::-1].copy())
    expected = [np.cross(X, X[::-1]), X[::-1] == X, [False], *np.meshgrid([0, 1], [0, 1, 2], indexing="ij")]
    for a, b in zip(got, [*expected, 2 * X @ X[::-1].T + 3], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_a_loss_of_pairs_is_least_where_what_is_alike_is_near() -> None:
    anchor, positive = fluid.data("a", [2, 3]), fluid.data("p", [2, 3])
    loss = layers.npair_loss(anchor, positive, fluid.data("l", [2, 1], "int64"), l2_reg=0.0)
    a, labels = np.float32([[2, 0, 0], [0, 2, 0]]), np.array([[0], [1]])
    assert run(loss, a=a, p=a, l=labels)[0] < run(loss, a=a, p=a[::-1].copy(), l=labels)[0]


def test_layers_of_images() -> None:
    image = fluid.data("im", [1, 2, 3, 3])
    ramp = np.arange(18, dtype="float32").reshape(1, 2, 3, 3)
    scale, bias = layers.assign(np.float32([1, 2])), layers.assign(np.float32([0, 1]))
    made = [layers.unfold(image, 2), layers.affine_channel(image, scale, bias, act="relu")]
    windows, scaled = run(*made, im=ramp)
    assert windows.shape == (1, 8, 4)
    assert windows[0, :4, 0].tolist() == [0, 1, 3, 4]
    assert scaled[0, 1].tolist() == (2 * ramp[0, 1] + 1).tolist()
    with pytest.raises(AssertionError, match="list of two"):
        layers.unfold(image, [1, 2, 3])
    with pytest.raises(ValueError, match="two or four"):
        layers.unfold(image, 2, paddings=[1, 2, 3])


def test_layers_of_volumes() -> None:
    volume = fluid.data("v", [2, 3, 4, 4, 4])
    convolved = layers.conv3d(volume, 5, 3, padding=1)
    pooled = layers.pool3d(convolved, 2, "avg", 2)
    grown = layers.conv3d_transpose(pooled, 3, filter_size=2, stride=2)
    assert [made.shape for made in (convolved, pooled, grown)] == [
        (2, 5, 4, 4, 4),
        (2, 5, 2, 2, 2),
        (2, 3, 4, 4, 4),
    ]
    ops = fluid.default_main_program().global_block().ops
    assert next(op for op in ops if op.type == "conv3d_transpose").attr("data_format") == "NCHW"
    assert run(grown, v=np.ones((2, 3, 4, 4, 4), "float32"))[0].shape == (2, 3, 4, 4, 4)


def test_paddings_are_given_in_four_ways() -> None:
    x = fluid.data("x", [1, 3, 8, 8])
    last = fluid.data("y", [1, 8, 8, 3])
    for padding, kept in [
        ([[0, 0], [0, 0], [1, 1], [2, 2]], [1, 2]),
        ([1, 1, 2, 2], [1, 2]),
        ([1, 0, 2, 2], [1, 0, 2, 2]),
        ("same", [0, 0]),
    ]:
        layers.conv2d(x, 2, 3, padding=padding)
        ops = fluid.default_main_program().global_block().ops
        assert [op.attr("paddings") for op in ops if op.type == "conv2d"][-1] == kept
    assert layers.pool2d(last, 2, pool_padding=[[0, 0], [1, 0], [0, 1], [0, 0]], data_format="NHWC").shape[1:] == (
        8,
        8,
        3,
    )
    for wrong in ([[0, 0], [1, 1], [0, 0], [0, 0]], [1, 2, 3], "none"):
        with pytest.raises(ValueError, match=r"padding|whole number"):
            layers.conv2d(x, 2, 3, padding=wrong)
    with pytest.raises(ValueError, match="data_format"):
        layers.conv2d(x, 2, 3, data_format="NHWCC")
    with pytest.raises(ValueError, match="True or False"):
        layers.conv2d(x, 2, 3, use_cudnn=[0])
    with pytest.raises(TypeError, match="True or False"):
        layers.pool2d(x, 2, use_cudnn=[0])


def test_whole_numbers_are_interpolated_as_numbers_and_cut_off() -> None:
    x = fluid.data("x", [1, 1, 1, 2], "uint8")
    block = fluid.default_main_program().global_block()
    out = block.create_var(name="out", dtype="uint8")
    attrs = {"out_h": 1, "out_w": 3, "interp_method": "bilinear", "align_corners": True}
    block.append_op("bilinear_interp", {"X": [x]}, {"Out": [out]}, attrs)
    assert run(out, x=np.uint8([[[[10, 15]]]]))[0].tolist() == [[[[10, 12, 15]]]]


def test_labels_without_a_last_dim_give_losses_without_one() -> None:
    x, label = fluid.data("x", [2, 3, 4]), fluid.data("label", [2, 3], "int64")
    x.stop_gradient = False
    loss = layers.cross_entropy(layers.softmax(x), label)
    assert loss.shape == (2, 3)
    fluid.append_backward(layers.mean(loss))
    values = np.ones((2, 3, 4), "float32")
    made, gradient = run(loss, "x@GRAD", x=values, label=np.zeros((2, 3), "int64"))
    assert made.shape == (2, 3)
    assert gradient.shape == (2, 3, 4)


def test_pairs_of_parameters_and_gradients_come_in_the_order_of_a_set() -> None:
    x = fluid.data("x", [2, 3])
    loss = layers.mean(layers.fc(layers.fc(x, 4), 1))
    names = {param.name for param in fluid.default_main_program().all_parameters()}
    assert [param.name for param, _ in fluid.append_backward(loss, parameter_list=names)] == list(names)


@pytest.mark.parametrize("wrong", ["flaot32", np.complex128, "uint4"])
def test_what_names_no_element_type_is_an_error_of_both_kinds(wrong: Any) -> None:
    for kind in (TypeError, ValueError):
        with pytest.raises(kind, match="names no element type"):
            layers.full([1], 1.0, dtype=wrong)
        with pytest.raises(kind, match="names no element type"):
            fluid.data("x", [1], wrong)


def test_layers_refuse_what_fluids_refuse() -> None:
    x, whole = fluid.data("x", [2, 3]), fluid.data("k", [2, 3], "int32")
    for call in [
        lambda: layers.cos(whole),
        lambda: layers.equal(x, x, cond=1),
        lambda: layers.less_than(x, x, force_cpu=1),
        lambda: layers.sums([x, fluid.data("b", [2, 3], "int8")]),
        lambda: layers.sum([11, 22]),
        lambda: layers.addcmul(x, x, x, value=1),
        lambda: layers.meshgrid(x),
        lambda: layers.concat([x, fluid.data("c", [2, 3], "int8")]),
        lambda: layers.crop_tensor(fluid.data("d", [2, 3], "int8"), [1, 1]),
        lambda: layers.adaptive_pool2d(fluid.data("e", [2, 3, 4, 4], "int8"), 2),
        lambda: layers.roi_align(1, x),
    ]:
        with pytest.raises(TypeError, match=r"must be|takes a list"):
            call()


def test_counts_of_probabilities_are_lists() -> None:
    auc = fluid.metrics.Auc("auc", num_thresholds=3)
    auc.update(np.float32([[0.2, 0.8], [0.9, 0.1]]), np.array([[1], [0]]))
    assert (auc._stat_pos, auc._stat_neg) == ([0, 0, 1, 0], [1, 0, 0, 0])
    assert auc.eval() == 1.0


def test_images_take_dims_that_variables_have() -> None:
    image, size = fluid.data("im", [1, 1, 2, 2]), layers.fill_constant([1], "int32", 4)
    both = layers.assign(np.array([4, 4], "int32"))
    made = [
        layers.image_resize(image, [size, 4], resample="NEAREST"),
        layers.resize_nearest(image, [2, 2], actual_shape=both),
        layers.interpolate(image, [4, 4], resample="BICUBIC"),
    ]
    assert made[0].shape == (1, 1, -1, -1)
    for value in run(*made, im=np.ones((1, 1, 2, 2), "float32")):
        np.testing.assert_allclose(value, np.ones((1, 1, 4, 4)), rtol=1e-5)
    volume = fluid.data("v", [1, 1, 2, 2, 2])
    assert layers.resize_trilinear(volume, [4, 4, 4]).shape == (1, 1, 4, 4, 4)
    with pytest.raises(ValueError, match="data_format"):
        layers.resize_nearest(image, [4, 8], data_format="NDHWC")
    with pytest.raises(TypeError, match="number or a variable"):
        layers.resize_nearest(image, scale="scale")
    with pytest.raises(ValueError, match="above 0"):
        layers.resize_nearest(image, scale=-1.0)
    with pytest.raises(ValueError, match="not 2"):
        layers.resize_nearest(image, [4])


def test_variables_say_along_which_dim_and_how_wide() -> None:
    x, axis = fluid.data("x", [2, 3]), layers.fill_constant([1], "int32", 1)
    ids = fluid.data("ids", [2], "int64")
    depth = layers.fill_constant([1], "int32", 3)
    array = layers.array_write(x, layers.fill_constant([1], "int64", 0))
    layers.array_write(x, layers.fill_constant([1], "int64", 1), array)
    made = [layers.concat([x, x], axis), layers.concat(array, 1), fluid.one_hot(ids, depth)]
    wide, joined, hot = run(*made, x=X, ids=np.array([2, 0]))
    assert wide.tolist() == joined.tolist() == np.concatenate([X, X], 1).tolist()
    assert hot.tolist() == [[0, 0, 1], [1, 0, 0]]


def test_products_of_vectors_of_unknown_length_have_as_many_dims_as_in_fluid() -> None:
    shapes = [([-1], [4], False, (1,)), ([-1], [-1], True, (-1, -1)), ([-1, 4], [4], False, (-1,))]
    for number, (left, right, turned, product) in enumerate(shapes):
        x, y = fluid.data(f"x{number}", left), fluid.data(f"y{number}", right)
        assert layers.matmul(x, y, turned, turned).shape == product


def test_scores_and_labels_of_rankings_have_a_last_dim_of_one_or_none():
    label, left, right = np.float32([0, 1]), np.float32([[0.5], [2]]), np.float32([[1], [1.5]])
    places = [fluid.data("label", [-1]), fluid.data("left", [-1, 1]), fluid.data("right", [-1, 1])]
    loss = layers.rank_loss(*places)
    assert loss.shape == (-1,)
    found = run(loss, label=label, left=left, right=right)[0]
    np.testing.assert_allclose(found, np.log1p(np.exp([-0.5, 0.5])) - np.array([0, 1]) * 0.5, rtol=1e-6)
    with pytest.raises(ShapeError, match="Left is"):
        layers.rank_loss(places[0], fluid.data("two", [-1, 2]), places[2])


def test_halves_are_rounded_away_from_zero():
    assert [compat.round(value) for value in (0.5, -0.5, 2.5, 0.0)] == [1.0, -1.0, 3.0, 0.0]
    assert compat.round(0.125, 2) == 0.13
    assert compat.floor_division(-3, 2) == -2


IMAGES = np.arange(2 * 3 * 4 * 6, dtype="float32").reshape(2, 3, 4, 6)


def test_images_are_cut_where_numbers_or_variables_say():
    x = fluid.data("x", [2, 3, 4, 6])
    one, twos = layers.fill_constant([1], "int32", 1), layers.fill_constant([4], "int32", 2)
    first = layers.crop(x, shape=[2, 1, 2, 3], offsets=[0, 1, 1, 2])
    second = layers.crop_tensor(x, shape=[-1, 2, 2, 2], offsets=[0, one, 0, 1])
    found = run(first, second, layers.crop_tensor(x, shape=twos), x=IMAGES)
    cuts = (np.s_[:, 1:2, 1:3, 2:5], np.s_[:, 1:3, :2, 1:3], np.s_[:2, :2, :2, :2])
    for array, cut in zip(found, cuts, strict=True):
        np.testing.assert_array_equal(array, IMAGES[cut])
    for wrong, problem in (([2, 0, 2, 2], ValueError), ([2, -2, 2, 2], ValueError), ([2, 1.5, 2, 2], TypeError)):
        with pytest.raises(problem, match="crop_tensor: shape"):
            layers.crop_tensor(x, shape=wrong)
    with pytest.raises(TypeError, match="crop: shape is a list"):
        layers.crop(x, shape=3)


def test_images_are_pooled_and_resized_to_sizes():
    x = fluid.data("x", [2, 3, 4, 6])
    means, (top, places) = layers.adaptive_pool2d(x, [2, 3], "avg"), layers.adaptive_pool2d(x, 2, require_index=True)
    short = layers.image_resize_short(x, 2)
    found = run(means, top, places, short, x=IMAGES)
    blocks = IMAGES.reshape(2, 3, 2, 2, 3, 2)
    np.testing.assert_allclose(found[0], blocks.mean((3, 5)))
    np.testing.assert_array_equal(found[1], IMAGES[:, :, 1::2, 2::3])
    np.testing.assert_array_equal(found[2][0, 0], [[8, 11], [20, 23]])
    assert found[3].shape == (2, 3, 2, 3)
    with pytest.raises(ValueError, match="'max' or 'avg'"):
        layers.adaptive_pool2d(x, 2, "sum")
    with pytest.raises(ValueError, match="means have no index"):
        layers.adaptive_pool2d(x, 2, "avg", require_index=True)
    with pytest.raises(ValueError, match="takes images"):
        layers.image_resize_short(means[0], 2)


def test_numbers_are_drawn_in_dims_of_numbers_and_variables():
    one = layers.fill_constant([1], "int64", 1)
    drawn = [layers.randint(3, 9, shape=[4]), layers.randint(5, shape=[one, 3], dtype="int32"), layers.randn([2, 2])]
    assert [value.shape for value in drawn] == [(4,), (-1, -1), (2, 2)]
    assert [value.stop_gradient for value in drawn] == [False, False, True]
    found = run(*drawn)
    assert [(array.shape, str(array.dtype)) for array in found] == [
        ((4,), "int64"),
        ((1, 3), "int32"),
        ((2, 2), "float32"),
    ]
    assert found[0].min() >= 3
    with pytest.raises(ValueError, match="nothing lies between"):
        layers.randint(4, 4)
    with pytest.raises(TypeError, match="one of int32, int64, not float32"):
        layers.randint(5, dtype="float32")
    with pytest.raises(TypeError, match="one of float32, float64, not int32"):
        layers.randn([2], dtype="int32")
    with pytest.raises(TypeError, match="list or a tuple"):
        layers.randn(2)
    with pytest.raises(AssertionError, match="no dims"):
        layers.randn([])


def test_rows_come_nearer_to_centres_that_move():
    x, label = fluid.data("x", [-1, 2]), fluid.data("label", [-1, 1], dtype="int64")
    half = fluid.ParamAttr(name="centres", initializer=fluid.initializer.Constant(0.5))
    loss = layers.center_loss(x, label, 3, 0.5, half)
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())
    feed = {"x": np.float32([[1.5, 0.5]]), "label": np.int64([[1]])}
    first, second = (executor.run(feed=feed, fetch_list=[loss])[0] for _ in range(2))
    assert first == 0.5
    assert 0 < second < first


def test_a_variable_scales_and_a_single_tensor_is_stacked():
    x = fluid.data("x", [2, 3])
    found = run(layers.scale(x, scale=fluid.data("k", [1]), bias=1.0), layers.stack(x), x=X, k=np.float32([2]))
    np.testing.assert_array_equal(found[0], 2 * X + 1)
    np.testing.assert_array_equal(found[1], X[None])


def test_volumes_are_pooled_to_sizes():
    x = fluid.data("x", [1, 1, 4, 4, 6])
    volume = np.arange(96, dtype="float32").reshape(1, 1, 4, 4, 6)
    found = run(layers.adaptive_pool3d(x, [2, 2, 3], "avg"), layers.adaptive_pool3d(x, 2), x=volume)
    np.testing.assert_allclose(found[0], volume.reshape(1, 1, 2, 2, 2, 2, 3, 2).mean((3, 5, 7)))
    np.testing.assert_array_equal(found[1], volume[:, :, 1::2, 1::2, 2::3])


def test_arrays_have_signs_and_make_diagonals():
    found = run(layers.sign(np.float32([3, 0, -2])), layers.diag(np.arange(3, 6, dtype="int32")))
    assert found[0].tolist() == [1, 0, -1]
    np.testing.assert_array_equal(found[1], np.diag([3, 4, 5]))


def test_a_variable_takes_the_place_of_the_dims_that_a_reshape_names() -> None:
    with fresh():
        x, dims = fluid.data("x", [None, 4]), fluid.data("dims", [2], "int32")
        made = fluid.layers.reshape(x, [-1, 2], actual_shape=dims)
        named = fluid.layers.reshape(x, [-1, dims[1]], actual_shape=dims)
        op = next(op for op in fluid.default_main_program().global_block().ops if op.type == "reshape2")
        assert (op.input("Shape"), op.attr("shape"), made.shape) == (["dims"], [-1, 2], (-1, 2))
        fed = {"x": np.arange(8, dtype="float32").reshape(2, 4), "dims": np.array([8, 1], "int32")}
        got = fluid.Executor().run(feed=fed, fetch_list=[made, named])
        assert [value.shape for value in got] == [(8, 1), (8, 1)]


def test_classes_are_sampled_as_often_as_a_script_says() -> None:
    x, label = fluid.data("x", [2, 3]), fluid.data("label", [2, 1], "int64")
    layers.nce(x, label, 4, num_neg_samples=50, sampler="custom_dist", custom_dist=[0.25, 0.0, 0.6, 0.15])
    (op,) = [op for op in fluid.default_main_program().global_block().ops if op.type == "nce"]
    names = [op.input(f"CustomDist{part}")[0] for part in ("Probs", "Alias", "AliasProbs")]
    likely, alias, own, classes = run(*names, op.output("SampleLabels")[0], x=X, label=np.int64([[1], [3]]))
    found = [(own[i] + sum((1 - own[j]) * (alias[j] == i) for j in range(4))) / 4 for i in range(4)]
    np.testing.assert_allclose(found, likely, atol=1e-6)
    assert set(classes[:, 1:].ravel().tolist()) == {0, 2, 3}
    with pytest.raises(ValueError, match="how likely each class is"):
        layers.nce(x, label, 4, sampler="custom_dist", custom_dist=[1.0])


def test_samples_of_classes_have_weights() -> None:
    x, label, weight = fluid.data("x", [2, 3]), fluid.data("label", [2, 1], "int64"), layers.full([5, 1], 3.0)
    attrs = [fluid.ParamAttr(name) for name in ("w", "b")]
    costs = [layers.nce(x, label, 4, given, *attrs, num_neg_samples=2, seed=5) for given in (None, weight)]
    plain, weighted = run(*costs, x=X, label=np.int64([[1], [3]]))
    np.testing.assert_allclose(weighted, 3 * plain, rtol=1e-6)


def test_text_and_bytes_are_changed_where_they_are() -> None:
    names, kinds, pairs = [b"a", "b"], {b"c"}, {b"d": 1}
    assert compat.to_text(names, inplace=True) is names
    assert compat.to_text(kinds, inplace=True) is kinds
    assert compat.to_text(pairs, inplace=True) is pairs
    assert (names, kinds, pairs) == (["a", "b"], {"c"}, {"d": 1})
    assert (compat.to_bytes(names), names) == ([b"a", b"b"], ["a", "b"])
    with pytest.raises(AssertionError):
        compat.get_exception_message(None)


def test_the_check_of_an_installation_trains(capsys: pytest.CaptureFixture[str]) -> None:
    fluid.install_check.run_check()
    assert capsys.readouterr().out.splitlines() == [
        *("a program is trained on 1 device", "a program is trained on 2 devices")
    ]


def test_op_types_are_moved_between_the_lists_of_mixed_precision() -> None:
    precision = fluid.contrib.mixed_precision
    lists = precision.AutoMixedPrecisionLists({"tanh", "exp"}, {"conv2d", "lstm"}, ["x"])
    assert {"tanh", "exp", "mul"} <= lists.white_list
    assert {"conv2d", "lstm", "mean"} <= lists.black_list
    assert not lists.gray_list & {"tanh", "conv2d"}
    assert "conv2d" in precision.fp16_lists.white_list
    with pytest.raises(ValueError, match="both have lstm"):
        precision.AutoMixedPrecisionLists({"lstm"}, {"lstm"})


def test_attention_takes_as_many_values_as_keys_of_one_element_type() -> None:
    q, k, v = (fluid.data(name, [2, count, 4]) for name, count in (("q", 3), ("k", 5), ("v", 6)))
    with pytest.raises(ValueError, match="as many keys as values"):
        fluid.nets.scaled_dot_product_attention(q, k, v)
    with pytest.raises(TypeError, match="not of one"):
        fluid.nets.scaled_dot_product_attention(q, fluid.data("d", [2, 6, 4], "float64"), v)
    with pytest.raises(TypeError, match="whole number 1"):
        layers.Normal(1, 1.0)


def test_the_logarithm_of_a_softmax_is_that_of_its_shares() -> None:
    with fresh():
        x = fluid.data("x", [2, 3])
        columns, rows = fluid.layers.log_softmax(x, 0, "float64"), fluid.layers.log_softmax(x)
        ops = [op.type for op in fluid.default_main_program().global_block().ops]
        assert ops == ["cast", "softmax", "log", "softmax", "log"]
        fed = np.arange(6.0).reshape(2, 3).astype("float32")
        made = fluid.Executor().run(feed={"x": fed}, fetch_list=[columns, rows])
        for axis, value in enumerate(made):
            np.testing.assert_allclose(value, fed - np.log(np.exp(fed).sum(axis, keepdims=True)), rtol=1e-5)
        with pytest.raises(AssertionError, match="None"):
            fluid.layers.logsumexp(None)
