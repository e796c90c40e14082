"""Norms and statistics of the batch: in layers, in losses and in buffers."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.frontends.torch.zoo.setups import Setup, classes, differs, mlp, regression, same


def mse(model, x, y):
    return F.mse_loss(model(x), y)


class Net(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.norm = norm
        self.last = nn.Linear(6, 1)

    def forward(self, x):
        seen = self.norm(self.first(x))  # differs: batch_norm batch_norm_without_statistics
        return self.last(seen.relu())


@differs(r"mean and the variance of its own share")
def batch_norm():
    return Setup(Net(nn.BatchNorm1d(6)), mse, regression())


@differs(r"a mean, a variance .* its own share")
def batch_norm_without_statistics():
    return Setup(Net(nn.BatchNorm1d(6, track_running_stats=False)), mse, regression())


@same
def frozen_batch_norm():
    return Setup(Net(nn.BatchNorm1d(6).eval()), mse, regression())


@same
def layer_norm():
    return Setup(Net(nn.LayerNorm(6)), mse, regression())


@same
def group_norm():
    return Setup(Net(nn.GroupNorm(2, 6)), mse, regression())


class Images(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.bn = norm
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = self.conv(x)
        x = self.bn(x)  # differs: batch_norm_of_images
        return self.head(x.relu().mean((2, 3)))


def pictures(rows=6, steps=2):
    return [(torch.randn(rows, 2, 4, 4), torch.randint(0, 3, (rows,))) for _ in range(steps)]


def entropy(model, x, y):
    return F.cross_entropy(model(x), y)


@differs(r"mean and the variance of its own share")
def batch_norm_of_images():
    model = Images(nn.BatchNorm2d(4))
    return Setup(model, entropy, pictures(), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


@same
def instance_norm():
    model = Images(nn.InstanceNorm2d(4, affine=True))
    return Setup(model, entropy, pictures(), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


class Standardised(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 1)

    def forward(self, x):
        seen = self.first(x)
        seen = (seen - seen.mean(0)) / (seen.std(0) + 1e-5)  # differs: written_batch_norm
        return self.last(seen)


@differs(r"not linear|its own")
def written_batch_norm():
    return Setup(Standardised(), mse, regression())


def policy(model, x, action, advantage, old):
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)  # differs: advantages
    ratio = (model(x).log_softmax(1).gather(1, action[:, None]).squeeze(1) - old).exp()
    clipped = ratio.clamp(0.8, 1.2)
    return -torch.min(ratio * advantage, clipped * advantage).mean()


def episodes(rows=8, steps=2):
    return [
        (torch.randn(rows, 4), torch.randint(0, 3, (rows,)), torch.randn(rows), -torch.rand(rows) - 0.5)
        for _ in range(steps)
    ]


@differs(r"not linear|its own")
def advantages():
    model = mlp(4, 3)
    return Setup(model, policy, episodes(), torch.optim.Adam(model.parameters(), lr=0.01))


def policy_as_given(model, x, action, advantage, old):
    ratio = (model(x).log_softmax(1).gather(1, action[:, None]).squeeze(1) - old).exp()
    return -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()


@same
def advantages_as_given():
    model = mlp(4, 3)
    return Setup(model, policy_as_given, episodes(), torch.optim.Adam(model.parameters(), lr=0.01))


def standard_targets(model, x, y):
    mean, std = y.mean(), y.std()  # differs: standardised_targets
    return F.mse_loss(model(x), (y - mean) / std)


@differs(r"not linear|its own")
def standardised_targets():
    return Setup(mlp(4, 1), standard_targets, regression())


def known_scale(model, x, y):
    return F.huber_loss(model(x), (y - 0.3) / 1.7)


@same
def scaled_targets():
    return Setup(mlp(4, 1), known_scale, regression())


def largest_target(model, x, y):
    return F.mse_loss(model(x), y / y.abs().max())  # differs: largest_of_batch


@differs(r"rows|not linear|largest")
def largest_of_batch():
    return Setup(mlp(4, 1), largest_target, regression())


def largest_in_row(model, x, y):
    return F.mse_loss(model(x), y / y.abs().amax(1, keepdim=True).clamp(min=0.1))


@same
def largest_of_rows():
    return Setup(mlp(4, 3), largest_in_row, regression(outputs=3))


class Centered(nn.Module):
    """A student of a teacher, whose scores are centered by a mean that is kept."""

    def __init__(self, moving):
        super().__init__()
        self.moving = moving
        self.student, self.teacher = mlp(4, 3), mlp(4, 3)
        self.teacher.requires_grad_(requires_grad=False)
        self.register_buffer("center", torch.zeros(3))

    def forward(self, x, view):
        with torch.no_grad():
            taught = self.teacher(view)
            target = ((taught - self.center) / 0.5).softmax(1)
            if self.moving:
                self.center.mul_(0.5).add_(taught.mean(0), alpha=0.5)  # differs: moving_center
        return -(target * self.student(x).log_softmax(1)).sum(1).mean()


def views(rows=8, steps=3):
    return [(torch.randn(rows, 4), torch.randn(rows, 4)) for _ in range(steps)]


@differs(r"buffer|kept|own")
def moving_center():
    return Setup(Centered(moving=True), None, views())


@same
def fixed_center():
    model = Centered(moving=False)
    return Setup(model, None, views(), torch.optim.SGD(model.student.parameters(), lr=0.1))


class Target(nn.Module):
    """A network and its moving average, which is kept in buffers."""

    def __init__(self):
        super().__init__()
        self.online = nn.Linear(4, 3)
        self.register_buffer("slow", self.online.weight.detach().clone())

    def forward(self, x, view):
        with torch.no_grad():
            self.slow.copy_(0.9 * self.slow + 0.1 * self.online.weight)
        return (F.normalize(self.online(x), dim=1) - F.normalize(view @ self.slow.T, dim=1)).pow(2).sum(1).mean()


@same
def moving_weights():
    return Setup(Target(), None, views())


class Scaled(nn.Module):
    """A loss by the size of targets that was seen so far."""

    def __init__(self):
        super().__init__()
        self.net = mlp(4, 1)
        self.register_buffer("size", torch.ones(()))

    def forward(self, x, y):
        with torch.no_grad():
            self.size.mul_(0.9).add_(0.1 * y.abs().mean())  # differs: moving_size
        return F.mse_loss(self.net(x), y) / self.size


@differs(r"buffer|kept|own")
def moving_size():
    return Setup(Scaled(), None, regression(steps=3))


class Counting(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.net = mlp(4, 1)
        self.rows = rows
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x, y):
        self.seen += x.shape[0] if self.rows else 1  # differs: counted_rows
        return F.mse_loss(self.net(x), y)


@differs(r"buffer|kept|own")
def counted_rows():
    return Setup(Counting(rows=True), None, regression())


@same
def counted_steps():
    return Setup(Counting(rows=False), None, regression())


class Watched(nn.Module):
    """Keeps a mean of its inputs for later, by which it is not trained."""

    def __init__(self):
        super().__init__()
        self.net = mlp(4, 1)
        self.register_buffer("typical", torch.zeros(4))

    def forward(self, x, y):
        with torch.no_grad():
            self.typical.lerp_(x.mean(0), 0.1)  # differs: watched_mean
        return F.mse_loss(self.net(x), y)


@differs(r"buffer|kept|own")
def watched_mean():
    return Setup(Watched(), None, regression())


class Discriminator(nn.Module):
    def __init__(self, spread):
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(6, 1)
        self.spread = spread

    def forward(self, x):
        seen = self.first(x).relu()
        if self.spread:
            spread = seen.var(0, unbiased=False).mean().sqrt()  # differs: spread_of_batch
        else:
            spread = torch.ones(())
        return self.last(torch.cat([seen, spread.expand(len(seen), 1)], 1)).squeeze(1)


def real(model, x, y):
    return F.binary_cross_entropy_with_logits(model(x), y.squeeze(1).sigmoid())


@differs(r"not linear|its own")
def spread_of_batch():
    return Setup(Discriminator(spread=True), real, regression())


@same
def no_spread():
    return Setup(Discriminator(spread=False), real, regression())


def balanced_assignment(model, x, y):
    scores = model(x)
    with torch.no_grad():
        share = (scores / 0.5).exp()
        for _ in range(2):
            share = share / share.sum(0, keepdim=True)  # differs: sinkhorn
            share = share / share.sum(1, keepdim=True)
    return -(share * scores.log_softmax(1)).sum(1).mean()


@differs(r"counts|not linear|adds up|its own")
def sinkhorn():
    return Setup(mlp(4, 3), balanced_assignment, classes())
