"""All setups of the zoo, by kind."""

from tests.frontends.torch.zoo import composed, contrast, norms, plain, selections, statistics, tokens, weights
from tests.frontends.torch.zoo.setups import CASES

KINDS = (tokens, weights, contrast, norms, statistics, plain, selections, composed)
"""The modules that list setups."""

__all__ = ["CASES", "KINDS"]
