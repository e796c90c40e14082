"""`pt.check`: whether ranks of DDP train as one process, with the line that makes them differ."""

import dataclasses
import inspect

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import pstranspile.torch as pt  # noqa: E402
from pstranspile.ir.diagnostics import DiagnosticError  # noqa: E402

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


class Counted(torch.nn.Module):
    def __init__(self, *, by_frequency):
        super().__init__()
        self.table = torch.nn.Embedding(10, 4, scale_grad_by_freq=by_frequency)

    def forward(self, ids):
        return self.table(ids).square().mean()


@pytest.mark.parametrize("by_frequency", [True, False])
def test_gradients_divided_by_counts_of_a_share_differ(by_frequency):
    torch.manual_seed(0)
    model = Counted(by_frequency=by_frequency)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    report = pt.check(model, (torch.randint(0, 3, (8, 3)),), loss=None, optimizer=optimizer)
    assert report.equal is not by_frequency, str(report)


def _normed():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3)
    )


def _loss(model, x, y):
    return functional.cross_entropy(model(x), y)


def _batch(rows):
    return torch.randn(rows, 6), torch.arange(rows) % 3


def test_a_model_that_evaluates_is_traced_as_it_is():
    """Its batch norm and dropout are those of evaluation, in the program as in torch."""
    model, batch = _normed().eval(), _batch(12)
    expected = _loss(model, *batch).item()
    training = pt.trace(model, batch, loss=_loss, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert training.train([batch]) == pytest.approx([expected], rel=1e-5)
    assert not model.training
    assert pt.check(model, batch, loss=_loss, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)).equal


def test_made_batches_have_as_many_rows_as_the_example():
    model = torch.nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert pt.check(model, _batch(12), loss=_loss, optimizer=optimizer).equal
    report = pt.check(model, _batch(13), loss=_loss, optimizer=optimizer)
    assert not report.equal
    assert "6 on rank 0, 7 on rank 1 in step 1, rows, tokens or weights that are not as many" in str(report)


def test_made_batches_have_padding_at_the_beginning_of_rows_too():
    def loss(model, words, tags):
        kept = (words[:, 0] != 0).float()
        each = functional.cross_entropy(model(words).mean(1), tags, reduction="none")
        return (each * kept).sum() / kept.sum()

    model = torch.nn.Embedding(20, 3)
    batch = torch.randint(1, 20, (12, 5)), torch.arange(12) % 3
    assert not pt.check(model, batch, loss=loss, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)).equal


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (torch.nn.SyncBatchNorm.convert_sync_batchnorm, "1 is a SyncBatchNorm, which takes its statistics from"),
        (lambda model: model.bfloat16(), "parameters or buffers of bfloat16, which is not translated"),
    ],
)
@pytest.mark.parametrize("step", ["program", "torch"])
def test_what_no_program_has_is_refused_by_name(change, said, step):
    model = change(_normed().eval())
    model[1].train()
    inputs, labels = _batch(12)
    batch = inputs.to(model[0].weight.dtype), labels
    options = {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "step": step}
    with pytest.raises(DiagnosticError, match=said):
        pt.trace(model, batch, loss=_loss, **options)


def counted(model, x, y, lengths):
    mask = torch.arange(x.shape[1])[None, :] < lengths[:, None]
    return ((model(x).squeeze(-1) - y) ** 2 * mask).sum() / mask.sum()


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("made", [True, False])
def test_neither_the_cast_of_a_count_nor_micro_batches_are_causes(accumulate, made):
    torch.manual_seed(5)
    batch = torch.randn(8, 5, 6), torch.randn(8, 5), torch.randint(1, 6, (8,))
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    training = pt.trace(model, batch, loss=counted, optimizer=optimizer, accumulate=accumulate)
    (cause,) = pt.check_training(training, None if made else [batch]).causes
    assert "this mean counts" in cause.what
    assert cause.location.file == __file__


def _traced_error(loss, **options):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(DiagnosticError) as raised:
        pt.trace(model, (torch.ones(8, 4), torch.ones(8, 1)), loss=loss, optimizer=optimizer, **options)
    return raised.value.diagnostics[0]


def test_float16_in_the_middle_is_refused_at_its_line():
    found = _traced_error(lambda model, x, y: ((model(x).half() - y) ** 2).mean())
    assert "its elements are float16" in found.message
    assert found.location is not None


def test_micro_batches_of_one_row_are_told():
    found = _traced_error(lambda model, x, y: ((model(x) - y) ** 2).mean(), accumulate=8)
    assert found.message == "accumulate=8 deals 8 rows to micro-batches of one row; trace with at least 16 rows"


def test_a_step_of_torch_is_checked():
    model = torch.nn.Linear(4, 1)
    batch = torch.ones(8, 4), torch.ones(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    given = {"loss": lambda model, x, y: ((model(x) - y) ** 2).mean(), "optimizer": optimizer, "step": "torch"}
    assert pt.check(model, batch, **given).equal


class IdsAmongNumbers(torch.nn.Module):
    """A column of ids in a tensor of floats, beside numbers, as packages for click prediction have it."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(20, 4)
        self.top = torch.nn.Linear(6, 1)

    def forward(self, x):
        return self.top(torch.cat([self.table(x[:, 0].long()), x[:, 1:]], 1)).squeeze(1)


def test_made_batches_keep_ids_that_stand_among_numbers():
    torch.manual_seed(0)
    batch = (torch.cat([torch.randint(0, 20, (12, 1)).float(), torch.randn(12, 2)], 1), torch.rand(12))
    model = IdsAmongNumbers()

    def loss(net, x, wanted):
        return torch.nn.functional.mse_loss(net(x), wanted)

    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    assert pt.check(model, batch, loss=loss, optimizer=optimizer).equal


class Rated(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(3, 1)

    def forward(self, x):
        return self.out(x).squeeze(-1)


@pytest.mark.parametrize(("trainers", "told"), [(2, "3, 4"), (8, "0, 1, 1, 1, 1, 1, 1, 1")])
def test_ranks_with_other_numbers_of_rows_are_the_cause(trainers, told):
    """Each rank's mean counts the same, however few rows it has; no line of the model is to blame."""
    torch.manual_seed(0)
    model, batch = Rated(), (torch.randn(7, 3), torch.randn(7))
    options = {"loss": lambda model, x, y: functional.mse_loss(model(x), y), "trainers": trainers, "batches": [batch]}
    report = pt.check(model, batch, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), **options)
    assert not report.equal
    text = str(report)
    assert f"different numbers of rows: {told}; each counts the same" in text
    assert "instead: give batches of which every rank has as many rows as the others" in text
    assert "no line was found" not in text
    assert "--shares" not in text


def test_ranks_with_other_numbers_of_rows_are_told_beside_a_line():
    model, batch, options = checked(whole)
    batch = tuple(tensor[:7] for tensor in batch)
    report = pt.check(model, batch, batches=[batch], **options)
    (cause,) = report.causes
    assert cause.location.file == __file__
    assert "different numbers of rows: 3, 4; each counts the same" in str(report)


class Filled(torch.nn.Module):
    """A layer that takes a number of its own for those that are missing."""

    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.out(torch.nan_to_num(x, nan=0.5, posinf=1.0, neginf=-1.0))


def mean_square(model, x, y):
    return functional.mse_loss(model(x), y)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("number", [float("nan"), float("inf"), 3e38])
def test_made_batches_have_the_numbers_of_the_example_that_are_not_finite(number):
    """A model that fills them in trains alike, and one that does not shows nothing; neither ends in an exception."""
    torch.manual_seed(0)
    x, y = torch.rand(8, 4), torch.ones(8, 1)
    x[0, 0], x[1, 0] = number, -number
    for model in (Filled(), torch.nn.Linear(4, 1)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        report = pt.check(model, (x, y), loss=mean_square, optimizer=optimizer)
        if isinstance(model, Filled) and number != 3e38:
            assert report.equal, str(report)
        else:
            assert "NO NUMBERS" in str(report)


def test_an_example_without_any_number():
    model = Filled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    report = pt.check(
        model, (torch.full((8, 4), float("nan")), torch.ones(8, 1)), loss=mean_square, optimizer=optimizer
    )
    assert report.equal, str(report)


def squares(of_losses):
    """A check on made batches of what is computed of the squared errors of three numbers a row."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    batch = (torch.randn(8, 4), torch.randn(8, 3))

    def loss(model, x, y):
        return of_losses((model(x) - y).pow(2))

    return pt.check(model, batch, loss=loss, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


BRANCHES = {
    "flooding": lambda errors: (errors.mean() - 1.5).abs() + 1.5,
    "clamp": lambda errors: errors.mean().clamp(max=4),
    "two losses": lambda errors: torch.where(errors.mean() > 3, 2 * errors.mean(), errors.mean()),
    "largest loss": lambda errors: errors.mean(0).max(),
    "outliers": lambda errors: torch.where(errors < 10 * errors.detach().mean(), errors, 0.0).mean(),
}


@pytest.mark.parametrize("name", BRANCHES)
def test_made_batches_lie_on_both_sides_of_a_branch(name):
    report = squares(BRANCHES[name])
    assert not report.equal, report
    assert report.causes[0].location.line == BRANCHES[name].__code__.co_firstlineno, report


def test_a_branch_that_no_made_batch_takes_is_told():
    report = squares(lambda errors: errors.mean().clamp(max=1e9))
    assert report.equal
    (line,) = report.report.one_sided
    assert line.startswith(__file__)
    assert line in str(report)
    assert line in str(report.report)


def test_branches_of_rows_and_of_counts_are_no_branches_of_a_batch():
    report = squares(lambda errors: errors.clamp(max=1e9).mean() / max(len(errors), 1))
    assert report.report.one_sided == ()


def test_a_quantile_is_the_cause_of_what_is_selected_by_it():
    report = squares(lambda errors: torch.where(errors[:, 0] < errors[:, 0].quantile(0.75), errors[:, 0], 0.0).mean())
    assert not report.equal
    assert "a share of it" not in str(report)


@pytest.mark.parametrize(
    "columns",
    [lambda x: x[:, [0, 2]], lambda x: x.index_select(1, torch.tensor([2, 1])), lambda x: x.flip(1)[:, [1, 3]]],
)
def test_dropout_of_selected_columns_is_drawn_by_the_row(columns):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Dropout(0.4), torch.nn.Linear(2, 1))
    report = pt.check(
        model,
        (torch.randn(8, 4), torch.randn(8, 1)),
        loss=lambda model, x, y: functional.mse_loss(model(columns(x)), y),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )
    assert report.equal, report


class Sizes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(4, 3)
        self.register_buffer("sizes", torch.ones(3))

    def forward(self, x):
        scores = self.out(x)
        self.sizes.mul_(0.9).add_(scores.detach().softmax(1).sum(0), alpha=0.1)
        return scores.pow(2).mean()


def test_a_sum_that_only_a_buffer_takes_is_told_of_the_buffer():
    torch.manual_seed(0)
    model = Sizes()
    report = pt.check(model, (torch.randn(8, 4),), optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    (cause,) = report.causes
    assert "the buffer %sizes" in cause.what
    assert "DDP keeps that of rank 0" in cause.what


@dataclasses.dataclass
class Output:
    loss: torch.Tensor


class Returning(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.out, self.kind = torch.nn.Linear(4, 1), kind

    def forward(self, x):
        return self.kind(loss=self.out(x).mean())


@pytest.mark.parametrize("kind", [dict, Output])
def test_a_model_that_gives_more_than_its_loss(kind):
    model = Returning(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(DiagnosticError, match=rf"the model gives a {kind.__name__}.*\n.*loss=lambda model"):
        pt.check(model, (torch.randn(8, 4),), optimizer=optimizer)


def stacked_norm(model, first, second):
    both = torch.cat([first, second])
    scores = model(both)  # here
    return scores.pow(2).mean()


def stacked_ratio(model, first, second):
    both = torch.cat([model[0](first), model[0](second)])
    weight = (both[:, 0] > 0).float()
    return (both.pow(2).sum(1) * weight).sum() / weight.sum()  # here


def stacked_length(model, first, second):
    both = torch.cat([model[0](first), model[0](second)])
    return both.norm()  # here


@pytest.mark.parametrize("loss", [stacked_norm, stacked_ratio, stacked_length])
def test_rows_that_are_put_one_after_the_other_are_no_cause(loss):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    report = pt.check(model, (torch.randn(8, 4), torch.randn(8, 4)), loss=loss, optimizer=optimizer)
    lines, start = inspect.getsourcelines(loss)
    (here,) = (start + at for at, line in enumerate(lines) if line.endswith("# here\n"))
    assert [cause.location.line for cause in report.causes] == [here], report
