"""`pt.check`: whether ranks of DDP train as one process, with the line that makes them differ."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import pstranspile.torch as pt  # noqa: E402

functional = torch.nn.functional


class Tokens(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = torch.nn.Embedding(20, 4), torch.nn.Linear(4, 20)

    def forward(self, tokens):
        return self.out(self.table(tokens)).flatten(0, 1)


def masked(model, tokens, target):
    return functional.cross_entropy(model(tokens), target.flatten(), ignore_index=1)


def whole(model, tokens, target):
    return functional.cross_entropy(model(tokens), target.flatten())


def checked(loss):
    torch.manual_seed(0)
    model = Tokens()
    batch = (torch.randint(1, 20, (8, 3)), torch.randint(1, 5, (8, 3)))
    return model, batch, {"loss": loss, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}


def test_a_mean_over_counted_tokens_differs_at_its_line():
    model, batch, options = checked(masked)
    report = pt.check(model, batch, **options)
    assert not report.equal
    (cause,) = report.causes
    assert cause.location.file == __file__
    assert "this mean counts" in cause.what
    assert "all-reduced count" in cause.instead
    with pytest.raises(AssertionError, match="do not train as one process"):
        pt.assert_equal(model, batch, **options)


@pytest.mark.parametrize("pservers", [0, 2])
def test_a_mean_over_all_tokens_is_equal(pservers):
    model, batch, options = checked(whole)
    report = pt.check(model, batch, pservers=pservers, **options)
    assert report.equal, str(report)
