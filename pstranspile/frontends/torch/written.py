"""Functions of torch that `torch.export` can't trace, in terms of others that it can.

They make what the functions of torch make, of a batch of any size. In the places of torch's own ones they are only
while a step is exported.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any


def _torch() -> Any:
    return import_module("torch")


def _bincount(input: Any, weights: Any = None, minlength: int = 0) -> Any:
    """Counts of the numbers below `minlength`; a larger number ends the step, and torch makes a longer list of it."""
    torch = _torch()
    if not isinstance(minlength, int) or minlength < 1:
        return _OWN["bincount"](input, weights, minlength)
    members = torch.nn.functional.one_hot(input.long(), minlength)
    if weights is None:
        return members.sum(0)
    kind = torch.float32 if weights.dtype == torch.float32 else torch.float64
    return (members * weights.to(kind).unsqueeze(1)).sum(0)


def _cov(input: Any, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
    """The covariances of the rows of a matrix of floating-point numbers."""
    if fweights is not None or aweights is not None or not input.is_floating_point():
        return _OWN["cov"](input, correction=correction, fweights=fweights, aweights=aweights)
    wide = input.reshape(1, -1) if input.dim() < 2 else input
    apart = wide - wide.mean(1, keepdim=True)
    made = apart @ apart.t() / (wide.shape[1] - correction)
    return made.reshape(()) if input.dim() < 2 else made


def _corrcoef(input: Any) -> Any:
    """The correlations of the rows of a matrix."""
    if not input.is_floating_point() or input.dim() < 2:
        return _OWN["corrcoef"](input)
    torch = _torch()
    covariance = _cov(input)
    spread = torch.diagonal(covariance).sqrt()
    return (covariance / spread.unsqueeze(1) / spread.unsqueeze(0)).clamp(-1, 1)


_WRITTEN = {"bincount": _bincount, "cov": _cov, "corrcoef": _corrcoef}
"""The functions by name, which are also methods of a tensor."""

_OWN: dict[str, Any] = {}
"""Torch's functions by name, while others are in their places."""


@contextmanager
def as_written(torch: Any) -> Generator[None]:
    """Has torch's functions be those of this module inside the block."""
    rules = getattr(import_module("torch._dynamo.trace_rules"), "get_torch_obj_rule_map", None)
    if rules is not None:
        rules()  # torch keeps which functions are its own, from the first time that it asks
    kinds = (torch, torch.Tensor)
    before = {(kind, name): kind.__dict__[name] for kind in kinds for name in _WRITTEN if name in kind.__dict__}
    _OWN.update((name, getattr(torch, name)) for name in _WRITTEN)
    try:
        for kind in kinds:
            for name, function in _WRITTEN.items():
                setattr(kind, name, function)
        yield
    finally:
        for kind in kinds:
            for name in _WRITTEN:
                if (kind, name) in before:
                    setattr(kind, name, before[kind, name])
                else:
                    delattr(kind, name)
        _OWN.clear()
