"""What a traced model gives: feeds, training, the way back into torch; and what is refused, with the user's line."""

from pathlib import Path

import numpy as np
import pytest

from pstranspile.ir.diagnostics import DiagnosticError
from tests.frontends.torch.beside import ROWS, trained

torch = pytest.importorskip("torch", reason="torch is not installed")
import pstranspile.torch as pt  # noqa: E402

functional = torch.nn.functional


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line, self.norm = torch.nn.Linear(6, 3), torch.nn.BatchNorm1d(3)

    def forward(self, x):
        return self.norm(self.line(x))


def loss(model, x, y):
    return functional.mse_loss(model(x), y)


def batch(rows=ROWS):
    return {"x": torch.randn(rows, 6), "y": torch.randn(rows, 3)}


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def refused(model, given, loss, optimizer=sgd, **options):
    with pytest.raises(DiagnosticError) as caught:
        pt.trace(model, given, loss=loss, optimizer=optimizer(model), **options)
    return [(item.code, item.message, item.location) for item in caught.value.diagnostics]


def test_what_torch_warns_of_in_a_step_is_heard_once():
    """Rows are compared with all rows where one of two tensors lacks a dim."""
    model = torch.nn.Linear(6, 1)

    def of_all_pairs(model, x, y):
        return functional.mse_loss(model(x), y)

    with pytest.warns(UserWarning, match="target size") as heard:
        pt.trace(model, (torch.randn(ROWS, 6), torch.randn(ROWS)), loss=of_all_pairs, optimizer=sgd(model))
    assert [Path(one.filename).name for one in heard] == [Path(__file__).name]


def test_an_optimizer_of_another_model_is_refused():
    other = Net()
    ((code, message, _),) = refused(Net(), batch(), loss, optimizer=lambda _: sgd(other))
    assert code == "torch-optimizer"
    assert "4 of its parameters are not the model's; it is to be made from the parameters() of the model" in message


def test_numbers_of_rows_that_differ_are_told_where_torch_can_not_export():
    given = {"x": torch.randn(ROWS, 6), "y": torch.randn(ROWS - 1, 3)}
    (code, message, place), (exporting, *_) = refused(Net(), given, loss)
    assert (code, exporting) == ("torch-batch", "torch-export")
    assert message == f"the tensors of the batch have different numbers of rows: x {ROWS}, y {ROWS - 1}"
    assert Path(place.file).name == Path(__file__).name


class Crossed(torch.nn.Module):
    """Has the parameters of `Net` by name, one of them with its dims exchanged, and so as many elements."""

    def __init__(self):
        super().__init__()
        self.line, self.norm = torch.nn.Linear(6, 3), torch.nn.BatchNorm1d(3)
        self.line.weight = torch.nn.Parameter(torch.zeros(6, 3))


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (lambda: torch.nn.Linear(2, 2), "has no parameter or buffer 'line.weight'.*it has weight, bias"),
        (lambda: torch.nn.Sequential(Net()), "has no parameter or buffer 'line.weight'; did you mean 0.line.weight"),
        (torch.nn.ReLU, "has no parameter or buffer 'line.weight'$"),
        (Crossed, r"line.weight of the model has the dims \[6, 3\], that of the training \[3, 6\]"),
    ],
)
def test_a_model_that_is_another_is_refused(other, told):
    model = Net()
    training, given = pt.trace(model, batch(), loss=loss, optimizer=sgd(model)), other()
    before = {name: tensor.clone() for name, tensor in given.state_dict().items()}
    with pytest.raises(ValueError, match=told):
        training.write_back(given)
    assert all(torch.equal(tensor, before[name]) for name, tensor in given.state_dict().items())


def test_state_comes_back_into_torch(tmp_path):
    model = Net()
    training = pt.trace(model, batch(), loss=loss, optimizer=sgd(model))
    assert set(training.names) == set(dict(model.state_dict()))
    assert repr(training).startswith("<Training of <Module")
    assert f": loss {training.loss}, inputs {', '.join(training.inputs)}>" in repr(training)
    assert len(training.train([batch(4), batch(10)])) == 2
    other = Net()
    training.write_back(other)
    assert int(other.norm.num_batches_tracked) == 2
    for name, tensor in pt.state_dict(training).items():
        assert torch.equal(tensor, other.state_dict()[name]), name
    saved = tmp_path / "run.npz"
    np.savez(saved, **{f"param/{name}": training.state[name] for name, _ in model.named_parameters()})
    again = pt.state_dict(saved, training)
    assert torch.equal(again["line.weight"], other.line.weight)
    training.load({"line.bias": np.zeros(3)})
    assert not training.state["line.bias"].any()


def test_a_model_is_left_as_it_was():
    model = Net().eval()
    pt.trace(model, batch(), loss=loss, optimizer=sgd(model))
    assert not any(module.training for module in model.modules())
    assert model.norm.momentum == 0.1


def test_accumulated_micro_batches_are_trained_as_in_torch():
    def dealt(model, x, y):
        return sum(loss(model, *part) for part in zip(x.chunk(2), y.chunk(2), strict=True)) / 2

    made = trained(Net(), batch, loss, sgd, count=3, accumulate=2, torch_loss=dealt)
    assert made.losses_apart() < 1e-9
    assert made.apart() < 1e-9


def test_origins_are_lines_of_the_model():
    model = Net()
    training = pt.trace(model, batch(), loss=loss, optimizer=sgd(model))
    op = next(op for op in training.module["main"].main_block.ops if op.type == "batch_norm")
    assert op.origin is not None
    assert op.origin.location.file == __file__


def test_batches_of_other_sizes_are_refused():
    model = torch.nn.Linear(6, 3)
    training = pt.trace(model, batch(), loss=lambda m, x, y: loss(m, x, y) * x.view(2, -1).mean(), optimizer=sgd(model))
    training.train([batch(4)])
    with pytest.raises(DiagnosticError, match=r"shape\[0\] % 2"):
        training.train([batch(5)])
    with pytest.raises(DiagnosticError, match="the batch has no y"):
        training.train([{"x": torch.randn(4, 6)}])


def test_operators_that_are_missing_are_refused_all_at_once():
    def other(model, x, y):
        first = torch.linalg.svd(model(x))[1].sum()
        return first + torch.special.i0(model(x)).sum()

    found = refused(torch.nn.Linear(6, 3), batch(), other)
    assert {code for code, *_ in found} == {"torch-op"}
    assert len(found) >= 2
    assert {location.file for *_, location in found} == {__file__}


def test_a_model_that_torch_cant_export_is_refused_at_its_line():
    def other(model, x, y):
        return loss(model, x, y) if x.sum() > 0 else loss(model, y, x)

    ((code, _, location),) = refused(torch.nn.Linear(6, 3), batch(), other)
    assert code == "torch-export"
    assert location.file == __file__


def test_a_loss_is_one_number():
    ((code, message, _),) = refused(torch.nn.Linear(6, 3), batch(), lambda m, x, y: m(x) - y)
    assert code == "torch-loss"
    assert "one element" in message


@pytest.mark.parametrize(
    ("optimizer", "what"),
    [
        (lambda m: torch.optim.Adam(m.parameters(), differentiable=True), "differentiable"),
        (lambda m: torch.optim.NAdam(m.parameters()), "NAdam"),
        (lambda m: torch.optim.Rprop(m.parameters()), "Rprop"),
        (lambda m: torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1), "not the model's"),
    ],
)
def test_options_of_optimizers_are_refused_by_name(optimizer, what):
    found = refused(torch.nn.Linear(6, 3), batch(), loss, optimizer)
    assert {code for code, *_ in found} == {"torch-optimizer"}
    assert any(what in message for _, message, _ in found)


def test_a_schedule_of_unknown_length_is_refused():
    model = torch.nn.Linear(6, 3)
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    found = refused(model, batch(), loss, lambda _: optimizer, schedule=schedule)
    assert "how many steps" in found[0][1]


def test_a_schedule_of_more_than_rates_is_refused():
    model = torch.nn.Linear(6, 3)
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=8)
    found = refused(model, batch(), loss, lambda _: optimizer, schedule=schedule, steps=4)
    assert "changes betas, too" in found[0][1]
    assert optimizer.param_groups[0]["betas"] == (0.95, 0.999)


def test_hooks_on_gradients_are_refused():
    model = torch.nn.Linear(6, 3)
    model.weight.register_hook(lambda grad: grad * 2)
    assert "hook" in refused(model, batch(), loss)[0][1]


def test_operators_are_listed_by_family():
    listed = pt.operators()
    assert "max.dim" in listed["tensors"]
    assert "embedding_bag" in listed["tables"]


def test_without_torch_the_extra_is_named(monkeypatch):
    from pstranspile.frontends.torch import capture

    def absent(part):
        raise ImportError(part)

    monkeypatch.setattr(capture.importlib, "import_module", absent)
    with pytest.raises(DiagnosticError, match=r"pip install '\.\[torch\]'"):
        capture.torch_library()
