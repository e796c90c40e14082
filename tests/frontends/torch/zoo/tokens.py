"""Losses of sequences: means over tokens that are not as many on every rank."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.frontends.torch.zoo.setups import Setup, differs, same, sentences

COUNTS = r"counts .* on rank 0, .* on rank 1"


class Tagger(nn.Module):
    def __init__(self, words=12, tags=4):
        super().__init__()
        self.table = nn.Embedding(words, 5)
        self.out = nn.Linear(5, tags)

    def forward(self, words):
        return self.out(self.table(words).tanh())


def by_mask(model, words, tags):
    mask = (words != 0).float()
    losses = F.cross_entropy(model(words).transpose(1, 2), tags, reduction="none")
    return (losses * mask).sum() / mask.sum()  # differs: masked_mean


@differs(COUNTS)
def masked_mean():
    return Setup(Tagger(), by_mask, sentences())


def by_sentence(model, words, tags):
    mask = (words != 0).float()
    losses = F.cross_entropy(model(words).transpose(1, 2), tags, reduction="none")
    return ((losses * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()


@same
def masked_mean_of_sentences():
    return Setup(Tagger(), by_sentence, sentences())


def by_positions(model, words, tags):
    losses = F.cross_entropy(model(words).transpose(1, 2), tags, ignore_index=0, reduction="sum")
    return losses / tags.numel()


@same
def padded_mean_of_positions():
    return Setup(Tagger(), by_positions, sentences())


def ignoring(model, words, tags):
    return F.cross_entropy(model(words).reshape(-1, 4), tags.reshape(-1), ignore_index=0)  # differs: ignored_index


@differs(COUNTS)
def ignored_index():
    return Setup(Tagger(), ignoring, sentences())


class LanguageModel(nn.Module):
    """Gives its loss itself, as those of transformers do."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 6)
        self.rnn = nn.GRU(6, 6, batch_first=True)
        self.head = nn.Linear(6, 12)

    def forward(self, input_ids, labels):
        hidden, _ = self.rnn(self.embed(input_ids))
        logits = self.head(hidden)[:, :-1]
        targets = labels[:, 1:]
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)  # differs: hidden_labels


def with_labels(hide):
    made = []
    for words, _ in sentences():
        labels = torch.where(words == 0, -100, words) if hide else words
        made.append({"input_ids": words, "labels": labels})
    return made


@differs(COUNTS)
def hidden_labels():
    return Setup(LanguageModel(), None, with_labels(hide=True))


@same
def all_labels():
    return Setup(LanguageModel(), None, with_labels(hide=False))


def smoothed(model, words, tags):
    scores = model(words).log_softmax(-1)
    hit = scores.gather(2, tags.unsqueeze(2)).squeeze(2)
    losses = -0.9 * hit - 0.1 * scores.mean(-1)
    keep = tags.ne(0)
    return losses.masked_fill(~keep, 0.0).sum() / keep.sum()  # differs: smoothed_and_masked


@differs(COUNTS)
def smoothed_and_masked():
    return Setup(Tagger(), smoothed, sentences())


def smoothed_whole(model, words, tags):
    return F.cross_entropy(model(words).flatten(0, 1), tags.flatten(), label_smoothing=0.1)


@same
def smoothed_over_all():
    return Setup(Tagger(), smoothed_whole, sentences())


def smoothed_ignoring(model, words, tags):
    return F.cross_entropy(  # differs: smoothed_by_torch
        model(words).flatten(0, 1), tags.flatten(), ignore_index=0, label_smoothing=0.1
    )


@differs(COUNTS)
def smoothed_by_torch():
    return Setup(Tagger(), smoothed_ignoring, sentences())


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(3, 5, batch_first=True)
        self.out = nn.Linear(5, 1)

    def forward(self, x):
        return self.out(self.rnn(x)[0]).squeeze(-1)


def sequences(rows=8, width=4, steps=2):
    return [
        (torch.randn(rows, width, 3), torch.randn(rows, width), torch.randint(1, width + 1, (rows,)))
        for _ in range(steps)
    ]


def per_frame(model, x, y, lengths):
    inside = torch.arange(x.shape[1])[None, :] < lengths[:, None]
    error = (model(x) - y) ** 2 * inside
    return error.sum() / lengths.sum()  # differs: frames_of_lengths


@differs(COUNTS)
def frames_of_lengths():
    return Setup(Encoder(), per_frame, sequences())


def per_sequence(model, x, y, lengths):
    inside = torch.arange(x.shape[1])[None, :] < lengths[:, None]
    error = (model(x) - y) ** 2 * inside
    return (error.sum(1) / lengths).mean()


@same
def sequences_of_lengths():
    return Setup(Encoder(), per_sequence, sequences())


def chosen(model, words, tags):
    losses = F.cross_entropy(model(words).transpose(1, 2), tags, reduction="none")
    return losses[words != 0].mean()  # differs: chosen_tokens


@differs(COUNTS)
def chosen_tokens():
    return Setup(Tagger(), chosen, sentences())


class MaskedWords(nn.Module):
    """Guesses hidden words from a mean of the others."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(12, 6, padding_idx=0)
        layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)

    def forward(self, words):
        return self.encoder(self.table(words)) @ self.table.weight.t()


def hidden(rows=8, width=5, steps=2):
    made = []
    for _ in range(steps):
        words = torch.randint(2, 12, (rows, width))
        hide = torch.rand(rows, width) < torch.linspace(0.1, 0.9, rows)[:, None]
        hide[:, 0] = True
        made.append((words.masked_fill(hide, 1), words, hide))
    return made


def of_hidden(model, words, target, hide):
    losses = F.cross_entropy(model(words).transpose(1, 2), target, reduction="none")
    total = torch.where(hide, losses, torch.zeros_like(losses)).sum()
    count = hide.sum()
    return total / count.clamp(min=1)  # differs: hidden_words


@differs(COUNTS)
def hidden_words():
    model = MaskedWords()
    return Setup(model, of_hidden, hidden(), torch.optim.AdamW(model.parameters(), lr=0.01))


def of_all_words(model, words, target, hide):
    losses = F.cross_entropy(model(words).transpose(1, 2), target, reduction="none")
    return torch.where(hide, losses, 0.1 * losses).mean()


@same
def weighed_words():
    model = MaskedWords()
    return Setup(model, of_all_words, hidden(), torch.optim.AdamW(model.parameters(), lr=0.01))


def distilled(model, words, teacher):
    keep = (words != 0).float()
    apart = F.kl_div(model(words).log_softmax(-1), teacher.softmax(-1), reduction="none").sum(-1)
    return torch.sum(apart * keep) / torch.sum(keep)  # differs: distilled_tokens


@differs(COUNTS)
def distilled_tokens():
    return Setup(Tagger(), distilled, [(words, torch.randn(8, 5, 4)) for words, _ in sentences()])


def distilled_all(model, words, teacher):
    return F.kl_div(model(words)[:, 0].log_softmax(-1), teacher[:, 0].softmax(-1), reduction="batchmean")


@same
def distilled_rows():
    return Setup(Tagger(), distilled_all, [(words, torch.randn(8, 5, 4)) for words, _ in sentences()])


def pooled(model, words, tags):
    mask = (words != 0).unsqueeze(-1).float()
    scores = (model(words) * mask).sum(1) / mask.sum(1).clamp(min=1.0)
    return F.cross_entropy(scores, tags[:, 0])


@same
def pooled_words():
    return Setup(Tagger(), pooled, sentences())
