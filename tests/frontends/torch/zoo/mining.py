"""Ranking, mining and assignment: pairs, lists and groups of a batch beside those of a row."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.frontends.torch.zoo.setups import Setup, classes, differs, flags, mlp, regression, same

OTHERS = r"compares rows|rows of the batch"


class Factors(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.users, self.items = nn.Embedding(9, 3, **options), nn.Embedding(7, 3, **options)

    def forward(self, user, item):
        return self.users(user), self.items(item)


def bought(steps=2):
    return [(torch.randint(0, 9, (8,)), torch.randint(0, 7, (8,)), torch.randint(0, 7, (8, 3))) for _ in range(steps)]


def bpr_in_batch(model, user, item, _):
    left, right = model(user, item)
    scores = left @ right.t()  # differs: bayesian_ranking_in_batch
    good = scores.diagonal().unsqueeze(1)
    apart = F.softplus(scores - good) * (1 - torch.eye(len(user)))
    return apart.sum(1).mean() / (len(user) - 1)


@differs(OTHERS)
def bayesian_ranking_in_batch():
    return Setup(Factors(), bpr_in_batch, bought())


def bpr(model, user, item, others):
    left, right = model(user, item)
    bad = (left.unsqueeze(1) * model.items(others)).sum(2)
    return -F.logsigmoid((left * right).sum(1, keepdim=True) - bad).mean()


@same
def bayesian_ranking():
    return Setup(Factors(), bpr, bought())


def corrected(model, user, item, others):
    left, right = model(user, item)
    found = torch.bincount(item, minlength=7).to(left)  # differs: corrected_by_frequency
    bad = (left.unsqueeze(1) * model.items(others)).sum(2) - (
        found[others] + 1
    ).log()  # differs: corrected_by_frequency
    return F.cross_entropy(torch.cat([(left * right).sum(1, keepdim=True), bad], 1), torch.zeros_like(user))


@differs(r"counts|not linear|adds up|its own")
def corrected_by_frequency():
    return Setup(Factors(), corrected, bought())


def corrected_known(model, user, item, others):
    left, right = model(user, item)
    found = torch.arange(1.0, 8.0).to(left)
    bad = (left.unsqueeze(1) * model.items(others)).sum(2) - found[others].log()
    return F.cross_entropy(torch.cat([(left * right).sum(1, keepdim=True), bad], 1), torch.zeros_like(user))


@same
def corrected_by_known_frequency():
    return Setup(Factors(), corrected_known, bought())


@differs(r"counts|rows|its own")
def gradients_by_frequency():
    return Setup(Factors(scale_grad_by_freq=True), of_table, bought())


def of_table(model, user, item, _):
    left, right = model.users(user), model.items(item)  # differs: gradients_by_frequency
    return F.softplus(-(left * right).sum(1)).mean()


def multi_similarity(model, x, y):
    seen = F.normalize(model(x), dim=1)
    near = seen.mm(seen.t())  # differs: multi_similarity_loss
    alike = y[:, None] == y[None, :]
    good = torch.where(alike, (-2 * (near - 0.5)).exp(), 0.0).sum(1).log1p() / 2
    bad = torch.where(alike, 0.0, (10 * (near - 0.5)).exp()).sum(1).log1p() / 10
    return (good + bad).mean()


@differs(OTHERS)
def multi_similarity_loss():
    return Setup(mlp(4, 3), multi_similarity, classes())


def soft_ranks(model, x, gain):
    score = model(x).squeeze(-1)
    rank = 0.5 + torch.sigmoid((score[:, None, :] - score[:, :, None]) / 0.1).sum(2)
    return -((2**gain - 1) / (1 + rank).log2()).sum(1).mean()


@same
def soft_ranks_of_lists():
    return Setup(mlp(4, 1), soft_ranks, [(torch.randn(8, 5, 4), torch.rand(8, 5)) for _ in range(2)])


def soft_ranks_of_all(model, x, y):
    score = model(x).squeeze(1)
    rank = 0.5 + torch.sigmoid((score[None, :] - score[:, None]) / 0.1).sum(1)  # differs: soft_ranks_of_batch
    return -((2 ** y.squeeze(1) - 1) / (1 + rank).log2()).mean()


@differs(OTHERS)
def soft_ranks_of_batch():
    return Setup(mlp(4, 1), soft_ranks_of_all, flags())


def list_likelihood(model, x, gain):
    score = model(x).squeeze(-1)
    ordered = score.gather(1, gain.argsort(1, descending=True))
    below = ordered.flip(1).logcumsumexp(1).flip(1)
    return (below - ordered).sum(1).mean()


@same
def likelihood_of_lists():
    return Setup(mlp(4, 1), list_likelihood, [(torch.randn(8, 5, 4), torch.rand(8, 5)) for _ in range(2)])


def kept_apart(model, x, y):
    seen = F.normalize(model(x), dim=1)
    apart = torch.cdist(seen, seen) + 10 * torch.eye(len(x))  # differs: nearest_neighbours
    return F.cross_entropy(model(x), y) - apart.min(1).values.add(1e-6).log().mean()


@differs(OTHERS)
def nearest_neighbours():
    return Setup(mlp(4, 3), kept_apart, classes())


def cut_off(model, x, y):
    losses = F.cross_entropy(model(x), y, reduction="none")
    limit = losses.detach().kthvalue(len(x) // 2).values  # differs: losses_above_a_rank
    return (losses * (losses >= limit)).mean()  # differs: losses_above_a_rank


@differs(r"rows|not linear")
def losses_above_a_rank():
    return Setup(mlp(4, 3), cut_off, classes())


def above_bound(model, x, y):
    losses = F.cross_entropy(model(x), y, reduction="none")
    return torch.where(losses > 0.7, losses, 0.0).mean()


@same
def losses_above_a_bound():
    return Setup(mlp(4, 3), above_bound, classes())


class Dispatched(nn.Module):
    """Rows go to the best expert, as long as it has places left."""

    def __init__(self, places):
        super().__init__()
        self.gate, self.places = nn.Linear(4, 3), places
        self.experts = nn.Parameter(torch.randn(3, 4, 2))

    def forward(self, x):
        share = self.gate(x).softmax(1)
        best, chosen = share.max(1)
        place = F.one_hot(chosen, 3)
        if self.places:
            before = place.cumsum(0)  # differs: experts_with_places
            place = place * (before <= self.places)  # differs: experts_with_places
        made = torch.einsum("nd,edk,ne->nk", x, self.experts, place.to(x))
        return made * best.unsqueeze(1)


def to_targets(model, x, y):
    return F.mse_loss(model(x), y)


@differs(r"rows")
def experts_with_places():
    return Setup(Dispatched(2), to_targets, regression(outputs=2))


@same
def experts_without_bound():
    return Setup(Dispatched(0), to_targets, regression(outputs=2))


def importance(model, x, y):
    load = model.gate(x).softmax(1).sum(0)  # differs: variation_of_load
    return F.mse_loss(model(x), y) + 0.1 * (load.std() / load.mean()).pow(2)  # differs: variation_of_load


@differs(r"not linear|counts|its own|ratio")
def variation_of_load():
    return Setup(Dispatched(0), importance, regression(outputs=2))


def router(model, x, y):
    return F.mse_loss(model(x), y) + 0.1 * model.gate(x).logsumexp(1).square().mean()


@same
def small_scores_of_gates():
    return Setup(Dispatched(0), router, regression(outputs=2))


def grouped(steps=2):
    return [(*pair, torch.randint(0, 3, (8,))) for pair in classes(steps=steps)]


def worst_group(model, x, y, group):
    losses = F.cross_entropy(model(x), y, reduction="none")
    total = torch.zeros(3).to(losses).index_add(0, group, losses)  # differs: worst_of_groups
    found = torch.zeros(3).to(losses).index_add(0, group, torch.ones_like(losses))  # differs: worst_of_groups
    return (total / found.clamp(min=1)).max()  # differs: worst_of_groups


@differs(r"counts|not linear|its own")
def worst_of_groups():
    return Setup(mlp(4, 3), worst_group, grouped())


def by_priors(model, x, y, group):
    losses = F.cross_entropy(model(x), y, reduction="none")
    return (losses * torch.tensor([0.5, 1.0, 2.0]).to(losses)[group]).mean()


@same
def weighed_groups():
    return Setup(mlp(4, 3), by_priors, grouped())


def extrapolated(model, x, y, group):
    losses = F.cross_entropy(model(x), y, reduction="none")
    member = F.one_hot(group, 3).to(losses)
    risk = (member * losses[:, None]).sum(0) / member.sum(0).clamp(min=1)  # differs: variance_of_risks
    return losses.mean() + risk.var()  # differs: variance_of_risks


@differs(r"counts|not linear|its own")
def variance_of_risks():
    return Setup(mlp(4, 3), extrapolated, grouped())


def dependence(model, x, y):
    seen = model(x)
    kernel = (-torch.cdist(seen, seen).pow(2)).exp()  # differs: kernel_dependence
    other = (y[:, None] == y[None, :]).to(seen)
    centering = torch.eye(len(x)) - 1.0 / len(x)
    return (
        F.cross_entropy(seen, y) - torch.trace(kernel @ centering.to(seen) @ other @ centering.to(seen)) / len(x) ** 2
    )


@differs(OTHERS)
def kernel_dependence():
    return Setup(mlp(4, 3), dependence, classes())


def prioritised(model, x, y, weight):
    error = (model(x) - y).squeeze(1)
    return (weight / weight.max() * error.pow(2)).mean()  # differs: weights_by_the_largest


def weighed(steps=2):
    return [(*pair, torch.rand(8) + 0.1) for pair in regression(steps=steps)]


@differs(r"rows|largest|not linear")
def weights_by_the_largest():
    return Setup(mlp(4, 1), prioritised, weighed())


def by_power(model, x, y, weight):
    error = (model(x) - y).squeeze(1)
    return (weight.pow(-0.4) * F.smooth_l1_loss(error, torch.zeros_like(error), reduction="none")).mean()


@same
def weights_by_a_power():
    return Setup(mlp(4, 1), by_power, weighed())


class Bags(nn.Module):
    def __init__(self, mode, sparse):
        super().__init__()
        self.table = nn.EmbeddingBag(12, 4, mode=mode, padding_idx=0, sparse=sparse)
        self.out = nn.Linear(4, 1)

    def forward(self, words):
        return self.out(self.table(words))


def bags(steps=2):
    made = []
    for _ in range(steps):
        lengths = torch.tensor([0, 0, 3, 5, 2, 4, 0, 1])
        words = torch.randint(1, 12, (8, 5)) * (torch.arange(5)[None] < lengths[:, None])
        made.append((words, torch.randn(8, 1)))
    return made


@same
def empty_bags():
    model = Bags("mean", sparse=True)
    dense = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return Setup(model, to_targets, bags(), dense)


@same
def largest_of_bags():
    model = Bags("max", sparse=False)
    return Setup(model, to_targets, bags(), torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1))


def mean_of_bags(model, words, y):
    kept = (words != 0).any(1)
    error = (model(words) - y).squeeze(1)
    return (error.pow(2) * kept).sum() / kept.sum()  # differs: bags_that_are_not_empty


@differs(r"counts")
def bags_that_are_not_empty():
    return Setup(Bags("sum", sparse=False), mean_of_bags, bags())


def looked_up(model, user, item, _):
    scores = (model.users(user) * model.items(item)).sum(1)
    penalty = model.items(torch.unique(item)).square().sum(1).mean()  # differs: penalty_of_distinct_items
    return F.softplus(-scores).mean() + 0.1 * penalty


@differs(r"compares rows|counts .* chosen")
def penalty_of_distinct_items():
    return Setup(Factors(), looked_up, bought())


def smallest(model, x, y):
    losses = (model(x) - y).square().squeeze(1)
    easy = losses.argsort()[:2]  # differs: two_easiest_rows
    return losses[easy].mean()  # differs: two_easiest_rows


@differs(r"rows")
def two_easiest_rows():
    return Setup(mlp(4, 1), smallest, regression())
