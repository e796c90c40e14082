"""Functions of torch that its export can't trace, and distributions, which it can trace without their checks."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch import distributions  # noqa: E402

import pstranspile.torch as pt  # noqa: E402
from pstranspile.ir.diagnostics import DiagnosticError  # noqa: E402
from tests.frontends.torch.beside import trained  # noqa: E402


def frequencies(x):
    return (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def pairs(made):
    both = torch.cat([made, made.flip(1)])
    return both @ both.T


WRITTEN = {
    "bincount": lambda made, x: (torch.bincount(frequencies(x), minlength=4) * made[:, :1]).sum(),
    "bincount of weights": lambda made, x: torch.bincount(frequencies(x), x[:, 2].abs(), 4).square().sum() * made.sum(),
    "bincount as a method": lambda made, x: frequencies(x).bincount(minlength=3)[1] * made.mean(),
    "cov": lambda made, x: torch.cov(made.T).square().sum(),
    "cov of one": lambda made, x: made[:, 0].cov(),
    "cov without a correction": lambda made, x: torch.cov(made.T, correction=0)[0, 1],
    "corrcoef": lambda made, x: torch.corrcoef(torch.cat([made, x], 1).T)[0, 2:].sum(),
    "corrcoef as a method": lambda made, x: made.T.corrcoef()[0, 1],
    "pdist": lambda made, x: torch.pdist(made).mean(),
    "pdist of another norm": lambda made, x: torch.nn.functional.pdist(made, p=1).square().mean(),
    "diag by the rows": lambda made, x: (
        pairs(made).diag(len(x)).exp().mean() + torch.diag(pairs(made), -len(x)).square().mean()
    ),
    "diag by a number": lambda made, x: (
        torch.diag(made.T @ made, 1).sum() + made[0].diag(1).sum() + made.T.diag().sum()
    ),
    "diagonal by the rows": lambda made, x: (
        pairs(made).diagonal(len(x)).square().mean() + torch.diagonal(pairs(made), -len(x)).mean()
    ),
    "diagonal beyond": lambda made, x: made.square().sum() + made.diagonal(5).sum() + made.T.diagonal(-4).sum(),
    "histc": lambda made, x: (torch.histc(x, 5, -1, 1).square() * made[0, 0]).sum() + x.histc(4).prod() * made.mean(),
    "histc of one number": lambda made, x: (torch.histc(x * 0, 3) * torch.arange(3) * made.mean()).sum(),
    "unique": lambda made, x: made[:3].cumsum(0)[frequencies(x).unique()].square().mean(),
    "unique with places and counts": lambda made, x: (
        (
            (found := torch.unique(frequencies(x)[:, None], return_inverse=True, return_counts=True))[2][found[1]]
            * made
        ).mean()
        + found[0].sum()
    ),
    "losses of selections": lambda made, x: sum(
        loss(torch.masked_select(made, x[:, :1] > 0), torch.masked_select(x[:, 1:3], x[:, :1] > 0))
        for loss in (torch.nn.functional.l1_loss, torch.nn.MSELoss(), torch.nn.SmoothL1Loss(), torch.nn.HuberLoss())
    ),
    "losses of probabilities of selections": lambda made, x: torch.nn.functional.binary_cross_entropy(
        made.sigmoid().masked_select(x[:, :1] > 0), x[:, 1:3].sigmoid().masked_select(x[:, :1] > 0)
    ),
    "categorical": lambda made, x: (
        (one := distributions.Categorical(logits=made)).log_prob((x[:, 0] > 0).long()).mean() + one.entropy().mean()
    ),
    "normal": lambda made, x: distributions.Normal(made, made.exp()).log_prob(x[:, :2]).mean(),
    "independent": lambda made, x: (
        distributions.Independent(distributions.Normal(made, 1.0), 1).log_prob(x[:, :2]).sum()
    ),
    "bernoulli": lambda made, x: distributions.Bernoulli(logits=made).log_prob((x[:, :2] > 0).to(made)).mean(),
    "divergence": lambda made, x: distributions.kl_divergence(
        distributions.Normal(made, made.exp()), distributions.Normal(0.0, 1.0)
    ).mean(),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_it_is_what_torch_makes(name):
    torch.manual_seed(1)
    said = WRITTEN[name]
    made = trained(torch.nn.Linear(4, 2), lambda: (torch.randn(8, 4),), lambda model, x: said(model(x), x), count=3)
    assert made.losses_apart() < 1e-9
    assert made.apart() < 1e-9


class Experts(torch.nn.Module):
    """A layer whose rows go to one of three experts each."""

    def __init__(self):
        super().__init__()
        self.router, self.last = torch.nn.Linear(4, 3), torch.nn.Linear(8, 1)
        self.experts = torch.nn.Parameter(torch.randn(3, 4, 8))

    def forward(self, x):
        weights, expert = self.router(x).softmax(-1).max(-1)
        expert, order = expert.sort()
        ends = torch.histc(expert.to(x.dtype), 3, 0, 2).cumsum(0, dtype=torch.int32)
        made = torch.nn.functional.grouped_mm(x[order], self.experts, offs=ends) * weights[order].unsqueeze(1)
        return self.last(made[order.argsort()]).square().mean()


def test_rows_are_dealt_to_experts_as_by_torch():
    """In single precision: torch multiplies groups in no other."""
    torch.manual_seed(1)
    made = trained(Experts(), lambda: (torch.randn(16, 4),), count=3, double=False)
    assert made.losses_apart() < 1e-5
    assert made.apart() < 1e-5


def test_torch_has_its_own_functions_afterwards():
    names = ("bincount", "cov", "corrcoef", "pdist", "diag", "diagonal", "unique", "_grouped_mm", "l1_loss", "mse_loss")
    places = [(kind, name) for kind in (torch, torch.Tensor, torch.nn.functional) for name in names]
    before = [kind.__dict__.get(name) for kind, name in places]
    checks = distributions.Distribution._validate_args
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pt.trace(model, torch.randn(8, 4), loss=lambda model, x: torch.cov(model(x).T).sum(), optimizer=optimizer)
    assert [kind.__dict__.get(name) for kind, name in places] == before
    assert distributions.Distribution._validate_args == checks


def test_a_count_of_as_many_numbers_as_there_are_is_refused():
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(DiagnosticError, match=r"test_written\.py:\d+:\d+: error\[torch-op\]: aten.bincount"):
        pt.trace(
            model,
            torch.randn(8, 4),
            loss=lambda model, x: (torch.bincount(frequencies(x)) * model(x).mean()).sum(),
            optimizer=optimizer,
        )
