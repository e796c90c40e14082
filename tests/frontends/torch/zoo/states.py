"""Modules that keep something from step to step: teachers, banks, codebooks, centers, metrics, norms of weights."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from tests.frontends.torch.zoo.setups import Setup, classes, differs, flags, mlp, regression, same

KEPT = r"buffer|kept|its own"


class Teacher(nn.Module):
    """A student and a teacher, whose weights are a moving average of the student's."""

    def __init__(self, norm):
        super().__init__()
        self.student = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
        self.teacher = nn.Sequential(nn.Linear(4, 5), norm, nn.Linear(5, 3)).requires_grad_(requires_grad=False)

    def forward(self, x, y):
        with torch.no_grad():
            target = self.teacher(x).softmax(1)  # differs: teacher_with_batch_norm
        scores = self.student(x)
        return F.cross_entropy(scores, y) - (target * scores.log_softmax(1)).sum(1).mean()


@differs(r"mean and the variance of its own share")
def teacher_with_batch_norm():
    model = Teacher(nn.BatchNorm1d(5))
    return Setup(model, None, classes(), torch.optim.SGD(model.student.parameters(), lr=0.1))


@same
def teacher_with_layer_norm():
    model = Teacher(nn.LayerNorm(5))
    return Setup(model, None, classes(), torch.optim.SGD(model.student.parameters(), lr=0.1))


class Bank(nn.Module):
    """Keys of the last batches are the negatives of the next one."""

    def __init__(self, kept):
        super().__init__()
        self.query, self.key, self.kept = nn.Linear(4, 3), nn.Linear(4, 3), kept
        self.register_buffer("queue", F.normalize(torch.randn(16, 3), dim=1))

    def forward(self, a, b):
        query = F.normalize(self.query(a), dim=1)
        with torch.no_grad():
            key = F.normalize(self.key(b), dim=1)
        good = (query * key).sum(1, keepdim=True)
        bad = query @ self.queue.clone().t()
        loss = F.cross_entropy(torch.cat([good, bad], 1) / 0.5, torch.zeros(len(a), dtype=torch.long))
        if self.kept:
            with torch.no_grad():
                self.queue.copy_(torch.cat([key, self.queue])[:16])  # differs: queue_of_keys
        return loss


def views(steps=3):
    return [(torch.randn(8, 4), torch.randn(8, 4)) for _ in range(steps)]


@differs(KEPT)
def queue_of_keys():
    model = Bank(kept=True)
    return Setup(model, None, views(), torch.optim.SGD(model.query.parameters(), lr=0.1))


@same
def fixed_queue():
    model = Bank(kept=False)
    return Setup(model, None, views(), torch.optim.SGD(model.query.parameters(), lr=0.1))


class Quantized(nn.Module):
    """Codes whose vectors are the moving means of what is assigned to them, or are trained."""

    def __init__(self, moving):
        super().__init__()
        self.encode, self.decode, self.moving = nn.Linear(4, 2), nn.Linear(2, 4), moving
        if moving:
            self.register_buffer("codes", torch.randn(5, 2))
            self.register_buffer("sizes", torch.ones(5))
        else:
            self.codes = nn.Parameter(torch.randn(5, 2))

    def forward(self, x, y):
        seen = self.encode(x)
        nearest = (seen.detach()[:, None] - self.codes.detach()[None]).pow(2).sum(2).argmin(1)
        code = self.codes.clone()[nearest]
        loss = F.mse_loss(self.decode(seen + (code - seen).detach()), x) + 0.25 * F.mse_loss(seen, code.detach())
        if not self.moving:
            return loss + F.mse_loss(code, seen.detach())
        with torch.no_grad():
            members = F.one_hot(nearest, 5).to(x)
            found = members.sum(0)  # differs: moving_codes
            self.sizes.mul_(0.9).add_(found, alpha=0.1)  # differs: moving_codes
            mean = members.t() @ seen / found.clamp(min=1)[:, None]  # differs: moving_codes
            self.codes.lerp_(torch.where(found[:, None] > 0, mean, self.codes), 0.1)
        return loss


@differs(r"buffer|counts|its own")
def moving_codes():
    return Setup(Quantized(moving=True), None, regression(steps=3))


@same
def trained_codes():
    return Setup(Quantized(moving=False), None, regression(steps=3))


class Centred(nn.Module):
    """Moves the center of a class towards its rows."""

    def __init__(self):
        super().__init__()
        self.net = mlp(4, 3)
        self.register_buffer("centers", torch.randn(3, 3))

    def forward(self, x, y):
        seen = self.net(x)
        apart = seen - self.centers[y]
        with torch.no_grad():
            self.centers.index_add_(0, y, apart.detach(), alpha=0.5)  # differs: moved_centers
        return apart.pow(2).sum(1).mean() + F.cross_entropy(seen, y)


@differs(KEPT)
def moved_centers():
    return Setup(Centred(), None, classes(steps=3))


class Spectral(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = parametrizations.spectral_norm(nn.Linear(4, 6))
        self.last = parametrizations.weight_norm(nn.Linear(6, 1))

    def forward(self, x):
        return self.last(F.leaky_relu(self.first(x), 0.2))


def mse(model, x, y):
    return F.mse_loss(model(x), y)


@same
def norms_of_weights():
    return Setup(Spectral(), mse, regression())


class Watching(nn.Module):
    """Counts hits, which no loss is made of."""

    def __init__(self, loss_by_accuracy):
        super().__init__()
        self.net, self.loss_by_accuracy = mlp(4, 3), loss_by_accuracy
        self.register_buffer("hits", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x, y):
        scores = self.net(x)
        with torch.no_grad():
            hits = (scores.argmax(1) == y).sum()  # differs: counted_hits accuracy_in_loss
            self.hits += hits  # differs: counted_hits accuracy_in_loss
            self.seen += len(y)  # differs: counted_hits accuracy_in_loss
        loss = F.cross_entropy(scores, y)
        return loss * (2 - self.hits / self.seen) if self.loss_by_accuracy else loss  # differs: accuracy_in_loss


@differs(KEPT)
def counted_hits():
    return Setup(Watching(loss_by_accuracy=False), None, classes(steps=3))


@differs(r"buffer|counts|its own|not linear")
def accuracy_in_loss():
    return Setup(Watching(loss_by_accuracy=True), None, classes(steps=3))


class Confused(nn.Module):
    """Weighs classes by the confusions of a share, or by those that it was given."""

    def __init__(self, counting):
        super().__init__()
        self.net, self.counting = mlp(4, 3), counting
        self.register_buffer("confusion", torch.ones(3, 3))

    def forward(self, x, y):
        scores = self.net(x)
        if self.counting:
            with torch.no_grad():
                wrong = F.one_hot(y, 3).to(x).t() @ scores.softmax(1)  # differs: confused_classes
                self.confusion.copy_(0.5 * self.confusion + wrong)  # differs: confused_classes
        share = self.confusion / self.confusion.sum(1, keepdim=True)
        return F.cross_entropy(scores - share[y].log(), y)


@differs(r"adds up|buffer|its own|not linear")
def confused_classes():
    return Setup(Confused(counting=True), None, classes(steps=3))


@same
def known_confusions():
    return Setup(Confused(counting=False), None, classes(steps=3))


class Rated(nn.Module):
    """Divides rewards by their running spread."""

    def __init__(self):
        super().__init__()
        self.net = mlp(4, 1)
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("square", torch.ones(()))

    def forward(self, x, reward):
        with torch.no_grad():
            self.mean.lerp_(reward.mean(), 0.1)  # differs: running_spread
            self.square.lerp_(reward.pow(2).mean(), 0.1)  # differs: running_spread
        spread = (self.square - self.mean.pow(2)).clamp(min=1e-2).sqrt()  # differs: running_spread
        return F.mse_loss(self.net(x), (reward - self.mean) / spread)


@differs(r"buffer|its own|not linear|kept")
def running_spread():
    return Setup(Rated(), None, regression(steps=3))


class Warmed(nn.Module):
    """Weighs a second loss by the steps that were made."""

    def __init__(self):
        super().__init__()
        self.net = mlp(4, 2)
        self.register_buffer("made", torch.zeros(()))

    def forward(self, x, y):
        self.made += 1
        out = self.net(x)
        weight = (self.made / 10).clamp(max=1.0)
        return F.binary_cross_entropy_with_logits(out[:, :1], y) + weight * out[:, 1].pow(2).mean()


@same
def warmed_up():
    return Setup(Warmed(), None, flags(steps=3))


class Tracked(nn.Module):
    def __init__(self, tracking):
        super().__init__()
        self.first, self.last = nn.Conv1d(2, 3, 3, padding=1), nn.Linear(3, 1)
        self.norm = nn.InstanceNorm1d(3, track_running_stats=tracking)

    def forward(self, x):
        seen = self.norm(self.first(x))  # differs: tracked_instance_norm
        return self.last(seen.relu().amax(2))


def signals(steps=2):
    return [(torch.randn(8, 2, 5), torch.randn(8, 1)) for _ in range(steps)]


@differs(r"buffer|its own|kept")
def tracked_instance_norm():
    return Setup(Tracked(tracking=True), mse, signals())


@same
def untracked_instance_norm():
    return Setup(Tracked(tracking=False), mse, signals())


class Averaged(nn.Module):
    """A batch norm whose running statistics are averages over all batches."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 1)
        self.norm = nn.BatchNorm1d(6, momentum=None)

    def forward(self, x):
        return self.last(self.norm(self.first(x)).relu())  # differs: cumulative_batch_norm


@differs(r"mean and the variance of its own share")
def cumulative_batch_norm():
    return Setup(Averaged(), mse, regression(steps=3))
