"""Optimizer ops that run together give bitwise what they give one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pstranspile.fluid.arithmetic import fluid_arithmetic
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, Adagrad, Adam, Momentum, RMSProp, minimize
from pstranspile.ir.model import Attrs, FrozenMap, Op, Program
from pstranspile.ir.types import DType
from pstranspile.runtime.run.frame import Execution, interpret
from pstranspile.runtime.run.prepared import Prepared, run
from pstranspile.runtime.run.scope import Scope
from tests.runtime.run.feeding import same

FEED = {
    "x": np.random.default_rng(0).normal(size=(6, 5)).astype("float32"),
    "y": np.array([[0], [1], [2], [0], [1], [2]]),
}
OPTIMIZERS = {
    "sgd": SGD(0.1),
    "momentum": Momentum(0.1, 0.9),
    "adagrad": Adagrad(0.1),
    "adam": Adam(0.1),
    "rmsprop": RMSProp(0.1, momentum=0.5, centered=True),
}


def program(optimizer: Any, *, sparse: bool = False) -> tuple[Program, str, Scope]:
    """A program with six dense parameters, what it loses, and a scope in which it is initialised."""
    model = L.Draft(seed=1)
    x, y = L.data(model, "x", [-1, 5]), L.data(model, "y", [-1, 1], dtype=DType.INT64)
    if sparse:
        x = L.concat([x, L.embedding(y, (3, 4), is_sparse=True)], axis=1)
    hidden = L.fc(L.fc(x, 7, act="tanh"), 17, act="relu")
    loss = L.mean(L.cross_entropy(L.fc(hidden, 3, act="softmax"), y))
    minimize(loss, optimizer)
    module, scope = model.module(), Scope()
    run(module["startup"], scope=scope)
    return module.main, loss.name, scope


def copy_of(scope: Scope) -> Scope:
    found = Scope()
    found.update(scope)
    return found


def differing(one: Scope, other: Scope) -> list[str]:
    return [name for name in one if not same(one[name], other[name])]


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_they_give_what_they_give_one_by_one(name: str, sparse: bool):
    main, loss, plain = program(OPTIMIZERS[name], sparse=sparse)
    fast = copy_of(plain)
    execution, prepared = Execution(main, plain), Prepared(Execution(main, fast), ("x", "y"), (loss,))
    for _ in range(4):
        want, got = interpret(execution, FEED, (loss,)), prepared.step(FEED)
        assert same(got[loss], want[loss])
        assert differing(plain, fast) == []
    groups = list(prepared.execution.groups.values())
    assert [len(group.ops) for group in groups] == [6]
    assert not groups[0].loose


def a_new_value(scope: Scope) -> None:
    scope["fc_1.w_0"] = np.full((7, 17), 0.25, "float32")


def a_change_in_place(scope: Scope) -> None:
    scope["fc_1.w_0"][:, 3] += 1


def another_power(scope: Scope) -> None:
    scope["fc_0.b_0_beta1_pow_acc_0"][:] = 0.5


def another_element_type(scope: Scope) -> None:
    scope["learning_rate_0"] = scope["learning_rate_0"].astype("float64")


@pytest.mark.parametrize("change", [a_new_value, a_change_in_place, another_power, another_element_type])
def test_the_scope_may_be_changed_between_steps(change: Any):
    main, loss, plain = program(Adam(0.1))
    fast = copy_of(plain)
    execution, prepared = Execution(main, plain), Prepared(Execution(main, fast), ("x", "y"), (loss, "fc_1.w_0"))
    for number in range(8):
        if number in (1, 3, 6):
            change(plain)
            change(fast)
        want, got = interpret(execution, FEED, (loss, "fc_1.w_0")), prepared.step(FEED)
        assert same(got[loss], want[loss])
        assert same(got["fc_1.w_0"], want["fc_1.w_0"])
        assert differing(plain, fast) == []


def test_a_scope_with_a_parent_keeps_variables_where_they_are():
    main, loss, plain = program(Adam(0.1))
    fast = copy_of(plain)
    below = fast.child()
    execution, prepared = Execution(main, plain), Prepared(Execution(main, below), ("x", "y"), (loss,))
    for _ in range(3):
        assert same(prepared.step(FEED)[loss], interpret(execution, FEED, (loss,))[loss])
    assert differing(plain, fast) == []
    assert "fc_0.w_0" not in below.values_here


def test_two_programs_of_one_scope_and_fluids_arithmetic_in_between():
    main, loss, plain = program(Adam(0.1))
    fast, execution = copy_of(plain), Execution(main, plain)
    for number in range(9):
        fetch = (loss,) if number % 3 else (loss, "fc_0.w_0")
        with fluid_arithmetic(number == 5):
            want, got = interpret(execution, FEED, fetch), run(main, FEED, fetch, fast)
        assert all(same(got[name], want[name]) for name in fetch)
        assert differing(plain, fast) == []


def test_variables_that_are_set_anew_in_every_step_are_left_where_they_are():
    main, loss, scope = program(SGD(0.1))
    prepared = Prepared(Execution(main, scope), ("x", "y"), (loss,))
    for _ in range(20):
        scope["fc_1.w_0"] = np.full((7, 17), 0.25, "float32")
        prepared.step(FEED)
    held = scope["fc_0.w_0"]
    prepared.step(FEED)
    assert scope["fc_0.w_0"] is held


def interleaved(*, reads: bool) -> tuple[Program, Scope, tuple[str, ...]]:
    """A program whose optimizer ops stand right behind what they need, as those of servers do; what is fetched reads
    gradients that groups hold on to. `reads`: behind the third one an op reads the first parameter.
    """
    main, loss, scope = program(Adam(0.1))
    block = main.main_block
    updates = [op for op in block.ops if op.type == "adam"]
    ops = [op for op in block.ops if op.type != "adam"]
    variables, tripled = dict(block.vars), list[str]()
    for number, update in enumerate(updates):
        gradient = update.inputs["Grad"][0]
        given = {f"tripled_{number}": gradient}
        if reads and number == 2:
            given["early"] = updates[0].inputs["Param"][0]
        ops.append(update)
        for name, of in given.items():
            tripled.append(name)
            variables[name] = block.vars[of]._replace(name=name, persistable=False, parameter=None)
            attrs: Attrs = FrozenMap({"scale": 3.0, "bias": 0.0, "bias_after_scale": True})
            ops.append(Op("scale", FrozenMap({"X": (of,)}), FrozenMap({"Out": (name,)}), attrs))
    block = block._replace(ops=tuple(ops), vars=FrozenMap(variables))
    return main._replace(blocks=(block, *main.blocks[1:])), scope, (loss, *tripled)


@pytest.mark.parametrize(("reads", "sizes"), [(False, [6]), (True, [3, 3])])
def test_ops_between_them_run_before_or_after_the_group(reads: bool, sizes: list[int]):
    main, plain, fetch = interleaved(reads=reads)
    fast = copy_of(plain)
    execution, prepared = Execution(main, plain), Prepared(Execution(main, fast), ("x", "y"), fetch)
    for _ in range(4):
        want, got = interpret(execution, FEED, fetch), prepared.step(FEED)
        assert all(same(got[name], want[name]) for name in fetch)
        assert differing(plain, fast) == []
    groups = list(prepared.execution.groups.values())
    assert [len(group.ops) for group in groups] == sizes
    assert not any(group.loose for group in groups)
