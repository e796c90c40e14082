"""Values between checkpoints are computed again for the gradients, with the same result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pstranspile.fluid as fluid
from pstranspile.compiler.compile import compile
from pstranspile.compiler.job import Job
from pstranspile.fluid.incubate.fleet import collective
from pstranspile.fluid.paddle.distributed.fleet.strategy import DistributedStrategy
from pstranspile.ir.model import MAIN, STARTUP, FrozenMap, Module
from pstranspile.proof.check import check
from tests.fluid.running import fresh

layers: Any = fluid.layers


def _net(seed: int = 3) -> dict[str, Any]:
    """A net whose values are read once or twice, within a segment and across."""
    x, y = fluid.data("x", [-1, 4]), fluid.data("y", [-1, 1], "int64")
    first = layers.fc(x, 4, act="relu", param_attr=fluid.initializer.Uniform(seed=seed))
    second = layers.fc(first, 4, act="tanh", param_attr=fluid.initializer.Uniform(seed=seed))
    both = layers.elementwise_add(first, second)
    last = layers.fc(both, 3, act="softmax", param_attr=fluid.initializer.Uniform(seed=seed))
    return {"first": first, "both": both, "last": last, "loss": layers.mean(layers.cross_entropy(last, y))}


def _optimizer(*checkpoints: Any) -> Any:
    made = fluid.optimizer.RecomputeOptimizer(fluid.optimizer.SGD(0.5))
    made._set_checkpoints(list(checkpoints))
    return made


def _losses(*checkpoints: str, steps: int = 4) -> list[float]:
    rows = np.random.default_rng(1).random((5, 4), "float32")
    feed = {"x": rows, "y": np.arange(5).reshape(5, 1) % 3}
    with fresh():
        net = _net()
        _optimizer(*(net[name] for name in checkpoints)).minimize(net["loss"])
        executor = fluid.Executor()
        executor.run(fluid.default_startup_program())
        return [float(executor.run(feed=feed, fetch_list=[net["loss"]])[0][0]) for _ in range(steps)]


@pytest.mark.parametrize("checkpoints", [("both",), ("first", "last"), ("last", "first", "both")])
def test_training_is_the_same(checkpoints: tuple[str, ...]) -> None:
    assert _losses(*checkpoints) == _losses()


def test_ops_of_a_segment_stand_before_its_gradients_and_write_copies() -> None:
    with fresh():
        x = fluid.data("x", [2, 4])
        first = layers.scale(layers.sqrt(x), 2.0)
        first.stop_gradient = True
        layers.create_parameter([2, 4], "float32", name="w")
        weight = fluid.default_main_program().global_block().var("w")
        second = layers.square(layers.elementwise_mul(first, weight))
        third = layers.exp(layers.sqrt(second))
        pairs = _optimizer(first, second).backward(layers.mean(third))
        ops = fluid.default_main_program().global_block().ops
        backward = [(op.type, op.input("X")) for op in ops[8:]]
        assert [kind for kind, _ in backward] == [
            *("mean_grad", "exp_grad", "sqrt_grad"),
            *("elementwise_mul", "square_grad", "elementwise_mul_grad"),
        ]
        assert all(op.attr("op_role") == 1 for op in ops[8:])
        assert backward[4][1] == ["elementwise_mul_0.tmp_0.subprog_0"]
        assert [(param.name, grad.name) for param, grad in pairs] == [("w", "w@GRAD")]


def test_a_segment_is_computed_again_in_its_program() -> None:
    with fresh():
        net = _net()
        _optimizer(net["both"]).minimize(net["loss"])
        block = fluid.default_main_program().global_block()
        kinds = [op.type for op in block.ops]
        assert kinds.count("tanh") == 2
        assert kinds.index("tanh_grad") > len(kinds) - kinds[::-1].index("tanh") - 1
        copy = block.var("fc_1.tmp_0.subprog_0")
        assert (copy.shape, copy.persistable) == (block.var("fc_1.tmp_0").shape, False)


@pytest.mark.parametrize("fixed", [None, 5])
def test_dropout_drops_the_same_again(fixed: int | None) -> None:
    with fresh():
        x, w = layers.data("x", [30], stop_gradient=False), layers.create_parameter([30], "float32")
        dropped = layers.dropout(layers.elementwise_mul(x, w), 0.5, seed=fixed, name="dropped")
        cut = layers.scale(layers.square(dropped), 1.0)
        _optimizer(cut).minimize(layers.mean(cut))
        executor = fluid.Executor()
        executor.run(fluid.default_startup_program())
        names = ["dropped.tmp_0", "dropped.tmp_0.subprog_0"]
        feed = {"x": np.ones((4, 30), "float32")}
        once, again = executor.run(feed=feed, fetch_list=names)
        other = executor.run(feed=feed, fetch_list=names)[0]
        assert (once == again).all()
        assert ((once == 0) == (other == 0)).all() == (fixed is not None)


def test_drafts_of_the_backward_part_stay_in_blocks_that_nothing_refers_to() -> None:
    with fresh():
        x, w = layers.data("x", [30], stop_gradient=False), layers.create_parameter([30], "float32")
        cut = layers.square(layers.dropout(layers.elementwise_mul(x, w), 0.5, name="dropped"))
        _optimizer(cut).minimize(layers.mean(cut))
        main, draft, copies = fluid.default_main_program().blocks
        forward = ["elementwise_mul", "seed", "dropout", "square"]
        assert [op.type for op in draft.ops] == ["mean_grad", *forward]
        assert [op.type for op in copies.ops] == ["elementwise_mul", "dropout"]
        assert (draft.parent_idx, copies.parent_idx) == (0, 1)
        assert all(op.attr("op_role") == 1 for op in (*draft.ops, *copies.ops))
        assert "op_device" not in draft.ops[0].attr_names
        assert "fix_seed" not in next(op for op in main.ops if op.type == "dropout_grad").attr_names
        dtypes = [main.var(f"{name}.subprog_0").dtype for name in ("elementwise_mul_0.tmp_0", "dropped.tmp_0")]
        assert dtypes == [fluid.core.VarDesc.VarType.FP32, fluid.core.VarDesc.VarType.BOOL]


def test_nets_with_branches_are_refused() -> None:
    with fresh():
        x = layers.fc(fluid.data("x", [-1, 4]), 1)
        flag = layers.reduce_sum(x) > layers.fill_constant([1], "float32", 0.0)
        taken = layers.cond(flag, lambda: layers.mean(x), lambda: layers.mean(layers.square(x)))
        with pytest.raises(NotImplementedError, match="without loops and branches"):
            _optimizer(x).minimize(taken)


def test_checkpoints_are_a_list() -> None:
    with fresh():
        loss = _net()["loss"]
        with pytest.raises(TypeError, match="checkpoints is a list, not a Variable"):
            fluid.append_backward(loss, checkpoints=loss)


def test_a_cluster_trains_alike() -> None:
    with fresh():
        net = _net()
        _optimizer(net["both"]).minimize(net["loss"])
        programs = fluid.default_main_program().freeze(), fluid.default_startup_program().freeze()
        module = Module(FrozenMap({MAIN: programs[0], STARTUP: programs[1]}))
    job = Job(2, 2)
    assert check(module, job, result=compile(module, job)).holds


def test_strategies_of_fleet_recompute() -> None:
    with fresh():
        net = _net()
        strategy = collective.DistributedStrategy()
        vars(strategy).update(forward_recompute=True, recompute_checkpoints=[net["both"]])
        collective.fleet.init(_alone())
        collective.fleet.distributed_optimizer(fluid.optimizer.SGD(0.5), strategy).minimize(net["loss"])
        assert [op.type for op in fluid.default_main_program().global_block().ops].count("tanh") == 2


def _alone() -> Any:
    from pstranspile.fluid.incubate.fleet.base import UserDefinedCollectiveRoleMaker

    return UserDefinedCollectiveRoleMaker(0, ["127.0.0.1:6170"])


def test_the_strategy_of_later_versions_names_its_checkpoints() -> None:
    strategy = DistributedStrategy()
    vars(strategy).update(recompute=True)
    with pytest.raises(ValueError, match="recompute_configs"):
        strategy.optimizer(fluid.optimizer.SGD(0.5))
    with fresh():
        net = _net()
        vars(strategy).update(recompute_configs={"checkpoints": [net["both"].name]})
        strategy.optimizer(fluid.optimizer.SGD(0.5)).minimize(net["loss"])
        assert [op.type for op in fluid.default_main_program().global_block().ops].count("tanh") == 2
