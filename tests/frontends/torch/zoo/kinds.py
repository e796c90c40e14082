"""All setups of the zoo, by kind."""

from tests.frontends.torch.zoo import (
    axes,
    composed,
    contrast,
    derivatives,
    mining,
    norms,
    plain,
    selections,
    states,
    statistics,
    tokens,
    weights,
    whole,
)
from tests.frontends.torch.zoo.setups import CASES

KINDS = (tokens, weights, contrast, norms, statistics, plain, selections, composed, derivatives)
"""The modules that list setups."""

MORE_KINDS = (axes, states, mining, whole)
"""Modules whose setups are checked at night, but for a few."""

__all__ = ["CASES", "KINDS", "MORE_KINDS"]
