"""Steps with complex numbers and Fourier transforms are trained as by torch; a program has their parts."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch import nn  # noqa: E402

import pstranspile as ps  # noqa: E402
import pstranspile.torch as pt  # noqa: E402
from pstranspile.ir.diagnostics import DiagnosticError  # noqa: E402
from tests.frontends.torch.beside import assert_part_alike, trained  # noqa: E402

ROWS, STEPS, WIDTH = 4, 6, 8


class Waves(nn.Module):
    reads = ("x",)

    def __init__(self, use):
        super().__init__()
        self.use = use
        self.first = nn.Linear(WIDTH, WIDTH)
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.3)
        angles = torch.arange(STEPS, dtype=torch.float64)[:, None] * torch.arange(WIDTH // 2, dtype=torch.float64)
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def forward(self, x):
        return self.use(self, self.first(x))


def mixed(model, x):
    return (torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real * model.weight[:STEPS]).square().mean()


def filtered(model, x):
    """A filter of parameters in half of the frequencies, of an even and of an odd number of steps."""
    spectrum = torch.fft.rfft(x, dim=1, norm="ortho")
    kept = torch.fft.irfft(spectrum * torch.complex(model.weight[:4], model.weight[1:5]), n=STEPS, dim=1, norm="ortho")
    odd = torch.fft.rfft(x[:, 1:], dim=1)
    weight = torch.view_as_complex(torch.stack([model.weight[:3], model.weight[1:4]], -1))
    return (kept**2).mean() + (torch.fft.irfft(odd * weight, n=STEPS - 1, dim=1) ** 3).mean()


def turned(model, x):
    """Pairs of elements turned by angles that a buffer of complex numbers holds."""
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return (torch.view_as_real(pairs * model.turns).flatten(2) * model.weight[:STEPS]).pow(2).mean()


def of_images(model, x):
    spectrum = torch.fft.rfft2(x)
    squares = torch.fft.irfft2(spectrum * spectrum.conj()) * model.weight[:STEPS]
    centred = torch.fft.fftshift(torch.fft.fftn(x, dim=(1, 2)), dim=(1, 2))
    return squares.mean() + centred.imag.pow(2).mean() + torch.fft.ifft2(centred).abs().mean()


def modes(model, x):
    """A product of some frequencies with a matrix, and zeros in the others."""
    spectrum = torch.fft.rfft(x, dim=2)
    kept = torch.zeros(spectrum.shape, dtype=spectrum.dtype)
    weight = torch.complex(model.weight[:STEPS, :STEPS], model.weight.T[:STEPS, :STEPS])
    kept[:, :, :3] = torch.einsum("bix,io->box", spectrum[:, :, :3], weight)
    return (torch.fft.irfft(kept, n=WIDTH, dim=2) * x).mean()


def correlated(_model, x):
    query, key = (torch.fft.rfft(one.permute(0, 2, 1), dim=-1) for one in (x, x**2))
    found = torch.fft.irfft(query * torch.conj(key), dim=-1).mean(1)
    most = torch.topk(found, 2, dim=-1)[0]
    return (most.softmax(-1) * most).mean()


def windows(_model, x):
    made = torch.stft(x.flatten(1), 8, 4, window=torch.linspace(0, 1, 8, dtype=x.dtype), return_complex=True)
    return made.abs().pow(2).mean() + made.real.mean()


def arithmetic(model, x):
    z = torch.complex(x, x.flip(1) + 1)
    made = [(1j * z).real, (z / (z + 3)).real, (2 - z).abs(), torch.exp(1j * x).imag, (z**3).real, (1 / z).imag]
    made += [z.angle() * x, torch.cat([z, z.conj()]).imag, torch.where(x > 0, z, z * 2).abs(), z.sum(1).abs()]
    made += [(z @ model.weight.to(z.dtype)).real, torch.linalg.vector_norm(z, dim=2), z.masked_fill(x > 0, 0.5).real]
    return torch.stack([one.mean() for one in made]).sum()


USES = [mixed, filtered, turned, of_images, modes, correlated, windows, arithmetic]


def family():
    return {use.__name__: Waves(use) for use in USES}, lambda: {"x": torch.randn(ROWS, STEPS, WIDTH)}


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_trained_as_by_torch(use):
    assert_part_alike(family, use.__name__)


def test_in_single_precision_and_in_a_cluster():
    made = trained(Waves(filtered), lambda: (torch.randn(ROWS, STEPS, WIDTH),), count=2, double=False)
    assert made.losses_apart() < 1e-5
    assert made.apart() < 1e-5
    ps.compile(made.training.module, ps.Job(pservers=2, trainers=2))
    assert pt.check_training(made.training, trainers=2).equal


def test_without_a_rule_it_is_refused_at_its_line():
    with pytest.raises(DiagnosticError, match=r"test_complex_numbers.py:\d+:\d+: error.*acosh.*complex numbers"):
        trained(Waves(lambda _, x: torch.acosh(torch.complex(x, x)).abs().mean()), lambda: (torch.randn(4, 6, 8),))
