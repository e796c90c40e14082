"""Gradients of several steps as one update."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid import layers
from pstranspile.fluid.framework import default_startup_program, program_guard
from pstranspile.fluid.graph.vartype import VarType
from pstranspile.fluid.missing import refused

L: Any = layers


class GradientMerge:
    """An optimizer that adds the gradients of `k_steps` runs up, or with `avg` takes their mean, and then updates.

    Raises NotHere for parameters whose gradients are sparse.
    """

    def __init__(self, inner: Any, k_steps: int, avg: bool):
        self.inner, self.k_steps, self.avg = inner, k_steps, avg

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    def minimize(
        self, loss: Any, startup_program: Any = None, parameter_list: Any = None, no_grad_set: Any = None
    ) -> Any:
        """Appends gradients, their sums and the updates; gives the updates, and parameters with their gradients."""
        pairs = self.inner.backward(loss, startup_program, parameter_list, no_grad_set)
        with program_guard(loss.block.program, startup_program or default_startup_program()):
            return self.apply_gradients(pairs), pairs

    def apply_gradients(self, params_grads: Any) -> list[Any]:
        """Appends the sums of these gradients, and in every last of `k_steps` runs the updates."""
        sums: list[tuple[Any, Any]] = []
        for param, grad in params_grads:
            if grad.type == VarType.SELECTED_ROWS:
                raise refused(f"gradient_merge of {param.name}", "its gradient is sparse; leave out is_sparse")
            name = f"{param.name}@GRAD@GradientMerge"
            held = L.create_global_var(list(param.shape), 0.0, param.dtype, persistable=True, name=name)
            L.assign(L.elementwise_add(held, grad), held)
            sums.append((param, held))
        step = L.create_global_var([1], 0, "int32", persistable=True, name="gradient_merge_step")
        L.increment(step, 1.0)
        left = L.elementwise_mod(step, L.fill_constant([1], "int32", self.k_steps))
        made: list[Any] = []

        def update() -> None:
            merged = [(param, L.scale(held, 1.0 / self.k_steps if self.avg else 1.0)) for param, held in sums]
            made.extend(self.inner.apply_gradients(merged))
            for _, held in sums:
                L.fill_constant(list(held.shape), held.dtype, 0.0, out=held)

        L.cond(L.equal(left, L.fill_constant([1], "int32", 0)), update, None)
        return made
