"""Operators on square matrices in terms of others: solutions of equations, inverses, determinants, triangular factors.

The steps of an elimination are written one after another, so the size of a matrix is a number.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pstranspile.frontends.torch.definitions import defines


def _eliminated(a: Any, right: Any) -> tuple[Any, list[Any], Any]:
    """The solution of `a @ x = right` by Gauss and Jordan, the pivots, and the sign of the order of rows.

    Each pivot is the largest element that is left in its column.
    """
    torch, size = import_module("torch"), a.shape[-1]
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


def _without(a: Any) -> tuple[Any, Any]:
    """No equations: pivots and sign alone are asked for."""
    _, pivots, sign = _eliminated(a, a[..., :0])
    return import_module("torch").stack(pivots, -1), sign


def _places(a: Any) -> Any:
    """The numbers of rows that torch's own gradient would read; the gradient here is that of the elimination."""
    torch = import_module("torch")
    return torch.zeros(a.shape[:-1], dtype=torch.int32, device=a.device)


def _no_errors(a: Any) -> Any:
    """What an operator returns of its errors: none is told, and a matrix without an inverse has numbers that are
    infinite or none.
    """
    torch = import_module("torch")
    return torch.zeros(a.shape[:-2], dtype=torch.int32, device=a.device)


@defines("linalg_inv.default", "inverse.default")
def _inverse(a: Any) -> Any:
    torch = import_module("torch")
    one = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand(a.shape)
    return _eliminated(a, one)[0]


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
    batch = import_module("torch").broadcast_shapes(matrix.shape[:-2], wide.shape[:-2])
    made = _eliminated(matrix.expand(*batch, *matrix.shape[-2:]), wide.expand(*batch, *wide.shape[-2:]))[0]
    made = made if left or is_vector else made.mT
    return made.squeeze(-1) if is_vector else made


@defines("_linalg_solve_ex.default")
def _solution_and_errors(a: Any, right: Any, *, left: bool = True, **_: Any) -> tuple[Any, Any, Any, Any]:
    return _solution(a, right, left=left), a.clone(), _places(a), _no_errors(a)


@defines("linalg_solve_triangular.default")
def _triangular(a: Any, right: Any, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    """The solution for one triangle of a matrix, whose other elements are not read."""
    torch = import_module("torch")
    part = a.triu(1) if upper else a.tril(-1)
    one = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    return _solution(part + (one if unitriangular else a * one), right, left=left)


@defines("_linalg_det.default")
def _determinant(a: Any) -> tuple[Any, Any, Any]:
    pivots, sign = _without(a)
    return pivots.prod(-1) * sign, a.clone(), _places(a)


@defines("_linalg_slogdet.default")
def _log_determinant(a: Any) -> tuple[Any, Any, Any, Any]:
    """The sign of a determinant and the logarithm of its size."""
    pivots, sign = _without(a)
    return (sign * pivots.detach().sign().prod(-1)), pivots.abs().log().sum(-1), a.clone(), _places(a)


@defines("linalg_cholesky.default")
def _cholesky(a: Any, *, upper: bool = False) -> Any:
    """The lower triangular factor of a symmetric matrix; elements on both sides of its diagonal share a gradient."""
    torch, size = import_module("torch"), a.shape[-1]
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
