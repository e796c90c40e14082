"""Weight decay under Fluid's names."""

from __future__ import annotations

from typing import Any

from pstranspile.autodiff import L1, L2
from pstranspile.fluid.missing import names_of_fluid


class WeightDecayRegularizer:
    """The base of weight decays."""

    def core(self) -> Any:
        """The decay as optimizers of this package take it."""
        raise NotImplementedError("WeightDecayRegularizer is the base of L1Decay and L2Decay")


class L1DecayRegularizer(WeightDecayRegularizer):
    """Adds coeff * sign(parameter) to gradients."""

    def __init__(self, regularization_coeff: float = 0.0):
        self.coefficient = regularization_coeff

    def core(self) -> Any:
        """The decay by signs."""
        return L1(float(self.coefficient))

    def __str__(self) -> str:
        return f"L1Decay, regularization_coeff={self.coefficient:f}"


class L2DecayRegularizer(WeightDecayRegularizer):
    """Adds coeff * parameter to gradients."""

    def __init__(self, regularization_coeff: float = 0.0):
        self.coefficient = regularization_coeff

    def core(self) -> Any:
        """The decay by values."""
        return L2(float(self.coefficient))

    def __str__(self) -> str:
        return f"L2Decay, regularization_coeff={self.coefficient:f}"


L1Decay, L2Decay = L1DecayRegularizer, L2DecayRegularizer


__getattr__ = names_of_fluid(__name__, globals())
