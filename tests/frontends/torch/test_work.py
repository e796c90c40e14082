"""The operations that `plan --cost` counts, beside those that PyTorch counts of the same step."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import pstranspile.torch as pt  # noqa: E402
from pstranspile.compiler.cost.steps import step_cost  # noqa: E402

PRODUCTS = ("mul", "matmul", "bmm", "addmm", "conv")
"""The beginnings of op types whose operations PyTorch counts: products and convolutions."""


class Attention(nn.Module):
    """A layer of a transformer, written out."""

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(16, 16) for _ in range(3)])
        self.out = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 1))

    def forward(self, x):
        q, k, v = (head(x).view(*x.shape[:2], 4, 4).transpose(1, 2) for head in self.heads)
        mixed = ((q @ k.transpose(-1, -2)) / 2).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2)).mean(1)


def dense():
    return nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 1)), torch.randn(6, 12)


def images():
    layers = (nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(8 * 3 * 3, 1)), torch.randn(5, 3, 8, 8)


def attention():
    return Attention(), torch.randn(4, 7, 16)


@pytest.mark.parametrize("made", [dense, images, attention], ids=lambda made: made.__name__)
def test_products_have_as_many_operations_as_in_pytorch(made):
    torch.manual_seed(0)
    model, x = made()
    batch = (x, torch.randn(len(x), 1))

    def loss(net, inputs, wanted):
        return nn.functional.mse_loss(net(inputs), wanted)

    with FlopCounterMode(display=False) as counter:
        loss(model, *batch).backward()
    training = pt.trace(model, batch, loss=loss, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    cost = step_cost(training.module.main, len(x), example=training.module.example)
    assert sum(op.operations for op in cost.ops if op.type.startswith(PRODUCTS)) == counter.get_total_flops()
