"""Kernels. Sums of several tensors, and scalings."""

from __future__ import annotations

from typing import Any, TypeAlias

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, real
from pstranspile.runtime.kernels.kernel import Run, kernel
from pstranspile.runtime.kernels.numeric import first, formula
from pstranspile.runtime.kernels.rows import AS_ROWS, add_rows, in_use, merge_rows, sum_tables
from pstranspile.runtime.values import Array, LoDTensor, SelectedRows

Term: TypeAlias = "Array | SelectedRows"

OVER_TERM = "@over_term"
"""This attribute is the index of a term whose memory the sum may overwrite, because nothing reads it afterwards."""


def _plain_sum(op: Op) -> str | None:
    count = len(op.inputs["X"])
    return " + ".join(f"{{X[{at}]}}" for at in range(count)) if count > 1 else None


def _sum_of_arrays(arrays: list[list[Any]]) -> list[Any]:
    """The sum of tensor arrays, step by step. A step that one array lacks is the sum of the others."""
    result: list[Any] = []
    for step in range(max(map(len, arrays))):
        items = [array[step] for array in arrays if step < len(array) and array[step] is not None]
        parts = [item.data if isinstance(item, LoDTensor) else item for item in items]
        total = sum(parts[1:], start=parts[0]) if parts else None
        result.append(items[0]._replace(data=total) if items and isinstance(items[0], LoDTensor) else total)
    return result


@kernel("sum", inline=_plain_sum, new=True)
def _sum_values(op: Op) -> Run:
    add_up = sum_tables if AS_ROWS in op.attrs else merge_rows
    spare: Any = op.attrs.get(OVER_TERM)

    def run(X: list[Any]) -> Any:
        terms = [term for term in X if term is not None]
        if not terms:
            raise ValueError("none of X has a value")
        if terms and isinstance(terms[0], list):
            return _sum_of_arrays(terms)
        sparse = [term for term in terms if isinstance(term, SelectedRows)]
        dense = [term for term in terms if not isinstance(term, SelectedRows)]
        if not dense:
            return add_up(sparse)
        if len(dense) > 1:
            total = dense[0] + dense[1]
        else:
            total = dense[0] if spare is not None and X[spare] is dense[0] else dense[0].copy()
        for term in dense[2:]:
            total += term
        for term in sparse:
            add_rows(total, term.rows, in_use(term).reshape(-1, *total.shape[1:]))
        return total

    return run


@kernel("scale", inline=lambda op: _scaled(op), over=lambda op: _scaled(op, over=True), new=True)
def _scale_values(op: Op) -> Run:
    factor, bias, after = real(op, "scale"), real(op, "bias"), flag(op, "bias_after_scale")

    def scaled(x: Array, scale: float) -> Array:
        of_type = x.dtype.type  # for integers, scale and bias are converted to integers
        if bias == 0:
            return x * of_type(scale)
        return x * of_type(scale) + of_type(bias) if after else (x + of_type(bias)) * of_type(scale)

    def run(X: Term, ScaleTensor: Array | None) -> Term:
        scale = factor if ScaleTensor is None else first(ScaleTensor)
        if isinstance(X, SelectedRows):
            return SelectedRows(X.rows, scaled(X.value, scale), X.height)
        return scaled(X, scale)

    return run


def _scaled(op: Op, over: bool = False) -> str | None:
    """The expression of scale for plain arrays; with `over` it overwrites X."""
    if op.input("ScaleTensor"):
        return None
    factor, bias = (f"{{X}}.dtype.type({real(op, name)!r})" for name in ("scale", "bias"))
    if real(op, "bias") == 0:
        return f"imul({{X}}, {factor})" if over else f"{{X}} * {factor}"
    if over:
        return None
    return f"{{X}} * {factor} + {bias}" if flag(op, "bias_after_scale") else f"({{X}} + {bias}) * {factor}"


formula("increment", "{X} + {X}.dtype.type($step)")
