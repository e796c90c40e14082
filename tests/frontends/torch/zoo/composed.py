"""Losses of several steps: functions of a mean, micro-batches, packed sequences, values that are missing."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.frontends.torch.zoo.setups import Setup, classes, differs, mlp, regression, same, sentences
from tests.frontends.torch.zoo.tokens import COUNTS, Tagger


def perplexity(model, words, tags):
    entropy = F.cross_entropy(model(words).flatten(0, 1), tags.flatten())
    return entropy.exp()  # differs: perplexity_of_all


@differs(r"not linear")
def perplexity_of_all():
    return Setup(Tagger(), perplexity, sentences())


def perplexity_by_rows(model, words, tags):
    return F.cross_entropy(model(words).transpose(1, 2), tags, reduction="none").mean(1).exp().mean()


@same
def perplexity_of_sentences():
    return Setup(Tagger(), perplexity_by_rows, sentences())


def temperature(model, words, tags):
    shares = model(words).softmax(-1)
    entropy = -(shares * shares.log()).sum(-1).mean()
    alpha = torch.exp(entropy - 1)  # differs: exponential_of_entropy
    return F.cross_entropy(model(words).flatten(0, 1), tags.flatten()) - alpha


@differs(r"not linear")
def exponential_of_entropy():
    return Setup(Tagger(), temperature, sentences())


def counted(model, words, tags):
    losses = F.cross_entropy(model(words).flatten(0, 1), tags.flatten(), ignore_index=0, reduction="none")
    return losses.sum() / (tags != 0).sum()  # differs: micro_batches_of_tokens


@differs(COUNTS)
def micro_batches_of_tokens():
    return Setup(Tagger(), counted, sentences(), options={"accumulate": 2})


def alike(steps=2):
    """Batches whose halves have the same flags, which differ from quarter to quarter."""
    flags = (torch.arange(3)[None] < torch.tensor([1, 0, 3, 2])[:, None]).float()
    return [(torch.randn(8, 4), torch.randn(8, 3), torch.cat([flags, flags])) for _ in range(steps)]


def by_flags(model, x, y, flags):
    total = ((model(x) - y).pow(2) * flags).sum()  # differs: micro_batches_of_like_ranks
    return total / flags.sum().clamp(min=1)  # differs: micro_batches_of_like_ranks


@differs(r"counts", made=False)
def micro_batches_of_like_ranks():
    return Setup(mlp(4, 3), by_flags, alike(), options={"accumulate": 2})


def by_class(model, x, y):
    return F.cross_entropy(model(x), y, weight=torch.tensor([0.2, 1.0, 3.0]))  # differs: micro_batches_of_classes


@differs(COUNTS)
def micro_batches_of_classes():
    return Setup(mlp(4, 3), by_class, classes(), options={"accumulate": 2})


def in_order(model, x, y, key):
    order = key.argsort()
    mixed, target = 0.7 * x + 0.3 * x[order], 0.7 * y + 0.3 * y[order]  # differs: mixed_in_order
    return F.mse_loss(model(mixed), target)


@differs(r"puts rows of the batch beside other rows")
def mixed_in_order():
    return Setup(mlp(4, 1), in_order, [(x, y, torch.rand(8)) for x, y in regression()])


@same
def micro_batches_of_sentences():
    return Setup(Tagger(), perplexity_by_rows, sentences(), options={"accumulate": 2})


def at_places(model, words, tags):
    scores = model(words)[..., 0]
    places = torch.where(words != 0)
    return F.binary_cross_entropy_with_logits(scores[places], (tags == 1).to(scores)[places])  # differs: found_places


@differs(COUNTS)
def found_places():
    return Setup(Tagger(), at_places, sentences())


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(3, 4, batch_first=True)
        self.out = nn.Linear(4, 1)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        made, last = self.rnn(packed)
        every, _ = nn.utils.rnn.pad_packed_sequence(made, batch_first=True, total_length=x.shape[1])
        return self.out(every).squeeze(-1), self.out(last[0]).squeeze(-1)


def frames():
    lengths = torch.tensor([1, 2, 1, 2, 4, 3, 4, 4])
    return [(torch.randn(8, 4, 3), lengths, torch.randn(8, 4)) for _ in range(2)]


def over_frames(model, x, lengths, y):
    inside = torch.arange(x.shape[1])[None] < lengths[:, None]
    return torch.masked_select((model(x, lengths)[0] - y) ** 2, inside).mean()  # differs: packed_frames


@differs(COUNTS)
def packed_frames():
    return Setup(Packed(), over_frames, frames())


def at_the_end(model, x, lengths, y):
    return F.mse_loss(model(x, lengths)[1], y[:, 0])


@same
def packed_ends():
    return Setup(Packed(), at_the_end, frames())


class Pixels(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.SiLU())
        self.score = nn.Conv2d(4, 3, 1)

    def forward(self, x):
        return self.score(self.seen(x)).flatten(2)


def pictures():
    return [(torch.randn(6, 2, 4, 4), torch.randint(0, 3, (6, 16))) for _ in range(2)]


def hard_pixels(model, x, y):
    losses = F.cross_entropy(model(x), y, reduction="none").flatten()
    return losses.topk(losses.shape[0] // 4)[0].mean()  # differs: hardest_pixels


@differs(r"compares rows of the batch with each other")
def hardest_pixels():
    return Setup(Pixels(), hard_pixels, pictures())


def missing():
    made = []
    for x, y in regression(outputs=2):
        gone = torch.zeros(8, 2, dtype=torch.bool)
        gone[:3, 0] = gone[1, 1] = True
        made.append((x, y.masked_fill(gone, float("nan"))))
    return made


def over_known(model, x, y):
    error = torch.where(torch.isnan(y), float("nan"), (model(x) - torch.nan_to_num(y)) ** 2)
    return error.nanmean()  # differs: missing_targets


@differs(COUNTS)
def missing_targets():
    return Setup(mlp(4, 2), over_known, missing())


def over_all(model, x, y):
    return ((model(x) - torch.nan_to_num(y)) ** 2 * ~torch.isnan(y)).mean()


@same
def missing_targets_as_zeros():
    return Setup(mlp(4, 2), over_all, missing())


def to_center(model, x, y):
    seen = model(x)
    center = seen.mean(0, keepdim=True).detach().expand_as(seen)  # differs: pulled_to_mean
    return F.mse_loss(seen, center) + seen.square().mean()  # differs: pulled_to_mean


@differs(r"combines each row with a mean")
def pulled_to_mean():
    return Setup(mlp(4, 2), to_center, regression(outputs=2))


def unbiased(model, x, y):
    return (model(x) - y).square().sum() / (x.shape[0] - 1)  # differs: divided_by_one_row_less


@differs(r"adds up the rows of a share")
def divided_by_one_row_less():
    return Setup(mlp(4, 1), unbiased, regression())
