"""Gradients of several steps as one update."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from pstranspile.cluster.machines.blocks import part_of
from pstranspile.fluid import layers
from pstranspile.fluid.framework import default_startup_program, program_guard
from pstranspile.fluid.graph.vartype import VarType
from pstranspile.fluid.missing import refused
from pstranspile.fluid.optimizer import Optimizer
from pstranspile.fluid.running.around import without_steps
from pstranspile.fluid.running.pacing import Pace, Turned
from pstranspile.ir.model import MAIN, Op, Program
from pstranspile.ir.roles import OpRole

L: Any = layers
ACCUMULATE = "accumulate"
"""The name of the program that adds gradients to the sums, where it is one beside the main program."""


class _Merging(ABC):
    """What optimizers that merge gradients share: those of `k_steps` runs are added, or with `avg` averaged.

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

    @abstractmethod
    def apply_gradients(self, params_grads: Any) -> list[Any]:
        """Appends the sums of these gradients, and the updates by them."""

    def _sums(self, params_grads: Any) -> list[tuple[Any, Any]]:
        """Appends the sums; gives them by parameter."""
        sums: list[tuple[Any, Any]] = []
        for param, grad in params_grads:
            if grad.type == VarType.SELECTED_ROWS:
                raise refused(f"gradient_merge of {param.name}", "its gradient is sparse; leave out is_sparse")
            name = f"{param.name}@GRAD@GradientMerge"
            held = L.create_global_var(list(param.shape), 0.0, param.dtype, persistable=True, name=name)
            L.assign(L.elementwise_add(held, grad), held)
            sums.append((param, held))
        return sums

    def _merged(self, held: Any) -> Any:
        return L.scale(held, 1.0 / self.k_steps if self.avg else 1.0)

    @staticmethod
    def _clear(held: Any) -> None:
        L.fill_constant(list(held.shape), held.dtype, 0.0, out=held)


class GradientMerge(_Merging):
    """An optimizer that merges gradients in one program, which updates in every last of `k_steps` runs."""

    def apply_gradients(self, params_grads: Any) -> list[Any]:
        """Appends the sums of these gradients, and in every last of `k_steps` runs the updates."""
        sums = self._sums(params_grads)
        step = L.create_global_var([1], 0, "int32", persistable=True, name="gradient_merge_step")
        L.increment(step, 1.0)
        left = L.elementwise_mod(step, L.fill_constant([1], "int32", self.k_steps))
        made: list[Any] = []

        def update() -> None:
            made.extend(self.inner.apply_gradients([(param, self._merged(held)) for param, held in sums]))
            for _, held in sums:
                self._clear(held)

        L.cond(L.equal(left, L.fill_constant([1], "int32", 0)), update, None)
        return made


class MergeForServers(_Merging, Optimizer):
    """An optimizer that merges gradients in two programs: one adds them up, the main one also sends and updates.

    Schedules of the learning rate count the runs of the main program, and so the updates.
    """

    def __init__(self, inner: Any, k_steps: int, avg: bool):
        super().__init__(inner, k_steps, avg)
        self.turns = Turned({}, f"{ACCUMULATE}*{k_steps - 1},{MAIN}", Pace(k_steps), self._between)
        self._sum_names: set[str] = set()

    def apply_gradients(self, params_grads: Any) -> list[Any]:
        """Appends the sums of these gradients, what merges and clears them, and the updates."""
        program = params_grads[0][0].block.program
        block = program.global_block()
        with program._backward_role_guard():
            sums = self._sums(params_grads)
        whole = program.freeze()
        counted = [op for op in whole.main_block.ops if not (op.role or OpRole.FORWARD) & OpRole.LR_SCHED]
        merged: list[tuple[Any, Any]] = []
        for param, held in sums:
            made = block.create_var(name=f"{param.name}@GRAD@MERGED", shape=held.shape, dtype=held.dtype)
            with program._roles(OpRole.BACKWARD, [param.name, made.name]):
                attrs = {"scale": 1.0 / self.k_steps if self.avg else 1.0}
                block.append_op(type="scale", inputs={"X": [held]}, outputs={"Out": [made]}, attrs=attrs)
            merged.append((param, made))
        with program._backward_role_guard():
            for _, held in sums:
                self._clear(held)
        self._sum_names = {held.name for _, held in sums}
        self.turns = self.turns._replace(besides={ACCUMULATE: part_of(whole, counted)})
        return self.inner.apply_gradients(merged)

    def apply_optimize(self, loss: Any, startup_program: Any, params_grads: Any) -> list[Any]:
        """As `apply_gradients`, with initial values in `startup_program`."""
        with program_guard(loss.block.program, startup_program or default_startup_program()):
            return self.apply_gradients(params_grads)

    def _between(self, program: Program) -> Program:
        """The program of a trainer without what merges and clears the sums, sends, and receives."""
        gone, kept = set[str](), list[Op]()
        for op in program.main_block.ops:
            talks = (op.role or OpRole.FORWARD) & (OpRole.RPC | OpRole.DIST)
            if self._merges(op) or (not talks and not gone.isdisjoint(op.input_names)):
                gone.update(name for name in op.output_names if name not in self._sum_names)
            else:
                kept.append(op)
        return without_steps(part_of(program, kept), gone)

    def _merges(self, op: Op) -> bool:
        """Whether an op merges one of the sums, or clears it."""
        if op.type == "fill_constant":
            return not self._sum_names.isdisjoint(op.output_names)
        return op.type == "scale" and not self._sum_names.isdisjoint(op.input_names)
