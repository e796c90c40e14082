"""Setups that torch can't export, or that are not translated: they are refused at the user's line.

The last one raises on wrong data, and is translated.
"""

import torch
from torch import nn
from torch.nn import functional as F


def slope(model, x, y):
    x = x.detach().requires_grad_()
    guess = model(x)
    (found,) = torch.autograd.grad(guess, x, torch.ones(2, *guess.shape), create_graph=True, is_grads_batched=True)
    return F.mse_loss(guess, y) + (found.norm(dim=1) - 1).pow(2).mean()


def gradient_penalty():
    return nn.Linear(3, 1), slope, (torch.randn(8, 3), torch.randn(8, 1))


def aligned(model, sounds, text, lengths):
    scores = model(sounds).transpose(0, 1)  # no probabilities
    spoken = torch.full((sounds.shape[0],), sounds.shape[1], dtype=torch.long)
    return F.ctc_loss(scores, text, spoken, lengths)


def aligned_texts():
    return nn.Linear(3, 4), aligned, (torch.randn(8, 6, 3), torch.randint(1, 4, (8, 2)), torch.randint(1, 3, (8,)))


def branching(model, x, y):
    loss = F.mse_loss(model(x), y)
    if loss > 1.0:
        return loss * 2
    return loss


def branch_of_data():
    return nn.Linear(3, 1), branching, (torch.randn(8, 3), torch.randn(8, 1))


def likely(model, x, y):
    return F.gaussian_nll_loss(model(x), y, torch.full_like(y, 0.5))


def checked_variance():
    return nn.Linear(3, 1), likely, (torch.randn(8, 3), torch.randn(8, 1))


CASES = {one.__name__: one for one in (gradient_penalty, aligned_texts, branch_of_data)}
"""Functions that give a model, its loss and a batch, by name."""
