"""A step that is one op of torch: trained as by torch itself, on a cluster, by processes, and found by its file."""

import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import pstranspile as ps  # noqa: E402
from pstranspile.cluster.pytorch import launch  # noqa: E402
from pstranspile.frontends.torch.training import trace  # noqa: E402
from pstranspile.ir.types import VarKind  # noqa: E402
from pstranspile.tools.cli import main  # noqa: E402
from tests.frontends.torch import stepped  # noqa: E402
from tests.frontends.torch.stepped import Branching, Rowwise, batches, loader, optimizers, traced  # noqa: E402
from tests.frontends.torch.trained import assert_trained, simulated  # noqa: E402

FILE = str(Path(stepped.__file__))


def eager(model: Any, double: bool) -> list[float]:
    """Torch's own steps. A parameter that a step does not use has a gradient of zeros, as on servers."""
    losses: list[float] = []
    own = optimizers(model)
    for parameter in model.parameters():
        if parameter is not model.table.weight:
            parameter.grad = torch.zeros_like(parameter)
    for batch in batches(double):
        for optimizer in own:
            optimizer.zero_grad(set_to_none=optimizer is own[0])
        loss = model(*batch)
        loss.backward()
        losses.append(loss.item())
        for optimizer in own:
            optimizer.step()
    return losses


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("kind", [Rowwise, Branching])
def test_it_trains_as_torch_does(kind: Any, double: bool):
    model, training = traced(kind, double=double)
    losses = training.train(batches(double))
    most = 1e-12 if double else 1e-6
    np.testing.assert_allclose(losses, eager(model, double), rtol=most)
    for name, value in model.state_dict().items():
        np.testing.assert_allclose(training.state[name], value.numpy(), rtol=most, atol=most, err_msg=name)
    assert int(training.state["seen"]) == 5


class Everywhere(torch.nn.Module):
    """A model with a layer that stands in two of its modules."""

    def __init__(self):
        super().__init__()
        layer = torch.nn.Linear(4, 4)
        self.first = torch.nn.Sequential(layer, torch.nn.Tanh(), torch.nn.BatchNorm1d(4))
        self.second = torch.nn.Sequential(layer, torch.nn.Linear(4, 1))

    def forward(self, x):
        return self.second(self.first(x)).square().mean()


def test_a_layer_that_stands_in_two_modules_keeps_its_parameters():
    torch.manual_seed(0)
    model, given = Everywhere().double(), [(torch.randn(6, 4).double(),) for _ in range(3)]
    before = {name: id(one) for name, one in model.named_parameters()}
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    training = trace(model, given[0], optimizer=optimizer, step="torch")
    ours = training.train(given)
    assert {name: id(one) for name, one in model.named_parameters()} == before
    for batch, loss in zip(given, ours, strict=True):
        optimizer.zero_grad()
        made = model(*batch)
        made.backward()
        optimizer.step()
        assert made.item() == pytest.approx(loss, rel=1e-12)


class Unused(torch.nn.Module):
    """A layer of which the loss uses nothing, as models keep them for another task."""

    def __init__(self):
        super().__init__()
        self.used, self.spare = torch.nn.Linear(4, 1), torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.used(x).square().mean()


def test_parameters_that_the_loss_does_not_use_are_told():
    model, batch = Unused(), (torch.ones(6, 4),)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    with pytest.warns(UserWarning, match=r"does not use spare\.weight, spare\.bias: .* weight decay") as told:
        trace(model, batch, optimizer=optimizer, step="torch")
    (one,) = told
    assert (one.filename, one.lineno) == (__file__, Unused.forward.__code__.co_firstlineno)
    before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    model.spare.requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        training = trace(model, batch, optimizer=optimizer, step="torch")
    training.train([batch])
    training.write_back(model)
    same = [name for name, tensor in model.named_parameters() if torch.equal(tensor, before[name])]
    assert same == ["spare.weight", "spare.bias"]


def test_torch_itself_cannot_export_the_model_with_a_branch():
    model = Branching()
    with pytest.raises(ps.DiagnosticError, match=r"stepped\.py:\d+:\d+: error\[torch-export\]"):
        trace(model, next(batches()), optimizer=optimizers(model))


def test_tables_have_sparse_gradients_and_updates_are_on_servers():
    module = traced(Branching)[1].module
    assert module.main.main_block.vars["table.weight@GRAD"].kind is VarKind.SELECTED_ROWS
    compiled = ps.compile(module, ps.Job(pservers=2, trainers=2))
    kinds = [op.type for op in compiled.trainer(0).main.main_block.ops]
    assert kinds.count("torch_step") == 1
    assert "adam" not in kinds
    assert "split_selected_rows" in kinds or "send" in kinds


def test_a_cluster_trains_as_one_machine_does(capsys: pytest.CaptureFixture[str]):
    """What is computed row by row; of the other model check tells that shares give something else, and says of what."""
    for mode in (["--pservers", "2", "--trainers", "2"], ["--mode", "ddp", "--trainers", "2"]):
        assert main(["check", f"{FILE}:training", *mode]) == 0
        told = capsys.readouterr().out
        assert told.startswith("the cluster trains as the single machine does\n")
        line = Rowwise.forward.__code__.co_firstlineno
        assert f"stepped.py:{line}: the step is one op of torch, of which nothing within is known\n" in told
    assert main(["check", f"{FILE}:branching", "--mode", "ddp", "--trainers", "2"]) == 1
    told = capsys.readouterr().out
    line = Branching.forward.__code__.co_firstlineno
    assert told.startswith("DIFFERENT: first %")
    assert "(double precision: " in told
    assert f"stepped.py:{line}: the step is one op of torch, of which nothing within is known; of the shares" in told


def test_processes_train_as_the_simulation_does(tmp_path: Path):
    """The table, the layers and the moments; each process finds the model by its file."""
    model, training = traced(Branching)
    training.found_at(f"{FILE}:branching")
    expected = simulated(training, loader)
    done = launch(training, loader)
    assert_trained(training, done, expected)
    training.write_back(model)
    np.testing.assert_array_equal(model.deep.weight.detach().numpy(), expected[1]["deep.weight"])


def test_a_model_of_this_process_alone_is_not_launched():
    with pytest.raises(ps.DiagnosticError, match=r"error\[torch-source\]: the step calls a module of PyTorch, which"):
        launch(traced()[1], loader)


def test_a_folder_names_the_file_that_it_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any):
    monkeypatch.chdir(tmp_path)
    shutil.copy(FILE, "train_rows.py")
    job = ["--pservers", "1", "--trainers", "2"]
    assert main(["compile", "train_rows.py:training", *job, "-o", "out"]) == 0
    told = capsys.readouterr().err
    assert "every trainer calls train_rows.py:training, a file that it needs beside the folder" in told
    assert main(["explain", "out", "--role", "trainer_0", "--op", "0"]) == 0
    assert "The step is one op of torch, of which nothing within is known." in capsys.readouterr().out
    Path("train_rows.py").rename("elsewhere.py")
    feed = ["--feed", "elsewhere.py:loader", "--names", "ids,clicked", "--steps", "1"]
    assert main(["launch", "out", *feed]) == 1
    told = capsys.readouterr().err
    assert "train_rows.py: error[torch-source]: the step of the program calls training of train_rows.py, which" in told


def test_random_numbers_are_refused():
    line = Branching.forward.__code__.co_firstlineno
    told = rf"stepped\.py:{line}: error\[torch-random\]: the step draws random numbers[^\n]*\n.*dropout: drop"
    with pytest.raises(ps.DiagnosticError, match=told):
        traced(lambda: Branching(0.5))


def vector(model: Any, ids: Any, clicked: Any) -> Any:
    return model.table(ids)


def test_a_loss_that_is_no_number_and_another_model_are_refused(tmp_path: Path):
    line = vector.__code__.co_firstlineno
    with pytest.raises(ps.DiagnosticError, match=rf"test_stepping\.py:{line}: error\[torch-loss\]: .*dims \[8, 8\]"):
        traced(loss=vector)
    training = traced()[1]
    (tmp_path / "other_model.py").write_text(
        "import torch\nimport pstranspile.torch as pt\nnet = torch.nn.Linear(3, 1)\n"
        "def training():\n"
        "    loss = lambda model, ids, clicked: model(ids.float()).mean()\n"
        "    batch = torch.zeros(8, 3, dtype=torch.int64), torch.zeros(8)\n"
        '    return pt.trace(net, batch, loss=loss, optimizer=torch.optim.SGD(net.parameters()), step="torch")\n'
    )
    training.found_at(f"{tmp_path / 'other_model.py'}:training")
    module = training.module
    del training
    with pytest.raises(ps.DiagnosticError, match=r"error\[torch-source\]: the program was made of another model"):
        ps.simulate(ps.compile(module, ps.Job(pservers=1, trainers=1)), {n: a[None] for n, a in module.example.items()})


class Teacher(torch.nn.Module):
    """A layer and a slow copy of it, which each step moves towards it; from the `since`th step on only."""

    def __init__(self, since: int = 0):
        super().__init__()
        self.own, self.slow = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1).requires_grad_(False)
        self.calls, self.since = 0, since

    def forward(self, x, y):
        self.calls += 1
        with torch.no_grad():
            for slow, own in zip(self.slow.parameters(), self.own.parameters(), strict=True):
                if self.calls > self.since:
                    slow.mul_(0.9).add_(own, alpha=0.1)
        return (self.own(x) - y).square().mean() + (self.own(x) - self.slow(x)).square().mean()


def test_parameters_that_a_step_writes_are_kept():
    torch.manual_seed(0)
    model, batch = Teacher(), (torch.randn(8, 4), torch.randn(8, 1))
    optimizer = torch.optim.SGD(model.own.parameters(), lr=0.1)
    training = trace(model, batch, optimizer=optimizer, step="torch")
    ours, theirs = training.train([batch] * 3), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(*batch)
        loss.backward()
        optimizer.step()
        theirs.append(loss.item())
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    np.testing.assert_allclose(training.state["slow.weight"], model.slow.weight, rtol=1e-5)


def test_a_step_that_comes_to_write_into_a_parameter_is_refused():
    model, batch = Teacher(since=2), (torch.randn(8, 4), torch.randn(8, 1))
    training = trace(model, batch, optimizer=torch.optim.SGD(model.own.parameters(), lr=0.1), step="torch")
    with pytest.raises(
        ps.DiagnosticError, match=r"error\[torch-op\]: the step writes into slow\.weight, which the step"
    ):
        training.train([batch] * 3)


class Limited(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(10, 4, max_norm=1.0)

    def forward(self, ids):
        return self.table(ids).square().mean()


@pytest.mark.parametrize("step", ["torch", "program"])
def test_a_table_that_limits_its_rows_is_refused_with_a_way_out(step: Any):
    model = Limited()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ps.DiagnosticError, match=r"error\[torch-op\]: [\s\S]*max_norm writes into the table as rows"):
        trace(model, (torch.randint(0, 10, (8,)),), optimizer=optimizer, step=step)
