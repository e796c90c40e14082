"""Layers as objects, which scripts of programs derive from `fluid.dygraph.Layer`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pstranspile import fluid
from pstranspile.fluid import dygraph
from pstranspile.fluid.missing import NotHere


class TwoPartsNet(dygraph.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.rows = dygraph.Embedding([10, 4], padding_idx=-1)
        self.out = dygraph.nn.Linear(4, 2, act="relu")
        self.scale = self.create_parameter(
            [1], fluid.ParamAttr(name="scale"), default_initializer=fluid.initializer.Constant(2.0)
        )

    def forward(self, ids: Any) -> Any:
        return fluid.layers.elementwise_mul(self.out(self.rows(ids)), self.scale)


@pytest.fixture
def main() -> Any:
    program = fluid.Program()
    with (
        fluid.program_guard(program, fluid.Program()),
        fluid.scope_guard(fluid.core.Scope()),
        fluid.unique_name.guard(),
    ):
        yield program


def test_layers_within_layers_make_ops_and_keep_their_parameters(main: Any):
    net = TwoPartsNet()
    assert (net.full_name(), net.rows.full_name(), net.out.full_name()) == (
        "two_parts_net_0",
        "embedding_0",
        "linear_0",
    )
    assert [name for name, _ in net.named_parameters()] == ["scale", "rows.weight", "out.weight", "out.bias"]
    assert [parameter.name for parameter in net.parameters()] == [
        "scale",
        "embedding_0.w_0",
        "linear_0.w_0",
        "linear_0.b_0",
    ]
    assert [name for name, _ in net.named_sublayers()] == ["rows", "out"]
    made = net(fluid.data("ids", [-1, 3], dtype="int64"))
    types = ["lookup_table_v2", "matmul", "elementwise_add", "relu", "elementwise_mul"]
    assert [op.type for op in main.global_block().ops] == types
    assert main.global_block().ops[0].attr("padding_idx") == 9
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    found = exe.run(main, feed={"ids": np.int64([[9, 9, 9]])}, fetch_list=[made])[0]
    assert found.shape == (1, 3, 2)
    assert (found == 0).all()


def test_training_is_told_to_all_layers(main: Any):
    net = TwoPartsNet()
    net.eval()
    assert [layer.training for layer in (net, *net.sublayers())] == [False] * 3
    net.train()
    assert net.out.training


def test_what_a_layer_does_not_take(main: Any):
    assert fluid.Layer is dygraph.Layer
    net = dygraph.Linear(2, 3, bias_attr=False)
    assert net.bias is None
    with pytest.raises(TypeError, match="takes a Parameter"):
        net.add_parameter("w", 3)
    with pytest.raises(TypeError, match="takes a Layer"):
        net.add_sublayer("inner", "layer")  # pyright: ignore[reportArgumentType]
    with pytest.raises(NotImplementedError):
        fluid.Layer()(1)


def test_a_class_may_derive_from_what_is_not_here_and_fails_where_it_is_used():
    class Mine(dygraph.Conv2D):
        pass

    with pytest.raises(NotHere, match=r"fluid\.dygraph\.Conv2D"):
        Mine(1)
    with pytest.raises(NotHere, match=r"fluid\.dygraph\.guard"):
        dygraph.guard()


def test_embeddings_take_ids(main: Any):
    rows = dygraph.Embedding([10, 4])
    with pytest.raises(TypeError, match="Embedding: input must be Variable"):
        rows(np.int64([1]))
    with pytest.raises(TypeError, match="Embedding: input must be of int64, not of int32"):
        rows(fluid.data("ids", [-1], dtype="int32"))
    assert not main.global_block().ops
