"""Gradients beside torch's at the places where several could hold: zeros, bounds, equal elements, zero rows, infinite
ones. What the operators make there is compared as well, by the loss.
"""

import math
from functools import cache

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
functional = torch.nn.functional

from pstranspile.frontends.torch.training import trace  # noqa: E402
from pstranspile.ir.diagnostics import DiagnosticError  # noqa: E402

INF = math.inf
POINTS = [-6.0, -3.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 2.0, 3.0, 6.0]
PAIRS = [(a, b) for a in (-1.0, -0.0, 0.0, 0.5, 1.0) for b in (-1.0, 0.0, 0.5, 1.0)]
ROWS = [
    [0.0, 0, 0, 0],
    [1, 1, 1, 1],
    [1, 2, 2, 1],
    [2, 1, 0, 2],
    [-0.0, 0, -1, 1],
    [3, 3, -3, -3],
    [0, 2, 3, 0],
    [5, 0, 0, 0],
]
PROBABILITIES = [0.0, 0, 0, 0.5, 0.5, 1, 1, 1, 1e-300]
TARGETS = [0.0, 0.5, 1, 0, 1, 0, 0.5, 1, 1]


def doubles(values):
    return torch.tensor(values, dtype=torch.double)


def of_pairs(function):
    """The function of the two columns of pairs."""
    return lambda pairs: function(pairs[:, 0], pairs[:, 1])


def hidden(function):
    """The function of four rows in which some elements are -inf."""
    return lambda rows: function(rows[:4] + HIDDEN)


def attended(rows, mask):
    return functional.scaled_dot_product_attention(rows[None], rows[None], rows[None], attn_mask=mask)


HIDDEN = doubles([[0, -INF, 0, 0], [0, -INF, -INF, -INF], [-INF, 0, 0, -INF], [0, 0, 0, 0]])
EARLIER = torch.ones(8, 8).tril(-1).bool()
"""A mask by which the first row sees none."""

CLASSES = torch.arange(8) % 4
SEVERAL = torch.tensor([[0, 2, -1, 1], [3, -1, -1, -1]] * 4)
ADDED = torch.zeros(8, 8).double().masked_fill(~EARLIER, -INF)
TARGET = doubles(TARGETS)
ONES = torch.ones(len(PAIRS)).double()

OF_POINTS = {
    "asinh": torch.asinh,
    "celu": lambda a: functional.celu(a, 2.0),
    "clamp": lambda a: a.clamp(-1, 2),
    "clamp_apart": lambda a: a.clamp(2, -1),
    "clamp_max": lambda a: a.clamp_max(1),
    "clamp_min": lambda a: a.clamp_min(0),
    "elu": functional.elu,
    "fmod_by_infinity": lambda a: torch.fmod(a, INF) + torch.fmod(a, -INF),
    "hardsigmoid_swish": lambda a: functional.hardswish(a) + functional.softsign(a),
    "hardtanh": functional.hardtanh,
    "mish": functional.mish,
    "power": lambda a: 0.0 ** a.abs() + 2.0**a,
    "power_of_0": lambda a: a**0 * a + a**0,
    "relu6": functional.relu6,
    "remainder_by_infinity": lambda a: torch.remainder(a, INF).clamp(max=3) + torch.remainder(a, -INF).clamp(min=-3),
    "relu": functional.relu,
    "selu": functional.selu,
    "sinc": torch.sinc,
    "softplus": functional.softplus,
    "xlogy_of_number": lambda a: torch.xlogy(a, 2.0),
}
OF_PAIRS = {
    "atan2": lambda a, b: torch.atan2(a + 0.0, b),
    "clamp_between": lambda a, b: a.clamp(b, b + 1),
    "clamp_max_of": lambda a, b: a.clamp(max=b),
    "clamp_min_of": lambda a, b: a.clamp(min=b),
    "cosine": lambda a, b: functional.cosine_similarity(torch.stack([a, a], 1), torch.stack([b, b + 1], 1)),
    "distance_3": lambda a, b: functional.pairwise_distance(a[:, None], b[:, None], 3.0, eps=0.0),
    "hinge": lambda a, b: functional.hinge_embedding_loss(a, torch.where(b.detach() > 0, 1.0, -1.0), reduction="none"),
    "huber": lambda a, b: functional.huber_loss(a, b, reduction="none", delta=0.5),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "power_of_tensor": lambda a, b: torch.pow(a.abs(), b * b * 4),
    "prelu": lambda a, b: functional.prelu(a[None], b)[0],
    "ranking": lambda a, b: functional.margin_ranking_loss(a, b, ONES, reduction="none"),
    "smooth_l1": lambda a, b: functional.smooth_l1_loss(a, b, reduction="none", beta=0.5),
    "weighted_logits": lambda a, b: functional.binary_cross_entropy_with_logits(
        a, b.detach().clamp(0, 1), pos_weight=doubles(2.0), reduction="none"
    ),
    "xlogy": lambda a, b: torch.xlogy(a * (b != 0), b.detach().abs()),
}
OF_ROWS = {
    "amax": lambda a: a.amax(1) + a.amin(0).sum(),
    "attention": lambda a: attended(a, EARLIER),
    "attention_added": lambda a: attended(a, ADDED),
    "cdist": lambda a: torch.cdist(a, a) + torch.cdist(a, a, 1.0) + torch.cdist(a, a, 3.0),
    "cdist_largest": lambda a: torch.cdist(a, a, INF),
    "hidden_max": hidden(lambda a: a.amax(1) + a.max(1)[0] + a.max()),
    "hidden_softmax": hidden(lambda a: a.softmax(1) + a.logsumexp(1, keepdim=True)),
    "lp_pool": lambda a: functional.lp_pool1d(a[:, None], 2.0, 2) + functional.lp_pool1d(a[:, None].abs(), 3.0, 2),
    "max_of_all": lambda a: a.max() + a.min() * 2,
    "median": lambda a: a.median() + a[:, :3].median(),
    "multi_margin": lambda a: functional.multi_margin_loss(a, CLASSES),
    "multilabel_margin": lambda a: functional.multilabel_margin_loss(a, SEVERAL),
    "norm_of_zeros": lambda a: (a * 0).norm(3) + (a * 0).norm(0.5) + (a * 0).norm() + (a * 0).norm(INF),
    "norms": lambda a: sum(a.norm(order, dim=1) for order in (0.5, 1, 2, 3, INF, -INF, -1)),
    "prod": lambda a: a.prod(1),
    "std": lambda a: a.std(1) + a.std(1, unbiased=False) + a.var(1),
}
OF_PROBABILITIES = {
    "binary_entropy": lambda a: functional.binary_cross_entropy(a, TARGET, reduction="none"),
    "binary_entropy_weighed": lambda a: functional.binary_cross_entropy(a, TARGET, weight=TARGET + 1, reduction="sum"),
}
IDS = torch.tensor([[0, 1, 1], [1, 2, 0], [7, 1, 1]])
LOOKED_UP = {
    "by_frequency": lambda a: functional.embedding(IDS, a, scale_grad_by_freq=True),
    "by_frequency_padded": lambda a: functional.embedding(IDS, a, padding_idx=1, scale_grad_by_freq=True),
}
CASES = {
    **{name: (function, POINTS) for name, function in OF_POINTS.items()},
    **{name: (of_pairs(function), PAIRS) for name, function in OF_PAIRS.items()},
    **{name: (function, ROWS) for name, function in OF_ROWS.items()},
    **{name: (function, PROBABILITIES) for name, function in OF_PROBABILITIES.items()},
    **{name: (function, ROWS) for name, function in LOOKED_UP.items()},
}
"""What is compared: a function of a parameter, and the parameter's elements."""


class Places(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.held = torch.nn.ParameterDict({name: doubles(values) for name, (_, values) in CASES.items()})
        self.register_buffer("factors", (1 + 0.37 * torch.arange(len(self.made())) % 11).double())

    def made(self):
        return torch.cat([function(self.held[name]).reshape(-1) for name, (function, _) in CASES.items()])

    def forward(self, x):
        return (self.made() * self.factors).sum() * x.mean()


@cache
def compared():
    """The loss and the gradients of torch and of the program."""
    batch = (torch.ones(2, 1, dtype=torch.double),)
    model = Places()
    training = trace(model, batch, loss=None, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
    (loss,) = training.train([batch])
    before = {name: held.detach().numpy().copy() for name, held in model.named_parameters()}
    ours = {name: held - training.state[name] for name, held in before.items()}
    made = model(*batch)
    made.backward()
    theirs = {name: held.grad.numpy() for name, held in model.named_parameters()}
    return (loss, made.item()), ours, theirs


@pytest.mark.parametrize("name", CASES)
def test_gradient_is_torchs(name):
    _, ours, theirs = compared()
    np.testing.assert_allclose(ours[f"held.{name}"], theirs[f"held.{name}"], rtol=1e-9, atol=1e-12)


def test_values_are_torchs():
    ours, theirs = compared()[0]
    assert math.isfinite(theirs)
    assert ours == pytest.approx(theirs, rel=1e-12)


def sparse(ids, table):
    return functional.embedding(ids, table, sparse=True, scale_grad_by_freq=True).sum()


def bags(ids, table):
    return functional.embedding_bag(ids, table, scale_grad_by_freq=True).sum()


@pytest.mark.parametrize(("lookup", "says"), [(sparse, "both sparse and"), (bags, "counts of other ids")])
def test_lookups_without_gradients_of_their_own_are_refused_with_their_line(lookup, says):
    model = torch.nn.Embedding(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(DiagnosticError, match=says) as caught:
        trace(model, (IDS,), loss=lambda model, ids: lookup(ids, model.weight), optimizer=optimizer)
    (finding,) = caught.value.diagnostics
    assert (finding.location.file, finding.location.line) == (__file__, lookup.__code__.co_firstlineno + 1)
