"""Backwards of the user's own, and gradients that a loss is computed of."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.frontends.torch.zoo.setups import Setup, classes, differs, mlp, regression, same


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -ctx.factor * gradient, None


class Quantized(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x * 4).round() / 4

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() <= 1)


class Clamped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-0.05, 0.05)  # differs: gradients_clamped_in_backward


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient / gradient.norm().clamp(min=1e-6)  # differs: gradients_of_one_norm


class Signs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.sign()  # differs: signs_of_gradients


class Centred(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient - gradient.mean(0)  # differs: gradients_less_their_mean


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.labels, self.domains = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 1)

    def forward(self, x):
        hidden = self.first(x).tanh()
        return self.labels(hidden), self.domains(Reversed.apply(hidden, 0.3))


def domains(model, x, y):
    labels, guess = model(x)
    return F.cross_entropy(labels, y) + F.binary_cross_entropy_with_logits(guess[:, 0], (y > 1).to(guess.dtype))


@same
def reversed_gradients():
    return Setup(TwoHeads(), domains, classes())


class QuantizedLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 1)

    def forward(self, x):
        hidden = F.linear(x, Quantized.apply(self.first.weight), self.first.bias)
        return self.second(Quantized.apply(hidden.tanh()))


def squares(model, x, y):
    return F.mse_loss(model(x), y)


@same
def weights_in_quarters():
    return Setup(QuantizedLinear(), squares, regression())


def clamped(model, x, y):
    return F.mse_loss(Clamped.apply(model(x)), y)


@differs(r"backward is not linear")
def gradients_clamped_in_backward():
    return Setup(mlp(4, 1), clamped, regression())


def scaled(model, x, y):
    return F.mse_loss(Scaled.apply(model(x)), y)


@differs(r"backward is not linear")
def gradients_of_one_norm():
    return Setup(mlp(4, 1), scaled, regression())


def signs(model, x, y):
    return F.mse_loss(Signs.apply(model(x)), y)


@differs(r"backward is not linear")
def signs_of_gradients():
    return Setup(mlp(4, 1), signs, regression())


def centred(model, x, y):
    return F.mse_loss(Centred.apply(model(x)), y)


@differs(r".")
def gradients_less_their_mean():
    return Setup(mlp(4, 1), centred, regression())


def penalized(model, x, y):
    x = x.detach().requires_grad_()
    guess = model(x)
    (slope,) = torch.autograd.grad(guess.sum(), x, create_graph=True)
    return F.mse_loss(guess, y) + (slope.norm(dim=1) - 1).pow(2).mean()


@same
def slopes_of_rows():
    return Setup(mlp(4, 1), penalized, regression())


def penalized_together(model, x, y):
    x = x.detach().requires_grad_()
    guess = model(x)
    (slope,) = torch.autograd.grad(guess.sum(), x, create_graph=True)
    return F.mse_loss(guess, y) + (slope.norm() - 1).pow(2)  # differs: slopes_of_the_batch


@differs(r"not linear")
def slopes_of_the_batch():
    return Setup(mlp(4, 1), penalized_together, regression())


def residual(model, x, y):
    x = x.clone().requires_grad_()
    guess = model(x)
    (slope,) = torch.autograd.grad(guess, x, torch.ones_like(guess), create_graph=True)
    (bend,) = torch.autograd.grad(slope[:, 0].sum(), x, create_graph=True)
    return (bend[:, 0] + guess[:, 0] - y[:, 0]).square().mean()


@same
def residual_of_an_equation():
    return Setup(mlp(4, 1), residual, regression())
