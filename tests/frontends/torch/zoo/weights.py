"""Losses with weights, or divided by what was found: their sums are not the same on every rank."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.frontends.torch.zoo.setups import Setup, classes, differs, flags, mlp, regression, same

COUNTS = r"counts .* on rank 0, .* on rank 1"

WEIGHT = torch.tensor([0.2, 1.0, 5.0])


def by_class(model, x, y):
    return F.cross_entropy(model(x), y, weight=WEIGHT.to(x))  # differs: class_weights


@differs(COUNTS)
def class_weights():
    return Setup(mlp(4, 3), by_class, classes())


def by_class_of_rows(model, x, y):
    return F.cross_entropy(model(x), y, weight=WEIGHT.to(x), reduction="none").mean()


@same
def class_weights_of_rows():
    return Setup(mlp(4, 3), by_class_of_rows, classes())


class Criterion(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.net = mlp(4, 3)
        self.nll = nn.NLLLoss(weight=weight)

    def forward(self, x, y):
        return self.nll(self.net(x).log_softmax(1), y)  # differs: weighted_nll


@differs(COUNTS)
def weighted_nll():
    return Setup(Criterion(WEIGHT), None, classes())


@same
def unweighted_nll():
    return Setup(Criterion(None), None, classes())


def weighed_rows(steps=2):
    return [(x, y, torch.rand(8) * torch.linspace(0.1, 2, 8)) for x, y in regression(steps=steps)]


def normalised(model, x, y, weight):
    error = (model(x) - y).square().squeeze(1)
    share = weight / weight.sum()  # differs: normalised_weights
    return (share * error).sum()


@differs(r"counts|not linear|weights")
def normalised_weights():
    return Setup(mlp(4, 1), normalised, weighed_rows())


def weighed(model, x, y, weight):
    return (weight * (model(x) - y).square().squeeze(1)).mean()


@same
def plain_weights():
    return Setup(mlp(4, 1), weighed, weighed_rows())


def balanced(model, x, y):
    positive = y.sum()
    pos_weight = (y.numel() - positive) / positive.clamp(min=1)  # differs: balanced_by_batch
    return F.binary_cross_entropy_with_logits(model(x), y, pos_weight=pos_weight)


@differs(r"not linear|counts")
def balanced_by_batch():
    return Setup(mlp(4, 1), balanced, flags())


def balanced_fixed(model, x, y):
    return F.binary_cross_entropy_with_logits(model(x), y, pos_weight=torch.tensor([3.0]))


@same
def balanced_by_constant():
    return Setup(mlp(4, 1), balanced_fixed, flags())


def by_frequency(model, x, y):
    counts = F.one_hot(y, 3).to(x).sum(0)  # differs: batch_frequencies
    weight = 1.0 / (counts + 1.0)  # differs: batch_frequencies
    return F.cross_entropy(model(x), y, weight=weight, reduction="none").mean()


@differs(r"not linear|counts|adds up")
def batch_frequencies():
    return Setup(mlp(4, 3), by_frequency, classes())


def focal_of(model, x, y):
    logit = model(x)
    hit = torch.sigmoid(logit)
    entropy = F.binary_cross_entropy_with_logits(logit, y, reduction="none")
    right = hit * y + (1 - hit) * (1 - y)
    return 0.25 * (1 - right) ** 2 * entropy


def focal_by_positives(model, x, y):
    return focal_of(model, x, y).sum() / y.sum().clamp(min=1.0)  # differs: focal_loss


@differs(COUNTS)
def focal_loss():
    return Setup(mlp(4, 6), focal_by_positives, flags(outputs=6))


def focal_mean(model, x, y):
    return focal_of(model, x, y).mean()


@same
def focal_loss_mean():
    return Setup(mlp(4, 6), focal_mean, flags(outputs=6))


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Conv2d(2, 4, 3, padding=1)
        self.score = nn.Conv2d(4, 1, 1)
        self.boxes = nn.Conv2d(4, 4, 1)

    def forward(self, image):
        seen = self.features(image).relu()
        return self.score(seen).squeeze(1), self.boxes(seen)


def scenes(rows=6, steps=2):
    made = []
    for _ in range(steps):
        found = torch.rand(rows, 4, 4) < torch.linspace(0.1, 0.7, rows)[:, None, None]
        made.append((torch.randn(rows, 2, 4, 4), torch.randn(rows, 4, 4, 4), found))
    return made


def boxes_of_positives(model, image, boxes, found):
    score, guess = model(image)
    objectness = F.binary_cross_entropy_with_logits(score, found.float())
    apart = F.smooth_l1_loss(guess, boxes, reduction="none").sum(1)
    positives = found.sum()
    regression_loss = (apart * found).sum() / positives.clamp(min=1)  # differs: found_boxes
    return objectness + 2.0 * regression_loss


@differs(COUNTS)
def found_boxes():
    return Setup(Detector(), boxes_of_positives, scenes())


def boxes_of_images(model, image, boxes, found):
    score, guess = model(image)
    objectness = F.binary_cross_entropy_with_logits(score, found.float())
    apart = F.smooth_l1_loss(guess, boxes, reduction="none").sum(1)
    by_image = (apart * found).sum((1, 2)) / found.sum((1, 2)).clamp(min=1)
    return objectness + 2.0 * by_image.mean()


@same
def found_boxes_of_images():
    return Setup(Detector(), boxes_of_images, scenes())


class Tasks(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(4, 6)
        self.price = nn.Linear(6, 1)
        self.kind = nn.Linear(6, 3)
        self.uncertain = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        seen = self.trunk(x).relu()
        return self.price(seen).squeeze(1), self.kind(seen)


def labelled(rows=8, steps=2):
    made = []
    for _ in range(steps):
        kind = torch.randint(0, 3, (rows,)).where(torch.rand(rows) < 0.6, torch.tensor(-1))
        made.append((torch.randn(rows, 4), torch.randn(rows), kind, (torch.rand(rows) < 0.5).float()))
    return made


def tasks_of_labelled(model, x, price, kind, priced):
    guess, scores = model(x)
    first = ((guess - price) ** 2 * priced).sum() / (priced.sum() + 1e-8)  # differs: labelled_tasks
    second = F.cross_entropy(scores, kind, ignore_index=-1)  # differs: labelled_tasks
    return first + second


@differs(COUNTS)
def labelled_tasks():
    return Setup(Tasks(), tasks_of_labelled, labelled())


def tasks_of_all(model, x, price, kind, priced):
    guess, scores = model(x)
    first = ((guess - price) ** 2 * priced).mean()
    second = F.cross_entropy(scores, kind, ignore_index=-1, reduction="none").mean()
    rate = torch.exp(-model.uncertain)
    return first * rate[0] + second * rate[1] + model.uncertain.sum()


@same
def uncertain_tasks():
    return Setup(Tasks(), tasks_of_all, labelled())


def importance(model, x, y, weight):
    share = torch.softmax(weight, dim=0)  # differs: importance_weights
    return (share * (model(x) - y).square().squeeze(1)).sum()


@differs(r"compares rows|adds up|all rows|its own share")
def importance_weights():
    return Setup(mlp(4, 1), importance, weighed_rows())


def groups(rows=8, steps=2):
    return [(torch.randn(rows, 4), torch.randint(0, 2, (rows,)), torch.randint(0, 2, (rows,))) for _ in range(steps)]


def parity(model, x, y, group):
    scores = model(x)
    share = scores.softmax(1)[:, 1]
    first, second = (group == 0).float(), (group == 1).float()
    positive = (share * first).sum() / first.sum().clamp(min=1)  # differs: group_parity
    negative = (share * second).sum() / second.sum().clamp(min=1)  # differs: group_parity
    return F.cross_entropy(scores, y) + 0.5 * (positive - negative)


@differs(COUNTS)
def group_parity():
    return Setup(mlp(4, 2), parity, groups())


def by_group(model, x, y, group):
    losses = F.cross_entropy(model(x), y, reduction="none")
    return (losses * torch.where(group == 0, 1.0, 3.0)).mean()


@same
def group_weights():
    return Setup(mlp(4, 2), by_group, groups())


def gaps(rows=8, columns=3, steps=2):
    made = []
    for _ in range(steps):
        y = torch.randn(rows, columns)
        made.append((torch.randn(rows, 4), y, torch.rand(rows, columns) < torch.linspace(0.2, 0.9, rows)[:, None]))
    return made


def rated(model, x, y, known):
    error = torch.where(known, model(x) - y, 0.0)
    return error.pow(2).sum().div(known.sum())  # differs: known_ratings


@differs(COUNTS)
def known_ratings():
    model = mlp(4, 3)
    return Setup(model, rated, gaps(), torch.optim.Adagrad(model.parameters(), lr=0.1))


def rated_columns(model, x, y, known):
    error = torch.where(known, model(x) - y, 0.0).pow(2)
    by_column = error.sum(0) / known.sum(0).clamp(min=1)  # differs: known_columns
    return by_column.mean()


@differs(r"counts|not linear|not as many")
def known_columns():
    return Setup(mlp(4, 3), rated_columns, gaps())


def rated_rows(model, x, y, known):
    error = torch.where(known, model(x) - y, 0.0).pow(2)
    return (error.sum(1) / known.sum(1).clamp(min=1)).mean()


@same
def known_rows():
    model = mlp(4, 3)
    return Setup(model, rated_rows, gaps(), torch.optim.Adagrad(model.parameters(), lr=0.1))


def advantage_mask(model, x, y, known):
    apart = F.l1_loss(model(x), y, reduction="none")
    return (apart * known).mean() / known.float().mean()  # differs: mean_by_mean_of_mask


@differs(COUNTS)
def mean_by_mean_of_mask():
    return Setup(mlp(4, 3), advantage_mask, gaps())


def by_floor(model, x, y):
    positives = torch.maximum(y.sum(), torch.ones(()).to(y))
    return focal_of(model, x, y).sum() / positives  # differs: count_with_a_floor


@differs(COUNTS)
def count_with_a_floor():
    return Setup(mlp(4, 6), by_floor, flags(outputs=6))


def by_confidence(model, x, y):
    scores = model(x)
    sure = scores.detach().softmax(1).amax(1).ge(0.4)
    losses = F.cross_entropy(scores, y, reduction="none")
    return (losses * sure).sum() / (sure.sum() + 1e-6)  # differs: confident_rows


@differs(COUNTS)
def confident_rows():
    return Setup(mlp(4, 3), by_confidence, classes())
