"""Setups of the zoo as `pstranspile check FILE.py:NAME` takes them, and rows as a loader gives them to each rank."""

import torch

import pstranspile.torch as pt
from tests.frontends.torch.zoo.kinds import CASES

__all__ = [
    "adam",
    "batch_norm",
    "even",
    "in_batch_negatives",
    "lopsided",
    "masked_mean",
    "masked_mean_of_sentences",
    "uneven",
]


def traced(name):
    setup = CASES[name].setup()
    return pt.trace(setup.model, setup.batches[0], loss=setup.loss, optimizer=setup.optimizer, steps=3, **setup.options)


def masked_mean():
    return traced("masked_mean")


def masked_mean_of_sentences():
    return traced("masked_mean_of_sentences")


def batch_norm():
    return traced("batch_norm")


def in_batch_negatives():
    return traced("in_batch_negatives")


def adam():
    return traced("adam")


def uneven(rank, trainers):
    """Batches whose first rank has one row more than the others."""
    draw = torch.Generator().manual_seed(1)
    for _ in range(2):
        x, y = torch.randn(4 * trainers + 1, 4, generator=draw), torch.randn(4 * trainers + 1, 1, generator=draw)
        begin, end = (4 * rank + 1 if rank else 0), 4 * rank + 5
        yield x[begin:end], y[begin:end]


def even(rank, trainers):
    """Batches of which each rank has as many rows."""
    draw = torch.Generator().manual_seed(1)
    for _ in range(2):
        x, y = torch.randn(4 * trainers, 4, generator=draw), torch.randn(4 * trainers, 1, generator=draw)
        yield x[4 * rank : 4 * rank + 4], y[4 * rank : 4 * rank + 4]


def lopsided(rank, trainers):
    """Batches that would divide evenly, of which the first of two ranks has most rows."""
    draw = torch.Generator().manual_seed(1)
    for _ in range(2):
        x, y = torch.randn(4 * trainers, 4, generator=draw), torch.randn(4 * trainers, 1, generator=draw)
        begin, end = (0, 6) if rank == 0 else (6, 8)
        yield x[begin:end], y[begin:end]
