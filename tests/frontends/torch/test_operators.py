"""Each operator beside torch's own run: the weights before and after it end where torch's do, in double precision."""

import pytest

from tests.frontends.torch.beside import ROWS, assert_part_alike

torch = pytest.importorskip("torch", reason="torch is not installed")
functional = torch.nn.functional


def _set(a):
    b = a.clone()
    b[:, 0] = 0
    b[:, 2:4] = b[:, 2:4] * 2
    return b


def _put(a):
    b = a.clone()
    b[torch.arange(3), torch.tensor([0, 1, 2])] = 5.0
    b[a > 1] = 0.5
    b[torch.tensor([1, -1])] = a[:2] * 3
    return b


def _again(a):
    return torch.arange(a.shape[0]) // 2


def _accumulated(a):
    places = torch.tensor([0, 1, 0, 2])
    return torch.zeros_like(a).index_put((places,), a[:4], accumulate=True) + a.index_add(1, places, a[:, :4])


def _places(a):
    """Places among the columns or the first rows, some of them several times."""
    return (torch.arange(6) // 2 + (a.detach() > 0)).clamp(max=4)


def _diagonals(a):
    square = (a.T @ a) / 10
    square.diagonal().add_(-1).pow_(2)
    square.diagonal(2).mul_(3.0)
    square.diagonal(-1).zero_()
    cubes = a.view(-1, 2, 3).diagonal(1, -2, 2).sum(-1, keepdim=True) * a[:, :5].T.diagonal(-1)[0]
    return a @ square + a * a[:3].diagonal_scatter(a[3, :3], 3)[0] + cubes


def _whole(a):
    """Whole numbers from -9 to 9."""
    return (a.detach() * 5).round().clamp(-9, 9).long()


FUNCTIONS = {
    "abs": torch.abs,
    "atan2": lambda a: torch.atan2(a, a.flip(1)) + torch.atan2(a, torch.zeros(())) + torch.atan2(-a, a - a - 1.0),
    "digamma": lambda a: torch.digamma(a.abs() * 3 + 0.5) * 0.1 + torch.digamma(a.tanh() * 0.2 - 1.5) * 0.1,
    "hardsigmoid": functional.hardsigmoid,
    "fmax": lambda a: torch.fmax(a, a.flip(1)) + torch.fmin(a, torch.full_like(a, torch.nan)),
    "fmod_whole": lambda a: torch.fmod(a, 0.3) + torch.fmod(_whole(a), 4) * a,
    "floor_divide": lambda a: (
        (_whole(a) // 4 + a.detach() // 0.3 + torch.div(_whole(a), -3, rounding_mode="floor")) * a
    ),
    "ldexp": lambda a: torch.ldexp(a, torch.tensor([1, 5, 2, 0, 3, 2])),
    "lgamma": lambda a: (
        torch.lgamma(a.abs() * 3 + 0.5) + torch.lgamma(a.abs() + 20.0) + torch.lgamma(a.tanh() * 0.2 - 1.5)
    ),
    "remainder_whole": lambda a: (_whole(a) % 4 + _whole(a) % -4 + a % 0.3) * a,
    "round_decimals": lambda a: a.round(decimals=2) * a + a.mul(100).round(decimals=-1) * a,
    "shift": lambda a: ((_whole(a) << 2) + (_whole(a) >> 1)) * a,
    "trunc_divide": lambda a: (
        torch.div(_whole(a), 4, rounding_mode="trunc") * a + torch.div(a, 3, rounding_mode="trunc")
    ),
    "acosh": lambda a: torch.acosh(a.abs() + 1.5),
    "asinh": torch.asinh,
    "atanh": lambda a: torch.atanh(a.tanh() * 0.9),
    "copysign": lambda a: torch.copysign(a, a.flip(1)),
    "clamp": lambda a: a.clamp(-0.5, 0.3),
    "clamp_min": lambda a: a.clamp(min=0.1),
    "clamp_tensor": lambda a: a.clamp(max=a.mean()),
    "celu": lambda a: functional.celu(a, 0.7),
    "cos": torch.cos,
    "cosh": lambda a: torch.cosh(a * 0.3),
    "div": lambda a: a / 3,
    "elu": lambda a: functional.elu(a, 0.6),
    "erf": torch.erf,
    "erfc": torch.erfc,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "fmod": lambda a: torch.fmod(a, 0.7) + torch.fmod(a, a.detach() + 3),
    "gelu": functional.gelu,
    "gelu_tanh": lambda a: functional.gelu(a, approximate="tanh"),
    "hardswish": functional.hardswish,
    "hardtanh": functional.hardtanh,
    "hypot": lambda a: torch.hypot(a, a + 1),
    "leaky_relu": functional.leaky_relu,
    "leaky_relu_of_a_falling_line": lambda a: functional.leaky_relu(a, -0.2),
    "leaky_relu_of_a_steeper_line": lambda a: functional.leaky_relu(a, 1.7),
    "large_factor_of_small_numbers": lambda a: a * ((a * 8).to(torch.int32) * 1103515245 % 97),
    "log": lambda a: torch.log(a.abs() + 1),
    "log10": lambda a: torch.log10(a.abs() + 1),
    "log1p": lambda a: torch.log1p(a.abs()),
    "logsigmoid": functional.logsigmoid,
    "mish": functional.mish,
    "pow": lambda a: a**3 + (a.abs() + 1) ** 1.5 + 2**a,
    "reciprocal": lambda a: 1 / (a.abs() + 1),
    "relu6": functional.relu6,
    "remainder": lambda a: a % 0.7 + torch.remainder(a, a * a + 1),
    "rsqrt": lambda a: (a * a + 1).rsqrt(),
    "rsub": lambda a: 1 - a,
    "selu": functional.selu,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "sin": torch.sin,
    "sinh": lambda a: torch.sinh(a * 0.3),
    "soft_labels": lambda a: functional.binary_cross_entropy_with_logits(a, torch.sigmoid(a.flip(1)), reduction="none"),
    "softplus": lambda a: functional.softplus(a, 2, 1),
    "sqrt": lambda a: (a * a + 1).sqrt(),
    "square": torch.square,
    "tan": lambda a: torch.tan(a * 0.3),
    "tanh": torch.tanh,
    "trunc": lambda a: a * torch.trunc(a * 3) + a * torch.div(a * 3, 0.7, rounding_mode="trunc") + torch.frac(a),
}
REDUCTIONS = {
    "amin": lambda a: a.amin(1, keepdim=True) + a,
    "any": lambda a: a * (a > 0).any(1, keepdim=True),
    "argmax_of_all": lambda a: a * (a.argmax() % 3),
    "cdist": lambda a: torch.cdist(a, a.flip(0)).mean(1, keepdim=True) * a + torch.cdist(a, a, p=1.0) @ a,
    "cosine": lambda a: functional.cosine_similarity(a, a.flip(1), dim=1)[:, None] * a,
    "cumsum": lambda a: a.cumsum(1),
    "distances": lambda a: torch.cdist(a, a) @ a + torch.cdist(a, a[:3], p=1.0).mean(1, keepdim=True),
    "kth": lambda a: a.kthvalue(2, 1).values[:, None] * a + a.kthvalue(3, 1, keepdim=True)[0],
    "logcumsumexp": lambda a: a.logcumsumexp(0) + a.logcumsumexp(1),
    "median": lambda a: a * a.median() + a.median(1, keepdim=True).values,
    "norm_of_zeros": lambda a: functional.normalize(a * (torch.arange(a.shape[0]) > 3)[:, None], dim=1) + a,
    "log_softmax": lambda a: a.log_softmax(0),
    "logsumexp": lambda a: torch.logsumexp(a, 1, keepdim=True) + a,
    "max_dim": lambda a: a.max(1, keepdim=True)[0] + a,
    "median_of_rows": lambda a: a.median(1, keepdim=True)[0] * a + a.kthvalue(2, 1, keepdim=True)[0],
    "mean": lambda a: a - a.mean(0),
    "min_dim": lambda a: a.min(dim=1).values[:, None] * a,
    "norm_least": lambda a: (
        a * torch.linalg.vector_norm(a, -torch.inf, 1, True) + torch.linalg.vector_norm(a, 0, 1, True)
    ),
    "norm": lambda a: a / a.norm(dim=1, keepdim=True) + functional.normalize(a, p=1.0),
    "prod": lambda a: a.prod(1, keepdim=True) + a,
    "softmax": lambda a: a.softmax(0) + a.softmax(-1),
    "softmax_type": lambda a: (
        a * a.float().softmax(-1, dtype=a.dtype) + a.int().softmax(0, dtype=a.dtype) * a.log_softmax(0, dtype=a.dtype)
    ),
    "sort": lambda a: a.sort(1)[0] + a.sort(1, descending=True).values * a,
    "std": lambda a: a - a.std(0),
    "sum": lambda a: a / a.sum(),
    "topk": lambda a: a.topk(3, 1)[0].sum(1, keepdim=True) + a,
    "var": lambda a: a.var(1, unbiased=False)[:, None] * a + a.var(1, keepdim=True),
}
DIMS = {
    "addbmm": lambda a: a + torch.addbmm(torch.eye(6, dtype=a.dtype), a[:, :, None], a[:, None, :], alpha=0.1)[:1],
    "addmv": lambda a: a * torch.addmv(a[:, 0], a, a[0], beta=0.5)[:, None],
    "bilinear": lambda a: functional.bilinear(
        a[:, :2], a[:, 2:], torch.linspace(-1, 1, 48, dtype=a.dtype).view(6, 2, 4)
    ),
    "cdist": lambda a: torch.cdist(a, a[:3] + 1, p=3.0).repeat(1, 2) + torch.dist(a, a.flip(1), 3),
    "cummax": lambda a: a.cummax(1).values + a.round().cummin(1).values * a + a.cummax(1).indices * a,
    "cumprod": lambda a: a.cumprod(1) + a.relu().cumprod(1),
    "diff_again": lambda a: functional.pad(a.diff(n=2, dim=1), (0, 2)) + a.diff(dim=1, prepend=a[:, :1] * 2),
    "grid_sample": lambda a: functional.grid_sample(
        a.view(-1, 1, 2, 3), a.tanh().view(-1, 1, 3, 2).expand(-1, 2, -1, -1), align_corners=False
    ).view(-1, 6),
    "masked_scatter": lambda a: a.masked_scatter(a > 0, a.flip(1) * 2),
    "arange": lambda a: a * torch.arange(6),
    "bits": lambda a: a * ((torch.arange(6) & 3) | 4).to(a.dtype),
    "bmm": lambda a: torch.bmm(a[:, None, :], a[:, :, None])[:, 0] * a,
    "chunk": lambda a: torch.cat(a.chunk(2, 1)[::-1], 1),
    "detach": lambda a: a * a.detach(),
    "diagonal": lambda a: (a @ a.T).diagonal()[:, None] * a,
    "diagonals": _diagonals,
    "diff": lambda a: functional.pad(a.diff(dim=1), (0, 1)),
    "einsum": lambda a: torch.einsum("bi,bj->bij", a, a).mean(2) + torch.einsum("bi,bi->b", a, a)[:, None],
    "eye": lambda a: a @ torch.eye(6, dtype=a.dtype),
    "flip": lambda a: a.flip(1) * a,
    "full": lambda a: a + torch.full((a.shape[0], 1), 0.5),
    "in_place": lambda a: (a * 2).add_(1).mul_(0.5).relu_(),
    "interleave_all": lambda a: a.repeat_interleave(3).view(3, -1, 6).sum(0) * a,
    "interleave": lambda a: a.repeat_interleave(2, dim=1)[:, 3:9],
    "lerp": lambda a: torch.lerp(a, a * a, 0.3) + torch.addcmul(a, a, a, value=0.5),
    "outer": lambda a: (a @ a.t()).softmax(-1) @ a,
    "pad_batches": lambda a: torch.cat(
        [
            functional.pad(a.view(-1, 1, 1, 2, 3), (1, 1, 1, 0, 0, 0), mode).sum((1, 2, 3))
            for mode in ("reflect", "replicate", "circular")
        ],
        1,
    )[:, 4:10],
    "pad": lambda a: functional.pad(a, (-1, 2)).narrow(1, 0, 6),
    "permute": lambda a: a[:, None].expand(-1, 3, -1).permute(2, 0, 1).sum(2).T,
    "repeat": lambda a: a.repeat(1, 2)[:, :6] * a,
    "roll": lambda a: torch.roll(a, 2, 1) * a,
    "size_as_number": lambda a: a * torch.tensor(float(a.shape[0])).log(),
    "size": lambda a: a * a.shape[0] / a.size(0) + a.numel(),
    "slice": lambda a: a[:, 1:5:2].sum(1, keepdim=True) + a[:, -3:].repeat(1, 2),
    "split": lambda a: torch.cat([p * i for i, p in enumerate(a.split([1, 2, 3], 1), 1)], 1),
    "stack": lambda a: torch.stack([a, a * 2]).sum(0),
    "tril": lambda a: (a[:, :, None] * a[:, None, :]).tril(1).sum(2),
    "unfold": lambda a: (
        a.unfold(1, 3, 1).sum(2).repeat(1, 2)[:, :6] + a.view(-1, 2, 3).unfold(1, 2, 1).sum((1, 3)).repeat(1, 2)
    ),
    "unbind": lambda a: torch.stack([p * 2 for p in a.unbind(1)], 1),
    "view": lambda a: a.view(-1).view(a.shape[0], 2, 3).flatten(1),
}


def _of_three(function):
    """A function of three columns, as one of six."""
    return lambda a: torch.cat([function(a[:, :3]), a[:, 3:]], 1)


def _squares(a):
    """Symmetric matrices with positive eigenvalues, one for each row, and one without symmetry."""
    of_rows = torch.einsum("ri,rj->rij", a, a) * 0.3 + torch.eye(3, dtype=a.dtype)
    return of_rows, torch.roll(a.T @ a, 1, 0) + a[0].diag()


def _triangles(a):
    rows, one = _squares(a)
    made = torch.linalg.solve_triangular(rows, a[:, :, None], upper=False)[..., 0]
    return made + torch.linalg.solve_triangular(one, a, upper=True, left=False, unitriangular=True) * 0.01


def _density(a):
    rows = torch.distributions.MultivariateNormal(a, _squares(a)[0], validate_args=False)
    return a * rows.log_prob(a.flip(1))[:, None]


def _logs(a):
    rows, one = _squares(a)
    return a * torch.logdet(rows)[:, None] + torch.stack(torch.slogdet(one))[1]


MATRICES = {
    "cholesky": lambda a: torch.linalg.cholesky(_squares(a)[0]).sum(1),
    "density": _density,
    "determinant": lambda a: torch.linalg.det(_squares(a)[0])[:, None] * a.tanh() + _squares(a)[1].div(9).det(),
    "inverse": lambda a: torch.linalg.inv(_squares(a)[1])[0] + torch.inverse(_squares(a)[0])[:, :, 1],
    "log_determinant": _logs,
    "solution": lambda a: torch.linalg.solve(_squares(a)[1], a.T).T + torch.linalg.solve(_squares(a)[1], a, left=False),
    "solution_of_rows": lambda a: torch.linalg.solve(_squares(a)[0], a),
    "triangles": _triangles,
}
MATRICES = {name: _of_three(function) for name, function in MATRICES.items()}


def _line_set(a):
    line = a.mean(0) * 2
    line[-1] = a.sum()
    line[0] = 3.0
    return line


def _set_from_the_end(a):
    b = a * 2
    b[:, -2:] = 0.5
    b[:, -9:-5] = a[:, :1]
    b[-3:-1] = b[-3:-1] * 3
    return b


INDICES = {
    "accumulate": _accumulated,
    "bucketize": lambda a: a * torch.bucketize(a.detach(), torch.tensor([-0.5, 0.0, 0.5], dtype=a.dtype)),
    "drawn": lambda a: a + 0 * (torch.randn_like(a) + torch.rand(a.shape[0], 6) + torch.bernoulli(a.sigmoid())),
    "gather": lambda a: a.gather(1, (a > 0).long()) * a[:, :1] + a,
    "index": lambda a: a[:, [2, 0, 1, 5, 4, -3]],
    "index_again": lambda a: a[:, [0, 0, 1, 5, 5, 5]] * a,
    "index_behind": lambda a: (
        torch.zeros_like(a).index_copy(1, torch.tensor([2, 0]), a[:, :2]) + a.index_fill(1, torch.tensor([1]), 0.5)
    ),
    "index_twice": lambda a: a[:, [2, 0, 0, 5, 5, 5]] + a[_again(a)] + a.index_select(0, _again(a)),
    "index_between": lambda a: a.view(-1, 2, 3)[:, [0, 1, 1], [2, 0, 1]].repeat(1, 2),
    "index_put": _put,
    "index_rows": lambda a: a[torch.arange(a.shape[0]), a.argmax(1)][:, None] * a,
    "isnan": lambda a: torch.where(torch.isnan(a / a) | torch.isinf(a), 0.0, a),
    "logical": lambda a: a * ((a > 0) & (a < 1) | ~(a > -1)).to(a.dtype),
    "mask": lambda a: a[a[:, 0] > 0].sum(0) + a,
    "mask_of_all": lambda a: a + a.masked_select(a > 0).mean(),
    "mask_of_two": lambda a: ((a > 0)[:, None] & (torch.arange(6)[:, None] >= torch.arange(6))).to(a.dtype).sum(1) * a,
    "mask_columns": lambda a: a[:, torch.tensor([True, False] * 3)].repeat(1, 2),
    "masked_fill": lambda a: a.masked_fill(a < 0, -1.0),
    "maximum": lambda a: torch.maximum(a, a.flip(1)),
    "nonzero": lambda a: a + a[torch.cat([(a[:, 0] > 0).nonzero().squeeze(1), _again(a)])].sum(0) * 0.1,
    "one_hot": lambda a: functional.one_hot(a.argmax(1), 6) * a,
    "scatter": lambda a: torch.zeros_like(a).scatter(1, (a > 0).long(), 1.0) * a,
    "scatter_reduce": lambda a: torch.zeros_like(a).scatter_reduce(1, (a > 0).long(), a, "sum") + a,
    "scatter_extremes": lambda a: sum(
        torch.zeros_like(a).scatter_reduce(dim, _places(a), a.round(decimals=1) + a, how, include_self=own) * a
        for dim, how, own in ((0, "amax", False), (1, "amin", True), (1, "amax", True), (0, "amin", False))
    ),
    "scatter_means": lambda a: sum(
        a.flip(1).scatter_reduce(1, _places(a)[:, :5], a[:, :5], how, include_self=own)
        for how, own in (("mean", False), ("mean", True), ("sum", False))
    ),
    "scatter_products": lambda a: sum(
        a.flip(1).scatter_reduce(dim, _places(a)[:, :5], a[:, :5].relu() + a[:, :5], "prod", include_self=own)
        for dim, own in ((1, False), (1, True), (0, True))
    ),
    "searchsorted": lambda a: a * torch.searchsorted(a.detach().sort(1)[0], a.detach(), right=True),
    "scatter_add": lambda a: torch.zeros_like(a).scatter_add(1, (a > 0).long(), a) + a,
    "set_item": _set,
    "set_from_the_end": _set_from_the_end,
    "outer_of_places": lambda a: a * torch.einsum("i,j->ij", torch.arange(4), a[0, :3]).sum(),
    "set_one": lambda a: a * torch.select_scatter(torch.arange(6, dtype=a.dtype), a[0, 0], 0, 2) + _line_set(a),
    "where": lambda a: torch.where(a > 0, a, a * 0.1),
}


class Function(torch.nn.Module):
    reads = ("x",)

    def __init__(self, function):
        super().__init__()
        self.before, self.after, self.function = torch.nn.Linear(6, 6), torch.nn.Linear(6, 1), function

    def forward(self, x):
        return self.after(self.function(self.before(x))).mean()


def family_of(functions):
    def family():
        parts = {name: Function(function) for name, function in functions.items()}
        return parts, lambda: {"x": torch.randn(ROWS, 6)}

    return family


FAMILIES = [family_of(functions) for functions in (FUNCTIONS, REDUCTIONS, DIMS, MATRICES, INDICES)]
CASES = [
    pytest.param(family, name, id=name)
    for family, functions in zip(FAMILIES, (FUNCTIONS, REDUCTIONS, DIMS, MATRICES, INDICES), strict=True)
    for name in functions
]


@pytest.mark.parametrize(("family", "name"), CASES)
def test_operator_beside_torch(family, name):
    assert_part_alike(family, name)
