"""Layers that give random tensors, drawn again in every run."""

from __future__ import annotations

from collections.abc import Mapping

from pstranspile.frontends.layers.draft import Draft, Value
from pstranspile.frontends.layers.parameters import Element
from pstranspile.frontends.layers.tensor import Numbers, constants_of, mixed
from pstranspile.ir.types import DType, element_type


def uniform_random(
    draft: Draft, shape: Numbers, *, dtype: Element = "f32", low: float = -1.0, high: float = 1.0, seed: int = 0
) -> Value:
    """A tensor of dims `shape`, uniform in [low, high). A seed of 0 means the program's seed."""
    return _drawn(draft, "uniform_random", shape, {"min": low, "max": high, "seed": seed}, dtype)


def gaussian_random(
    draft: Draft,
    shape: Numbers,
    *,
    mean: float = 0.0,
    std: float = 1.0,
    seed: int = 0,
    dtype: Element = "f32",
) -> Value:
    """A tensor of dims `shape`, normal with this mean and standard deviation. A seed of 0 means the program's seed."""
    attrs = {"mean": mean, "std": std, "seed": seed, "dtype": element_type(dtype)}
    return _drawn(draft, "gaussian_random", shape, attrs, dtype)


def _drawn(draft: Draft, op_type: str, shape: Numbers, attrs: Mapping[str, object], dtype: Element) -> Value:
    minted = draft.names.mint(op_type)
    of_layer = op_type == "uniform_random"  # as in Fluid
    constant = constants_of(draft, minted, DType.INT64) if of_layer else constants_of(draft)
    dims = mixed(shape, constant, narrow=not of_layer)
    known = {} if dims.known is None else {"shape": dims.known}
    out = draft.temporary(minted, element_type(dtype))
    draft.op(op_type, dims.inputs("ShapeTensor", "ShapeTensorList"), {"Out": out}, {**known, **attrs})
    return out
