"""Optimizers beside torch's own, with their options, groups, schedules, and the state they have already."""

import pytest

from pstranspile.frontends.torch.optimizers import groups_of
from pstranspile.ir.diagnostics import DiagnosticError
from tests.frontends.torch.beside import ROWS, step, trained

torch = pytest.importorskip("torch", reason="torch is not installed")

import pstranspile.torch as pt  # noqa: E402

functional = torch.nn.functional
optim = torch.optim


def net():
    return torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Tanh(), torch.nn.Linear(4, 5))


def batch():
    return torch.randn(ROWS, 6), torch.randint(0, 5, (ROWS,))


def loss(model, x, y):
    return functional.cross_entropy(model(x), y)


OPTIMIZERS = {
    "sgd": lambda m: optim.SGD(m.parameters(), lr=0.1, weight_decay=0.02),
    "momentum": lambda m: optim.SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda m: optim.SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda m: optim.Adam(m.parameters(), lr=0.01, betas=(0.8, 0.95), weight_decay=0.1),
    "adamw": lambda m: optim.AdamW(m.parameters(), lr=0.01, weight_decay=0.1, eps=1e-6),
    "adagrad": lambda m: optim.Adagrad(m.parameters(), lr=0.1, initial_accumulator_value=0.2),
    "rmsprop": lambda m: optim.RMSprop(m.parameters(), lr=0.01),
    "rmsprop_centered": lambda m: optim.RMSprop(m.parameters(), lr=0.01, centered=True, momentum=0.9),
    "adamax": lambda m: optim.Adamax(m.parameters(), lr=0.01),
    "adadelta": lambda m: optim.Adadelta(m.parameters(), lr=0.5, weight_decay=0.01),
    "dampening": lambda m: optim.SGD(m.parameters(), lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.01),
    "adagrad_decay": lambda m: optim.Adagrad(m.parameters(), lr=0.1, lr_decay=0.3),
    "amsgrad": lambda m: optim.Adam(m.parameters(), lr=0.1, amsgrad=True, weight_decay=0.01),
    "amsgrad_w": lambda m: optim.AdamW(m.parameters(), lr=0.1, amsgrad=True),
    "groups": lambda m: optim.AdamW(
        [{"params": m[0].parameters(), "lr": 0.1, "weight_decay": 0.0}, {"params": m[2].parameters()}], lr=0.01
    ),
    "several": lambda m: [optim.SGD(m[0].parameters(), lr=0.1), optim.Adam(m[2].parameters(), lr=0.01)],
}
MAXIMIZED = {
    "sgd": lambda m: optim.SGD(m.parameters(), lr=0.02, momentum=0.9, nesterov=True, weight_decay=0.1, maximize=True),
    "adam": lambda m: optim.Adam(m.parameters(), lr=0.02, weight_decay=0.1, maximize=True),
    "adamw": lambda m: optim.AdamW(m.parameters(), lr=0.02, maximize=True),
    "adagrad": lambda m: optim.Adagrad(m.parameters(), lr=0.02, weight_decay=0.1, maximize=True),
    "rmsprop": lambda m: optim.RMSprop(m.parameters(), lr=0.02, centered=True, momentum=0.9, maximize=True),
    "adamax": lambda m: optim.Adamax(m.parameters(), lr=0.02, weight_decay=0.1, maximize=True),
    "adadelta": lambda m: optim.Adadelta(m.parameters(), lr=0.5, weight_decay=0.1, maximize=True),
}
"""Optimizers that make the loss larger."""


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_beside_torch(name):
    made = trained(net(), batch, loss, OPTIMIZERS[name])
    assert made.losses_apart() < 1e-12
    assert made.apart() < 1e-12


def warm(optimizer_of):
    """An optimizer that has made some steps."""

    def made(model):
        optimizer = optimizer_of(model)
        for _ in range(3):
            x, y = batch()
            step(model, (x.double(), y), loss, [optimizer])
        return optimizer

    return made


@pytest.mark.parametrize("name", MAXIMIZED)
def test_a_loss_is_made_larger(name):
    fresh = trained(net(), batch, loss, MAXIMIZED[name], count=3)
    assert fresh.ours[-1] > fresh.ours[0]
    assert fresh.apart() < 1e-12
    assert trained(net(), batch, loss, warm(MAXIMIZED[name]), count=3).apart() < 1e-12


@pytest.mark.parametrize("name", ["dampening", "adagrad_decay", "amsgrad"])
def test_servers_update_as_torch_does(name):
    """States of one number belong to each part of a parameter that a server has."""
    model = net().double()
    rows = [(torch.randn(ROWS, 6).double(), torch.randint(0, 5, (ROWS,))) for _ in range(3)]
    report = pt.check(model, rows[0], loss=loss, optimizer=OPTIMIZERS[name](model), pservers=2, batches=rows)
    assert report.equal, str(report)


def test_single_precision_ends_near_torch_and_has_no_doubles():
    made = trained(net(), batch, loss, OPTIMIZERS["adamw"], double=False)
    assert made.apart() < 1e-4
    attrs = [value for op in made.training.module["main"].main_block.ops for value in op.attrs.values()]
    assert {type(value).__name__ for value in attrs if isinstance(value, float)} == {"float"}


HELD = (
    "momentum",
    "dampening",
    "adam",
    "amsgrad",
    "adagrad",
    "adagrad_decay",
    "rmsprop_centered",
    "adamax",
    "adadelta",
)
"""Optimizers that keep something from step to step."""


@pytest.mark.parametrize("name", HELD)
def test_the_state_of_an_optimizer_is_taken_over(name):
    assert trained(net(), batch, loss, warm(OPTIMIZERS[name]), count=3).apart() < 1e-12


@pytest.mark.parametrize(
    "schedule",
    [
        lambda o: optim.lr_scheduler.CosineAnnealingLR(o, 6),
        lambda o: optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=8, cycle_momentum=False),
        lambda o: optim.lr_scheduler.LambdaLR(o, lambda k: 1 / (k + 1)),
    ],
)
def test_a_schedule_is_a_rate_for_each_step(schedule):
    model = net().double()
    optimizer = OPTIMIZERS["groups"](model)
    schedules = schedule(optimizer)
    rates = [group["lr"] for group in optimizer.param_groups]
    made = trained(model, batch, loss, lambda _: optimizer, schedule=schedules, steps=6, after_update=schedules.step)
    assert [group["lr"] for group in optimizer.param_groups] != rates
    assert made.apart() < 1e-9


def chained(o):
    lr = optim.lr_scheduler
    inner = lr.SequentialLR(o, [lr.LinearLR(o, 0.5, 1.0, 2), lr.StepLR(o, 2, 0.5)], [3])
    return lr.ChainedScheduler([inner, lr.ExponentialLR(o, 0.9)])


@pytest.mark.parametrize(
    "schedule",
    [
        lambda o, lr: lr.SequentialLR(o, [lr.ConstantLR(o, 0.1, 2), lr.ExponentialLR(o, 0.9)], [2]),
        lambda o, lr: lr.ChainedScheduler([lr.ConstantLR(o, 0.1, 2), lr.ExponentialLR(o, 0.9)]),
        lambda o, lr: [lr.ConstantLR(o, 0.1, 2), lr.ExponentialLR(o, 0.9)],
        lambda o, lr: chained(o),
        lambda o, lr: [chained(o), lr.MultiplicativeLR(o, lambda _: 0.8)],
    ],
)
@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)])
def test_schedules_of_schedules_have_the_rates_that_torch_has(schedule, rate):
    model = torch.nn.Linear(2, 1)
    names = {id(param): name for name, param in model.named_parameters()}
    optimizer = optim.Adam([{"params": [model.weight]}, {"params": [model.bias], "lr": rate * 2}], lr=rate)
    schedules = schedule(optimizer, optim.lr_scheduler)
    listed = schedules if isinstance(schedules, list) else [schedules]
    optimizer.step()
    listed[0].step()
    before = [one.state_dict() for one in (optimizer, *listed)]
    groups = groups_of(optimizer, names, schedules, 6)
    assert repr([one.state_dict() for one in (optimizer, *listed)]) == repr(before)
    expected = []
    for _ in range(6):
        expected.append([float(group["lr"]) for group in optimizer.param_groups])
        for one in listed:
            one.step()
    assert [list(rates) for rates in zip(*(group.rates for group in groups), strict=True)] == expected


def test_what_a_schedule_in_a_list_changes_besides_is_refused():
    model = net()
    optimizer = optim.SGD(model.parameters(), 0.1, momentum=0.9)
    one = optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=8)
    names = {id(param): name for name, param in model.named_parameters()}
    with pytest.raises(DiagnosticError, match="OneCycleLR changes momentum") as caught:
        groups_of(optimizer, names, [optim.lr_scheduler.ExponentialLR(optimizer, 0.9), one], 3)
    (finding,) = caught.value.diagnostics
    assert "cycle_momentum=False" in finding.notes[0].message


def test_a_step_of_ones_own_is_refused():
    model = net()
    optimizer = optim.SGD(model.parameters(), 0.1)
    before = optimizer.step
    optimizer.step = lambda: before()
    with pytest.raises(DiagnosticError, match="SGD has a step of its own"):
        groups_of(optimizer, {id(param): name for name, param in model.named_parameters()})


@pytest.mark.parametrize(
    ("clip", "torchs"),
    [
        ("clip_grad_norm", lambda m: torch.nn.utils.clip_grad_norm_(m.parameters(), 0.3)),
        ("clip_grad_value", lambda m: torch.nn.utils.clip_grad_value_(m.parameters(), 0.02)),
    ],
)
def test_gradients_are_clipped_as_torch_does(clip, torchs):
    bound = 0.3 if clip.endswith("norm") else 0.02
    made = trained(net(), batch, loss, OPTIMIZERS["several"], clip=getattr(pt, clip)(bound), before_update=torchs)
    assert made.apart() < 1e-9
