"""Parts of a step that have no gradient in torch: they have none in its program."""

import inspect

import pytest

import pstranspile as ps
import pstranspile.torch as pt
from pstranspile.cluster.checkpoint.inference import whole_values
from pstranspile.ir.diagnostics import DiagnosticError
from tests.frontends.torch.beside import assert_part_alike, trained

torch = pytest.importorskip("torch", reason="torch is not installed")
nn = torch.nn


class Part(nn.Module):
    """A module whose loss is a function of itself and `x`."""

    reads = ("x",)

    def __init__(self, loss, **held):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.loss = loss
        for name, tensor in held.items():
            if isinstance(tensor, nn.Parameter | nn.Module):
                setattr(self, name, tensor)
            else:
                self.register_buffer(name, tensor)

    def forward(self, x):
        return self.loss(self, x)


def block(m, x):
    p = m.linear(x)
    with torch.no_grad():
        weights = (p - x).abs()
        other = weights * p
    return (weights * (p - x) ** 2 + other * p).mean()


@torch.no_grad()
def target(m, x):
    return m.linear(x).sum(1, keepdim=True)


def switched(m, x):
    with torch.set_grad_enabled(False):
        p = m.linear(x)
    torch.set_grad_enabled(False)
    q = m.linear(x + 1)
    torch.set_grad_enabled(True)
    return (p * m.linear(x) * q).mean()


def nested(m, x):
    with torch.no_grad():
        p = m.linear(x)
        with torch.enable_grad():
            q = m.linear(x)
        r = p * q
    return (p * q * r).mean()


def moving(m, x):
    p = m.linear(x)
    with torch.no_grad():
        m.average.mul_(0.9)
        m.average[1:] += p.mean(0)[1:]
    return (p * m.average).mean()


def teacher(m, x):
    with torch.no_grad():
        m.taught.mul_(0.9).add_(m.linear.weight, alpha=0.1)
    return (m.linear(x) - x @ m.taught).square().mean()


def in_place(m, x):
    p = m.linear(x)
    before = p * 2
    p.detach_()
    p.mul_(3)
    p[:, 0] = 1
    return (m.linear(x) * p * before).mean()


LOSSES = {
    "block": block,
    "decorator": lambda m, x: (m.linear(x) * target(m, x)).mean(),
    "switched": switched,
    "nested": nested,
    "moving": moving,
    "teacher": teacher,
    "in_place": in_place,
    "normed": lambda m, x: m.normed(x).square().mean(),
}
HELD = {
    "moving": lambda: {"average": torch.ones(4)},
    "teacher": lambda: {"taught": nn.Parameter(torch.ones(4, 4), requires_grad=False)},
    "normed": lambda: {"normed": nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))},
}


def parts():
    made = {name: Part(loss, **HELD.get(name, dict)()) for name, loss in LOSSES.items()}
    return made, lambda: {"x": torch.randn(8, 4)}


@pytest.mark.parametrize("name", LOSSES)
def test_what_has_no_gradient_in_torch_has_none(name):
    assert_part_alike(parts, name)


def traced(loss, model=None):
    model = Part(loss) if model is None else model
    return pt.trace(model, (torch.randn(8, 4),), optimizer=torch.optim.SGD(model.parameters(), 0.1))


def test_what_is_without_gradient_around_a_trace_changes_nothing():
    with torch.no_grad():
        assert "linear.weight" in traced(block).state


# Writes without a gradient, after which torch goes on with the gradient that was there before.


def view_of_block(m, x):
    p = m.linear(x)
    with torch.no_grad():
        p.view(-1, 2).mul_(2)
    return p.mean()


def parts_in_block(m, x):
    made = m.linear(x)
    with torch.no_grad():
        made[:, 1:3].zero_()
        made[made < 0] = 1
    return m.last(made).square().mean()


def weights_in_blocks(m, x):
    with torch.no_grad():
        m.linear.weight.copy_(torch.renorm(m.linear.weight, 2, 0, 0.5))
    made = m.linear(x)
    m.last.weight.data.clamp_(-0.2, 0.2)
    with torch.no_grad():
        m.last.weight.mul_(0.9)
        without = m.last(made)
    return (m.last(made) + 0.1 * without).square().mean()


def weights_by_data(m, x):
    m.linear.weight.data.mul_(0.9)
    made = m.linear(x)
    m.last.weight.data = torch.nn.functional.normalize(m.last.weight.data, dim=1)
    m.linear.weight.data.clamp_(-0.4, 0.4)
    return m.last(m.linear(x) + made.detach()).square().mean()


def intermediate_by_data(m, x):
    made = m.linear(x)
    before = made.detach()
    made.data.clamp_(min=0)
    made.data[:, :1] = 2
    return (m.last(made) * before.sum(1, keepdim=True)).square().mean()


def intermediate_set(m, x):
    made = m.linear(x)
    made.data = made.data.clamp(min=0)
    return m.last(made * (made.data > 1)).square().mean()


def part_by_detach(m, x):
    made = m.linear(x)
    made.detach()[:, 0].mul_(2)
    return m.last(made).square().mean()


def quantized(m, x):
    """Codes that are averages over what is nearest to them, as of VQ-VAE."""
    made = m.linear(x)
    nearest = torch.cdist(made, m.codes.t()).argmin(1)
    chosen = torch.nn.functional.one_hot(nearest, 3).to(x.dtype)
    quantized = m.codes.t()[nearest]
    m.counts.data.mul_(0.9).add_(chosen.sum(0), alpha=0.1)
    m.sums.data.mul_(0.9).add_(made.detach().t() @ chosen, alpha=0.1)
    m.codes.data.copy_(m.sums / m.counts)
    return m.last(made + (quantized - made).detach()).square().mean() + (quantized.detach() - made).square().mean()


WRITES = [
    view_of_block, parts_in_block, weights_in_blocks, weights_by_data, intermediate_by_data, intermediate_set,
    part_by_detach, quantized,
]  # fmt: skip


@pytest.mark.parametrize("loss", WRITES)
def test_a_write_without_a_gradient_leaves_the_gradient_that_was_there(loss):
    torch.manual_seed(1)
    codes = torch.randn(4, 3)
    model = Part(loss, last=nn.Linear(4, 2), codes=codes, sums=codes.clone(), counts=torch.ones(3))
    made = trained(model, lambda: (torch.randn(8, 4),), count=4)
    assert made.losses_apart() < 1e-9
    assert made.apart() < 1e-9


def view_read(m, x):
    made = m.linear(x)
    view = made[:, 0]
    made.data.mul_(2)  # refused
    return (made * view[:, None]).mean()


def written_again(m, x):
    made = m.linear(x)
    with torch.no_grad():
        made.mul_(2)
    made.add_(1)  # refused
    return made.mean()


def kept_by_torch(m, x):
    made = m.linear(x).exp()
    largest = made.data.max()
    made.data.mul_(2 / largest)  # refused
    return made.mean()


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (view_read, r"without one \(torch\.no_grad, \.data\), and a view of it is read afterwards"),
        (written_again, r"without one \(torch\.no_grad, \.data\), and is written with a gradient afterwards"),
        (kept_by_torch, r"into a tensor through `\.data`, and its backward reads what was there before"),
    ],
)
def test_a_write_without_a_gradient_that_no_graph_shows_is_refused(loss, words):
    lines, first = inspect.getsourcelines(loss)
    line = first + next(at for at, text in enumerate(lines) if "# refused" in text)
    with pytest.raises(DiagnosticError, match=rf"test_gradients\.py:{line}(:\d+)?: error\[torch-op\].*{words}"):
        traced(loss)


def test_tensors_have_their_own_data_afterwards():
    traced(view_of_block)
    with pytest.raises(DiagnosticError):
        traced(kept_by_torch)
    assert "data" not in torch.Tensor.__dict__


# Functions with a backward of their own.


class Reversed(torch.autograd.Function):
    """The gradient times a negative number, which is no tensor."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        ctx.set_materialize_grads(False)
        ctx.save_for_forward(x)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -ctx.factor * gradient, None


reverse = Reversed.apply


class Rounded(torch.autograd.Function):
    """Whole quarters, with the gradient of what they are of where that is small."""

    @staticmethod
    def forward(x):
        return (x * 4).round() / 4

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx, gradient):
        x, made = ctx.saved_tensors
        return gradient * (x.abs() < 0.3) + 0.1 * made


class Several(torch.autograd.Function):
    """Several results, one of which has no gradient, and a backward that depends on the number of rows."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        first = x.argmax(-1)
        ctx.mark_non_differentiable(first)
        return x * 2 * scale, first, x + scale

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, product, _, total):
        x, scale = ctx.saved_tensors
        product = product.clone()
        product[x < 0.1] = 0
        of_scale = (product * x).sum(0) + total.mean() if ctx.needs_input_grad[1] else None
        return (product * scale).clamp(-0.01, 0.01) * product.shape[0] + total * scale, of_scale


class Nested(torch.autograd.Function):
    """A function that calls others, in its forward and in its backward."""

    @staticmethod
    def forward(ctx, x):
        return Rounded.apply(x) + 1

    @staticmethod
    def backward(ctx, gradient):
        return Rounded.apply(gradient * 8)


class Shifted(torch.autograd.Function):
    """A function that writes into what it takes, and says nothing of it."""

    @staticmethod
    def forward(ctx, x):
        x -= x.max(-1, keepdim=True)[0]
        return x.exp()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


def adversarial(m, x):
    hidden = m.linear(x).tanh()
    return reverse(reverse(hidden, 0.5), 2.0).square().mean() + hidden.mean()


def straight_through(m, x):
    weight = Rounded.apply(m.linear.weight)
    return Rounded.apply(nn.functional.linear(x, weight, m.linear.bias)).square().mean()


def several(m, x):
    made, first, total = Several.apply(m.linear(x).tanh(), m.scale)
    return (made + first[:, None]).square().mean() + 0.01 * total.square().sum()


def frozen_scale(m, x):
    return Several.apply(m.linear(x).tanh(), m.fixed)[0].square().mean()


def first_alone(m, x):
    return Several.apply(m.linear(x), m.scale)[2].square().mean()


def within_others(m, x):
    return Nested.apply(m.linear(x)).square().mean()


def written(m, x):
    hidden = m.linear(x) * 1
    made = Shifted.apply(hidden)
    return made.mean() + hidden.square().mean()


# Gradients within the step.


def penalty(m, x):
    x = x.detach().requires_grad_()
    guess = m.linear(x).tanh().sum(1)
    (slope,) = torch.autograd.grad(guess.sum(), x, create_graph=True)
    return guess.square().mean() + (slope.norm(dim=1) - 1).square().mean()


def second_order(m, x):
    x = x.clone().requires_grad_()
    guess = m.linear(x).tanh()
    (slope,) = torch.autograd.grad(guess, x, torch.ones_like(guess), create_graph=True)
    (bend,) = torch.autograd.grad(slope[:, 0].sum(), x, create_graph=True)
    return (bend[:, 0] + guess[:, 0] * slope[:, 1].detach()).square().mean()


def adversarial_rows(m, x):
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(m.linear(x).square().mean(), x)
    return m.linear(x + slope.sign() * slope.abs().sqrt()).square().mean()


def of_parameters(m, x):
    loss = m.linear(x).tanh().square().mean()
    slopes = torch.autograd.grad(loss, [m.linear.weight, m.scale], create_graph=True, allow_unused=True)
    return loss + sum(one.square().sum() for one in slopes if one is not None)


def through_layers(m, x):
    x = x.detach().requires_grad_()
    guess = m.layers(x).square().sum(1)
    (slope,) = torch.autograd.grad(guess.sum(), x, create_graph=True)
    return guess.mean() + slope.square().mean()


class Attending(nn.Module):
    """Convolutions, norms, means of windows and attention over rows of four numbers."""

    def __init__(self):
        super().__init__()
        self.first, self.back = nn.Conv1d(1, 4, 3, padding=1), nn.ConvTranspose1d(4, 2, 2, stride=2)
        self.group, self.batch, self.layer = nn.GroupNorm(2, 4), nn.BatchNorm1d(4), nn.LayerNorm(4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        hidden = self.batch(self.group(self.first(x[:, None])))
        hidden = nn.functional.avg_pool1d(nn.functional.softplus(hidden), 2)
        rows = self.layer(self.back(hidden))
        return self.attention(rows, rows, rows)[0].flatten(1)


DERIVATIVES = [
    adversarial, straight_through, several, frozen_scale, first_alone, within_others, written,
    penalty, second_order, adversarial_rows, of_parameters,
]  # fmt: skip


def derivatives():
    parts = {
        loss.__name__: Part(loss, scale=nn.Parameter(torch.linspace(0.5, 1.5, 4)), fixed=torch.linspace(0.5, 1.5, 4))
        for loss in DERIVATIVES
    }
    parts["through_layers"] = Part(through_layers, layers=Attending())
    return parts, lambda: {"x": torch.randn(6, 4)}


@pytest.mark.parametrize("name", [*(loss.__name__ for loss in DERIVATIVES), "through_layers"])
def test_derivatives_of_the_users_code_are_those_of_torch(name):
    assert_part_alike(derivatives, name)


class Clamped(torch.autograd.Function):
    """A gradient that is clamped, which is not linear in it."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-0.02, 0.02)


def clamped(model, x):
    return Clamped.apply(model(x).tanh()).square().mean()


def averaged_over_ranks(model, batches):
    """What DDP makes of a model: each rank has the gradients of its own rows, and all apply their mean."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in batches:
        optimizer.zero_grad()
        for rows in x.chunk(2):
            clamped(model, rows).backward()
        for param in model.parameters():
            param.grad /= 2
        optimizer.step()
    return {name: param.detach().numpy() for name, param in model.named_parameters()}


@pytest.mark.parametrize("job", [{"pservers": 2}, {"mode": "ddp"}], ids=["servers", "ddp"])
def test_gradients_are_averaged_after_a_backward_that_is_not_linear(job):
    model = nn.Linear(4, 3).double()
    batches = [(torch.randn(8, 4, dtype=torch.float64),) for _ in range(3)]
    training = pt.trace(model, batches[0], loss=clamped, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    compiled = ps.compile(training.module, ps.Job(trainers=2, **job))
    done = ps.simulate(compiled, [training.feeds(batch) for batch in batches], fetch=[training.loss])
    made = whole_values(done.cluster, compiled)
    for name, value in averaged_over_ranks(model, batches).items():
        assert abs(made[name].reshape(value.shape) - value).max() < 1e-9, name
