"""Operators in terms of others, where no reader takes them and PyTorch's own decompositions leave them as they are.

Each function is written with PyTorch's tensors. Its gradient is that of what it is made of; where an operator has a
rule of its own (which of equal elements gets the gradient, for instance), the definition follows that rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias, TypeVar

Definition: TypeAlias = "Callable[..., Any]"
"""A function with the arguments of an operator."""


class Defined(NamedTuple):
    """The definition of an operator, and which nodes need it: None for all."""

    function: Definition
    needed: Callable[[Any], bool] | None = None


DEFINITIONS: dict[str, Defined] = {}
"""The definitions by operator with its overload, such as `atan2.default`."""

_F = TypeVar("_F", bound=Definition)


def defines(*operators: str, needed: Callable[[Any], bool] | None = None) -> Callable[[_F], _F]:
    """Registers a function as the definition of operators, of all nodes or of those for which `needed` is true."""

    def register(function: _F) -> _F:
        for name in operators:
            DEFINITIONS[name] = Defined(function, needed)
        return function

    return register


def _torch() -> Any:
    """The package torch, which is there where a graph of its operators is."""
    return import_module("torch")


def _argument(node: Any, at: int, name: str, default: Any = None) -> Any:
    return node.args[at] if len(node.args) > at else node.kwargs.get(name, default)


# Functions of one or two values.


@defines("atan2.default")
def _atan2(y: Any, x: Any) -> Any:
    """The angle of the point (x, y), by the arc tangent of the ratio whose size is at most 1."""
    torch = _torch()
    y, x = torch.broadcast_tensors(y, x)
    flat = x.abs() >= y.abs()
    none = (x == 0) & (y == 0)
    below = torch.where(flat & ~none, x, torch.ones_like(x))
    beside = torch.where(flat, torch.ones_like(y), y)
    turn = torch.where(x < 0, torch.copysign(torch.full_like(x, math.pi), y), torch.zeros_like(x))
    quarter = torch.copysign(torch.full_like(y, math.pi / 2), y)
    first = torch.atan(torch.where(flat & ~none, y, torch.zeros_like(y)) / below) + turn
    second = quarter - torch.atan(torch.where(flat, torch.zeros_like(x), x) / beside)
    return torch.where(flat, first, second)


@defines("sinc.default", "special_sinc.default")
def _sinc(x: Any) -> Any:
    """sin(pi x) / (pi x); 1 at 0, where the gradient is 0."""
    torch = _torch()
    none = x == 0
    angle = torch.where(none, torch.ones_like(x), x * math.pi)
    return torch.where(none, torch.ones_like(x), torch.sin(angle) / angle)


@defines("xlogy.Tensor", "special_xlogy.default")
def _xlogy(x: Any, y: Any) -> Any:
    """x log(y); 0 where x is 0 and y a number. Where y has no logarithm, the gradient by x is 0 there.

    The gradient by y is x / y, which at (0, 0) is NaN: that of the root of 0, which is infinite, times 0.
    """
    torch = _torch()
    x, y = torch.broadcast_tensors(x, y)
    ones, zeros = torch.ones_like(y), torch.zeros_like(y)
    none, endless = (x == 0) & (y <= 0), (x == 0) & (y == math.inf)
    origin = (x == 0) & (y == 0)
    made = x * torch.log(torch.where(none | endless, ones, y))
    root = torch.sqrt(torch.where(origin, y, ones))
    return made + torch.where(origin, x, zeros) * torch.where(origin, root, zeros)


@defines("xlogy.Scalar_Other")
def _xlogy_of_number(x: Any, y: float) -> Any:
    return _xlogy(x, _torch().full_like(x, y))


@defines("special_xlog1py.default")
def _xlog1py(x: Any, y: Any) -> Any:
    return _xlogy(x, y + 1)


def _of_numbers(x: Any, y: Any, before: Any) -> Any:
    """`x` where it comes `before` y or y is NaN, else y: the one that is a number, if one is none."""
    torch = _torch()
    x, y = torch.broadcast_tensors(x, y)
    return torch.where(before | (y != y), x, y)


@defines("fmax.default")
def _larger(x: Any, y: Any) -> Any:
    return _of_numbers(x, y, x >= y)


@defines("fmin.default")
def _smaller(x: Any, y: Any) -> Any:
    return _of_numbers(x, y, x <= y)


@defines("ldexp.Tensor")
def _ldexp(x: Any, exponent: Any) -> Any:
    return x * _torch().exp2(exponent.to(x.dtype))


@defines("hardsigmoid.default", needed=lambda node: "float64" in str(node.meta["val"].dtype))
def _hardsigmoid(x: Any) -> Any:
    """(x + 3) / 6 between 0 and 1; its gradient is a sixth in single precision, also for numbers in double."""
    torch = _torch()
    made = (x + 3).clamp(0, 6) / 6
    inside = torch.where((x > -3) & (x < 3), x, torch.zeros_like(x)) * _SIXTH
    return (made - inside).detach() + inside


_SIXTH = float.fromhex("0x1.555556p-3")
"""A sixth in single precision."""


@defines("angle.default")
def _angle(x: Any) -> Any:
    """Pi for numbers below 0, else 0; NaN stays NaN."""
    torch = _torch()
    made = torch.where(x < 0, torch.full_like(x, math.pi), torch.zeros_like(x))
    return torch.where(x != x, x, made).detach()


@defines("lgamma.default")
def _lgamma(x: Any) -> Any:
    """Stirling's series from 8 on (Abramowitz and Stegun, 6.1.41), shifted there by x (x + 1) ... (x + 7), and below
    1/2 Euler's reflection (6.1.17).
    """
    torch = _torch()
    low = x < 0.5
    up = torch.where(low, 1 - x, x)
    product = up
    for step in range(1, _SHIFT):
        product = product * (up + step)
    far = up + _SHIFT
    inverse = 1 / far
    series = torch.zeros_like(x)
    for factor in reversed(_STIRLING):
        series = series * inverse * inverse + factor
    large = (far - 0.5) * torch.log(far) - far + 0.5 * math.log(2 * math.pi) + series * inverse
    above = large - torch.log(product)
    sine = torch.where(low, torch.sin(math.pi * torch.where(low, x - torch.floor(x), torch.zeros_like(x))), 1 + 0 * x)
    return torch.where(low, math.log(math.pi) - torch.log(sine.abs()) - above, above)


_SHIFT = 8
"""The steps by which an argument grows before a series is used."""

_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400)
"""The coefficients of Stirling's series: B(2k) / (2k (2k - 1))."""

_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
"""The Bernoulli numbers B(2k) from B(2) on."""


@defines("digamma.default")
def _digamma(x: Any) -> Any:
    """The derivative of `_lgamma`, by the series 6.3.18 of Abramowitz and Stegun and the reflection 6.3.7."""
    torch = _torch()
    low = x < 0.5
    up = torch.where(low, 1 - x, x)
    passed = 1 / up
    for step in range(1, _SHIFT):
        passed = passed + 1 / (up + step)
    far = up + _SHIFT
    inverse = 1 / (far * far)
    series = torch.zeros_like(x)
    for at, number in reversed([*enumerate(_BERNOULLI, 1)]):
        series = (series + number / (2 * at)) * inverse
    above = torch.log(far) - 0.5 / far - series - passed
    angle = math.pi * torch.where(low, x - torch.floor(x), torch.full_like(x, 0.25))
    return torch.where(low, above - math.pi / torch.tan(angle), above)


@defines("polygamma.default", needed=lambda node: node.args[0] == 0)
def _polygamma(_order: int, x: Any) -> Any:
    """The one of order 0."""
    return _digamma(x)


@defines("round.default", needed=lambda node: node.args[0].meta["val"].is_floating_point())
def _round(x: Any) -> Any:
    """Rounded to the nearest whole number, of two as near to the even one; the op rounds those away from 0."""
    torch = _torch()
    whole = torch.floor(x)
    left, half = x - whole, whole * 0.5
    return torch.where((left > 0.5) | ((left == 0.5) & (half != torch.floor(half))), whole + 1, whole)


@defines("round.decimals")
def _round_decimals(x: Any, *, decimals: int) -> Any:
    """Rounded to decimal places; with fewer than 0, to tens and hundreds."""
    factor = 10.0 ** abs(decimals)
    return _round(x * factor) / factor if decimals >= 0 else _round(x / factor) * factor


# Along an axis.


def _prefix_scan(x: Any, axis: int, combine: Callable[[Any, Any], Any]) -> Any:
    """`combine` of the elements up to each one along an axis, by doubling (Hillis and Steele, 1986)."""
    torch, size, width = _torch(), x.shape[axis], 1
    while width < size:
        head, tail = x.narrow(axis, 0, width), x.narrow(axis, width, size - width)
        x = torch.cat([head, combine(x.narrow(axis, 0, size - width), tail)], axis)
        width *= 2
    return x


@defines("cumprod.default")
def _cumprod(x: Any, dim: int, *, dtype: Any = None) -> Any:
    x = x if dtype is None else x.to(dtype)
    return _prefix_scan(x, dim, lambda before, here: before * here) if x.dim() else x


def _extreme(x: Any, dim: int, replaces: Callable[[Any, Any], Any]) -> Any:
    """The extreme element up to each one, and its place: the last of equal ones, which gets the gradient."""
    torch = _torch()
    if not x.dim():
        return x * 1, torch.zeros_like(x, dtype=torch.int64)
    size, fixed = x.shape[dim], x.detach()
    shape = [1] * x.dim()
    shape[dim] = size
    places = torch.arange(size, device=x.device).reshape(shape).expand(x.shape)
    width = 1
    while width < size:
        before, old = fixed.narrow(dim, 0, size - width), places.narrow(dim, 0, size - width)
        here, new = fixed.narrow(dim, width, size - width), places.narrow(dim, width, size - width)
        taken = replaces(here, before)
        fixed = torch.cat([fixed.narrow(dim, 0, width), torch.where(taken, here, before)], dim)
        places = torch.cat([places.narrow(dim, 0, width), torch.where(taken, new, old)], dim)
        width *= 2
    return x.gather(dim, places), places


@defines("cummax.default")
def _cummax(x: Any, dim: int) -> Any:
    return _extreme(x, dim, lambda here, before: here >= before)


@defines("cummin.default")
def _cummin(x: Any, dim: int) -> Any:
    return _extreme(x, dim, lambda here, before: here <= before)


@defines("diff.default")
def _diff(x: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    given = [part for part in (prepend, x, append) if part is not None]
    x = _torch().cat(given, dim) if len(given) > 1 else x
    for _ in range(n):
        size = x.shape[dim]
        x = x.narrow(dim, 1, size - 1) - x.narrow(dim, 0, size - 1)
    return x


@defines("masked_scatter.default")
def _masked_scatter(x: Any, mask: Any, source: Any) -> Any:
    """Elements of `source` in order where the mask is true."""
    torch = _torch()
    mask, x = torch.broadcast_tensors(mask, x)
    places = (mask.reshape(-1).to(torch.int64).cumsum(0) - 1).clamp(min=0)
    return torch.where(mask, source.reshape(-1)[places].reshape(x.shape), x)


@defines("narrow_copy.default")
def _narrow_copy(x: Any, dim: int, start: int, length: int) -> Any:
    return x.narrow(dim, start, length)


# Products and distances.


@defines("addmv.default")
def _addmv(x: Any, matrix: Any, vector: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    return beta * x + alpha * (matrix * vector).sum(1)


@defines("addbmm.default")
def _addbmm(x: Any, first: Any, second: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    return beta * x + alpha * _torch().bmm(first, second).sum(0)


@defines("dist.default")
def _dist(x: Any, y: Any, p: float = 2) -> Any:
    return _torch().linalg.vector_norm(x - y, p)


@defines("cdist.default", "_cdist_forward.default", needed=lambda node: _argument(node, 2, "p", 2.0) not in (1, 2))
def _cdist(x: Any, y: Any, p: float = 2.0, _compute_mode: Any = None) -> Any:
    """Norms of the differences of rows. Of equal differences that are the largest, each has the whole gradient."""
    torch = _torch()
    apart = x.unsqueeze(-2) - y.unsqueeze(-3)
    if p != math.inf:
        return torch.linalg.vector_norm(apart, p, -1)
    sizes = apart.abs()
    largest = sizes.amax(-1, True).detach()
    rest = torch.where(sizes == largest, sizes - largest, torch.zeros_like(sizes))
    return largest.squeeze(-1) + rest.sum(-1)


@defines("_trilinear.default")
def _trilinear(
    a: Any,
    b: Any,
    c: Any,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    _unroll_dim: int = 1,
) -> Any:
    """The sum along axes of a product of three, each with dims of 1 inserted: what `nn.Bilinear` computes."""
    for axis in sorted(expand1):
        a = a.unsqueeze(axis)
    for axis in sorted(expand2):
        b = b.unsqueeze(axis)
    for axis in sorted(expand3):
        c = c.unsqueeze(axis)
    return (a * b * c).sum(list(sumdim))


def _margins(x: Any, target: Any, reduction: int = 1) -> tuple[Any, Any]:
    """The margins by which classes of each row are not above the others; its classes end at the first -1."""
    torch = _torch()
    rows, classes = (one if one.dim() > 1 else one.unsqueeze(0) for one in (x, target))
    width = rows.shape[1]
    ended = (classes < 0).to(torch.int64).cumsum(1) > 0
    held = torch.where(ended, torch.zeros_like(classes), classes)
    own = rows.gather(1, held)
    numbers = torch.arange(width, device=x.device)
    among = ((held.unsqueeze(2) == numbers) & ~ended.unsqueeze(2)).any(1)
    counted = ~ended.unsqueeze(2) & ~among.unsqueeze(1)
    apart = (1 - own.unsqueeze(2) + rows.unsqueeze(1)).relu()
    each = torch.where(counted, apart, torch.zeros_like(apart)).sum((1, 2)) / width
    made = each.mean() if reduction == 1 else each.sum() if reduction == 2 or x.dim() < 2 else each
    return made, among.to(x.dtype).reshape(x.shape)


@defines("multilabel_margin_loss_forward.default")
def _multilabel_margins(x: Any, target: Any, reduction: int) -> Any:
    return _margins(x, target, reduction)


@defines("multilabel_margin_loss.default")
def _multilabel_margin(x: Any, target: Any, reduction: int = 1) -> Any:
    return _margins(x, target, reduction)[0]


@defines("ctc_loss.Tensor")
def _ctc_loss(
    scores: Any,
    labels: Any,
    steps: Any,
    sizes: Any,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> Any:
    """The loss of label sequences without an alignment; infinite where there are too few steps for the labels, of
    which equal neighbours need one between them.
    """
    torch = _torch()
    labels = labels if labels.dim() == 2 or scores.dim() != 3 else _label_rows(labels, sizes)
    each = torch.ops.aten._ctc_loss.Tensor(scores, labels, steps, sizes, blank, True)[0]
    if not zero_infinity and labels.dim() == 2:
        places = torch.arange(1, labels.shape[1], device=labels.device)
        same = (labels[:, 1:] == labels[:, :-1]) & (places < sizes.unsqueeze(1))
        each = torch.where(steps < sizes + same.sum(1), torch.full_like(each, math.inf), each)
    if reduction == 1:
        return (each / sizes.clamp(min=1).to(each.dtype)).mean()
    return each.sum() if reduction == 2 else each


def _label_rows(labels: Any, sizes: Any) -> Any:
    """Labels that are one list as a matrix with a row for each sequence, as wide as the longest one."""
    torch = _torch()
    places = torch.ones_like(labels, dtype=torch.int64).cumsum(0) - 1
    wide = places[places < sizes.max()]
    starts = sizes.cumsum(0) - sizes
    return labels[torch.minimum(starts.unsqueeze(1) + wide.unsqueeze(0), places.max())]


# Attention.


@defines("_safe_softmax.default")
def _safe_softmax(x: Any, dim: int, dtype: Any = None) -> Any:
    """Softmax, with zeros for a row of which every element is -inf, and no gradient there."""
    torch = _torch()
    hidden = (x == -math.inf).all(dim, True)
    shares = torch.softmax(torch.where(hidden, torch.zeros_like(x), x), dim, dtype)
    return torch.where(hidden, torch.zeros_like(shares), shares)


# Norms.


@defines("instance_norm.default", needed=lambda node: node.args[3] is not None)
def _instance_norm(
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    _cudnn: bool,
) -> Any:
    """A norm of each image's channels, which keeps the means of the images' statistics; in evaluation by those."""
    axes = tuple(range(2, x.dim()))
    shape = [x.shape[1], *[1] * (x.dim() - 2)]
    if not use_input_stats:
        made = (x - mean.reshape(shape)) / _torch().sqrt(variance + eps).reshape(shape)
    else:
        here = x.mean(axes, True)
        spread = (x - here).square().mean(axes, True)
        made = (x - here) / _torch().sqrt(spread + eps)
        size = math.prod(x.shape[2:])
        share = max(momentum, 0.0)  # no momentum is none here: nothing is kept
        for kept, new, factor in ((mean, here, 1.0), (variance, spread, size / max(size - 1, 1))):
            if kept is None:
                continue
            kept.copy_(kept * (1 - share) + new.detach().flatten(1).mean(0) * (share * factor))
    made = made if weight is None else made * weight.reshape(shape)
    return made if bias is None else made + bias.reshape(shape)


# Repeated elements.


@defines("repeat_interleave.self_int", needed=lambda node: _argument(node, 2, "dim") is None)
def _repeat_interleave(x: Any, repeats: int, dim: int | None = None, *, output_size: int | None = None) -> Any:
    """Elements, each of them several times: of all dims, as a list, without `dim`."""
    x = x.flatten() if dim is None else x
    axis = 0 if dim is None else dim % x.dim()
    wide = x.unsqueeze(axis + 1)
    return wide.expand(*[repeats if at == axis + 1 else -1 for at in range(wide.dim())]).flatten(axis, axis + 1)


# Images.


def _pairs(given: Any, count: int) -> list[int]:
    held = [given] if isinstance(given, int) else list(given)
    return held * count if len(held) == 1 else held


def _windows(
    x: Any,
    widths: Sequence[int],
    steps: Sequence[int],
    pads: Sequence[int],
    gaps: Sequence[int],
    value: float,
    *,
    up: bool,
) -> Any:
    """The elements of windows over the last dims, one after another in a new first dim. `value` is that of padding;
    with `up`, a window may reach beyond it, but must not begin there.
    """
    torch, count = _torch(), len(widths)
    first = x.dim() - count
    sizes: list[int] = []
    ends: list[int] = []
    for at in range(count):
        size, reach = x.shape[first + at], gaps[at] * (widths[at] - 1) + 1
        room = size + 2 * pads[at] - reach
        made = (-(-room // steps[at]) if up else room // steps[at]) + 1
        made -= int(up and (made - 1) * steps[at] >= size + pads[at])
        sizes.append(made)
        ends.append(max((made - 1) * steps[at] + reach - size - pads[at], 0))
    around = [end for at in reversed(range(count)) for end in (pads[at], ends[at])]
    x = torch.constant_pad_nd(x, around, value)
    offsets: list[tuple[int, ...]] = [()]
    for width in widths:
        offsets = [(*offset, place) for offset in offsets for place in range(width)]
    parts: list[Any] = []
    for offset in offsets:
        part = x
        for at, place in enumerate(offset):
            start = place * gaps[at]
            piece = slice(start, start + (sizes[at] - 1) * steps[at] + 1, steps[at])
            part = part[(slice(None),) * (first + at) + (piece,)]
        parts.append(part)
    return torch.stack(parts)


def _has_dilation(count: int) -> Callable[[Any], bool]:
    """Whether the windows of a pool over so many dims have gaps."""
    return lambda node: any(gap != 1 for gap in _pairs(_argument(node, 4, "dilation", 1), count))


def _places_read(count: int) -> Callable[[Any], bool]:
    """Whether the places that a pool over so many dims gives are read, or its windows have gaps."""
    return lambda node: _has_dilation(count)(node) or any(user.args[1:] == (1,) and user.users for user in node.users)


@defines("max_pool1d_with_indices.default", needed=_places_read(1))
@defines("max_pool2d_with_indices.default", needed=_places_read(2))
@defines("max_pool3d_with_indices.default")
def _indexed_pool(
    x: Any, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Any:
    """The largest element that each window covers, and its place in the image: of equal ones the first, which gets the
    gradient.
    """
    torch, widths = _torch(), list(kernel_size)
    count = len(widths)
    gaps, pads = (_pairs(given, count) for given in (dilation, padding))
    steps = list(stride) or widths
    found, which = _windows(x, widths, steps, pads, gaps, -math.inf, up=ceil_mode).max(0)
    image = x.shape[x.dim() - count :]
    places = torch.arange(math.prod(image), device=x.device).reshape(image)
    every = _windows(places, widths, steps, pads, gaps, 0, up=ceil_mode)
    every = every.reshape(len(every), *[1] * (x.dim() - count), *every.shape[1:]).expand(len(every), *which.shape)
    return found, every.gather(0, which.unsqueeze(0)).squeeze(0)


@defines("max_pool1d.default", needed=_has_dilation(1))
@defines("max_pool2d.default", needed=_has_dilation(2))
@defines("max_pool3d.default", needed=_has_dilation(3))
def _dilated_pool(
    x: Any, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Any:
    return _indexed_pool(x, kernel_size, stride, padding, dilation, ceil_mode)[0]


@defines("max_unpool2d.default")
def _max_unpool(x: Any, places: Any, output_size: Sequence[int]) -> Any:
    """Elements at their places in an image of zeros: of several at one place the last, though each has its gradient."""
    torch, image = _torch(), list(output_size)
    count = len(image)
    flat, where = (one.flatten(one.dim() - count) for one in (x, places))
    none = torch.zeros(*flat.shape[:-1], math.prod(image), dtype=x.dtype, device=x.device)
    order = torch.arange(flat.shape[-1], device=x.device).expand(flat.shape)
    last = torch.full_like(none, -1, dtype=torch.int64).scatter_reduce(-1, where, order, "amax")
    made = torch.where(last >= 0, flat.detach().gather(-1, last.clamp(min=0)), none)
    every = none.scatter_add(-1, where, flat)
    return (made + (every - every.detach())).reshape(*x.shape[: x.dim() - count], *image)


@defines("max_unpool3d.default")
def _unpooled_3d(x: Any, places: Any, output_size: Sequence[int], _stride: Any, _padding: Any) -> Any:
    return _max_unpool(x, places, output_size)


@defines("adaptive_avg_pool3d.default", "_adaptive_avg_pool3d.default")
def _adaptive_mean(x: Any, output_size: Any) -> Any:
    """The means of the parts into which each of the last three dims is divided."""
    return _in_parts(x, output_size, lambda part, axis: part.mean(axis, True))


@defines("adaptive_max_pool3d.default")
def _adaptive_most(x: Any, output_size: Any) -> tuple[Any, Any]:
    """The largest element of each part, and its place in the image: of equal ones the first, which gets the
    gradient.
    """
    torch, wanted = _torch(), _pairs(output_size, 3)
    image = x.shape[x.dim() - 3 :]
    places = torch.arange(math.prod(image), device=x.device).reshape(image).expand(x.shape)
    for at in (2, 1, 0):  # of equal ones, those in the same row are told apart first
        axis = x.dim() - 3 + at
        found: list[Any] = []
        where: list[Any] = []
        for start, stop in _bounds(x.shape[axis], wanted[at]):
            most, which = x.narrow(axis, start, stop - start).max(axis, True)
            found.append(most)
            where.append(places.narrow(axis, start, stop - start).gather(axis, which))
        x, places = torch.cat(found, axis), torch.cat(where, axis)
    return x, places


def _bounds(size: int, count: int) -> list[tuple[int, int]]:
    """The beginnings and the ends of the parts of a dim: floor(i n / m) and ceil((i + 1) n / m)."""
    count = count or size
    return [(place * size // count, -(-(place + 1) * size // count)) for place in range(count)]


def _in_parts(x: Any, output_size: Any, combine: Callable[[Any, int], Any]) -> Any:
    """Each of the last dims in parts (`_bounds`)."""
    torch, wanted = _torch(), _pairs(output_size, 3)
    for at, count in enumerate(wanted):
        axis = x.dim() - len(wanted) + at
        bounds = _bounds(x.shape[axis], count)
        parts = [combine(x.narrow(axis, start, stop - start), axis) for start, stop in bounds]
        x = torch.cat(parts, axis) if len(parts) > 1 else parts[0]
    return x


@defines("avg_pool2d.default", needed=lambda node: _argument(node, 6, "divisor_override") is not None)
@defines("avg_pool3d.default", needed=lambda node: _argument(node, 6, "divisor_override") is not None)
def _divided_pool(
    x: Any,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """The sums of windows by a number that is given, or by how many elements each has."""
    torch, widths = _torch(), list(kernel_size)
    steps, pads, gaps = list(stride) or widths, _pairs(padding, len(widths)), [1] * len(widths)
    sums = _windows(x, widths, steps, pads, gaps, 0.0, up=ceil_mode).sum(0)
    if divisor_override is not None:
        return sums / divisor_override
    ones = torch.ones(x.shape[x.dim() - len(widths) :], dtype=x.dtype, device=x.device)
    if count_include_pad:
        ones = torch.constant_pad_nd(ones, [pad for pad in reversed(pads) for _ in range(2)], 1.0)
        pads = [0] * len(widths)
    return sums / _windows(ones, widths, steps, pads, gaps, 0.0, up=ceil_mode).sum(0)


def _pads_otherwise(node: Any) -> bool:
    """Whether a node pads other dims than the last ones of images, which readers take."""
    mode = _argument(node, 2, "mode", "constant")
    rank, ends = len(node.args[0].meta["val"].shape), len(node.args[1])
    if mode == "constant" or not all(isinstance(end, int) for end in node.args[1]):
        return False
    return mode == "circular" or (rank, ends) not in ((3, 2), (4, 4)) or any(end < 0 for end in node.args[1])


@defines("pad.default", needed=_pads_otherwise)
def _pad(x: Any, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Any:
    """Dims continued by their own elements: the last one again, mirrored, or from the other end. An end with a number
    below 0 is cut off; what comes from the other end is that of the rest.
    """
    torch = _torch()
    if mode == "constant":
        return torch.constant_pad_nd(x, pad, 0.0 if value is None else value)
    for at in range(len(pad) // 2):
        before, after = pad[2 * at], pad[2 * at + 1]
        axis = x.dim() - 1 - at
        if mode == "circular" and min(before, after) < 0:
            x = x.narrow(axis, max(-before, 0), x.shape[axis] + min(before, 0) + min(after, 0))
            before, after = max(before, 0), max(after, 0)
        size = x.shape[axis]
        if before == after == 0:
            continue
        places = torch.arange(-before, size + after, device=x.device)
        if mode == "replicate":
            places = places.clamp(0, size - 1)
        elif mode == "reflect":
            places = size - 1 - (size - 1 - places.abs()).abs()
        else:
            places = places.remainder(size)
        x = x.index_select(axis, places)
    return x


# Writing into places of a tensor, and diagonals.


def _reduces_otherwise(node: Any) -> bool:
    """Whether a node combines what it writes otherwise than by a sum with what is there."""
    return node.args[4] != "sum" or not node.kwargs.get("include_self", True)


@defines("scatter_reduce.two", needed=_reduces_otherwise)
def _scatter_reduce(x: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True) -> Any:
    """Sums, products, means and extremes of what is written to each place, and of what is there with `include_self`.
    Elements to which nothing is written stay.
    """
    torch = _torch()
    src = src[tuple(slice(size) for size in index.shape)]
    if reduce == "prod":
        return _products(x, dim % x.dim(), index, src, include_self)
    counts = torch.zeros_like(x).scatter_add(dim, index, torch.ones_like(src))
    held = x if include_self else torch.where(counts > 0, torch.zeros_like(x), x)
    if reduce == "sum":
        return held.scatter_add(dim, index, src)
    if reduce == "mean":
        total = held.scatter_add(dim, index, src)
        many = (counts + 1 if include_self else counts.clamp(min=1)).detach()
        return total / many if x.is_floating_point() else torch.div(total, many, rounding_mode="floor")
    return _extremes(x, dim, index, src, counts > 0, reduce == "amax", include_self)


def _products(x: Any, axis: int, index: Any, src: Any, include_self: bool) -> Any:
    """The products of the elements for each place: of a row for every place, in which other elements are 1."""
    torch = _torch()
    places, values = index.movedim(axis, -1).unsqueeze(-1), src.movedim(axis, -1).unsqueeze(-1)
    is_here = places == torch.arange(x.shape[axis], device=x.device)
    made = torch.where(is_here, values, torch.ones_like(values)).prod(-2).movedim(-1, axis)
    written = is_here.any(-2).movedim(-1, axis)
    for at, size in enumerate(index.shape):  # the places beside those of the index stay as they are
        if at != axis and isinstance(size, int) and size != x.shape[at]:
            around = [0, 0] * (x.dim() - 1 - at) + [0, x.shape[at] - size]
            made = torch.constant_pad_nd(made, around, 1)
            written = torch.constant_pad_nd(written.to(torch.int64), around).to(torch.bool)
    return x * made if include_self else torch.where(written, made, x)


def _extremes(x: Any, dim: int, index: Any, src: Any, written: Any, largest: bool, include_self: bool) -> Any:
    """The largest or smallest element for each place; equal ones share its gradient."""
    torch = _torch()
    order = src.detach().argsort(dim, descending=not largest)
    order = order.gather(dim, index.gather(dim, order).argsort(dim=dim, stable=True))
    places, values = index.gather(dim, order), src.detach().gather(dim, order)
    size = places.shape[dim]
    changes = places.narrow(dim, 1, size - 1) != places.narrow(dim, 0, size - 1)
    is_last = torch.cat([changes, torch.ones_like(places.narrow(dim, 0, 1), dtype=torch.bool)], dim)
    chosen = torch.where(is_last, values, torch.zeros_like(values))
    found = torch.zeros_like(x).scatter_add(dim, places, chosen)
    if include_self:
        fixed = x.detach()
        found = torch.where(written, torch.maximum(found, fixed) if largest else torch.minimum(found, fixed), fixed)
    else:
        found = torch.where(written, found, x.detach())
    if not x.is_floating_point():
        return found
    is_found, gives = x == found, src == found.gather(dim, index)
    among = is_found.to(x.dtype).scatter_add(dim, index, gives.to(x.dtype)).detach()
    own = torch.where(is_found if include_self else ~written, x, torch.zeros_like(x))
    added = torch.where(gives, src, torch.zeros_like(src))
    return found + (own - own.detach()).scatter_add(dim, index, added - added.detach()) / among.clamp(min=1)


def _no_main_diagonal(node: Any) -> bool:
    """Whether a node takes a diagonal other than the main one of a matrix."""
    rank, offset, *axes = node.args[0].meta["val"].dim(), *node.args[1:], *(0, 0, 1)[len(node.args) - 1 :]
    return rank != 2 or offset != 0 or sorted(axis % rank for axis in axes) != [0, 1]


@defines("diagonal.default", needed=_no_main_diagonal)
def _diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """A diagonal of the matrices of two dims, as the last dim."""
    torch = _torch()
    turned = x.movedim((dim1, dim2), (-2, -1))
    rows, columns = turned.shape[-2:]
    down, right = max(-offset, 0), max(offset, 0)
    count = max(min(rows - down, columns - right), 0)
    places = torch.arange(count, device=x.device) * (columns + 1) + (down * columns + right)
    return turned.flatten(-2).index_select(-1, places)


@defines("diagonal_scatter.default")
def _diagonal_scatter(x: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """A tensor with a diagonal of matrices replaced."""
    torch = _torch()
    first, second = dim1 % x.dim(), dim2 % x.dim()
    rows, columns = x.shape[first], x.shape[second]
    turned = x.movedim((first, second), (-2, -1))
    down, right = max(-offset, 0), max(offset, 0)
    row, column = torch.arange(rows, device=x.device)[:, None], torch.arange(columns, device=x.device)[None, :]
    if rows - down <= columns - right:  # an element for each row from `down` on
        every = torch.constant_pad_nd(src, [down, 0]).unsqueeze(-1)
    else:
        every = torch.constant_pad_nd(src, [right, 0]).unsqueeze(-2)
    made = torch.where(column - row == offset, every, turned)
    return made.movedim((-2, -1), (first, second))


# Gradients of convolutions, which are convolutions in turn.


@defines("convolution_backward.default")
def _convolution_backward(
    upstream: Any,
    x: Any,
    weight: Any,
    _bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    _output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Any, Any, Any]:
    """The gradients of a convolution's input, weights and bias."""
    torch, spatial = _torch(), range(x.dim() - 2)
    stride, padding, dilation = ([*one] * (len(spatial) // len(one)) for one in (stride, padding, dilation))
    of_x = of_weight = None
    if output_mask[0] and transposed:
        of_x = torch.ops.aten.convolution(upstream, weight, None, stride, padding, dilation, False, [0], groups)
    elif output_mask[0]:
        sizes, made, kernel = x.shape[2:], upstream.shape[2:], weight.shape[2:]
        rest = [
            sizes[at] - (made[at] - 1) * stride[at] + 2 * padding[at] - dilation[at] * (kernel[at] - 1) - 1
            for at in spatial
        ]
        of_x = torch.ops.aten.convolution(upstream, weight, None, stride, padding, dilation, True, rest, groups)
    if output_mask[1]:
        small, large = (upstream, x) if transposed else (x, upstream)
        pairs = zip(small.chunk(groups, 1), large.chunk(groups, 1), strict=True)
        parts = [_weight_gradient(*pair, weight.shape[2:], stride, padding, dilation) for pair in pairs]
        of_weight = torch.cat(parts) if groups > 1 else parts[0]
    of_bias = upstream.sum([0, *(at + 2 for at in spatial)]) if output_mask[2] else None
    return of_x, of_weight, of_bias


def _weight_gradient(
    x: Any, upstream: Any, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> Any:
    """The gradient of the weights by which `x` gives that of which `upstream` is the gradient."""
    torch = _torch()
    rows, other = x.transpose(0, 1), upstream.transpose(0, 1)
    made = torch.ops.aten.convolution(rows, other, None, dilation, padding, stride, False, [0], 1)
    for at, size in enumerate(kernel):
        made = made.narrow(at + 2, 0, size)
    return made.transpose(0, 1)


# Square matrices: solutions of equations, inverses, determinants and triangular factors. The steps of an elimination
# are written one after another, so the size of a matrix is a number.


def _gauss_jordan(a: Any, right: Any) -> tuple[Any, list[Any], Any]:
    """The solution of `a @ x = right` by Gauss and Jordan, the pivots, and the sign of the order of rows.

    Each pivot is the largest element that is left in its column.
    """
    torch, size = _torch(), a.shape[-1]
    rows = torch.arange(size, device=a.device)
    both, sign = torch.cat([a, right], -1), torch.ones_like(a[..., 0, 0])
    pivots: list[Any] = []
    for at in range(size):
        chosen = both[..., at:, at].detach().abs().argmax(-1).unsqueeze(-1) + at
        order = torch.where(rows == at, chosen, torch.where(rows == chosen, torch.full_like(chosen, at), rows))
        both = both.gather(-2, order.unsqueeze(-1).expand(both.shape))
        sign = torch.where(chosen.squeeze(-1) == at, sign, -sign)
        pivots.append(both[..., at, at])
        line = both[..., at : at + 1, :] / both[..., at : at + 1, at : at + 1]
        own = (rows == at).unsqueeze(-1)
        both = torch.where(own, line, both - both[..., at : at + 1] * line)
    return both[..., size:], pivots, sign


def _pivots(a: Any) -> tuple[Any, Any]:
    """The pivots of an elimination without a right side, and the sign of the order of rows."""
    _, pivots, sign = _gauss_jordan(a, a[..., :0])
    return _torch().stack(pivots, -1), sign


def _unread_order(a: Any) -> Any:
    """Zeros in the place of the order of rows, which torch's own gradient reads; here the gradient is that of the
    elimination.
    """
    torch = _torch()
    return torch.zeros(a.shape[:-1], dtype=torch.int32, device=a.device)


def _no_errors(a: Any) -> Any:
    """The error codes that an operator returns: always 0, as results for a matrix without an inverse are infinite or
    NaN.
    """
    torch = _torch()
    return torch.zeros(a.shape[:-2], dtype=torch.int32, device=a.device)


@defines("linalg_inv.default", "inverse.default")
def _inverse(a: Any) -> Any:
    torch = _torch()
    one = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand(a.shape)
    return _gauss_jordan(a, one)[0]


@defines("linalg_inv_ex.default")
def _inverse_and_errors(a: Any, **_: Any) -> tuple[Any, Any]:
    return _inverse(a), _no_errors(a)


@defines("linalg_solve.default")
def _solution(a: Any, right: Any, *, left: bool = True) -> Any:
    """The solution of `a @ x = right`, or of `x @ a = right`; the right side may be a vector for each matrix."""
    is_vector = right.dim() == 1 or right.shape == a.shape[:-1]
    wide = right.unsqueeze(-1) if is_vector else right
    matrix = a if left else a.mT
    wide = wide if left or is_vector else wide.mT
    batch = _torch().broadcast_shapes(matrix.shape[:-2], wide.shape[:-2])
    made = _gauss_jordan(matrix.expand(*batch, *matrix.shape[-2:]), wide.expand(*batch, *wide.shape[-2:]))[0]
    made = made if left or is_vector else made.mT
    return made.squeeze(-1) if is_vector else made


@defines("_linalg_solve_ex.default")
def _solution_and_errors(a: Any, right: Any, *, left: bool = True, **_: Any) -> tuple[Any, Any, Any, Any]:
    return _solution(a, right, left=left), a.clone(), _unread_order(a), _no_errors(a)


@defines("linalg_solve_triangular.default")
def _triangular(a: Any, right: Any, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    """The solution for one triangle of a matrix, whose other elements are not read."""
    torch = _torch()
    part = a.triu(1) if upper else a.tril(-1)
    one = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    return _solution(part + (one if unitriangular else a * one), right, left=left)


@defines("_linalg_det.default")
def _determinant(a: Any) -> tuple[Any, Any, Any]:
    pivots, sign = _pivots(a)
    return pivots.prod(-1) * sign, a.clone(), _unread_order(a)


@defines("_linalg_slogdet.default")
def _log_determinant(a: Any) -> tuple[Any, Any, Any, Any]:
    """The sign of a determinant and the logarithm of its size."""
    pivots, sign = _pivots(a)
    return (sign * pivots.detach().sign().prod(-1)), pivots.abs().log().sum(-1), a.clone(), _unread_order(a)


@defines("linalg_cholesky.default")
def _cholesky(a: Any, *, upper: bool = False) -> Any:
    """The lower triangular factor of a symmetric matrix; elements on both sides of its diagonal share a gradient."""
    torch, size = _torch(), a.shape[-1]
    rest: Any = (a + a.mT) / 2
    columns: list[Any] = []
    for at in range(size):
        column = rest[..., :, at : at + 1] / rest[..., at : at + 1, at : at + 1].sqrt()
        columns.append(torch.constant_pad_nd(column.narrow(-2, at, size - at), [0, 0, at, 0]))
        rest = rest - columns[-1] * columns[-1].mT
    made = torch.cat(columns, -1)
    return made.mT if upper else made


@defines("cholesky.default")
def _old_cholesky(a: Any, upper: bool = False) -> Any:
    return _cholesky(a, upper=upper)


@defines("linalg_cholesky_ex.default")
def _cholesky_and_errors(a: Any, *, upper: bool = False, **_: Any) -> tuple[Any, Any]:
    return _cholesky(a, upper=upper), _no_errors(a)


@defines("histc.default")
def _histogram(values: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """How many numbers lie in each of so many parts of a range, whose ends belong to it. No range means that of the
    numbers, or one around them if they are all the same.
    """
    torch = _torch()
    flat = values.detach().reshape(-1)
    low, high = (flat.new_full((), end) for end in (min, max))
    if min == max:
        low, high = flat.min(), flat.max()
        alone = (low == high).to(flat.dtype)
        low, high = low - alone, high + alone
    inside = (flat >= low) & (flat <= high)
    place = ((torch.where(inside, flat, low) - low) * bins / (high - low)).long().clamp(max=bins - 1)
    members = (place.unsqueeze(1) == torch.arange(bins).unsqueeze(0)) & inside.unsqueeze(1)
    return members.to(flat.dtype).sum(0)


def _of_row_groups(node: Any) -> bool:
    """Whether a product of groups is that of a matrix, whose rows are dealt to several others."""
    first, second, ends = node.args[0], node.args[1], _argument(node, 2, "offs")
    dims = [len(one.meta["val"].shape) for one in (first, second)]
    return dims == [2, 3] and ends is not None and _argument(node, 3, "bias") is None


@defines("_grouped_mm.default", "grouped_mm_fallback.default", needed=_of_row_groups)
def _grouped_product(rows: Any, matrices: Any, offs: Any, *_: Any, **__: Any) -> Any:
    """The product of each row and the matrix of its group; group `i` has the rows until `offs[i]`, and those after the
    last one give zeros. Each row takes a copy of its matrix.
    """
    torch = _torch()
    groups = (torch.arange(rows.shape[0]).unsqueeze(1) >= offs.unsqueeze(0)).sum(1)
    last = matrices.shape[0] - 1
    made = torch.bmm(rows.unsqueeze(1), matrices[groups.clamp(max=last)]).squeeze(1)
    return torch.where((groups <= last).unsqueeze(1), made, torch.zeros_like(made))


# Functions of torch that `torch.export` can't trace, in terms of others that it can. They make what the functions of
# torch make, of a batch of any size. In the places of torch's own ones they are only while a step is exported.


def _written(torch: Any) -> Mapping[str, Callable[..., Any]]:
    """The functions by name. What they don't take, they give to torch's own."""
    one_hot, single, double = torch.nn.functional.one_hot, torch.float32, torch.float64
    cdist, ones, flags = torch.cdist, torch.ones, torch.bool
    own_bincount, own_cov, own_corrcoef = torch.bincount, torch.cov, torch.corrcoef
    own_diagonal, own_diag, own_unique = torch.diagonal, torch.diag, torch.unique
    concatenated, zeros_like = torch.cat, torch.zeros_like

    def bincount(input: Any, weights: Any = None, minlength: int = 0) -> Any:
        """Counts of the numbers below `minlength`. A larger number ends the step; torch makes a longer list of it."""
        if minlength < 1:
            return own_bincount(input, weights, minlength)
        members = one_hot(input.long(), minlength)
        if weights is None:
            return members.sum(0)
        kind = single if weights.dtype == single else double
        return (members * weights.to(kind).unsqueeze(1)).sum(0)

    def cov(input: Any, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
        """The covariances of the rows of a matrix of floating-point numbers."""
        if fweights is not None or aweights is not None or not input.is_floating_point():
            return own_cov(input, correction=correction, fweights=fweights, aweights=aweights)
        wide = input.reshape(1, -1) if input.dim() < 2 else input
        apart = wide - wide.mean(1, keepdim=True)
        made = apart @ apart.t() / (wide.shape[1] - correction)
        return made.reshape(()) if input.dim() < 2 else made

    def corrcoef(input: Any) -> Any:
        """The correlations of the rows of a matrix."""
        if input.dim() < 2 or not input.is_floating_point():
            return own_corrcoef(input)
        covariance = cov(input)
        spread = covariance.diagonal().sqrt()
        return (covariance / spread.unsqueeze(1) / spread.unsqueeze(0)).clamp(-1, 1)

    def pdist(input: Any, p: float = 2.0) -> Any:
        """The distances of each row from those after it."""
        rows = input.shape[0]
        return cdist(input, input, p)[ones((rows, rows), dtype=flags).triu(1)]

    def diagonal(input: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
        """A diagonal of matrices: the main one of a part of them. Torch's own takes a number, but no number of rows."""
        if 0 < offset < input.shape[dim2]:
            input = input.narrow(dim2, offset, input.shape[dim2] - offset)
        elif -input.shape[dim1] < offset < 0:
            input = input.narrow(dim1, -offset, input.shape[dim1] + offset)
        else:
            return own_diagonal(input, offset, dim1, dim2)
        return own_diagonal(input, 0, dim1, dim2)

    main_part = diagonal

    def diag(input: Any, diagonal: int = 0) -> Any:
        """A copy of a diagonal of a matrix, or the matrix with a diagonal."""
        if diagonal == 0 or input.dim() != 2:
            return own_diag(input, diagonal)
        return main_part(input, diagonal).clone()

    def unique(
        input: Any,
        sorted: bool = True,
        return_inverse: bool = False,
        return_counts: bool = False,
        dim: int | None = None,
    ) -> Any:
        """The elements of a tensor without repeats, in order."""
        if dim is not None:
            return own_unique(input, sorted, return_inverse, return_counts, dim)
        values, order = input.detach().reshape(-1).sort()
        first = concatenated([ones((1,), dtype=flags), values[1:] != values[:-1]])
        made = [values[first]]
        if return_inverse:
            places = first.long().cumsum(0) - 1
            made.append(zeros_like(places).scatter(0, order, places).reshape(input.shape))
        if return_counts:
            made.append((made[0].unsqueeze(1) == values.unsqueeze(0)).sum(1))
        return tuple(made) if len(made) > 1 else made[0]

    own_grouped_product = getattr(torch, _GROUPED, None)

    def grouped_product(rows: Any, matrices: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
        """The product of rows and the matrix of their group. Torch's own rule for an export takes bfloat16 alone."""
        if (rows.dim(), matrices.dim()) != (2, 3) or offs is None or bias is not None or out_dtype is not None:
            assert own_grouped_product is not None
            return own_grouped_product(rows, matrices, offs=offs, bias=bias, out_dtype=out_dtype)
        return _grouped_product(rows, matrices, offs)

    written = (bincount, cov, corrcoef, pdist, diagonal, diag, unique)
    named = {function.__name__: function for function in written}
    return {**named, _GROUPED: grouped_product, **_sized_losses(torch)}


_GROUPED = "_grouped_mm"
"""Torch's name for the product of rows and the matrix of their group."""


_LOSSES = ("l1_loss", "mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy")
"""The losses of torch that compare the dims of their two tensors."""


def _sized_losses(torch: Any) -> Mapping[str, Callable[..., Any]]:
    """Losses of two lists of chosen numbers, by name, which take them to be as many where only a run knows how many."""
    shapes = import_module("torch.fx.experimental.symbolic_shapes")
    known, possible, require = shapes.guard_or_false, shapes.guard_or_true, getattr(torch, "_check")  # noqa: B009

    def sized(own: Callable[..., Any]) -> Callable[..., Any]:
        def loss(input: Any, target: Any, *rest: Any, **options: Any) -> Any:
            if input.dim() == 1 and target.dim() == 1:
                one, other = input.shape[0], target.shape[0]
                if possible(one != other) and not known(one != other):
                    require(one == other)
            return own(input, target, *rest, **options)

        return loss

    return {name: sized(getattr(torch.nn.functional, name)) for name in _LOSSES}


@contextmanager
def as_written(torch: Any) -> Generator[None]:
    """Has torch's functions be the ones above inside the block."""
    rules = getattr(import_module("torch._dynamo.trace_rules"), "get_torch_obj_rule_map", None)
    if rules is not None:
        rules()  # torch keeps which functions are its own, from the first time that it asks
    written, kinds = _written(torch), (torch, torch.Tensor, torch.nn.functional)
    places = [
        (kind, name)
        for kind in kinds
        for name in written
        if hasattr(kind, name) and (name not in _LOSSES or kind is torch.nn.functional)
    ]
    before = {(kind, name): kind.__dict__.get(name) for kind, name in places}
    try:
        for kind, name in places:
            setattr(kind, name, written[name])
        yield
    finally:
        for (kind, name), own in before.items():
            if own is None:  # it was one of the class before
                delattr(kind, name)
            else:
                setattr(kind, name, own)
