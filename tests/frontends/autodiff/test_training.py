"""What the recordings don't show: refusals, names, second losses, and programs that train."""

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import (
    L2,
    OPTIMIZERS,
    SGD,
    Adam,
    ClipByGlobalNorm,
    ClipByNorm,
    ExponentialMovingAverage,
    Ftrl,
    ModelAverage,
    Piecewise,
    append_backward,
    draft_of_module,
    lookahead,
    minimize,
    set_gradient_clip,
    train,
)
from pstranspile.frontends.autodiff.optimizers import parse_regularizer
from pstranspile.ir.types import OpRole


def regression(width: int = 4) -> tuple[L.Draft, L.Value]:
    model = L.Draft(seed=1)
    x, y = L.data(model, "x", [-1, width]), L.data(model, "y", [-1, 1])
    return model, L.mean(L.square_error_cost(L.fc(x, 1), y))


def losses(module: ps.Module, loss: str, steps: int = 30) -> list[float]:
    scope = ps.Scope()
    assert module.startup is not None
    ps.run(module.startup, scope=scope)
    found: list[float] = []
    for step in range(steps):
        x = np.random.default_rng(step % 3).normal(size=(16, 4)).astype("float32")
        feed = {"x": x, "y": x.sum(axis=1, keepdims=True)}
        found.append(float(ps.run(module.main, feed=feed, fetch=[loss], scope=scope)[loss][0]))
    return found


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_lowers_the_loss(name: str):
    model, loss = regression()
    more = {"clip_norm": 10.0, "batch_size": 16.0, "sigma": 0.0} if name == "dpsgd" else {}
    if name == "lars_momentum":
        more = {"lars_coeff": 0.1}
    minimize(loss, OPTIMIZERS[name](0.05, **more))
    found = losses(model.module(), loss.name)
    assert found[-1] < found[0]
    assert list(ps.verify(model.module())) == []


def test_train_keeps_the_forward_module():
    model, loss = regression()
    forward = model.module()
    before = ps.dumps(forward)
    trained = train(forward, loss.name, Adam(0.01))
    assert ps.dumps(forward) == before
    assert trained.main.main_block.ops[: len(forward.main.main_block.ops) - 1] == forward.main.main_block.ops[:-1]
    minimize(loss, Adam(0.01))
    assert ps.dumps(trained) == ps.dumps(model.module())


def test_gradient_ops_say_where_they_come_from():
    model, loss = regression()
    forward = ps.loads(ps.dumps(model.module()))
    trained = train(forward, loss.name, SGD(0.1))
    made = {op.type: op.origin for op in trained.main.main_block.ops if op.role and op.role & OpRole.BACKWARD}
    origin = made["mul_grad"]
    assert origin is not None
    assert origin.rule == "gradient"
    assert forward.main.main_block.ops[origin.op].type == "mul"


def test_nothing_to_train():
    model = L.Draft(seed=1)
    loss = L.mean(L.data(model, "x", [-1, 3]))
    with pytest.raises(ps.DiagnosticError, match="no trainable parameter leads to the loss"):
        minimize(loss, SGD(0.1))


def test_frozen_parameters_do_not_change():
    model = L.Draft(seed=1)
    x = L.data(model, "x", [-1, 3])
    hidden = L.fc(x, 4, param_attr=L.ParamAttr("frozen", trainable=False), bias_attr=False)
    loss = L.mean(L.fc(hidden, 1))
    pairs = minimize(loss, SGD(0.1))
    assert [pair.param for pair in pairs] == ["fc_1.b_0", "fc_1.w_0"]
    assert model.find("frozen@GRAD") is None


def test_a_stopped_value_ends_the_path():
    model = L.Draft(seed=1)
    x = L.data(model, "x", [-1, 3])
    loss = L.mean(L.fc(L.fc(x, 4).stopped(), 1))
    assert [pair.param for pair in append_backward(model, loss.name)] == ["fc_1.w_0", "fc_1.b_0"]


def test_second_backward_has_names_of_its_own():
    model, loss = regression()
    other = L.mean(L.square(L.Value(model, "fc_0.tmp_1")))
    minimize(loss, SGD(0.1))
    pairs = minimize(other, SGD(0.1))
    assert all(pair.grad and pair.grad.startswith("grad/grad/") for pair in pairs)
    assert list(ps.verify(model.module())) == []


def test_a_training_program_can_be_trained_on():
    model, loss = regression()
    minimize(loss, SGD(0.1))
    again = train(ps.loads(ps.dumps(model.module())), loss.name, Adam(0.1))
    assert [op.type for op in again.main.main_block.ops if op.role == OpRole.OPTIMIZE] == ["sgd"] * 2 + ["adam"] * 2
    assert list(ps.verify(again)) == []


def test_rates_of_parameters_and_schedules_meet():
    model = L.Draft(seed=1)
    x = L.data(model, "x", [-1, 3])
    loss = L.mean(L.fc(x, 1, param_attr=L.ParamAttr(learning_rate=0.5)))
    minimize(loss, SGD(Piecewise((5,), (0.1, 0.01))))
    scaled = [op for op in model.blocks[0].ops if op.role == OpRole.OPTIMIZE | OpRole.LR_SCHED]
    assert [(op.type, op.input("X"), op.attrs["scale"]) for op in scaled] == [("scale", "learning_rate", 0.5)]
    assert scaled[0].attrs["op_namescope"] == "/optimizer_1/scale_with_param_lr/"


def test_piecewise_needs_a_value_more_than_boundaries():
    with pytest.raises(ValueError, match="one value more than boundaries, got 1 values and 1 boundaries"):
        Piecewise((5,), (0.1,))


def test_clip_for_some_parameters_clips_none_and_says_so():
    model, loss = regression()
    set_gradient_clip(model, ClipByNorm(1.0), ["fc_0.w_0"])
    with pytest.warns(UserWarning, match="no gradient is clipped, because set_gradient_clip leaves out %fc_0.b_0"):
        minimize(loss, SGD(0.1))
    assert not [op for op in model.blocks[0].ops if op.type == "clip_by_norm"]


def test_groups_of_one_norm_agree():
    model, loss = regression()
    set_gradient_clip(model, ClipByGlobalNorm(1.0), ["fc_0.w_0"])
    set_gradient_clip(model, ClipByGlobalNorm(2.0), ["fc_0.b_0"])
    with pytest.raises(ValueError, match=r"have different norms, 2\.0 and 1\.0"):
        minimize(loss, SGD(0.1))


def test_ftrl_passes_both_penalties():
    model, loss = regression()
    minimize(loss, Ftrl(0.1, l1=0.1, l2=0.2))
    op = next(op for op in model.blocks[0].ops if op.type == "ftrl")
    assert (round(float(str(op.attrs["l1"])), 6), round(float(str(op.attrs["l2"])), 6)) == (0.1, 0.2)


def test_regularizers_as_text():
    assert parse_regularizer(str(L2(0.25))) == L2(0.25)
    with pytest.raises(ValueError, match="is not a regularizer"):
        parse_regularizer("L3Decay, regularization_coeff=1")


def test_parameters_keep_their_regularizer_through_text():
    model = L.Draft(seed=1)
    x = L.data(model, "x", [-1, 3])
    loss = L.mean(L.fc(x, 1, param_attr=L.ParamAttr(regularizer=L2(0.5)), bias_attr=False))
    trained = train(ps.loads(ps.dumps(model.module())), loss.name, SGD(0.1))
    assert [op.attrs["scale"] for op in trained.main.main_block.ops if op.type == "scale"] == [0.5]


@pytest.mark.parametrize("kind", ["ema", "average"])
def test_averages_can_be_put_in_place_and_taken_back(kind: str):
    model, loss = regression()
    minimize(loss, SGD(0.1))
    if kind == "ema":
        average = ExponentialMovingAverage(model, 0.5)
        average.update()
    else:
        average = ModelAverage(model, 1.0, 1, 100)
    module = model.module()
    assert module.startup is not None
    scope = ps.Scope()
    ps.run(module.startup, scope=scope)
    seen: list[np.ndarray] = []
    for step in range(4):
        x = np.random.default_rng(step).normal(size=(16, 4)).astype("float32")
        ps.run(module.main, feed={"x": x, "y": x.sum(axis=1, keepdims=True)}, scope=scope)
        seen.append(np.array(scope["fc_0.w_0"]))
    ps.run(average.apply_program, scope=scope)
    if kind == "ema":
        held = np.zeros_like(seen[0])
        for value in seen:
            held = 0.5 * held + 0.5 * value
        expected = held / (1 - 0.5**4)
    else:
        expected = np.mean(seen, axis=0)
    assert np.allclose(scope["fc_0.w_0"], expected, rtol=1e-5)
    ps.run(average.restore_program, scope=scope)
    assert np.array_equal(scope["fc_0.w_0"], seen[-1])


def test_lookahead_bounds():
    model, loss = regression()
    minimize(loss, SGD(0.1))
    with pytest.raises(ValueError, match="0 <= alpha <= 1 and k > 0"):
        lookahead(model, 1.5, 5)


def test_lookahead_moves_every_k_steps():
    model, loss = regression()
    minimize(loss, SGD(0.1))
    lookahead(model, 0.5, 3)
    found = losses(model.module(), loss.name)
    assert found[-1] < found[0]


def test_feeds_and_constants_are_inferred_to_need_no_gradient():
    model, loss = regression()
    assert draft_of_module(model.module()).stop_gradient >= {"x", "y"}
    assert "fc_0.tmp_0" not in draft_of_module(model.module()).stop_gradient
    assert loss.name not in draft_of_module(model.module()).stop_gradient
