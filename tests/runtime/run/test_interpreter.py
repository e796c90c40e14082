"""Running a program: feeds, fetches, scopes, and what is said when something is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from tests.runtime.run.feeding import same

PROGRAM = """\
ir 1
program @main {
  block ^0 {
    param %w : f32[3, 2]
    temp %x : f32[-1, 3] feed
    temp %ids : i64[-1, 1] lod=1 feed
    temp %xw : f32[-1, 2]
    temp %next : f32[-1, 2]
    mul(X=%x, Y=%w) -> Out=%xw
    scale(X=%xw) -> Out=%next {scale=2.0}
    scale(X=%w) -> Out=%w {scale=2.0}
  }
}
program @startup {
  block ^0 {
    param %w : f32[3, 2]
    fill_constant -> Out=%w {shape=[3, 2], value=1.0}
  }
}
"""


def program(*lines: str) -> Any:
    """The module whose @main has these lines."""
    return ps.loads("\n".join(["ir 1", "program @main {", "block ^0 {", *lines, "}", "}", ""]))


@pytest.fixture
def module() -> ps.Module:
    return ps.loads(PROGRAM)


def x(rows: int = 2) -> Any:
    return np.ones((rows, 3), "float32")


def error(module: ps.Module, feed: dict[str, Any], fetch: tuple[str, ...] = (), scope: ps.Scope | None = None) -> str:
    if scope is None:
        scope = ps.Scope()
        ps.run(module["startup"], scope=scope)
    with pytest.raises(ps.DiagnosticError) as caught:
        ps.run(module["main"], feed, fetch, scope)
    return str(caught.value)


def test_persistable_variables_survive_steps_and_others_do_not(module: ps.Module):
    scope = ps.Scope()
    ps.run(module["startup"], scope=scope)
    assert list(scope) == ["w"]
    outs = [ps.run(module["main"], {"x": x()}, ["next"], scope)["next"][0, 0] for _ in range(4)]
    assert outs == [6, 12, 24, 48]
    assert list(scope) == ["w"]


def test_numbers_and_lists_are_fed_in_the_declared_type(module: ps.Module):
    scope = ps.Scope()
    ps.run(module["startup"], scope=scope)
    found = ps.run(module["main"], {"x": [[1, 2, 3]]}, ["xw"], scope)["xw"]
    assert found.dtype == np.float32
    assert found.tolist() == [[6, 6]]


def test_what_is_fed_is_not_changed():
    main = program("temp %x : f32[2] feed", "increment(X=%x) -> Out=%x")["main"]
    fed, scope = np.zeros(2, "float32"), ps.Scope()
    for _ in range(3):
        assert ps.run(main, {"x": fed}, ["x"], scope)["x"].tolist() == [1, 1]
    assert not fed.any()


def test_a_scope_keeps_copies(module: ps.Module):
    mine = np.ones((3, 2), "float32")
    scope = ps.Scope()
    scope["w"] = mine
    ps.run(module["main"], {"x": x()}, scope=scope)
    assert mine[0, 0] == 1
    assert scope["w"][0, 0] == 2


@pytest.mark.parametrize(
    ("feed", "told"),
    [
        ({"x": np.ones((2, 3))}, "declared f32[-1, 3], but is fed f64[2, 3]; convert it with .astype('float32')"),
        ({"x": np.ones((2, 4), "float32")}, "x is declared f32[-1, 3], but is fed f32[2, 4]"),
        ({"x": np.ones(3, "float32")}, "x is declared f32[-1, 3], but is fed f32[3]"),
        ({"x": x(), "y": x()}, "y is fed, but the program declares no such variable"),
        ({"x": x(), "next_": x()}, "did you mean next?"),
        ({"x": "text"}, "is fed str"),
        ({"x": x(), "ids": np.zeros((2, 1), "int64")}, "with 1 LoD level, but is fed i64[2, 1] without LoD"),
        ({"x": x(), "ids": ps.LoDTensor(np.zeros((2, 1), "int64"), [[0, 3]])}, "the offsets [0, 3], which must rise"),
        ({"x": x(), "ids": ps.LoDTensor(np.zeros((2, 1), "int64"), [[0, 1], [0, 2]])}, "is fed 2 LoD levels"),
        ({"x": ps.LoDTensor(x(), [[0, 2]])}, "x is declared f32[-1, 3], but is fed 1 LoD levels"),
    ],
)
def test_feeds_that_do_not_fit(module: ps.Module, feed: dict[str, Any], told: str):
    assert told in error(module, feed)


def test_a_missing_feed_is_named_with_the_op_that_needs_it(module: ps.Module):
    told = error(module, {})
    assert "<string>:9:5: error[run-feed-missing]: mul: x is an input of the program, declared f32[-1, 3]" in told


def test_an_uninitialised_parameter(module: ps.Module):
    told = error(module, {"x": x()}, scope=ps.Scope())
    assert "error[run-uninitialised]: mul: w (Y) has no value: no start-up program has given it one" in told


def test_a_variable_that_no_op_before_has_written():
    lines = "temp %a : f32[1]", "temp %b : f32[1]", "relu(X=%a) -> Out=%b", "relu(X=%b) -> Out=%a"
    told = error(program(*lines), {}, scope=ps.Scope())
    assert "run-uninitialised" in told
    assert "a (X) has no value yet: no op before this one has given it one" in told


def test_unknown_fetches(module: ps.Module):
    assert "next_ is fetched, but the program declares no such variable; did you mean next?" in error(
        module, {"x": x()}, ("next_",)
    )
    assert "ids is fetched, but has no value after the run" in error(module, {"x": x()}, ("ids",))


def test_an_op_type_that_can_not_be_run():
    told = error(program("temp %a : f32[1]", "no_such_op() -> Out=%a"), {}, scope=ps.Scope())
    assert "<string>:5:1: error[run-no-kernel]: no_such_op: there is no op type of this name" in told


def test_slots_of_optimizers_at_another_op_make_it_no_optimizer():
    module = program(
        "temp %a : f32[-1, 3] feed", "temp %b : f32[-1, 3]", "relu(X=%a, Param=%a, Grad=%a) -> Out=%b, ParamOut=%b"
    )
    assert ps.run(module.main, {"a": -x()}, ["b"])["b"].tolist() == np.maximum(-x(), 0).tolist()


def test_an_op_that_calls_a_function_of_another_process_says_so():
    told = error(
        program(
            "temp %a : f32[-1, 3] feed", "temp %b : f32[-1, 3]", "py_func(X=%a) -> Out=%b {forward_callable_id=99999}"
        ),
        {"a": x()},
        scope=ps.Scope(),
    )
    assert "function 99999 is not known here: it is one of the process that made the program" in told


def test_ragged_values_go_through_ops_that_keep_their_rows():
    lines = "temp %a : f32[-1, 2] lod=1 feed", "temp %b : f32[-1, 2] lod=1", "temp %c : f32[1]"
    main = program(*lines, "relu(X=%a) -> Out=%b", "mean(X=%b) -> Out=%c")["main"]
    scope = ps.Scope()
    value = ps.LoDTensor(np.ones((3, 2), "float32"), [[0, 1, 3]])
    for _ in range(3):
        found = ps.run(main, {"a": value}, ["b", "c"], scope)
        assert same(found["b"], value)
        assert same(found["c"], np.ones(1, "float32"))


def test_a_child_scope_sees_and_updates_its_parent(module: ps.Module):
    parent = ps.Scope()
    ps.run(module["startup"], scope=parent)
    child = parent.child()
    for _ in range(3):
        ps.run(module["main"], {"x": x()}, scope=child)
    assert parent["w"][0, 0] == 8
    assert child.values_here == {}


def test_a_persistable_variable_that_is_fed_keeps_its_value(module: ps.Module):
    scope, mine = ps.Scope(), np.ones((3, 2), "float32")
    for _ in range(3):  # the second run prepares the program
        ps.run(module["main"], {"x": x(), "w": mine}, ["next"], scope)
        assert scope["w"].tolist() == (2 * mine).tolist()
    ps.run(module["main"], {"x": x()}, scope=scope)
    assert scope["w"][0, 0] == 4
    assert (mine == 1).all()
