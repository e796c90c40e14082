"""Fluid's mixed precision: optimizers whose programs compute in float16 where that is precise enough."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid import layers, unique_name
from pstranspile.fluid.contrib.mixed_precision.fp16_lists import AutoMixedPrecisionLists as AutoMixedPrecisionLists
from pstranspile.fluid.contrib.mixed_precision.fp16_utils import (
    rewrite_program,
    update_loss_scaling,
    update_role_var_grad,
)
from pstranspile.fluid.framework import default_main_program


def _state(name: str, value: float, dtype: str) -> Any:
    return layers.create_global_var(
        name=unique_name.generate(name), shape=[1], value=value, dtype=dtype, persistable=True
    )


def _learning_rate(value: float) -> Any:
    return _state("learning_rate", value, "float32")


class OptimizerWithMixedPrecision:
    """An optimizer whose program computes in float16 where the lists say so.

    Gradients are those of a scaled loss, so that small ones are not lost, and are divided by the scale before the
    update. A scale that changes grows after `incr_every_n_steps` with finite gradients, and shrinks after
    `decr_every_n_nan_or_inf` with others. Gradients that are not finite count as 0 then.
    """

    def __init__(
        self,
        optimizer: Any,
        amp_lists: AutoMixedPrecisionLists,
        init_loss_scaling: float,
        use_dynamic_loss_scaling: bool,
        incr_every_n_steps: int,
        decr_every_n_nan_or_inf: int,
        incr_ratio: float,
        decr_ratio: float,
    ):
        self._optimizer, self._lists, self._changes = optimizer, amp_lists, use_dynamic_loss_scaling
        self._program = default_main_program()
        self._scaled: Any = None
        self._scaling = _state("loss_scaling", init_loss_scaling, "float32")
        if use_dynamic_loss_scaling:
            counts = (incr_every_n_steps, decr_every_n_nan_or_inf)
            self._every = [layers.fill_constant(shape=[1], dtype="int32", value=count) for count in counts]
            self._ratios = incr_ratio, decr_ratio
            self._steps = _state("num_good_steps", 0, "int32"), _state("num_bad_steps", 0, "int32")
        optimizer.hold_learning_rate(_learning_rate)

    def get_loss_scaling(self) -> Any:
        """The variable that losses are multiplied by."""
        return self._scaling

    def get_scaled_loss(self) -> Any:
        """The loss times the scale, None before `backward`."""
        return self._scaled

    def backward(
        self,
        loss: Any,
        startup_program: Any = None,
        parameter_list: Any = None,
        no_grad_set: Any = None,
        callbacks: Any = None,
    ) -> list[list[Any]]:
        """Rewrites the program and appends the gradients of the scaled loss; gives parameters with their gradients."""
        rewrite_program(self._program, self._lists)
        self._scaled = loss * self._scaling
        pairs = self._optimizer.backward(self._scaled, startup_program, parameter_list, no_grad_set, callbacks)
        update_role_var_grad(self._program, pairs)
        result: list[list[Any]] = []
        for parameter, gradient in pairs:
            with self._program._optimized_guard([parameter, gradient]):  # pyright: ignore[reportPrivateUsage]
                result.append([parameter, gradient / self._scaling])
        return result

    def apply_gradients(self, scaled_params_grads: list[list[Any]]) -> list[Any]:
        """Appends the updates, and before them what changes the scale; gives the ops that update."""
        if self._changes:
            sums = layers.concat([layers.reduce_sum(gradient) for _, gradient in scaled_params_grads])
            finite = layers.isfinite(layers.reduce_sum(sums))
            (good, bad), (more, less) = self._steps, self._ratios
            update_loss_scaling(finite, self._scaling, good, bad, self._every[0], self._every[1], more, less)
            with layers.Switch() as switch:
                with switch.case(finite):
                    pass
                with switch.default():
                    for _, gradient in scaled_params_grads:
                        layers.assign(layers.zeros_like(gradient), gradient)
        return self._optimizer.apply_gradients([(parameter, gradient) for parameter, gradient in scaled_params_grads])

    def minimize(
        self, loss: Any, startup_program: Any = None, parameter_list: Any = None, no_grad_set: Any = None
    ) -> tuple[list[Any], list[list[Any]]]:
        """Appends what trains the parameters on a loss; gives the updates, and parameters with their gradients."""
        pairs = self.backward(loss, startup_program, parameter_list, no_grad_set)
        return self.apply_gradients(pairs), pairs


def decorate(
    optimizer: Any,
    amp_lists: AutoMixedPrecisionLists | None = None,
    init_loss_scaling: float = 2**15,
    incr_every_n_steps: int = 1000,
    decr_every_n_nan_or_inf: int = 2,
    incr_ratio: float = 2.0,
    decr_ratio: float = 0.8,
    use_dynamic_loss_scaling: bool = True,
) -> OptimizerWithMixedPrecision:
    """The optimizer with mixed precision."""
    return OptimizerWithMixedPrecision(
        optimizer,
        amp_lists or AutoMixedPrecisionLists(),
        init_loss_scaling,
        use_dynamic_loss_scaling,
        incr_every_n_steps,
        decr_every_n_nan_or_inf,
        incr_ratio,
        decr_ratio,
    )
