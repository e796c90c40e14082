"""Models that torch reads only as their code runs, and what it takes for granted of them."""

import numpy as np
import pytest

import pstranspile.torch as pt
from pstranspile.ir.diagnostics import DiagnosticError
from tests.frontends.torch.beside import ROWS, trained

torch = pytest.importorskip("torch", reason="torch is not installed")


class Columns(torch.nn.Module):
    """Takes columns whose numbers stand in an array of numpy, which strict export has as tensors."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.places = np.array([1, 3])

    def forward(self, x):
        return self.linear(x[:, self.places[0] : self.places[1]]).tanh()


def batch():
    return (torch.randn(ROWS, 4),)


def test_numbers_in_arrays_are_known_as_the_code_runs():
    made = trained(Columns(), batch, lambda m, x: m(x).square().mean())
    assert made.losses_apart() < 1e-12
    assert made.apart() < 1e-12


def test_what_a_graph_takes_for_granted_holds_for_code_that_was_run():
    made = trained(Columns(), batch, lambda m, x: m(x).view(-1, 2, 2).prod(1).mean(), count=1)
    with pytest.raises(DiagnosticError, match=r"torch-batch.*x.shape\[0\]"):
        made.training.feeds((torch.randn(ROWS + 1, 4),))


def test_a_branch_on_data_is_told_by_its_line_alone(capsys):
    class Branching(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 1)

        def forward(self, x):
            hidden = self.linear(x)
            if hidden.sum() > 0:
                hidden = hidden * 2
            return hidden.mean()

    model = Branching()
    with pytest.raises(DiagnosticError) as caught:
        pt.trace(model, (torch.ones(ROWS, 3),), optimizer=torch.optim.SGD(model.parameters(), 0.1))
    assert caught.value.diagnostics[0].code == "torch-export"
    assert "class GraphModule" not in capsys.readouterr().err


ROW = (torch.ones(3, 2), torch.ones(3, 1))


@pytest.fixture(scope="module")
def training():
    model = torch.nn.Linear(2, 1)
    return pt.trace(
        model,
        ROW,
        loss=lambda m, x, y: (m(x) - y).square().mean(),
        optimizer=torch.optim.SGD([*model.parameters()], 0.1),
    )


@pytest.mark.parametrize(
    ("batches", "told"),
    [
        (ROW, "a list of batches is expected, and one batch is given"),
        ([*ROW], "a list of batches is expected, and one batch is given"),
        (ROW[0], "a list of batches is expected, and one batch is given"),
        ({"x": ROW[0], "y": ROW[1]}, "a list of batches is expected, and one batch is given"),
        (5, "a list of batches is expected, and int is given"),
        ([5], "a batch is a tuple or dict of tensors, not int"),
        ([ROW[:1]], "the batch has 1 tensor; the model was traced with x, y"),
        ([{"x": ROW[0]}], "the batch has no y; the model was traced with x, y"),
    ],
)
def test_what_are_no_batches(training, batches, told):
    for use in (training.train, lambda given: pt.check_training(training, given)):
        with pytest.raises(DiagnosticError) as caught:
            use(batches)
        assert (caught.value.diagnostics[0].code, caught.value.diagnostics[0].message) == ("torch-batch", told)


def test_a_check_without_batches_shows_nothing(training):
    with pytest.raises(DiagnosticError, match="there are no batches to check with"):
        pt.check_training(training, [])
    assert training.train([]) == []
