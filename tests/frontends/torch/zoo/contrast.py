"""Losses that compare rows of a batch with each other."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.frontends.torch.zoo.setups import Setup, classes, differs, mlp, regression, same

OTHERS = r"compares rows"


def pairs(rows=8, width=4, steps=2):
    return [(torch.randn(rows, width), torch.randn(rows, width)) for _ in range(steps)]


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, a, b):
        return F.normalize(self.left(a), dim=1), F.normalize(self.right(b), dim=1)


def info_nce(model, a, b):
    query, key = model(a, b)
    logits = query @ key.t() / 0.5  # differs: in_batch_negatives
    return F.cross_entropy(logits, torch.arange(a.shape[0]))


@differs(OTHERS)
def in_batch_negatives():
    return Setup(Towers(), info_nce, pairs())


def own_negatives(model, a, b, others):
    query, key = model(a, b)
    against = F.normalize(model.right(others), dim=-1)
    good = (query * key).sum(1, keepdim=True)
    bad = torch.einsum("nd,nkd->nk", query, against)
    return F.cross_entropy(torch.cat([good, bad], 1) / 0.5, torch.zeros(a.shape[0], dtype=torch.long))


@same
def given_negatives():
    return Setup(Towers(), own_negatives, [(a, b, torch.randn(8, 3, 4)) for a, b in pairs()])


class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.towers = Towers()

    def forward(self, image, text):
        image, text = self.towers(image, text)
        logits = self.towers.scale.exp() * torch.matmul(image, text.T)  # differs: images_and_texts
        target = torch.arange(len(logits))
        return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


@differs(OTHERS)
def images_and_texts():
    return Setup(Clip(), None, pairs())


def matched(model, a, b, y):
    left, right = model(a, b)
    return F.binary_cross_entropy_with_logits(model.scale.exp() * (left * right).sum(1), y)


@same
def matched_pairs():
    return Setup(Towers(), matched, [(a, b, torch.randint(0, 2, (8,)).float()) for a, b in pairs()])


def two_views(model, a, b):
    seen = F.normalize(model(torch.cat([a, b])), dim=1)
    rows = a.shape[0]
    alike = torch.mm(seen, seen.t())  # differs: views
    alike = alike.masked_fill(torch.eye(2 * rows, dtype=torch.bool), -1e9)
    other = torch.cat([torch.arange(rows) + rows, torch.arange(rows)])
    return F.cross_entropy(alike / 0.5, other)


@differs(OTHERS)
def views():
    return Setup(mlp(4, 3), two_views, pairs())


def two_views_alone(model, a, b):
    return 2 - 2 * F.cosine_similarity(model(a), model(b).detach(), dim=1).mean()


@same
def views_alone():
    return Setup(mlp(4, 3), two_views_alone, pairs())


def hardest(model, x, y):
    seen = model(x)
    apart = (seen.unsqueeze(0) - seen.unsqueeze(1)).pow(2).sum(2)  # differs: hardest_triplets
    alike = y.unsqueeze(0) == y.unsqueeze(1)
    farthest = apart.masked_fill(~alike, 0.0).max(1).values
    nearest = apart.masked_fill(alike, 1e6).min(1).values
    return F.relu(farthest - nearest + 0.5).mean()


@differs(OTHERS)
def hardest_triplets():
    return Setup(mlp(4, 3), hardest, classes())


def triplets(model, anchor, good, bad):
    return F.triplet_margin_loss(model(anchor), model(good), model(bad))


@same
def given_triplets():
    return Setup(mlp(4, 3), triplets, [(a, b, torch.randn(8, 4)) for a, b in pairs()])


def supervised(model, x, y):
    seen = F.normalize(model(x), dim=1)
    logits = seen @ seen.T  # differs: supervised_contrast
    others = 1.0 - torch.eye(x.size(0))
    alike = (y[:, None] == y[None, :]).float() * others
    scores = logits - torch.log((logits.exp() * others).sum(1, keepdim=True))
    return -((alike * scores).sum(1) / alike.sum(1).clamp(min=1)).mean()


@differs(OTHERS)
def supervised_contrast():
    return Setup(mlp(4, 3), supervised, classes())


def sigmoid_pairs(model, a, b):
    left, right = model(a, b)
    logits = torch.einsum("id,jd->ij", left, right)  # differs: sigmoid_contrast
    sign = 2 * torch.eye(len(a)) - 1
    return -F.logsigmoid(sign * logits).sum() / len(a)


@differs(OTHERS)
def sigmoid_contrast():
    return Setup(Towers(), sigmoid_pairs, pairs())


class Centers(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp(4, 3)
        self.centers = nn.Parameter(torch.randn(3, 3))

    def forward(self, x):
        return self.net(x)


def to_centers(model, x, y):
    seen = model(x)
    return F.cross_entropy(-torch.cdist(seen, model.centers), y) + (seen - model.centers[y]).pow(2).sum(1).mean()


@same
def learnt_centers():
    return Setup(Centers(), to_centers, classes())


def to_batch_center(model, x, y):
    seen = model(x)
    center = seen.mean(0)  # differs: batch_center
    return (seen - center).pow(2).sum(1).mean() + F.cross_entropy(seen, y)


@differs(r"not linear|its own|mean")
def batch_center():
    return Setup(mlp(4, 3), to_batch_center, classes())


def prototypes(model, x, y):
    seen = model(x)
    members = F.one_hot(y, 3).to(seen)
    center = members.t() @ seen / members.sum(0).clamp(min=1).unsqueeze(1)  # differs: batch_prototypes
    return F.cross_entropy(-(seen[:, None] - center[None]).pow(2).sum(2), y)


@differs(r"counts|rows")
def batch_prototypes():
    return Setup(mlp(4, 3), prototypes, classes())


def shifted(model, a, b):
    left, right = model(a, b)
    wrong = right.roll(1, 0)  # differs: rolled_negatives
    return F.relu(0.5 - (left * right).sum(1) + (left * wrong).sum(1)).mean()


@differs(r"rows")
def rolled_negatives():
    return Setup(Towers(), shifted, pairs())


def rolled_columns(model, a, b):
    left, right = model(a, b)
    wrong = right.roll(1, 1)
    return F.relu(0.5 - (left * right).sum(1) + (left * wrong).sum(1)).mean()


@same
def rolled_features():
    return Setup(Towers(), rolled_columns, pairs())


def mixed(model, x, y):
    other, target = x.flip(0), y.flip(0)  # differs: mixed_rows
    return F.mse_loss(model(0.7 * x + 0.3 * other), 0.7 * y + 0.3 * target)


@differs(r"rows")
def mixed_rows():
    return Setup(mlp(4, 1), mixed, regression())


def ranked(model, x, y):
    score = model(x).squeeze(1)
    apart = score[:, None] - score[None, :]  # differs: ranked_pairs
    better = (y > y.T).float()
    return F.binary_cross_entropy_with_logits(apart, better)


@differs(OTHERS)
def ranked_pairs():
    return Setup(mlp(4, 1), ranked, regression())


def ranked_lists(model, x, y):
    score = model(x).squeeze(-1)
    return -(y.softmax(1) * score.log_softmax(1)).sum(1).mean()


@same
def ranked_in_rows():
    return Setup(mlp(4, 1), ranked_lists, [(torch.randn(8, 5, 4), torch.randn(8, 5)) for _ in range(2)])


def ranked_batch(model, x, y):
    score = model(x).squeeze(1)
    return -(y.squeeze(1).softmax(0) * score.log_softmax(0)).sum()  # differs: ranked_as_one_list


@differs(r"compares rows|rows of the batch")
def ranked_as_one_list():
    return Setup(mlp(4, 1), ranked_batch, regression())


def auc(model, x, y):
    score = model(x).squeeze(1)
    apart = score.unsqueeze(1) - score.unsqueeze(0)  # differs: area_under_curve
    pairs_of = (y == 1).float().unsqueeze(1) * (y == 0).float().unsqueeze(0)
    return (F.softplus(-apart) * pairs_of).sum() / pairs_of.sum().clamp(min=1)


@differs(r"compares rows|counts")
def area_under_curve():
    return Setup(mlp(4, 1), auc, classes(labels=2))


class Attention(nn.Module):
    def __init__(self, batch_first):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=batch_first)
        self.out = nn.Linear(4, 1)

    def forward(self, x):
        seen, _ = self.attention(x, x, x, need_weights=False)  # differs: attention_over_rows
        return self.out(seen).mean(1)


def mse(model, x, y):
    return F.mse_loss(model(x), y)


def tokens(steps=2):
    return [(torch.randn(6, 3, 4), torch.randn(6, 1)) for _ in range(steps)]


@differs(r"rows")
def attention_over_rows():
    return Setup(Attention(batch_first=False), mse, tokens())


@same
def attention_over_tokens():
    return Setup(Attention(batch_first=True), mse, tokens())


def risk(model, x, time, dead):
    order = torch.argsort(time, descending=True)  # differs: partial_likelihood
    hazard = model(x).squeeze(1)[order]
    alive = torch.logcumsumexp(hazard, 0)  # differs: partial_likelihood
    return -((hazard - alive) * dead[order]).mean()


@differs(r"rows")
def partial_likelihood():
    made = [(x, torch.rand(8) + 0.1, (torch.rand(8) < 0.7).float()) for x, _ in regression()]
    return Setup(mlp(4, 1), risk, made)


def survival(model, x, time, dead):
    hazard = model(x).squeeze(1)
    return (time.abs() * hazard.exp() - dead * hazard).mean()


@same
def full_likelihood():
    made = [(x, torch.rand(8) + 0.1, (torch.rand(8) < 0.7).float()) for x, _ in regression()]
    return Setup(mlp(4, 1), survival, made)


def diverse(model, x, y):
    seen = model(x)
    near = torch.cdist(seen, seen)  # differs: spread_rows
    return F.mse_loss(seen[:, :1], y) - 0.1 * near.mean()


@differs(r"compares rows")
def spread_rows():
    return Setup(mlp(4, 3), diverse, regression())


def two_views_of_each(model, a, b):
    z = F.normalize(torch.cat([model(a), model(b)]), dim=1)
    alike = z @ z.T / 0.2  # differs: pairs_on_diagonals
    rows = a.shape[0]
    alike = alike.masked_fill(torch.eye(2 * rows, dtype=torch.bool), float("-inf"))
    matched = torch.cat([torch.diag(alike, rows), alike.diag(-rows)])
    return (torch.logsumexp(alike, 1) - matched).mean()


@differs(r"compares rows")
def pairs_on_diagonals():
    return Setup(mlp(4, 3), two_views_of_each, pairs())
