"""Operators that write into places of a tensor, or take a diagonal, in terms of others."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pstranspile.frontends.torch.definitions import defines


def _reduces_otherwise(node: Any) -> bool:
    """Whether a node combines what it writes otherwise than by a sum with what is there."""
    return node.args[4] != "prod" and (node.args[4] != "sum" or not node.kwargs.get("include_self", True))


@defines("scatter_reduce.two", needed=_reduces_otherwise)
def _scatter_reduce(x: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True) -> Any:
    """Sums, means and extremes of what is written to each place, and of what is there with `include_self`. Elements to
    which nothing is written stay.
    """
    torch = import_module("torch")
    src = src[tuple(slice(size) for size in index.shape)]
    counts = torch.zeros_like(x).scatter_add(dim, index, torch.ones_like(src))
    held = x if include_self else torch.where(counts > 0, torch.zeros_like(x), x)
    if reduce == "sum":
        return held.scatter_add(dim, index, src)
    if reduce == "mean":
        total = held.scatter_add(dim, index, src)
        many = (counts + 1 if include_self else counts.clamp(min=1)).detach()
        return total / many if x.is_floating_point() else torch.div(total, many, rounding_mode="floor")
    return _extremes(x, dim, index, src, counts > 0, reduce == "amax", include_self)


def _extremes(x: Any, dim: int, index: Any, src: Any, written: Any, largest: bool, include_self: bool) -> Any:
    """The largest or smallest element for each place; equal ones share its gradient."""
    torch = import_module("torch")
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
    torch = import_module("torch")
    turned = x.movedim((dim1, dim2), (-2, -1))
    rows, columns = turned.shape[-2:]
    down, right = max(-offset, 0), max(offset, 0)
    count = min(rows - down, columns - right)
    places = torch.arange(count, device=x.device) * (columns + 1) + (down * columns + right)
    return turned.flatten(-2).index_select(-1, places)


@defines("diagonal_scatter.default")
def _diagonal_scatter(x: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """A tensor with a diagonal of matrices replaced."""
    torch = import_module("torch")
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
