"""Loops, branches and recurrences, and their gradients, against differences of the loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.ir.model import Program
from pstranspile.runtime.kernels.programs.control import most_turns
from tests.runtime.run.feeding import batch
from tests.runtime.run.test_interpreter import program
from tests.training import case, recorded


def started(name: str) -> tuple[Program, str, ps.Scope]:
    module = recorded(name)
    scope = ps.Scope()
    ps.run(module["startup"], scope=scope, seed=3)
    return module.main, case(name)["loss"], scope


def copy_of(scope: ps.Scope) -> ps.Scope:
    other = ps.Scope()
    other.update(scope)
    return other


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("while_loop", ["loop_w", "loop_b", "fc_1.w_0"]),
        ("static_rnn", ["fc_0.w_0", "fc_0.w_1", "fc_0.b_0", "fc_1.w_0"]),
    ],
)
def test_gradients_are_differences_of_the_loss(name: str, parameters: list[str]):
    main, loss, scope = started(name)
    feed = batch(name)
    rng = np.random.default_rng(1)
    grads = ps.run(main, feed, [f"{parameter}@GRAD" for parameter in parameters], copy_of(scope))
    for parameter in parameters:
        direction = rng.normal(size=scope[parameter].shape)
        direction /= np.linalg.norm(direction)
        losses = []
        for step in (-0.01, 0.01):
            moved = copy_of(scope)
            moved[parameter] = (moved[parameter] + step * direction).astype("float32")
            losses.append(float(ps.run(main, feed, [loss], moved)[loss][0]))
        slope = (losses[1] - losses[0]) / 0.02
        assert float((grads[f"{parameter}@GRAD"] * direction).sum()) == pytest.approx(slope, rel=2e-2, abs=1e-4)


def test_a_loop_counts_and_its_array_holds_every_step():
    main = program(
        "temp %i : i64[1]",
        "temp %n : i64[1]",
        "temp %go : bool[1]",
        "temp %x : f32[2] feed",
        "temp %all : array f32[2]",
        "temp %length : i64[1]",
        "temp %second : f32[2]",
        "temp %one : i64[1]",
        "temp %steps : step_scopes",
        "fill_constant -> Out=%i {dtype=3, shape=[1], value=0.0}",
        "fill_constant -> Out=%one {dtype=3, shape=[1], value=1.0}",
        "fill_constant -> Out=%n {dtype=3, shape=[1], value=3.0}",
        "less_than(X=%i, Y=%n) -> Out=%go",
        "while(X=[%i, %n, %x], Condition=%go) -> Out=[%i, %go, %all, %x], StepScopes=%steps {sub_block=^1}",
        "block ^1 {",
        "temp %twice : f32[2]",
        "scale(X=%x) -> Out=%twice {scale=2.0}",
        "write_to_array(X=%twice, I=%i) -> Out=%all",
        "assign(X=%twice) -> Out=%x",
        "increment(X=%i) -> Out=%i",
        "less_than(X=%i, Y=%n) -> Out=%go",
        "}",
        "lod_array_length(X=%all) -> Out=%length",
        "read_from_array(X=%all, I=%one) -> Out=%second",
    )["main"]
    scope = ps.Scope()
    for _ in range(3):  # the second run prepares the program
        found = ps.run(main, {"x": [1, 3]}, ["i", "x", "length", "second"], scope)
        assert {name: value.tolist() for name, value in found.items()} == {
            "i": [3],
            "x": [8, 24],
            "length": [3],
            "second": [4, 12],
        }


BRANCH = (
    "temp %on : bool[1] feed",
    "temp %x : f32[2] feed",
    "temp %y : f32[2]",
    "temp %kept : step_scopes",
    "temp %y@GRAD : f32[2] feed",
    "temp %x@GRAD : f32[2]",
    "assign(X=%x) -> Out=%y",
    "conditional_block(Cond=%on, Input=%x) -> Out=%y, Scope=%kept {is_scalar_condition=true, sub_block=^1}",
    "block ^1 {",
    "temp %z : f32[2]",
    "scale(X=%x) -> Out=%z {scale=3.0}",
    "assign(X=%z) -> Out=%y",
    "}",
    "conditional_block_grad(Cond=%on, Input=%x, Out=%y, Out@GRAD=%y@GRAD, Scope=%kept) -> Input@GRAD=%x@GRAD "
    "{is_scalar_condition=true, sub_block=^2}",
    "block ^2 forward=^1 {",
    "temp %x@GRAD : f32[2]",
    "scale(X=%y@GRAD) -> Out=%x@GRAD {scale=3.0}",
    "}",
)


@pytest.mark.parametrize(("on", "y", "grad"), [(True, [3, 6], [30, 60]), (False, [1, 2], [0, 0])])
def test_a_branch_and_its_gradient(on: bool, y: list[int], grad: list[int]):
    main, scope = program(*BRANCH)["main"], ps.Scope()
    feed = {"on": np.array([on]), "x": [1, 2], "y@GRAD": [10, 20]}
    for _ in range(3):
        found = ps.run(main, feed, ["y", "x@GRAD"], scope)
        assert found["y"].tolist() == y
        assert found["x@GRAD"].tolist() == grad


BRANCH_IN_A_BRANCH = (
    *BRANCH[:6],
    "conditional_block(Cond=%on, Input=%x) -> Out=%y, Scope=%kept {is_scalar_condition=true, sub_block=^1}",
    "block ^1 {",
    "temp %inner : f32[2]",
    "temp %inner_kept : step_scopes",
    "conditional_block(Cond=%on, Input=%x) -> Out=%inner, Scope=%inner_kept {is_scalar_condition=true, sub_block=^2}",
    "scale(X=%inner) -> Out=%y {scale=2.0}",
    "}",
    "block ^2 in ^1 {",
    "scale(X=%x) -> Out=%inner {scale=3.0}",
    "}",
    "conditional_block_grad(Cond=%on, Input=%x, Out=%y, Out@GRAD=%y@GRAD, Scope=%kept) -> Input@GRAD=%x@GRAD "
    "{is_scalar_condition=true, sub_block=^3}",
    "block ^3 forward=^1 {",
    "temp %inner@GRAD : f32[2]",
    "temp %x@GRAD : f32[2]",
    "scale(X=%y@GRAD) -> Out=%inner@GRAD {scale=2.0}",
    "conditional_block_grad(Cond=%on, Input=%x, Out=%inner, Out@GRAD=%inner@GRAD, Scope=%inner_kept) -> "
    "Input@GRAD=%x@GRAD {is_scalar_condition=true, sub_block=^4}",
    "}",
    "block ^4 in ^3 forward=^2 {",
    "temp %x@GRAD : f32[2]",
    "scale(X=%inner@GRAD) -> Out=%x@GRAD {scale=3.0}",
    "}",
)


def test_the_gradient_of_a_branch_in_a_branch_comes_from_the_gradient_block_around_it():
    main, scope = program(*BRANCH_IN_A_BRANCH)["main"], ps.Scope()
    for gradient in ([10.0, 20.0], [1.0, 2.0]):
        feed = {"on": np.array([True]), "x": [1, 2], "y@GRAD": gradient}
        found = ps.run(main, feed, ["y", "x@GRAD"], scope)
        assert found["y"].tolist() == [6, 12]
        assert found["x@GRAD"].tolist() == [6 * value for value in gradient]


def test_a_recurrence_carries_its_state_in_both_directions():
    def sums(reverse: str) -> Any:
        main = program(
            "temp %x : f32[3, 2] feed",
            "temp %start : f32[2] feed",
            "temp %s : f32[3, 2]",
            "temp %kept : step_scopes",
            "recurrent(inputs=%x, initial_states=%start, parameters=[]) -> outputs=%s, step_scopes=%kept "
            f'{{ex_states=["before"], has_states=true, reverse={reverse}, states=["s"], sub_block=^1}}',
            "block ^1 {",
            "temp %before : f32[2]",
            "temp %x : f32[2]",
            "temp %s : f32[2]",
            "elementwise_add(X=%x, Y=%before) -> Out=%s",
            "}",
        )["main"]
        return ps.run(main, {"x": [[1, 10], [2, 20], [3, 30]], "start": [100, 0]}, ["s"])["s"].tolist()

    assert sums("false") == [[101, 10], [103, 30], [106, 60]]
    assert sums("true") == [[106, 60], [105, 50], [103, 30]]


def test_what_loops_refuse():
    lines = [*BRANCH[:8], *BRANCH[8:13]]
    lines[0] = "temp %on : bool[2] feed"
    with pytest.raises(ps.DiagnosticError, match="the condition on must hold one boolean"):
        ps.run(program(*lines)["main"], {"on": np.array([True, False]), "x": [1, 2]})
    lines = "temp %x : f32[1] feed", "temp %i : i64[1] feed", "temp %a : array f32[1]", "temp %y : f32[1]"
    ops = "write_to_array(X=%x, I=%i) -> Out=%a", "increment(X=%i) -> Out=%i", "read_from_array(X=%a, I=%i) -> Out=%y"
    with pytest.raises(ps.DiagnosticError, match="X has no element 1; it has 1 elements"):
        ps.run(program(*lines, *ops)["main"], {"x": [1], "i": [0]})
    with pytest.raises(ps.DiagnosticError, match="I is -2, an index must not be negative"):
        ps.run(program(*lines, *ops)["main"], {"x": [1], "i": [-2]})


def test_printing(capsys: pytest.CaptureFixture[str]):
    attrs = 'first_n=2, message="here", summarize=2, print_tensor_name=true, print_tensor_type=true, '
    attrs += "print_tensor_shape=true, print_tensor_lod=false"
    main = program("temp %x : f32[3] feed", "temp %y : f32[3]", f"print(In=%x) -> Out=%y {{{attrs}}}")["main"]
    scope = ps.Scope()
    execution = ps.run(main, {"x": [1, 2, 3]}, ["y"], scope)
    assert execution["y"].tolist() == [1, 2, 3]
    seconds, _, shown = capsys.readouterr().out.partition("\t")
    assert seconds.isdigit()  # 0 but where scripts run, which may have run in this process before
    lines = ["here\tThe place is:CPUPlace", "Tensor[x]", "\tshape: [3,]", "\tdtype: f", "\tdata: 1,2,"]
    assert shown.splitlines() == lines


def test_a_loop_that_counts_the_wrong_way_is_stopped():
    main = program(
        "temp %i : i64[1]",
        "temp %n : i64[1]",
        "temp %go : bool[1]",
        "temp %steps : step_scopes",
        "fill_constant -> Out=%i {dtype=3, shape=[1], value=0.0}",
        "fill_constant -> Out=%n {dtype=3, shape=[1], value=3.0}",
        "less_than(X=%i, Y=%n) -> Out=%go",
        "while(X=[%i, %n], Condition=%go) -> Out=[%i, %go], StepScopes=%steps {sub_block=^1}",
        "block ^1 {",
        "increment(X=%i) -> Out=%i {step=-1.0}",
        "less_than(X=%i, Y=%n) -> Out=%go",
        "}",
    )["main"]
    with most_turns(50), pytest.raises(ps.DiagnosticError, match=r"its condition %go still holds after 50 turns"):
        ps.run(main, {}, ["i"])
