"""What a step of torch does that no graph of operators shows is refused, and the model is as before."""

import random
import warnings

import numpy as np
import pytest

import pstranspile.torch as pt
from pstranspile.ir.diagnostics import DiagnosticError

torch = pytest.importorskip("torch", reason="torch is not installed")
nn = torch.nn

from torch.autograd._functions import Resize  # noqa: E402


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Unsure(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        return first if second is None else first + second


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Branching(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        if gradient.abs().sum() > 1:
            return gradient
        return gradient * 2


class Part(nn.Module):
    """A model with a state in Python; `loss` is a function of it and `x`."""

    def __init__(self, loss):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.loss = loss
        self.count = 1
        self.before = torch.zeros(4)
        self.seen = []
        self.draws = np.random.default_rng(0)

    def forward(self, x):
        return self.loss(self, x)


def resized(m, x):
    hidden = m.linear(x)
    return Resize.apply(hidden, (16,)).mean()


def hook(m, x):
    hidden = m.linear(x)
    hidden.register_hook(lambda gradient: gradient * 3)
    return hidden.mean()


def hook_on_parameter(m, x):
    hidden = m.linear(x)
    m.linear.weight.register_hook(lambda gradient: gradient * 3)
    return hidden.mean()


def inference(m, x):
    hidden = m.linear(x)
    with torch.inference_mode():
        weights = hidden.abs()
    return (hidden + weights).mean()


def half(m, x):
    hidden = m.linear(x)
    with torch.autocast("cpu"):
        hidden = m.linear(hidden)
    return hidden.float().mean()


@torch.autocast("cpu")
def all_half(m, x):
    return m.linear(x).float().mean()


def whole(m, x):
    with torch.autocast("cpu", enabled=False):
        return m.linear(x).mean()


def python_number(m, x):
    hidden = m.linear(x)
    factor = random.uniform(0, 1)
    return hidden.mean() * factor


def numpy_number(m, x):
    hidden = m.linear(x)
    factor = 1 if np.random.rand() < 0.5 else 2
    return hidden.mean() * factor


def hook_on_function(m, x):
    hidden = m.linear(x)
    hidden.grad_fn.register_hook(lambda given, made: (given[0] * 3, *given[1:]))
    return hidden.mean()


def packed(m, x):
    hidden = m.linear(x)
    with torch.autograd.graph.saved_tensors_hooks(lambda one: one * 2, lambda one: one):
        return hidden.square().mean()


@pytest.mark.parametrize(
    ("loss", "line", "says"),
    [
        (resized, 2, "Resize is a torch.autograd.Function"),
        (hook, 2, "a hook on the gradient of a tensor"),
        (hook_on_parameter, 2, "a hook on the gradient of a tensor"),
        (hook_on_function, 2, "grad_fn is of torch"),
        (packed, 2, "saved_tensors_hooks change"),
        (inference, 2, "inference_mode.. is not translated"),
        (half, 2, "torch.autocast computes in bfloat16 here"),
        (python_number, 2, "draws a number of random,"),
        (numpy_number, 2, r"draws a number of np\.random,"),
    ],
)
def test_what_no_graph_shows_is_refused_at_its_line(loss, line, says):
    place = rf"test_trial_steps\.py:{loss.__code__.co_firstlineno + line}: error\[torch-op\]: "
    model = Part(loss)
    with pytest.raises(DiagnosticError, match=place + f".*{says}(.|\n)*step=.torch") as caught:
        traced(model)
    assert len(caught.value.diagnostics) == 1
    assert not model.linear.weight._backward_hooks


def test_a_function_that_marks_what_it_writes_is_refused_at_its_line():
    line = InPlace.forward.__code__.co_firstlineno + 3
    with pytest.raises(DiagnosticError, match=rf"test_trial_steps\.py:{line}: error\[torch-op\]: .*mark_dirty"):
        traced(Part(lambda m, x: InPlace.apply(m.linear(x)).mean()))


def test_gradients_that_may_be_none_are_refused():
    with pytest.raises(DiagnosticError, match=r"Unsure has several results, whose gradients may be None"):
        traced(Part(lambda m, x: Unsure.apply(m.linear(x))[0].mean()))


class Keeping(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factors):
        ctx.factors = factors
        return x * factors

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factors, None


def test_a_tensor_for_a_backward_that_is_written_afterwards_is_refused():
    def changed(m, x):
        factors = torch.ones(4)
        made = Keeping.apply(m.linear(x), factors)
        factors.mul_(2)
        return made.mean()

    line = changed.__code__.co_firstlineno + 2
    words = (
        rf"test_trial_steps\.py:{line}: error\[torch-op\]: Keeping keeps a tensor for its backward that the step writes"
    )
    with pytest.raises(DiagnosticError, match=words):
        traced(Part(changed))


def test_a_gradient_of_a_function_within_the_step_is_refused():
    def sloped(m, x):
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(Doubled.apply(m.linear(x)).sum(), x)
        return slope.mean() + m.linear(x).mean()

    with pytest.raises(DiagnosticError, match=r"error\[torch-op\]: .*no derivative here"):
        traced(Part(sloped))


def test_a_backward_that_branches_on_data_is_refused_at_its_line():
    line = Branching.backward.__code__.co_firstlineno + 2
    with pytest.raises(DiagnosticError, match=rf"test_trial_steps\.py:{line}:?\d*: error\[torch-export\]: .*branches"):
        traced(Part(lambda m, x: Branching.apply(m.linear(x)).mean()))


def test_functions_of_torch_are_as_before_a_trace():
    before = torch.autograd.grad.__code__, torch.autograd.Function.apply.__func__.__code__
    with pytest.raises(DiagnosticError):
        traced(Part(lambda m, x: Branching.apply(m.linear(x)).mean()))
    assert (torch.autograd.grad.__code__, torch.autograd.Function.apply.__func__.__code__) == before


def test_a_function_that_is_all_under_autocast_is_refused_at_its_line():
    line = all_half.__wrapped__.__code__.co_firstlineno
    place = rf"test_trial_steps\.py:{line}: error\[torch-op\]: "
    with pytest.raises(DiagnosticError, match=place + "torch.autocast computes"):
        traced(Part(all_half))


def test_a_trace_under_autocast_is_refused_at_its_line():
    with (
        torch.autocast("cpu"),
        pytest.raises(DiagnosticError, match=r"traced under torch\.autocast, which computes in b"),
    ):
        traced(Part(whole))


def test_autocast_that_is_off_changes_nothing():
    assert traced(Part(whole)).train([(torch.ones(4, 4),)])


def traced(model, loss=None):
    return pt.trace(model, (torch.ones(4, 4),), loss=loss, optimizer=torch.optim.SGD(model.parameters(), 0.1))


def counted(m, x):
    m.count += 1
    return m.linear(x).mean() * m.count


def kept(m, x):
    hidden = m.linear(x)
    made = (hidden + m.before).mean()
    m.before = hidden.detach().mean(0)
    return made


def written(m, x):
    m.before.add_(x.mean(0))
    return (m.linear(x) + m.before).mean()


def listed(m, x):
    hidden = m.linear(x)
    m.seen.append(hidden.detach())
    return hidden.mean() + sum(one.mean() for one in m.seen)


def drawn(m, x):
    return m.linear(x).mean() * m.draws.random()


@pytest.mark.parametrize(
    ("loss", "name"),
    [(counted, "count"), (kept, "before"), (written, "before"), (listed, "seen"), (drawn, "draws")],
)
def test_a_state_that_is_no_buffer_is_refused_by_name(loss, name):
    model = Part(loss)
    with pytest.raises(DiagnosticError, match=f"the loss depends on {name}, which is no buffer of the model"):
        traced(model)
    assert (model.count, model.seen, model.before.tolist()) == (1, [], [0.0] * 4)
    assert model.draws.random() == np.random.default_rng(0).random()


def test_a_state_of_the_loss_is_refused():
    count = 0

    def loss(m, x):
        nonlocal count
        count += 1
        return m(x) * count

    with pytest.raises(DiagnosticError, match="the loss depends on count, which is no buffer"):
        traced(Part(lambda m, x: m.linear(x).mean()), loss)
    assert count == 0


def test_a_step_that_differs_for_what_is_unknown_is_refused():
    steps = iter(range(1, 99))
    with pytest.raises(DiagnosticError, match=r"a second step from the same parameters.* has another loss"):
        traced(Part(lambda m, x: m.linear(x).mean() * next(steps)))


def test_a_second_step_that_fails_is_refused():
    steps = iter(range(1))
    told = r"a second step ends with an error, though the first one did not: ValueError: none is left"

    def loss(m, x):
        if next(steps, None) is None:
            raise ValueError("none is left")
        return m.linear(x).mean()

    with pytest.raises(DiagnosticError, match=told):
        traced(Part(loss))


def late(m, x):
    m.count += 1
    return m.linear(x).mean() * (1 if m.count < 100 else 2)


def test_a_state_without_an_effect_yet_is_warned_of():
    with pytest.warns(UserWarning, match="count changes from step to step and is no buffer") as told:
        traced(Part(late))
    assert (told[0].filename, told[0].lineno) == (__file__, Part.forward.__code__.co_firstlineno)


def cached(m, x):
    m.shown = torch.nn.functional.dropout(m.linear(x), 0.5)
    if m.count == 1:
        m.count = 2
    return m.shown.mean() + torch.utils.checkpoint.checkpoint(m.linear, m.shown, use_reentrant=True).mean()


def test_what_follows_from_the_batch_is_no_state():
    model = Part(cached)
    random.seed(1)
    torch.manual_seed(1)
    expected = random.random(), torch.rand(1).item()
    random.seed(1)
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        training = traced(model)
    assert (random.random(), torch.rand(1).item()) == expected
    assert not hasattr(model, "shown")
    assert "linear.weight" in training.state


def test_lazy_modules_are_made():
    model = nn.Sequential(nn.LazyLinear(3), nn.BatchNorm1d(3))
    assert traced(model, lambda m, x: m(x).mean()).state["0.weight"].shape == (3, 4)
    assert model[0].in_features == 4
    assert model[1].num_batches_tracked == 0


def backward_within(m, x):
    x = x.detach().requires_grad_()
    m.linear(x).sum().backward()
    return (x.grad * m.linear(x)).mean()


def test_backward_within_a_step_is_refused_at_its_line():
    line = backward_within.__code__.co_firstlineno + 2
    words = r"calls backward\(\) within the step(.|\n)*torch\.autograd\.grad"
    with pytest.raises(DiagnosticError, match=rf"test_trial_steps\.py:{line}:?\d*: error\[torch-export\]: .*{words}"):
        traced(Part(backward_within))
