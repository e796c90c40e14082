"""Programs whose gradients are named after variables that are overwritten: run if they are right, refused if not."""

from __future__ import annotations

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.frontends.autodiff import SGD, train
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ops.gradients.versions import is_copy, with_old_values

FORWARD = """ir 1

program @main {
  block ^0 {
    param %w : f32[2, 2]
    temp %x : f32[2, 2]
    temp %y : f32[2, 2]
    temp %loss : f32[1]
    tanh(X=%w) -> Out=%x
    elementwise_mul(X=%x, Y=%x) -> Out=%y
    square(X=%y) -> Out=%x
    elementwise_add(X=%x, Y=%y) -> Out=%y
    reduce_sum(X=%y) -> Out=%loss {reduce_all=true}
  }
}
"""

AS_FLUID = """ir 1

program @main {
  block ^0 {
    param %w : f32[2, 2]
    temp %w@GRAD : f32[2, 2]
    temp %x : f32[2, 2]
    temp %x@GRAD : f32[2, 2]
    temp %loss : f32[1]
    temp %loss@GRAD : f32[1]
    tanh(X=%w) -> Out=%x
    sigmoid(X=%x) -> Out=%x
    reduce_sum(X=%x) -> Out=%loss {reduce_all=true} : loss
    fill_constant() -> Out=%loss@GRAD {shape=[1], value=1.0} : backward|loss
    reduce_sum_grad(X=%x, Out@GRAD=%loss@GRAD) -> X@GRAD=%x@GRAD {reduce_all=true} : backward
    SIGMOID
    tanh_grad(Out=%x, Out@GRAD=%x@GRAD) -> X@GRAD=%w@GRAD : backward
  }
}
"""
SIGMOID = "sigmoid_grad(Out=%x, Out@GRAD=%x@GRAD) -> X@GRAD=%x@GRAD : backward"


def gradient(main: ps.Program, w: np.ndarray) -> np.ndarray:
    scope = ps.Scope()
    scope.update({"w": w})
    return ps.run(main, {}, ["w@GRAD"], scope)["w@GRAD"]


def test_a_model_that_overwrites_is_given_names():
    made = train(ps.loads(FORWARD), "loss", SGD(0.0)).main
    assert {"x@VALUE_0", "y@VALUE_0"} <= made.main_block.vars.keys()
    ops = tuple(op for op in made.main_block.ops if op.type != "sgd")
    w = np.array([[0.1, 0.2], [0.3, 0.4]], "float32")
    t = np.tanh(w)
    wanted = (2 * t + 4 * t**3) * (1 - t * t)  # of t**2 + t**4
    found = gradient(made._replace(blocks=(made.main_block._replace(ops=ops),)), w)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_a_value_that_a_gradient_needs_is_kept():
    w = np.array([[0.1, 0.2], [0.3, 0.4]], "float32")
    t = np.tanh(w)
    s = 1 / (1 + np.exp(-t))
    found = gradient(ps.loads(AS_FLUID.replace("SIGMOID", SIGMOID)).main, w)
    np.testing.assert_allclose(found, s * (1 - s) * (1 - t * t), rtol=1e-5)


def test_a_gradient_of_another_value_is_refused():
    main = ps.loads(AS_FLUID.replace("SIGMOID", "")).main
    with pytest.raises(DiagnosticError) as refused:
        gradient(main, np.zeros((2, 2), "float32"))
    (found,) = refused.value.diagnostics
    assert found.code == "gradient-of-another-value"
    assert found.message.startswith("tanh_grad: lacks a term of the gradient of %x")
    assert found.location is not None
    assert found.location.line == 17


SHARED = """ir 1
program @main {
  block ^0 {
    param %w : f32[2, 2]
    state %rate : f32[1]
    temp %w@GRAD : f32[2, 2]
    temp %x : f32[-1, 2] feed
    temp %twice : f32[-1, 2]
    temp %y : f32[-1, 2]
    temp %y@GRAD : f32[-1, 2]
    temp %loss : f32[1]
    temp %loss@GRAD : f32[1]
    scale(X=%x) -> Out=%twice {scale=2.0}
    assign(X=%twice) -> Out=%x
    mul(X=%x, Y=%w) -> Out=%y
    mean(X=%y) -> Out=%loss : loss
    fill_constant -> Out=%loss@GRAD {shape=[1], value=1.0} : backward|loss
    mean_grad(X=%y, Out@GRAD=%loss@GRAD) -> X@GRAD=%y@GRAD : backward
    mul_grad(X=%x, Y=%w, Out@GRAD=%y@GRAD) -> X@GRAD=[], Y@GRAD=%w@GRAD : backward(%w, %w@GRAD)
    sgd(Param=%w, Grad=%w@GRAD, LearningRate=%rate) -> ParamOut=%w : optimize(%w, %w@GRAD)
  }
}
program @startup {
  block ^0 {
    param %w : f32[2, 2]
    state %rate : f32[1]
    fill_constant -> Out=%w {shape=[2, 2], value=0.5}
    fill_constant -> Out=%rate {shape=[1], value=0.1}
  }
}
"""


@pytest.mark.parametrize("mode", ["sync", "async", "fleet-sync"])
def test_trainers_may_call_gradients_otherwise(mode: str):
    """What a trainer sends whole has the trainer's number in its name, and is the same gradient."""
    module, batch = ps.loads(SHARED), {"x": np.arange(8, dtype="float32").reshape(4, 2) / 8}
    done = ps.simulate(ps.compile(module, ps.Job(pservers=2, trainers=2, mode=mode)), [batch], fetch=["loss"])
    assert np.mean([each["loss"] for each in done.fetched]) == pytest.approx(2 * batch["x"].mean())


@pytest.mark.parametrize(("before", "copied"), [("scale", []), ("mean", ["w"]), ("", [])])
def test_only_values_overwritten_before_their_gradient_op_are_copied(before: str, copied: list[str]):
    """A trainer receives the parameters for the next step when the gradients of this one are made."""
    main = ps.compile(ps.loads(SHARED), ps.Job(pservers=2, trainers=2)).trainer(0).main
    (received,) = [op for op in main.main_block.ops if op.type == "recv" and "w" in op.output_names]
    ops = [op for op in main.main_block.ops if not before or op is not received]
    if before:
        ops.insert(next(place for place, op in enumerate(ops) if op.type == before), received)
    program = main._replace(blocks=(main.main_block._replace(ops=tuple(ops)),))
    copies = [op for op in with_old_values(program).main_block.ops if is_copy(op)]
    assert [name for op in copies for name in op.input_names] == copied
