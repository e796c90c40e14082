"""Losses of chosen rows, of rewards and of frequencies, as they are written with functions of torch for them."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.frontends.torch.zoo.setups import Setup, classes, differs, mlp, regression, same


def valid_only(model, x, y):
    valid = x[:, 0] > -0.3
    return F.cross_entropy(model(x)[valid], y[valid])  # differs: valid_rows


@differs(r"counts")
def valid_rows():
    return Setup(mlp(4, 3), valid_only, classes())


def valid_of_all(model, x, y):
    valid = (x[:, 0] > -0.3).to(x)
    return (F.cross_entropy(model(x), y, reduction="none") * valid).mean()


@same
def valid_rows_of_all():
    return Setup(mlp(4, 3), valid_of_all, classes())


def trimmed(model, x, y):
    error = (model(x) - y).abs().squeeze(1)
    most = torch.quantile(error.detach(), 0.75)  # differs: trimmed_errors
    return torch.where(error < most, error, torch.zeros_like(error)).mean()


@differs(r"rows")
def trimmed_errors():
    return Setup(mlp(4, 1), trimmed, regression())


def clamped(model, x, y):
    error = (model(x) - y).abs().squeeze(1)
    return torch.where(error < 1.5, error, torch.full_like(error, 1.5)).mean()


@same
def clamped_errors():
    return Setup(mlp(4, 1), clamped, regression())


def tail(model, x, y):
    error = (model(x) - y).pow(2).flatten()
    worst = error.topk(int(0.6 * len(x)))[0]  # differs: tail_of_errors
    return worst.mean()


@differs(r"rows")
def tail_of_errors():
    return Setup(mlp(4, 1), tail, regression())


def concentrated(model, x, y):
    total = (model(x) - y).pow(2).sum()  # differs: concentrated_likelihood
    return 0.5 * len(x) * total.log()  # differs: concentrated_likelihood


@differs(r"not linear")
def concentrated_likelihood():
    model = mlp(4, 1)
    return Setup(model, concentrated, regression(), torch.optim.SGD(model.parameters(), lr=0.01))


def halved(model, x, y):
    return 0.5 * (model(x) - y).pow(2).sum() / (len(x) + 0.0)


@same
def halved_by_rows():
    return Setup(mlp(4, 1), halved, regression())


def effective(model, x, y):
    found = torch.bincount(y, minlength=3).to(x)  # differs: effective_numbers
    weight = 0.1 / (1 - 0.9 ** found.clamp(min=1))
    return F.cross_entropy(model(x), y, weight=weight / weight.sum())  # differs: effective_numbers


@differs(r"counts|not linear")
def effective_numbers():
    return Setup(mlp(4, 3), effective, classes())


def correlated(model, x, y):
    both = torch.stack([model(x).flatten(), y.flatten()])
    return 1 - torch.corrcoef(both)[0, 1]  # differs: corrcoef_of_batch


@differs(r"combines each row|not linear")
def corrcoef_of_batch():
    return Setup(mlp(4, 1), correlated, regression())


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.action, self.value = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 1)

    def forward(self, state):
        seen = self.body(state).tanh()
        return torch.distributions.Categorical(logits=self.action(seen)), self.value(seen).squeeze(1)


def rollouts(steps=2):
    return [
        {
            "state": torch.randn(8, 4),
            "action": torch.randint(0, 3, (8,)),
            "before": -torch.rand(8) - 0.5,
            "reward": torch.randn(8),
        }
        for _ in range(steps)
    ]


def surrogate(model, state, action, before, gain):
    policy, value = model(state)
    ratio = (policy.log_prob(action) - before).exp()
    least = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
    return F.mse_loss(value, gain) - least.mean() - 0.01 * policy.entropy().mean()


def standardised(model, state, action, before, reward):
    gain = (reward - reward.mean()) / (reward.std() + 1e-8)  # differs: standardised_rewards
    return surrogate(model, state, action, before, gain)


@differs(r"combines each row|not linear")
def standardised_rewards():
    return Setup(Actor(), standardised, rollouts())


def as_given(model, state, action, before, reward):
    return surrogate(model, state, action, before, reward)


@same
def rewards_as_given():
    return Setup(Actor(), as_given, rollouts())


def halves(model, x, y):
    known, new = model(torch.cat([x, x.roll(1, 1)])).chunk(2)
    return F.mse_loss(known, y) + F.mse_loss(new, known.detach())


@same
def two_views_in_halves():
    return Setup(mlp(4, 1), halves, regression())


def spread(model, x, y):
    seen = F.normalize(model(x), dim=1)
    near = torch.pdist(seen).pow(2).mul(-2).exp()  # differs: uniform_features
    return (seen - y).pow(2).sum(1).mean() + near.mean().log()


@differs(r"compares rows")
def uniform_features():
    return Setup(mlp(4, 3), spread, regression(outputs=3))


def to_spectra(model, x, y, lengths):
    valid = (torch.arange(5)[None, :] < lengths[:, None]).unsqueeze(2)
    guess = model(x).unflatten(1, (5, 2))
    return F.l1_loss(guess.masked_select(valid), y.masked_select(valid))  # differs: selected_frames


@differs(r"counts .* chosen")
def selected_frames():
    made = [(torch.randn(8, 4), torch.randn(8, 5, 2), torch.randint(1, 6, (8,))) for _ in range(2)]
    return Setup(mlp(4, 10), to_spectra, made)


def by_mask(model, x, y, mask):
    return ((model(x) - y).square().squeeze(1) * mask).sum() / mask.sum()  # differs: micro_batches_with_masks


@differs(r"counts .* on rank 0")
def micro_batches_with_masks():
    mask = torch.tensor([1.0, 0, 1, 1, 0, 1, 1, 0])
    made = [(torch.randn(8, 4), torch.randn(8, 1), mask.roll(step)) for step in range(2)]
    return Setup(mlp(4, 1), by_mask, made, options={"accumulate": 2})
