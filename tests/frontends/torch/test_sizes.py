"""What a step computes of the number of its rows: numbers of Python, parts of the batch, rows that are chosen."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch.nn import functional as F  # noqa: E402

from pstranspile.frontends.torch.training import trace  # noqa: E402
from tests.frontends.torch.beside import trained  # noqa: E402


def squares(model, x, y):
    return (model(x) - y).pow(2)


def divided(size):
    return lambda model, x, y: squares(model, x, y).sum() / size(len(x))


NUMBERS = {
    "half of the rows": divided(lambda rows: rows / 2),
    "a fraction more": divided(lambda rows: rows + 0.5),
    "a fraction of them": divided(lambda rows: 0.7 * rows + 0.1),
    "their root": divided(lambda rows: rows**0.5),
    "torch's root of them": divided(math.sqrt),
    "their square": divided(lambda rows: rows**2),
    "less than none": divided(lambda rows: -rows),
    "at least five": divided(lambda rows: max(rows, 5)),
    "at most five": divided(lambda rows: min(rows, 5.5)),
    "one of them": lambda model, x, y: squares(model, x, y).sum() * (1 / len(x)),
    "a whole part": divided(lambda rows: int(0.7 * rows)),
    "half of them times a logarithm": lambda model, x, y: 0.5 * y.numel() * squares(model, x, y).sum().log(),
    "in a tensor": lambda model, x, y: squares(model, x, y).sum() / torch.tensor(len(x) * 0.5),
    "filled": lambda model, x, y: (model(x) * torch.full((len(x), 1), len(x) / 4) - y).abs().mean(),
    "compared": lambda model, x, y: torch.where(model(x) * 4 > len(x) / 3, model(x), model(x) * y).mean(),
}
PARTS = {
    "the largest": lambda model, x, y: squares(model, x, y).flatten().topk(int(0.6 * len(x)))[0].mean(),
    "no fewer": lambda model, x, y: squares(model, x, y).flatten().topk(math.ceil(0.3 * len(x)))[0].sum(),
    "the smallest": lambda model, x, y: squares(model, x, y).flatten().sort()[0][: int(0.6 * len(x))].mean(),
    "two halves": lambda model, x, y: (lambda a, b: (a * b).mean())(*squares(model, x, y).chunk(2)),
    "views": lambda model, x, y: (lambda a, b: (a * b - y).mean())(*model(torch.cat([x, x + 1])).chunk(2)),
    "as they are told": lambda model, x, y: (lambda a, b: a.mean() * b.sum())(
        *torch.split(squares(model, x, y), [len(x) // 2, len(x) - len(x) // 2])
    ),
}


@pytest.mark.parametrize("name", [*NUMBERS, *PARTS])
def test_a_number_of_the_rows_is_what_python_computes(name):
    torch.manual_seed(1)
    loss = {**NUMBERS, **PARTS}[name]
    made = trained(torch.nn.Linear(4, 1), lambda: (torch.randn(8, 4), torch.randn(8, 1)), loss, count=3)
    assert made.losses_apart() < 1e-9
    assert made.apart() < 1e-9


def of_chosen(told):
    def loss(model, x, y):
        some = x[:, 0] > -0.7
        return told(torch.cat([model(x), x], 1)[some], (y[:, 0] > 0).long()[some])

    return loss


CHOSEN = {
    "cross entropy": F.cross_entropy,
    "weighed": lambda scores, label: F.cross_entropy(scores, label, weight=torch.arange(1, 6).to(scores.dtype)),
    "smoothed": lambda scores, label: F.cross_entropy(scores, label, label_smoothing=0.1),
    "each": lambda scores, label: F.cross_entropy(scores, label, reduction="none").square().sum(),
    "likelihood": lambda scores, label: F.nll_loss(scores.log_softmax(1), label),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_a_loss_of_classes_takes_rows_that_are_chosen(name):
    torch.manual_seed(1)
    made = trained(torch.nn.Linear(4, 1), lambda: (torch.randn(8, 4), torch.randn(8, 1)), of_chosen(CHOSEN[name]))
    assert made.losses_apart() < 1e-9
    assert made.apart() < 1e-9


@pytest.mark.parametrize("rows", [4, 9])
def test_a_program_takes_other_numbers_of_rows(rows):
    torch.manual_seed(0)
    model, loss = torch.nn.Linear(4, 1), NUMBERS["half of them times a logarithm"]
    training = trace(
        model, (torch.randn(8, 4), torch.randn(8, 1)), loss=loss, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)
    )
    batch = torch.randn(rows, 4), torch.randn(rows, 1)
    np.testing.assert_allclose(training.train([batch]), [loss(model, *batch).item()], rtol=1e-5)
