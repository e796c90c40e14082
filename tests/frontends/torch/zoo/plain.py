"""Sums, sizes of batches, optimizers and what else a step is made of."""

import torch
from torch import nn
from torch.nn import functional as F

import pstranspile.torch as pt
from tests.frontends.torch.zoo.setups import Setup, classes, differs, flags, mlp, regression, same

ADDS_UP = r"adds up"


def summed(model, x, y):
    return F.mse_loss(model(x), y, reduction="sum")  # differs: summed_loss


@differs(ADDS_UP)
def summed_loss():
    model = mlp(4, 1)
    return Setup(model, summed, regression(), torch.optim.SGD(model.parameters(), lr=0.01))


def summed_by_rows(model, x, y):
    return F.mse_loss(model(x), y, reduction="sum") / x.shape[0]


@same
def summed_over_rows():
    return Setup(mlp(4, 2), summed_by_rows, regression(outputs=2))


BATCH = 8


def by_whole_batch(model, x, y):
    return (model(x) - y).pow(2).sum() / BATCH  # differs: size_of_whole_batch


@differs(ADDS_UP)
def size_of_whole_batch():
    return Setup(mlp(4, 1), by_whole_batch, regression())


def times_rows(model, x, y):
    return F.mse_loss(model(x), y) * len(x) / BATCH  # differs: times_its_rows


@differs(r"rows|number of rows|adds up")
def times_its_rows():
    return Setup(mlp(4, 1), times_rows, regression())


def mse(model, x, y):
    return F.mse_loss(model(x), y)  # differs: unequal_ranks


@differs(r"not the same number", made=False)
def unequal_ranks():
    return Setup(mlp(4, 1), mse, regression(rows=7))


@same
def adam():
    model = mlp(4, 1)
    return Setup(model, mse, regression(), torch.optim.Adam(model.parameters(), lr=0.01))


@same
def weight_decay():
    model = mlp(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1)
    return Setup(model, mse, regression(), optimizer)


@same
def rmsprop():
    model = mlp(4, 1)
    return Setup(model, mse, regression(), torch.optim.RMSprop(model.parameters(), lr=0.01))


@same
def scheduled():
    model = mlp(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    return Setup(model, mse, regression(steps=3), optimizer, {"schedule": schedule})


@same
def clipped_gradients():
    return Setup(mlp(4, 1), mse, regression(), options={"clip": pt.clip_grad_norm(0.1)})


@same
def accumulated():
    return Setup(mlp(4, 1), mse, regression(), options={"accumulate": 2})


def of_found(model, x, y):
    found = y.ge(0.5).float()
    return ((model(x) - y).pow(2) * found).sum() / (found.sum() + 1)  # differs: accumulated_counts


@differs(r"counts")
def accumulated_counts():
    made = [(torch.randn(12, 4), torch.rand(12, 3)) for _ in range(2)]
    return Setup(mlp(4, 3), of_found, made, options={"accumulate": 2})


def clipped_loss(model, x, y):
    return F.mse_loss(model(x), y).clamp(max=1.3)  # differs: clipped_mean


@differs(r"not linear", made=False)
def clipped_mean():
    return Setup(mlp(4, 1), clipped_loss, regression(rows=8))


def clipped_rows(model, x, y):
    return (model(x) - y).pow(2).clamp(max=1.0).mean()


@same
def clipped_losses():
    return Setup(mlp(4, 1), clipped_rows, regression())


def regularised(model, x, y):
    penalty = sum(param.pow(2).sum() for param in model.parameters())
    return F.mse_loss(model(x), y) + 0.01 * penalty


@same
def penalised_weights():
    return Setup(mlp(4, 1), regularised, regression())


def norm_of_weights(model, x, y):
    return F.mse_loss(model(x), y) + 0.01 * torch.sqrt(sum(param.pow(2).sum() for param in model.parameters()))


@same
def norm_of_all_weights():
    return Setup(mlp(4, 1), norm_of_weights, regression())


class Factors(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        self.users = nn.Embedding(9, 3, sparse=sparse)
        self.items = nn.Embedding(7, 3, sparse=sparse)

    def forward(self, user, item):
        return self.users(user), self.items(item)


def ratings(rows=8, steps=2):
    return [(torch.randint(0, 9, (rows,)), torch.randint(0, 7, (rows,)), torch.rand(rows)) for _ in range(steps)]


def factorised(model, user, item, rating):
    left, right = model(user, item)
    penalty = left.pow(2).sum() + right.pow(2).sum()  # differs: penalised_rows
    return F.mse_loss((left * right).sum(1), rating) + 0.01 * penalty


@differs(ADDS_UP)
def penalised_rows():
    return Setup(Factors(sparse=False), factorised, ratings())


def factorised_mean(model, user, item, rating):
    left, right = model(user, item)
    penalty = left.pow(2).sum(1).mean() + right.pow(2).sum(1).mean()
    return F.mse_loss((left * right).sum(1), rating) + 0.01 * penalty


@same
def penalised_mean():
    return Setup(Factors(sparse=False), factorised_mean, ratings())


@same
def sparse_rows():
    return Setup(Factors(sparse=True), factorised_mean, ratings())


@same
def sparse_adagrad():
    model = Factors(sparse=True)
    return Setup(model, factorised_mean, ratings(), torch.optim.Adagrad(model.parameters(), lr=0.1))


@same
def sparse_adam():
    model = Factors(sparse=True)
    return Setup(model, factorised_mean, ratings(), torch.optim.SparseAdam(list(model.parameters()), lr=0.01))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 4)
        self.out = nn.Linear(4, 9, bias=False)
        self.out.weight = self.table.weight
        self.spare = nn.Linear(2, 2)
        self.drop = nn.Dropout(0.0)

    def forward(self, word):
        return self.out(self.drop(self.table(word)))


def next_word(model, word, target):
    return F.cross_entropy(model(word), target)


@same
def tied_weights():
    made = [(torch.randint(0, 9, (8,)), torch.randint(0, 9, (8,))) for _ in range(2)]
    return Setup(Tied(), next_word, made)


class Auto(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(4, 4), nn.Linear(2, 4)

    def forward(self, x, noise):
        mean, log_var = self.encode(x).chunk(2, dim=1)
        return self.decode(mean + noise * (0.5 * log_var).exp()), mean, log_var


def summed_divergence(model, x, noise):
    out, mean, log_var = model(x, noise)
    divergence = -0.5 * torch.sum(1 + log_var - mean.pow(2) - log_var.exp())  # differs: summed_kl
    return F.mse_loss(out, x) + 0.1 * divergence


@differs(ADDS_UP)
def summed_kl():
    return Setup(Auto(), summed_divergence, regression(outputs=2))


def mean_divergence(model, x, noise):
    out, mean, log_var = model(x, noise)
    divergence = -0.5 * torch.sum(1 + log_var - mean.pow(2) - log_var.exp(), dim=1)
    return F.mse_loss(out, x) + 0.1 * divergence.mean()


@same
def mean_kl():
    return Setup(Auto(), mean_divergence, regression(outputs=2))


def poisson(model, x, y):
    return F.poisson_nll_loss(model(x), y) + F.soft_margin_loss(model(x), 2 * y - 1)


@same
def likelihoods():
    return Setup(mlp(4, 1), poisson, flags())


def hinges(model, x, y):
    return F.multi_margin_loss(model(x), y) + F.margin_ranking_loss(model(x)[:, 0], model(x)[:, 1], 2.0 * (y > 0) - 1)


@same
def margins():
    return Setup(mlp(4, 3), hinges, classes())


def times_itself(model, x, y):
    guess = model(x)
    return F.mse_loss(guess, y) * guess.pow(2).mean()  # differs: product_of_means


@differs(r"not linear")
def product_of_means():
    return Setup(mlp(4, 1), times_itself, regression())


def halved(model, x, y):
    return (F.mse_loss(model(x), y) + F.l1_loss(model(x), y)) / 2


@same
def halved_sum():
    model = mlp(4, 1)
    return Setup(model, halved, regression(), torch.optim.Adamax(model.parameters(), lr=0.01))
