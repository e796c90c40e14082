"""Weight decay under Fluid's names."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.missing import names_of_fluid
from pstranspile.frontends.autodiff import L1, L2, ParamGrad
from pstranspile.frontends.autodiff.optimizers import append_regularization


class WeightDecayRegularizer:
    """The base class of weight decays."""

    def core(self) -> Any:
        """The decay in the form that optimizers of this package take."""
        raise NotImplementedError("WeightDecayRegularizer is the base of L1Decay and L2Decay")


class L1DecayRegularizer(WeightDecayRegularizer):
    """Adds coeff * sign(parameter) to gradients."""

    def __init__(self, regularization_coeff: float = 0.0):
        self.coefficient = regularization_coeff

    def core(self) -> Any:
        """The decay in the form that optimizers of this package take."""
        return L1(float(self.coefficient))

    def __str__(self) -> str:
        return f"L1Decay, regularization_coeff={self.coefficient:f}"


class L2DecayRegularizer(WeightDecayRegularizer):
    """Adds coeff * parameter to gradients."""

    def __init__(self, regularization_coeff: float = 0.0):
        self.coefficient = regularization_coeff

    def core(self) -> Any:
        """The decay in the form that optimizers of this package take."""
        return L2(float(self.coefficient))

    def __str__(self) -> str:
        return f"L2Decay, regularization_coeff={self.coefficient:f}"


def of_core(decay: Any) -> WeightDecayRegularizer | None:
    """The decay under Fluid's names, from one in the form of this package's optimizers."""
    if isinstance(decay, L1):
        return L1DecayRegularizer(decay.coefficient)
    return L2DecayRegularizer(decay.coefficient) if isinstance(decay, L2) else None


def append_regularization_ops(parameters_and_grads: Any, regularization: Any = None) -> list[tuple[Any, Any]]:
    """Adds the parameters' own decay, or `regularization`, to their gradients; returns the new pairs."""
    if not parameters_and_grads:
        return []
    block = parameters_and_grads[0][0].block
    pairs = [ParamGrad(param.name, None if grad is None else grad.name) for param, grad in parameters_and_grads]
    default = None if regularization is None else regularization.core()
    made = append_regularization(block.program.live(), pairs, default)
    find = block.program.current_block()._var_recursive
    return [(find(param), None if grad is None else find(grad)) for param, grad in made]


L1Decay, L2Decay = L1DecayRegularizer, L2DecayRegularizer


__getattr__ = names_of_fluid(__name__, globals())
