"""Parameters and buffers that are called as other variables of a program."""

import pytest

import pstranspile.torch as pt
from pstranspile.ir.diagnostics import DiagnosticError
from tests.frontends.torch.beside import trained

torch = pytest.importorskip("torch", reason="torch is not installed")
nn = torch.nn


class Named(nn.Module):
    """A model with a parameter or buffer of each of these names, besides `w`."""

    def __init__(self, *names, buffers=()):
        super().__init__()
        self.w = nn.Parameter(torch.ones(4, 1))
        self.names = names
        for name in names:
            if name in buffers:
                self.register_buffer(name, torch.ones(8, 1))
            else:
                self.register_parameter(name, nn.Parameter(torch.full((8, 1), 0.5)))

    def forward(self, x):
        return (x @ self.w).relu() + sum(getattr(self, name).mean() for name in self.names)


def batch():
    return torch.randn(8, 4), torch.randn(8, 1)


def squared(m, x, y):
    return (m(x) - y).square().mean()


MADE = ["learning_rate_0", "learning_rates_0", "w_moment1_0", "w_beta1_pow_acc_0", "relu", "mean", "loss", "sub_0"]


@pytest.mark.parametrize("step", ["program", "torch"])
def test_variables_that_a_trace_makes_are_called_otherwise(step):
    made = trained(
        Named(*MADE, "mean_1", buffers=("mean_1",)),
        batch,
        squared,
        lambda m: torch.optim.Adam(m.parameters(), 0.1),
        count=3,
        step=step,
    )
    assert made.apart() < 1e-12
    assert made.losses_apart() < 1e-12


@pytest.mark.parametrize("step", ["program", "torch"])
@pytest.mark.parametrize("kind", ["parameter", "buffer"])
def test_a_name_of_the_batch_is_refused(step, kind):
    model = Named("y", buffers=("y",) if kind == "buffer" else ())
    line = squared.__code__.co_firstlineno
    says = rf"test_names\.py:{line}: error\[torch-batch\]: y is a tensor of the batch and a {kind} of the model"
    with pytest.raises(DiagnosticError, match=says):
        pt.trace(model, batch(), loss=squared, optimizer=torch.optim.SGD(model.parameters(), 0.1), step=step)


@pytest.mark.parametrize("name", ["@GRAD", "w@GRAD", "@LR_DECAY_COUNTER@"])
def test_a_name_with_a_mark_is_refused(name):
    model = Named(name)
    with pytest.raises(DiagnosticError, match=f"error.torch-op.: '{name}' is no name for a parameter"):
        pt.trace(model, batch(), loss=squared, optimizer=torch.optim.SGD(model.parameters(), 0.1))


def test_tensors_without_names_are_not_called_as_others():
    def loss(m, input_1, *rest):
        return squared(m, input_1, rest[0])

    model = Named()
    assert pt.trace(model, batch(), loss=loss, optimizer=torch.optim.SGD(model.parameters(), 0.1)).inputs == (
        "input_1",
        "input_1_",
    )
