"""Parts of a step that have no gradient in torch: they have none in its program."""

import pytest

import pstranspile.torch as pt
from pstranspile.ir.diagnostics import DiagnosticError
from tests.frontends.torch.beside import assert_part_alike

torch = pytest.importorskip("torch", reason="torch is not installed")
nn = torch.nn


class Part(nn.Module):
    """A module whose loss is a function of itself and `x`."""

    reads = ("x",)

    def __init__(self, loss, **held):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.loss = loss
        for name, tensor in held.items():
            if isinstance(tensor, nn.Parameter | nn.Module):
                setattr(self, name, tensor)
            else:
                self.register_buffer(name, tensor)

    def forward(self, x):
        return self.loss(self, x)


def block(m, x):
    p = m.linear(x)
    with torch.no_grad():
        weights = (p - x).abs()
        other = weights * p
    return (weights * (p - x) ** 2 + other * p).mean()


@torch.no_grad()
def target(m, x):
    return m.linear(x).sum(1, keepdim=True)


def switched(m, x):
    with torch.set_grad_enabled(False):
        p = m.linear(x)
    torch.set_grad_enabled(False)
    q = m.linear(x + 1)
    torch.set_grad_enabled(True)
    return (p * m.linear(x) * q).mean()


def nested(m, x):
    with torch.no_grad():
        p = m.linear(x)
        with torch.enable_grad():
            q = m.linear(x)
        r = p * q
    return (p * q * r).mean()


def moving(m, x):
    p = m.linear(x)
    with torch.no_grad():
        m.average.mul_(0.9)
        m.average[1:] += p.mean(0)[1:]
    return (p * m.average).mean()


def teacher(m, x):
    with torch.no_grad():
        m.taught.mul_(0.9).add_(m.linear.weight, alpha=0.1)
    return (m.linear(x) - x @ m.taught).square().mean()


def in_place(m, x):
    p = m.linear(x)
    before = p * 2
    p.detach_()
    p.mul_(3)
    p[:, 0] = 1
    return (m.linear(x) * p * before).mean()


LOSSES = {
    "block": block,
    "decorator": lambda m, x: (m.linear(x) * target(m, x)).mean(),
    "switched": switched,
    "nested": nested,
    "moving": moving,
    "teacher": teacher,
    "in_place": in_place,
    "normed": lambda m, x: m.normed(x).square().mean(),
}
HELD = {
    "moving": lambda: {"average": torch.ones(4)},
    "teacher": lambda: {"taught": nn.Parameter(torch.ones(4, 4), requires_grad=False)},
    "normed": lambda: {"normed": nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))},
}


def parts():
    made = {name: Part(loss, **HELD.get(name, dict)()) for name, loss in LOSSES.items()}
    return made, lambda: {"x": torch.randn(8, 4)}


@pytest.mark.parametrize("name", LOSSES)
def test_what_has_no_gradient_in_torch_has_none(name):
    assert_part_alike(parts, name)


def traced(loss, model=None):
    model = Part(loss) if model is None else model
    return pt.trace(model, (torch.randn(8, 4),), optimizer=torch.optim.SGD(model.parameters(), 0.1))


def test_what_is_without_gradient_around_a_trace_changes_nothing():
    with torch.no_grad():
        assert "linear.weight" in traced(block).state


def test_a_write_that_torch_has_no_gradient_of_is_refused():
    def written(m, x):
        p = m.linear(x)
        with torch.no_grad():
            p.view(-1, 2).mul_(2)
        return p.mean()

    line = written.__code__.co_firstlineno + 3
    with pytest.raises(DiagnosticError, match=rf"test_gradients\.py:{line}: error\[torch-op\].*gradients are off"):
        traced(written)
