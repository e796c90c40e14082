"""Models that torch reads only as their code runs, and what it takes for granted of them."""

import numpy as np
import pytest

import pstranspile.torch as pt
from pstranspile.ir.diagnostics import DiagnosticError
from tests.frontends.torch.beside import ROWS, trained

torch = pytest.importorskip("torch", reason="torch is not installed")


class Columns(torch.nn.Module):
    """Takes columns whose numbers stand in an array of numpy, which strict export has as tensors."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.places = np.array([1, 3])

    def forward(self, x):
        return self.linear(x[:, self.places[0] : self.places[1]]).tanh()


def batch():
    return (torch.randn(ROWS, 4),)


def test_numbers_in_arrays_are_known_as_the_code_runs():
    made = trained(Columns(), batch, lambda m, x: m(x).square().mean())
    assert made.losses_apart() < 1e-12
    assert made.apart() < 1e-12


def test_what_a_graph_takes_for_granted_holds_for_code_that_was_run():
    made = trained(Columns(), batch, lambda m, x: m(x).view(-1, 2, 2).prod(1).mean(), count=1)
    with pytest.raises(DiagnosticError, match=r"torch-batch.*x.shape\[0\]"):
        made.training.feeds((torch.randn(ROWS + 1, 4),))


def test_a_branch_on_data_is_told_by_its_line_alone(capsys):
    class Branching(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 1)

        def forward(self, x):
            hidden = self.linear(x)
            if hidden.sum() > 0:
                hidden = hidden * 2
            return hidden.mean()

    model = Branching()
    with pytest.raises(DiagnosticError) as caught:
        pt.trace(model, (torch.ones(ROWS, 3),), optimizer=torch.optim.SGD(model.parameters(), 0.1))
    assert caught.value.diagnostics[0].code == "torch-export"
    assert "class GraphModule" not in capsys.readouterr().err


ROW = (torch.ones(3, 2), torch.ones(3, 1))


@pytest.fixture(scope="module")
def training():
    model = torch.nn.Linear(2, 1)
    return pt.trace(
        model,
        ROW,
        loss=lambda m, x, y: (m(x) - y).square().mean(),
        optimizer=torch.optim.SGD([*model.parameters()], 0.1),
    )


@pytest.mark.parametrize(
    ("batches", "told"),
    [
        (ROW, "a list of batches is expected, and one batch is given"),
        ([*ROW], "a list of batches is expected, and one batch is given"),
        (ROW[0], "a list of batches is expected, and one batch is given"),
        ({"x": ROW[0], "y": ROW[1]}, "a list of batches is expected, and one batch is given"),
        (5, "a list of batches is expected, and int is given"),
        ([5], "a batch is a tuple or dict of tensors, not int"),
        ([ROW[:1]], "the batch has 1 tensor; the model was traced with x, y"),
        ([{"x": ROW[0]}], "the batch has no y; the model was traced with x, y"),
    ],
)
def test_what_are_no_batches(training, batches, told):
    for use in (training.train, lambda given: pt.check_training(training, given)):
        with pytest.raises(DiagnosticError) as caught:
            use(batches)
        assert (caught.value.diagnostics[0].code, caught.value.diagnostics[0].message) == ("torch-batch", told)


def test_a_check_without_batches_shows_nothing(training):
    with pytest.raises(DiagnosticError, match="there are no batches to check with"):
        pt.check_training(training, [])
    assert training.train([]) == []


class Own(torch.nn.Module):
    """A linear layer with a forward of its own."""

    def __init__(self, forward=None):
        super().__init__()
        self.linear = torch.nn.Linear(2, 1)
        self.own = forward

    def forward(self, x, y):
        return (self.linear(x) - y).square().mean() if self.own is None else self.own(self.linear, x, y)


def unfollowed(linear, x, y):
    torch._C.TensorBase.data.__get__(linear.weight).mul_(0.9)
    return (linear(x) - y).square().mean()


def frozen():
    return Own().requires_grad_(False)


@pytest.mark.parametrize(
    ("model", "batch", "code", "told"),
    [
        (Own, ([1.0, 2.0], [1.0]), "torch-batch", "a batch is a tuple or dict of tensors; x is of type list"),
        (Own, (ROW[0], 3.0), "torch-batch", "a batch is a tuple or dict of tensors; y is of type float"),
        (Own, (ROW[0][:1], ROW[1][:1]), "torch-batch", "the batch that a model is traced with has 1 row; at least 2"),
        (Own, (ROW[0][:0], ROW[1][:0]), "torch-batch", "the batch that a model is traced with has 0 rows; at least 2"),
        (frozen, ROW, "torch-optimizer", "none of the optimizer's parameters would be trained"),
        (lambda: Own(unfollowed), ROW, "torch-export", "in a way that export doesn't follow, such as `.data`"),
        (
            lambda: Own(lambda linear, x, y: ((linear(x) - y).square() * (len(x) % 2.5)).sum()),
            ROW,
            "torch-op",
            "aten.mul.Tensor: it takes mod, a number that is computed in a way that is not translated",
        ),
    ],
)
def test_what_can_not_be_traced(model, batch, code, told):
    made = model()
    with pytest.raises(DiagnosticError) as caught:
        pt.trace(made, batch, optimizer=torch.optim.SGD([*made.parameters()], 0.1))
    assert caught.value.diagnostics[0].code == code
    assert told in caught.value.diagnostics[0].message


class Listed(torch.nn.Module):
    """A model with a penalty of parameters that a list has, as some packages of recommenders write it."""

    def __init__(self, of=lambda weight: weight):
        super().__init__()
        self.scores = torch.nn.Linear(4, 3)
        self.places = np.array([0, 4])  # strict export can't read them
        self.punished = [(of(one), 0.1) for one in self.scores.parameters()]

    def forward(self, x):
        x = x[:, self.places[0] : self.places[1]]
        return self.scores(x).sum() + sum(f * one.pow(2).sum() for one, f in self.punished)


def test_parameters_in_a_list_are_trained():
    made = trained(Listed(), lambda: (torch.randn(ROWS, 4),))
    assert made.losses_apart() < 1e-12
    assert made.apart() < 1e-12


def test_a_tensor_with_the_memory_of_a_parameter_is_refused():
    model = Listed(lambda weight: weight.detach())
    with pytest.raises(DiagnosticError, match=r"punished is a tensor with the memory of scores\.weight"):
        pt.trace(model, (torch.randn(ROWS, 4),), optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


def branching(model, x):
    made = model(x).mean()
    return made * 2 if made > 0 else made


def of_a_number(model, x):
    return model(x).mean() * model(x).sum().item()


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (branching, r"\d+:\d+: error\[torch-export\].*its code branches on a number that a run(.|\n)*step=.torch"),
        (of_a_number, r"\d+:\d+: error\[torch-op\]: aten._local_scalar_dense: it makes a number of Python of what"),
    ],
)
def test_what_needs_a_number_of_a_run_is_refused_with_what_to_do(loss, says):
    model = torch.nn.Linear(4, 4)
    with pytest.raises(DiagnosticError, match=rf"test_capture\.py:{says}"):
        pt.trace(model, (torch.randn(ROWS, 4),), loss=loss, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


class Checked(torch.nn.Module):
    """A layer whose code has checks of data, in each of the ways that a check is written."""

    def __init__(self, most: float = 1e6):
        super().__init__()
        self.layer, self.most = torch.nn.Linear(4, 4), most

    def forward(self, x):
        made = self.layer(x)
        if (made.abs() > self.most).any():
            raise ValueError("it is large")
        assert torch.isfinite(made).all(), "it is no number"
        if not (made < self.most).all():
            message = "it is large"
            raise ValueError(message)
        return -torch.distributions.Normal(made, made.tanh().exp()).log_prob(x).mean()


def test_checks_that_only_raise_are_passed():
    made = trained(Checked(), lambda: (torch.randn(ROWS, 4),))
    assert made.losses_apart() < 1e-12
    assert made.apart() < 1e-12
    assert "__bool__" not in torch.Tensor.__dict__


def test_a_check_that_raises_is_told():
    model = Checked(most=0.0)
    with pytest.raises(DiagnosticError, match="torch-export"):
        pt.trace(model, (torch.randn(ROWS, 4),), optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


class Drawing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        made = self.layer(x)
        drawn = [torch.empty_like(made).uniform_(2, 3), torch.empty_like(made).normal_(5, 0.01)]
        drawn.append(torch.empty_like(made).exponential_(0.5))
        return made.mean() + torch.stack([one.mean() for one in drawn]).sum()


def test_numbers_of_a_distribution_are_drawn():
    model = Drawing()
    training = pt.trace(model, (torch.randn(500, 4),), optimizer=torch.optim.SGD(model.parameters(), lr=0.0))
    batch = (torch.zeros(500, 4),)
    first, second = training.train([batch, batch])
    mean = float(model.layer.bias.detach().mean())
    assert first != second
    assert first - mean == pytest.approx(2.5 + 5.0 + 2.0, abs=0.3)


def test_a_compiled_model_is_read_as_it_is_written():
    made = trained(torch.compile(Columns(), backend="eager"), batch, lambda m, x: m(x).square().mean())
    assert made.losses_apart() < 1e-9
    assert made.apart() < 1e-9


def model_of(forward):
    """A model whose loss is the mean square of what `forward(model, x)` gives."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 2)
            self.norm = torch.nn.BatchNorm1d(2)

        def forward(self, x):
            return forward(self, x).square().mean()

    return Model()


@pytest.mark.parametrize(
    ("forward", "decomposed"),
    [
        (lambda m, x: (m.linear(x) + 1).relu(), False),
        (lambda m, x: m.linear(x).add_(1), True),
        (lambda m, x: m.norm(m.linear(x)), True),
        (lambda m, x: m.linear(x).nan_to_num(), True),
    ],
)
def test_only_what_needs_it_is_decomposed(forward, decomposed, monkeypatch):
    done = []
    program = torch.export.ExportedProgram
    whole = program.run_decompositions
    monkeypatch.setattr(program, "run_decompositions", lambda *given: done.append(1) or whole(*given))
    model = model_of(forward)
    pt.trace(model, batch(), optimizer=torch.optim.SGD(model.parameters(), 0.1))
    assert bool(done) == decomposed
    made = trained(model_of(forward), batch, lambda m, x: m(x))
    assert made.losses_apart() < 1e-12
    assert made.apart() < 1e-12


def test_what_no_result_depends_on_is_left_out():
    def forward(model, x):
        model.linear(x).tanh()
        return model.linear(x).relu()

    model = model_of(forward)
    training = pt.trace(model, batch(), optimizer=torch.optim.SGD(model.parameters(), 0.1))
    ops = [op.type for op in training.module["main"].main_block.ops]
    assert "relu" in ops
    assert "tanh" not in ops


def test_parameters_stand_in_the_order_of_the_model():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(2, 1), torch.nn.Linear(4, 2)

        def forward(self, x):
            return self.first(self.second(x)).mean()

    model = Model()
    training = pt.trace(model, batch(), optimizer=torch.optim.SGD(model.parameters(), 0.1))
    names = [name for name in training.module["main"].main_block.vars if name.endswith(("weight", "bias"))]
    assert names == ["first.weight", "first.bias", "second.weight", "second.bias"]
