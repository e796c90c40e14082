"""What is said of arguments that are none, and of code that is for one number of rows."""

import linecache
import sys

import pytest

import pstranspile.torch as pt
from pstranspile.ir.diagnostics import DiagnosticError

torch = pytest.importorskip("torch", reason="torch is not installed")
functional = torch.nn.functional

LABELS = torch.arange(8)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 8)
        self.register_buffer("weights", torch.ones(8, 1))

    def forward(self, x):
        return self.linear(x)


def mean(model, x):
    return model(x).mean()


def checked(loss=mean, batch=None, **options):
    model = options.pop("model", None) or Net()
    given = {"optimizer": torch.optim.SGD(model.parameters(), 0.1), **options}
    return pt.check(model, (torch.randn(8, 4),) if batch is None else batch, loss=loss, **given)


# Numbers of machines.


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"trainers": 0}, "trainers is 0; it must be at least 1"),
        ({"trainers": -1}, "trainers is -1; it must be at least 1"),
        ({"trainers": 2.0}, "trainers takes a number, .*, not 2.0 "),
        ({"trainers": None}, "trainers"),
        ({"trainers": "two"}, "trainers: 'two' is neither a number nor"),
        ({"pservers": -1}, "pservers is -1"),
    ],
)
def test_a_cluster_of_no_machines(options, says):
    with pytest.raises(DiagnosticError, match=says):
        checked(**options)


def test_a_number_in_text_is_a_number():
    assert str(checked(trainers="2")) == str(checked(trainers=2))
    assert str(checked(trainers=2, pservers="1")) == str(checked(trainers=2, pservers=1))
    assert str(checked(pservers="0")) == str(checked())


def test_one_rank_is_one():
    assert str(checked(trainers=1)) == "equal: 1 rank of DDP trains as one process does (4 steps)"


# Other arguments.


def test_functions_are_called_by_their_public_names():
    with pytest.raises(TypeError, match=r"^check\(\) missing 1 required keyword-only argument: 'optimizer'"):
        pt.check(Net(), [])
    with pytest.raises(TypeError, match="check has no argument 'optimiser'; did you mean optimizer"):
        pt.check(Net(), [], optimiser=None)


OTHERS = [None, 3, "text", {"a": 1}, [1], [["a"]], 2.5]


@pytest.mark.parametrize("given", OTHERS, ids=repr)
def test_arguments_of_other_types(given):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    training = pt.trace(model, (torch.randn(8, 4),), loss=mean, optimizer=optimizer)
    calls = {
        "model": lambda: pt.check(given, (), optimizer=optimizer),
        "optimizer": lambda: checked(optimizer=given),
        "check_training": lambda: pt.check_training(given),
        "clip_grad_norm": lambda: pt.clip_grad_norm(given),
        "clip_grad_value": lambda: pt.clip_grad_value(given),
        "write_back": lambda: training.write_back(given),
        "load": lambda: training.load(given),
        "state_dict": lambda: pt.state_dict(given),
        "training": lambda: pt.state_dict({}, given),
        "loss": lambda: checked(loss=given),
        "clip": lambda: checked(clip=given),
        "steps": lambda: pt.trace(model, (), optimizer=optimizer, steps=given),
        "accumulate": lambda: checked(accumulate=given),
        "schedule": lambda: checked(schedule=given),
        "source": lambda: pt.trace(model, (), optimizer=optimizer, step="torch", source=given),
    }
    if given is None:
        for optional in ("loss", "clip", "steps", "schedule", "training"):
            del calls[optional]
    if isinstance(given, int | float):
        del calls["clip_grad_norm"], calls["clip_grad_value"]
    if given == 3:
        del calls["steps"], calls["accumulate"]
    if isinstance(given, str):
        del calls["source"], calls["state_dict"]
    if isinstance(given, dict):
        del calls["state_dict"], calls["load"]
    for name, call in calls.items():
        with pytest.raises(TypeError, match=rf"^{name} takes .*, not (a value of type|one name)"):
            call()


@pytest.mark.parametrize("batch", [None, 3, 2.5, Net()])
def test_a_batch_is_a_tuple_or_a_dict(batch):
    model = Net()
    with pytest.raises(DiagnosticError, match="a batch is a tuple or dict of tensors, not "):
        pt.check(model, batch, optimizer=torch.optim.SGD(model.parameters(), 0.1))


def test_values_of_a_training_are_arrays_of_its_variables():
    model = Net()
    training = pt.trace(model, (torch.randn(8, 4),), loss=mean, optimizer=torch.optim.SGD(model.parameters(), 0.1))
    training.load({"linear.bias": [1.0] * 8})
    assert training.state["linear.bias"].tolist() == [1.0] * 8
    training.load({"linear.bias": torch.zeros(8)})
    assert training.state["linear.bias"].tolist() == [0.0] * 8
    with pytest.raises(KeyError, match=r"no variable 'linear\.bais'; did you mean linear\.bias"):
        training.load({"linear.bais": [1.0] * 8})
    for value in ({"a": 1}, "text", None, [[1], [1, 2]]):
        with pytest.raises(ValueError, match=r"linear\.bias holds numbers"):
            training.load({"linear.bias": value})


# Losses.


def line_of(called):
    return f"{__file__}:{called.__code__.co_firstlineno}: "


def test_a_model_that_does_not_take_the_batch_is_told_at_its_line():
    with pytest.raises(DiagnosticError) as caught:
        checked(loss=None, batch=(torch.randn(8, 4), torch.arange(8)))
    said = str(caught.value)
    assert said.startswith(
        f"{line_of(Net.forward)}error[torch-loss]: the model is called with the 2 tensors of the batch"
    )
    assert "Net.forward takes (x)" in said
    assert "loss=lambda model, x, y" in said


def test_a_model_of_a_library_is_told_at_the_call():
    model = torch.nn.Linear(4, 8)
    with pytest.raises(DiagnosticError) as caught:
        pt.check(model, (torch.randn(8, 4), torch.arange(8)), optimizer=torch.optim.SGD(model.parameters(), 0.1))
    assert str(caught.value).startswith(f"{__file__}:")


def test_a_loss_that_takes_no_model():
    with pytest.raises(DiagnosticError) as caught:
        checked(loss=torch.nn.CrossEntropyLoss(), batch=(torch.randn(8, 4), torch.arange(8)))
    assert "CrossEntropyLoss.forward takes (input, target)" in str(caught.value)
    assert str(caught.value).startswith(f"{__file__}:")


@pytest.mark.parametrize("loss", [functional.mse_loss, functional.binary_cross_entropy_with_logits])
def test_a_loss_function_of_torch_takes_no_model(loss):
    with pytest.raises(DiagnosticError) as caught:
        checked(loss=loss, batch=(torch.randn(8, 4), torch.randn(8, 8)))
    assert str(caught.value).startswith(f"{__file__}:")
    assert f"a loss is such as lambda model, x, y: functional.{loss.__name__}(model(x), y)" in str(caught.value)


def test_what_the_model_returns_is_no_loss():
    with pytest.raises(DiagnosticError) as caught:
        checked(loss=None)
    assert str(caught.value).startswith(f"{line_of(Net.forward)}error[torch-loss]: the loss has the dims [-1, 8]")
    assert "without loss= what the model returns is taken as the loss" in str(caught.value)


# One number of rows.


def made_outside(model, x):
    return functional.cross_entropy(model(x), LABELS)


def made_inside(model, x):
    return functional.cross_entropy(model(x), torch.arange(8))


def made_before(model, x):
    labels = torch.arange(8)
    return functional.cross_entropy(model(x), labels)


def viewed(model, x):
    return model(x).view(8, 2, 4).mean()


class Weighted(Net):
    def forward(self, x):
        return (self.linear(x) * self.weights).mean()


@pytest.mark.parametrize(
    ("loss", "model", "line", "what"),
    [
        (made_outside, Net, 1, "LABELS has a fixed number of rows, 8"),
        (made_inside, Net, 1, "torch.arange(8) has a fixed number of rows, 8"),
        (made_before, Net, 2, "labels (torch.arange(8), line "),
        (viewed, Net, 1, "model(x).view(8, 2, 4) has a fixed number of rows, 8"),
        (None, Weighted, 1, "self.weights has a fixed number of rows, 8"),
    ],
)
def test_code_for_one_number_of_rows_names_what_has_it(loss, model, line, what):
    made = model()
    with pytest.raises(DiagnosticError) as caught:
        checked(loss, model=made)
    (finding,) = caught.value.diagnostics
    code = (loss or model.forward).__code__
    assert (finding.location.file, finding.location.line) == (__file__, code.co_firstlineno + line)
    assert finding.location.column > 5 or sys.version_info < (3, 11)  # Python 3.10 knows no columns
    assert what in finding.message
    assert "Constraints" not in str(caught.value)
    assert "x.shape[0] in place of 8" in finding.notes[0].message


class Sequences(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = torch.nn.GRU(3, 4)

    def forward(self, x):
        return self.rnn(x)[0].mean()


class ByRows(Net):
    def forward(self, x):
        return torch.stack([self.linear(row) for row in x]).mean()


class Sparse(Net):
    def forward(self, x):
        return torch.sparse.mm(x.to_sparse(), self.linear.weight.t()).mean()


class Slope(Net):
    def forward(self, x):
        return torch.func.vmap(torch.func.grad(lambda row: self.linear(row).tanh().sum()))(x).mean()


@pytest.mark.parametrize(
    ("model", "dims", "what", "note"),
    [
        (Sequences, (8, 5, 3), "this layer goes over the rows of the batch as over steps", "batch_first=True"),
        (ByRows, (8, 4), "this code takes batches of 8 rows only", "a loop over the rows"),
        (Sparse, (8, 4), "such as one of sparse tensors", 'step="torch"'),
        (Slope, (8, 4), "as torch.func.grad does", 'step="torch"'),
    ],
)
def test_what_torch_can_not_export_is_named_at_its_line_with_a_way_out(model, dims, what, note):
    made = model()
    with pytest.raises(DiagnosticError) as caught:
        checked(None, (torch.randn(dims),), model=made)
    (finding,) = caught.value.diagnostics
    assert (finding.location.file, finding.location.line) == (__file__, made.forward.__code__.co_firstlineno + 1)
    assert what in finding.message
    assert any(note in one.message for one in finding.notes)


@pytest.mark.parametrize(
    ("loss", "what"),
    [
        (lambda model, x: (model(x) > 0).sum(), "the loss is of flags or whole numbers, which have no gradient"),
        (lambda model, x: (model(x).mean(), model(x)), "the loss gives 2 values"),
    ],
)
def test_a_loss_that_is_none_is_told_with_its_line(loss, what):
    with pytest.raises(DiagnosticError, match=what) as caught:
        checked(loss)
    assert caught.value.diagnostics[0].location.line == loss.__code__.co_firstlineno


def test_a_last_batch_of_fewer_rows_is_told_with_its_rank():
    batches = [(torch.randn(8, 4),), (torch.randn(6, 4),)]
    with pytest.raises(DiagnosticError) as caught:
        checked(accumulate=2, batches=batches)
    told = "the 3 rows of x that rank 0 has of batch 2 can't be dealt to 2 micro-batches of one size"
    assert told in str(caught.value)
    assert "drop_last=True" in str(caught.value)


def test_a_share_that_the_model_was_not_traced_for_is_told_with_its_rank():
    batches = [(torch.randn(8, 4),), (torch.randn(6, 4),)]
    with pytest.raises(DiagnosticError, match="it is what rank 0 has of batch 2"):
        checked(lambda model, x: model(x).view(-1, 2, 8).prod(1).mean(), batches=batches)


def test_micro_batches_have_one_size():
    with pytest.raises(DiagnosticError, match="to 3 micro-batches of one size, and x has 8 rows") as caught:
        checked(accumulate=3)
    assert "such as x[:6]" in str(caught.value)


def test_an_operator_that_is_not_translated_is_refused_with_a_way_out():
    model = Net()
    model.linear = torch.nn.utils.parametrizations.orthogonal(model.linear, orthogonal_map="householder")
    with pytest.raises(
        DiagnosticError, match=r'householder_product: it is not translated[\s\S]*trace\(\.\.\., step="torch"\)'
    ):
        checked(model=model)


def test_code_that_is_typed_in_is_named_by_its_line():
    file, code = "<ipython-input-3-0a1b>", "def loss(model, x):\n    return model(x).square().mean() ** 0.5\n"
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    typed = {}
    exec(compile(code, file, "exec"), typed)
    (cause,) = checked(typed["loss"]).causes
    assert str(cause).startswith(f"{file}:2: ")
    assert "** 0.5" in str(cause)
