"""Operators on NaN, infinite values and zeros beside torch's own: what they make, and their gradients."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pstranspile.frontends.torch.training import trace  # noqa: E402

functional = torch.nn.functional
NAN, INF = float("nan"), float("inf")
VALUES = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 2.0, -3.5, 0.5, 1e30, -1e30]
PAIRS = torch.tensor([[x, y] for x in VALUES for y in VALUES], dtype=torch.float64)
BATCH = (torch.zeros(2, dtype=torch.float64),)

# docs/reference/numbers.md says of which operators values or gradients are others.
FUNCTIONS = {
    "add": torch.add,
    "amin": lambda x, y: torch.stack([x, y], 1).amin(1),
    "argmax": lambda x, y: torch.stack([x, y], 1).argmax(1).double() + 0 * x,
    "argmin": lambda x, y: torch.stack([x, y], 1).argmin(1).double() + 0 * x,
    "clamp": lambda x, y: x.clamp(-0.5, 0.5) + 0 * y,
    "cumsum": lambda x, y: torch.stack([x, y], 1).cumsum(1)[:, 1],
    "div": torch.div,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "logaddexp": torch.logaddexp,
    "logsumexp_of_one": lambda x, y: torch.stack([x], 1).logsumexp(1) + 0 * y,
    "max": lambda x, y: torch.stack([x, y], 1).max(1)[0],
    "mean": lambda x, y: torch.stack([x, y], 1).mean(1),
    "mul": torch.mul,
    "norm": lambda x, y: torch.stack([x, y], 1).norm(dim=1) + torch.stack([x, y], 1).norm(p=1, dim=1),
    "round": lambda x, y: torch.round(x) + torch.round(0.5 * x) + torch.round(x * 0.5, decimals=1) + 0 * y,
    "softmax": lambda x, y: functional.softmax(torch.stack([x, y], 1), 1)[:, 0],
    "sort": lambda x, y: torch.stack([x, y], 1).sort(1)[0][:, 1],
    "std": lambda x, y: torch.stack([x, y], 1).std(1),
    "sub": torch.sub,
    "topk": lambda x, y: torch.stack([x, y], 1).topk(1)[0][:, 0],
    "where": lambda x, y: torch.where(x > 0, x, y),
    "masked_fill": lambda x, y: x.masked_fill(y > 0, 0.0),
    "xlog1py": torch.special.xlog1py,
    "xlogy": torch.xlogy,
}


UNARY = (
    *("erf", "erfc", "exp", "exp2", "expm1", "floor", "frac", "log", "log10"),
    *("log1p", "log2", "neg", "reciprocal", "relu", "rsqrt", "sigmoid", "sign"),
)


def of_the_first(name):
    """A unary function of torch, of the first of two values."""
    function = getattr(torch, name)
    return lambda x, y: function(x) + 0 * y


FUNCTIONS.update({name: of_the_first(name) for name in UNARY})


class Seen(torch.nn.Module):
    """Keeps what a function makes of the columns of its parameter."""

    def __init__(self, function):
        super().__init__()
        self.w = torch.nn.Parameter(PAIRS.clone())
        self.register_buffer("seen", torch.zeros(len(PAIRS), dtype=torch.float64))
        self.function = function

    def forward(self, batch):
        made = self.function(self.w[:, 0], self.w[:, 1])
        self.seen.copy_(made.detach())
        return made.sum() + batch.sum()


def apart(ours, theirs):
    """The pairs for which two sides are apart."""
    with np.errstate(all="ignore"):
        near = np.abs(ours - theirs) <= 1e-9 * np.maximum(1, np.abs(theirs))
    places = np.argwhere(~((ours == theirs) | (np.isnan(ours) & np.isnan(theirs)) | near))
    return [(PAIRS.numpy()[place[0]].tolist(), ours[tuple(place)], theirs[tuple(place)]) for place in places]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values_beside_torch(name):
    model = Seen(FUNCTIONS[name])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    training = trace(model, BATCH, optimizer=optimizer)
    training.train([BATCH])
    model(*BATCH).backward()
    optimizer.step()
    assert apart(training.state["seen"], model.seen.numpy()) == []
    assert apart(training.state["w"], model.w.detach().numpy()) == []
