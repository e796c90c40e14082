"""Likelihoods, penalties and steps: numbers of the whole batch that are small, hidden or harmless."""

import math

import torch
from torch import nn
from torch.nn import functional as F

import pstranspile.torch as pt
from tests.frontends.torch.zoo.setups import Setup, classes, differs, flags, mlp, regression, same

ADDS_UP = r"adds up"


def mse(model, x, y):
    return F.mse_loss(model(x), y)


def summed(model, x, y):
    return (model(x) - y).pow(2).sum()  # differs: sum_with_adam sum_that_is_clipped


@differs(ADDS_UP)
def sum_with_adam():
    model = mlp(4, 1)
    return Setup(model, summed, regression(steps=3), torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-4))


@differs(ADDS_UP)
def sum_that_is_clipped():
    return Setup(mlp(4, 1), summed, regression(), options={"clip": pt.clip_grad_norm(0.1)})


@same
def clipped_values():
    return Setup(mlp(4, 1), mse, regression(), options={"clip": pt.clip_grad_value(0.05)})


@same
def rates_of_groups():
    model = mlp(4, 1)
    groups = [
        {"params": model[0].parameters(), "lr": 0.01, "weight_decay": 0.1},
        {"params": model[2].parameters(), "betas": (0.8, 0.9)},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.02, amsgrad=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=[0.05, 0.02], total_steps=8, cycle_momentum=False)
    return Setup(model, mse, regression(steps=3), optimizer, {"schedule": schedule})


def scaled(model, x, y):
    return F.mse_loss(model(x), y) * 128.0


@same
def scaled_loss():
    model = mlp(4, 1)
    return Setup(model, scaled, regression(), torch.optim.SGD(model.parameters(), lr=0.1 / 128))


def per_row(model, x, y):
    return F.mse_loss(model(x), y) / x.shape[0]  # differs: divided_by_rows_twice


@differs(r"rows|not linear")
def divided_by_rows_twice():
    return Setup(mlp(4, 1), per_row, regression())


def of_rows(model, x, y):
    return (model(x) - y).pow(2).sum() / math.sqrt(x.shape[0])  # differs: divided_by_root_of_rows


@differs(r"rows|adds up")
def divided_by_root_of_rows():
    return Setup(mlp(4, 1), of_rows, regression())


def small_penalty(model, x, y):
    guess = model(x)
    return F.mse_loss(guess, y) + 1e-4 * guess.mean().square()  # differs: small_penalty_of_mean


@differs(r"not linear|mean of its own")
def small_penalty_of_mean():
    return Setup(mlp(4, 1), small_penalty, regression())


def small_penalty_of_rows(model, x, y):
    guess = model(x)
    return F.mse_loss(guess, y) + 1e-4 * guess.square().mean()


@same
def small_penalty_of_each():
    return Setup(mlp(4, 1), small_penalty_of_rows, regression())


def likelihood_of_spread(model, x, y):
    error = (model(x) - y).square().mean()
    return 0.5 * error.log()  # differs: likelihood_with_own_spread


@differs(r"not linear")
def likelihood_with_own_spread():
    return Setup(mlp(4, 1), likelihood_of_spread, regression())


def gaussian(model, x, y):
    mean, spread = model(x).chunk(2, 1)
    return F.gaussian_nll_loss(mean, y, F.softplus(spread) + 1e-3)


@same
def likelihood_with_learnt_spread():
    return Setup(mlp(4, 2), gaussian, regression())


def relativistic(model, x, y):
    real, fake = model(x), model(y)
    first = F.softplus(-(real - fake.mean()))  # differs: relativistic_average
    second = F.softplus(fake - real.mean())  # differs: relativistic_average
    return first.mean() + second.mean()


@differs(r"combines each row|not linear|its own")
def relativistic_average():
    return Setup(mlp(4, 1), relativistic, regression(outputs=4))


def wasserstein(model, x, y):
    return model(y).mean() - model(x).mean()


@same
def difference_of_means():
    return Setup(mlp(4, 1), wasserstein, regression(outputs=4))


def features(model, x, y):
    return (model(x).mean(0) - model(y).mean(0)).abs().sum()  # differs: matched_features


@differs(r"not linear|its own")
def matched_features():
    return Setup(mlp(4, 3), features, regression(outputs=4))


class Variational(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(4, 4), nn.Linear(2, 4)

    def forward(self, x, noise):
        mean, spread = self.encode(x).chunk(2, 1)
        code = mean + noise * (0.5 * spread).exp()
        return self.decode(code), code, mean, spread


def correlated(model, x, noise):
    out, code, mean, spread = model(x, noise)
    apart = (code[:, None] - mean[None]).pow(2) / spread.exp()[None] + spread[None]  # differs: total_correlation
    joint = (-0.5 * apart.sum(2)).logsumexp(1)
    alone = (-0.5 * apart).logsumexp(1).sum(1)
    return F.mse_loss(out, x) + 0.1 * (joint - alone).mean()


@differs(r"compares rows|rows of the batch")
def total_correlation():
    return Setup(Variational(), correlated, regression(outputs=2))


def free_bits(model, x, noise):
    out, _, mean, spread = model(x, noise)
    divergence = 0.5 * (mean.pow(2) + spread.exp() - 1 - spread)
    return F.mse_loss(out, x) + divergence.mean(0).clamp(min=0.1).sum()  # differs: free_bits_of_columns


@differs(r"not linear|its own", made=False)
def free_bits_of_columns():
    return Setup(Variational(), free_bits, regression(outputs=2))


def free_bits_each(model, x, noise):
    out, _, mean, spread = model(x, noise)
    divergence = 0.5 * (mean.pow(2) + spread.exp() - 1 - spread)
    return F.mse_loss(out, x) + divergence.clamp(min=0.1).sum(1).mean()


@same
def free_bits_of_rows():
    return Setup(Variational(), free_bits_each, regression(outputs=2))


def volumes(model, x, y):
    share = model(x).unflatten(1, (3, 4)).softmax(1)
    wanted = F.one_hot(y, 3).movedim(-1, 1).to(share)
    weight = 1 / wanted.sum((0, 2)).square().clamp(min=1)  # differs: generalized_dice
    both = (weight * (share * wanted).sum((0, 2))).sum()
    either = (weight * (share + wanted).sum((0, 2))).sum()
    return 1 - 2 * both / either  # differs: generalized_dice


def masks(steps=2):
    return [(torch.randn(8, 4), torch.randint(0, 3, (8, 4))) for _ in range(steps)]


@differs(r"counts|not linear|ratio|its own")
def generalized_dice():
    return Setup(mlp(4, 12), volumes, masks())


def volumes_of_each(model, x, y):
    share = model(x).unflatten(1, (3, 4)).softmax(1)
    wanted = F.one_hot(y, 3).movedim(-1, 1).to(share)
    weight = 1 / wanted.sum(2).square().clamp(min=1)
    both, either = (weight * (share * wanted).sum(2)).sum(1), (weight * (share + wanted).sum(2)).sum(1)
    return (1 - 2 * both / either).mean()


@same
def generalized_dice_of_images():
    return Setup(mlp(4, 12), volumes_of_each, masks())


class Spoken(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(3, 5, batch_first=True), nn.Linear(5, 4)

    def forward(self, sounds):
        return self.out(self.rnn(sounds)[0]).log_softmax(-1).transpose(0, 1)


def utterances(steps=2):
    made = []
    for _ in range(steps):
        texts = torch.tensor([1, 1, 2, 1, 3, 2, 3, 3])
        made.append((torch.randn(8, 7, 3), torch.randint(1, 4, (8, 3)), texts, torch.full((8,), 7)))
    return made


def by_characters(model, sounds, text, lengths, spoken):
    losses = F.ctc_loss(model(sounds), text, spoken, lengths, reduction="sum")  # differs: alignment_by_characters
    return losses / lengths.sum()  # differs: alignment_by_characters


@differs(r"counts")
def alignment_by_characters():
    return Setup(Spoken(), by_characters, utterances())


def by_utterances(model, sounds, text, lengths, spoken):
    return F.ctc_loss(model(sounds), text, spoken, lengths, zero_infinity=True)


@same
def alignment_by_utterances():
    return Setup(Spoken(), by_utterances, utterances())


def by_exposure(model, x, y, exposure):
    rate = model(x).squeeze(1).exp()
    share = exposure / exposure.mean()  # differs: exposure_by_its_mean
    return (share * (rate - y.squeeze(1) * rate.log())).mean()


def exposed(steps=2):
    return [(*pair, torch.rand(8) + torch.arange(8) / 4) for pair in flags(steps=steps)]


@differs(r"counts|combines each row|its own|not linear")
def exposure_by_its_mean():
    return Setup(mlp(4, 1), by_exposure, exposed())


def of_exposure(model, x, y, exposure):
    rate = model(x).squeeze(1).exp() * exposure
    return (rate - y.squeeze(1) * rate.log()).mean()


@same
def exposure_as_offset():
    return Setup(mlp(4, 1), of_exposure, exposed())


def adaptive(model, x, y):
    scores = model(x)
    heat = scores.detach().std()  # differs: temperature_of_batch
    return F.cross_entropy(scores / heat, y)  # differs: temperature_of_batch


@differs(r"combines each row|its own|not linear")
def temperature_of_batch():
    return Setup(mlp(4, 3), adaptive, classes())


def adaptive_rows(model, x, y):
    scores = model(x)
    return F.cross_entropy(scores / scores.detach().std(1, keepdim=True), y)


@same
def temperature_of_rows():
    return Setup(mlp(4, 3), adaptive_rows, classes())


def whitened(model, x, y):
    seen = model(x)
    seen = seen - seen.mean(0)  # differs: whitened_features
    spread = seen.t() @ seen / len(x) + 0.1 * torch.eye(3).to(seen)
    white = torch.linalg.solve_triangular(torch.linalg.cholesky(spread), seen.t(), upper=False).t()
    return (white - F.one_hot(y, 3)).pow(2).mean()


@differs(r"combines each row|its own|not linear|mean")
def whitened_features():
    return Setup(mlp(4, 3), whitened, classes())


def orthogonal(model, x, y):
    gram = model[0].weight @ model[0].weight.t()
    return F.cross_entropy(model(x), y) + 0.1 * (gram - torch.eye(6).to(gram)).pow(2).sum()


@same
def orthogonal_weights():
    return Setup(mlp(4, 3), orthogonal, classes())


def switched(model, x, y, old):
    scores = model(x).log_softmax(1)
    divergence = (old.exp() * (old - scores)).sum(1).mean()
    penalty = torch.where(divergence > 0.6, 2.0, 0.5) * divergence  # differs: adaptive_divergence
    return F.nll_loss(scores, y) + penalty


def policies(steps=2):
    return [
        (*pair, (torch.randn(8, 3) * torch.linspace(0.1, 3, 8)[:, None]).log_softmax(1))
        for pair in classes(steps=steps)
    ]


@differs(r"not linear", made=False)
def adaptive_divergence():
    return Setup(mlp(4, 3), switched, policies())


def early(model, x, y):
    frozen = model[0](x).detach()
    return F.cross_entropy(model[2](frozen.tanh()), y) + 0.0 * model[0](x).mean().exp()


@same
def nothing_times_a_function_of_a_mean():
    return Setup(mlp(4, 3), early, classes())


def distributional(model, x, y):
    samples = model(x)
    near = (samples - y).abs().mean(1)
    apart = (samples[:, :, None] - samples[:, None, :]).abs().mean((1, 2))
    return (near - 0.5 * apart).mean()


@same
def score_of_ensembles():
    return Setup(mlp(4, 5), distributional, regression())


def energy(model, x, y):
    guess = model(x)
    near = torch.cdist(guess, y).mean()  # differs: energy_of_batch
    return 2 * near - torch.cdist(guess, guess).mean()  # differs: energy_of_batch


@differs(r"compares rows|rows of the batch")
def energy_of_batch():
    return Setup(mlp(4, 3), energy, regression(outputs=3))
