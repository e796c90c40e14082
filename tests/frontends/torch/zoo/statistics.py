"""Losses that are no sums over rows: roots, ratios and products of means."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.frontends.torch.zoo.setups import Setup, classes, differs, flags, mlp, regression, same

NOT_LINEAR = r"not linear"


def rmse(model, x, y):
    return torch.sqrt(F.mse_loss(model(x), y))  # differs: root_of_mean


@differs(NOT_LINEAR)
def root_of_mean():
    return Setup(mlp(4, 1), rmse, regression())


def rmse_of_rows(model, x, y):
    return (model(x) - y).pow(2).mean(1).add(1e-6).sqrt().mean()


@same
def roots_of_rows():
    return Setup(mlp(4, 3), rmse_of_rows, regression(outputs=3))


def norm(model, x, y):
    return torch.linalg.norm(model(x) - y)  # differs: norm_of_errors


@differs(r"not linear|norm|its own")
def norm_of_errors():
    return Setup(mlp(4, 1), norm, regression())


def norm_of_rows(model, x, y):
    return torch.linalg.vector_norm(model(x) - y, dim=1).mean()


@same
def norms_of_rows():
    return Setup(mlp(4, 3), norm_of_rows, regression(outputs=3))


def mutual(model, x, y):
    joint = model(x).mean()
    marginal = torch.logsumexp(model(y), 0) - torch.log(torch.tensor(float(y.shape[0])))  # differs: mutual_information
    return marginal.mean() - joint


@differs(r"rows|not linear")
def mutual_information():
    return Setup(mlp(4, 1), mutual, regression(outputs=4))


def jensen(model, x, y):
    return F.softplus(model(y)).mean() + F.softplus(-model(x)).mean()


@same
def jensen_shannon():
    return Setup(mlp(4, 1), jensen, regression(outputs=4))


def vicreg(model, a, b):
    left, right = model(a), model(b)
    alike = F.mse_loss(left, right)
    spread = torch.sqrt(left.var(dim=0) + 1e-4)  # differs: vicreg_variance
    return alike + F.relu(1 - spread).mean()


@differs(r"not linear|its own")
def vicreg_variance():
    return Setup(mlp(4, 3), vicreg, regression(outputs=4))


def invariance(model, a, b):
    return F.mse_loss(model(a), model(b))


@same
def vicreg_invariance():
    return Setup(mlp(4, 3), invariance, regression(outputs=4))


def barlow(model, a, b):
    left, right = model(a), model(b)
    left = (left - left.mean(0)) / left.std(0)  # differs: barlow_twins
    right = (right - right.mean(0)) / right.std(0)
    cross = left.T @ right / a.shape[0]
    return (torch.diagonal(cross) - 1).pow(2).sum() + 0.01 * cross.pow(2).sum()


@differs(r"not linear|its own")
def barlow_twins():
    return Setup(mlp(4, 3), barlow, regression(outputs=4))


def decorrelated(model, a, b):
    left, right = model(a), model(b)
    cross = left.T @ right / len(a)  # differs: cross_covariance
    return cross.pow(2).mean()


@differs(r"not linear|rows|its own")
def cross_covariance():
    return Setup(mlp(4, 3), decorrelated, regression(outputs=4))


def pearson(model, x, y):
    guess, wanted = model(x).squeeze(1), y.squeeze(1)
    guess, wanted = guess - guess.mean(), wanted - wanted.mean()  # differs: correlation
    return 1 - (guess * wanted).sum() / (guess.norm() * wanted.norm() + 1e-8)


@differs(r"not linear|its own|mean")
def correlation():
    return Setup(mlp(4, 1), pearson, regression())


def cosine(model, x, y):
    return 1 - F.cosine_similarity(model(x), y, dim=1).mean()


@same
def cosine_of_rows():
    return Setup(mlp(4, 3), cosine, regression(outputs=3))


def concordance(model, x, y):
    guess, wanted = model(x), y
    covariance = ((guess - guess.mean()) * (wanted - wanted.mean())).mean()
    apart = (guess.mean() - wanted.mean()).pow(2)
    return 1 - 2 * covariance / (guess.var() + wanted.var() + apart)  # differs: concordance_coefficient


@differs(r"not linear|its own|counts")
def concordance_coefficient():
    return Setup(mlp(4, 1), concordance, regression())


def explained(model, x, y):
    left = (y - model(x)).pow(2).sum()
    total = (y - y.mean()).pow(2).sum()
    return left / total  # differs: explained_variance


@differs(r"not linear|its own|counts")
def explained_variance():
    return Setup(mlp(4, 1), explained, regression())


def dice(model, x, y):
    share = torch.sigmoid(model(x))
    both = (share * y).sum()
    return 1 - (2 * both + 1) / (share.sum() + y.sum() + 1)  # differs: dice_of_batch


@differs(r"counts|not linear|ratio")
def dice_of_batch():
    return Setup(mlp(4, 5), dice, flags(outputs=5))


def dice_by_image(model, x, y):
    share = torch.sigmoid(model(x))
    both = (share * y).sum(1)
    return (1 - (2 * both + 1) / (share.sum(1) + y.sum(1) + 1)).mean()


@same
def dice_of_images():
    return Setup(mlp(4, 5), dice_by_image, flags(outputs=5))


def jaccard(model, x, y):
    share = model(x).sigmoid()
    both = torch.sum(share * y, dim=0)
    either = torch.sum(share + y - share * y, dim=0)
    return (1.0 - both / either).mean()  # differs: union_of_batch


@differs(r"counts|not linear|ratio|not as many")
def union_of_batch():
    return Setup(mlp(4, 5), jaccard, flags(outputs=5))


def tversky(model, x, y):
    share = model(x).sigmoid().flatten(1)
    hit, over, under = (share * y).sum(1), (share * (1 - y)).sum(1), ((1 - share) * y).sum(1)
    return (1 - (hit + 1) / (hit + 0.3 * over + 0.7 * under + 1)).pow(0.75).mean()


@same
def tversky_of_images():
    return Setup(mlp(4, 5), tversky, flags(outputs=5))


def f_measure(model, x, y):
    share = model(x).softmax(1)
    wanted = F.one_hot(y, 3).float()
    hit = (share * wanted).sum(0)
    precision, recall = hit / (share.sum(0) + 1e-6), hit / (wanted.sum(0) + 1e-6)  # differs: soft_f_measure
    return 1 - (2 * precision * recall / (precision + recall + 1e-6)).mean()


@differs(r"counts|not linear|not as many")
def soft_f_measure():
    return Setup(mlp(4, 3), f_measure, classes())


def distance_of_means(model, x, y):
    return F.mse_loss(model(x).mean(0), model(y).mean(0)) + 0.1 * model(x).pow(2).mean()  # differs: matched_means


@differs(r"not linear|its own|mean")
def matched_means():
    return Setup(mlp(4, 3), distance_of_means, regression(outputs=4))


def mmd(model, x, y):
    both = torch.cat([model(x), model(y)])
    near = torch.exp(-torch.cdist(both, both).pow(2))  # differs: mean_discrepancy
    rows = x.shape[0]
    return near[:rows, :rows].mean() + near[rows:, rows:].mean() - 2 * near[:rows, rows:].mean()


@differs(r"compares rows")
def mean_discrepancy():
    return Setup(mlp(4, 3), mmd, regression(outputs=4))


def coral(model, x, y):
    def covariance(seen):
        centered = seen - seen.mean(0, keepdim=True)  # differs: covariance_of_domains
        return centered.t() @ centered / (seen.size(0) - 1)

    return (covariance(model(x)) - covariance(model(y))).pow(2).sum() / 36


@differs(r"not linear|its own|mean")
def covariance_of_domains():
    return Setup(mlp(4, 3), coral, regression(outputs=4))


def information(model, x, y):
    share = model(x).softmax(1)
    mean = share.mean(0)
    entropy = -(mean * mean.log()).sum()  # differs: entropy_of_mean
    return F.cross_entropy(model(x), y) - entropy


@differs(r"not linear|its own|mean")
def entropy_of_mean():
    return Setup(mlp(4, 3), information, classes())


def sharp(model, x, y):
    share = model(x).softmax(1)
    return F.cross_entropy(model(x), y) - 0.1 * (share * share.log()).sum(1).mean()


@same
def mean_of_entropies():
    return Setup(mlp(4, 3), sharp, classes())


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.experts = nn.ModuleList(nn.Linear(4, 1) for _ in range(3))

    def forward(self, x):
        share = self.gate(x).softmax(-1)
        made = torch.stack([expert(x).squeeze(1) for expert in self.experts], 1)
        return share, (share * made).sum(1, keepdim=True)


def load_balanced(model, x, y):
    share, out = model(x)
    picked = F.one_hot(share.argmax(1), 3).float()
    balance = 3 * (picked.mean(0) * share.mean(0)).sum()  # differs: balanced_experts
    return F.mse_loss(out, y) + 0.5 * balance


@differs(r"not linear|its own|mean")
def balanced_experts():
    return Setup(Experts(), load_balanced, regression())


def unbalanced(model, x, y):
    share, out = model(x)
    return F.mse_loss(out, y) + 0.1 * torch.logsumexp(share, 1).pow(2).mean()


@same
def experts_of_rows():
    return Setup(Experts(), unbalanced, regression())


class Routed(Experts):
    """Each row goes to the best expert."""

    def forward(self, x):
        share = self.gate(x).softmax(-1)
        best, chosen = share.max(1)
        made = torch.stack([expert(x).squeeze(1) for expert in self.experts], 1)
        return share, (best * made.gather(1, chosen[:, None]).squeeze(1)).unsqueeze(1)


def of_routed(model, x, y):
    return F.l1_loss(model(x)[1], y)


@same
def routed_experts():
    return Setup(Routed(), of_routed, regression())


def relative(model, x, y):
    return (model(x) - y).abs().sum() / y.abs().sum()  # differs: ratio_of_sums


@differs(r"counts|not linear|ratio")
def ratio_of_sums():
    return Setup(mlp(4, 1), relative, regression())


def relative_rows(model, x, y):
    return ((model(x) - y).abs() / (y.abs() + 0.5)).mean()


@same
def ratios_of_rows():
    return Setup(mlp(4, 1), relative_rows, regression())


def hard_examples(model, x, y):
    losses = F.cross_entropy(model(x), y, reduction="none")
    hard, _ = losses.topk(losses.shape[0] // 2)  # differs: hardest_half
    return hard.mean()


@differs(r"rows")
def hardest_half():
    return Setup(mlp(4, 3), hard_examples, classes())


def hard_parts(model, x, y):
    losses = (model(x) - y).pow(2)
    return losses.topk(2, dim=1).values.mean()


@same
def hardest_in_rows():
    return Setup(mlp(4, 5), hard_parts, regression(outputs=5))


def worst(model, x, y):
    return (model(x) - y).abs().max()  # differs: worst_row


@differs(r"rows|largest|not linear")
def worst_row():
    return Setup(mlp(4, 1), worst, regression())


def above_median(model, x, y):
    losses = (model(x) - y).pow(2).squeeze(1)
    return (losses * (losses > losses.detach().median())).mean()  # differs: above_the_median


@differs(r"rows|order|not linear")
def above_the_median():
    return Setup(mlp(4, 1), above_median, regression())


def pinball(model, x, y):
    apart = y - model(x)
    levels = torch.tensor([0.1, 0.5, 0.9])
    return torch.maximum(levels * apart, (levels - 1) * apart).mean()


@same
def pinball_loss():
    return Setup(mlp(4, 3), pinball, regression())


def reversed_huber(model, x, y):
    apart = (model(x) - y).abs()
    limit = 0.2 * apart.max().detach()  # differs: adaptive_huber
    return torch.where(apart < limit, apart, (apart.pow(2) + limit**2) / (2 * limit)).mean()


@differs(r"rows|not linear|largest")
def adaptive_huber():
    return Setup(mlp(4, 1), reversed_huber, regression())


def scale_invariant(model, x, y):
    apart = model(x) - y
    return apart.pow(2).mean() - 0.5 * apart.mean().pow(2)  # differs: scale_invariant_depth


@differs(r"not linear|its own|mean")
def scale_invariant_depth():
    return Setup(mlp(4, 3), scale_invariant, regression(outputs=3))


def scale_invariant_rows(model, x, y):
    apart = model(x) - y
    return (apart.pow(2).mean(1) - 0.5 * apart.mean(1).pow(2)).mean()


@same
def scale_invariant_images():
    return Setup(mlp(4, 3), scale_invariant_rows, regression(outputs=3))


def flooded(model, x, y):
    loss = F.mse_loss(model(x), y)
    return (loss - 1.5).abs() + 1.5  # differs: flooding


@differs(r"not linear")
def flooding():
    return Setup(mlp(4, 1), flooded, regression())


def flooded_rows(model, x, y):
    losses = (model(x) - y).pow(2)
    return ((losses - 0.4).abs() + 0.4).mean()


@same
def flooding_of_rows():
    return Setup(mlp(4, 1), flooded_rows, regression())


def sharpe(model, x, y):
    gain = (model(x).tanh() * y).squeeze(1)
    return -gain.mean() / (gain.std() + 1e-6)  # differs: sharpe_ratio


@differs(r"not linear|its own|counts")
def sharpe_ratio():
    return Setup(mlp(4, 1), sharpe, regression())


def balanced_losses(model, x, y):
    guess = model(x)
    first, second = F.mse_loss(guess[:, :1], y), F.l1_loss(guess[:, 1:], y.expand(-1, 2))
    return first + second * (first / second).detach()  # differs: balanced_by_losses


@differs(r"not linear|its own|counts")
def balanced_by_losses():
    return Setup(mlp(4, 3), balanced_losses, regression())


def lovasz(model, x, y):
    error = 1 - model(x).squeeze(1) * (2 * y.squeeze(1) - 1)
    error, order = torch.sort(error, descending=True)  # differs: sorted_errors
    wanted = y.squeeze(1)[order]
    left = wanted.sum() - wanted.cumsum(0)
    union = wanted.sum() + (1 - wanted).cumsum(0)
    return (F.relu(error) * (1 - left / union)).mean()


@differs(r"rows|adds up|counts")
def sorted_errors():
    return Setup(mlp(4, 1), lovasz, flags())
