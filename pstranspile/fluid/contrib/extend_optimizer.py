"""Fluid's `contrib.extend_optimizer`: optimizers with decoupled weight decay, which is not part of the gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pstranspile.fluid.framework import name_scope
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.layers import nn, tensor
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.fluid.optimizer import Optimizer

N: Any = nn


class DecoupledWeightDecay:
    """Subtracts `coeff` times each parameter from the parameter, in addition to the update of the optimizer that it is
    mixed into.

    `apply_decay_param_fun` decides by a parameter's name whether it decays.
    """

    def __init__(self, coeff: Any = 0.0, apply_decay_param_fun: Callable[[str], bool] | None = None, **settings: Any):
        if not isinstance(coeff, float | Variable):
            raise TypeError(f"coeff is a float or a variable, not a {type(coeff).__name__}")
        self._coeff, self._applies = coeff, apply_decay_param_fun
        self._decayed_parameters: list[str] = []
        super().__init__(**settings)

    def _shares(self, params_grads: list[tuple[Any, Any]]) -> list[tuple[Any, Any, Any]]:
        """The parameters that decay, each with its gradient and the amount to subtract."""
        if isinstance(self._coeff, float) and self._coeff == 0.0:
            return []
        shares: list[tuple[Any, Any, Any]] = []
        for param, grad in params_grads:
            if grad is None or (self._applies is not None and not self._applies(param.name)):
                continue
            with param.block.program._optimized_guard([param, grad]), name_scope("weight decay"):
                shares.append((param, grad, param * self._coeff))
            self._decayed_parameters.append(param.name)
        return shares

    def minimize(
        self, loss: Any, startup_program: Any = None, parameter_list: Any = None, no_grad_set: Any = None
    ) -> Any:
        """Appends gradients, the decay and the updates; returns the ops that update, and pairs of a parameter and its
        gradient.
        """
        own: Any = self
        pairs = own.backward(
            loss=loss, startup_program=startup_program, parameter_list=parameter_list, no_grad_set=no_grad_set
        )
        for param, grad, share in self._shares(pairs):
            with param.block.program._optimized_guard([param, grad]), name_scope("weight decay"):
                tensor.assign(N.elementwise_sub(x=param, y=share), param)
        return own.apply_optimize(loss=loss, params_grads=pairs, startup_program=startup_program), pairs

    def __str__(self) -> str:
        return f"Weight Decay, params: {','.join(self._decayed_parameters)}"


def extend_with_decoupled_weight_decay(base_optimizer: Any) -> Any:
    """A subclass of `base_optimizer` with decoupled weight decay; `weight_decay` is its first argument, the others are
    passed by name.

    Raises TypeError for anything but a class of optimizers.
    """
    if not (isinstance(base_optimizer, type) and issubclass(base_optimizer, Optimizer)):
        raise TypeError(f"{base_optimizer!r} is no class of optimizers")

    class OptimizerWithDecoupledWeightDecay(DecoupledWeightDecay, base_optimizer):
        """An optimizer with decoupled weight decay."""

        def __init__(
            self, weight_decay: Any, apply_decay_param_fun: Callable[[str], bool] | None = None, **settings: Any
        ):
            super().__init__(weight_decay, apply_decay_param_fun, **settings)

    return OptimizerWithDecoupledWeightDecay


__getattr__ = names_of_fluid(__name__, globals())
