"""Tensors of random numbers, drawn anew in every run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pstranspile.ir.types import element_type
from pstranspile.layers.draft import Draft, Value
from pstranspile.layers.parameters import Element


def uniform_random(
    draft: Draft, shape: Sequence[int], *, dtype: Element = "f32", low: float = -1.0, high: float = 1.0, seed: int = 0
) -> Value:
    """A tensor of dims `shape`, uniform in [low, high). A seed of 0 takes the program's."""
    attrs = {"shape": shape, "min": low, "max": high, "seed": seed}
    return _drawn(draft, "uniform_random", attrs, dtype)


def gaussian_random(
    draft: Draft,
    shape: Sequence[int],
    *,
    mean: float = 0.0,
    std: float = 1.0,
    seed: int = 0,
    dtype: Element = "f32",
) -> Value:
    """A tensor of dims `shape`, normal with this mean and standard deviation. A seed of 0 takes the program's."""
    attrs = {"shape": shape, "mean": mean, "std": std, "seed": seed, "dtype": element_type(dtype)}
    return _drawn(draft, "gaussian_random", attrs, dtype)


def _drawn(draft: Draft, op_type: str, attrs: Mapping[str, object], dtype: Element) -> Value:
    out = draft.temporary(draft.names.mint(op_type), element_type(dtype))
    draft.op(op_type, {}, {"Out": out}, attrs)
    return out
