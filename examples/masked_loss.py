"""A tagger in PyTorch, whose loss leaves padding out: does DistributedDataParallel train what one process would?

pstranspile check examples/masked_loss.py:training --mode ddp --trainers 2
"""

import torch
from torch.nn.functional import cross_entropy

import pstranspile.torch as pt


class Tagger(torch.nn.Module):
    """Scores of five tags for each word."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(50, 16)
        self.tags = torch.nn.Linear(16, 5)

    def forward(self, words):
        return self.tags(self.words(words).tanh())


def mean_of_tokens(model, words, tags):
    """The mean over the words that are no padding, whose tag is 0."""
    return cross_entropy(model(words).flatten(0, 1), tags.flatten(), ignore_index=0)


def mean_of_rows(model, words, tags):
    """The mean over the sentences of what each one loses: every sentence counts the same."""
    losses = cross_entropy(model(words).transpose(1, 2), tags, ignore_index=0, reduction="none")
    return (losses.sum(1) / (tags != 0).sum(1)).mean()


def traced(loss):
    """The tagger with a loss, traced with a batch of eight sentences."""
    torch.manual_seed(0)
    model = Tagger()
    batch = (torch.randint(1, 50, (8, 6)), torch.randint(1, 5, (8, 6)))
    return pt.trace(model, batch, loss=loss, optimizer=torch.optim.AdamW(model.parameters(), lr=0.01))


def training():
    """What most write."""
    return traced(mean_of_tokens)


def by_rows():
    """What DDP trains as one process does."""
    return traced(mean_of_rows)


def loader(rank, trainers):
    """Three batches of eight sentences, of which each trainer has its rows."""
    draw = torch.Generator().manual_seed(1)
    for _ in range(3):
        words = torch.randint(1, 50, (8, 6), generator=draw)
        tags = torch.randint(1, 5, (8, 6), generator=draw)
        yield words.chunk(trainers)[rank], tags.chunk(trainers)[rank]
