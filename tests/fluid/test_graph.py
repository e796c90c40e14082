"""What scripts ask of programs, their descriptions, scopes and tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pstranspile.fluid as fluid
from pstranspile.fluid.missing import Missing, NotHere
from pstranspile.fluid.proto import framework_pb2
from pstranspile.fluid.running.flags import Flags
from tests.fluid.running import fresh


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    with fresh():
        yield


def test_names_of_modules_come_from_where_fluid_has_them_or_fail_at_their_use() -> None:
    assert fluid.executor.core is fluid.core
    assert fluid.io.Variable is fluid.Variable
    assert isinstance(fluid.executor._switch_scope, Missing)
    with pytest.raises(NotHere, match=r"fluid\.framework\.ParamBase is not part"):
        fluid.framework.ParamBase(1)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fluid.executor.nothing


def test_programs_can_be_written_as_descriptions_alone() -> None:
    core = fluid.core
    desc = core.ProgramDesc()
    block = desc.block(0)
    for name, dims in ((b"x", [-1, 4]), (b"w", [4, 2])):
        block.var(name).set_shape(dims)
        block.var(name).set_dtype(core.VarDesc.VarType.FP32)
    op, first = block.append_op(), block._prepend_op()
    op.set_type("mul")
    op.set_input("X", ["x"])
    op.set_input("Y", ["w"])
    op.set_output("Out", ["y"])
    op._set_attr("y_num_col_dims", 1)
    op.check_attrs()
    assert op.attr("x_num_col_dims") == 1
    out = block.var(b"y")
    op.infer_shape(block)
    assert (out.shape(), out, [block.op(0), block.op(1)]) == ([-1, 2], block.find_var(b"y"), [first, op])
    block._remove_op(0, 1)
    feed = {"x": np.ones((3, 4), "float32"), "w": np.ones((4, 2), "float32")}
    program = fluid.Program.parse_from_string(desc.serialize_to_string())
    (made,) = fluid.Executor(fluid.CPUPlace()).run(program, feed=feed, fetch_list=["y"])
    assert made.tolist() == [[4.0, 4.0]] * 3
    inner = desc.append_block(block)
    assert (inner.parent, desc.num_blocks(), inner.has_var_recursive(b"x")) == (0, 2, True)
    copy = core.ProgramDesc(desc)
    assert copy.serialize_to_string() == desc.serialize_to_string()
    message = framework_pb2.BlockDesc.FromString(block.serialize_to_string())
    assert message.ops[0].SerializeToString() == op.serialize_to_string()
    assert message.vars[0].SerializeToString() == block.var(b"x").serialize_to_string()


def test_messages_are_written_and_read_as_text_with_the_names_of_types() -> None:
    from google.protobuf import text_format

    fluid.layers.scale(fluid.data("x", [2], "float32"), 2.0)
    desc = framework_pb2.ProgramDesc.FromString(fluid.default_main_program().desc.serialize_to_string())
    text = text_format.MessageToString(desc)
    assert all(part in text for part in ("type: LOD_TENSOR", "data_type: FP32", "type: BOOLEAN"))
    assert text_format.Parse(text, framework_pb2.ProgramDesc()) == desc


def test_edges_between_ops_get_names_of_their_own() -> None:
    names = [fluid.framework.generate_control_dev_var_name() for _ in range(2)]
    assert names[0] != names[1]
    assert all(name.startswith(fluid.framework.CONTROL_DEP_VAR_PREFIX) for name in names)


def test_ops_of_descriptions_take_any_attribute() -> None:
    block = fluid.core.ProgramDesc().block(0)
    op, kinds = block.append_op(), fluid.core.AttrType
    op.set_type("of_mine")
    given = {
        "i": 1,
        "l": 2**40,
        "f": 0.5,
        "b": False,
        "s": "a",
        "is": [1, 2],
        "ls": [1, 2**40],
        "fs": [0.5],
        "bs": [True],
    }
    for name, value in given.items():
        op._set_attr(name, value)
    op.set_block_attr("block", block)
    assert {name: op.attr(name) for name in op.attr_names()} == {**given, "block": 0}
    wanted = [kinds.INT, kinds.LONG, kinds.FLOAT, kinds.INT, kinds.STRING, kinds.INTS, kinds.LONGS, kinds.FLOATS]
    assert [op.attr_type(name) for name in op.attr_names()] == [*wanted, kinds.INTS, kinds.BLOCK]
    assert f"{op.attr_type('l')} {kinds.INTS!r}" == "AttrType.LONG AttrType.INTS"
    with pytest.raises(TypeError, match="no attribute holds"):
        op._set_attr("none", object())


def test_descriptions_of_readers_say_what_they_yield() -> None:
    kinds = fluid.core.VarDesc.VarType
    reader = fluid.core.ProgramDesc().block(0).var(b"reader")
    reader.set_type(kinds.READER)
    reader.set_shapes([[2, 3], [4]])
    reader.set_dtypes([kinds.INT64, kinds.FP64])
    reader.set_lod_levels([1, 0])
    made = reader.type(), reader.shapes(), reader.dtypes(), reader.lod_levels()
    assert made == (kinds.READER, [[2, 3], [4]], [kinds.INT64, kinds.FP64], [1, 0])


def test_a_variable_without_an_element_type_is_not_shown_as_if_it_had_one() -> None:
    block = fluid.default_main_program().current_block()
    block.create_var(name="t", shape=[0, 1])
    with pytest.raises(ValueError, match="t is declared without an element type"):
        fluid.default_main_program().to_string(True)
    block.append_op(type="fill_constant", outputs={"Out": "t"}, attrs={"shape": [0, 1], "dtype": 5})
    assert "t: LOD_TENSOR.float32[0, 1]" in fluid.default_main_program().to_string(True)


def test_lists_of_places_and_tables_on_servers_have_their_kind_and_dims() -> None:
    places = fluid.layers.get_places(device_count=3)
    assert places.type is fluid.core.VarDesc.VarType.PLACE_LIST
    fluid.Executor(fluid.CPUPlace()).run(fluid.default_main_program())
    scope = fluid.core.Scope()
    for tensor in (scope.var("a").get_tensor(), scope.var("b").get_selected_rows().get_tensor()):
        fluid.op.Operator("fake_init", Out="a", shape=[4, 8]).run(scope, fluid.CPUPlace())
        fluid.op.Operator("fake_init", Out="b", shape=[4, 8]).run(scope, fluid.CPUPlace())
        assert tensor._get_dims() == [4, 8]


def test_descriptions_have_the_methods_of_fluids() -> None:
    x = fluid.data("x", [None, 3])
    fluid.layers.fc(x, 2)
    block = fluid.default_main_program().desc.block(0)
    op = block.op(0)
    assert (op.type(), op.input_names(), op.input_arg_names()) == ("mul", ["X", "Y"], ["x", "fc_0.w_0"])
    assert op.attr_type("x_num_col_dims") is fluid.core.AttrType.INT
    op.remove_attr("x_num_col_dims")
    assert not op.has_attr("x_num_col_dims")
    assert block.find_var(b"x").shape() == [-1, 3]
    assert block.find_var("nothing") is None


def test_an_op_that_is_given_no_inputs_has_no_slots_of_them() -> None:
    block = fluid.default_main_program().global_block()
    y = block.create_var(name="y", dtype="float32", shape=[2])
    for inputs, slots in ((None, []), ({}, ["ShapeTensor", "ShapeTensorList", "ValueTensor"])):
        op = block.append_op("fill_constant", inputs, {"Out": y}, {"shape": [2], "dtype": y.dtype})
        assert op.desc.input_names() == slots
    fluid.layers.Recv("127.0.0.1:6174", [y])
    assert block.ops[-1].desc.input_names() == []


def test_what_is_made_of_a_variable_without_dims_has_one_of_length_0() -> None:
    x = fluid.default_main_program().global_block().create_var(name="x", dtype="float32")
    y = fluid.layers.relu(x)
    loss = fluid.layers.reduce_sum(y)
    assert (x.shape, y.shape, loss.shape) == ((), (0,), (1,))
    (total,) = fluid.Executor().run(feed={"x": np.ones((2, 3), "float32")}, fetch_list=[loss])
    assert total == 6


def test_what_a_program_refuses() -> None:
    program = fluid.default_main_program()
    with pytest.raises(ValueError, match="whole number"):
        program.random_seed = "seed"  # type: ignore[assignment]
    with pytest.raises(TypeError, match="a Program's"):
        program._copy_param_info_from("program")  # type: ignore[arg-type]
    block = program.global_block()
    block.create_var(name="v", shape=[2, 3], dtype="float32")
    assert block.create_var(name="v").shape == (2, 3)
    with pytest.raises(ValueError, match="declared as"):
        block.create_var(name="v", shape=[3, 3])
    for shape, dtype in [(None, "float32"), ([], "float32"), ([-1], "float32"), ([1], None)]:
        with pytest.raises(ValueError, match="known dims"):
            block.create_parameter(name="p", shape=shape, dtype=dtype)


def test_the_initializer_of_a_blocks_parameter_is_an_op_of_the_block() -> None:
    program = fluid.default_main_program()
    start = fluid.initializer.Constant(1.5)
    made = program.global_block().create_parameter(name="p", shape=[2], dtype="float32", initializer=start)
    assert fluid.Executor().run(program, fetch_list=[made])[0].tolist() == [1.5, 1.5]
    assert len(program.to_string(True, True)) > len(program.to_string(True))


def test_scopes_hold_whole_numbers_and_lists_and_see_their_parents_variables() -> None:
    scope = fluid.core.Scope()
    scope.var("n").set_int(10)
    assert scope.new_scope().find_var("n").get_int() == 10  # type: ignore[union-attr]
    tensor = fluid.LoDTensor([[2, 1]])
    tensor.set(np.ones((3, 1)), fluid.CPUPlace())
    fluid.core.set_feed_variable(scope, tensor, "feed", 1)
    assert fluid.core.get_fetch_variable(scope, "feed", 1).recursive_sequence_lengths() == [[2, 1]]
    scope._remove_from_pool()
    with pytest.raises(RuntimeError, match="nonexistent scope"):
        scope._remove_from_pool()
    funcs = fluid.default_scope_funcs
    funcs.scoped_function(lambda: funcs.var("inner").set_int(1))
    assert funcs.find_var("inner") is None


def test_an_array_of_a_tensor_is_a_copy() -> None:
    held = fluid.global_scope().var("v").get_tensor()
    held.set(np.zeros(2), fluid.CPUPlace())
    array = np.array(held)
    array[:] = 1
    assert np.array(held).tolist() == [0, 0]
    assert np.array(fluid.core.from_dlpack(held._to_dlpack())).tolist() == [0, 0]


def test_lengths_of_sequences_fit_each_other() -> None:
    tensor = fluid.LoDTensor()
    with pytest.raises(ValueError, match="are 0 parts, not 1"):
        tensor.set_recursive_sequence_lengths([[0], [2]])
    with pytest.raises(AssertionError, match="have the lengths"):
        fluid.create_lod_tensor([[1, 2]], [[3]], fluid.CPUPlace())


def test_flags_are_remembered_and_private_ones_refused() -> None:
    fluid.set_flags({"FLAGS_check_nan_inf": 1})
    assert fluid.get_flags("FLAGS_check_nan_inf") == {"FLAGS_check_nan_inf": True}
    assert isinstance(fluid.core.globals()["FLAGS_eager_delete_tensor_gb"], float)
    fluid.set_flags({"FLAGS_check_nan_inf": False})
    with pytest.raises(ValueError, match="no flag of Fluid that scripts can read"):
        fluid.get_flags("FLAGS_use_mkldnn")
    with pytest.raises(ValueError, match="no flag of Fluid that scripts can set"):
        fluid.set_flags({"FLAGS_use_mkldnn": True})
    with pytest.raises(RuntimeError, match="can't be set"):
        fluid.core.globals()["FLAGS_use_mkldnn"] = True


def test_variables_by_themselves_have_dims_of_whole_numbers() -> None:
    layers = fluid.layers
    for shape in (1, [1.0, 2.0]):
        with pytest.raises(TypeError, match="list of whole numbers"):
            layers.create_parameter(shape, "float32")
        with pytest.raises(TypeError, match="list of whole numbers"):
            layers.create_global_var(shape, 2.0, "float32")
    with pytest.raises(TypeError, match="starts by an initializer"):
        layers.create_parameter([2], "float32", default_initializer=np.zeros(2))
    assert layers.create_parameter([np.int64(2)], "float32").shape == (2,)
    made = layers.create_global_var([2], 2.0, "float32")
    assert not made.persistable
    assert fluid.default_startup_program().global_block().var(made.name).persistable


def test_reshape_in_place_gives_the_variable_other_dims_and_trains() -> None:
    """As in Fluid: the ops after it see the new dims, and gradients come back with the old ones."""

    def losses(inplace: bool) -> tuple[list[float], Any]:
        with fresh():
            x = fluid.data("x", [4, 6])
            constant = fluid.ParamAttr(initializer=fluid.initializer.Constant(0.1))
            first = fluid.layers.fc(x, 6, param_attr=constant)
            made = fluid.layers.reshape(first, [-1, 3], inplace=inplace)
            assert (made.name == first.name) is inplace
            assert (first.shape == (8, 3)) is inplace
            loss = fluid.layers.mean(fluid.layers.square(fluid.layers.fc(made, 2, param_attr=constant)))
            fluid.optimizer.SGD(0.1).minimize(loss)
            block = fluid.default_main_program().global_block()
            executor = fluid.Executor(fluid.CPUPlace())
            executor.run(fluid.default_startup_program())
            feed = {"x": np.arange(24, dtype="float32").reshape(4, 6) / 24}
            found = [float(executor.run(feed=feed, fetch_list=[loss])[0]) for _ in range(3)]
            return found, block.var(first.name + "@GRAD").shape

    assert losses(True) == losses(False)
    assert losses(True)[1] == (4, 6)


def test_ops_say_where_they_were_made_and_what_is_no_op() -> None:
    block = fluid.default_main_program().global_block()
    x = fluid.data("x", [2, 3])
    op = fluid.layers.scale(x, 2.0).op
    assert "op_callstack" in op.attr_names
    (place,) = op.attr("op_callstack")
    assert "test_graph.py" in place
    with pytest.raises(ValueError, match=r'"scael" has not been registered\. Did you mean scale\?'):
        block.append_op(type="scael")
    with pytest.raises(ValueError, match="can not be None"):
        block.append_op()


def test_what_is_fed_is_marked_as_in_a_program_of_as_many_blocks() -> None:
    main, other = fluid.default_main_program(), fluid.Program()
    fluid.data("x", [2])
    with fluid.program_guard(other):
        fluid.data("x", [2]).is_data = False
    other._copy_data_info_from(main)
    assert other.global_block().var("x").is_data
    other._create_block()
    with pytest.raises(ValueError, match="1 and 2 blocks"):
        other._copy_data_info_from(main)


def test_a_global_seed_is_that_of_later_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pstranspile.fluid.graph.program.GLOBAL_SEED", [0])
    first = fluid.Program()
    first.global_seed(102)
    assert (first.random_seed, fluid.Program().random_seed) == (102, 102)


def test_scripts_note_what_they_want_of_variables() -> None:
    var = fluid.layers.create_global_var([1], 0.5, "float32")
    var._set_info("kept", "here")
    assert (var._get_info("kept"), var._get_info("other")) == ("here", None)
    rows = fluid.core.SelectedRows([0, 4], 10)
    rows.get_tensor().set(np.ones((2, 3), "float32"), fluid.CPUPlace())
    assert (rows.rows(), rows.height(), rows.numel()) == ([0, 4], 10, 6)
    assert fluid.core.get_op_attrs_default_value(b"mul")["x_num_col_dims"] == 1
    assert fluid.core.size_of_dtype("float64") == 8


def test_an_op_declares_what_it_writes_whatever_was_declared() -> None:
    x, block = fluid.data("x", [None, 3]), fluid.default_main_program().global_block()
    out = block.create_var(name="out", shape=[7], dtype="float64", persistable=True)
    block.append_op(type="relu", inputs={"X": [x]}, outputs={"Out": [out]})
    assert (out.shape, out.dtype) == ((-1, 3), fluid.core.VarDesc.VarType.FP32)
    flat = fluid.layers.flatten(fluid.data("y", [None, 10, 4]), axis=2)
    assert flat.shape == (-10, 4)  # Fluid multiplies unknown dims, too


def test_dims_of_0_are_dims_that_fluid_does_not_know() -> None:
    x = fluid.data("x", [None, 3, None, None])
    spread = fluid.layers.expand_as(fluid.layers.reduce_mean(x, [1, 2, 3], keep_dim=True), x)
    assert spread.shape == (0, 0, 0, 0)
    assert len(fluid.layers.pool2d(spread, 3, pool_stride=1).shape) == 4
    assert fluid.layers.reshape(spread, [-1]).shape == (-1,)
    assert fluid.layers.squeeze(fluid.data("q", [None, 1, 3]), []).shape == (-1, 3)
    fluid.layers.create_parameter([2, 3], "float32", "averaged")
    assert fluid.layers.less_than(fluid.data("row", [1, 3]), fluid.data("rows", [None, 3])).shape == (1, 3)
    average = fluid.optimizer.ExponentialMovingAverage(0.9)
    assert average.restore_program.global_block().var("averaged").shape == (0,)
    weights = fluid.layers.data("weights", [8, 2, 2])
    y = fluid.data("y", [4, 3, 2, 2])
    fluid.layers.smooth_l1(y, y, fluid.layers.expand_as(weights, y), spread)


def test_what_fluid_refuses_only_to_run_is_built() -> None:
    x, y = fluid.data("x", [2, 3]), fluid.data("y", [2, 3], "int64")
    assert fluid.layers.equal(x, y).dtype == fluid.core.VarDesc.VarType.BOOL
    assert (x + y).shape == (2, 3)
    assert fluid.layers.squeeze(x, [1]).shape == (2,)
    assert fluid.layers.sequence_conv(x, 4).shape == (2, 4)
    array = fluid.initializer.NumpyArrayInitializer(np.ones(2, "float32"))
    weight = fluid.layers.create_parameter([3, 1], "float32", default_initializer=array)
    start = fluid.default_startup_program().global_block()
    assert (weight.shape, start.var(weight.name).shape, start.ops[0].attr("shape")) == ((3, 1), (2,), [2])
    with pytest.raises(ValueError, match="not a dim of size 1"):
        fluid.layers.squeeze(x, [5])


def test_a_copy_for_inference_has_no_reader() -> None:
    reader = fluid.layers.py_reader(4, [[-1, 3]], ["float32"])
    fluid.layers.fc(fluid.layers.read_file(reader), 1)
    copy = fluid.default_main_program()._inference_optimize()
    assert [op.type for op in copy.global_block().ops] == ["mul", "elementwise_add"]
    kinds = fluid.core.VarDesc.VarType
    assert kinds.READER not in [var.type for var in copy.list_vars()]


def test_an_op_whose_variable_is_renamed_has_its_role_for_the_new_one() -> None:
    fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(fluid.layers.fc(fluid.data("x", [2, 3]), 1, bias_attr=False)))
    op = next(op for op in fluid.default_main_program().global_block().ops if op.type == "mul_grad")
    op._rename_input("fc_0.w_0", "other")
    assert op.attr("op_role_var") == ["other", "fc_0.w_0@GRAD"]


def test_the_environment_sets_flags_until_they_are_asked_for(monkeypatch: pytest.MonkeyPatch):
    for name, value in {"check_nan_inf": "true", "paddle_num_threads": "3", "use_mkldnn": "0"}.items():
        monkeypatch.setenv(f"FLAGS_{name}", value)
    flags = Flags()
    assert [flags[f"FLAGS_{name}"] for name in ("check_nan_inf", "paddle_num_threads", "use_mkldnn")] == [
        True,
        3,
        False,
    ]
    monkeypatch.setenv("FLAGS_paddle_num_threads", "4")
    assert flags["FLAGS_paddle_num_threads"] == 3
    assert not flags.is_public("FLAGS_use_mkldnn")
    assert "FLAGS_other" not in flags


def test_a_loss_notes_whether_it_is_to_be_stable() -> None:
    logits, label = fluid.data("logits", [2, 3]), fluid.data("label", [2, 1], "int64")
    loss = fluid.layers.softmax_with_cross_entropy(logits, label, numeric_stable_mode=False)
    assert loss.op.attr("numeric_stable_mode") is False
