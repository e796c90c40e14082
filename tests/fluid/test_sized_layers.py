"""Layers whose sizes, bounds or settings may be variables, and layers of one op each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pstranspile.fluid as fluid
from pstranspile.fluid import layers
from tests.fluid.running import fresh


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    with fresh():
        yield


def run(*made: Any, **fed: Any) -> list[Any]:
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())
    return executor.run(feed=fed, fetch_list=list(made), return_numpy=False)


def op_of(made: Any) -> Any:
    return made.op


def test_strided_slice_takes_bounds_that_are_computed() -> None:
    x = fluid.data("x", [6, 5], "float32")
    starts, end = layers.fill_constant([2], "int32", 1), layers.fill_constant([1], "int32", 4)
    step = layers.fill_constant([1], "int32", 3)
    made = [
        layers.strided_slice(x, [0, 1], starts, [5, end], [2, 1]),
        layers.strided_slice(x, [0], [1], [6], [2]),
        layers.strided_slice(x, [0], [0], [6], [step]),
    ]
    assert [part.shape for part in made] == [(-1, -1), (3, 5), (-1, 5)]
    assert layers.strided_slice(x, [0, 1], [end, 0], [5, 4], [1, 2]).shape == (-1, 2)
    given = np.arange(30, dtype="float32").reshape(6, 5)
    got = run(*made, x=given)
    for a, b in zip(got, [given[1:5:2, 1:4], given[1:6:2], given[::3]], strict=True):
        np.testing.assert_array_equal(np.array(a), b)
    assert op_of(made[0]).input("EndsTensorList") == ["strided_slice_0.tmp_0", end.name]
    assert op_of(made[0]).attr("infer_flags") == [1, -1]


def test_dims_of_64_bits_are_cast_as_in_fluid() -> None:
    one, both = fluid.data("one", [1], "int64"), fluid.data("both", [2], "int64")
    made = [
        layers.fill_constant([2, one], "float32", 1.0),
        layers.fill_constant(both, "int64", 1),
        layers.gaussian_random([one, 3]),
    ]
    assert [op.type for op in fluid.default_main_program().global_block().ops] == [
        *["fill_constant", "cast", "fill_constant"],
        *["cast", "fill_constant"],
        *["cast", "fill_constant", "gaussian_random"],
    ]
    got = run(*made, one=np.array([4], "int64"), both=np.array([1, 5], "int64"))
    assert [np.array(part).shape for part in got] == [(2, 4), (1, 5), (4, 3)]


def test_randperm() -> None:
    drawn, again = layers.randperm(7, seed=3), layers.randperm(7, dtype="int32", seed=3)
    got = [np.array(part) for part in run(drawn, again)]
    assert (drawn.shape, drawn.stop_gradient) == ((7,), True)
    assert [part.dtype for part in got] == [np.int64, np.int32]
    assert all(sorted(part) == list(range(7)) for part in got)
    with pytest.raises(ValueError, match="n is 0"):
        layers.randperm(0)
    with pytest.raises(TypeError, match="int64, int32, not float32"):
        layers.randperm(3, dtype="float32")


def test_randint_has_the_dims_that_are_asked_for() -> None:
    dims = fluid.data("dims", [2], "int32")
    made = [layers.randint(3, shape=[2, 4]), layers.randint(3, shape=dims), layers.randint(3, shape=[dims[0], 4])]
    assert [part.shape for part in made] == [(2, 4), (-1, -1), (-1, -1)]
    assert [np.array(part).shape for part in run(*made, dims=np.int32([2, 4]))] == [(2, 4)] * 3


def test_lod_append() -> None:
    x, other = (fluid.data(name, [3, 4], "float32", lod_level=1) for name in "xy")
    rows = np.ones((3, 4), "float32")
    fed = {
        "x": fluid.create_lod_tensor(rows, [[1, 2]], fluid.CPUPlace()),
        "y": fluid.create_lod_tensor(rows, [[1, 1, 1]], fluid.CPUPlace()),
    }
    got = run(layers.lod_append(x, [0, 1, 2, 3]), layers.lod_append(x, other), **fed)
    assert [part.lod() for part in got] == [[[0, 1, 3], [0, 1, 2, 3]], [[0, 1, 2, 3]]]
    with pytest.raises(ValueError, match="level is a list"):
        layers.lod_append(x, 3)


def test_batch_norm_with_a_momentum_that_is_fed() -> None:
    x, momentum = fluid.data("x", [4, 3, 2, 2], "float32"), fluid.data("momentum", [1], "float32")
    y = layers.batch_norm(x, momentum=momentum, moving_mean_name="mean")
    assert op_of(y).input("MomentumTensor") == ["momentum"]
    given = np.arange(48, dtype="float32").reshape(4, 3, 2, 2)
    run(y, x=given, momentum=np.float32([0.25]))
    mean = np.array(fluid.global_scope().find_var("mean").get_tensor())
    np.testing.assert_allclose(mean, 0.75 * given.mean(axis=(0, 2, 3)), rtol=1e-6)


def test_lstm_of_a_gpu_is_built() -> None:
    x = fluid.data("x", [20, 5, 6], "float32")
    start = [layers.fill_constant([1, 5, 4], "float32", 0.0) for _ in range(2)]
    made = layers.lstm(x, *start, max_len=20, hidden_size=4, num_layers=2, is_bidirec=True)
    op = op_of(made[0])
    weight, cache = (fluid.default_main_program().global_block().var(op.input(slot)[0]) for slot in ("W", "Cache"))
    # Gates of both directions: 6 inputs, then the 8 outputs of the layer below; 4 states; two biases
    assert weight.shape == (2 * 16 * (6 + 4 + 2) + 2 * 16 * (8 + 4 + 2),)
    assert (op.type, cache.persistable, cache.type) == ("cudnn_lstm", True, fluid.core.VarDesc.VarType.RAW)


def test_groups_are_scaled_and_shifted_where_that_is_asked_for() -> None:
    x = fluid.data("x", [2, 4, 3, 3], "float32")
    for attrs, slots in ({}, ["X"]), ({"param_attr": "w", "bias_attr": "b"}, ["X", "Scale", "Bias"]):
        op = op_of(layers.group_norm(x, 2, **attrs))
        assert {slot for slot in op.input_names if op.input(slot)} == set(slots)


def test_random_crops_begin_at_a_seed_and_move_from_step_to_step() -> None:
    x = fluid.data("x", [40], "float32")
    first = layers.random_crop(x, [2], seed=7)
    moving = op_of(first).input("Seed")
    assert (moving, op_of(first).output("SeedOut")) == (["random_crop_seed_0"], moving)
    assert op_of(first).attr("startup_seed") == 7
    places = {float(np.array(run(first, x=np.arange(40, dtype="float32"))[0])[0]) for _ in range(5)}
    assert len(places) > 1
    with pytest.raises(ValueError, match="seed is a whole number"):
        layers.random_crop(x, [2], seed="7")


def test_variables_are_called_as_in_fluid() -> None:
    x = fluid.data("x", [3, 3], "float32")
    images = fluid.data("images", [1, 2, 3, 3], "float32")
    rows = fluid.data("rows", [-1, 5], "float32", lod_level=1)
    made = [
        layers.tril(x),
        layers.full([2], 1.0),
        layers.fsp_matrix(images, images),
        layers.Print(x),
        x.astype("int32"),
        layers.spectral_norm(x),
        layers.ctc_greedy_decoder(rows, blank=0),
    ]
    assert [part.name for part in made] == [
        "tril_0.tmp_0",
        "full_0.tmp_0",
        "fsp_matrix_0.tmp_0",
        "print_x_0.tmp_0",
        "tmp_0",
        "_generated_var_0",
        "ctc_greedy_decoder_0.tmp_0",
    ]
    assert op_of(made[-1]).input("Input") == ["top_k_0.tmp_1"]


def test_dims_are_known_where_fluid_knows_them() -> None:
    rows = fluid.data("rows", [-1, 5], "float32", lod_level=1)
    table = layers.control_flow.lod_rank_table(rows)
    unit = layers.eye(2, 3, batch_shape=[4, 2])
    made = [layers.has_nan(rows), layers.reorder_lod_tensor_by_rank(rows, table), unit]
    assert [part.shape for part in made] == [(1,), (-1, 5), (4, 2, 2, 3)]
    assert layers.array_length(layers.create_array("float32")).shape == (1,)
    with pytest.raises(TypeError, match="above 0, not 0"):
        layers.eye(2, batch_shape=[0])


def test_the_number_of_whole_numbers_is_written_as_one() -> None:
    filled = layers.fill_constant([2], "int32", 3)
    assert op_of(filled).attr("str_value") == "3"


def test_a_step_of_a_search_names_its_scores_first() -> None:
    ids, scores = fluid.data("ids", [2, 1], "int64", lod_level=2), fluid.data("scores", [2, 1], "float32", lod_level=2)
    found = layers.beam_search(ids, scores, ids, scores, beam_size=2, end_id=0)
    assert [part.name for part in found] == ["beam_search_0.tmp_1", "beam_search_0.tmp_0"]


def test_what_is_left_of_a_crop_is_declared_where_it_is_known() -> None:
    with fresh():
        x, number = fluid.data("x", [None, 5, 6]), fluid.data("n", [1], "int32")
        assert layers.crop_tensor(x, [number, -1, 4], [0, 2, number]).shape == (-1, 3, 4)
        assert layers.crop_tensor(x, [-1, -1, 4], number).shape == (-1, -1, 4)


def test_what_gives_dims_to_a_crop_is_trained_through_other_ops() -> None:
    """So did losses of boxes, whose centres give dims, lose the gradients of these centres."""
    x = layers.fc(fluid.data("x", [2, 4]), 3)
    cut = layers.crop(layers.fill_constant([4, 4], "float32", 1.0), shape=x)
    fluid.optimizer.SGD(0.1).minimize(layers.mean(layers.sigmoid(x) + cut))
    assert [op.type for op in fluid.default_main_program().global_block().ops].count("sgd") == 2


@pytest.mark.parametrize(("size", "said"), [(0, "the size of fc is 0"), (-3, "would be of dims")])
def test_fc_of_no_size_is_refused(size: int, said: str) -> None:
    import pstranspile.fluid as fluid

    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.layers.data("x", [4])
        with pytest.raises(Exception, match=said):
            fluid.layers.fc(x, size)


def _image() -> Any:
    return fluid.data("image", [2, 3, 8, 8])


FLOATS_THAT_FLUID_TAKES: dict[str, Any] = {
    "fill_constant": lambda dim: layers.fill_constant([dim, 3], "float32", 0),
    "ones": lambda dim: layers.ones([dim, 3], "float32"),
    "zeros": lambda dim: layers.zeros([dim, 3], "float32"),
    "uniform_random": lambda dim: layers.uniform_random([dim, 3]),
    "gaussian_random": lambda dim: layers.gaussian_random([dim, 3]),
    "randint": lambda dim: layers.randint(0, 9, shape=[dim, 3]),
    "image_resize": lambda dim: layers.image_resize(_image(), [dim, 3]),
    "resize_nearest": lambda dim: layers.resize_nearest(_image(), [dim, 3]),
}


@pytest.mark.parametrize("name", FLOATS_THAT_FLUID_TAKES)
@pytest.mark.parametrize("dim", [4.0, 4.5, np.float64(4), np.float32(4), np.int64(4), np.array([4])])
def test_dims_of_64_bits_may_be_floats(name: str, dim: Any) -> None:
    assert FLOATS_THAT_FLUID_TAKES[name](dim).shape[-2:] == (4, 3)


def test_a_row_for_padding_may_be_a_float() -> None:
    ids = fluid.data("ids", [2, 1], "int64")
    assert op_of(layers.embedding(ids, [10, 3], padding_idx=4.0)).attr("padding_idx") == 4


OTHER_DIMS: dict[str, Any] = {
    "layers.data": lambda dim: layers.data("x", [dim]),
    "fluid.data": lambda dim: fluid.data("x", [None, dim]),
    "create_var": lambda dim: fluid.default_main_program().global_block().create_var(name="x", shape=[dim]),
    "fc": lambda dim: layers.fc(fluid.data("x", [2, 3]), dim),
    "reshape": lambda dim: layers.reshape(fluid.data("x", [2, 4]), [-1, dim]),
    "embedding": lambda dim: layers.embedding(fluid.data("ids", [2, 1], "int64"), [10, dim]),
    "conv2d": lambda dim: layers.conv2d(_image(), dim, 3),
    "eye": lambda dim: layers.eye(dim),
    "space_to_depth": lambda dim: layers.space_to_depth(fluid.data("x", [2, 16, 4, 4]), dim),
    "one_hot": lambda dim: layers.one_hot(fluid.data("ids", [2, 1], "int64"), dim),
    "create_parameter": lambda dim: layers.create_parameter([dim, 3], "float32"),
}


@pytest.mark.parametrize("name", OTHER_DIMS)
@pytest.mark.parametrize("dim", [4.0, 4.5, np.float64(4), "4"])
def test_other_dims_are_no_floats_and_no_texts(name: str, dim: Any) -> None:
    with pytest.raises(TypeError):
        OTHER_DIMS[name](dim)


@pytest.mark.parametrize("name", OTHER_DIMS)
@pytest.mark.parametrize("dim", [4, np.int64(4), np.int32(4)])
def test_numbers_of_numpy_are_dims(name: str, dim: Any) -> None:
    made = OTHER_DIMS[name](dim)
    assert all(type(number) is int for number in made.shape)


@pytest.mark.parametrize("name", ["layers.data", "fluid.data", "create_var", "fc", "reshape", "embedding", "conv2d"])
def test_an_array_of_one_element_is_a_dim(name: str) -> None:
    assert 4 in OTHER_DIMS[name](np.array([4])).shape


MISSPELT: dict[str, tuple[Any, str]] = {
    "sequence_pool": (lambda: layers.sequence_pool(_sequences(4), "summ"), "pooltype is 'SUMM'; did you mean SUM?"),
    "sequence_conv_pool": (
        lambda: fluid.nets.sequence_conv_pool(_sequences(4), 3, 3, pool_type="summ"),
        "pooltype is 'SUMM'; did you mean SUM?",
    ),
    "dynamic_lstm": (
        lambda: layers.dynamic_lstm(_sequences(16), 16, gate_activation="sigmoidd"),
        "gate_activation is 'sigmoidd'; did you mean sigmoid?",
    ),
    "dynamic_lstmp": (
        lambda: layers.dynamic_lstmp(_sequences(16), 16, 3, proj_activation="tahn"),
        "proj_activation is 'tahn'; did you mean tanh?",
    ),
    "dropout": (
        lambda: layers.dropout(_image(), 0.5, dropout_implementation="upscale_in_trian"),
        "dropout_implementation is 'upscale_in_trian'; did you mean upscale_in_train?",
    ),
    "batch_norm": (
        lambda: layers.batch_norm(_image(), data_layout="NCWH"),
        "data_layout is 'NCWH'; did you mean NCHW?",
    ),
    "data_norm": (
        lambda: layers.data_norm(fluid.data("x", [2, 4]), data_layout="NCWH"),
        "data_layout is 'NCWH', it must be 'NCHW' or 'NHWC'",
    ),
    "lrn": (lambda: layers.lrn(_image(), data_format="NCWH"), "data_format is 'NCWH'; did you mean NCHW?"),
    "kldiv_loss": (
        lambda: layers.kldiv_loss(x := fluid.data("x", [2, 4]), x, reduction="batchmeen"),
        "reduction is 'batchmeen'; did you mean batchmean?",
    ),
    "Print": (
        lambda: layers.Print(fluid.data("x", [2, 4]), print_phase="forwardd"),
        "print_phase is 'FORWARDD'; did you mean FORWARD?",
    ),
    "combiner": (
        lambda: fluid.contrib.layers.fused_embedding_seq_pool(_sequences(1, "int64"), [10, 4], combiner="max"),
        "combiner is 'max', it must be one of sum",
    ),
}


def _sequences(width: int, dtype: str = "float32") -> Any:
    return fluid.data("q", [None, width], dtype, lod_level=1)


@pytest.mark.parametrize("name", MISSPELT)
def test_misspelt_texts_are_refused_with_the_nearest(name: str) -> None:
    make, message = MISSPELT[name]
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


@pytest.mark.parametrize("kind", ["sum", "average", "sqrt", "max", "last", "first"])
def test_poolings_of_sequences(kind: str) -> None:
    assert op_of(layers.sequence_pool(_sequences(4), kind)).attr("pooltype") == kind.upper()
