"""Ops that are run alone, their declarations, and the ops of their gradients, as scripts of op tests use them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import pstranspile.fluid as fluid
from pstranspile.fluid import op as ops
from pstranspile.fluid.proto import framework_pb2
from tests.fluid.running import fresh

core = fluid.core


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    with fresh():
        yield


def test_an_op_reads_and_writes_variables_of_a_scope() -> None:
    scope = core.Scope()
    x = scope.var("x").get_tensor()
    x.set(np.float32([[1, 2], [3, 4]]), fluid.CPUPlace())
    scope.var("y").get_tensor()
    op = ops.Operator("scale", X="x", Out="y", scale=2.0, op_role=0)
    op.run(scope, fluid.CPUPlace())
    x._set_float_element(0, 5.0)
    op.run(scope, fluid.CPUPlace())
    assert np.array(scope.find_var("y").get_tensor()).tolist() == [[10, 4], [6, 8]]
    assert (op.type(), op.input_vars(), op.output_vars()) == ("scale", ["x"], ["y"])


def test_an_op_alone_takes_ragged_and_sparse_values() -> None:
    scope, place = core.Scope(), fluid.CPUPlace()
    ragged = scope.var("x").get_tensor()
    ragged.set_recursive_sequence_lengths([[1, 2]])
    ragged.set(np.float32([[1], [2], [3]]), place)
    ops.Operator("sequence_pool", X="x", Out="out", MaxIndex="index", pooltype="SUM").run(scope, place)
    assert np.array(scope.find_var("out").get_tensor()).tolist() == [[1], [5]]
    rows = scope.var("grad").get_selected_rows()
    rows.set_height(3)
    rows.set_rows([2])
    rows.sync_index()
    rows.get_tensor().set(np.float32([[1, 1]]), place)
    scope.var("w").get_tensor().set(np.zeros((3, 2), "float32"), place)
    scope.var("rate").get_tensor().set(np.float32([0.5]), place)
    ops.Operator("sgd", Param="w", Grad="grad", LearningRate="rate", ParamOut="w").run(scope, place)
    assert np.array(scope.find_var("w").get_tensor()).tolist() == [[0, 0], [0, 0], [-0.5, -0.5]]


def test_an_op_alone_is_shown_as_in_fluid() -> None:
    assert str(ops.Operator("sum", X=["a", "b"], Out="z")) == "Op(sum), inputs:{X[a, b]}, outputs:{Out[z]}."
    assert isinstance(ops.Operator(type="sum", X=["a"], Out="z"), core.Operator)


def test_declarations_are_messages() -> None:
    proto = fluid.framework.OpProtoHolder.instance().get_op_proto("reshape2")
    assert [slot.name for slot in proto.inputs if slot.dispensable] == ["Shape", "ShapeTensor"]
    assert [slot.name for slot in proto.outputs if slot.intermediate] == ["XShape"]
    assert {attr.name: attr.type for attr in proto.attrs}["shape"] == framework_pb2.INTS
    assert framework_pb2.OpProto.FromString(core.get_all_op_protos()[0]).type == ops.get_all_op_protos()[0].type
    assert "reshape2" in ops.Operator.types()
    assert "reshape2_grad" not in ops.Operator.types()
    assert ops.Operator.get_op_input_names("sum") == ["X"]
    assert ops.Operator.get_op_outputs("split") == [("Out", True)]
    assert "op_role" in ops.Operator.get_op_attr_names("sum")
    with pytest.raises(ValueError, match="not been registered"):
        fluid.framework.OpProtoHolder.instance().get_op_proto("nothing")


def test_what_an_op_alone_refuses() -> None:
    with pytest.raises(ValueError, match="not registered"):
        ops.Operator("nothing", X="x")
    with pytest.raises(ValueError, match="by name"):
        ops.Operator("sum", "x")
    with pytest.raises(ValueError, match="X takes one variable, not 2"):
        ops.Operator("relu", X=["a", "b"], Out="z")
    with pytest.raises(NotImplementedError, match="sub_block"):
        ops.Operator("while", sub_block=1)
    with pytest.raises(TypeError, match="OpProto"):
        ops.OpDescCreationMethod("relu")


def test_the_gradient_of_an_op_can_be_put_into_a_program() -> None:
    x = fluid.data("x", [2, 3])
    x.stop_gradient = False
    y = fluid.layers.fc(x, 4)
    forward = fluid.default_main_program().global_block().ops[0].desc
    (gradient,), of = core.get_grad_op_desc(forward, {"x@GRAD"}, [])
    assert (gradient.type(), gradient.output("X@GRAD")) == ("mul_grad", [])
    assert of[f"{forward.output('Out')[0]}@GRAD"] == forward.output("Out")[0]
    gradient._set_attr("x_num_col_dims", 1)
    block = fluid.default_main_program().global_block()
    for name in gradient.input_arg_names():
        if "@GRAD" in name:
            block.create_var(name=name, shape=y.shape, dtype="float32")
    for name in gradient.output_arg_names():
        block.create_var(name=name)
    placed = block.desc.append_op()
    placed.copy_from(gradient)
    placed.infer_var_type(block.desc)
    placed.infer_shape(block.desc)
    assert block.var(gradient.output("Y@GRAD")[0]).shape == (3, 4)
    assert [core.has_grad_op_maker(name) for name in ("mul", "accuracy")] == [True, False]
    assert not core.has_infer_inplace("relu")
    assert "mul_grad" in core._get_all_register_op_kernels()


def test_an_op_alone_reads_an_array_and_fills_the_elements_of_sparse_rows() -> None:
    scope, place = core.Scope(), fluid.CPUPlace()
    array = scope.var("a").get_lod_tensor_array()
    for value in (1.0, 2.0):
        tensor = core.LoDTensor()
        tensor.set(np.float32([value]), place)
        array.append(tensor)
    ops.Operator("tensor_array_to_tensor", X="a", Out="out", OutIndex="index", axis=0).run(scope, place)
    assert np.array(scope.find_var("out").get_tensor()).tolist() == [1, 2]
    rows = scope.var("rows").get_selected_rows()
    ops.Operator("fill_constant", shape=[2, 3], value=3.5, Out="rows").run(scope, place)
    assert np.array(rows.get_tensor()).tolist() == [[3.5] * 3] * 2
