"""Results in the memory of inputs that nobody else reads: the same bits, and nothing that is read later is changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstranspile import loads
from pstranspile.runtime.kernels.kernel import OVER
from pstranspile.runtime.run.frame import Execution, interpret
from pstranspile.runtime.run.prepared import Prepared, prepare
from pstranspile.runtime.run.scope import Scope
from tests.runtime.run.feeding import same

TEXT = """\
ir 1
program @main {
  block ^0 {
    param %w : f32[3, 3]
    param %b : f32[3]
    temp %x : f32[-1, 3] feed
    ?
  }
}
"""
FEED = {"x": np.array([[-3, 1, 2], [4, -5, 6], [7, 8, -9], [1, 1, 1]], "float32")}


def checked(ops: list[str], fetch: list[str]) -> Prepared:
    """The ops prepared, run three times and compared with the interpreter's run; `%v0` and on are their results."""
    declared = [f"temp %v{at} : f32[-1, 3]" for at in range(len(ops))]
    main = loads(TEXT.replace("?", "\n    ".join(declared + ops))).main
    scope, plain = Scope(), Scope()
    for each in (scope, plain):
        each["w"], each["b"] = np.arange(9, dtype="float32").reshape(3, 3), np.array([1, -2, 3], "float32")
    feed = {name: value.copy() for name, value in FEED.items()}
    prepared = prepare(main, ["x"], fetch, scope)
    want = interpret(Execution(main, plain), feed, tuple(fetch))
    for _ in range(3):
        got = prepared.step(feed)
        assert all(same(got[name], want[name]) for name in fetch)
    assert all(same(feed[name], value) for name, value in FEED.items())
    assert all(same(scope[name], plain[name]) for name in ("w", "b"))
    return prepared


MUL, ADD = "mul(X=%x, Y=%w) -> Out=%v0", "elementwise_add(X=%v0, Y=%b) -> Out=%v1"
GRAD = "elementwise_add_grad(X=%v0, Y=%b, Out@GRAD=%v1) -> X@GRAD=%v2"


@pytest.mark.parametrize(
    ("ops", "fetch", "over"),
    [
        ([MUL, ADD], ["v1"], True),
        ([MUL, ADD, GRAD], ["v1", "v2"], True),
        ([MUL, "elementwise_add(X=%v0, Y=%b) -> Out=%v1 { axis=1 }"], ["v1"], True),
        ([MUL, ADD.replace("Y=%b", "Y=%x"), GRAD.replace("Y=%b", "Y=%x")], ["v2"], True),
        ([MUL, "softmax(X=%v0) -> Out=%v1"], ["v1"], True),
        ([MUL, ADD], ["v0", "v1"], False),
        ([MUL, ADD, "scale(X=%v0) -> Out=%v2 { scale=2. }"], ["v1", "v2"], False),
        ([MUL, "reshape2(X=%v0) -> Out=%v1, XShape=[] { shape=[-1, 3] }",
          "elementwise_add(X=%v0, Y=%b) -> Out=%v2"], ["v1", "v2"], False),
        ([MUL, ADD.replace("%b", "%v0"), GRAD.replace("%b", "%v0")], ["v1"], True),
        (["elementwise_add(X=%x, Y=%b) -> Out=%v0"], ["v0"], False),
        (["elementwise_add(X=%w, Y=%b) -> Out=%v0"], ["v0"], False),
        ([MUL, "elementwise_add(X=%b, Y=%v0) -> Out=%v1"], ["v1"], False),
    ],
)  # fmt: skip
def test_an_op_takes_the_memory_of_what_nobody_else_reads(ops: list[str], fetch: list[str], over: bool) -> None:
    prepared = checked(ops, fetch)
    assert prepared.source is not None
    assert any(OVER in bound.op.attrs for bound in prepared.source.bound) == over


KINDS = (
    "mul(X={x}, Y=%w) -> Out={out}",
    "elementwise_add(X={x}, Y=%b) -> Out={out}",
    "elementwise_add(X={x}, Y={y}) -> Out={out}",
    "elementwise_max(X={x}, Y={y}) -> Out={out}",
    "elementwise_add_grad(X={x}, Y=%b, Out@GRAD={y}) -> X@GRAD={out}",
    "relu(X={x}) -> Out={out}",
    "relu_grad(Out={x}, Out@GRAD={y}) -> X@GRAD={out}",
    "softmax(X={x}) -> Out={out}",
    "scale(X={x}) -> Out={out} {{ scale=2. }}",
    "reshape2(X={x}) -> Out={out}, XShape=[] {{ shape=[-1, 3] }}",
    "sum(X=[{x}, {y}]) -> Out={out}",
)


@given(st.data())
def test_drawn_programs(data: Any) -> None:
    ops: list[str] = []
    made: list[str] = []
    for at in range(data.draw(st.integers(1, 9))):
        x, y = (f"%{data.draw(st.sampled_from(['x', *made, *made[-1:] * 3]))}" for _ in range(2))
        out = data.draw(st.sampled_from([f"v{at}", *made[-1:]])) if at % 3 else f"v{at}"
        ops.append(data.draw(st.sampled_from(KINDS)).format(x=x, y=y, out=f"%{out}"))
        made = [*dict.fromkeys([*made, out])]
    checked(ops, data.draw(st.lists(st.sampled_from(made), min_size=1, max_size=3, unique=True)))
