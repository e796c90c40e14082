"""Rows that are taken for steps, for columns or for groups, and groups of rows that a share has whole."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.frontends.torch.zoo.setups import Setup, classes, differs, mlp, regression, same

ROWS = r"rows|not linear|its own"


def mse(model, x, y):
    return F.mse_loss(model(x), y)


def windows(steps=2):
    return [(torch.randn(8, 4, 3), torch.randn(8, 1)) for _ in range(steps)]


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(3, 4)
        self.out = nn.Linear(4, 1)

    def forward(self, x):
        seen, _ = self.rnn(x.transpose(0, 1))
        return self.out(seen[-1])


@same
def recurrence_over_steps():
    return Setup(Recurrent(), mse, windows())


def normalized(model, x, y):
    seen = F.normalize(model(x), dim=0)  # differs: normalized_columns
    return F.mse_loss(seen, y)


@differs(ROWS)
def normalized_columns():
    return Setup(mlp(4, 3), normalized, regression(outputs=3))


def normalized_in_rows(model, x, y):
    return F.mse_loss(F.normalize(model(x), dim=-1), y)


@same
def normalized_rows():
    return Setup(mlp(4, 3), normalized_in_rows, regression(outputs=3))


def alike_columns(model, x, y):
    return 1 - F.cosine_similarity(model(x), y, dim=0).mean()  # differs: cosine_of_columns


@differs(ROWS)
def cosine_of_columns():
    return Setup(mlp(4, 3), alike_columns, regression(outputs=3))


def scrambled(model, x, y):
    turned = x.reshape(x.shape[1], x.shape[0]).t()  # differs: transposed_by_reshape
    return F.mse_loss(model(turned), y)


@differs(r"rows")
def transposed_by_reshape():
    return Setup(mlp(4, 1), scrambled, regression(rows=16))


def turned_twice(model, x, y):
    return F.mse_loss(model(x.t().contiguous().t()), y)


@same
def transposed_twice():
    return Setup(mlp(4, 1), turned_twice, regression())


class OverTime(nn.Module):
    def __init__(self, over_rows):
        super().__init__()
        self.over_rows = over_rows
        self.conv = nn.Conv1d(4, 4, 3, padding=1)
        self.out = nn.Linear(4, 1)

    def forward(self, x):
        if self.over_rows:
            seen = self.conv(x.t().unsqueeze(0)).squeeze(0).t()  # differs: convolved_rows
        else:
            seen = self.conv(x.unsqueeze(2)).squeeze(2)
        return self.out(seen.tanh())


@differs(ROWS)
def convolved_rows():
    return Setup(OverTime(over_rows=True), mse, regression())


@same
def convolved_columns():
    return Setup(OverTime(over_rows=False), mse, regression())


def smooth(model, x, y):
    guess = model(x)
    jumps = guess.diff(dim=0).abs().mean()  # differs: smooth_rows
    return F.mse_loss(guess, y) + 0.1 * jumps


@differs(ROWS)
def smooth_rows():
    return Setup(mlp(4, 3), smooth, regression(outputs=3))


def smooth_in_rows(model, x, y):
    guess = model(x)
    return F.mse_loss(guess, y) + 0.1 * (guess[:, 1:] - guess[:, :-1]).abs().mean()


@same
def smooth_columns():
    return Setup(mlp(4, 3), smooth_in_rows, regression(outputs=3))


def running(model, x, y):
    return F.mse_loss(model(x).cumsum(0), y.cumsum(0))  # differs: cumulated_rows


@differs(ROWS)
def cumulated_rows():
    return Setup(mlp(4, 1), running, regression())


def running_in_rows(model, x, y):
    return F.mse_loss(model(x).cumsum(1), y.cumsum(1))


@same
def cumulated_columns():
    return Setup(mlp(4, 3), running_in_rows, regression(outputs=3))


def in_halves(model, x, y):
    first, second = x.chunk(2)  # differs: pairs_of_halves
    near = (model(first) - model(second)).pow(2).sum(1)  # differs: pairs_of_halves
    return near.mean()


@differs(r"rows")
def pairs_of_halves():
    return Setup(mlp(4, 3), in_halves, regression())


def neighbours(model, x, y):
    first, second = model(x[0::2]), model(x[1::2])
    alike = (y[0::2] == y[1::2]).to(first)
    apart = (first - second).pow(2).sum(1)
    return (alike * apart + (1 - alike) * F.relu(1 - apart.add(1e-6).sqrt()).pow(2)).mean()


@same
def pairs_of_neighbours():
    return Setup(mlp(4, 3), neighbours, classes(labels=2))


class Ghost(nn.Module):
    """Normalises by groups of some rows each."""

    def __init__(self, rows):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 1)
        self.rows = rows

    def forward(self, x):
        seen = self.first(x)
        groups = seen.reshape(-1, self.rows, 6)
        mean, spread = groups.mean(1, keepdim=True), groups.var(1, unbiased=False, keepdim=True)
        return self.last(((groups - mean) / (spread + 1e-5).sqrt()).reshape(-1, 6).relu())


@same
def ghost_batches():
    return Setup(Ghost(2), mse, regression())


def clips(model, x, y):
    scores = model(x).reshape(-1, 2, 3).mean(1)
    return F.cross_entropy(scores, y[::2])


@same
def mean_of_two_clips():
    return Setup(mlp(4, 3), clips, classes())


def votes(model, x, y):
    scores = model(x).softmax(0)  # differs: softmax_over_rows
    return F.nll_loss(scores.add(1e-6).log(), y)


@differs(r"rows")
def softmax_over_rows():
    return Setup(mlp(4, 3), votes, classes())


class Folded(nn.Module):
    """Frames of all sequences are rows of one network, and are put back into their sequences."""

    def __init__(self):
        super().__init__()
        self.frame, self.out = mlp(3, 4), nn.Linear(4, 1)

    def forward(self, x):
        seen = self.frame(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        return self.out(seen.amax(1))


@same
def folded_frames():
    return Setup(Folded(), mse, windows())


class Pooled(Folded):
    """The same, but put back with steps before sequences."""

    def forward(self, x):
        seen = self.frame(x.flatten(0, 1)).reshape(x.shape[1], x.shape[0], 4)  # differs: unfolded_wrongly
        return self.out(seen.amax(0))


@differs(r"rows")
def unfolded_wrongly():
    return Setup(Pooled(), mse, windows())


def of_best(model, x, y):
    scores = model(x)
    best = scores.argmax(0)  # differs: best_row_of_column
    return F.cross_entropy(scores, y) - 0.1 * scores.gather(0, best.unsqueeze(0)).mean()  # differs: best_row_of_column


@differs(r"rows")
def best_row_of_column():
    return Setup(mlp(4, 3), of_best, classes())
