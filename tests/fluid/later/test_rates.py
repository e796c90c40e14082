"""Learning rates that scripts change between runs, and the optimizers of 2.x."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import pstranspile.fluid.paddle as paddle
from pstranspile.fluid.missing import NotHere
from tests.fluid.running import fresh

lr: Any = paddle.optimizer.lr
X = np.arange(6, dtype="float32").reshape(2, 3) / 6


def trained(optimizer: Any, steps: int = 4, after: Any = None, rate: bool = False) -> list[float]:
    """The losses of the first steps, or the learning rates."""
    with fresh():
        x = paddle.static.data("x", [None, 3])
        start = paddle.ParamAttr(name="w", initializer=paddle.nn.initializer.Constant(0.5))
        loss = paddle.mean(paddle.square(paddle.static.nn.fc(x, 2, weight_attr=start, bias_attr=False)))
        optimizer.minimize(loss)
        wanted = optimizer._global_learning_rate() if rate else loss
        exe = paddle.static.Executor(paddle.CPUPlace())
        exe.run(paddle.static.default_startup_program())
        made: list[float] = []
        for _ in range(steps):
            made.append(exe.run(feed={"x": X}, fetch_list=[wanted])[0].item())
            if after is not None:
                after()
        return made


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: lr.NoamDecay(0.01, 4), lambda e: 10 * min(e**-0.5 if e else 1.0, e * 4**-1.5)),
        (lambda: lr.PiecewiseDecay([2, 4], [1.0, 0.5, 0.1]), lambda e: 1.0 if e < 2 else 0.5 if e < 4 else 0.1),
        (lambda: lr.NaturalExpDecay(0.5, 0.1), lambda e: 0.5 * math.exp(-0.1 * e)),
        (lambda: lr.InverseTimeDecay(0.5, 0.1), lambda e: 0.5 / (1 + 0.1 * e)),
        (lambda: lr.ExponentialDecay(0.5, 0.9), lambda e: 0.5 * 0.9**e),
        (lambda: lr.PolynomialDecay(0.5, 4, 0.1), lambda e: 0.4 * (1 - min(e, 4) / 4) + 0.1),
        (
            lambda: lr.PolynomialDecay(0.5, 4, 0.1, cycle=True),
            lambda e: 0.4 * (1 - e / (4 * max(math.ceil(e / 4), 1))) + 0.1,
        ),
        (lambda: lr.MultiStepDecay(0.5, [2, 4]), lambda e: 0.5 * 0.1 ** ((e >= 2) + (e >= 4))),
        (lambda: lr.StepDecay(0.5, 2), lambda e: 0.5 * 0.1 ** (e // 2)),
        (lambda: lr.LambdaDecay(0.5, lambda e: 0.95**e), lambda e: 0.5 * 0.95**e),
        (lambda: lr.CosineAnnealingDecay(0.5, 4), lambda e: 0.25 * (1 + math.cos(math.pi * e / 4))),
        (lambda: lr.LinearWarmup(0.5, 3, 0.0, 0.3), lambda e: 0.1 * e if e < 3 else 0.5),
    ],
)
def test_each_run_takes_the_rate_that_the_schedule_gives(make: Any, expected: Any) -> None:
    schedule = make()
    rates = trained(paddle.optimizer.SGD(schedule), 7, schedule.step, rate=True)
    np.testing.assert_allclose(rates, [expected(epoch) for epoch in range(7)], rtol=1e-5, atol=1e-7)
    assert schedule.last_epoch == 7
    again = make()
    again.set_state_dict(schedule.state_dict())
    assert again() == schedule()


def test_a_rate_falls_where_a_figure_gets_no_better() -> None:
    schedule = lr.ReduceOnPlateau(1.0, factor=0.5, patience=1, cooldown=1)
    rates: list[float] = []
    for figure in (3.0, 2.0, 2.0, 2.0, 2.0, np.array([2.0]), 2.0):
        schedule.step(figure)
        rates.append(schedule())
    assert rates == [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25]
    with pytest.raises(AssertionError, match="take its mean"):
        schedule.step(np.ones(3))
    with pytest.raises(TypeError, match="metrics is a number"):
        schedule.step("2")


def test_schedules_follow_each_other_and_say_what_is_wrong() -> None:
    schedule = lr.LinearWarmup(lr.PiecewiseDecay([2], [0.5, 0.1]), 2, 0.0, 0.4)
    rates: list[float] = []
    for _ in range(6):
        rates.append(schedule())
        schedule.step()
    assert rates == pytest.approx([0.0, 0.2, 0.5, 0.5, 0.1, 0.1])
    assert schedule.state_dict()["LinearWarmup_LR"]["last_lr"] == 0.1
    for make, error in (
        (lambda: lr.MultiStepDecay("1", [1]), TypeError),
        (lambda: lr.MultiStepDecay(1.0, [3, 2]), ValueError),
        (lambda: lr.StepDecay(1.0, 2, gamma=2.0), ValueError),
        (lambda: lr.LRScheduler(), NotImplementedError),
        (lambda: paddle.optimizer.SGD("1"), TypeError),
        (lambda: paddle.optimizer.SGD(lr.StepDecay(1.0, 2)).set_lr(0.1), RuntimeError),
        (lambda: lr.StepDecay(1.0, 2).on_servers(10), NotHere),
        (lambda: paddle.optimizer.Adam().step(), NotImplementedError),
    ):
        with pytest.raises(error):
            make()
    with pytest.raises(AttributeError, match="nearest name that is there: StepDecay"):
        _ = lr.StepDeca


def test_adamw_takes_its_decay_before_the_step_of_adam() -> None:
    plain, decayed = (trained(paddle.optimizer.AdamW(0.1, weight_decay=decay), 2) for decay in (0.0, 0.5))
    kept = trained(paddle.optimizer.AdamW(0.1, weight_decay=0.5, apply_decay_param_fun=lambda name: name != "w"), 2)
    assert plain == pytest.approx(trained(paddle.optimizer.Adam(0.1), 2))
    assert kept == pytest.approx(plain)
    # After one step of Adam every weight is 0.5 - 0.1; the decay has taken 0.1 * 0.5 * 0.5 before
    assert decayed[1] == pytest.approx(plain[1] * ((0.5 - 0.025 - 0.1) / (0.5 - 0.1)) ** 2, rel=1e-5)


@pytest.mark.parametrize("kind", ["SGD", "Momentum", "Adagrad", "Adam", "Adamax", "Adadelta", "RMSProp", "Lamb"])
def test_optimizers_take_clips_and_rates_that_are_set(kind: str) -> None:
    optimizer = getattr(paddle.optimizer, kind)(learning_rate=0.1, grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0))
    losses = trained(optimizer)
    assert losses[-1] < losses[0]
    assert optimizer.get_lr() == 0.1
    optimizer.set_lr(0.2)
    assert optimizer.get_lr() == 0.2


def test_a_weight_decay_is_a_number_or_a_regularizer() -> None:
    number, l2, l1 = (
        trained(paddle.optimizer.SGD(0.1, weight_decay=decay), 2)
        for decay in (0.5, paddle.regularizer.L2Decay(coeff=0.5), paddle.regularizer.L1Decay(0.25))
    )
    assert number == l2 == pytest.approx(l1)  # the weights are 0.5, of which half is the sign times a quarter


RATES = {
    "linear": (lambda: lr.LinearLR(0.3, 4, 0.25, 0.75), [0.075, 0.1125, 0.15, 0.1875, 0.225, 0.225, 0.225]),
    "one": (
        lambda: lr.OneCycleLR(1.0, 10),
        [
            0.040000000000000036,
            0.52,
            1.0,
            0.9504893855078144,
            0.8117637264392739,
            0.6112993409314593,
            0.38880065906854067,
            0.1883362735607262,
            0.04961061449218561,
            0.0001,
        ],
    ),
    "three": (
        lambda: lr.OneCycleLR(1.0, 10, anneal_strategy="linear", phase_pct=0.4, three_phase=True),
        [
            0.04,
            0.35999999999999993,
            0.6799999999999999,
            1.0,
            0.68,
            0.3600000000000001,
            0.040000000000000036,
            0.0267,
            0.013400000000000002,
            0.00010000000000000286,
        ],
    ),
    "triangular": (
        lambda: lr.CyclicLR(0.1, 0.5, 2, 3),
        [
            0.1,
            0.29999999999999993,
            0.4999999999999999,
            0.3666666666666666,
            0.2333333333333333,
            0.1,
            0.30000000000000016,
            0.4999999999999999,
        ],
    ),
    "triangular2": (
        lambda: lr.CyclicLR(0.1, 0.5, 2, mode="triangular2"),
        [0.1, 0.30000000000000004, 0.5, 0.30000000000000004, 0.1, 0.2, 0.30000000000000004, 0.2, 0.1],
    ),
    "exp_range": (
        lambda: lr.CyclicLR(0.1, 0.5, 2, mode="exp_range", exp_gamma=0.9),
        [
            0.1,
            0.28,
            0.42400000000000004,
            0.24580000000000002,
            0.1,
            0.21809800000000001,
            0.31257640000000003,
            0.19565938000000002,
            0.1,
        ],
    ),
    "own": (
        lambda: lr.CyclicLR(0.1, 0.5, 2, scale_fn=lambda n: 1 / n),
        [0.1, 0.30000000000000004, 0.5, 0.30000000000000004, 0.1, 0.2, 0.30000000000000004, 0.2, 0.1],
    ),
}
"""Schedules of several phases, with the rates that Paddle 2.6.2 gives."""


@pytest.mark.parametrize("name", RATES)
def test_rates_of_several_phases_are_those_of_paddle(name: str) -> None:
    make, wanted = RATES[name]
    rate: Any = make()
    made = []
    for _ in wanted:
        made.append(rate())
        rate.step()
    np.testing.assert_allclose(made, wanted, rtol=1e-12)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: lr.LinearLR(0.1, 4, start_factor=0.0), "the factors are above 0"),
        (lambda: lr.LinearLR(0.1, 0), "total_steps is a number from 1 on"),
        (lambda: lr.OneCycleLR(1.0, 10, phase_pct=0.5, three_phase=True), "below 0.5, as there are three phases"),
        (lambda: lr.OneCycleLR(1.0, 10, anneal_strategy="sin"), "cos or linear, not 'sin'"),
        (lambda: lr.OneCycleLR(1.0, 2).step(3), "epoch 3 is beyond the 2 of total_steps"),
        (lambda: lr.CyclicLR(0.1, 0.5, 0), "step_size_up is a number from 1 on, not 0"),
        (lambda: lr.CyclicLR(0.1, 0.5, 2, mode="square"), "or there is a scale_fn, not 'square'"),
        (lambda: lr.CyclicLR(0.1, 0.5, 2, scale_mode="epoch"), "cycle or iterations, not 'epoch'"),
    ],
)
def test_phases_that_are_none_are_refused(make: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        make()
