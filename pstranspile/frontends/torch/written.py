"""Functions of torch that `torch.export` can't trace, in terms of others that it can.

They make what the functions of torch make, of a batch of any size. In the places of torch's own ones they are only
while a step is exported.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any


def _written(torch: Any) -> Mapping[str, Callable[..., Any]]:
    """The functions by name. What they don't take, they give to torch's own."""
    one_hot, single, double = torch.nn.functional.one_hot, torch.float32, torch.float64
    cdist, ones, flags = torch.cdist, torch.ones, torch.bool
    own_bincount, own_cov, own_corrcoef = torch.bincount, torch.cov, torch.corrcoef

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

    return {"bincount": bincount, "cov": cov, "corrcoef": corrcoef, "pdist": pdist}


@contextmanager
def as_written(torch: Any) -> Generator[None]:
    """Has torch's functions be those of this module inside the block."""
    rules = getattr(import_module("torch._dynamo.trace_rules"), "get_torch_obj_rule_map", None)
    if rules is not None:
        rules()  # torch keeps which functions are its own, from the first time that it asks
    written, kinds = _written(torch), (torch, torch.Tensor, torch.nn.functional)
    places = [(kind, name) for kind in kinds for name in written if hasattr(kind, name)]
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
